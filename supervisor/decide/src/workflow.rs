//! The workflow of a session: in force or requested, with the instructions for its agent. Pure.
//!
//! A workflow comes into force by the record `workflow.changed`, between two turns. The record ends a running agent,
//! and the next launch starts one in the workflow's directory, with the same conversation. A startup prompt is in one
//! batch with the record, so it is queued once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::event::{Continuation, LaunchReason, LaunchStarted, OpenedBy, TurnQueued};
use agentd_api::reason;
use agentd_api::repository::RepositoryState;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::workflow::{ActiveWorkflow, WorkflowChanged, WorkflowFailed, WorkflowSpec, WorkflowView, in_force};
use agentd_api::{Body, TurnId};
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::next::{Facts, condition};
use crate::state::{Ended, Opening, Run, Running, State};

/// The workflow of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workflow {
    /// The workflow of the next launch.
    active: Option<ActiveWorkflow>,
    /// The workflow of the running agent.
    launched: Option<ActiveWorkflow>,
    /// Why the requested workflow is not in force, or why a new version of its description is not.
    failure: Option<WorkflowFailed>,
    /// The workflow whose instructions the conversation has.
    told: Option<ToldWorkflow>,
    /// Content of the script's workflow in the last environment: its description's digest.
    environment: Option<String>,
    /// The workflow whose startup prompt was sent last.
    started: Option<WorkflowSpec>,
}

/// A workflow whose instructions the agent has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ToldWorkflow {
    name: String,
    digest: String,
}

impl Workflow {
    pub fn active(&self) -> Option<&ActiveWorkflow> {
        self.active.as_ref()
    }

    pub fn failure(&self) -> Option<&WorkflowFailed> {
        self.failure.as_ref()
    }

    /// Applies a record. Returns whether a running agent has another workflow now.
    pub(crate) fn changed(&mut self, changed: &WorkflowChanged) -> bool {
        self.active.clone_from(&changed.workflow);
        self.failure = None;
        let place =
            |active: &Option<ActiveWorkflow>| active.as_ref().map(|one| (one.spec.clone(), one.directory.clone()));
        place(&self.active) != place(&self.launched)
    }

    pub(crate) fn failed(&mut self, failed: &WorkflowFailed) {
        self.failure = Some(failed.clone());
    }

    /// Applies a changed specification: another workflow has not failed yet.
    pub(crate) fn requested(&mut self, spec: &SessionSpec) {
        self.failure.take_if(|failure| spec.workflow.as_ref() != Some(&failure.spec));
        if spec.workflow.is_none() {
            self.started = None;
        }
    }

    /// Takes over the workflow of the conversation that the session continues.
    pub(crate) fn created(&mut self, continues: &Continuation) {
        let Some(active) = continues.workflow.as_deref() else { return };
        self.told = told(active);
        self.started = Some(active.spec.clone());
        self.active = Some(active.clone());
    }

    pub(crate) fn environment_built(&mut self) {
        self.environment = self.active.as_ref().map(|active| active.digest.clone());
    }

    /// Reports whether the last environment was built for another workflow than the next launch has.
    pub fn has_another_environment(&self) -> bool {
        self.environment.as_ref() != self.active.as_ref().map(|active| &active.digest)
    }

    pub(crate) fn agent_started(&mut self) {
        self.launched.clone_from(&self.active);
    }

    pub(crate) fn agent_exited(&mut self) {
        self.launched = None;
    }

    pub(crate) fn opened(&mut self, by: OpenedBy) {
        if matches!(by, OpenedBy::New | OpenedBy::NewAfterLoss) {
            self.told = None;
        }
    }

    pub(crate) fn turn_started(&mut self) {
        self.told = self.active.as_ref().and_then(told);
    }

    pub(crate) fn turn_queued(&mut self, queued: &TurnQueued) {
        if queued.is_startup {
            self.started = self.active.as_ref().map(|active| active.spec.clone());
        }
    }

    /// Reports whether the requested workflow, or none, is to come into force.
    fn is_due(&self, spec: &SessionSpec) -> bool {
        spec.workflow.as_ref() != self.active.as_ref().map(|active| &active.spec)
    }

    /// Returns the directory in which the agent of the next launch works.
    pub fn directory<'a>(&'a self, spec: &'a SessionSpec) -> &'a Path {
        self.active.as_ref().map_or(&spec.directory, |active| &active.directory)
    }

    /// Returns the specification with what the workflow needs. It has the repositories of workflows in use, so that
    /// they are made, and stay until the agent has left them.
    pub fn in_force(&self, spec: &Arc<SessionSpec>) -> Arc<SessionSpec> {
        let in_use: Vec<&WorkflowSpec> =
            [&self.active, &self.launched].into_iter().flatten().map(|active| &active.spec).collect();
        if spec.workflow.is_none() && in_use.is_empty() {
            return Arc::clone(spec);
        }
        Arc::new(in_force(spec, self.active.as_ref(), &in_use))
    }

