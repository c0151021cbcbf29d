//! What a session waits for and may not wait for without end: pure. The driver holds the clock to it.
//!
//! A wait is named by what it waits for, so that the same wait seen again keeps its time, and another one begins anew. The time
//! runs from when this daemon first saw it: a clock that is set and a daemon that was down cut nobody's time short.

use std::time::Duration;

use agentd_api::event::{AnsweredBy, Cause, LaunchReason, LaunchStarted, PermissionOutcome, StopRequested, TurnSilent};
use agentd_api::session::{ConditionType, Phase, RestartPolicy};
use agentd_api::{Body, PermissionId, TurnId};
use jiff::Timestamp;

use super::batch::Batch;
use super::current;
use super::next::{Facts, fail_launch, next};
use super::rules::{Bounds, Command, REJECTING, choose, decide, resolve};
use super::state::{Ended, Opening, Pending, Run, Running, State};

/// One thing that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The answer to `initialize`.
    Initialize {
        rpc: u64,
    },
    /// The answer that opens the conversation.
    Open {
        rpc: u64,
    },
    Turn {
        turn: TurnId,
    },
    /// The end of a turn that was cancelled.
    Cancel {
        turn: TurnId,
    },
    /// Anything from the agent in a turn, since this seq.
    Word {
        turn: TurnId,
        since: u64,
    },
    /// A turn, since this seq.
    Work {
        since: u64,
    },
    /// Somebody's answer to a permission request.
    Permission {
        permission: PermissionId,
    },
    /// The restart of a crashed agent; which crash it was since the last launch that was asked for.
    Restart {
        crash: usize,
    },
    /// The moment at which what expires of the agent's environment is asked for again.
    Expiry {
        at: Timestamp,
    },
    /// The moment at which something that the agent has holds no longer, though its condition says that all does.
    End {
        at: Timestamp,
    },
    /// The next minute: see [`born_this_minute`].
    Minute {
        launch: u64,
    },
}

/// How long each may last; `None` is for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) initialize: Duration,
    pub(crate) open: Duration,
    pub(crate) turn: Option<Duration>,
    pub(crate) cancel: Duration,
    pub(crate) silence: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) permission: Option<Duration>,
    pub(crate) restart_first: Duration,
    pub(crate) restart_longest: Duration,
}

impl Patience {
    /// For this wait, from `now`.
    pub(crate) fn with(&self, wait: &Wait, now: Timestamp) -> Option<Duration> {
        match wait {
            Wait::Initialize { .. } => Some(self.initialize),
            Wait::Open { .. } => Some(self.open),
            Wait::Turn { .. } => self.turn,
            Wait::Cancel { .. } => Some(self.cancel),
            Wait::Word { .. } => self.silence,
            Wait::Work { .. } => self.idle,
            Wait::Permission { .. } => self.permission,
            Wait::Restart { crash } => Some(self.back_off(*crash)),
            Wait::Expiry { at } => Some(until(*at, now)),
            // What cannot be recorded now is not tried in a loop.
            Wait::End { at } => Some(until(*at, now).max(Duration::from_millis(100))),
            Wait::Minute { .. } => Some(rest_of_minute(now)),
        }
    }

