//! Calls to agentd from inside a session. The daemon refuses an agent's forbidden calls, also from a process that hides
//! that it belongs to the session.

pub(crate) mod children;
mod socket;
pub(crate) mod table;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agentd_api::event::{AnsweredBy, Body};
use agentd_api::session::{Phase, SessionSpec, SessionView, WholeList};
use agentd_api::{Code, Problem};
use serde_json::json;

use crate::harness::client::in_query;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths, scripted_agent, until};

const SECRET: &str = "wonder-1234567890";

async fn asked(session: &Session) -> String {
    let view = session.wait_for("a permission request", |view| !view.status.permissions.is_empty()).await;
    view.status.permissions[0].id.to_string()
}

fn answers(session: &Session) -> Vec<AnsweredBy> {
    let answer = |body| match body {
        Body::PermissionResolved(resolved) => Some(resolved.by),
        _ => None,
    };
    session.journal().into_iter().filter_map(|event| answer(event.body)).collect()
}

/// Creates a directory with an unapproved script. Returns this directory and the path of the file that the script would
/// create.
fn trap(daemon: &Daemon) -> (PathBuf, PathBuf) {
    let (directory, canary) = (daemon.root().join("trap"), daemon.root().join("canary"));
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join(".agentd-env.sh"), format!("touch {}\n", quoted(&canary))).unwrap();
    (directory, canary)
}

/// Returns a prompt that makes the agent start the attack and ask for permission while the attack runs.
fn prompt(agent: &Path, table: &Path, directory: &Path, rounds: usize) -> String {
    let words = [agent, Path::new("attack"), table, directory].map(quoted).join(" ");
    format!("do {words} {rounds} </dev/null >/dev/null 2>&1 &\nask")
}

#[tokio::test]
async fn an_agent_may_look_at_its_own_session_and_do_nothing_else_whatever_it_does_with_its_processes() {
    let mut daemon = Daemon::prepare();
    let (directory, canary) = trap(&daemon);
    fs::write(daemon.root().join("secret"), SECRET).unwrap();
    fs::set_permissions(daemon.root().join("secret"), Permissions::from_mode(0o600)).unwrap();
    daemon.configure(|config| {
        format!("{config}\n[secrets.DEMO_TOKEN]\nfile = \"{}\"\n", daemon.root().join("secret").display())
    });
    daemon.run().await;
    let victim = SessionSpec { name: Some("victim".parse().unwrap()), ..daemon.scripted(&[]) };
    let victim = daemon.session(&victim).await;
    let victims_turn = victim.prompt("ask").await;
    let victims_request = asked(&victim).await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let attack = daemon.root().join("attack");
    fs::create_dir(&attack).unwrap();
    let table = attack.join("table");
    let turn = session.prompt(&prompt(&scripted_agent(), &table, &attack, 2)).await;
    let request = asked(&session).await;
    // At this isolation level, an agent could add these lines to the configuration, and a reload would run their
    // command.
    daemon.configure(|config| format!("{config}\n[secrets.PLANTED]\ncommand = [\"touch\", {:?}]\n", canary.display()));

    let plan = table::Plan {
        own: session.id.as_str(),
        request: &request,
        victim: victim.id.as_str(),
        victims_request: &victims_request,
        trap: &directory,
        canary: &canary,
        secret: SECRET,
    };
    let keeper = |id: &str| daemon.root().join("run").join(id).join("keeper.sock");
    let keepers = [keeper(victim.id.as_str()), keeper(session.id.as_str())];
    plan.write(&table, daemon.client.socket(), &keepers);
    let before: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    for round in 1..=2 {
        fs::write(attack.join(format!("{round}.go")), "").unwrap();
        until("the attack is over", || table::is_over(&attack, round)).await;
        plan.check(&attack, round, &keepers);
        if round == 1 {
            // The next daemon finds the keepers and must recognize their sessions.
            daemon.kill9();
            daemon.run().await;
            session.wait_for_phase(Phase::Busy).await;
        }
    }

    let after: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    let ids = |list: &WholeList| list.sessions.iter().map(|view| view.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&before), ids(&after));
    assert!(!canary.exists());
    let scripts = format!("/v1/scripts?directory={}", in_query(&directory));
    let scripts: serde_json::Value = daemon.client.get(&scripts).await.expect(200);
    assert_eq!(scripts["scripts"][0]["state"], "not-approved", "{scripts}");
    // The owner may answer, and both agents still wait for the answer.
    for (session, turn, request) in [(&session, turn, request), (&victim, victims_turn, victims_request)] {
        assert_eq!(answers(session), []);
        let path = format!("/permissions/{request}");
        session.post(&path, &json!({ "option": "yes" })).await.expect::<SessionView>(200);
        assert!(session.end_of(&turn).await.text.ends_with("chosen yes"));
        assert_eq!(answers(session), [AnsweredBy::Client]);
    }
}

