//! Labels of sessions, and specifications of sessions in files: `agentctl get`, `apply` and `diff`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use agentd_api::Code;
use agentd_api::session::{SessionSpec, WholeList};
use agentd_api::spec::{Effect, SpecChangeView};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::ctl::{agentctl, ctl, ctl_with, end_of};
use crate::harness::{Daemon, until, within};

fn named(daemon: &Daemon, name: &str) -> SessionSpec {
    SessionSpec { name: Some(name.parse().unwrap()), ..daemon.scripted(&[]) }
}

#[tokio::test]
async fn labels_are_changed_one_by_one_and_choose_sessions() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&named(&daemon, "web")).await;
    let labels = [("team".to_owned(), "api".to_owned())].into();
    daemon.session(&SessionSpec { labels, ..named(&daemon, "api") }).await;
    let said = ctl(&daemon, &["set", "web", "labels.team=web", "labels.example.com/tier=test"]).await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), "web: generation 2\n  labels takes effect at once\n"));
    let patch = json!({ "labels": { "team": null, "old": "" } });
    let view: SpecChangeView = daemon.client.patch(&session.path(""), &patch, None).await.expect(200);
    assert_eq!((view.changes[0].field.as_str(), view.changes[0].effect), ("labels", Effect::Live));
    assert_eq!(json!(view.session.spec.labels), json!({ "example.com/tier": "test", "old": "" }));
    let shown = ctl(&daemon, &["show", "web"]).await.out;
    assert!(shown.contains("labels:        example.com/tier=test, old=\n"), "{shown}");

    for (selector, wanted) in [
        ("team=api", vec!["api"]),
        ("team!=api", vec!["web"]),
        ("!team", vec!["web"]),
        ("old,example.com/tier==test", vec!["web"]),
        ("none", vec![]),
        ("!none", vec!["api", "web"]),
    ] {
        let said = ctl(&daemon, &["ls", "-l", selector, "--json"]).await;
        let list: WholeList = serde_json::from_str(&said.out).expect(selector);
        let names: BTreeSet<String> =
            list.sessions.iter().map(|view| view.spec.name.as_ref().unwrap().to_string()).collect();
        assert_eq!(names, wanted.into_iter().map(str::to_owned).collect(), "{selector}");
    }
    let wrong = ctl(&daemon, &["ls", "-l", "team in (web)"]).await;
    assert!(wrong.status == Some(2) && wrong.err.contains("KEY!=VALUE") | wrong.err.contains("key has"), "{wrong:?}");
    let problem = daemon.client.get("/v1/sessions?label=a%20b").await.problem();
    assert!(problem.code == Code::InvalidRequest && problem.hint.unwrap().contains("KEY=VALUE"));
}

#[tokio::test]
async fn a_label_with_another_syntax_or_a_token_is_refused() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let before = session.view().await;
    let token = format!("ghp_{}", "a1B2".repeat(9));
    for (labels, words) in [
        (json!({ "a b": "" }), "key of a label"),
        (json!({ "a": "x/y" }), "value of the label"),
        (json!({ "a": 1 }), "integer `1`"),
        (json!({ "a": token }), "token of GitHub"),
    ] {
        let problem = daemon.client.patch(&session.path(""), &json!({ "labels": labels }), None).await.problem();
        assert_eq!(problem.code, Code::InvalidRequest, "{problem:?}");
        assert!(problem.detail.contains(words) && problem.hint.is_some(), "{problem:?}");
    }
    assert_eq!(session.view().await, before);
    let said = ctl(&daemon, &["new", "--label", "a"]).await;
    assert!(said.status == Some(2) && said.err.contains("give KEY=VALUE"), "{said:?}");
    let said = ctl(&daemon, &["new", "--label", "team=web", "--label", "team=api", "--agent", "demo"]).await;
    assert_eq!(daemon.client.view(said.out.trim()).await.spec.labels["team"], "api");
}

