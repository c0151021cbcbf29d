//! Agents that are kept warm: started and initialised before their session is created.
//!
//! ```text
//!   a launch succeeded ─► starting ─► ready ─► taken by a new session
//!                            │          │
//!                            └──────────┴────► ended: idle, reload, drain, exit, end of the daemon
//! ```
//!
//! A warm agent has the id of its future session. The session has no directory, no journal and no name yet. The new
//! session gets this id and is launched like every session. Its keeper hands the agent over only if the launch
//! would start an equal process ([`agentd_keeper::protocol::LaunchRecord::starts_like`]); otherwise it starts another.
//!
//! This module chooses the agents to start and to end. It does not decide about a launch.

mod prepare;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agentd_api::AgentName;
use agentd_api::agents::WarmView;
use agentd_api::environment::RunnerNames;
use agentd_api::session::{Phase, SessionSpec};
use agentd_config::Agent;
use async_recursion::async_recursion as boxed;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::generation::{Generation, Generations};
use crate::isolation;
use crate::launch::WarmKeeper;
use crate::{Session, Sessions};

/// Maximum number of launches that wait to be followed by the start of a warm agent. Further ones are not followed.
const WISHES: usize = 16;

/// The agents that are kept warm. Shared.
#[derive(Debug)]
pub struct WarmAgents {
    state: Mutex<WarmState>,
    wishes: mpsc::Sender<Wish>,
    inbox: Mutex<Option<mpsc::Receiver<Wish>>>,
}

#[derive(Debug, Default)]
struct WarmState {
    /// Agents that wait for a session, the oldest first.
    ready: Vec<WarmAgent>,
    /// Number of agents that are being started.
    starting: BTreeMap<AgentName, usize>,
    next: u64,
}

/// An agent that waits for a session.
#[derive(Debug)]
struct WarmAgent {
    number: u64,
    key: Arc<SessionSpec>,
    /// The agent's entry in the configuration when it was started.
    settings: Agent,
    keeper: WarmKeeper,
}

/// A launched session, after which an agent like its own is started.
#[derive(Debug)]
struct Wish {
    session: Session,
    name: AgentName,
    key: Arc<SessionSpec>,
}

impl Default for WarmAgents {
    fn default() -> Self {
        let (wishes, inbox) = mpsc::channel(WISHES);
        Self { state: Mutex::default(), wishes, inbox: Mutex::new(Some(inbox)) }
    }
}

/// Returns the agent of a specification, its entry, and the part of the specification that its process depends on.
/// Returns `None` if no agent is kept warm for such a session.
fn wanted<'a>(generation: &'a Generation, spec: &SessionSpec) -> Option<(AgentName, &'a Agent, SessionSpec)> {
    let settings = generation.agent(spec).filter(|agent| agent.warm > 0)?;
    let has_own_parts = spec.command.is_some()
        || spec.env_setup.is_some()
        || spec.workspace.is_some()
        || spec.parent.is_some()
        || spec.conversation.is_some()
        || spec.workflow.is_some()
        || !spec.repos.is_empty();
    // The names of the runner include the session's prompt.
    let has_runner = generation.compatibility(spec) == RunnerNames::Ambient;
    let is_elsewhere = generation.is_elsewhere(spec);
    if has_own_parts
        || has_runner
        || is_elsewhere
        || isolation::is_guarded(generation, spec)
        || !generation.daemon.launcher.has_warm()
    {
        return None;
    }
    let name = spec.agent.clone().unwrap_or_else(|| generation.config.default_agent.clone());
    let key = SessionSpec {
        agent: Some(name.clone()),
        directories: spec.directories.clone(),
        interactive: spec.interactive,
        limits: spec.limits,
        environment: spec.environment.clone(),
        ..SessionSpec::new(&spec.directory)
    };
    Some((name, settings, key))
}

impl WarmAgents {
    fn state(&self) -> MutexGuard<'_, WarmState> {
        // No code under this lock can leave the value inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an agent for a new session with this specification. An agent cannot have a session's name before.
    pub(crate) fn take(&self, generation: &Generation, spec: &SessionSpec) -> Option<WarmKeeper> {
        let (_, _, key) = wanted(generation, spec).filter(|_| spec.name.is_none())?;
        let mut state = self.state();
        let position = state.ready.iter().position(|warm| *warm.key == key)?;
        Some(state.ready.remove(position).keeper)
    }

    /// Notes that a session was created, after which an agent like its own is started.
    pub(crate) fn follow(&self, generation: &Generation, session: &Session, spec: &SessionSpec) {
        if let Some((name, _, key)) = wanted(generation, spec) {
            // If the channel is full, a later launch makes up for this one.
            let _ = self.wishes.try_send(Wish { session: session.clone(), name, key: Arc::new(key) });
        }
    }

    /// Returns the number of warm agents, ready and starting, of an agent that the configuration keeps warm.
    pub fn view(&self, generation: &Generation, name: &str) -> Option<WarmView> {
        let agent = generation.config.agent(name).filter(|agent| agent.warm > 0)?;
        let state = self.state();
        let ready = state.ready.iter().filter(|warm| warm.is_of(name)).count();
        let starting = state.starting.iter().find(|(one, _)| one.as_str() == name).map_or(0, |(_, count)| *count);
        let obstacle = (!generation.daemon.launcher.has_warm()).then(|| NOT_IN_UNITS.to_owned());
        Some(WarmView { wanted: agent.warm, ready, starting, obstacle })
    }