#[tokio::test]
async fn agentctl_shows_an_agent_its_own_session_and_says_plainly_what_is_not_for_it() {
    let daemon = Daemon::start().await;
    let other = daemon.session(&daemon.scripted(&[])).await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let ctl = |arguments: &str| {
        let (agentctl, socket) = (quoted(paths::agentctl()), quoted(daemon.client.socket()));
        format!("do {agentctl} --socket {socket} {arguments} 2>&1; echo \"status $?\"")
    };
    let (id, others) = (session.id.as_str(), other.id.as_str());
    for arguments in [format!("show {id}"), format!("show {}", &id[..6]), format!("env {id}"), "ls".to_owned()] {
        let text = session.turn(&ctl(&arguments)).await.text;
        assert!(text.contains("status 0") && !text.contains(others), "{arguments}: {text}");
    }
    for arguments in [format!("show {others}"), format!("stop {others}"), "reload".to_owned(), "new".to_owned()] {
        let text = session.turn(&ctl(&arguments)).await.text;
        let refused = format!("from inside the session {id}");
        assert!(text.contains("status 1") && text.contains(&refused) && text.contains("hint: "), "{arguments}: {text}");
    }
    assert_eq!(other.view().await.status.phase, Phase::Idle);
}

#[tokio::test]
async fn with_guests_none_a_session_sees_nothing_and_a_reload_changes_that() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let call = |path: &str| {
        let socket = quoted(daemon.client.socket());
        let (agent, path) = (quoted(scripted_agent()), quoted(path));
        format!("do {agent} ask {socket} GET {path} null")
    };
    let own = session.path("");
    assert!(session.turn(&call(&own)).await.text.contains("200 OK"));
    daemon.configure(|config| format!("{config}\n[control]\nguests = \"none\"\n"));
    daemon.client.call("POST", "/v1/reload", "").await.expect::<serde_json::Value>(200);
    for (path, code) in [(own.as_str(), "in-session"), ("/readyz", "in-session"), ("/v1/sessions", "in-session")] {
        let text = session.turn(&call(path)).await.text;
        assert!(text.contains("403") && text.contains(code), "{path}: {text}");
    }
    assert!(session.turn(&call("/healthz")).await.text.contains("200 OK"));
}

#[tokio::test]
async fn what_agentd_runs_itself_is_nobody_who_may_approve() {
    let daemon = Daemon::start().await;
    let answer = daemon.root().join("answer");
    let agent = [scripted_agent(), "ask".into(), daemon.client.socket().into()].map(quoted).join(" ");
    // A start-up file that calls agentd must not count as the owner, and must not hang the launch that waits for it.
    fs::write(daemon.home().join(".profile"), format!("{agent} POST /v1/reload null >{}\n", quoted(&answer))).unwrap();
    daemon.session(&daemon.scripted(&[])).await;
    let answer = fs::read_to_string(answer).unwrap();
    let problem = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    let problem: Problem = serde_json::from_str(problem).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(problem.code, Code::StartedByAgentd, "{problem:?}");
}

#[tokio::test]
async fn an_agent_does_not_become_the_daemon_of_its_own_session() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let (go, said, done) = (daemon.root().join("go"), daemon.root().join("said"), daemon.root().join("done"));
    let command = daemon.command();
    let words: Vec<String> = std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect();
    let (words, go_word, said_word, done_word) = (words.join(" "), quoted(&go), quoted(&said), quoted(&done));
    let wait = format!("while [ ! -e {go_word} ]; do sleep 0.05; done");
    let line = format!("({wait}; setsid {words} >{said_word} 2>&1; touch {done_word}) </dev/null >/dev/null 2>&1 &");
    session.turn(&format!("do {line}")).await;
    daemon.kill9();
    fs::write(&go, "").unwrap();
    until("the agent's daemon has ended", || done.exists()).await;
    let said = fs::read_to_string(&said).unwrap();
    assert!(said.contains(&format!("inside its own session {}", session.id)), "{said}");
    daemon.run().await;
    assert_eq!(session.turn("say well").await.text, "well");
}
