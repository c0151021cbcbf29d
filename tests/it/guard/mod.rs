//! The isolation level `guard`, which limits a session's processes. An agent must still work there for its whole life.

mod life;
mod table;

pub(crate) use life::use_of_tools;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use agentd_api::Code;
use agentd_api::isolation::{Isolation, IsolationPart, IsolationSurvey};
use agentd_api::problem::Problem;
use agentd_api::session::{ConditionStatus, ConditionType, PermissionPolicy, Phase, SessionSpec};
use serde_json::{Value, json};

use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths, process, require, scripted_agent, until};

/// Path of a file that `[secrets]` names, outside all directories of agentd.
fn secret(daemon: &Daemon) -> PathBuf {
    daemon.root().join("secret")
}

/// Prepares a daemon with a secret in a file, and does not start it.
fn prepared_with_secret() -> Daemon {
    let daemon = Daemon::prepare();
    let file = secret(&daemon);
    fs::write(&file, "a-secret-in-a-file").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    daemon.configure(|config| {
        format!("{config}\n[secrets.TOKEN]\nfile = \"{}\"\nagents = [\"nobody\"]\n", file.display())
    });
    daemon
}

fn at(daemon: &Daemon, isolation: Isolation) -> SessionSpec {
    let permissions = PermissionPolicy::Allow;
    SessionSpec { isolation: Some(isolation), permissions, ..daemon.scripted(&[]) }
}

/// Makes attempts inside a session. Returns for each its name, whether it succeeded, and the reason of a failure.
async fn tried(daemon: &Daemon, session: &Session, there: &Value) -> Vec<(String, bool, String)> {
    let file = daemon.work().join(format!("attempts-{}.json", session.id));
    fs::write(&file, there.to_string()).unwrap();
    let turn = session.turn(&format!("tool {} attempt {}", quoted(scripted_agent()), quoted(&file))).await;
    let lines = turn.text.lines().filter_map(|line| {
        let mut parts = line.split('\t');
        let (name, worked, reason) = (parts.next()?, parts.next()?, parts.next().unwrap_or_default());
        Some((name.to_owned(), worked == "yes", reason.to_owned()))
    });
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), there["names"].as_array().unwrap().len(), "{}", turn.text);
    lines
}

/// Asserts that a process inside the session can see its own session.
async fn sees_itself(daemon: &Daemon, session: &Session) {
    let there = json!({ "names": ["see its own session"], "own": session.id.as_str() });
    for (name, worked, reason) in tried(daemon, session, &there).await {
        assert!(worked, "{name}: {reason}");
    }
}

#[tokio::test]
async fn a_guarded_session_has_a_socket_of_its_own_that_each_daemon_makes_anew() {
    let Some(()) = require::guard() else { return };
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&at(&daemon, Isolation::Guard)).await;
    let socket = daemon.root().join("run").join(session.id.as_str()).join("guest/control.sock");
    sees_itself(&daemon, &session).await;
    let said = session.turn("env").await.text;
    assert!(said.contains(&format!("\"AGENTD_SOCKET\":{:?}", socket.display().to_string())), "{said}");
    let view: Value = daemon.client.get(&session.path("/environment?values=true")).await.json();
    let variables = view["variables"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["name"] == "AGENTD_SOCKET"), "{view}");

    let accepted = session.prompt("count 100 4").await;
    daemon.kill9();
    daemon.run().await;
    session.end_of(&accepted).await;
    let view = session.wait_for_phase(Phase::Idle).await;
    assert_eq!(view.status.isolation.map(|held| (held.level, held.missing)), Some((Isolation::Guard, Vec::new())));
    sees_itself(&daemon, &session).await;

    daemon.client.post("/v1/reload", &json!({})).await;
    daemon.terminate().await;
    daemon.run().await;
    sees_itself(&daemon, &session).await;
    session.stop().await;
    until("the socket is removed", || !socket.exists()).await;
    session.resume().await;
    sees_itself(&daemon, &session).await;
    session.turn("remember").await;

    let status = session.view().await.status;
    process::kill9(status.keeper_pid.unwrap());
    process::gone(&[status.agent_pid.unwrap()]).await;
    session.wait_for_phase(Phase::Failed).await;
}

#[tokio::test]
async fn a_directory_that_became_a_link_into_agentds_own_is_refused() {
    let Some(()) = require::guard() else { return };
    let daemon = Daemon::start().await;
    let directory = daemon.root().join("project");
    fs::create_dir(&directory).unwrap();
    let spec = SessionSpec { directory: directory.clone(), ..at(&daemon, Isolation::Guard) };
    let session = daemon.session(&spec).await;
    let (own, state) = (quoted(&directory), daemon.state().join("sessions"));
    session.turn(&format!("tool cd /; rmdir {own} && ln -s {} {own}", quoted(&state))).await;
    assert_eq!(fs::read_link(&directory).unwrap(), state, "the agent may do that");
    session.stop().await;
    session.post("/resume?wait=30", &json!({})).await;
    let failed = session.wait_for_phase(Phase::Failed).await;
    let message = failed.status.message.unwrap_or_default();
    assert!(message.contains("leads by a link into agentd's own directories"), "{message}");
}

