//! Switches of the workflow while a session runs.

use std::fs;

use agentd_api::event::{LaunchReason, OpenedBy};
use agentd_api::session::{ConditionStatus, Phase, SessionSpec, SessionView};
use agentd_api::workflow::WorkflowSpec;
use agentd_api::{Body, reason};
use serde_json::{Value, json};

use super::{approve, approved, at, condition, flow, opened, prompts, refused, remembered, settled, switch};
use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session};
use crate::repositories::Remote;

fn launches(session: &Session) -> Vec<LaunchReason> {
    let of = |body: &Body| if let Body::LaunchStarted(started) = body { Some(started.reason) } else { None };
    session.journal().iter().filter_map(|event| of(&event.body)).collect()
}

#[tokio::test]
async fn a_switch_keeps_the_conversation_and_clearing_goes_back() {
    let daemon = Daemon::start().await;
    let (first, second) = (approved(&daemon, "first").await, approved(&daemon, "second").await);
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say hello").await;
    let conversation = session.view().await.status.conversation;
    for (directory, name) in [(&first, "first"), (&second, "second"), (&first, "first")] {
        switch(&daemon, &session, Some(&at(directory))).await;
        let view = settled(&session, Some(&at(directory))).await;
        assert_eq!(view.status.conversation, conversation);
        assert_eq!(opened(&session).await.0, *directory);
        let blocks: Vec<String> = serde_json::from_str(&session.turn("blocks").await.text).unwrap();
        assert_eq!(blocks.last().unwrap(), "blocks");
        assert_eq!(
            prompts(&session).iter().rfind(|one| one.ends_with("begins")).unwrap(),
            &format!("say {name} begins")
        );
    }
    switch(&daemon, &session, None).await;
    let view = settled(&session, None).await;
    assert_eq!((view.status.conversation, condition(&session.view().await)), (conversation, None));
    let blocks: Vec<String> = serde_json::from_str(&session.turn("blocks").await.text).unwrap();
    assert!(blocks[0].contains("does not follow the workflow \"first\" any more"), "{blocks:?}");
    assert_eq!(opened(&session).await.0, daemon.work());
    let reasons = launches(&session);
    assert_eq!(reasons[0], LaunchReason::Create);
    assert!(reasons[1..].iter().all(|one| *one == LaunchReason::Workflow) && reasons.len() == 5, "{reasons:?}");
    let heard = remembered(&session).await;
    for text in ["say hello", "say first begins", "say second begins"] {
        assert!(heard.contains(&text.to_owned()), "{text} is missing in {heard:?}");
    }
}

#[tokio::test]
async fn a_switch_waits_for_the_running_turn_and_goes_before_waiting_prompts() {
    let daemon = Daemon::start().await;
    let directory = approved(&daemon, "calm").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let running = session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    switch(&daemon, &session, Some(&at(&directory))).await;
    session.prompt("say after").await;
    assert_eq!(session.view().await.status.phase, Phase::Busy);
    session.post("/cancel", &json!({})).await;
    session.end_of(&running).await;
    settled(&session, Some(&at(&directory))).await;
    session
        .wait_for("all prompts are answered", |view| view.status.queue.is_empty() && view.status.turn.is_none())
        .await;
    assert_eq!(prompts(&session), ["hang", "say calm begins", "say after"]);
}

#[tokio::test]
async fn an_unapproved_workflow_changes_nothing_until_it_is_approved() {
    let daemon = Daemon::start().await;
    let directory = flow(&daemon, "open", "name = \"open\"\nstartup_prompt = \"say open begins\"\n");
    let session = daemon.session(&daemon.scripted(&[])).await;
    let pid = session.view().await.status.agent_pid;
    let id = session.id.as_str();
    let (status, out, err) = ctl(&daemon, &["workflow", "use", id, directory.to_str().unwrap()]).await.parts();
    assert_eq!(status, Some(1), "{out}{err}");
    assert!(err.contains(&format!("agentctl workflow allow {id}")), "{err}");
    let view = refused(&session, reason::WORKFLOW_NOT_APPROVED).await;
    assert_eq!(view.status.agent_pid, pid);
    assert!(session.turn("say usable").await.text.contains("usable"));
    let (status, out, err) = ctl(&daemon, &["workflow", "allow", id, "--yes"]).await.parts();
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(out.contains("startup_prompt"), "the text is shown: {out}");
    let view = settled(&session, Some(&at(&directory))).await;
    assert_ne!(view.status.agent_pid, pid);
    assert_eq!(prompts(&session), ["say usable", "say open begins"]);
    // The session has no further file to approve.
    let (status, _, err) = ctl(&daemon, &["workflow", "allow", id]).await.parts();
    assert_eq!(status, Some(1), "{err}");
    let (status, _, err) = ctl(&daemon, &["workflow", "clear", id]).await.parts();
    assert_eq!((status, err.contains("without a workflow")), (Some(0), true), "{err}");
    assert_eq!(opened(&session).await.0, daemon.work());
}

