//! Lists the waits of a session that have a time limit, and decides the records to write when a limit is over.
//! Pure. The session's driver runs the timers.
//!
//! A wait is identified by its content: a wait that is listed again keeps its time, and a different wait starts a
//! new one. The time runs from the moment at which this daemon first saw the wait. A changed system clock or a
//! stopped daemon therefore shortens no wait.

use std::time::Duration;

use agentd_api::event::{AnsweredBy, Cause, LaunchReason, LaunchStarted, PermissionOutcome, StopRequested, TurnSilent};
use agentd_api::hint;
use agentd_api::reason;
use agentd_api::session::{ConditionType, Phase, RestartPolicy};
use agentd_api::{Body, PermissionId, TurnId};
use jiff::Timestamp;
use serde_json::Value;

use crate::batch::Batch;
use crate::completion::{self, ActiveTime};
use crate::current;
use crate::editor;
use crate::limit;
use crate::next::{Facts, fail_launch, next};
use crate::options;
use crate::repositories;
use crate::rules::{Command, LaunchBounds, REJECTING, choose, decide, resolve};
use crate::staleness;
use crate::state::{Ended, Opening, Pending, Run, Running, State};

/// A wait of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// Waits for the response to `initialize`.
    Initialize { rpc: u64 },
    /// Waits for the response to `authenticate`.
    Login { rpc: u64 },
    /// Waits for the response that opens the conversation.
    Open { rpc: u64 },
    /// Waits for the response to a request that sets an option.
    Option { rpc: u64 },
    /// Waits for the end of a turn.
    Turn { turn: TurnId },
    /// Waits for the end of a cancelled turn.
    Cancel { turn: TurnId },
    /// Waits for any message of the agent in a turn, since the record `since`.
    Silence { turn: TurnId, since: u64 },
    /// Waits for the next turn, since the record `since`.
    Work { since: u64 },
    /// Waits for a client's answer to a permission request.
    Permission { permission: PermissionId },
    /// Waits for an editor's answer to the agent's request with this id.
    Editor { rpc: Value },
    /// Waits for the restart of a crashed agent. `crash` counts the crashes since the last launch that a client
    /// requested.
    Restart { crash: usize },
    /// Waits for the time at which expiring values of the agent's environment are renewed.
    Expiry { at: Timestamp },
    /// Waits for the first expiry of a value while the condition `EnvironmentCurrent` is true.
    End { at: Timestamp },
    /// Waits for the time at which a prompt that met a rate limit is sent again.
    Limit { at: Timestamp },
    /// Waits for the next attempt on a repository after a number of failures.
    Repository { name: String, failures: u32 },
    /// Waits for the end of a session with a limit of active time.
    Session(ActiveTime),
    /// Waits for the next UTC minute, as [`born_this_minute`] explains.
    Minute { launch: u64 },
}

/// Time limit for the answer to a request that sets an option. The next turn waits for the answer.
const OPTION: Duration = Duration::from_secs(30);

/// Time limit of each kind of wait; `None` means unlimited.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits {
    pub initialize: Duration,
    pub open: Duration,
    pub turn: Option<Duration>,
    pub cancel: Duration,
    pub silence: Option<Duration>,
    pub idle: Option<Duration>,
    pub session: Option<Duration>,
    pub permission: Option<Duration>,
    pub restart_first: Duration,
    pub restart_longest: Duration,
}

impl WaitLimits {
    /// Returns the time limit of a wait that begins at `now`.
    pub fn with(&self, wait: &Wait, now: Timestamp) -> Option<Duration> {
        match wait {
            Wait::Initialize { .. } => Some(self.initialize),
            Wait::Login { .. } | Wait::Open { .. } => Some(self.open),
            Wait::Option { .. } => Some(self.open.min(OPTION)),
            Wait::Turn { .. } => self.turn,
            Wait::Cancel { .. } => Some(self.cancel),
            Wait::Silence { .. } => self.silence,
            Wait::Work { .. } => self.idle,
            Wait::Session(active) => self.session.map(|limit| {
                let since = active.since.map_or(Duration::ZERO, |since| now.duration_since(since).unsigned_abs());
                limit.saturating_sub(Duration::from_millis(active.spent)).saturating_sub(since)
            }),
            Wait::Permission { .. } => self.permission,
            Wait::Editor { .. } => Some(editor::LIMIT),
            Wait::Restart { crash } => Some(self.back_off(*crash)),
            Wait::Expiry { at } | Wait::Limit { at } => Some(until(*at, now)),
            // If the record cannot be written now, this lower bound prevents a busy loop.
            Wait::End { at } => Some(until(*at, now).max(Duration::from_millis(100))),
            Wait::Repository { failures, .. } => Some(repositories::pause(*failures)),
            Wait::Minute { .. } => Some(rest_of_minute(now)),
        }
    }

