//! `agentctl doctor` with a daemon and without a daemon.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use agentd_api::doctor::{Check, DoctorView};
use agentd_api::prerequisite::Outcome;

use crate::harness::{Daemon, paths};

mod broken;

async fn asked(daemon: &Daemon) -> DoctorView {
    daemon.client.get("/v1/doctor").await.expect(200)
}

fn find<'a>(view: &'a DoctorView, name: &str) -> &'a Check {
    view.checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("{name} is not in {view:#?}"))
}

fn agentctl(socket: &Path, args: &[&str]) -> Output {
    Command::new(paths::agentctl())
        .arg("--socket")
        .arg(socket)
        .args(args)
        .env_clear()
        .env("HOME", socket.parent().expect("it is in a directory"))
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .expect("agentctl can be executed")
}

#[tokio::test]
async fn a_daemon_that_is_well_fails_nothing_and_says_where_its_agents_are_and_which() {
    let daemon = Daemon::start().await;
    let view = asked(&daemon).await;
    let failing: Vec<&Check> = view.checks.iter().filter(|check| check.outcome == Outcome::Fail).collect();
    assert!(failing.is_empty(), "{failing:#?}");
    let demo = find(&view, "agents").facts.iter().find(|fact| fact.name == "demo").expect("it is built in");
    let version = env!("CARGO_PKG_VERSION");
    assert!(demo.value.starts_with(&format!("agentctl {version} (")), "{demo:?}");
    for name in ["plugins", "grants", "written", "trust", "key", "files", "sessions", "clock"] {
        assert_eq!(find(&view, name).outcome, Outcome::Pass, "{name}: {view:#?}");
    }

    let output = agentctl(daemon.client.socket(), &["doctor", "--json"]);
    let told: DoctorView = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    for name in ["socket", "process", "versions", "directories", "disk", "socket path", "agents"] {
        assert_ne!(find(&told, name).outcome, Outcome::Fail, "{name}: {told:#?}");
    }
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(find(&told, "process").facts.iter().any(|fact| fact.value == daemon.pid().to_string()), "{told:#?}");
}

#[tokio::test]
async fn an_agent_that_is_missing_a_plugin_that_cannot_be_loaded_and_a_script_that_changed_are_told_with_a_remedy() {
    let daemon = Daemon::prepare();
    daemon.configure(|config| {
        config
            + "\n[agents.claude]\ncommand = [\"no-such-agent\", \"--acp\"]\n\
               [plugins.own]\nfile = \"/nowhere/own.wasm\"\n"
            + &format!("sha256 = \"{}\"\n", "0".repeat(64))
    });
    let mut daemon = daemon;
    daemon.run().await;
    let script = daemon.work().join(".agentd-env.sh");
    let write = |text: &str| {
        fs::write(&script, text).expect("it can be written");
        fs::set_permissions(&script, Permissions::from_mode(0o644)).expect("it is ours");
    };
    write("export A=1\n");
    let work = daemon.work().display().to_string();
    let allowed = agentctl(daemon.client.socket(), &["env", "allow", "--yes", &work]);
    assert!(allowed.status.success(), "{allowed:?}");
    write("export A=2\n");

    let view = asked(&daemon).await;
    let agents = find(&view, "agents");
    assert!(agents.outcome == Outcome::Fail && agents.summary.contains("no-such-agent"), "{agents:?}");
    assert!(agents.remedy.as_ref().is_some_and(|remedy| remedy.contains("PATH=")), "{agents:?}");
    let plugins = find(&view, "plugins");
    assert!(plugins.outcome == Outcome::Fail && plugins.summary.contains("own cannot be loaded"), "{plugins:?}");
    let trust = find(&view, "trust");
    assert!(trust.outcome == Outcome::Warn && trust.summary.contains("has changed"), "{trust:?}");

    let output = agentctl(daemon.client.socket(), &["doctor"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["CHECK", "agents (fail): ", "  remedy: install the program, or correct agents.claude.command"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[tokio::test]
async fn without_a_daemon_the_installation_is_looked_at_and_none_is_started() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).expect("it is ours");
    let socket = directory.path().join("control.sock");
    let output = agentctl(&socket, &["doctor", "--json"]);
    let told: DoctorView = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_ne!(find(&told, "socket").outcome, Outcome::Pass, "{told:#?}");
    for name in ["versions", "directories", "disk", "socket path"] {
        assert_eq!(find(&told, name).outcome, Outcome::Pass, "{told:#?}");
    }
    assert!(!told.checks.iter().any(|check| check.name == "agents") && !socket.exists());

    // Doctor reports a directory that other users can write, because no daemon would start there.
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).expect("it is ours");
    let output = agentctl(&socket, &["doctor"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("directories (fail): other users can write"),
        "{output:?}"
    );
}