    /// Returns the workflow for clients. `None` if the session has and requests none.
    pub fn view(&self) -> Option<Box<WorkflowView>> {
        let view = WorkflowView { active: self.active.clone(), failure: self.failure.clone() };
        (view != WorkflowView::default()).then(|| Box::new(view))
    }
}

fn told(active: &ActiveWorkflow) -> Option<ToldWorkflow> {
    active.description.system_prompt.as_ref()?;
    Some(ToldWorkflow { name: active.description.name.clone(), digest: active.digest.clone() })
}

/// Returns the directory in which the conversation is opened, and the further directories of the session and of its
/// workflow.
pub(crate) fn directories(state: &State, running: &Running, spec: &SessionSpec) -> (PathBuf, Vec<PathBuf>) {
    let (directory, of_workflow) = of_workflow(state, running, spec);
    let mut further: Vec<PathBuf> = Vec::new();
    for path in spec.directories.iter().chain(&of_workflow) {
        if *path != directory && !further.contains(path) {
            further.push(path.clone());
        }
    }
    (directory, further)
}

/// Returns the directory in which the conversation is opened, and the further directories that the workflow needs.
/// A conversation that only the directory of its creation has is opened there.
fn of_workflow(state: &State, running: &Running, spec: &SessionSpec) -> (PathBuf, Vec<PathBuf>) {
    let created = state.conversation_directory.as_ref().filter(|_| !running.fresh && is_bound(state, running));
    let Some(active) = &state.workflow.launched else {
        return (created.unwrap_or(&spec.directory).clone(), Vec::new());
    };
    let directory = created.unwrap_or(&active.directory).clone();
    let mut further = vec![spec.directory.clone(), active.directory.clone()];
    further
        .extend(spec.repos.iter().filter_map(|one| state.repositories.known(&one.name())).map(|one| one.place.clone()));
    further.extend(active.description.paths.iter().map(|path| active.directory.join(path)));
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in further {
        // A directory below another one is not listed: the agent may read it already.
        if path != directory && !path.starts_with(&directory) && !kept.contains(&path) {
            kept.push(path);
        }
    }
    (directory, kept)
}

/// Returns the directory to which relative paths of the agent refer. `None` if its process works in another directory
/// than its conversation.
pub(crate) fn certain_directory(state: &State, running: &Running, spec: &SessionSpec) -> Option<PathBuf> {
    let (directory, _) = of_workflow(state, running, spec);
    let process = state.workflow.launched.as_ref().map_or(&spec.directory, |active| &active.directory);
    (directory == *process).then_some(directory)
}

/// Reports whether the agent has the conversation only in the directory of its creation.
///
/// opencode opens it elsewhere too, but then it loses the answers to permission requests, and the turn does not end
/// (1.18.33).
fn is_bound(state: &State, running: &Running) -> bool {
    let is_opencode = state.agent.as_ref().is_some_and(|agent| agent.name.eq_ignore_ascii_case("opencode"));
    running.is_second_attempt || is_opencode
}

/// Reports whether the conversation is opened once more, in the directory in which it was created.
pub(crate) fn is_tried_again(state: &State, running: &Running, spec: &SessionSpec) -> bool {
    let (directory, _) = of_workflow(state, running, spec);
    state.conversation_directory.as_ref().is_some_and(|created| *created != directory)
}

/// Returns what the next prompt tells the agent about its workflow.
pub(crate) fn instructions(state: &State) -> Option<String> {
    let Workflow { active, told: known, .. } = &state.workflow;
    let now = active.as_ref().and_then(told);
    if now == *known {
        return None;
    }
    match (active.as_ref().filter(|_| now.is_some()), known) {
        (Some(active), _) => {
            let text = active.description.system_prompt.as_deref().unwrap_or_default();
            let name = &active.description.name;
            let place = active.directory.display();
            Some(format!(
                "Instructions of the workflow {name:?}, which this session follows from now on. Its directory is \
                 {place}.\n\n{text}"
            ))
        }
        (None, Some(before)) => Some(format!(
            "This session does not follow the workflow {:?} any more: its instructions no longer apply.",
            before.name
        )),
        (None, None) => None,
    }
}

/// Returns the records by which a workflow comes into force. A startup prompt is sent unless it was already sent for
/// this workflow.
pub fn activation(state: &State, active: ActiveWorkflow) -> Batch {
    let is_new = state.workflow.started.as_ref() != Some(&active.spec);
    let prompt = active.description.startup_prompt.clone().filter(|_| is_new);
    let batch = Batch::of(Body::WorkflowChanged(WorkflowChanged { workflow: Some(active) }));
    match prompt {
        Some(prompt) => {
            let turn = TurnId::numbered(state.next_turn);
            let queued = TurnQueued {
                turn,
                prompt,
                parts: Vec::new(),
                schema: None,
                is_startup: true,
                key: None,
                requester: None,
            };
            batch.record(Body::TurnQueued(queued))
        }
        None => batch,
    }
}

