use std::collections::BTreeSet;

use super::*;

#[test]
fn each_file_is_read_without_loss() {
    assert!(all().len() >= 10);
    for (name, file) in FILES {
        let agent = by_name(name).unwrap();
        let written: serde_json::Value = serde_json::from_str(file).unwrap();
        assert_eq!(serde_json::to_value(agent).unwrap(), written, "{name}");
    }
    let mut names: Vec<&str> = all().iter().map(KnownAgent::name).collect();
    names.sort_unstable();
    assert_eq!(names, all().iter().map(KnownAgent::name).collect::<Vec<_>>());
}

#[test]
fn the_folder_has_no_other_file() {
    let folder = std::fs::read_dir("agents").unwrap();
    let found: BTreeSet<String> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, FILES.iter().map(|(name, _)| format!("{name}.json")).collect());
}

#[test]
fn no_two_agents_share_a_program_or_an_id() {
    let programs: Vec<&String> = all().iter().flat_map(|agent| &agent.agentd.programs).collect();
    let ids: Vec<&String> = all().iter().flat_map(|agent| &agent.agentd.registry).collect();
    for list in [programs, ids] {
        assert_eq!(list.iter().collect::<BTreeSet<_>>().len(), list.len(), "{list:?}");
    }
}

#[test]
fn what_an_entry_refers_to_is_in_the_entry() {
    for agent in all() {
        let Knowledge { command, programs, variables, environment, conversations, login, sources, .. } = &agent.agentd;
        assert!(programs.contains(&command[0]), "{}", agent.name());
        assert!(!sources.is_empty(), "{}", agent.name());
        for key in login.keys.iter().chain(login.methods.iter().map(|method| &method.key)) {
            assert!(variables.contains(key) && login.keys.contains(key), "{}: {key}", agent.name());
        }
        for name in environment.keys() {
            assert!(name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'), "{}: {name}", agent.name());
        }
        for file in &login.files {
            let name = file.strip_prefix('{').map(|rest| rest.split_once('}').unwrap().0);
            assert!(name.is_none_or(|name| conversations.iter().any(|one| one.variable == name)), "{file}");
        }
    }
}

#[test]
fn a_login_is_seen_in_a_key_or_in_a_file() {
    let home = tempfile::tempdir().unwrap();
    let none = |_: &str| None;
    let codex = by_name("codex").unwrap();
    assert_eq!(codex.login_sign(home.path(), none), LoginSign::Missing);
    let empty = |name: &str| (name == "OPENAI_API_KEY").then(String::new);
    assert_eq!(codex.login_sign(home.path(), empty), LoginSign::Missing);
    let key = |name: &str| (name == "OPENAI_API_KEY").then(|| "k".to_owned());
    assert_eq!(codex.login_sign(home.path(), key), LoginSign::Key("OPENAI_API_KEY".to_owned()));
    for folder in [".codex", "other"] {
        let file = home.path().join(folder).join("auth.json");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{}").unwrap();
        let moved = |name: &str| {
            (folder == "other" && name == "CODEX_HOME").then(|| home.path().join("other").display().to_string())
        };
        assert_eq!(codex.login_sign(home.path(), moved), LoginSign::File(file));
    }
    assert_eq!(by_name("opencode").unwrap().login_sign(home.path(), none), LoginSign::NotNeeded);
    assert_eq!(by_name("kiro").unwrap().login_sign(home.path(), none), LoginSign::Unknown);
}

#[test]
fn an_entry_of_the_registry_has_a_command() {
    let text = |distribution: &str| {
        format!(
            r#"{{"id": "x", "name": "X", "version": "1.0.0", "description": "d", "icon": "./icon.svg",
                "distribution": {distribution}}}"#
        )
    };
    let entry = |text: &str| Entry::of(serde_json::from_str(text).unwrap_or_default());
    let launch = |distribution: &str| entry(&text(distribution)).unwrap().launch("linux-x86_64");
    let npm = launch(r#"{"npx": {"package": "@x/y@1", "args": ["--acp"], "env": {"A": "1"}}}"#).unwrap();
    assert_eq!(npm.command, ["npx", "--yes", "@x/y@1", "--acp"]);
    assert_eq!(npm.env["A"], "1");
    assert_eq!(launch(r#"{"uvx": {"package": "y"}}"#).unwrap().command, ["uvx", "y"]);
    let archive = r#"{"binary": {"linux-x86_64": {"archive": "https://x/y.zip", "cmd": "./bin/y", "args": ["acp"]}}}"#;
    let archive = launch(archive).unwrap();
    assert_eq!(
        (archive.command, archive.archive),
        (vec!["y".to_owned(), "acp".to_owned()], Some("https://x/y.zip".to_owned()))
    );
    let error = launch(r#"{"binary": {"darwin-aarch64": {"archive": "https://x/y.zip", "cmd": "y"}}}"#).unwrap_err();
    assert_eq!(error.to_string(), "the entry has no distribution for linux-x86_64; it has: darwin-aarch64");
    for wrong in [
        "[]",
        "{}",
        "",
        r#"{"id": "X", "name": "X", "description": "d"}"#,
        r#"{"id": "", "name": "X", "description": "d"}"#,
    ] {
        assert!(entry(wrong).is_err(), "{wrong}");
    }
}
