//! The place of a running agent: the state that the engine reports, and the condition `Placed`.
//!
//! Nothing is sent to an agent before its place reports that it runs. This module decides no end of an agent.

use agentd_api::Body;
use agentd_api::event::{AgentResumed, PlaceChanged, PlaceHost, PlaceState};
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType};
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::next::{Facts, condition};
use crate::state::{EndReason, Ended, Run, State};
use crate::verdict::ConditionUpdate;

/// Reason of an engine for a cancelled launch.
const CANCELLED: &str = "CANCELLED";

/// The place of an agent, as its last record reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Name of the place in the configuration.
    pub place: String,
    pub state: PlaceState,
    /// Whether the agent was started on the place.
    pub has_entered: bool,
    pub reason: Option<String>,
    pub message: Option<String>,
    /// Id that the engine gave the launch.
    pub job: Option<String>,
    pub host: Option<PlaceHost>,
    /// Whether the agent stays on its place when the connection is lost.
    #[serde(default)]
    pub is_resident: bool,
}

impl Placed {
    /// Makes the state of a launch whose client was started.
    pub(crate) fn submitted(place: String, is_resident: bool) -> Self {
        Self {
            place,
            is_resident,
            state: PlaceState::Submitted,
            has_entered: false,
            reason: None,
            message: None,
            job: None,
            host: None,
        }
    }

    fn changed(&mut self, changed: &PlaceChanged) {
        self.state = changed.state;
        self.has_entered |= changed.state == PlaceState::Running;
        self.reason.clone_from(&changed.reason);
        self.message.clone_from(&changed.message);
        if changed.job.is_some() {
            self.job.clone_from(&changed.job);
        }
        if changed.host.is_some() {
            self.host.clone_from(&changed.host);
        }
    }

    /// Reports whether an engine's queue holds the launch.
    pub fn is_queued(&self) -> bool {
        self.state == PlaceState::Queued
    }

    /// Reports whether the engine has ended the launch, or has announced the end.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, PlaceState::Ended | PlaceState::Ending)
    }

    /// Returns the engine's words: its reason and its message.
    fn words(&self) -> String {
        let said: Vec<&str> = self.reason.iter().chain(&self.message).map(String::as_str).collect();
        if said.is_empty() { String::new() } else { format!(": {}", said.join(", ")) }
    }

    fn condition(&self) -> ConditionUpdate {
        let Self { place, job, host, .. } = self;
        let words = self.words();
        let job = job.as_ref().map(|job| format!(" as job {job}")).unwrap_or_default();
        let on = host.as_ref().map(|host| format!(" on host {} as user {}", host.host, host.user)).unwrap_or_default();
        let (status, reason, message) = match self.state {
            PlaceState::Submitted => {
                (ConditionStatus::False, reason::SUBMITTED, format!("the client of place {place:?} was started"))
            }
            PlaceState::Queued => (
                ConditionStatus::False,
                reason::QUEUED,
                format!("the place {place:?} has queued the launch{job}{words}"),
            ),
            PlaceState::Starting => {
                let message = format!("the place {place:?} starts the launch{job}{words}");
                (ConditionStatus::False, reason::STARTING, message)
            }
            PlaceState::Running | PlaceState::Unknown => {
                (ConditionStatus::True, reason::RUNNING, format!("the agent runs at place {place:?}{on}{job}{words}"))
            }
            PlaceState::Ending => {
                (ConditionStatus::True, reason::ENDING_SOON, format!("the place {place:?} ends the launch soon{words}"))
            }
            PlaceState::Ended => {
                (ConditionStatus::False, reason::PLACE_ENDED, format!("the place {place:?} ended the launch{words}"))
            }
            PlaceState::Away => {
                let message = format!("the connection to place {place:?} is cut, and the agent stays there{words}");
                (ConditionStatus::Unknown, reason::PLACE_AWAY, message)
            }
            PlaceState::Lost => {
                let message = format!("the connection to place {place:?} is lost{words}");
                (ConditionStatus::Unknown, reason::PLACE_LOST, message)
            }
        };
        (status, reason, message)
    }
}