/// Writes a file below the daemon's root, and returns its path.
fn written(daemon: &Daemon, name: &str, text: &str) -> String {
    let path = daemon.root().join("repository").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Returns the scripted agent's command as a list in YAML and TOML.
fn command(daemon: &Daemon) -> String {
    serde_json::to_string(&daemon.scripted(&[]).command).unwrap()
}

#[tokio::test]
async fn a_file_creates_changes_and_leaves_sessions() {
    let daemon = Daemon::start().await;
    let command = command(&daemon);
    let text = |limits: &str| {
        format!(
            "sessions:\n- name: web\n  directory: web\n  command: &agent {command}\n  labels: {{ v: 1.10 }}\n{limits}\
             - name: api\n  directory: ../work\n  command: *agent\n  tags: [lab]\n"
        )
    };
    let file = written(&daemon, "team.yaml", &text(""));
    let directory = daemon.root().join("repository/web");
    let refused = ctl(&daemon, &["apply", "-f", &file]).await;
    assert!(refused.status == Some(1) && refused.out == "api created\n", "{refused:?}");
    let words = format!("cannot apply session \"web\" of {file}: ");
    assert!(refused.err.contains(&words) && refused.err.contains("hint: "), "{refused:?}");
    fs::create_dir(&directory).unwrap();
    let dry = ctl(&daemon, &["apply", "--dry-run", "-f", &file]).await;
    assert_eq!((dry.status, dry.out.as_str()), (Some(0), "web created (dry run)\napi unchanged (dry run)\n"));
    let made = ctl(&daemon, &["apply", "-f", &file]).await;
    assert_eq!((made.status, made.out.as_str()), (Some(0), "web created\napi unchanged\n"));
    let web = daemon.client.view("web").await;
    assert_eq!((&web.spec.directory, web.spec.labels["v"].as_str()), (&directory.canonicalize().unwrap(), "1.10"));

    written(&daemon, "team.yaml", &text("  limits: { memory: 2G }\n  restart: never\n"));
    let wanted = "web changed (restart, limits.memory)\n  limits.memory takes effect with the next launch\n";
    let changed = ctl(&daemon, &["apply", "-f", &file]).await;
    assert_eq!((changed.status, changed.out), (Some(0), format!("{wanted}api unchanged\n")));
    // A field that another client set and the file does not have gets its default.
    ctl(&daemon, &["set", "web", "tags=x", "labels.other=1", "limits.tasks=7"]).await;
    let changed = ctl(&daemon, &["--json", "apply", "-f", &file]).await;
    let lines: Vec<Value> = changed.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let fields: Vec<&str> =
        lines[0]["changes"].as_array().unwrap().iter().map(|one| one["field"].as_str().unwrap()).collect();
    assert_eq!((fields, &lines[1]["result"]), (vec!["labels", "limits.tasks", "tags"], &json!("unchanged")));
    let view = daemon.client.view("web").await;
    assert_eq!((view.generation, view.spec.tags.len(), view.spec.limits.memory), (4, 0, Some(2 << 30)));
}

#[tokio::test]
async fn what_never_changes_fails_for_its_session_and_mistakes_change_nothing() {
    let daemon = Daemon::start().await;
    let command = command(&daemon);
    let one = |name: &str, rest: &str| format!("name: {name}\ndirectory: ../work\n{rest}");
    // The default agent was filled in at the creation, so its absence is no change.
    let file = written(&daemon, "a.yaml", &format!("{}---\n{}", one("a", ""), one("b", "")));
    assert_eq!(ctl(&daemon, &["apply", "-f", &file]).await.status, Some(0));
    assert_eq!(ctl(&daemon, &["apply", "-f", &file]).await.out, "a unchanged\nb unchanged\n");
    for (rest, field) in [
        ("agent: other\n".to_owned(), "agent"),
        ("initial_prompt: again\n".to_owned(), "initial_prompt"),
        (format!("command: {command}\n"), "agent"),
    ] {
        let file = written(&daemon, "a.yaml", &format!("{}---\n{}", one("a", &rest), one("b", "tags: [x]\n")));
        for (flags, tags) in [(&["--dry-run"][..], 0), (&[], 1)] {
            let said = ctl(&daemon, &[&["apply", "-f", &file], flags].concat()).await;
            assert!(said.status == Some(1) && said.out.starts_with("b changed (tags)"), "{said:?}");
            let words = format!("the field \"{field}\" of a session never changes");
            assert!(said.err.contains(&words) && said.err.contains("\"a\""), "{said:?}");
            assert_eq!(daemon.client.view("b").await.spec.tags.len(), tags);
        }
        ctl(&daemon, &["set", "b", "tags="]).await;
    }
    written(&daemon, "a.yaml", &one("new", ""));
    let broken = written(&daemon, "b.toml", "name = \"c\"\ndirectory = \".\"\ncolour = \"red\"\n");
    let twin = written(&daemon, "c.yml", &one("new", "labels: { a b: c }\n"));
    let directory = daemon.root().join("repository").display().to_string();
    let said = ctl(&daemon, &["apply", "-f", &directory]).await;
    assert_eq!((said.status, said.out.as_str()), (Some(1), ""));
    assert!(said.err.contains(&format!("{broken}:3:1: unknown field `colour`")), "{said:?}");
    assert!(said.err.contains(&format!("{twin}: session \"new\": \"a b\"")), "{said:?}");
    assert_eq!(daemon.client.get("/v1/sessions/new").await.problem().code, Code::NoSuchSession);
    let secret = one("s", &format!("command: {command}\nenvironment: {{ env: {{ API_TOKEN: abcdef }} }}\n"));
    let said = ctl_with(&daemon, &["apply", "-f", "-"], &secret).await;
    assert!(said.status == Some(1) && said.err.contains("of standard input: "), "{said:?}");
}

#[tokio::test]
async fn a_difference_has_the_status_of_diff() {
    let daemon = Daemon::start().await;
    let file = written(&daemon, "team.toml", "[[sessions]]\nname = \"a\"\ndirectory = \"../work\"\n");
    let new = ctl(&daemon, &["diff", "-f", &file]).await;
    assert_eq!(new.status, Some(1), "{new:?}");
    assert!(
        new.out.starts_with(&format!("--- /dev/null\n+++ a ({file})\n@@ -0,0 +1,3 @@\n+name = \"a\"\n")),
        "{new:?}"
    );
    ctl(&daemon, &["apply", "-f", &file]).await;
    assert_eq!(ctl(&daemon, &["diff", "-f", &file]).await.parts(), (Some(0), String::new(), String::new()));
    ctl(&daemon, &["set", "a", "tags=x"]).await;
    let old = ctl(&daemon, &["diff", "-f", &file]).await;
    assert!(old.status == Some(1) && old.out.contains("\n-tags = [\"x\"]\n") && !old.out.contains("\n+t"), "{old:?}");
    let json: Value = serde_json::from_str(&ctl(&daemon, &["--json", "diff", "-f", &file]).await.out).unwrap();
    assert_eq!((&json["result"], &json["changes"][0]["field"]), (&json!("changed"), &json!("tags")));
    for wrong in [&["diff"][..], &["diff", "-f", "/nowhere.yaml"], &["--socket", "/nowhere", "diff", "-f", &file]] {
        let said = ctl(&daemon, wrong).await;
        assert!(said.status.unwrap() >= 2 && !said.err.is_empty(), "{said:?}");
    }
}

#[tokio::test]
async fn what_get_prints_is_a_file_that_changes_nothing() {
    let daemon = Daemon::start().await;
    let labels = json!({ "team": "web" });
    let environment = json!({ "env": { "A": "yes", "B": " 1 ", "C": "a\n\tb\n" }, "source": "terminal" });
    let mut spec = serde_json::to_value(daemon.scripted(&[])).unwrap();
    spec["labels"] = labels;
    spec["environment"] = environment;
    spec["env_setup"] = json!("# \u{e9}\nexport X='a: b'  \n\n");
    let mut file = |name: &str| {
        spec["name"] = json!(name);
        serde_json::to_string(&spec).unwrap()
    };
    let both = format!("{}\n---\n{}\n", file("one"), file("two"));
    let said = ctl_with(&daemon, &["apply", "-f", "-"], &both).await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), "one created\ntwo created\n"), "{said:?}");
    let unnamed = daemon.session(&daemon.scripted(&[])).await;
    for format in ["toml", "yaml"] {
        for (arguments, wanted) in [
            (&["get", "one", "-o", format][..], "one unchanged\n"),
            (&["get", "-l", "team=web", "-o", format], "one unchanged\ntwo unchanged\n"),
            (&["get", "-o", format], "one unchanged\ntwo unchanged\n"),
            (&["get", "-l", "none", "-o", format], ""),
        ] {
            let printed = ctl(&daemon, arguments).await;
            assert_eq!(printed.status, Some(0), "{printed:?}");
            assert_eq!(printed.err.contains("1 without a name"), arguments.len() == 3, "{printed:?}");
            let applied = ctl_with(&daemon, &["apply", "-f", "-"], &printed.out).await;
            assert_eq!((applied.status, applied.out.as_str()), (Some(0), wanted), "{applied:?}\n{}", printed.out);
        }
    }
    // A change to the terminal's environment sends that environment, as a creation does.
    let plain = format!("name: three\ndirectory: {}\n", daemon.work().display());
    let terminal = format!("{plain}environment: {{ source: terminal }}\n");
    for (text, wanted) in [
        (&plain, "three created\n"),
        (&terminal, "three changed (environment)\n  environment takes effect with the next launch\n"),
        (&terminal, "three unchanged\n"),
        (&plain, "three changed (environment)\n  environment takes effect with the next launch\n"),
    ] {
        let said = ctl_with(&daemon, &["apply", "-f", "-"], text).await;
        assert_eq!((said.status, said.out.as_str()), (Some(0), wanted), "{said:?}");
    }
    daemon.client.call("DELETE", "/v1/sessions/three?force=true", "").await;
    let get = async |arguments: &[&str]| ctl(&daemon, &[&["get"], arguments].concat()).await;
    let names = get(&["-o", "name"]).await.out;
    assert_eq!(names.lines().collect::<BTreeSet<_>>(), ["one", "two", unnamed.id.as_str()].into());
    assert_eq!(get(&["two", "one", "-o", "jsonpath=$.spec['name', 'permissions']"]).await.out, "two\nask\none\nask\n");
    assert_eq!(get(&["one", "-o", "jsonpath={.spec.labels}"]).await.out, "{\"team\":\"web\"}\n");
    let view: Value = serde_json::from_str(&get(&["one", "-o", "json"]).await.out).unwrap();
    assert_eq!((&view["spec"]["name"], view["status"]["phase"].is_string()), (&json!("one"), true));
    let list: WholeList = serde_json::from_str(&get(&["-o", "json"]).await.out).unwrap();
    assert_eq!(list.sessions.len(), 3);
    for wrong in [&["-o", "wide"][..], &["-o", "jsonpath=x"], &["one", "-l", "a"], &["--json", "-o", "yaml"]] {
        assert_eq!(get(wrong).await.status, Some(2), "{wrong:?}");
    }
    assert_eq!(get(&["unknown"]).await.status, Some(1));
}

