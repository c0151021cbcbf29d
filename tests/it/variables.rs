//! A provider sets only variables that its grant allows. Granted variables never affect programs that the daemon itself
//! runs.

use std::fmt::Write as _;
use std::fs;

use agentd_api::plugin::PluginView;
use agentd_api::session::{Condition, ConditionType, PermissionPolicy, Phase, SessionSpec, SessionView};
use serde_json::Value;

use crate::effects::{GivenChange, Kind, ValueSource, component};
use crate::harness::digest::sha256;
use crate::harness::{Daemon, Session};

/// Returns a daemon with a provider that makes these changes under this grant, before the user's scripts.
async fn giving(given: &[GivenChange<'_>], grant: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    let component = component(given);
    let file = daemon.root().join("config/corp.wasm");
    fs::write(&file, &component).unwrap();
    let pin = sha256(&component);
    fs::write(daemon.home().join(".profile"), "export MY_TOKEN=planted-token-1 LD_LIBRARY_PATH=/own\n").unwrap();
    fs::write(daemon.root().join("config/env-setup.sh"), "env >\"$HOME/seen\"; cat /dev/null; export RAN=1\n").unwrap();
    daemon.configure(|mut config| {
        config.push_str("\n[[environment.providers]]\nplugin = \"snapshot\"\n");
        config.push_str("[[environment.providers]]\nplugin = \"whitelist\"\n");
        config.push_str("settings = { allow = [\"MY_TOKEN\", \"LD_LIBRARY_PATH\"] }\n");
        for plugin in ["corp", "env-script"] {
            writeln!(config, "[[environment.providers]]\nplugin = \"{plugin}\"").unwrap();
        }
        let file = file.display().to_string();
        writeln!(config, "[plugins.corp]\nfile = {file:?}\nsha256 = \"{pin}\"\ngrant = {{ {grant} }}").unwrap();
        config
    });
    daemon.run().await;
    daemon
}

fn spec(daemon: &Daemon) -> SessionSpec {
    SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) }
}

fn ready(view: &SessionView) -> Condition {
    let mut conditions = view.status.conditions.iter();
    conditions.find(|one| one.kind == ConditionType::EnvironmentReady).expect("the step has a condition").clone()
}

async fn refusal(daemon: &Daemon) -> Condition {
    let session = daemon.create(&spec(daemon)).await;
    ready(&session.wait_for_phase(Phase::Failed).await)
}

async fn environment(session: &Session) -> Value {
    serde_json::from_str(&session.turn("env").await.text).unwrap()
}

/// Variables that control programs. Each value leaves a mark if a program evaluates it.
const ATTACKS: [(&str, &str); 6] = [
    ("BASH_ENV", "$(touch \"$HOME/mark\")"),
    ("BASH_FUNC_cat%%", "() { touch \"$HOME/mark\"; }"),
    ("SHELLOPTS", "xtrace"),
    ("PS4", "$(touch \"$HOME/mark\")"),
    ("LD_AUDIT", "/nowhere/audit.so"),
    ("LD_LIBRARY_PATH", "/evil"),
];

fn attacks() -> Vec<GivenChange<'static>> {
    ATTACKS.iter().map(|&(name, value)| (name, Kind::Set(ValueSource::Text(value)), None)).collect()
}

#[tokio::test]
async fn a_provider_sets_no_variable_that_it_is_not_granted_and_no_pattern_grants_what_steers_programs() {
    for (given, grant, line) in [
        (attacks(), "", "variables = [\"BASH_ENV\", \"BASH_FUNC_cat%%\", \"LD_AUDIT\""),
        (attacks(), "variables = [\"*\", \"BASH_*\", \"LD_*\", \"PS?\", \"LD_AUDIT\"]", "\"SHELLOPTS\"]"),
        (vec![("A", Kind::Unset, None)], "variables = [\"B\"]", "variables = [\"A\"]"),
        (
            vec![("PATH", Kind::Prepend(ValueSource::Text("/evil")), None)],
            "variables = [\"*\"]",
            "variables = [\"PATH\"]",
        ),
        (vec![("LD_PRELOAD", Kind::File("x.so", ValueSource::Text("x")), None)], "", "variables = [\"LD_PRELOAD\"]"),
    ] {
        let daemon = giving(&given, grant).await;
        let condition = refusal(&daemon).await;
        assert_eq!(condition.reason, "ProviderNotGranted", "{condition:?}");
        assert!(condition.message.contains("plugin \"corp\"") && condition.message.contains(line), "{condition:?}");
        let home = daemon.home();
        assert!(!home.join("mark").exists() && !home.join("seen").exists(), "no script ran");
    }
}

