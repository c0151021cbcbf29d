//! Sessions that continue the conversation and the workspace of another session, and the rule for the first prompt.

use std::fs;

use agentd_api::Code;
use agentd_api::event::{Body, OpenedBy};
use agentd_api::session::{Phase, RestartPolicy, SessionSpec, SessionView};
use agentd_api::spec::Workspace;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::ctl::ctl;
use crate::harness::session::{Turn, said};
use crate::harness::{Daemon, Response, Session, process, within};

/// Requests a session that continues another one.
async fn request(daemon: &Daemon, parent: &str, fields: Value) -> Response {
    let mut body = fields;
    body["parent"] = json!(parent);
    daemon.client.post("/v1/sessions", &body).await
}

async fn continued(daemon: &Daemon, parent: &str, fields: Value) -> Session {
    let view = request(daemon, parent, fields).await.expect::<SessionView>(202);
    let session = Session::new(view.id, daemon.client.clone(), daemon.state());
    session.wait_for_phase(Phase::Idle).await;
    session
}

/// Returns the prompts that the agent remembers from before.
async fn remembered(session: &Session) -> Value {
    let Turn { text, .. } = session.turn("remember").await;
    serde_json::from_str(&text).unwrap()
}

/// Returns how the session's conversations were opened.
fn opened(session: &Session) -> Vec<OpenedBy> {
    let of = |body: &Body| if let Body::ConversationOpened(opened) = body { Some(opened.by) } else { None };
    session.journal().iter().filter_map(|event| of(&event.body)).collect()
}

fn prompts(session: &Session) -> Vec<String> {
    let of = |body: &Body| if let Body::TurnQueued(queued) = body { Some(queued.prompt.clone()) } else { None };
    session.journal().iter().filter_map(|event| of(&event.body)).collect()
}

#[tokio::test]
async fn each_row_of_the_rule_for_the_first_prompt_holds() {
    let mut daemon = Daemon::start().await;
    // A new session without an initial prompt sends none, and one with a prompt sends it once in its life.
    let silent = daemon.session(&daemon.scripted(&["--fork"])).await;
    assert_eq!(prompts(&silent), Vec::<String>::new());
    let spec = SessionSpec {
        initial_prompt: Some("say hello".to_owned()),
        restart: Some(RestartPolicy::OnFailure),
        ..daemon.scripted(&["--fork"])
    };
    let session = daemon.session(&spec).await;
    session.wait_for("the first turn has ended", |view| view.status.idle_since.is_some()).await;
    session.stop().await;
    let pid = session.resume().await.status.agent_pid.unwrap();
    process::kill9(pid);
    let is_another = |view: &SessionView| view.status.agent_pid.is_some_and(|other| other != pid);
    session.wait_for("another agent", |view| view.status.phase == Phase::Idle && is_another(view)).await;
    daemon.kill9();
    daemon.run().await;
    assert_eq!(prompts(&session), ["say hello"]);
    assert_eq!(session.view().await.spec.initial_prompt.as_deref(), Some("say hello"), "it is kept");
    // A continuation sends none, even where the request has one. It keeps the request's.
    let child = continued(&daemon, session.id.as_str(), json!({ "initial_prompt": "say never" })).await;
    assert_eq!(remembered(&child).await, json!(["say hello"]));
    assert_eq!(prompts(&child), ["remember"]);
    assert_eq!(child.view().await.spec.initial_prompt.as_deref(), Some("say never"));
}

#[tokio::test]
async fn an_agent_that_forks_gives_both_sessions_a_conversation() {
    let mut daemon = Daemon::start().await;
    let parent =
        daemon.session(&SessionSpec { name: Some("first".parse().unwrap()), ..daemon.scripted(&["--fork"]) }).await;
    parent.turn("say one").await;
    let child = continued(&daemon, "first", json!({})).await;
    let (of_parent, of_child) = (parent.view().await, child.view().await);
    assert_eq!(of_child.spec.parent.as_ref().unwrap().as_str(), parent.id.as_str(), "the name becomes an id");
    assert_eq!(of_child.spec.directory, of_parent.spec.directory);
    assert_eq!(of_child.spec.command, of_parent.spec.command);
    assert_ne!(of_child.status.conversation, of_parent.status.conversation);
    assert_eq!(opened(&child), [OpenedBy::Fork]);
    assert_eq!(remembered(&child).await, json!(["say one"]));
    // Each goes its own way, over stops and kills.
    parent.turn("say two").await;
    child.stop().await;
    daemon.kill9();
    daemon.run().await;
    child.resume().await;
    assert_eq!(opened(&child), [OpenedBy::Fork, OpenedBy::Load], "it is copied once");
    assert_eq!(remembered(&child).await, json!(["say one", "remember"]));
    assert_eq!(remembered(&parent).await, json!(["say one", "say two"]));
}

