//! Storage of sessions' environments: each variable is stored with every step of its origin, encrypted if configured,
//! and not lost together with a key.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use agentd_api::Code;
use agentd_api::environment::{EnvironmentView, Moment, Refresh, RotationView, VariableView};
use agentd_api::session::{ConditionStatus, ConditionType, Phase, SessionView};

use crate::harness::{Daemon, Session};

const SECRET: &str = "planted-5c6f-secret";
const NOWHERE: [PathBuf; 0] = [];

fn file(session: &Session) -> PathBuf {
    session.directory().join("environment.json")
}

fn content(session: &Session) -> String {
    fs::read_to_string(file(session)).expect("environment.json is there")
}

async fn reported(daemon: &Daemon, session: &Session, query: &str) -> EnvironmentView {
    daemon.client.get(&session.path(&format!("/environment{query}"))).await.expect(200)
}

fn variable<'a>(view: &'a EnvironmentView, name: &str) -> Option<&'a VariableView> {
    view.variables.iter().find(|variable| variable.name == name)
}

fn value(view: &EnvironmentView, name: &str) -> Option<String> {
    variable(view, name)?.value.as_ref().map(|value| value.display().into_owned())
}

async fn agents(session: &Session, name: &str) -> Option<String> {
    let text = session.turn("env").await.text;
    let variables: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    variables[name].as_str().map(str::to_owned)
}

fn script(daemon: &Daemon, text: &str) {
    fs::write(daemon.root().join("config/env-setup.sh"), text).expect("the script is written");
}

fn encrypt(daemon: &Daemon, key: &str) {
    daemon.configure(|config| format!("{config}\n[environment.encryption]\nenabled = true\nkey = {key}\n"));
}

/// Resumes a session whose launch must fail, and returns its view.
async fn fails(session: &Session) -> SessionView {
    session.post("/resume?wait=60", &serde_json::Value::Null).await;
    session.wait_for_phase(Phase::Failed).await
}

