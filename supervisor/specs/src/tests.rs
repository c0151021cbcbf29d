use std::fs;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Writes files into a directory, and reads the directory.
fn read_files(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<Vec<WantedSession>, Vec<String>>) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let read = read(&[directory.path().to_owned()]).map(|wanted| wanted.sessions);
    let prefix = format!("{}/", directory.path().display());
    let read =
        read.map_err(|mistakes| mistakes.iter().map(|mistake| mistake.to_string().replace(&prefix, "")).collect());
    (directory, read)
}

fn mistakes(name: &str, text: &str) -> Vec<String> {
    let (_directory, read) = read_files(&[(name, text)]);
    read.expect_err(text)
}

fn names(read: &[WantedSession]) -> Vec<&str> {
    read.iter().map(|session| session.name.as_str()).collect()
}

fn spec(value: serde_json::Value) -> SessionSpec {
    serde_json::from_value(value).unwrap()
}

fn compared(file: &SessionSpec, present: &SessionSpec) -> Result<Plan, serde_json::Error> {
    Plan::new(file, present, &"k3m".parse().unwrap())
}

#[test]
fn a_file_has_one_session_or_many_in_either_format() {
    let one = "\u{feff}name = \"a\"\r\ndirectory = \".\"\r\n[limits]\r\nmemory = \"2G\"\r\n";
    let many = "[[sessions]]\nname = \"b\"\ndirectory = \"x/../y\"\n[[sessions]]\nname = \"c\"\ndirectory = \"/\"\n";
    let yaml = "\u{feff}# a team\r\nname: d\r\ndirectory: ~/d\r\nlimits: { memory: 2G }\r\n";
    let documents =
        "---\nname: e\ndirectory: .\n---\nsessions:\n- name: f\n  directory: .\n- {name: g, directory: .}\n...\n";
    let (directory, read) = read_files(&[
        ("1.toml", one),
        ("2.toml", many),
        ("3.yaml", yaml),
        ("4.YML", documents),
        ("5.json", "no"),
        (".6.yaml", "no"),
        ("readme.md", "no"),
    ]);
    let read = read.unwrap();
    assert_eq!(names(&read), ["a", "b", "c", "d", "e", "f", "g"]);
    let base = directory.path().canonicalize().unwrap();
    let directories: Vec<&Path> = read.iter().map(|session| session.spec.directory.as_path()).collect();
    assert_eq!(directories[..3], [base.as_path(), &base.join("y"), Path::new("/")]);
    assert_eq!(directories[3], real(&std::env::home_dir().unwrap().join("d")));
    assert_eq!((read[0].spec.limits.memory, read[3].spec.limits.memory), (Some(2 << 30), Some(2 << 30)));
    assert_eq!((read[0].format, read[4].format), (Format::Toml, Format::Yaml));
}

