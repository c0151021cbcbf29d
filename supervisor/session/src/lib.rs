//! Sessions: a handle for each, one driver task behind it, and the registry of all sessions.
//!
//! A handle is cheap to clone. A session at rest has a handle and no task. Requests go to the driver over a
//! bounded channel, and the driver answers each over a oneshot channel. Views come from a watch channel that the
//! driver fills, so a list of a thousand sessions waits for no driver.

mod agent_look;
mod agent_start;
pub mod answer;
mod artifacts;
mod aside;
mod bringup;
pub mod changes;
mod cleanup;
mod compiling;
pub mod configuration_mistakes;
pub mod content;
mod context;
mod continuation;
mod contract;
mod creation;
pub mod daemon;
mod document;
mod drain;
pub mod draining;
mod drive;
mod ending;
mod environment;
mod facts;
mod follow;
pub mod generation;
pub mod isolation;
mod journal_port;
mod keeper_search;
mod keyed_locks;
mod known_agent;
pub mod launch;
mod launch_plan;
mod listing;
mod logins;
mod mcp;
mod measure;
mod needs;
mod note;
mod patient;
pub mod place;
mod proposal;
mod prune;
pub mod pulse;
mod recheck;
mod registry;
mod repositories;
mod resting;
pub mod schedules;
mod sha256;
mod spec;
mod stale_list;
pub mod staleness;
mod tally;
mod tools;
mod validation;
mod view_changes;
pub mod warm;
mod workflow;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use agentd_api::compatibility::Compatibility;
use agentd_api::completion::Outcome;
use agentd_api::context::{Context, ContextView};
use agentd_api::options::OptionsView;
use agentd_api::place::PlaceView;
use agentd_api::prerequisite::CheckReport;
use agentd_api::prompt::shown;
use agentd_api::session::{Phase, SessionSpec, SessionStatus, SessionView, TurnView};
use agentd_api::{ByteString, Code, Problem, SessionId};
use agentd_catalogue::conversation_directory;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

pub use agent_look::{AgentLook, agent_look};
pub use agent_start::agent_start;
pub use agentd_decide::context::warnings as context_warnings;
pub use agentd_decide::rules::{Command, LaunchTerms};
pub use context::missing_files;
use document::VERSION as DOCUMENT_VERSION;
pub use drive::CommandResult;
pub use environment::{build_now, kept};
pub use logins::refused_logins;
pub use measure::{Measure, show_sessions};
pub use note::preview as preview_note;
pub use proposal::{path_of as proposal_path, propose};
pub use recheck::recheck;
pub use registry::{ParentSession, Sessions};
pub use spec::ExpectedGeneration;
pub use tally::SessionCounts;
pub use tools::missing as missing_tools;
pub use validation::validate;

use agentd_decide::facts::Baseline;
use agentd_decide::options;
use agentd_decide::state::{Ended, Run, State};
use document::Document;
use drive::Request;
use resting::Resting;

/// Returns the versions of files and protocols that this build can take over from another build.
pub fn compatibility() -> Compatibility {
    Compatibility {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        keeper_protocols: vec![agentd_keeper::protocol::PROTOCOL],
        session_documents: vec![DOCUMENT_VERSION],
        trust_records: agentd_environment::TRUST_VERSIONS.to_vec(),
        environments: agentd_environment::ENVIRONMENT_VERSIONS.to_vec(),
    }
}

/// Handle of one session. All code outside of the driver uses a session by its handle.
#[derive(Debug, Clone)]
pub struct Session {
    id: SessionId,
    directory: PathBuf,
    /// The `Idempotency-Key` of the request that created the session.
    key: Option<String>,
    /// Channel to the driver. Requests are boxed, since a channel reserves room for its messages in advance.
    inbox: mpsc::Sender<Box<Request>>,
    driver: Arc<Resting>,
    published: watch::Receiver<Arc<Published>>,
    /// Held by the change of the specification that is under way.
    changing: Arc<tokio::sync::Mutex<()>>,
}

/// The last item with named fields as JSON, behind the names.
type NamedItem = (Arc<str>, Box<[u8]>);

/// State that a driver publishes. It contains only applied records.
#[derive(Debug)]
pub struct Published {
    pub view: Arc<SessionView>,
    /// Number of the publication; 0 before the first one.
    number: u64,
    /// The item of a list as JSON.
    summary: OnceLock<Box<[u8]>>,
    item: Mutex<Option<NamedItem>>,
    /// Sequence number of the state in `session.json`. Records after this number must not be removed.
    remembered: u64,
    /// Whether the driver has read the whole journal since the daemon started. Until then the view comes from
    /// `session.json`.
    current: bool,
    /// Whether the session is set aside: its journal cannot be read, so the state of its agent is unknown.
    set_aside: bool,
    /// State in which the agent last worked.
    baseline: Arc<Baseline>,
    /// The specification as the request of the creation had it.
    requested: Arc<SessionSpec>,
}