#[tokio::test]
async fn every_step_of_a_variable_can_be_told_for_the_first_launch_the_last_and_now() {
    let daemon = Daemon::start().await;
    script(&daemon, "export EDITOR=vi ONCE=first\nunset LANG\n");
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    script(&daemon, "export EDITOR=emacs TWICE=second\n");
    session.resume().await;
    script(&daemon, "export EDITOR=nano\n");

    let created = reported(&daemon, &session, "?at=created&values=true").await;
    assert_eq!((created.launch, value(&created, "EDITOR")), (1, Some("vi".into())));
    let history = &variable(&created, "EDITOR").unwrap().history;
    let steps: Vec<_> = history.iter().map(|step| (step.provider.as_str(), step.step)).collect();
    assert_eq!(steps, [("snapshot", 1), ("env-script", 3)]);
    assert_eq!(history[0].value.as_ref().map(|value| value.display().into_owned()), Some("ed".into()));
    let lang = created.dropped.iter().find(|dropped| dropped.name == "LANG").expect("the script took it away");
    assert_eq!(lang.provider, "env-script");
    let steps: Vec<_> = lang.history.iter().map(|step| (step.provider.as_str(), step.removed)).collect();
    assert_eq!(steps, [("snapshot", false), ("env-script", true)]);

    let last = reported(&daemon, &session, "?values=true").await;
    assert_eq!((last.launch, value(&last, "EDITOR")), (2, Some("emacs".into())));
    let now = reported(&daemon, &session, "?at=now&values=true").await;
    assert_eq!(value(&now, "EDITOR"), Some("nano".into()));
    let again = reported(&daemon, &session, "?values=true").await;
    assert_eq!(again, last, "asking changes nothing");
    let names = reported(&daemon, &session, "?at=now").await;
    let shown = |view: &EnvironmentView| {
        view.variables.iter().any(|v| v.value.is_some() || v.history.iter().any(|s| s.value.is_some()))
    };
    assert!(!shown(&names), "values were not asked for");
    let wrong = daemon.client.get(&session.path("/environment?at=tomorrow")).await.problem();
    assert_eq!(wrong.code, Code::InvalidRequest);

    let path = session.path("/environment/diff?from=created&to=now&values=true");
    let diff: agentd_api::environment::DifferenceView = daemon.client.get(&path).await.expect(200);
    let names = |list: &[agentd_api::environment::ChangeView]| {
        list.iter().map(|change| change.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!((diff.from, diff.to), (Moment::Created, Moment::Now));
    assert_eq!(
        (names(&diff.added), names(&diff.changed), names(&diff.removed)),
        (vec!["LANG".into()], vec!["EDITOR".into()], vec!["ONCE".into()])
    );
    assert_eq!(
        diff.added[0].before.as_ref().map(|step| (step.provider.as_str(), step.removed)),
        Some(("env-script", true))
    );
}

#[tokio::test]
async fn what_is_kept_of_an_environment_is_private_and_has_no_secret_in_clear() {
    let daemon = Daemon::start().await;
    script(&daemon, &format!("export SOME_TOKEN='{SECRET}' PLAIN=shown\n"));
    let session = daemon.session(&daemon.scripted(&[])).await;
    // The script belongs to the user. agentd's own files are below the state directory.
    assert_eq!(daemon.holders(SECRET), NOWHERE);
    assert_eq!(fs::metadata(file(&session)).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(content(&session).contains("shown"));
    for query in ["?values=true", "?at=now&values=true", "/diff?values=true"] {
        let answer = daemon.client.get(&session.path(&format!("/environment{query}"))).await;
        assert_eq!(answer.status, 200, "{query}");
        assert!(!String::from_utf8_lossy(&answer.body).contains(SECRET), "{query} shows the secret");
    }
}

#[tokio::test]
async fn a_sealed_environment_shows_nothing_and_gives_its_secrets_back_after_a_restart() {
    let mut daemon = Daemon::prepare();
    encrypt(&daemon, "\"generated\"");
    script(&daemon, &format!("export SOME_TOKEN='{SECRET}' PLAIN=only-in-the-environment\n"));
    daemon.run().await;
    let mut spec = daemon.scripted(&[]);
    spec.environment.refresh = Some(Refresh::Stored);
    let session = daemon.session(&spec).await;
    let text = content(&session);
    assert!(!text.contains("PLAIN") && text.contains("xchacha20-poly1305"), "{text}");
    assert_eq!(daemon.holders(SECRET), NOWHERE);
    assert_eq!(daemon.holders("only-in-the-environment"), NOWHERE);
    session.stop().await;
    daemon.terminate().await;
    // The script no longer sets the variables. The encrypted environment still contains them.
    script(&daemon, "");
    daemon.run().await;
    let view = session.resume().await;
    assert_eq!(agents(&session, "PLAIN").await.as_deref(), Some("only-in-the-environment"));
    let shown = reported(&daemon, &session, "?values=true").await;
    assert!(variable(&shown, "SOME_TOKEN").is_some_and(|token| token.secret && token.value.is_none()), "{shown:#?}");
    let lacking = view.status.conditions.iter().any(|condition| condition.kind == ConditionType::SecretsAvailable);
    assert!(!lacking, "{view:#?}");
}

#[tokio::test]
async fn without_its_key_a_session_is_not_launched_and_nothing_of_it_is_lost() {
    let mut daemon = Daemon::prepare();
    let key = daemon.root().join("key");
    encrypt(&daemon, &format!("{{ file = {key:?} }}"));
    let write_key = |digit: &str| {
        fs::write(&key, digit.repeat(64)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    };
    write_key("1");
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.stop().await;
    let sealed = content(&session);
    for gone in [true, false] {
        if gone {
            fs::remove_file(&key).unwrap();
        } else {
            write_key("2");
        }
        let view = fails(&session).await;
        let ready = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::EnvironmentReady);
        let ready = ready.unwrap_or_else(|| panic!("{view:#?}"));
        assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::False, "KeyUnavailable"), "{ready:?}");
        assert!(ready.message.contains("environment.encryption"), "it does not say what to do: {ready:?}");
        let problem = daemon.client.get(&session.path("/environment")).await.problem();
        assert_eq!((problem.code, problem.status), (Code::KeyUnavailable, 409), "{problem:?}");
        assert_eq!(content(&session), sealed, "the file was written");
    }
    write_key("1");
    session.resume().await;
    assert_eq!(reported(&daemon, &session, "?at=created").await.launch, 1);
}

#[tokio::test]
async fn a_key_is_changed_for_all_sessions_and_a_credential_is_read_where_systemd_puts_it() {
    let mut daemon = Daemon::prepare();
    encrypt(&daemon, "\"generated\"");
    daemon.run().await;
    let (one, two) = (daemon.session(&daemon.scripted(&[])).await, daemon.session(&daemon.scripted(&[])).await);
    let before = [content(&one), content(&two)];
    let rotated: RotationView = daemon.client.call("POST", "/v1/environment/rotate-key", "").await.expect(200);
    assert_eq!((rotated.rewritten.len(), rotated.failed.len(), rotated.kept_keys.len()), (2, 0, 0), "{rotated:?}");
    for (session, before) in [&one, &two].into_iter().zip(before) {
        let now = content(session);
        assert!(now != before && now.contains(&rotated.key), "{now}");
        assert_eq!(reported(&daemon, session, "").await.launch, 1);
    }
    daemon.terminate().await;

    let credentials = daemon.root().join("credentials");
    fs::create_dir(&credentials).unwrap();
    fs::write(credentials.join("environment-key"), "5".repeat(64)).unwrap();
    daemon.configure(|config| config.replace("key = \"generated\"", "key = { credential = \"environment-key\" }"));
    daemon.set_environment([("PATH", "/usr/bin:/bin".into()), ("CREDENTIALS_DIRECTORY", credentials.into_os_string())]);
    daemon.run().await;
    let moved: RotationView = daemon.client.call("POST", "/v1/environment/rotate-key", "").await.expect(200);
    assert_eq!((moved.rewritten.len(), moved.kept_keys.len()), (2, 0), "{moved:?}");
    assert!(moved.key != rotated.key && content(&one).contains(&moved.key));
    daemon.terminate().await;

    // The next launch stores the environment unencrypted. Until then the encrypted environment can be read.
    daemon.configure(|config| config.replace("enabled = true", "enabled = false"));
    daemon.run().await;
    assert_eq!(reported(&daemon, &one, "").await.launch, 1);
    one.stop().await;
    one.resume().await;
    assert!(content(&one).contains("EDITOR"));
    let refused = daemon.client.call("POST", "/v1/environment/rotate-key", "").await.problem();
    assert_eq!(refused.code, Code::InvalidRequest, "{refused:?}");
}
