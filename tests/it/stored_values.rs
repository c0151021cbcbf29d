//! The daemon stores only variables that the pipeline keeps. Secrets with unusual names and formats in a start-up file
//! are in no file on the disk.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use agentd_api::environment::{EnvironmentSpec, SnapshotSource};
use agentd_api::session::{ConditionType, SessionSpec};
use agentd_api::snapshot::{SnapshotList, SnapshotQuality, TerminalSnapshotView};
use serde_json::json;

use crate::harness::Daemon;
use crate::harness::planted::{Planted, found_below, found_in};
use crate::harness::quote::quoted;

/// Names and formats of secrets. The rule for names of secrets matches no name here, and the rules for values match few
/// of the formats.
const SECRETS: [(&str, &str); 25] = [
    ("MY_THING", "{}"),
    ("FOO", "hunter2-{}"),
    ("DB_CONN", "Server=db;Uid=me;Pwd={};"),
    ("SERVICE_JSON", r#"{"type":"service_account","private":"{}"}"#),
    ("OPENAI_CFG", r#"{"api":{"k":"sk-{}"}}"#),
    ("ENCODED", "dXNlcjpwYXNz{}=="),
    ("LINK", "https://me:{}@host.example/x"),
    ("PEM", "-----BEGIN PRIVATE KEY-----\nMIIE{}\n/9j4{}\n-----END PRIVATE KEY-----"),
    ("NETRC_TEXT", "machine host.example login me password {}"),
    ("JDBC", "jdbc:oracle:thin:me/{}@db:1521/x"),
    ("HOOK", "https://hooks.example/services/T000/B000/{}"),
    ("SIGNED", "https://bucket.example/x?X-Amz-Signature={}"),
    ("BEARER", "Bearer {}"),
    ("WIFI", "ssid=office psk={}"),
    ("PIN", "1234-{}"),
    ("SEED_WORDS", "correct horse battery {}"),
    ("LICENSE_BLOB", "INCREMENT tool vendor 1.0 permanent 5 SIGN={}"),
    ("KUBE_INLINE", "users:\n- name: me\n  user: {client-data: {}}"),
    ("HEX", "deadbeef{}"),
    ("JWT_LIKE", "eyJhbGciOiJIUzI1NiJ9.{}.c2ln"),
    ("SMTP", "smtp://me%40x:{}@mail.example"),
    ("CLI_ARGS", "--user me --pass {}"),
    ("COOKIE_JAR", "session={}; HttpOnly"),
    ("TOML_TEXT", "[registry]\ntok = \"{}\""),
    ("SPACED", "  {}  "),
];

fn plant(shape: &str) -> Planted {
    Planted::new("planted", shape)
}

fn lines(secrets: &[(&str, Planted)]) -> String {
    let lines: Vec<String> =
        secrets.iter().map(|(name, planted)| format!("export {name}={}\n", quoted(&planted.value))).collect();
    lines.concat()
}

fn profile(daemon: &Daemon, secrets: &[(&str, Planted)], end: &str) {
    let text = format!("export EDITOR=ed\n{}{end}\n", lines(secrets));
    fs::write(daemon.home().join(".profile"), text).unwrap();
}

fn from(daemon: &Daemon, source: SnapshotSource, snapshot: Option<&str>) -> SessionSpec {
    let environment =
        EnvironmentSpec { source: Some(source), snapshot: snapshot.map(str::to_owned), ..EnvironmentSpec::default() };
    SessionSpec { environment, ..daemon.scripted(&[]) }
}

/// Returns the secrets that a file of the daemon contains, or a file of the machine that was written since this time.
fn on_disk(daemon: &Daemon, planted: &[Planted], since: SystemTime) -> Vec<String> {
    let mut found = Vec::new();
    for place in ["state", "run", "config", "work", "cache/snapshots"] {
        found.extend(found_below(&daemon.root().join(place), planted));
    }
    found.extend(found_in(&fs::read(daemon.root().join("agentd.log")).unwrap(), planted).iter().map(|_| "log".into()));
    let mut left = vec![PathBuf::from("/tmp"), PathBuf::from("/dev/shm"), PathBuf::from("/var/tmp")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            let new = metadata.modified().is_ok_and(|modified| modified >= since);
            if metadata.is_dir() && entry.path() != daemon.home() {
                left.push(entry.path());
            } else if metadata.is_file() && new && metadata.len() < 64 << 20 {
                let content = fs::read(entry.path()).unwrap_or_default();
                found.extend(found_in(&content, planted).iter().map(|_| entry.path().display().to_string()));
            }
        }
    }
    found
}

/// Refreshes the login snapshot until its quality is good. On a busy machine a capture can be degraded, which is not
/// stored.
async fn good_capture(daemon: &Daemon) {
    for _ in 0..10 {
        let list: SnapshotList = daemon.client.get("/v1/snapshots").await.expect(200);
        if list.login_shells.iter().all(|login| login.quality == Some(SnapshotQuality::Good) && login.stored > 0) {
            return;
        }
        let _: SnapshotList = daemon.client.post("/v1/snapshots/refresh", &json!({})).await.expect(200);
        daemon.session(&daemon.scripted(&[])).await;
    }
    panic!("ten captures were degraded");
}

async fn nothing_is_stored(encrypted: bool) {
    let since = SystemTime::now();
    let mut daemon = Daemon::prepare();
    // In a shared cache, a daemon that seals its files also seals those of the others, with a key of its own.
    daemon.set_cache(daemon.root().join("cache"));
    if encrypted {
        daemon.configure(|config| format!("{config}\n[environment.encryption]\nenabled = true\n"));
    }
    let secrets: Vec<(&str, Planted)> = SECRETS.iter().map(|(name, shape)| (*name, plant(shape))).collect();
    let planted: Vec<Planted> = secrets.iter().map(|(_, planted)| planted.clone()).collect();
    profile(&daemon, &secrets, "");
    daemon.run().await;
    let variables: Vec<_> =
        secrets.iter().map(|(name, planted)| json!({ "name": name, "value": planted.value })).collect();
    let terminal: TerminalSnapshotView =
        daemon.client.post("/v1/snapshots", &json!({ "variables": variables })).await.expect(201);
    let mut sessions = Vec::new();
    for (source, snapshot) in [
        (SnapshotSource::LoginShell, None),
        (SnapshotSource::Stored, None),
        (SnapshotSource::Terminal, Some(terminal.id.as_str())),
    ] {
        let session = daemon.session(&from(&daemon, source, snapshot)).await;
        let text = session.turn("env").await.text;
        assert_eq!(found_in(text.as_bytes(), &planted).len(), 0, "the agent has none of them");
        sessions.push(session);
    }
    assert_eq!(on_disk(&daemon, &planted, since), [""; 0], "after launches");
    good_capture(&daemon).await;

    // The capture prints its environment and fails.
    profile(&daemon, &secrets, "env >&2; exit 3");
    daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(on_disk(&daemon, &planted, since), [""; 0], "after a capture that failed");
    for session in &sessions {
        session.stop().await;
    }
    daemon.terminate().await;
    assert_eq!(on_disk(&daemon, &planted, since), [""; 0], "while agentd is down");

    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let view = session.view().await;
    let condition = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::SnapshotFresh);
    assert!(condition.is_some_and(|condition| condition.message.contains("status 3")), "{view:#?}");
    assert!(session.turn("env").await.text.contains("\"EDITOR\":\"ed\""), "what was kept is there");
    for session in &sessions {
        session.resume().await;
    }
    assert_eq!(on_disk(&daemon, &planted, since), [""; 0], "after a restart");
}

#[tokio::test]
async fn secrets_in_unusual_names_and_formats_are_nowhere_on_the_disk() {
    nothing_is_stored(false).await;
}

#[tokio::test]
async fn secrets_in_unusual_names_and_formats_are_nowhere_on_the_disk_when_it_is_sealed() {
    nothing_is_stored(true).await;
}
