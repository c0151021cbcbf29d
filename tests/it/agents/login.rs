//! Logins: none, a key as a secret, a login of the agent's own, and a login that ends in mid-life.

use std::os::unix::fs::PermissionsExt as _;

use agentd_api::session::{ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use serde_json::{Value, json};

use crate::harness::Daemon;
use crate::harness::ctl::ctl;

/// Starts a daemon with the scripted agent as `locked`, with these lines in its table.
async fn daemon(lines: &str, tables: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    let command = serde_json::to_string(&daemon.scripted(&["--locked"]).command).unwrap();
    daemon.configure(|config| format!("{config}\n[agents.locked]\ncommand = {command}\n{lines}\n{tables}\n"));
    daemon.run().await;
    daemon
}

fn spec(daemon: &Daemon) -> SessionSpec {
    serde_json::from_value(json!({ "directory": daemon.work(), "agent": "locked", "name": "fix" })).unwrap()
}

fn required(view: &SessionView) -> Option<(ConditionStatus, &str, &str)> {
    let found = view.status.conditions.iter().find(|one| one.kind == ConditionType::AuthenticationRequired)?;
    Some((found.status, &found.reason, &found.message))
}

#[tokio::test]
async fn a_launch_without_a_login_says_which_ways_there_are() {
    let daemon = daemon("", "").await;
    let session = daemon.create(&spec(&daemon)).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let (status, reason, message) = required(&view).unwrap();
    assert_eq!((status, reason), (ConditionStatus::True, "NotLoggedIn"));
    assert_eq!(
        message,
        "the agent requires a login first: A login is missing (-32000); log in with `agentctl agent login \
         locked` (it offers: Use an API key, Log in in the browser, Log in here in a terminal, A variable: set \
         SCRIPTED_TOKEN), or \
         give its key as a secret in agentd.toml, then `agentctl resume`"
    );
    let kinds: Vec<&str> = view.status.login_methods.iter().map(|method| method.kind.as_str()).collect();
    assert_eq!(kinds, ["agent", "agent", "terminal", "variables"]);
    let doctor: Value = daemon.client.get("/v1/doctor").await.expect(200);
    assert!(doctor.to_string().contains("locked is not logged in"), "{doctor}");
}

#[tokio::test]
async fn an_agent_with_its_key_as_a_secret_logs_in_by_itself() {
    let mut daemon = Daemon::prepare();
    let file = daemon.root().join("key");
    std::fs::write(&file, "k-0123456789").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let command = serde_json::to_string(&daemon.scripted(&["--locked"]).command).unwrap();
    let secret = format!("[secrets.SCRIPTED_API_KEY]\nfile = \"{}\"\nagents = [\"locked\"]\n", file.display());
    daemon.configure(|config| format!("{config}\n[agents.locked]\ncommand = {command}\nlogin = \"key\"\n\n{secret}"));
    daemon.run().await;
    let session = daemon.session(&spec(&daemon)).await;
    assert_eq!(session.turn("say hello").await.text, "hello");
    session.stop().await;
    session.resume().await;
    assert_eq!((session.turn("say again").await.text, required(&session.view().await)), ("again".to_owned(), None));
    // Without the key, the message has the agent's own words.
    std::fs::remove_file(&file).unwrap();
    daemon.configure(|config| config.replace("agents = [\"locked\"]\n", "agents = [\"locked\"]\nrequired = false\n"));
    daemon.client.post("/v1/reload", &json!({})).await.expect::<Value>(200);
    session.stop().await;
    session.post("/resume", &json!({})).await.expect::<Value>(202);
    let view = session.wait_for_phase(Phase::Failed).await;
    let message = required(&view).unwrap().2;
    assert!(message.contains("its own login failed: SCRIPTED_API_KEY is not set (-32000)"), "{message}");
}

#[tokio::test]
async fn an_agent_that_never_answers_about_its_login_fails_the_launch() {
    let silent = "login = \"browser\"\nenv = { SILENT_LOGIN = \"1\" }\n";
    let daemon = daemon(silent, "[limits]\nopen_conversation = \"1s\"").await;
    let session = daemon.create(&spec(&daemon)).await;
    let message = session.wait_for_phase(Phase::Failed).await.status.message.unwrap();
    assert!(message.contains("did not answer authenticate within 1 s"), "{message}");
}

#[tokio::test]
async fn a_session_that_loses_its_login_says_so_and_can_be_continued() {
    let daemon = daemon("login = \"browser\"", "").await;
    let session = daemon.session(&spec(&daemon)).await;
    session.turn("log-out").await;
    session.turn("say lost").await;
    let view = session.view().await;
    let (status, reason, message) = required(&view).unwrap();
    assert_eq!((status, reason, view.status.phase), (ConditionStatus::True, "LoginLost", Phase::Idle));
    assert!(message.contains("A login is missing") && message.contains("agentctl agent login locked"), "{message}");
    session.stop().await;
    session.resume().await;
    assert_eq!(session.turn("say back").await.text, "back");
    assert_eq!(required(&session.view().await), None);
}

#[tokio::test]
async fn the_command_logs_in_by_each_kind_of_method_and_says_what_is_missing() {
    let daemon = daemon("", "").await;
    let session = daemon.create(&spec(&daemon)).await;
    session.wait_for_phase(Phase::Failed).await;
    let login = async |method: &str| {
        let dir = daemon.work().display().to_string();
        ctl(&daemon, &["agent", "login", "locked", "--dir", &dir, "--method", method]).await
    };
    let said = login("browser").await;
    assert_eq!(said.status, Some(0), "{said:#?}");
    assert!(
        said.err.contains("locked has accepted the login") && said.err.contains("agentctl resume fix"),
        "{said:#?}"
    );
    let said = login("terminal").await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), "logged in, hi\n"), "{said:#?}");
    for (method, part) in [
        ("key", "the agent answered authenticate with an error: SCRIPTED_API_KEY is not set"),
        ("variable", "reads its key from SCRIPTED_TOKEN, which the environment of its sessions does not have"),
        ("nothing", "has no login method \"nothing\""),
    ] {
        let said = login(method).await;
        assert!(said.status == Some(2) && said.err.contains(part), "{method}: {said:#?}");
    }
    let said = ctl(&daemon, &["agent", "login", "locked"]).await;
    assert!(said.status == Some(2) && said.err.contains("offers several login methods: key (agent:"), "{said:#?}");
    let said = ctl(&daemon, &["agent", "login", "missing"]).await;
    assert!(said.status != Some(0) && said.err.contains("there is no agent \"missing\""), "{said:#?}");
}