#[tokio::test]
async fn what_a_provider_was_granted_to_set_goes_to_the_agent_and_into_no_run_of_the_daemons_own() {
    let names = ATTACKS.map(|(name, _)| format!("{name:?}")).join(", ");
    let mut given = attacks();
    given.push(("PATH", Kind::Prepend(ValueSource::Text("/tool/bin")), None));
    given.push(("LM_FILE", Kind::Set(ValueSource::Text("27000@licenses")), None));
    let daemon = giving(&given, &format!("variables = [{names}, \"PATH\", \"LM_*\"]")).await;
    let session = daemon.session(&spec(&daemon)).await;
    let home = daemon.home();
    let seen = fs::read_to_string(home.join("seen")).unwrap();
    assert!(!home.join("mark").exists(), "the script's own shell ran what a plugin wrote");
    for (name, _) in &ATTACKS[..5] {
        assert!(!seen.lines().any(|line| line.starts_with(&format!("{name}="))), "{name}: {seen}");
    }
    // The script sees variables of the user's own shell, harmless variables of the plugin, and PATH.
    let has = |line: &str| seen.lines().any(|one| one == line);
    assert!(has("LD_LIBRARY_PATH=/own") && has("LM_FILE=27000@licenses"), "{seen}");
    assert!(seen.lines().any(|line| line.starts_with("PATH=/tool/bin:")), "{seen}");
    // The agent has all these variables except functions, which agents get only if configured.
    let environment = environment(&session).await;
    assert_eq!(environment["RAN"], "1");
    for (name, value) in ATTACKS.iter().filter(|(name, _)| !name.ends_with("%%")) {
        assert_eq!(environment[*name], *value, "{name}");
    }
}

#[tokio::test]
async fn a_provider_is_given_a_variable_that_is_a_secret_only_by_its_exact_name() {
    let copy: &[GivenChange<'_>] = &[("COPY", Kind::Set(ValueSource::Variable("MY_TOKEN")), None)];
    for (grant, given) in [
        ("variables = [\"COPY\"]", ""),
        ("variables = [\"COPY\"], secret = [\"*\", \"MY_*\"]", ""),
        ("variables = [\"COPY\"], secret = [\"MY_TOKEN\"]", "planted-token-1"),
    ] {
        let daemon = giving(copy, grant).await;
        let session = daemon.session(&spec(&daemon)).await;
        session.turn("tool printf %s \"$COPY\" >copy; printf %s \"$MY_TOKEN\" >own").await;
        let read = |name: &str| fs::read_to_string(daemon.work().join(name)).unwrap();
        assert_eq!((read("copy").as_str(), read("own").as_str()), (given, "planted-token-1"), "{grant}");
    }
}

#[tokio::test]
async fn what_a_plugin_says_of_one_directory_suspends_it_for_no_other() {
    let mut daemon = Daemon::prepare();
    // In a directory whose name ends with `b`, the plugin fails with the message `cannot parse` from address 2048.
    let failed = "(i32.store (i32.const 64) (i32.const 1)) (i32.store (i32.const 68) (i32.const 7))
        (i32.store (i32.const 72) (i32.const 2048)) (i32.store (i32.const 76) (i32.const 12))";
    let fields = "(data (i32.const 2048) \"cannot parse\")";
    let component = crate::hostile::component("", fields, &[('b', failed, "")]);
    crate::hostile::install(&daemon, &component, "");
    daemon.run().await;
    for _ in 0..7 {
        let session = daemon.create(&crate::hostile::in_directory(&daemon, "web")).await;
        let condition = ready(&session.wait_for_phase(Phase::Failed).await);
        assert_eq!(condition.reason, "ProviderFailed");
        assert!(condition.message.contains("cannot parse"), "{condition:?}");
    }
    let plugin: PluginView = daemon.client.get("/v1/plugins/hostile").await.expect(200);
    assert_eq!((plugin.calls, plugin.failures, plugin.consecutive_failures), (7, 7, 0));
    daemon.session(&crate::hostile::in_directory(&daemon, "good")).await;
}

#[tokio::test]
async fn a_plugin_that_broke_in_one_directory_is_told_to_another_by_how_it_broke_alone() {
    let mut daemon = Daemon::prepare();
    let breaks = "(call $log (i32.const 0) (i32.const 2048) (i32.const 19)) unreachable";
    let fields = "(data (i32.const 2048) \"the other's content\")";
    let component = crate::hostile::component(crate::guest::LOG, fields, &[('b', breaks, "")]);
    crate::hostile::install(&daemon, &component, "");
    daemon.run().await;
    for _ in 0..5 {
        let session = daemon.create(&crate::hostile::in_directory(&daemon, "web")).await;
        let condition = ready(&session.wait_for_phase(Phase::Failed).await);
        assert!(condition.message.contains("crashed: the other's content"), "{condition:?}");
    }
    let session = daemon.create(&crate::hostile::in_directory(&daemon, "good")).await;
    let condition = ready(&session.wait_for_phase(Phase::Failed).await);
    assert_eq!(condition.reason, "PluginSuspended");
    assert!(condition.message.contains("last failure: it crashed"), "{condition:?}");
    assert!(!condition.message.contains("other's"), "{condition:?}");
}

#[tokio::test]
async fn a_plugins_message_is_one_line_of_the_log() {
    let mut daemon = Daemon::prepare();
    let text = "one\\0a2026-01-01T00:00:00Z ERROR agentd: forged\\1b[2J";
    let says = "(call $log (i32.const 1) (i32.const 2048) (i32.const 49))";
    let component = crate::hostile::component(
        crate::guest::LOG,
        &format!("(data (i32.const 2048) \"{text}\")"),
        &[('b', says, "")],
    );
    crate::hostile::install(&daemon, &component, "");
    daemon.run().await;
    daemon.session(&crate::hostile::in_directory(&daemon, "web")).await;
    let log = daemon.last_words();
    assert!(log.contains("one\\n2026-01-01T00:00:00Z ERROR agentd: forged\\u{1b}[2J"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("2026-01-01")), "{log}");
}