#[tokio::test]
async fn an_agent_that_only_loads_gives_the_conversation_to_one_session_at_a_time() {
    let daemon = Daemon::start().await;
    let parent = daemon.session(&daemon.scripted(&[])).await;
    parent.turn("say one").await;
    let refused = |response: Response| {
        let problem = response.problem();
        assert_eq!(problem.code, Code::ConversationInUse, "{problem:?}");
        assert!(problem.hint.unwrap().contains("stop"));
    };
    refused(request(&daemon, parent.id.as_str(), json!({})).await);
    parent.stop().await;
    let child = continued(&daemon, parent.id.as_str(), json!({})).await;
    assert_eq!(opened(&child), [OpenedBy::Load]);
    assert_eq!(remembered(&child).await, json!(["say one"]));
    // While it works, neither the parent nor another one may have the conversation.
    refused(parent.post("/resume", &json!({})).await);
    refused(request(&daemon, parent.id.as_str(), json!({})).await);
    refused(request(&daemon, child.id.as_str(), json!({})).await);
    child.stop().await;
    parent.resume().await;
    refused(child.post("/resume", &json!({})).await);
    let fresh = child.post("/resume?new_conversation=true", &json!({})).await.expect::<SessionView>(202);
    assert_eq!(fresh.id, child.id);
}

#[tokio::test]
async fn of_many_that_want_one_conversation_at_the_same_moment_one_gets_it() {
    let daemon = Daemon::start().await;
    let parent = daemon.session(&daemon.scripted(&[])).await;
    parent.stop().await;
    let mut requests = JoinSet::new();
    for _ in 0..8 {
        let (client, body) = (daemon.client.clone(), json!({ "parent": parent.id }));
        requests.spawn(async move { client.post("/v1/sessions", &body).await });
    }
    requests.spawn({
        let (client, path) = (daemon.client.clone(), parent.path("/resume"));
        async move { client.post(&path, &json!({})).await }
    });
    let answers = within("the answers", requests.join_all()).await;
    let (made, refused): (Vec<Response>, Vec<Response>) =
        answers.into_iter().partition(|answer| answer.status.is_success());
    assert_eq!(made.len(), 1);
    assert!(refused.iter().all(|answer| answer.problem().code == Code::ConversationInUse));
}