#[test]
fn a_mistake_has_its_file_and_position() {
    let mut wrong = Vec::new();
    for (name, text, wanted) in [
        ("a.toml", "name = \"a\"\ndirectory = \".\"\ncolour = 1\n", "a.toml:3:1: unknown field `colour`"),
        ("a.yaml", "name: a\ndirectory: .\ncolour: 1\n", "a.yaml:3:1: unknown field `colour`"),
        (
            "a.yaml",
            "sessions:\n- name: a\n  directory: .\n  limits: { colour: 1 }\n",
            "a.yaml:4:13: unknown field `colour`",
        ),
        ("a.toml", "[[sessions]]\nname = \"A\"\ndirectory = \".\"\n", "a.toml:2:8: the session name"),
        ("a.yaml", "name: A b\ndirectory: .\n", "a.yaml:1:7: the session name"),
        ("a.toml", "name = \"a\"\nname = \"b\"\n", "a.toml:2:1: duplicate key"),
        ("a.yaml", "name: a\nname: b\ndirectory: .\n", "a.yaml:2:1: duplicate mapping key `name`"),
        ("a.yaml", "name: a\ndirectory: .\nlabels:\n  a: 1\n  a: 2\n", "a.yaml:5:3: duplicate mapping key `a`"),
        ("a.yaml", "name: a\n\tdirectory: .\n", "a.yaml:1:7: "),
        ("a.yaml", "name: a\ndirectory: .\ntags: lab\n", "a.yaml:3:7: expected sequence"),
        ("a.yaml", "name: a\ndirectory: .\nlimits: { memory: much }\n", "a.yaml:3:19: "),
        ("a.toml", "name = \"a\"\ndirectory = \".\"\nlimits.memory = \"much\"\n", "a.toml:3:17: "),
        ("a.yaml", "name: a\ndirectory: .\nlabels: { a: ~ }\n", "a.yaml:3:14: "),
        ("a.yaml", "name: a\ndirectory: .\ntags: *no\n", "a.yaml:3:7: reference to unknown"),
        ("a.yaml", "name: a\ndirectory: .\nenv_setup: !include setup.sh\n", "a.yaml:3:21: unsupported tag `!include`"),
        ("a.yaml", "!session\nname: a\ndirectory: .\n", "a.yaml:"),
        ("a.yaml", "- name: a\n", "a.yaml:1:1: "),
        ("a.yaml", "text\n", "a.yaml:1:1: "),
        ("a.yaml", "name: a\n", "a.yaml: session \"a\": it has no directory"),
        ("a.toml", "name = \"a\"\n", "a.toml: session \"a\": it has no directory"),
        ("a.yaml", "", "a.yaml: there is no session"),
        ("a.yaml", "---\n# nothing\n...\n", "a.yaml: there is no session"),
        ("a.toml", "\n# nothing\n", "a.toml:1:1: there is no session"),
        ("a.yaml", "sessions: []\nname: a\n", "a.yaml:2:1: beside `sessions`"),
        ("a.toml", "tags = []\n[[sessions]]\nname = \"b\"\ndirectory = \".\"\n", "a.toml:1:1: beside `sessions`"),
        ("a.toml", "name = \"a\"\n[[sessions]]\nname = \"b\"\n", "a.toml:2:3: unknown field `sessions`"),
        ("a.yaml", "directory: .\n", "a.yaml: session 1: it has no name"),
        ("a.yaml", "name: a\ndirectory: .\nlabels: { a b: c }\n", "a.yaml: session \"a\": \"a b\" is not the key"),
        ("a.yaml", "name: a\ndirectory: \"\"\n", "a.yaml: session \"a\": it has no directory"),
        (
            "a.yaml",
            "{name: a, directory: ., labels: {a: &x b, c: *x}}\n---\nname: a\ndirectory: .\n",
            "a.yaml: session \"a\": ",
        ),
    ] {
        let found = mistakes(name, text);
        if found.len() != 1 || !found[0].starts_with(wanted) {
            wrong.push(format!("{text}{wanted}\n{found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_file_has_schedules_beside_sessions_or_alone() {
    let prompt = "prompt: { session: a, text: go }";
    let yaml =
        format!("schedules:\n- {{ name: s, calendar: daily, {prompt} }}\nsessions:\n- name: a\n  directory: .\n");
    let toml = "[[schedules]]\nname = \"s\"\nat = \"2030-01-01T00:00:00Z\"\nsession = { directory = \"x\" }\n";
    let directory = tempfile::tempdir().unwrap();
    let wanted = |name: &str, text: &str| {
        let file = directory.path().join(name);
        fs::write(&file, text).unwrap();
        read(&[file])
    };
    let both = wanted("a.yaml", &yaml).unwrap();
    assert_eq!((both.sessions.len(), both.schedules.len()), (1, 1));
    let alone = wanted("a.toml", toml).unwrap();
    let place = directory.path().canonicalize().unwrap().join("x");
    assert_eq!(alone.schedules[0].spec.session.as_ref().unwrap().directory, place);
    for (text, words) in [
        ("schedules:\n- { name: s, calender: daily }\n", "unknown field `calender`"),
        ("schedules:\n- { calendar: daily }\n", "missing field `name`"),
        ("schedules: []\nname: a\n", "beside `sessions` and `schedules`"),
        ("schedules:\n- { name: s, session: {} }\n", "schedule \"s\": it has no directory"),
        (
            "schedules:\n- { name: s, calendar: daily }\n- { name: s, calendar: daily }\n",
            "has a schedule with this name too",
        ),
    ] {
        let found = wanted("b.yaml", text).unwrap_err();
        assert!(found.len() == 1 && found[0].to_string().contains(words), "{text}: {found:?}");
    }
}

#[test]
fn every_mistake_of_every_file_is_found() {
    let good = "name: a\ndirectory: .\n";
    let (_directory, read) = read_files(&[("1.yaml", good), ("2.yaml", ":"), ("3.toml", "="), ("4.yml", good)]);
    let found = read.unwrap_err();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[2].ends_with("1.yaml has a session with this name too"), "{found:?}");
    let (_directory, read) = read_files(&[("x.txt", "")]);
    assert!(read.unwrap_err()[0].ends_with("the directory has no *.toml, *.yaml or *.yml"));
    let absent = super::read(&["/nowhere/a.yaml".into()]).unwrap_err();
    assert!(absent[0].to_string().starts_with("/nowhere/a.yaml: cannot read it: "), "{absent:?}");
}

#[test]
fn numbers_in_yaml_are_the_texts_as_they_are_written() {
    let text = "name: 12\ndirectory: .\nlabels: { v: 1.10, on: yes, hex: 0x10, t: true }\n";
    let (_directory, read) = read_files(&[("a.yaml", text)]);
    let session = &read.unwrap()[0];
    assert_eq!(session.name.as_str(), "12");
    assert_eq!(json!(session.spec.labels), json!({ "v": "1.10", "on": "yes", "hex": "0x10", "t": "true" }));
}

#[test]
fn the_format_of_a_text_without_a_name_is_guessed() {
    for text in
        ["name = \"a:b\"", "# c\n\n[[sessions]]", "limits.memory = 1", "\u{feff}\"a\" = 1", "labels = { a = \"b:c\" }"]
    {
        assert_eq!(Format::of_text(text), Format::Toml, "{text}");
    }
    for text in
        ["", "---", "name: a=b", "{\"name\": \"a=b\"}", "# a = b\nname: a", "sessions:\n- name: a", "\"a\": b = c"]
    {
        assert_eq!(Format::of_text(text), Format::Yaml, "{text}");
    }
}

/// A specification with every kind of value, and texts that are hard to write.
fn hard() -> SessionSpec {
    let texts = "yes|1.10|null|~|| lead|trail |a\nb\n|a\n\n\n|\n|a\r\nb|\ta\n\tb\n|- a|a: b|a # b|&a|*a|%a|@a|'\"|\
                 \u{1b}[0m|\u{85}|a\u{2028}b|\u{feff}x|é|{|0o7|2001-01-01|a\\|\"\"\"|'''|<<|? a|!t|---|...|a\n---\n";
    let texts: Vec<&str> = texts.split('|').collect();
    let env: BTreeMap<String, String> =
        texts.iter().enumerate().map(|(index, text)| (format!("V{index}"), (*text).to_owned())).collect();
    spec(json!({
        "name": "12", "directory": "/d \" e", "command": texts, "initial_prompt": "word ".repeat(100),
        "env_setup": "#!/bin/sh\n\nif true; then\n\texport A='b'  \nfi\n", "permissions": "deny",
        "restart": "on-failure",
        "labels": { "a.b/c": "1", "true": "no", "empty": "" }, "environment": { "env": env, "allow": ["A*"] },
        "limits": { "memory": "2G", "cpu_weight": 7, "idle_seconds": 0 }, "tags": ["x", "1"], "isolation": "guard",
    }))
}

#[test]
fn a_written_file_is_read_as_it_was() {
    for format in [Format::Toml, Format::Yaml] {
        for specs in [vec![hard()], vec![hard(), spec(json!({ "name": "b", "directory": "/" }))], vec![]] {
            let text = format.write_all(&specs).unwrap();
            assert_eq!(format.parse(&text).map(|parsed| parsed.sessions).as_ref(), Ok(&specs), "{text}");
            assert_eq!(Format::of_text(&text), format, "{text}");
        }
        let text = format.write(&hard()).unwrap();
        assert_eq!(format.parse(&text).map(|parsed| parsed.sessions), Ok(vec![hard()]), "{text}");
        assert_eq!(Format::of_text(&text), format, "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_as_it_was_written(
        texts in prop::collection::vec(any::<String>(), 4),
        lines in "([ \t#:'\"a-z-]{0,12}\r?\n){0,6}",
    ) {
        let [script, prompt, key, value] = &texts[..] else { unreachable!() };
        let spec = spec(json!({
            "name": "a", "directory": "/", "env_setup": script, "initial_prompt": prompt, "tags": [lines, value],
            "command": [key, lines], "environment": { "env": { key: value, value: lines } },
        }));
        for format in [Format::Toml, Format::Yaml] {
            let text = format.write_all(std::slice::from_ref(&spec)).unwrap();
            let parsed = format.parse(&text).map(|parsed| parsed.sessions);
            prop_assert_eq!(parsed, Ok(vec![spec.clone()]), "{}", text);
        }
    }
}

#[test]
fn a_plan_keeps_what_agentd_filled_in_and_restores_defaults() {
    let present = spec(json!({
        "name": "a", "agent": "demo", "directory": "/", "tags": ["x"], "limits": { "memory": 1, "tasks": 2 },
        "labels": { "a": "1", "b": "2" }, "environment": { "source": "terminal", "snapshot": "s1" },
    }));
    let same = compared(
        &spec(json!({
            "name": "a", "directory": "/", "tags": ["x"], "limits": { "memory": 1, "tasks": 2 },
            "labels": { "b": "2", "a": "1" }, "environment": { "source": "terminal" },
        })),
        &present,
    )
    .unwrap();
    assert!(same.changes.is_empty() && same.patch.0.is_empty() && same.wanted == present, "{same:?}");

    let file = json!({ "name": "a", "directory": "/", "limits": { "memory": "1K" }, "labels": { "a": "3" } });
    let plan = compared(&spec(file), &present).unwrap();
    let fields: Vec<&str> = plan.changes.iter().map(|change| change.field.as_str()).collect();
    assert_eq!(fields, ["labels", "limits.memory", "limits.tasks", "environment", "tags"]);
    assert_eq!(
        serde_json::Value::Object(plan.patch.0.clone()),
        json!({
            "labels": { "a": "3", "b": null }, "limits": { "memory": 1024, "tasks": null },
            "environment": null, "tags": null,
        })
    );
    assert!(plan.fixed().is_none());
    for (file, field) in [
        (json!({ "name": "a", "directory": "/nowhere" }), "directory"),
        (json!({ "name": "a", "directory": "/", "agent": "other" }), "agent"),
        (json!({ "name": "a", "directory": "/", "command": ["x"] }), "agent"),
        (json!({ "name": "a", "directory": "/", "initial_prompt": "x" }), "initial_prompt"),
    ] {
        let plan = compared(&spec(file), &present).unwrap();
        assert_eq!(plan.fixed().map(|change| change.field.as_str()), Some(field));
    }
    let command = spec(json!({ "name": "a", "directory": "/", "command": ["x"] }));
    let plan = compared(&spec(json!({ "name": "a", "directory": "/" })), &command).unwrap();
    assert_eq!(plan.fixed().map(|change| change.field.as_str()), Some("command"));
}

#[test]
fn a_directory_in_a_workspace_is_relative_and_a_worktree_is_relative_to_the_file() {
    let text = "name: a\nworkspace: new\ndirectory: web/src\nrepos: [{ worktree: true, path: web }]\n---\n\
                name: b\nworkspace: new\n";
    let (directory, read) = read_files(&[("a.yaml", text)]);
    let read = read.unwrap();
    let base = directory.path().canonicalize().unwrap();
    assert_eq!(read[0].spec.repos[0].path.as_deref(), Some(base.join("web").as_path()));
    for (file, stored) in [(&read[0], "/state/workspaces/k3m/web/src"), (&read[1], "/state/workspaces/k3m")] {
        let present = SessionSpec { directory: stored.into(), ..file.spec.clone() };
        assert!(compared(&file.spec, &present).unwrap().changes.is_empty(), "{stored}");
        let other = SessionSpec { directory: "elsewhere".into(), ..file.spec.clone() };
        assert_eq!(compared(&other, &present).unwrap().fixed().unwrap().field, "directory");
    }
}

#[test]
fn a_directory_behind_a_link_is_the_same_directory() {
    let root = tempfile::tempdir().unwrap();
    let (real_one, link) = (root.path().join("real"), root.path().join("link"));
    fs::create_dir(&real_one).unwrap();
    std::os::unix::fs::symlink(&real_one, &link).unwrap();
    let mut further = spec(json!({ "name": "a", "directory": "link", "directories": ["link/../x", "/"] }));
    placed(&mut further, root.path()).unwrap();
    assert_eq!(further.directories, [real(root.path()).join("x"), "/".into()]);
    let file = spec(json!({ "name": "a", "directory": resolved(&link, Path::new("")).unwrap() }));
    let present = spec(json!({ "name": "a", "directory": link }));
    assert!(compared(&file, &present).unwrap().changes.is_empty());
    assert_eq!(resolved(Path::new("link/gone/../x"), root.path()).unwrap(), real(&real_one).join("x"));
}

#[test]
fn a_file_with_one_session_needs_no_name_and_no_directory() {
    let root = tempfile::tempdir().unwrap();
    let read = |text: &str| {
        let file = root.path().join("a.yaml");
        fs::write(&file, text).unwrap();
        read_one(&file).map_err(|mistake| mistake.to_string())
    };
    assert_eq!(read("agent: demo").unwrap().workspace, Some(Workspace::New));
    assert_eq!(read("sessions: [{ agent: demo }]").unwrap().workspace, Some(Workspace::New));
    let placed = read("directory: web").unwrap();
    assert_eq!((placed.workspace, placed.directory), (None, real(root.path()).join("web")));
    assert_eq!(read("parent: first").unwrap().workspace, None);
    for (text, message) in [
        ("sessions: [{ agent: demo }, { agent: demo }]", "it has 2 sessions"),
        ("sessions: []", "it has 0 sessions"),
        ("schedules: [{ name: a, calendar: daily, session: { agent: demo, directory: / } }]", "it has schedules"),
        ("labels: { \"a b\": c }\nagent: demo", "a b"),
        ("colour: red", "a.yaml:1:1: unknown field"),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains(message), "{text}: {error}");
    }
}