    /// Returns the pause before the restart after the n-th crash.
    fn back_off(&self, crash: usize) -> Duration {
        doubled(self.restart_first, u32::try_from(crash).unwrap_or(u32::MAX), self.restart_longest)
    }
}

/// Returns the pause after a number of failures in a row. Each pause is twice the previous one, up to `longest`.
pub fn doubled(first: Duration, failures: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(longest)
}

/// Returns all current waits.
pub fn waits(state: &State, facts: &Facts<'_>) -> Vec<Wait> {
    let mut waits = waits_of_run(state, facts);
    let is_ending = state.phase() == Phase::Stopping;
    let active = Some(state.completion.active).filter(|active| active.since.is_some() && !is_ending);
    waits.extend(active.filter(|_| facts.spec.limits.session_seconds.is_some()).map(Wait::Session));
    waits
}

fn waits_of_run(state: &State, facts: &Facts<'_>) -> Vec<Wait> {
    match &state.run {
        // Open turns and permission requests of the ended agent are closed first. A full disk can delay this step,
        // and with it the restart.
        Run::Ended(_) if is_restarted(state, facts) && !facts.drained && next(state, facts).is_none() => {
            vec![Wait::Restart { crash: state.crashes.len() }]
        }
        Run::Preparing(preparing) if !preparing.stop => staleness::question(state)
            .map(|open| Wait::Permission { permission: open.request.id.clone() })
            .into_iter()
            .collect(),
        Run::Ended(_) | Run::Preparing(_) => Vec::new(),
        Run::Running(running) if running.ending.is_some() => Vec::new(),
        Run::Running(running) => {
            let mut waits = running_waits(running);
            // States stored by older releases have no renewal time; their values are renewed at the expiry.
            waits.extend(state.expires.and(state.renews.or(state.expires)).map(|at| Wait::Expiry { at }));
            waits.extend(current::end(state).map(|at| Wait::End { at }));
            waits.extend(repositories::waits(state));
            waits.extend(editor::waiting(running).map(|rpc| Wait::Editor { rpc: rpc.clone() }));
            if let Some(at) = limit::next_attempt(state, running) {
                waits.retain(|wait| !matches!(wait, Wait::Work { .. }));
                waits.extend((facts.now < at).then_some(Wait::Limit { at }));
            }
            // An agent that has a question before the conversation is open waits for the answer first.
            if state.permissions.iter().any(|open| open.request.elicitation.is_some()) {
                waits.retain(|wait| {
                    !matches!(
                        wait,
                        Wait::Initialize { .. } | Wait::Login { .. } | Wait::Open { .. } | Wait::Option { .. }
                    )
                });
            }
            waits.extend(state.permissions.iter().map(|open| Wait::Permission { permission: open.request.id.clone() }));
            if matches!(running.opening, Opening::Initialized(_)) && born_this_minute(state, running, facts.now) {
                waits.push(Wait::Minute { launch: running.launch });
            }
            waits
        }
    }
}