#[tokio::test]
async fn a_workflow_is_cloned_and_the_clone_before_it_is_removed_when_it_has_no_work() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let mut wanted = Vec::new();
    for name in ["one", "two"] {
        let remote = Remote::new(&daemon, name);
        remote.push("main", "workflow.toml", &format!("name = \"{name}\"\n"));
        wanted.push(WorkflowSpec { url: Some(remote.url()), ..WorkflowSpec::default() });
    }
    let place = |name: &str| daemon.work().join("workflows").join(name);
    for (spec, name) in wanted.iter().zip(["one", "two"]) {
        switch(&daemon, &session, Some(spec)).await;
        refused(&session, reason::WORKFLOW_NOT_APPROVED).await;
        approve(&daemon, &place(name).join("workflow.toml")).await;
        settled(&session, Some(spec)).await;
        assert_eq!(opened(&session).await.0, place(name));
        if name == "two" {
            session.see("the first clone is removed", |_| !place("one").exists()).await;
        }
    }
    // A clone with work stays, and is named.
    fs::write(place("two").join("mine"), "mine").unwrap();
    switch(&daemon, &session, None).await;
    let is_retained =
        |view: &SessionView| view.status.repos.first().is_some_and(|one| one.state.as_str() == "retained");
    session.wait_for("the clone is retained", is_retained).await;
    assert!(place("two").join("mine").exists());
    assert!(session.turn("say on").await.text.contains("on"));
}

#[tokio::test]
async fn a_clone_that_fails_is_tried_again_and_the_session_stays_usable() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let wanted = WorkflowSpec {
        url: Some(daemon.root().join("remotes/late.git").display().to_string()),
        ..WorkflowSpec::default()
    };
    switch(&daemon, &session, Some(&wanted)).await;
    refused(&session, reason::CLONE_FAILED).await;
    assert!(session.turn("say usable").await.text.contains("usable"));
    let remote = Remote::new(&daemon, "late");
    remote.push("main", "workflow.toml", "name = \"late\"\n");
    refused(&session, reason::WORKFLOW_NOT_APPROVED).await;
    approve(&daemon, &daemon.work().join("workflows/late/workflow.toml")).await;
    settled(&session, Some(&wanted)).await;
}

#[tokio::test]
async fn an_agent_that_knows_its_conversation_in_one_directory_keeps_it() {
    let daemon = Daemon::start().await;
    let directory = approved(&daemon, "calm").await;
    let session = daemon.session(&daemon.scripted(&["--bound"])).await;
    session.turn("say hello").await;
    switch(&daemon, &session, Some(&at(&directory))).await;
    settled(&session, Some(&at(&directory))).await;
    assert!(remembered(&session).await.contains(&"say hello".to_owned()));
    let view = session.view().await;
    let found = condition(&view).unwrap();
    assert_eq!(found.status, ConditionStatus::True);
    let place = daemon.work().display().to_string();
    assert!(found.message.contains(&format!("continues its conversation only in {place}")), "{found:?}");
    assert!(found.message.contains("takes no further directories"), "{found:?}");
    // Its process is in the workflow's directory.
    assert_eq!(session.turn("cwd").await.text, directory.display().to_string());
    let ways: Vec<OpenedBy> = session
        .journal()
        .iter()
        .filter_map(|event| if let Body::ConversationOpened(one) = &event.body { Some(one.by) } else { None })
        .collect();
    assert_eq!(ways, [OpenedBy::New, OpenedBy::Load]);
    // A conversation that no directory has is a failure, as without a workflow.
    let lost = daemon.session(&daemon.scripted(&["--load-fails"])).await;
    switch(&daemon, &lost, Some(&at(&directory))).await;
    let view = lost.wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.unwrap().contains("could not restore the conversation"));
}

#[tokio::test]
async fn further_directories_are_given_and_said() {
    let daemon = Daemon::start().await;
    let directory = flow(&daemon, "wide", "name = \"wide\"\npaths = [\"/srv\"]\n");
    approve(&daemon, &directory.join("workflow.toml")).await;
    let remote = Remote::new(&daemon, "web");
    let spec = SessionSpec { repos: vec![remote.spec()], ..daemon.scripted(&["--directories", "--resume"]) };
    let session = daemon.session(&spec).await;
    switch(&daemon, &session, Some(&at(&directory))).await;
    settled(&session, Some(&at(&directory))).await;
    let (_, further) = opened(&session).await;
    assert_eq!(further, [daemon.work(), daemon.work().join("web"), "/srv".into()]);
    let found = condition(&session.view().await).unwrap().message.clone();
    assert!(found.contains("further directories: "), "{found}");
}

#[tokio::test]
async fn a_stop_during_a_switch_stops_the_session() {
    let daemon = Daemon::start().await;
    let directory = approved(&daemon, "calm").await;
    let session = daemon.session(&daemon.scripted(&["--slow-init", "300"])).await;
    switch(&daemon, &session, Some(&at(&directory))).await;
    session.wait_for("the agent is ended", |view| view.active_workflow().is_some()).await;
    session.stop().await;
    session.resume().await;
    let view = settled(&session, Some(&at(&directory))).await;
    assert_eq!(view.status.phase, Phase::Idle);
    let raw: Value = daemon.client.get(&session.path("")).await.expect(200);
    assert_eq!(raw["status"]["workflow"]["active"]["description"]["name"], "calm");
}
