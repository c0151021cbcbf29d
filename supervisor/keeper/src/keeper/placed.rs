//! An agent on a place: the reports of the near side become records, and its end becomes that of the agent.

use agentd_api::event::{AgentExited, Body, PlaceChanged, PlaceHost, PlaceState};

use super::{Keeper, resumed};
use crate::machine::Input;
use crate::place::agent::{AgentPlace, CANCEL_MS, PASS_ON_MS};
use crate::protocol::{PlaceReport, StopTimes};

impl Keeper<'_> {
    /// Reads the reports of the near side, and records that the agent runs or that its line is lost. The first record
    /// precedes all output, because the near side reports before it passes output on. The second precedes the cancel of
    /// the launch.
    pub(super) fn read_place(&mut self) {
        let Some(place) = self.agent.as_mut().and_then(|agent| agent.place.as_mut()) else { return };
        for report in place.read() {
            self.note_report(report);
        }
        if let Some(place) = self.agent.as_mut().and_then(|agent| agent.place.as_mut())
            && !self.log.is_blocked()
        {
            place.report_kept();
        }
    }

    fn note_report(&mut self, report: PlaceReport) {
        let Some(agent) = &mut self.agent else { return };
        let Some(place) = &agent.place else { return };
        let changed = |state, message, host| changed(self.args.launch, place, state, message, host);
        match report {
            PlaceReport::Running(host) => self.log.write_body(&changed(PlaceState::Running, None, Some(host))),
            PlaceReport::Away { message } => self.log.write_body(&changed(PlaceState::Away, Some(message), None)),
            PlaceReport::Stalled { message } => {
                let message = message.map(|reason| format!("its disk does not take the agent's output: {reason}"));
                self.log.write_body(&changed(PlaceState::Running, message, None));
            }
            PlaceReport::Submitted { job } => {
                let Body::PlaceChanged(mut submitted) = changed(PlaceState::Submitted, None, None) else { return };
                submitted.job = Some(job);
                self.log.write_body(&Body::PlaceChanged(submitted));
            }
            PlaceReport::Attached { lines, masks } => {
                if place.is_resuming() {
                    agent.adopt(masks);
                    self.send_again(lines);
                }
            }
            PlaceReport::Lost { message } => self.log.write_body(&changed(PlaceState::Lost, Some(message), None)),
            // Kept as the last report.
            PlaceReport::Refused { .. } | PlaceReport::Ended { .. } => {}
        }
    }

    /// Sends the recorded lines that the place does not have. `known` is the number of lines that it has.
    fn send_again(&mut self, known: u64) {
        let found = resumed::find(&self.args.state, self.args.launch, known);
        let Some(agent) = &mut self.agent else { return };
        match found {
            Ok(Some(found)) => {
                let missing = found.lines.iter().filter(|(number, _)| *number > known);
                for (_, line) in missing {
                    agent.push_line(line.get(), resumed::fillings(line), &self.args.state);
                }
                agent.stdin.write();
            }
            // The journal could be read at the launch, and this process writes it.
            Ok(None) => {}
            Err(error) => agent.remark(&format!("cannot read the lines that the agent has not received: {error}")),
        }
        if let Some(position) = agent.place.as_mut().and_then(|place| place.position.as_mut()) {
            position.is_resuming = false;
        }
    }

    /// Reports whether the near side was killed and the agent stays on its place. Another keeper continues with it.
    pub(super) fn leaves_agent(&mut self) -> bool {
        self.read_place();
        let is_own = self.machine.requested() || self.reason.is_some();
        self.agent.as_ref().is_some_and(|agent| {
            let stays = agent.place.as_ref().is_some_and(|place| {
                place.position.is_some() && (place.has_entered || place.is_resuming()) && place.last.is_none()
            });
            stays && agent.exit.is_some() && !is_own
        })
    }

    /// Gives the near side time to cancel a start, or to pass SIGTERM on.
    pub(super) fn with_time_for_place(&self, input: Input) -> Input {
        let Some(place) = self.agent.as_ref().and_then(|agent| agent.place.as_ref()) else { return input };
        let least = |times: StopTimes| StopTimes {
            close_ms: times.close_ms.max(if place.has_entered { 0 } else { CANCEL_MS }),
            term_ms: times.term_ms.max(PASS_ON_MS),
        };
        match input {
            Input::Stop(times) => Input::Stop(least(times)),
            Input::GiveUp(times) => Input::GiveUp(least(times)),
            input => input,
        }
    }
}

fn changed(
    launch: u64,
    place: &AgentPlace,
    state: PlaceState,
    message: Option<String>,
    host: Option<PlaceHost>,
) -> Body {
    let place = place.name.clone();
    let (reason, job, requeue) = (None, None, false);
    Body::PlaceChanged(Box::new(PlaceChanged { launch, place, state, reason, message, job, requeue, host }))
}

/// Completes the end of an agent by the last report of the near side. Returns a record that precedes `agent.exited`.
pub(super) fn complete(place: &AgentPlace, exited: &mut AgentExited) -> Option<Body> {
    let is_own = exited.requested || exited.reason.is_some();
    // The processes that were killed here are those of the line.
    exited.killed = 0;
    match &place.last {
        Some(PlaceReport::Ended { status, signal, killed }) => {
            exited.killed = *killed;
            // The near side of an agent that stays reports the end before its own one, and may be killed in between.
            if place.position.is_some() {
                (exited.status, exited.signal) = (*status, *signal);
            }
            None
        }
        Some(PlaceReport::Refused { code, message }) => {
            (exited.status, exited.signal) = (None, None);
            let is_cancelled = is_own && code == "cancelled";
            if is_cancelled && place.position.is_some() {
                exited.reason.get_or_insert_with(|| place.lost("it was cut when the agent was to end"));
            }
            exited.exec_error = Some(message.clone()).filter(|_| !is_cancelled);
            None
        }
        Some(PlaceReport::Lost { message }) => {
            note_loss(place, exited, message);
            None
        }
        // A killed near side is the usual end of an agent that does not obey.
        _ if is_own => None,
        _ => {
            let how = match (exited.status, exited.signal) {
                (Some(status), _) => format!("ended with status {status}"),
                (None, Some(signal)) => format!("was ended by signal {signal}"),
                (None, None) => "ended with an unknown status".to_owned(),
            };
            let message = format!("the process agentd-keeper place {how}");
            if place.has_entered {
                note_loss(place, exited, &message);
                return Some(changed(exited.launch, place, PlaceState::Lost, Some(message), None));
            }
            (exited.status, exited.signal, exited.exec_error) = (None, None, Some(message));
            None
        }
    }
}

/// Notes that the status of the agent is unknown because the line was lost.
fn note_loss(place: &AgentPlace, exited: &mut AgentExited, message: &str) {
    (exited.status, exited.signal) = (None, None);
    if !exited.requested && exited.reason.is_none() {
        exited.reason = Some(place.lost(message));
    }
}