fn running_waits(running: &Running) -> Vec<Wait> {
    let rpc =
        |wanted: fn(&Pending) -> bool| running.pending.iter().find(|(_, pending)| wanted(pending)).map(|(rpc, _)| *rpc);
    let mut waits = Vec::new();
    waits.extend(rpc(|pending| *pending == Pending::Initialize).map(|rpc| Wait::Initialize { rpc }));
    waits.extend(rpc(|pending| *pending == Pending::Authenticate).map(|rpc| Wait::Login { rpc }));
    waits.extend(rpc(|pending| matches!(pending, Pending::Open(_))).map(|rpc| Wait::Open { rpc }));
    waits.extend(rpc(|pending| matches!(pending, Pending::Option { .. })).map(|rpc| Wait::Option { rpc }));
    match &running.turn {
        Some(turn) if turn.cancelling => waits.push(Wait::Cancel { turn: turn.id.clone() }),
        Some(turn) => {
            waits.push(Wait::Turn { turn: turn.id.clone() });
            if !turn.silent {
                waits.push(Wait::Silence { turn: turn.id.clone(), since: turn.heard });
            }
        }
        None if running.opening == Opening::Open => waits.push(Wait::Work { since: running.idle_since }),
        None => {}
    }
    waits
}

/// Number of consecutive crashes after which a session is parked.
pub const CRASHES: usize = 5;

/// Reports whether the session's agent crashed and will be started again.
pub fn is_restarted(state: &State, facts: &Facts<'_>) -> bool {
    matches!(state.run, Run::Ended(Ended::Failed(_)))
        && facts.restart == RestartPolicy::OnFailure
        && !state.awaits_completion()
        && (1..=CRASHES).contains(&state.crashes.len())
}

/// Returns the session's phase: [`State::phase`], or `BackingOff` while a crashed agent waits for its restart.
pub fn phase(state: &State, facts: &Facts<'_>) -> Phase {
    if is_restarted(state, facts) { Phase::BackingOff } else { state.phase() }
}

/// Reports whether the agent crashed too often to be started again.
pub fn is_parked(state: &State, facts: &Facts<'_>) -> bool {
    facts.restart == RestartPolicy::OnFailure && state.crashes.len() > CRASHES
}

/// Reports whether the agent is gemini-cli and its conversation was created in the current UTC minute.
///
/// The program `gemini-cli` names the files of a conversation by the minute. Within that minute it loads the
/// conversation as an empty one and overwrites its history (google-gemini/gemini-cli#28693).
pub fn born_this_minute(state: &State, running: &Running, now: Timestamp) -> bool {
    let gemini = state.agent.as_ref().is_some_and(|agent| agent.name.to_ascii_lowercase().contains("gemini"));
    let minute = |time: Timestamp| time.as_second().div_euclid(60);
    gemini && !running.fresh && state.conversation_born.is_some_and(|born| minute(born) == minute(now))
}

/// Returns the time until `at`, at most one minute. The wall clock can be set, and it continues during suspend, so
/// callers check it again.
fn until(at: Timestamp, now: Timestamp) -> Duration {
    const LOOK: Duration = Duration::from_mins(1);
    Duration::try_from(at.duration_since(now)).unwrap_or_default().min(LOOK)
}

fn rest_of_minute(now: Timestamp) -> Duration {
    let over = u64::try_from(now.as_second().rem_euclid(60)).unwrap_or(0);
    Duration::from_secs(60_u64.saturating_sub(over))
}

