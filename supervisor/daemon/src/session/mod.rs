//! Sessions: a handle for each, one driver task behind it, and the registry that knows them all.
//!
//! The handle is cheap to clone, and a session at rest is a handle and no task. What is asked goes to the driver over a bounded channel and is answered by a oneshot; what is
//! shown comes from a watch that the driver fills, so that a list of a thousand sessions waits for none of them.

mod adoption;
mod aside;
mod batch;
mod bringup;
mod cleanup;
mod clock;
mod compiling;
mod creation;
mod current;
mod dialogue;
mod document;
mod drain;
mod driver;
mod ending;
mod environment;
mod exit;
mod fold;
mod follow;
mod guest;
mod journal_port;
mod launching;
mod mending;
mod needs;
mod next;
mod note;
mod patient;
mod permission;
mod recheck;
mod recording;
mod refresh;
mod registry;
mod resting;
mod rules;
mod silent;
mod state;
mod tally;
#[cfg(test)]
mod tests;
mod tools;
mod validation;
mod verdict;
mod waits;
mod writable;

use std::path::PathBuf;
use std::sync::Arc;

use agentd_api::prerequisite::CheckReport;
use agentd_api::session::{Phase, SessionStatus, SessionView, TurnView};
use agentd_api::{Code, Problem, SessionId};
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use document::VERSION as DOCUMENT_VERSION;
pub(crate) use driver::Done;
pub(crate) use environment::{build_now, kept};
pub(crate) use permission::Rule;
pub(crate) use recheck::recheck;
pub(crate) use registry::{Parent, Sessions};
pub(crate) use rules::{Command, LaunchTerms};
pub(crate) use tally::Tally;
pub(crate) use tools::missing as missing_tools;
pub(crate) use validation::validate;

use document::Document;
use driver::Ask;
use resting::Resting;
use state::{Ended, Run, State};

/// One session, as everybody but its driver sees it.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    id: SessionId,
    directory: PathBuf,
    /// The `Idempotency-Key` it was made with.
    key: Option<String>,
    /// Boxed, since a channel has room for its messages before there is one.
    asks: mpsc::Sender<Box<Ask>>,
    driver: Arc<Resting>,
    published: watch::Receiver<Arc<Published>>,
}

/// What a driver shows: only what has been applied.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) view: SessionView,
    /// The seq that `session.json` has the state of: no record behind it may be removed.
    remembered: u64,
    /// Whether the driver has read the journal to its end since the daemon started: before that the view is the one that was
    /// remembered.
    current: bool,
    /// Its journal cannot be read, so its driver knows nothing of its agent.
    set_aside: bool,
}

impl Published {
    fn new(view: SessionView, remembered: u64, current: bool) -> Self {
        Self { view, remembered, current, set_aside: false }
    }

    fn broken(document: &Document, state: &State, reason: String) -> Self {
        let mut view = view(document, state, (Phase::Failed, None));
        view.status.message = Some(reason);
        Self { view, remembered: 0, current: true, set_aside: true }
    }
}

impl Session {
    pub(crate) fn id(&self) -> &SessionId {
        &self.id
    }

    /// Where its journal is.
    pub(crate) fn directory(&self) -> &PathBuf {
        &self.directory
    }

    pub(crate) fn view(&self) -> SessionView {
        self.published.borrow().view.clone()
    }

    /// Whether an agent may run that a removal would leave behind.
    pub(crate) fn may_run(&self) -> bool {
        let published = self.published.borrow();
        published.set_aside || !published.view.status.phase.is_over()
    }

    /// What is shown, from now on; ends when the session is removed or the daemon ends.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Published>> {
        self.published.clone()
    }

    /// Waits until what is shown is what is, and not what an earlier daemon remembered.
    pub(crate) async fn is_current(&self) {
        let mut published = self.watch();
        let _ = published.wait_for(|published| published.current).await;
    }

    /// Asks the driver, and waits for what comes of it.
    pub(crate) async fn ask(&self, command: Command) -> Result<Done, Problem> {
        let (reply, answer) = oneshot::channel();
        self.driver.wake();
        self.asks.send(Box::new(Ask::Do { command, reply })).await.map_err(|_| going())?;
        answer.await.map_err(|_| going())?
    }

    /// Tells the driver what was found of its prerequisites; `false` where it has no ear now.
    fn found(&self, launch: u64, reports: Vec<CheckReport>, anew: bool) -> bool {
        self.asks.try_send(Box::new(Ask::Found { launch, reports, anew })).is_ok()
    }

    async fn release(&self) -> Result<(), Problem> {
        let (reply, answer) = oneshot::channel();
        self.driver.wake();
        self.asks.send(Box::new(Ask::Release { reply })).await.map_err(|_| going())?;
        answer.await.map_err(|_| going())?
    }

    /// Waits until `wanted` says so of what is shown.
    pub(crate) async fn wait_until(&self, wanted: impl Fn(&SessionView) -> bool) {
        let mut published = self.watch();
        // An end of the watch is an end of the waiting.
        let _ = published.wait_for(|published| wanted(&published.view)).await;
    }
}

/// The daemon is ending, or the session was removed a moment ago.
fn going() -> Problem {
    Problem::new(Code::TooBusy, "the session is being let go: agentd is ending, or the session was removed")
        .hint("try again in a moment")
}

/// A session as it is shown; with its phase, and the time of the restart that it waits for.
fn view(document: &Document, state: &State, (phase, next_restart_at): (Phase, Option<Timestamp>)) -> SessionView {
    let (message, agent_pid, turn) = match &state.run {
        Run::Ended(Ended::Failed(message)) => (Some(message.clone()), None, None),
        Run::Ended(_) | Run::Preparing(_) => (None, None, None),
        Run::Running(running) => {
            let turn = running.turn.as_ref().map(|turn| TurnView {
                id: turn.id.clone(),
                prompt: turn.prompt.clone(),
                silent: turn.silent,
            });
            (None, Some(running.pid), turn)
        }
    };
    let keeper = state.keeper.filter(|_| !matches!(state.run, Run::Ended(_)));
    SessionView {
        id: document.id.clone(),
        generation: document.generation,
        created: document.created,
        parent: document.parent.clone(),
        spec: document.spec.clone(),
        status: SessionStatus {
            phase,
            message,
            next_restart_at,
            observed_generation: document.generation,
            conditions: state.conditions.clone(),
            agent: state.agent.clone(),
            conversation: state.conversation.clone(),
            isolation: match &state.run {
                Run::Running(running) => Some(running.isolation.clone()),
                Run::Ended(_) | Run::Preparing(_) => None,
            },
            agent_pid,
            keeper_pid: keeper.map(|keeper| keeper.pid),
            keeper_protocol: keeper.map(|keeper| keeper.protocol),
            launches: state.launches,
            turn,
            queue: state
                .queue
                .iter()
                .map(|queued| TurnView { id: queued.id.clone(), prompt: queued.prompt.clone(), silent: false })
                .collect(),
            permissions: state.permissions.iter().map(|open| open.request.clone()).collect(),
            last_seq: state.seq,
            updated: state.updated,
        },
    }
}