impl State {
    /// Applies the record `place.changed`.
    pub(crate) fn place_changed(&mut self, changed: &PlaceChanged) {
        let Some(placed) = self.placed.as_mut().filter(|_| changed.launch == self.launches) else { return };
        let is_known = placed.state == PlaceState::Ending && placed.reason == changed.reason;
        placed.changed(changed);
        let is_over = placed.is_over();
        match &mut self.run {
            Run::Running(running) if is_over && running.ending.is_none() => {
                let (_, _, message) = placed.condition();
                let again = changed.requeue && placed.has_entered;
                let end = if again { EndReason::Unusable } else { EndReason::Failure };
                running.ending = Some(end(message));
            }
            // The engine's reason completes the message of the end.
            Run::Ended(Ended::Failed(message)) if changed.state == PlaceState::Ended && !is_known => {
                *message = format!("{message}; {}", placed.condition().2);
            }
            Run::Running(_) | Run::Ended(_) | Run::Preparing(_) => {}
        }
    }

    /// Applies the record `agent.resumed`: the agent has another near side.
    pub(crate) fn agent_resumed(&mut self, resumed: &AgentResumed) {
        if let Run::Running(running) = &mut self.run
            && running.launch == resumed.launch
        {
            (running.pid, running.start_time) = (resumed.pid, resumed.start_time);
        }
    }

    /// Returns the place of the last agent, if that is not this machine.
    pub fn placed(&self) -> Option<&Placed> {
        self.placed.as_ref()
    }

    /// Reports whether the connection to the place was lost while the agent ran there.
    pub(crate) fn is_lost(&self) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.has_entered && placed.state == PlaceState::Lost)
    }
}

/// Decides the record for a report of a place's engine about a launch. Returns `None` for a report that says nothing
/// new, or that is about another launch.
pub(crate) fn reported(state: &State, mut changed: PlaceChanged) -> Option<Batch> {
    let placed = state.placed.as_ref().filter(|_| changed.launch == state.launches)?;
    let is_ended = matches!(state.run, Run::Ended(_));
    let is_over = |state| matches!(state, PlaceState::Ended | PlaceState::Lost);
    let applies = match changed.state {
        // Only the agent's own keeper knows that the agent runs, and that its connection is lost. The engine knows the
        // job.
        PlaceState::Running => placed.state == PlaceState::Running && placed.job.is_none() && changed.job.is_some(),
        PlaceState::Away | PlaceState::Lost | PlaceState::Submitted | PlaceState::Unknown => false,
        PlaceState::Queued | PlaceState::Starting => !is_ended && !placed.has_entered && !is_over(placed.state),
        PlaceState::Ending => !is_ended && !is_over(placed.state),
        // agentd itself cancels a launch whose connection is lost.
        PlaceState::Ended if placed.state == PlaceState::Lost && changed.reason.as_deref() == Some(CANCELLED) => false,
        PlaceState::Ended => !matches!(state.run, Run::Ended(Ended::Stopped | Ended::Completed)),
    };
    if !applies {
        return None;
    }
    if changed.job.is_none() {
        changed.job.clone_from(&placed.job);
    }
    let is_known = (placed.state, &placed.reason, &placed.message, &placed.job)
        == (changed.state, &changed.reason, &changed.message, &changed.job);
    (!is_known).then(|| Batch::of(Body::PlaceChanged(Box::new(changed))))
}

/// Records the condition `Placed` if it is out of date.
pub(crate) fn report(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let kind = ConditionType::Placed;
    let (status, reason, message) = state.placed.as_ref()?.condition();
    let known = state.condition(kind);
    let is_known =
        known.is_some_and(|known| (known.status, &*known.reason, &known.message) == (status, reason, &message));
    (!is_known).then(|| Batch::of(condition(state, facts, kind, status, reason, message)))
}

/// Reports whether the condition `Placed` says that the launch waits for its place.
pub(crate) fn is_open(state: &State) -> bool {
    const WAITS: [&str; 3] = [reason::SUBMITTED, reason::QUEUED, reason::STARTING];
    state.condition(ConditionType::Placed).is_some_and(|condition| WAITS.contains(&condition.reason.as_str()))
}

/// Reports whether the agent has not been started on its place yet.
pub(crate) fn is_awaited(state: &State) -> bool {
    state.placed.as_ref().is_some_and(|placed| !placed.has_entered)
}
