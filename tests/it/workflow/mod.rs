//! Workflows of sessions: approval, switches between turns, instructions and prompts, directories, and kills at each
//! step.

mod kills;
mod launches;
mod switches;

use std::fs;
use std::path::{Path, PathBuf};

use agentd_api::Body;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView};
use agentd_api::workflow::WorkflowSpec;
use serde_json::{Value, json};

use crate::harness::session::Turn;
use crate::harness::{Daemon, Session};

/// Writes a workflow's description into a directory.
pub(crate) fn describe(directory: &Path, text: &str) -> PathBuf {
    fs::create_dir_all(directory).unwrap();
    let file = directory.join("workflow.toml");
    fs::write(&file, text).unwrap();
    file
}

/// Makes a workflow in a directory beside the working directory. It is not approved.
fn flow(daemon: &Daemon, name: &str, text: &str) -> PathBuf {
    let directory = daemon.root().join("flows").join(name);
    describe(&directory, text);
    directory
}

pub(crate) async fn approve(daemon: &Daemon, file: &Path) {
    daemon.client.post("/v1/scripts/allow", &json!({ "directory": file })).await.expect::<Value>(200);
}

/// Makes and approves a workflow with both prompts.
async fn approved(daemon: &Daemon, name: &str) -> PathBuf {
    let text =
        format!("name = \"{name}\"\nsystem_prompt = \"Follow {name}.\"\nstartup_prompt = \"say {name} begins\"\n");
    let directory = flow(daemon, name, &text);
    approve(daemon, &directory.join("workflow.toml")).await;
    directory
}

fn at(directory: &Path) -> WorkflowSpec {
    WorkflowSpec { directory: Some(directory.to_owned()), ..WorkflowSpec::default() }
}

/// Replaces the session's workflow.
async fn switch(daemon: &Daemon, session: &Session, wanted: Option<&WorkflowSpec>) {
    let value = wanted.map_or(Value::Null, |wanted| {
        json!({ "url": wanted.url, "directory": wanted.directory, "branch": wanted.branch, "path": wanted.path })
    });
    daemon.client.patch(&session.path(""), &json!({ "workflow": value }), None).await.expect::<Value>(200);
}

fn is_in_force(view: &SessionView, wanted: Option<&WorkflowSpec>) -> bool {
    view.active_workflow().map(|active| &active.spec) == wanted
}

/// Waits until the workflow is in force and its agent waits for a prompt.
async fn settled(session: &Session, wanted: Option<&WorkflowSpec>) -> SessionView {
    let is_done = |view: &SessionView| view.status.phase == Phase::Idle && is_in_force(view, wanted);
    session.wait_for("the workflow is in force", |view| is_done(view) && view.status.queue.is_empty()).await
}

fn condition(view: &SessionView) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == ConditionType::WorkflowReady)
}

/// Waits until the workflow is not in force for this reason.
async fn refused(session: &Session, reason: &str) -> SessionView {
    let is_it = |view: &SessionView| {
        condition(view).is_some_and(|found| found.status == ConditionStatus::False && found.reason == reason)
    };
    session.wait_for(reason, is_it).await
}

/// Returns all prompts of the session, in the order in which their turns began.
fn prompts(session: &Session) -> Vec<String> {
    let events = session.journal();
    let text = |turn: &agentd_api::TurnId| {
        events.iter().find_map(|event| match &event.body {
            Body::TurnQueued(queued) if queued.turn == *turn => Some(queued.prompt.clone()),
            _ => None,
        })
    };
    let started = |body: &Body| if let Body::TurnStarted(started) = body { text(&started.turn) } else { None };
    events.iter().filter_map(|event| started(&event.body)).collect()
}

/// Returns the directory and the further directories of the open conversation.
async fn opened(session: &Session) -> (PathBuf, Vec<PathBuf>) {
    let Turn { text, .. } = session.turn("opened").await;
    let (directory, further): (PathBuf, Option<Vec<PathBuf>>) = serde_json::from_str(&text).unwrap();
    (directory, further.unwrap_or_default())
}

/// Returns what the agent remembers of its conversation.
async fn remembered(session: &Session) -> Vec<String> {
    serde_json::from_str(&session.turn("remember").await.text).unwrap()
}