/// Returns the records to write when a wait has lasted for `limit`. Returns `None` if the caller only has to ask
/// for the next step again.
pub fn over(state: &State, wait: &Wait, limit: Duration, facts: &Facts<'_>) -> Option<Batch> {
    let seconds = limit.as_secs_f64();
    match wait {
        Wait::Initialize { .. } => {
            let message = format!("the agent did not answer initialize within {seconds} s; {}", hint::SHOW_STDERR);
            fail(state, reason::INITIALIZE_TIMED_OUT, &message, facts)
        }
        Wait::Login { .. } => {
            let message = format!("the agent did not answer authenticate within {seconds} s; {}", hint::SHOW_STDERR);
            fail(state, reason::CONVERSATION_TIMED_OUT, &message, facts)
        }
        Wait::Open { .. } => {
            let message = format!("the agent did not open the conversation within {seconds} s; {}", hint::SHOW_STDERR);
            fail(state, reason::CONVERSATION_TIMED_OUT, &message, facts)
        }
        Wait::Option { rpc } => options::unanswered(state, *rpc, limit.as_secs(), facts),
        Wait::Cancel { .. } => {
            let message =
                format!("the agent did not end a cancelled turn within {seconds} s, and agentd ended the agent");
            fail(state, reason::CANCEL_IGNORED, &message, facts)
        }
        Wait::Turn { turn } => {
            let bounds = LaunchBounds { queued_turns: 0, generation: facts.generation, restarts: false };
            decide(state, Command::Cancel { turn: Some(turn.clone()), cause: Cause::limit("limits.turn") }, bounds)
                .ok()
                .map(|decision| decision.batch)
        }
        Wait::Silence { turn, .. } => {
            let silent = TurnSilent { turn: turn.clone(), seconds: limit.as_secs() };
            Some(Batch::of(Body::TurnSilent(silent)))
        }
        Wait::Work { .. } => {
            let reason = format!("the session was idle for {seconds} s");
            Some(Batch::of(Body::StopRequested(StopRequested { reason, cause: Cause::limit("limits.idle") })))
        }
        Wait::Permission { permission } => {
            let open = state.permissions.iter().find(|open| open.request.id == *permission)?;
            let outcome = match choose(&open.request.options, &REJECTING) {
                // No client has declined the question.
                _ if open.request.elicitation.is_some() => PermissionOutcome::Cancelled,
                Some(option) => PermissionOutcome::Selected(option.id.clone()),
                None => PermissionOutcome::Cancelled,
            };
            Some(resolve(Batch::default(), open, outcome, AnsweredBy::Expiry, &Cause::limit("limits.permission"), true))
        }
        Wait::Editor { rpc } => editor::unanswered(state, rpc, limit),
        Wait::Restart { .. } => {
            let launch = state.launches + 1;
            let reason = LaunchReason::Restart;
            // A restart inherits the terms of its launch: the caller agreed to them for the work of this agent.
            let (forced_by, degraded_by) = (state.forced_by.clone(), state.degraded_by.clone());
            let started = LaunchStarted { forced_by, degraded_by, ..LaunchStarted::new(launch, reason, false) };
            Some(Batch::of(Body::LaunchStarted(started)))
        }
        Wait::Session(_) => Some(completion::over_time(facts)),
        Wait::Repository { name, .. } => repositories::again(state, name),
        Wait::End { at } => (*at <= facts.now).then(|| current::ended(state, *at, facts)),
        Wait::Expiry { .. } | Wait::Limit { .. } | Wait::Minute { .. } => None,
    }
}

fn fail(state: &State, reason: &str, message: &str, facts: &Facts<'_>) -> Option<Batch> {
    let Run::Running(running) = &state.run else { return None };
    Some(fail_launch(state, running.launch, ConditionType::ConversationReady, reason, message, facts))
}

/// Message of the condition while a gemini-cli launch waits for the next UTC minute.
pub const SAME_MINUTE_MESSAGE: &str = "this agent overwrites a conversation that it loads in the UTC minute of the \
    conversation's creation; the launch waits for the next minute";

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: WaitLimits = WaitLimits {
        initialize: Duration::from_secs(1),
        open: Duration::from_secs(1),
        turn: None,
        cancel: Duration::from_secs(1),
        silence: None,
        idle: None,
        session: None,
        permission: None,
        restart_first: Duration::from_secs(1),
        restart_longest: Duration::from_mins(1),
    };

    #[test]
    fn the_pause_before_a_restart_doubles_up_to_the_longest() {
        let pauses: Vec<u64> = [1, 2, 3, 7, 8, 100].map(|crash| PATIENCE.back_off(crash).as_secs()).to_vec();
        assert_eq!(pauses, [1, 2, 4, 60, 60, 60]);
    }

    #[test]
    fn a_moment_that_is_over_is_not_waited_for_and_a_far_one_is_looked_at_again() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let wait = |at: &str| until(at.parse().unwrap(), now).as_secs();
        assert_eq!(wait("2025-01-01T00:00:00Z"), 0);
        assert_eq!((wait("2026-01-01T00:00:20Z"), wait("2027-01-01T00:00:00Z")), (20, 60));
    }

    #[test]
    fn the_rest_of_a_minute_is_never_nothing() {
        let at = |text: &str| rest_of_minute(text.parse().unwrap()).as_secs();
        assert_eq!(at("2026-01-01T00:00:00Z"), 60);
        assert_eq!(at("2026-01-01T00:00:59.9Z"), 1);
    }
}