#[tokio::test]
async fn many_sessions_are_applied_over_kills_of_the_daemon() {
    let mut daemon = Daemon::start().await;
    let documents: Vec<String> = (0..50).map(|number| format!("name: s{number}\ndirectory: .\ntags: [a]\n")).collect();
    let text = documents.join("---\n");
    let file = written(&daemon, "many.yaml", &text);
    for tags in ["a", "b"] {
        written(&daemon, "many.yaml", &text.replace("[a]", &format!("[{tags}]")));
        let applying = agentctl(&daemon, &["apply", "-f", &file]).spawn().unwrap();
        let has_some = || sessions_with(&daemon, tags) > 3;
        until("some sessions are applied", has_some).await;
        daemon.kill9();
        daemon.run().await;
        let said = end_of(applying).await;
        assert_eq!((said.status, said.out.lines().count()), (Some(0), 50), "{said:?}");
        let again = ctl(&daemon, &["apply", "-f", &file]).await;
        assert!(again.out.lines().all(|line| line.ends_with(" unchanged")), "{again:?}");
    }
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert_eq!(list.sessions.len(), 50);
    assert!(list.sessions.iter().all(|view| view.generation == 2 && view.spec.tags == ["b"]));
}

/// Counts the sessions on the disk whose specification has the tag.
fn sessions_with(daemon: &Daemon, tag: &str) -> usize {
    let Ok(entries) = fs::read_dir(daemon.state().join("sessions")) else { return 0 };
    let has_tag = |text: String| text.contains(&format!("\"tags\":[\"{tag}\"]"));
    let of_one = |directory: PathBuf| {
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        files.into_iter().any(|file| fs::read_to_string(file.path()).is_ok_and(has_tag))
    };
    entries.flatten().filter(|entry| of_one(entry.path())).count()
}

#[tokio::test]
async fn another_client_s_change_is_compared_again() {
    let daemon = Daemon::start().await;
    let file = written(&daemon, "a.yaml", "name: a\ndirectory: ../work\nlabels: { file: x }\n");
    ctl(&daemon, &["apply", "-f", &file]).await;
    let path = "/v1/sessions/a";
    let mut clients = JoinSet::new();
    let client = daemon.client.clone();
    clients.spawn(async move {
        for number in 0..40 {
            client.patch(path, &json!({ "labels": { "other": number.to_string() } }), None).await;
        }
    });
    for _ in 0..6 {
        let said = ctl(&daemon, &["apply", "-f", &file]).await;
        assert_eq!(said.status, Some(0), "{said:?}");
    }
    within("the other client", clients.join_all()).await;
    let said = ctl(&daemon, &["apply", "-f", &file]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let labels = daemon.client.view("a").await.spec.labels.clone();
    assert_eq!(json!(labels), json!({ "file": "x" }));
}