#[tokio::test]
async fn a_session_is_at_least_as_guarded_as_its_agent() {
    let Some(()) = require::guard() else { return };
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config.replace("[agents.scripted]\n", "[agents.scripted]\nisolation = \"guard\"\n"));
    daemon.run().await;
    let named = |isolation| SessionSpec {
        agent: Some("scripted".parse().unwrap()),
        isolation,
        ..SessionSpec::new(daemon.work())
    };
    let refused = daemon.client.post("/v1/sessions", &named(Some(Isolation::None))).await;
    let problem: Problem = refused.expect(400);
    assert_eq!(problem.code, Code::InvalidRequest);
    assert!(problem.detail.contains("requires at least \"guard\""), "{problem:?}");
    let session = daemon.session(&named(None)).await;
    assert_eq!(session.view().await.status.isolation.map(|held| held.level), Some(Isolation::Guard));
    let (status, shown, _) = ctl(&daemon, &["show", session.id.as_str()]).await.parts();
    assert!(status == Some(0) && shown.contains("isolation:     guard\n"), "{shown}");

    let asked = ["new", "--isolation", "guard", "--dir", ".", "--agent", "demo", "--wait", "--json"];
    let (status, made, complaint) = ctl(&daemon, &asked[..7]).await.parts();
    assert_eq!(status, Some(0), "{made}{complaint}");
}

#[tokio::test]
async fn a_directory_below_a_hidden_one_is_there_and_nothing_around_it() {
    let Some(()) = require::guard() else { return };
    let daemon = Daemon::start().await;
    let inner = daemon.state().join("projects/one");
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("mine"), "x").unwrap();
    fs::write(daemon.state().join("projects/other"), "x").unwrap();
    let spec = SessionSpec { directory: inner.clone(), ..at(&daemon, Isolation::Guard) };
    let session = daemon.session(&spec).await;
    let turn = session.turn("tool pwd; echo made > made; ls . .. ../..; cat ../../sessions/*/session.json").await;
    let names: Vec<&str> = turn.text.split_whitespace().collect();
    assert!(names.contains(&"mine") && names.contains(&"projects"), "{}", turn.text);
    assert!(!names.contains(&"other") && !names.contains(&"sessions"), "{}", turn.text);
    assert_eq!(fs::read_to_string(inner.join("made")).unwrap(), "made\n");

    // An additional directory is there too, although nothing around it is.
    let directories = vec![daemon.state().join("projects/two")];
    fs::create_dir(&directories[0]).unwrap();
    let session = daemon.session(&SessionSpec { directories, ..spec }).await;
    let turn = session.turn("tool cd ../two && echo made > made; ls ..").await;
    assert!(!turn.text.contains("other"), "{}", turn.text);
    assert_eq!(fs::read_to_string(daemon.state().join("projects/two/made")).unwrap(), "made\n");

    let spec = SessionSpec { directory: daemon.state(), ..at(&daemon, Isolation::Guard) };
    let session = daemon.create(&spec).await;
    let failed = session.wait_for_phase(Phase::Failed).await;
    let message = failed.status.message.unwrap_or_default();
    assert!(message.contains("is a directory of agentd's own"), "{message}");
}

#[tokio::test]
async fn what_the_kernel_lacks_fails_the_launch_or_is_named() {
    let Some(()) = require::guard() else { return };
    let mut daemon = Daemon::prepare();
    // A user namespace in which the kernel allows no further user namespace.
    let line = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let entrance = ["/usr/bin/unshare", "--user", "--map-root-user", "/bin/sh", "-c", line, "sh"];
    daemon.enter(entrance.map(str::to_owned).to_vec());
    daemon.run().await;
    let session = daemon.create(&at(&daemon, Isolation::Guard)).await;
    let failed = session.wait_for_phase(Phase::Failed).await;
    let message = failed.status.message.clone().unwrap_or_default();
    assert!(message.contains("isolation \"guard\" cannot be had here: namespaces"), "{message}");
    assert!(message.contains("sysctl user.max_user_namespaces"), "it says how it can be had: {message}");
    let is_false = |view: &agentd_api::session::SessionView| {
        view.status.conditions.iter().any(|condition| {
            condition.kind == ConditionType::AgentStarted && condition.status == ConditionStatus::False
        })
    };
    assert!(is_false(&failed), "{failed:#?}");

    daemon.configure(|config| config.replace("[launch]\n", "[launch]\nisolation_missing = \"warn\"\n"));
    daemon.terminate().await;
    daemon.run().await;
    let view = session.resume().await;
    let held = view.status.isolation.unwrap();
    assert_eq!(held.level, Isolation::Guard);
    let missing: Vec<_> = held.missing.iter().map(|missing| missing.part).collect();
    assert_eq!(missing, [IsolationPart::Namespaces], "{held:?}");
    let (_, shown, _) = ctl(&daemon, &["show", session.id.as_str()]).await.parts();
    assert!(shown.contains("guard; without namespaces: "), "{shown}");
    sees_itself(&daemon, &session).await;
}

#[test]
fn the_keeper_tells_what_this_kernel_can_do() {
    let keeper = PathBuf::from(paths::keeper());
    let mut child =
        std::process::Command::new(keeper).arg("isolation").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    let survey: IsolationSurvey = serde_json::from_str(&text).unwrap();
    assert!(survey.missing.iter().all(|missing| !missing.reason.is_empty()), "{text}");
}