    /// Returns the number of all ready agents.
    pub fn ready(&self) -> usize {
        self.state().ready.len()
    }

    /// Ends the agents that the configuration does not want any more, and all while the daemon is drained.
    fn settle(&self, generation: &Generation) {
        let is_drained = generation.daemon.drain.is_on();
        let is_wanted = |warm: &WarmAgent| {
            let settings = warm.key.agent.as_ref().and_then(|name| generation.config.agents.get(name));
            !is_drained && settings == Some(&warm.settings)
        };
        self.state().ready.retain(is_wanted);
    }

    /// Ends the oldest agents of other sessions to make room. Returns whether an agent is to be started.
    fn make_room(&self, name: &AgentName, key: &SessionSpec, most: usize) -> bool {
        let mut state = self.state();
        let equal = state.ready.iter().filter(|warm| *warm.key == *key).count();
        if equal >= most {
            return false;
        }
        while state.ready.iter().filter(|warm| warm.is_of(name.as_str())).count() >= most {
            let oldest = state.ready.iter().position(|warm| warm.is_of(name.as_str()) && *warm.key != *key);
            let Some(oldest) = oldest else { return false };
            state.ready.remove(oldest);
        }
        *state.starting.entry(name.clone()).or_default() += 1;
        true
    }

    /// Enters a started agent.
    fn enter(self: &Arc<Self>, settings: &Agent, key: Arc<SessionSpec>, mut keeper: WarmKeeper) {
        let mut state = self.state();
        state.next += 1;
        let (number, warm) = (state.next, Arc::downgrade(self));
        let ended = move || {
            if let Some(warm) = warm.upgrade() {
                warm.state().ready.retain(|one| one.number != number);
            }
        };
        match keeper.watch(settings.warm_idle.0, ended) {
            Ok(()) => state.ready.push(WarmAgent { number, key, settings: settings.clone(), keeper }),
            Err(error) => tracing::warn!(%error, "cannot watch a warm agent"),
        }
    }

    fn started(&self, name: &AgentName) {
        let mut state = self.state();
        if let Some(count) = state.starting.get_mut(name) {
            *count -= 1;
        }
        state.starting.retain(|_, count| *count > 0);
    }
}

/// Why no agent is kept warm for a session in a unit of systemd.
const NOT_IN_UNITS: &str = "sessions run as systemd units, in which no agent is kept warm";

impl WarmAgent {
    fn is_of(&self, name: &str) -> bool {
        self.key.agent.as_ref().is_some_and(|agent| agent.as_str() == name)
    }
}

/// Starts agents after launches, one at a time, and ends them, until the daemon ends.
#[boxed]
pub async fn keep_warm(generations: Arc<Generations>, sessions: Arc<Sessions>) {
    let (mut changes, mut work) = (generations.subscribe(), JoinSet::new());
    let daemon = Arc::clone(&generations.now().daemon);
    let inbox = daemon.warm.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(mut wishes) = inbox else { return };
    let mut is_said = false;
    loop {
        let generation = Arc::clone(&changes.borrow_and_update());
        daemon.warm.settle(&generation);
        let is_wanted = generation.config.agents.values().any(|agent| agent.warm > 0);
        if is_wanted && !daemon.launcher.has_warm() && !is_said {
            tracing::warn!("the configuration has agents.*.warm, but {NOT_IN_UNITS}");
        }
        is_said = is_wanted;
        drop(generation);
        tokio::select! {
            () = daemon.shutdown.cancelled() => break,
            // The channel closes with the daemon.
            next = changes.changed() => if next.is_err() { break },
            Some(_) = work.join_next(), if !work.is_empty() => {}
            Some(wish) = wishes.recv(), if work.is_empty() => {
                work.spawn(follow(Arc::clone(&generations), Arc::clone(&sessions), wish));
            }
        }
    }
    daemon.warm.state().ready.clear();
}

/// Reports whether a launch is in progress.
fn is_launching(phase: Phase) -> bool {
    matches!(phase, Phase::Preparing | Phase::Starting)
}

/// Starts an agent like that of the session, when no launch is in progress.
async fn follow(generations: Arc<Generations>, sessions: Arc<Sessions>, Wish { session, name, key }: Wish) {
    session.wait_until(|view| view.status.phase != Phase::Pending && !is_launching(view.status.phase)).await;
    if matches!(session.view().status.phase, Phase::Waiting | Phase::Failed) {
        return;
    }
    let launching = |sessions: &Sessions| sessions.those(|view| is_launching(view.status.phase)).into_iter().next();
    while let Some(other) = launching(&sessions) {
        other.wait_until(|view| !is_launching(view.status.phase)).await;
    }
    let generation = generations.now();
    let warm = Arc::clone(&generation.daemon.warm);
    let Some((_, settings, same)) = wanted(&generation, &key) else { return };
    let is_off = generation.daemon.drain.is_on() || generation.launchable().is_err();
    if is_off || same != *key || !warm.make_room(&name, &key, settings.warm) {
        return;
    }
    match prepare::prepare(&generation, &key).await {
        Ok(keeper) => warm.enter(settings, key, keeper),
        Err(reason) => tracing::warn!(agent = %name, "no agent is kept warm: {reason}"),
    }
    warm.started(&name);
}