/// Returns the requested workflow that a running session examines next: between two turns, and once its repository is
/// there.
pub fn next_examination(state: &State, spec: &SessionSpec) -> Option<WorkflowSpec> {
    let Run::Running(running) = &state.run else { return None };
    let is_free = running.ending.is_none() && running.turn.is_none() && running.opening == Opening::Open;
    let wanted = spec.workflow.as_ref().filter(|_| is_free && state.workflow.is_due(spec))?;
    let is_there = |name: String| {
        state.repositories.known(&name).is_some_and(|known| {
            known.state == RepositoryState::Ready && known.spec.branch == wanted.branch && known.spec.url == wanted.url
        })
    };
    wanted.repository().is_none_or(|repository| is_there(repository.name())).then(|| wanted.clone())
}

/// Reports whether the next turn waits for the workflow. A workflow that failed delays no turn.
pub(crate) fn holds_turn(state: &State, spec: &SessionSpec) -> bool {
    state.workflow.is_due(spec) && state.workflow.failure.is_none()
}

/// Returns the records about a workflow that need no work: its end, the failure of its repository, and the condition.
pub(crate) fn step(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let workflow = &state.workflow;
    let spec = facts.spec;
    let is_between_turns = match &state.run {
        Run::Preparing(preparing) => !preparing.stop && state.keeper.is_none(),
        Run::Running(running) => running.ending.is_none() && running.turn.is_none() && running.opening == Opening::Open,
        Run::Ended(_) => return None,
    };
    if spec.workflow.is_none() && workflow.active.is_some() && is_between_turns {
        return Some(Batch::of(Body::WorkflowChanged(WorkflowChanged { workflow: None })));
    }
    if let Some(failed) = repository_failure(state, spec).filter(|failed| workflow.failure.as_ref() != Some(failed)) {
        return Some(Batch::of(Body::WorkflowFailed(failed)));
    }
    report(state, facts)
}

/// Returns the failure of the repository that the requested workflow needs.
fn repository_failure(state: &State, spec: &SessionSpec) -> Option<WorkflowFailed> {
    let wanted = spec.workflow.as_ref().filter(|_| state.workflow.is_due(spec))?;
    let known = state.repositories.known(&wanted.repository()?.name())?;
    (known.state == RepositoryState::Failed).then(|| WorkflowFailed {
        spec: wanted.clone(),
        reason: known.reason.clone().unwrap_or_else(|| reason::CLONE_FAILED.to_owned()),
        message: known.message.clone().unwrap_or_else(|| "its repository could not be cloned".to_owned()),
        to_approve: Vec::new(),
    })
}

/// Returns the record of the condition `WorkflowReady` if the condition is not recorded yet.
fn report(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let kind = ConditionType::WorkflowReady;
    let workflow = &state.workflow;
    let wanted = facts.spec.workflow.as_ref()?;
    let (status, reason, message) = match (&workflow.active, &workflow.failure) {
        (Some(active), failure) if active.spec == *wanted => {
            let mut message = in_force_message(state, active, facts.spec);
            if let Some(failure) = failure {
                message =
                    format!("{message}; its description changed, and the new one is not in force: {}", failure.message);
            }
            (ConditionStatus::True, reason::IN_FORCE, message)
        }
        (_, Some(failure)) => {
            (ConditionStatus::False, failure.reason.as_str(), format!("{wanted}: {}", failure.message))
        }
        (_, None) => (ConditionStatus::Unknown, reason::WORKING, format!("{wanted} is prepared")),
    };
    let is_said = state
        .condition(kind)
        .is_some_and(|said| said.status == status && said.reason == reason && said.message == message);
    (!is_said).then(|| Batch::of(condition(state, facts, kind, status, reason, message)))
}

/// Describes a workflow in force, and which further directories its agent has.
fn in_force_message(state: &State, active: &ActiveWorkflow, spec: &SessionSpec) -> String {
    let message = format!("{:?} in {}", active.description.name, active.directory.display());
    let Run::Running(running) = &state.run else { return message };
    if running.opening != Opening::Open || state.workflow.launched.is_none() {
        return message;
    }
    let (directory, further) = of_workflow(state, running, spec);
    let place = if directory == active.directory {
        String::new()
    } else {
        format!("; the agent continues its conversation only in {}", directory.display())
    };
    let list = || further.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let others = match (further.is_empty(), running.capabilities.directories) {
        (true, _) => String::new(),
        (false, true) => format!("; further directories: {}", list()),
        (false, false) => format!("; the agent takes no further directories, so it does not know of {}", list()),
    };
    format!("{message}{place}{others}")
}

/// Returns the launch that follows the end of an agent whose workflow changed.
pub(crate) fn relaunch(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    if !matches!(state.run, Run::Ended(Ended::Switching)) || facts.drained {
        return None;
    }
    // The caller of the launch before agreed to its terms for the work of this session.
    let (forced_by, degraded_by) = (state.forced_by.clone(), state.degraded_by.clone());
    let launch = state.launches + 1;
    let started = LaunchStarted { forced_by, degraded_by, ..LaunchStarted::new(launch, LaunchReason::Workflow, false) };
    Some(Batch::of(Body::LaunchStarted(started)))
}