    /// The pause before the restart after the n-th crash: twice the one before, up to the longest.
    fn back_off(&self, crash: usize) -> Duration {
        let doublings = u32::try_from(crash.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        self.restart_first.saturating_mul(1 << doublings).min(self.restart_longest)
    }
}

/// Everything that is waited for.
pub(crate) fn waits(state: &State, facts: &Facts<'_>) -> Vec<Wait> {
    match &state.run {
        // What the ended agent left open is closed first. A full disk can delay that, and then it delays the restart.
        Run::Ended(_) if is_restarted(state, facts) && !facts.drained && next(state, facts).is_none() => {
            vec![Wait::Restart { crash: state.crashes.len() }]
        }
        Run::Ended(_) | Run::Preparing(_) => Vec::new(),
        Run::Running(running) if running.ending.is_some() => Vec::new(),
        Run::Running(running) => {
            let mut waits = running_waits(running);
            // Folds of older releases know only when it expires.
            waits.extend(state.expires.and(state.renews.or(state.expires)).map(|at| Wait::Expiry { at }));
            waits.extend(current::end(state).map(|at| Wait::End { at }));
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
    waits.extend(rpc(|pending| matches!(pending, Pending::Open(_))).map(|rpc| Wait::Open { rpc }));
    match &running.turn {
        Some(turn) if turn.cancelling => waits.push(Wait::Cancel { turn: turn.id.clone() }),
        Some(turn) => {
            waits.push(Wait::Turn { turn: turn.id.clone() });
            if !turn.silent {
                waits.push(Wait::Word { turn: turn.id.clone(), since: turn.heard });
            }
        }
        None if running.opening == Opening::Open => waits.push(Wait::Work { since: running.idle_since }),
        None => {}
    }
    waits
}

/// After so many crashes in a row a session is parked.
pub(crate) const CRASHES: usize = 5;

/// Whether the session's agent crashed and is to be started again.
pub(crate) fn is_restarted(state: &State, facts: &Facts<'_>) -> bool {
    matches!(state.run, Run::Ended(Ended::Failed(_)))
        && facts.restart == RestartPolicy::OnFailure
        && (1..=CRASHES).contains(&state.crashes.len())
}

/// The session's phase: what its state says, and whether the configuration has a crashed agent started again.
pub(crate) fn phase(state: &State, facts: &Facts<'_>) -> Phase {
    if is_restarted(state, facts) { Phase::BackingOff } else { state.phase() }
}

/// Whether it crashed too often for that.
pub(crate) fn is_parked(state: &State, facts: &Facts<'_>) -> bool {
    facts.restart == RestartPolicy::OnFailure && state.crashes.len() > CRASHES
}

/// gemini-cli loads a conversation that was begun in the same UTC minute as an empty one, and overwrites its history
/// (google-gemini/gemini-cli#28693): its files are named by the minute.
pub(crate) fn born_this_minute(state: &State, running: &Running, now: Timestamp) -> bool {
    let gemini = state.agent.as_ref().is_some_and(|agent| agent.name.to_ascii_lowercase().contains("gemini"));
    let minute = |time: Timestamp| time.as_second().div_euclid(60);
    gemini && !running.fresh && state.conversation_born.is_some_and(|born| minute(born) == minute(now))
}

/// For a moment by the clock on the wall, which may be set, and which goes on while the machine sleeps: it is looked at now and then.
fn until(at: Timestamp, now: Timestamp) -> Duration {
    const LOOK: Duration = Duration::from_mins(1);
    Duration::try_from(at.duration_since(now)).unwrap_or_default().min(LOOK)
}

fn rest_of_minute(now: Timestamp) -> Duration {
    let over = u64::try_from(now.as_second().rem_euclid(60)).unwrap_or(0);
    Duration::from_secs(60_u64.saturating_sub(over))
}

/// What is recorded when a wait has lasted for `limit`; `None` where only the question what is next is to be asked again.
pub(crate) fn over(state: &State, wait: &Wait, limit: Duration, facts: &Facts<'_>) -> Option<Batch> {
    let seconds = limit.as_secs_f64();
    match wait {
        Wait::Initialize { .. } => {
            let message = format!("the agent did not answer initialize within {seconds} s; {ITS_STDERR}");
            fail(state, "InitializeTimedOut", &message, facts)
        }
        Wait::Open { .. } => {
            let message = format!("the agent did not open the conversation within {seconds} s; {ITS_STDERR}");
            fail(state, "ConversationTimedOut", &message, facts)
        }
        Wait::Cancel { .. } => {
            let message = format!("the agent did not end a cancelled turn within {seconds} s, and was ended itself");
            fail(state, "CancelIgnored", &message, facts)
        }
        Wait::Turn { turn } => {
            let bounds = Bounds { queued_turns: 0, restarts: false };
            decide(state, Command::Cancel { turn: Some(turn.clone()), cause: Cause::limit("limits.turn") }, bounds)
                .ok()
                .map(|decision| decision.batch)
        }
        Wait::Word { turn, .. } => {
            let silent = TurnSilent { turn: turn.clone(), seconds: limit.as_secs() };
            Some(Batch::of(Body::TurnSilent(silent)))
        }
        Wait::Work { .. } => {
            let reason = format!("it was idle for {seconds} s");
            Some(Batch::of(Body::StopRequested(StopRequested { reason, cause: Cause::limit("limits.idle") })))
        }
        Wait::Permission { permission } => {
            let open = state.permissions.iter().find(|open| open.request.id == *permission)?;
            let outcome = match choose(&open.request.options, &REJECTING) {
                Some(option) => PermissionOutcome::Selected(option.id.clone()),
                None => PermissionOutcome::Cancelled,
            };
            Some(resolve(Batch::default(), open, outcome, AnsweredBy::Expiry, &Cause::limit("limits.permission"), true))
        }
        Wait::Restart { .. } => {
            let launch = state.launches + 1;
            let reason = LaunchReason::Restart;
            // What somebody launched without what it needs is started again without it.
            let forced_by = state.forced_by.clone();
            let started = LaunchStarted { forced_by, ..LaunchStarted::new(launch, reason, false) };
            Some(Batch::of(Body::LaunchStarted(started)))
        }
        Wait::End { at } => (*at <= facts.now).then(|| current::ended(state, *at, facts)),
        Wait::Expiry { .. } | Wait::Minute { .. } => None,
    }
}

/// Where a person finds the agent's own words.
pub(crate) const ITS_STDERR: &str = "`agentctl events` shows what it wrote to stderr";

fn fail(state: &State, reason: &str, message: &str, facts: &Facts<'_>) -> Option<Batch> {
    let Run::Running(running) = &state.run else { return None };
    Some(fail_launch(state, running.launch, ConditionType::ConversationReady, reason, message, facts))
}

/// What a person is told of a conversation that is waited for.
pub(crate) const MINUTE: &str = "this agent overwrites a conversation that it loads in the UTC minute in which it was begun; the launch waits for the next one";

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        initialize: Duration::from_secs(1),
        open: Duration::from_secs(1),
        turn: None,
        cancel: Duration::from_secs(1),
        silence: None,
        idle: None,
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