#[tokio::test]
async fn what_cannot_be_continued_is_refused_and_creates_nothing() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + "\n[agents.other]\ncommand = [\"/bin/cat\"]\n");
    daemon.run().await;
    let parent = daemon.session(&daemon.scripted(&["--fork"])).await;
    for (body, code) in [
        (json!({ "parent": "missing" }), Code::NoSuchSession),
        (json!({ "parent": "Not A Name" }), Code::MalformedRequest),
        (json!({ "parent": parent.id, "agent": "other" }), Code::InvalidRequest),
        (json!({ "parent": parent.id, "directory": "/" }), Code::InvalidRequest),
        (json!({ "parent": parent.id, "workspace": "new" }), Code::InvalidRequest),
        (json!({ "directory": daemon.work(), "workspace": { "of": parent.id } }), Code::InvalidRequest),
    ] {
        let problem = daemon.client.post("/v1/sessions", &body).await.problem();
        assert_eq!(problem.code, code, "{body}: {problem:?}");
        assert!(problem.hint.is_some(), "{body}: {problem:?}");
    }
    let never = SessionSpec { command: Some(vec!["/bin/false".to_owned()]), ..daemon.scripted(&[]) };
    let never = daemon.create(&never).await;
    never.wait_for_phase(Phase::Failed).await;
    assert_eq!(request(&daemon, never.id.as_str(), json!({})).await.problem().code, Code::WrongPhase);
    let busy = parent.prompt("hang").await;
    parent.wait_for_phase(Phase::Busy).await;
    let problem = request(&daemon, parent.id.as_str(), json!({})).await.problem();
    assert_eq!(problem.code, Code::ConversationInUse, "{problem:?}");
    parent.post("/cancel", &json!({})).await;
    parent.end_of(&busy).await;
    assert_eq!(parent.journal().iter().filter_map(said).count(), 0);
    let list: Value = daemon.client.get("/v1/sessions?fields=*").await.json();
    assert_eq!(list["sessions"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_conversation_that_is_lost_fails_the_launch_and_says_how_to_go_on() {
    let daemon = Daemon::start().await;
    let parent = daemon.session(&daemon.scripted(&["--fork"])).await;
    parent.stop().await;
    let conversation = parent.view().await.status.conversation.unwrap();
    fs::remove_file(daemon.root().join(format!("{conversation}.json"))).unwrap();
    let view = request(&daemon, parent.id.as_str(), json!({})).await.expect::<SessionView>(202);
    let child = Session::new(view.id, daemon.client.clone(), daemon.state());
    let failed = child.wait_for_phase(Phase::Failed).await;
    let message = failed.status.message.unwrap();
    assert!(message.contains(&conversation) && message.contains("--new-conversation"), "{message}");
}

#[tokio::test]
async fn a_workspace_stays_until_the_last_session_that_continues_in_it_is_removed() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { workspace: Some(Workspace::New), directory: "".into(), ..daemon.scripted(&["--fork"]) };
    let parent = daemon.session(&spec).await;
    let workspace = parent.view().await.spec.directory.clone();
    fs::write(workspace.join("artifacts/result"), "1").unwrap();
    let child = continued(&daemon, parent.id.as_str(), json!({})).await;
    assert_eq!(child.view().await.spec.directory, workspace);
    let environment: Value = serde_json::from_str(&child.turn("env").await.text).unwrap();
    assert_eq!(environment["AGENTD_WORKSPACE"], json!(workspace));
    assert_eq!(environment["AGENTD_ARTIFACTS"], json!(workspace.join("artifacts")));
    let remove = async |session: &Session| {
        session.stop().await;
        assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status.as_u16(), 204);
    };
    let grandchild = continued(&daemon, child.id.as_str(), json!({})).await;
    remove(&parent).await;
    assert!(workspace.join("artifacts/result").exists());
    remove(&grandchild).await;
    assert!(workspace.join("artifacts/result").exists());
    assert_eq!(child.turn("cwd").await.text, workspace.display().to_string());
    remove(&child).await;
    assert!(!workspace.exists());
}

#[tokio::test]
async fn agentctl_continues_a_session_with_its_environment() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&["--fork"]);
    spec.name = Some("first".parse().unwrap());
    spec.environment.env.insert("OF_PARENT".to_owned(), "yes".to_owned());
    let parent = daemon.session(&spec).await;
    parent.turn("say one").await;
    let (status, said, told) = ctl(&daemon, &["run", "--parent", "first", "--prompt", "remember"]).await.parts();
    assert_eq!((status, said.trim()), (Some(0), "[\"say one\"]"), "{told}");
    let (status, said, told) = ctl(&daemon, &["run", "--parent", "first", "--rm", "env"]).await.parts();
    assert_eq!(status, Some(0), "{told}");
    assert!(said.contains("\"OF_PARENT\":\"yes\""), "{said}");
    let (status, id, told) = ctl(&daemon, &["new", "--parent", "first", "--ready", "60s"]).await.parts();
    assert_eq!(status, Some(0), "{told}");
    let (_, shown, _) = ctl(&daemon, &["show", id.trim()]).await.parts();
    assert!(shown.contains(&format!("the session {}", parent.id)), "{shown}");
    for wrong in [["--dir", "/"], ["--agent", "demo"]] {
        let (status, _, told) = ctl(&daemon, &["run", "--parent", "first", wrong[0], wrong[1]]).await.parts();
        assert_eq!(status, Some(2), "{told}");
    }
}

#[tokio::test]
async fn a_file_with_a_parent_is_applied_once() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { name: Some("first".parse().unwrap()), ..daemon.scripted(&["--fork"]) };
    daemon.session(&spec).await.turn("say one").await;
    let file = daemon.root().join("second.toml");
    fs::write(&file, "name = \"second\"\nparent = \"first\"\ntags = [\"a\"]\n").unwrap();
    let file = file.to_str().unwrap();
    for result in ["created", "unchanged"] {
        let (status, said, told) = ctl(&daemon, &["apply", "-f", file]).await.parts();
        assert_eq!((status, said.contains(result)), (Some(0), true), "{said}{told}");
    }
    let (status, printed, told) = ctl(&daemon, &["get", "second", "-o", "toml"]).await.parts();
    assert_eq!(status, Some(0), "{told}");
    fs::write(file, printed).unwrap();
    let (status, said, told) = ctl(&daemon, &["apply", "-f", file]).await.parts();
    assert_eq!((status, said.contains("unchanged")), (Some(0), true), "{said}{told}");
}
