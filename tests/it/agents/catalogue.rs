//! Known agents: the list, entries that are `like` a known agent, the place of its conversations, and the offer of a
//! first run.

use std::os::unix::fs::PermissionsExt as _;

use agentd_api::Body;
use agentd_api::agents::{Catalogue, LoginState};
use agentd_api::environment::EnvironmentView;
use agentd_api::session::{ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use serde_json::{Value, json};

use crate::harness::ctl::{agentctl, ctl};
use crate::harness::terminal::Terminal;
use crate::harness::{Daemon, Session, scripted_agent};

/// Installs a program in the home, which prints this version, and otherwise is the scripted agent.
fn install(daemon: &Daemon, name: &str, version: &str) {
    let bin = daemon.home().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let agent = scripted_agent();
    let script =
        format!("#!/bin/sh\nif [ \"$1\" = --version ]; then echo '{version}'; exit; fi\nexec '{}'\n", agent.display());
    std::fs::write(bin.join(name), script).unwrap();
    std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(daemon.home().join(".profile"), "export PATH=\"$HOME/bin:$PATH\"\n").unwrap();
}

/// Adds tables to the configuration. `TABLE` becomes the command of the scripted agent, which keeps its conversations.
fn configure(daemon: &Daemon, tables: &str) {
    let store = daemon.root().join("conversations");
    std::fs::create_dir(&store).unwrap();
    let command = format!("command = {:?}", [scripted_agent(), "--store".into(), store]);
    daemon.configure(|config| format!("{config}\n{}\n", tables.replace("TABLE", &command)));
}

fn spec(daemon: &Daemon, agent: &str) -> SessionSpec {
    serde_json::from_value(json!({ "directory": daemon.work(), "agent": agent, "name": "fix" })).unwrap()
}

async fn environment(daemon: &Daemon, session: &Session) -> EnvironmentView {
    daemon.client.get(&session.path("/environment?at=last&values=true")).await.expect(200)
}

fn value(view: &EnvironmentView, name: &str) -> Option<String> {
    let found = view.variables.iter().find(|variable| variable.name == name)?;
    found.value.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn place(view: &SessionView) -> Option<(ConditionStatus, &str)> {
    let found = view.status.conditions.iter().find(|one| one.kind == ConditionType::ConversationPlace)?;
    Some((found.status, &found.message))
}

#[tokio::test]
async fn the_list_has_what_is_configured_and_what_is_known_with_version_and_login() {
    let mut daemon = Daemon::prepare();
    install(&daemon, "gemini", "0.61.0");
    install(&daemon, "codex-acp", "@agentclientprotocol/codex-acp 2.6.0");
    std::fs::create_dir(daemon.home().join(".codex")).unwrap();
    std::fs::write(daemon.home().join(".codex/auth.json"), "{}").unwrap();
    configure(&daemon, "[agents.work]\nlike = \"codex\"\n\n[agents.broken]\ncommand = [\"no-such-agent\"]");
    daemon.run().await;
    let list: Catalogue = daemon.client.get("/v1/catalogue?versions=true").await.expect(200);
    let names: Vec<&str> = list.agents.iter().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names[..4], ["demo", "broken", "scripted", "work"]);
    assert!(names[4..].contains(&"claude") && !names.contains(&"codex"), "{names:?}");
    let find = |name: &str| list.agents.iter().find(|agent| agent.name == name).unwrap();
    let work = find("work");
    assert_eq!((work.like.as_deref(), work.login, work.configured), (Some("codex"), LoginState::LoggedIn, true));
    assert!(work.program.as_ref().unwrap().ends_with("bin/codex-acp") && work.login_from.is_some(), "{work:?}");
    assert_eq!(work.version.as_deref(), Some("@agentclientprotocol/codex-acp 2.6.0"));
    let gemini = find("gemini");
    assert_eq!(
        (gemini.login, gemini.configured, gemini.version.as_deref()),
        (LoginState::Missing, false, Some("0.61.0"))
    );
    assert!(find("claude").program.is_none() && find("broken").problem.as_ref().unwrap().contains("does not exist"));

    assert_eq!(find("demo").login, LoginState::NotNeeded);

    let said = ctl(&daemon, &["agent", "ls"]).await;
    let row = |name: &str| {
        let line = said.out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{said:#?}"));
        line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("work"), ["work", "yes", "2.6.0", "logged", "in", "codex-acp"]);
    assert_eq!(row("gemini"), ["gemini", "0.61.0", "missing", "gemini", "--acp"]);
    assert_eq!(row("claude")[..2], ["claude", "no"]);
    let said = ctl(&daemon, &["agent", "show", "work"]).await;
    for part in
        ["like           codex\n", "version        @agentclientprotocol", "CODEX_HOME, by default ~/.codex", "quirk "]
    {
        assert!(said.out.contains(part), "{part:?}: {said:#?}");
    }
    let said = ctl(&daemon, &["agent", "show", "clade"]).await;
    assert!(said.status == Some(1) && said.err.contains("known agents: auggie, claude"), "{said:#?}");
}

#[tokio::test]
async fn an_added_agent_is_in_force_and_the_changed_lines_are_shown() {
    let mut daemon = Daemon::prepare();
    install(&daemon, "gemini", "0.61.0");
    daemon.configure(|config| format!("# mine\n{config}"));
    daemon.run().await;
    let dry = ctl(&daemon, &["agent", "add", "gemini", "--dry-run"]).await;
    assert!(dry.out.contains("+[agents.gemini]\n+like = \"gemini\"\n") && dry.err.contains("nothing was written"));
    let said = ctl(&daemon, &["agent", "add", "gemini", "--default"]).await;
    assert_eq!(said.status, Some(0), "{said:#?}");
    assert!(said.out.contains("+default_agent = \"gemini\"\n"), "{said:#?}");
    assert!(said.err.contains("log in first: agentctl agent login gemini"), "{said:#?}");
    let file = std::fs::read_to_string(daemon.root().join("config/agentd.toml")).unwrap();
    assert!(
        file.starts_with("default_agent = \"gemini\"\n\n# mine\n")
            && file.contains("[agents.gemini]\nlike = \"gemini\"\n"),
        "{file}"
    );
    // The default agent is the new one, with what an entry like it sets.
    let session = daemon.session(&serde_json::from_value(json!({ "directory": daemon.work() })).unwrap()).await;
    assert_eq!(session.turn("say hello").await.text, "hello");
    assert_eq!(value(&environment(&daemon, &session).await, "GEMINI_CLI_NO_RELAUNCH").as_deref(), Some("true"));

    let said = ctl(&daemon, &["agent", "add", "codex", "--as", "work", "--arg", "-x", "--env", "CODEX_HOME=/w"]).await;
    assert_eq!(said.status, Some(0), "{said:#?}");
    assert!(said.out.contains("+args = [\"-x\"]\n+env = { CODEX_HOME = \"/w\" }\n"), "{said:#?}");
    assert!(said.err.contains("codex-acp is not installed: npm install -g"), "{said:#?}");
    let said = ctl(&daemon, &["agent", "add", "--as", "own", "--command", "my-agent", "--acp"]).await;
    assert!(said.out.contains("+command = [\"my-agent\", \"--acp\"]\n"), "{said:#?}");
    for (arguments, part) in [
        (&["gemini"][..], "there is an agent \"gemini\" in"),
        (&["clade"], "\"clade\" is not a known agent"),
        (&["claude", "--env", "A_TOKEN=hunter22"], "[secrets.A_TOKEN]"),
        (&["--from", "/no/agent.json"], "cannot read /no/agent.json"),
    ] {
        let said = ctl(&daemon, &[&["agent", "add"], arguments].concat()).await;
        assert!(said.status != Some(0) && said.err.contains(part) && !said.err.contains("hunter22"), "{said:#?}");
    }
}

#[tokio::test]
async fn an_entry_like_a_known_agent_has_its_variables_and_logs_in_by_its_key() {
    let mut daemon = Daemon::prepare();
    let file = daemon.root().join("key");
    std::fs::write(&file, "k-0123456789").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(daemon.home().join(".profile"), "export CODEX_CA_CERTIFICATE=/ca GEMINI_MODEL=x\n").unwrap();
    let locked = format!("command = {:?}", [scripted_agent().display().to_string(), "--locked".to_owned()]);
    let secret = format!("[secrets.OPENAI_API_KEY]\nfile = \"{}\"\nagents = [\"work\"]", file.display());
    let env = "env = { SCRIPTED_KEY_METHOD = \"api-key\" }";
    configure(&daemon, &format!("[agents.work]\nlike = \"codex\"\n{locked}\n{env}\n\n{secret}"));
    daemon.run().await;
    let session = daemon.session(&spec(&daemon, "work")).await;
    let view = environment(&daemon, &session).await;
    assert_eq!(value(&view, "CODEX_CA_CERTIFICATE").as_deref(), Some("/ca"));
    assert_eq!(value(&view, "GEMINI_MODEL"), None);
    let sent = session.journal().into_iter().filter_map(|event| match event.body {
        Body::AgentIn(message) if message.get().contains("\"authenticate\"") => Some(message.get().to_owned()),
        _ => None,
    });
    let sent: Vec<String> = sent.collect();
    assert!(sent.len() == 1 && sent[0].contains("\"methodId\":\"api-key\""), "{sent:?}");
    assert_eq!(session.turn("say hello").await.text, "hello");
}

#[tokio::test]
async fn a_key_that_is_only_in_the_environment_replaces_no_login() {
    let mut daemon = Daemon::prepare();
    std::fs::write(daemon.home().join(".profile"), "export OPENAI_API_KEY=k-0123456789\n").unwrap();
    let locked = format!("command = {:?}", [scripted_agent().display().to_string(), "--locked".to_owned()]);
    let env = "env = { SCRIPTED_KEY_METHOD = \"api-key\" }";
    configure(&daemon, &format!("[agents.work]\nlike = \"codex\"\n{locked}\n{env}"));
    daemon.run().await;
    let session = daemon.create(&spec(&daemon, "work")).await;
    let view = session.wait_for("the launch fails", |view| view.status.message.is_some()).await;
    assert!(view.status.message.as_ref().unwrap().contains("requires a login first"), "{view:#?}");
}

#[tokio::test]
async fn a_refusal_is_listed_until_a_session_of_the_agent_opens_its_conversation() {
    let mut daemon = Daemon::prepare();
    let file = daemon.root().join("key");
    let locked = format!("command = {:?}", [scripted_agent().display().to_string(), "--locked".to_owned()]);
    let secret = format!("[secrets.SCRIPTED_API_KEY]\nfile = \"{}\"\nrequired = false", file.display());
    configure(&daemon, &format!("[agents.work]\n{locked}\nlogin = \"key\"\n\n{secret}"));
    daemon.run().await;
    let state = async || {
        let list: Catalogue = daemon.client.get("/v1/catalogue?agent=work").await.expect(200);
        (list.agents[0].login, list.agents[0].login_from.clone().unwrap_or_default())
    };
    assert_eq!(state().await.0, LoginState::Unknown);
    let session = daemon.create(&spec(&daemon, "work")).await;
    session.wait_for_phase(Phase::Failed).await;
    let (login, words) = state().await;
    assert!(login == LoginState::Refused && words.contains("A login is missing"), "{login:?}: {words}");
    std::fs::write(&file, "k-0123456789").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let second = serde_json::from_value(json!({ "directory": daemon.work(), "agent": "work" })).unwrap();
    daemon.session(&second).await;
    assert_eq!(state().await.0, LoginState::Unknown);
}

#[tokio::test]
async fn the_place_of_a_conversation_stays_and_a_change_is_said() {
    let mut daemon = Daemon::prepare();
    let agent = "[agents.work]\nlike = \"claude\"\nTABLE\nrefresh = \"fresh\"\n";
    configure(&daemon, &format!("{agent}env = {{ CLAUDE_CONFIG_DIR = \"/a\" }}"));
    daemon.run().await;
    let session = daemon.session(&spec(&daemon, "work")).await;
    session.turn("say one").await;
    let change = async |from: &str, to: &str| {
        session.stop().await;
        daemon.configure(|config| config.replace(from, to));
        daemon.client.post("/v1/reload", &json!({})).await.expect::<Value>(200);
        session.resume().await
    };
    let view = change("CLAUDE_CONFIG_DIR = \"/a\"", "CLAUDE_CONFIG_DIR = \"/b\"").await;
    let (status, message) = place(&view).unwrap();
    assert_eq!(status, ConditionStatus::False);
    assert!(
        message.contains("CLAUDE_CONFIG_DIR changed since the conversation began; the agent gets CLAUDE_CONFIG_DIR=/a"),
        "{message}"
    );
    assert_eq!(value(&environment(&daemon, &session).await, "CLAUDE_CONFIG_DIR").as_deref(), Some("/a"));
    // A variable that is no longer set is held too, and a kill of the daemon forgets nothing.
    session.stop().await;
    daemon.kill9();
    daemon.configure(|config| config.replace("CLAUDE_CONFIG_DIR = \"/b\"", ""));
    daemon.run().await;
    session.resume().await;
    assert_eq!(value(&environment(&daemon, &session).await, "CLAUDE_CONFIG_DIR").as_deref(), Some("/a"));
    session.stop().await;
    daemon.configure(|config| config.replace("env = {  }", "env = { CLAUDE_CONFIG_DIR = \"/a\" }"));
    daemon.client.post("/v1/reload", &json!({})).await.expect::<Value>(200);
    let view = session.resume().await;
    assert_eq!(place(&view), None);
    // A new conversation begins at the new place.
    session.stop().await;
    daemon.configure(|config| config.replace("CLAUDE_CONFIG_DIR = \"/a\"", "CLAUDE_CONFIG_DIR = \"/c\""));
    daemon.client.post("/v1/reload", &json!({})).await.expect::<Value>(200);
    session.resume().await;
    session.stop().await;
    daemon.configure(|config| config.replace("refresh = \"fresh\"", "refresh = \"stored\""));
    daemon.client.post("/v1/reload", &json!({})).await.expect::<Value>(200);
    session.post("/resume?new_conversation=true", &json!({})).await.expect::<Value>(202);
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(value(&environment(&daemon, &session).await, "CLAUDE_CONFIG_DIR").as_deref(), Some("/c"));
}

#[tokio::test]
async fn a_place_that_was_not_set_stays_unset() {
    let mut daemon = Daemon::prepare();
    configure(&daemon, "[agents.work]\nlike = \"codex\"\nTABLE\nrefresh = \"fresh\"\n#env");
    daemon.run().await;
    let session = daemon.session(&spec(&daemon, "work")).await;
    session.stop().await;
    daemon.configure(|config| config.replace("#env", "env = { CODEX_HOME = \"/b\" }"));
    daemon.client.post("/v1/reload", &json!({})).await.expect::<Value>(200);
    let view = session.resume().await;
    assert!(place(&view).unwrap().1.contains("the agent gets no CODEX_HOME"), "{view:#?}");
    let view = environment(&daemon, &session).await;
    assert_eq!(value(&view, "CODEX_HOME"), None);
    let dropped = view.dropped.iter().find(|dropped| dropped.name == "CODEX_HOME").unwrap();
    assert_eq!(dropped.provider, "env (conversation)");
}

#[tokio::test]
async fn a_first_run_at_a_terminal_offers_what_is_installed() {
    let mut daemon = Daemon::prepare();
    install(&daemon, "gemini", "0.61.0");
    install(&daemon, "goose", "1.0");
    daemon.configure(|config| {
        let (head, rest) = config.split_once("[agents.scripted]").unwrap();
        format!("{head}{}", &rest[rest.find("[launch]").unwrap()..])
    });
    daemon.run().await;
    let mut terminal = Terminal::run(&agentctl(&daemon, &["run"]), 100);
    terminal.shows("no agent is configured; these are installed:").await;
    terminal.shows("1  gemini    login: missing").await;
    terminal.shows("1 to 2 to use one from now on, or Enter for the demo agent: ").await;
    terminal.types("1\r");
    terminal.shows("+default_agent = \"gemini\"").await;
    terminal.shows("agentctl agent login gemini").await;
    terminal.shows("ready").await;
    terminal.types("say hello\r");
    terminal.shows("hello\r\n").await;
    terminal.types("\u{4}");
    terminal.ends().await;
    // The next run asks nothing.
    let mut terminal = Terminal::run(&agentctl(&daemon, &["run"]), 100);
    terminal.shows("ready").await;
    assert!(!terminal.shown().contains("no agent is configured"), "{}", terminal.shown());
    terminal.types("\u{4}");
    terminal.ends().await;
}

#[tokio::test]
async fn enter_or_a_pipe_runs_the_demo_agent() {
    let mut daemon = Daemon::prepare();
    install(&daemon, "gemini", "0.61.0");
    daemon.configure(|config| {
        let (head, rest) = config.split_once("[agents.scripted]").unwrap();
        format!("{head}{}", &rest[rest.find("[launch]").unwrap()..])
    });
    daemon.run().await;
    let mut terminal = Terminal::run(&agentctl(&daemon, &["run"]), 100);
    terminal.shows("or Enter for the demo agent: ").await;
    terminal.types("\r");
    terminal.shows("ready").await;
    terminal.types("\u{4}");
    terminal.ends().await;
    let said = ctl(&daemon, &["run", "--rm", "--prompt", "show your environment"]).await;
    assert!(said.status == Some(0) && said.out.contains("PATH="), "{said:#?}");
    assert!(!said.err.contains("installed"), "{said:#?}");
    let file = std::fs::read_to_string(daemon.root().join("config/agentd.toml")).unwrap();
    assert!(!file.contains("[agents"), "{file}");
}