impl Published {
    fn new(view: SessionView, document: &Document, state: &State, remembered: u64, current: bool) -> Self {
        let (baseline, requested) = (Arc::clone(&state.facts.baseline), Arc::clone(document.requested()));
        let (view, number, summary, item) = (Arc::new(view), 0, OnceLock::new(), Mutex::default());
        Self { view, number, summary, item, remembered, current, set_aside: false, baseline, requested }
    }

    fn unreadable(document: &Document, state: &State, reason: String) -> Self {
        let mut view = view(document, state, (Phase::Failed, None));
        view.status.message = Some(reason);
        Self { set_aside: true, ..Self::new(view, document, state, 0, true) }
    }
}

impl Session {
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Returns the directory that contains the journal.
    pub fn directory(&self) -> &PathBuf {
        &self.directory
    }

    /// Returns the published view, and does not copy it.
    pub fn view(&self) -> Arc<SessionView> {
        Arc::clone(&self.published.borrow().view)
    }

    /// Returns the context in force.
    pub fn context(&self) -> Context {
        self.view().status.context.as_ref().map(Context::from).unwrap_or_default()
    }

    /// Returns the published view, and the state in which the agent last worked.
    fn view_and_baseline(&self) -> (Arc<SessionView>, Arc<Baseline>) {
        let published = self.published.borrow();
        (Arc::clone(&published.view), Arc::clone(&published.baseline))
    }

    /// Reports whether the session may still have an agent, which a removal would leave behind.
    pub fn may_run(&self) -> bool {
        let published = self.published.borrow();
        published.set_aside || !published.view.status.phase.is_over()
    }

    /// Reports whether the session is set aside, because its journal cannot be read.
    fn is_set_aside(&self) -> bool {
        self.published.borrow().set_aside
    }

    /// Returns a receiver of the published states. It closes when the session is removed or the daemon ends.
    pub fn watch(&self) -> watch::Receiver<Arc<Published>> {
        self.published.clone()
    }

    /// Returns the published view, unless the view comes from `session.json` and may be outdated.
    pub fn current_view(&self) -> Option<Arc<SessionView>> {
        let published = self.published.borrow();
        published.current.then(|| Arc::clone(&published.view))
    }

    /// Waits until the driver has read the whole journal and the published state is up to date.
    #[boxed]
    pub async fn is_current(&self) {
        let mut published = self.watch();
        let _ = published.wait_for(|published| published.current).await;
    }

    /// Sends a command to the driver and waits for the result.
    #[boxed]
    pub async fn ask(&self, command: Command) -> Result<CommandResult, Problem> {
        let (reply, answer) = oneshot::channel();
        self.driver.wake();
        self.inbox
            .send(Box::new(Request::Command { command, span: tracing::Span::current(), reply }))
            .await
            .map_err(|_| unavailable())?;
        answer.await.map_err(|_| unavailable())?
    }

    /// Sends the driver new check reports of its prerequisites. Returns `false` when its channel is full or
    /// closed.
    fn found(&self, launch: u64, reports: Vec<CheckReport>, is_redeclared: bool) -> bool {
        self.inbox.try_send(Box::new(Request::Reports { launch, reports, is_redeclared })).is_ok()
    }

    /// Returns the options that the running agent offers.
    ///
    /// # Errors
    ///
    /// The session is not available.
    pub async fn options(&self) -> Result<OptionsView, Problem> {
        let state = self.state().await?;
        let options = match &state.run {
            Run::Running(running) => running.options.view(),
            Run::Ended(_) | Run::Preparing(_) => Vec::new(),
        };
        Ok(OptionsView { options })
    }

    /// Returns the state that the session has folded from its journal.
    async fn state(&self) -> Result<Box<State>, Problem> {
        if let Some(state) = self.driver.state() {
            return Ok(state);
        }
        let (reply, answer) = oneshot::channel();
        self.driver.wake();
        self.inbox.send(Box::new(Request::State { reply })).await.map_err(|_| unavailable())?;
        answer.await.map_err(|_| unavailable())?
    }

    async fn release(&self, seen: Option<u64>) -> Result<(), Problem> {
        let (reply, answer) = oneshot::channel();
        self.driver.wake();
        self.inbox.send(Box::new(Request::Release { seen, reply })).await.map_err(|_| unavailable())?;
        answer.await.map_err(|_| unavailable())?
    }

    /// Waits until `wanted` returns true for the published view, or until the session is gone.
    pub async fn wait_until(&self, wanted: impl Fn(&SessionView) -> bool) {
        let mut published = self.watch();
        // A closed watch channel ends the wait as well.
        let _ = published.wait_for(|published| wanted(&published.view)).await;
    }
}

/// Returns the problem for a driver that takes no requests: agentd is ending, or the session was just removed.
fn unavailable() -> Problem {
    Problem::new(Code::TooBusy, "the session is not available: agentd is ending, or the session was removed")
        .hint("try again in a moment")
}

/// Returns the time at which the session completed.
fn completed_at(state: &State) -> Option<Timestamp> {
    let done = state.completion.done.as_ref().filter(|done| done.outcome == Outcome::Completed)?;
    Some(done.completed_at)
}

/// Returns the current value of the agent's mode or model. For an agent that does not run, the value that was set last.
fn option_value(state: &State, wish: &str) -> Option<String> {
    let offered = match &state.run {
        Run::Running(running) => running.options.current(wish),
        Run::Ended(_) | Run::Preparing(_) => None,
    };
    offered.or_else(|| state.changed_options.of(wish)).map(str::to_owned)
}

/// Returns the directories below which a known agent keeps the conversation.
fn conversation_directories(state: &State) -> Vec<PathBuf> {
    let Some(home) = state.conversation_home.as_deref().map(Path::new) else { return Vec::new() };
    let directory = |(variable, value): (&String, &Option<ByteString>)| {
        conversation_directory(variable, value.as_ref().and_then(ByteString::as_str), home)
    };
    let mut directories: Vec<PathBuf> = state.conversation_places.iter().filter_map(directory).collect();
    directories.dedup();
    directories
}

/// Builds the view of a session from its state, its phase and the time of its next restart.
fn view(document: &Document, state: &State, (phase, next_restart_at): (Phase, Option<Timestamp>)) -> SessionView {
    let (message, agent_pid, turn) = match &state.run {
        Run::Ended(Ended::Failed(message)) => (Some(message.clone()), None, None),
        Run::Ended(_) | Run::Preparing(_) => (None, None, None),
        Run::Running(running) => {
            let turn = running.turn.as_ref().map(|turn| TurnView {
                id: turn.id.clone(),
                prompt: shown(&turn.prompt, &turn.parts),
                silent: turn.silent,
            });
            (None, Some(running.pid), turn)
        }
    };
    let ready = state.ready(document.generation, phase, message.as_deref());
    let attention = state.attention(document.generation, phase);
    let keeper = state.keeper.filter(|_| !matches!(state.run, Run::Ended(_)));
    SessionView {
        id: document.id.clone(),
        generation: document.generation,
        created: document.created,
        parent: document.parent.clone(),
        spec: Arc::clone(&document.spec),
        status: SessionStatus {
            place: state.placed().map(|placed| PlaceView {
                name: placed.place.clone(),
                state: placed.state,
                reason: placed.reason.clone(),
                message: placed.message.clone(),
                job: placed.job.clone(),
                host: placed.host.clone(),
            }),
            phase,
            message,
            next_restart_at,
            limited_until: state.limited().filter(|_| phase == Phase::Limited).map(|limit| limit.until),
            observed_generation: document.generation,
            conditions: state.conditions.iter().cloned().chain(attention).chain([ready]).collect(),
            agent: state.agent.clone(),
            conversation: state.conversation.clone(),
            deletes_conversations: state.can_delete,
            conversation_directories: conversation_directories(state),
            isolation: match &state.run {
                Run::Running(running) => Some(running.isolation.clone()),
                Run::Ended(_) | Run::Preparing(_) => None,
            },
            mode: option_value(state, options::MODE),
            model: option_value(state, options::MODEL),
            mcp: state.mcp.clone(),
            login_methods: state.login_methods.clone(),
            agent_pid,
            keeper_pid: keeper.map(|keeper| keeper.pid),
            keeper_protocol: keeper.map(|keeper| keeper.protocol),
            title: state.title.shown().map(str::to_owned),
            hint: state.hint.clone(),
            context: (!state.context.is_empty()).then(|| ContextView::new(&state.context, &state.context_missing)),
            progress: state.progress.clone(),
            script_proposal: state.proposal.clone(),
            last_observed_at: state.observed,
            idle_since: state.idle_since(),
            started_at: state.times.started,
            ended_at: state.times.ended,
            completed_at: completed_at(state),
            launches: state.launches,
            interactive: !state.awaits_completion(),
            completion: state.completion.done.clone(),
            cost: state.completion.cost.clone(),
            usage: state.completion.usage,
            active_seconds: state.completion.active.spent / 1000,
            repos: state.repositories.views(&state.workflow.in_force(&document.spec)),
            workflow: state.workflow.view(),
            degraded: state.degraded.clone(),
            turn,
            queue: state
                .queue
                .iter()
                .map(|queued| {
                    let prompt = shown(&queued.prompt, &queued.parts);
                    TurnView { id: queued.id.clone(), prompt, silent: false }
                })
                .collect(),
            permissions: state.permissions.iter().map(|open| open.request.clone()).collect(),
            facts: state.facts.last.clone(),
            staleness: state.staleness.findings.clone(),
            last_seq: state.seq,
            updated: state.updated,
        },
    }
}
