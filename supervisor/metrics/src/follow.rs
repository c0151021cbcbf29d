//! Turns the records of one session's journal into values.
//!
//! A follower sees each record once, in order. It remembers the times at which launches, turns and requests began, also
//! from records that an earlier daemon wrote. Only records that the present daemon applies live change a value.

use std::collections::BTreeMap;
use std::time::Duration;

use agentd_api::event::{AgentExited, AnsweredBy, LaunchReason, PermissionResolved, SyntheticCause, TurnEnded};
use agentd_api::session::{Condition, ConditionStatus, ConditionType};
use agentd_api::{Body, Event, PermissionId, TurnId, reason};
use jiff::Timestamp;

use crate::families::Metrics;
use crate::label::OTHER;

/// Times that a session's next records refer to.
#[derive(Debug, Default)]
pub struct Follower {
    launch: Option<Launch>,
    turn: Option<(TurnId, Timestamp)>,
    asked: BTreeMap<PermissionId, Timestamp>,
}

/// A launch whose outcome is not recorded yet.
#[derive(Debug)]
struct Launch {
    reason: &'static str,
    begun: Timestamp,
    /// End of the last step.
    step: Timestamp,
    /// Steps that have ended.
    done: Vec<&'static str>,
}

/// Returns the time between two records. A clock that was set back gives zero.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

impl Follower {
    /// Takes in a record. `live` has the metrics if this daemon applies the record live, and is `None` for a record of
    /// an earlier daemon.
    pub fn record(&mut self, event: &Event, live: Option<&Metrics>) {
        let now = event.time;
        match &event.body {
            Body::LaunchStarted(started) => {
                let reason = started.reason.as_str();
                self.launch = Some(Launch { reason, begun: now, step: now, done: Vec::new() });
                self.turn = None;
                self.asked.clear();
                if let (LaunchReason::Restart, Some(metrics)) = (started.reason, live) {
                    metrics.restarts.count([]);
                }
            }
            Body::Condition(condition) => self.condition(condition, now, live),
            Body::EnvironmentBuilt(built) => {
                self.step("environment", now, live);
                if let (Some(took), Some(metrics)) = (built.duration_us, live) {
                    metrics.environment_build_duration.observe([], Duration::from_micros(took));
                }
            }
            Body::AgentStarted(_) => self.step("agent", now, live),
            Body::ConversationOpened(_) => {
                self.step("conversation", now, live);
                self.end_launch("ready", now, live);
            }
            Body::LaunchFailed(failed) => {
                let outcome = if failed.reason == reason::STOPPED { "stopped" } else { "failed" };
                self.end_launch(outcome, now, live);
            }
            Body::AgentExited(exited) => {
                self.end_launch(if exited.requested { "stopped" } else { "failed" }, now, live);
                if let Some(metrics) = live {
                    metrics.agent_ends.count([end_cause(exited)]);
                }
            }
            Body::TurnStarted(started) if !started.again || self.turn.is_none() => {
                self.turn = Some((started.turn.clone(), now));
            }
            Body::TurnLimited(_) => {
                if let Some(metrics) = live {
                    metrics.rate_limits.count([]);
                }
            }
            Body::TurnEnded(ended) => self.end_turn(ended, now, live),
            Body::PermissionRequested(asked) => {
                self.asked.insert(asked.request.id.clone(), now);
            }
            Body::PermissionResolved(resolved) => {
                let asked = self.asked.remove(&resolved.permission);
                if let Some(metrics) = live {
                    let by = answered_by(resolved);
                    metrics.permission_answers.count([by]);
                    if let Some(asked) = asked {
                        metrics.permission_wait.observe([by], between(asked, now));
                    }
                }
            }
            Body::AgentDropped(dropped) => {
                if let Some(metrics) = live {
                    metrics.dropped_lines.add([], as_amount(dropped.lines));
                    metrics.dropped.add([], as_amount(dropped.bytes));
                }
            }
            _ => {}
        }
    }

    fn condition(&mut self, condition: &Condition, now: Timestamp, live: Option<&Metrics>) {
        let Condition { kind, status, reason, .. } = condition;
        match (kind, status) {
            (ConditionType::PrerequisitesMet, ConditionStatus::True) => self.step("prerequisites", now, live),
            (ConditionType::WorkspaceReady, ConditionStatus::True) => self.step("workspace", now, live),
            (ConditionType::EnvironmentReady, ConditionStatus::True | ConditionStatus::False) => {
                if let (Some(_), Some(metrics)) = (&self.launch, live) {
                    metrics.environment_builds.count([build_outcome(*status, reason)]);
                }
            }
            (ConditionType::AgentStarted, ConditionStatus::False) if reason == reason::PARKED => {
                if let Some(metrics) = live {
                    metrics.parkings.count([]);
                }
            }
            _ => {}
        }
    }

    /// Notes the end of a step. A step counts once in a launch.
    fn step(&mut self, step: &'static str, now: Timestamp, live: Option<&Metrics>) {
        let Some(launch) = self.launch.as_mut().filter(|launch| !launch.done.contains(&step)) else { return };
        launch.done.push(step);
        let began = std::mem::replace(&mut launch.step, now);
        if let Some(metrics) = live {
            metrics.launch_step_duration.observe([step], between(began, now));
        }
    }

    fn end_launch(&mut self, outcome: &'static str, now: Timestamp, live: Option<&Metrics>) {
        if let (Some(launch), Some(metrics)) = (self.launch.take(), live) {
            metrics.launches.count([launch.reason, outcome]);
            metrics.launch_duration.observe([outcome], between(launch.begun, now));
        }
    }

    fn end_turn(&mut self, ended: &TurnEnded, now: Timestamp, live: Option<&Metrics>) {
        let started = self.turn.take_if(|(turn, _)| *turn == ended.turn);
        let Some(metrics) = live else { return };
        metrics.turns.count([turn_outcome(ended)]);
        if let Some((_, started)) = started {
            metrics.turn_duration.observe([], between(started, now));
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts above 2^53 do not occur")]
fn as_amount(count: u64) -> f64 {
    count as f64
}

fn build_outcome(status: ConditionStatus, reason: &str) -> &'static str {
    match reason {
        _ if status == ConditionStatus::False => "failed",
        reason::GIVEN_AGAIN => "restored",
        reason::BUILT_WITHOUT | reason::PROVIDER_SKIPPED => "incomplete",
        _ => "built",
    }
}

fn end_cause(exited: &AgentExited) -> &'static str {
    match exited {
        AgentExited { requested: true, .. } => "requested",
        AgentExited { exceeded: Some(_), .. } => "limit",
        AgentExited { status: Some(0), .. } => "exited",
        _ => "crashed",
    }
}

fn turn_outcome(ended: &TurnEnded) -> &'static str {
    match (&ended.synthetic, ended.stop_reason.as_deref()) {
        (Some(synthetic), _) => match synthetic.cause {
            SyntheticCause::AgentExited => "agent-exited",
            SyntheticCause::AgentError => "agent-error",
            SyntheticCause::Dropped => "dropped",
            SyntheticCause::AnswerInvalid => "answer-invalid",
            SyntheticCause::Unknown => OTHER,
        },
        (None, Some("end_turn")) => "end-turn",
        (None, Some("max_tokens")) => "max-tokens",
        (None, Some("max_turn_requests")) => "max-turn-requests",
        (None, Some("refusal")) => "refusal",
        (None, Some("cancelled")) => "cancelled",
        (None, _) => OTHER,
    }
}

fn answered_by(resolved: &PermissionResolved) -> &'static str {
    let is_guest = resolved.cause.requester.as_ref().is_some_and(|requester| requester.session.is_some());
    match resolved.by {
        AnsweredBy::Policy => "policy",
        AnsweredBy::Client if is_guest => "session",
        AnsweredBy::Client => "client",
        AnsweredBy::Expiry => "timeout",
        AnsweredBy::Cancel => "cancelled",
        AnsweredBy::Unknown => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Format;

    /// Returns a record at a second of the journal's first minute.
    fn event(second: u32, kind: &str, data: &Value) -> Event {
        let line = json!({ "seq": 1, "time": format!("2026-01-01T00:00:{second:02}Z"), "kind": kind, "data": data });
        Event::parse(line.to_string().as_bytes()).unwrap()
    }

    fn condition(second: u32, kind: &str, status: &str, reason: &str) -> Event {
        let data = json!({
            "type": kind, "status": status, "reason": reason, "message": "", "observed_generation": 1,
            "last_transition_time": "2026-01-01T00:00:00Z",
        });
        event(second, "condition", &data)
    }

    fn page(metrics: &Metrics) -> String {
        metrics.page(Format::OpenMetrics, |_| ())
    }

    #[track_caller]
    fn assert_has(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.contains(&format!("{line}\n")), "{line}\n{page}");
        }
    }

    #[test]
    fn a_launch_is_counted_at_its_end_with_its_steps() {
        let (metrics, mut follower) = (Metrics::new("1"), Follower::default());
        let live = Some(&metrics);
        // The daemon writes the first record before the session has a driver, so the driver reads it later.
        follower.record(&event(0, "launch.started", &json!({ "launch": 1, "reason": "create" })), None);
        follower.record(&condition(1, "PrerequisitesMet", "True", "Met"), live);
        follower.record(&condition(1, "WorkspaceReady", "True", "Ready"), live);
        let built = json!({ "launch": 1, "digest": "", "variables": 1, "duration_us": 2_000_000 });
        follower.record(&event(4, "environment.built", &built), live);
        follower.record(&condition(4, "EnvironmentReady", "True", "Built"), live);
        follower.record(&condition(5, "PrerequisitesMet", "True", "Met"), live);
        let agent = json!({ "launch": 1, "pid": 7, "start_time": 8, "command": ["a"] });
        follower.record(&event(6, "agent.started", &agent), live);
        let opened = json!({ "launch": 1, "conversation": "c", "by": "new" });
        follower.record(&event(8, "conversation.opened", &opened), live);
        let exited = json!({ "launch": 1, "status": 0, "requested": true });
        follower.record(&event(9, "agent.exited", &exited), live);
        assert_has(
            &page(&metrics),
            &[
                "agentd_launches_total{reason=\"create\",outcome=\"ready\"} 1.0",
                "agentd_launches_total{reason=\"create\",outcome=\"stopped\"} 0.0",
                "agentd_launch_duration_seconds_sum{outcome=\"ready\"} 8.0",
                "agentd_launch_step_duration_seconds_sum{step=\"prerequisites\"} 1.0",
                "agentd_launch_step_duration_seconds_count{step=\"prerequisites\"} 1",
                "agentd_launch_step_duration_seconds_sum{step=\"environment\"} 3.0",
                "agentd_launch_step_duration_seconds_sum{step=\"conversation\"} 2.0",
                "agentd_environment_builds_total{outcome=\"built\"} 1.0",
                "agentd_environment_build_duration_seconds_sum 2.0",
                "agentd_agent_ends_total{cause=\"requested\"} 1.0",
            ],
        );
    }

    #[test]
    fn failures_restarts_and_parkings_are_counted() {
        let (metrics, mut follower) = (Metrics::new("1"), Follower::default());
        let live = Some(&metrics);
        follower.record(&event(0, "launch.started", &json!({ "launch": 2, "reason": "restart" })), live);
        follower.record(&condition(1, "EnvironmentReady", "False", "ProviderFailed"), live);
        let failed = json!({ "launch": 2, "reason": "ProviderFailed", "message": "" });
        follower.record(&event(2, "launch.failed", &failed), live);
        follower.record(&event(3, "agent.exited", &json!({ "launch": 2, "status": 7 })), live);
        follower.record(&condition(4, "AgentStarted", "False", "Parked"), live);
        follower.record(&event(5, "agent.dropped", &json!({ "lines": 3, "bytes": 40, "reason": "full" })), live);
        assert_has(
            &page(&metrics),
            &[
                "agentd_launches_total{reason=\"restart\",outcome=\"failed\"} 1.0",
                "agentd_environment_builds_total{outcome=\"failed\"} 1.0",
                "agentd_restarts_total 1.0",
                "agentd_parkings_total 1.0",
                "agentd_agent_ends_total{cause=\"crashed\"} 1.0",
                "agentd_dropped_lines_total 3.0",
                "agentd_dropped_bytes_total 40.0",
            ],
        );
    }

    #[test]
    fn a_turn_is_measured_from_its_first_prompt_and_a_turn_of_an_earlier_daemon_is_not_counted() {
        let (metrics, mut follower) = (Metrics::new("1"), Follower::default());
        let started = |turn: &str, again: bool| json!({ "turn": turn, "rpc": 1, "again": again });
        let ended = |turn: &str, reason: &str| json!({ "turn": turn, "stop_reason": reason });
        follower.record(&event(0, "turn.started", &started("t1", false)), None);
        follower.record(&event(1, "turn.ended", &ended("t1", "end_turn")), None);
        let live = Some(&metrics);
        follower.record(&event(2, "turn.started", &started("t2", false)), live);
        follower.record(&event(3, "turn.started", &started("t2", true)), live);
        follower.record(&event(7, "turn.ended", &ended("t2", "max_tokens")), live);
        let dropped = json!({ "turn": "t3", "synthetic": { "cause": "dropped", "detail": "" } });
        follower.record(&event(8, "turn.ended", &dropped), live);
        follower.record(&event(9, "turn.ended", &ended("t4", "of-a-later-protocol")), live);
        assert_has(
            &page(&metrics),
            &[
                "agentd_turns_total{outcome=\"end-turn\"} 0.0",
                "agentd_turns_total{outcome=\"max-tokens\"} 1.0",
                "agentd_turns_total{outcome=\"dropped\"} 1.0",
                "agentd_turns_total{outcome=\"other\"} 1.0",
                "agentd_turn_duration_seconds_sum 5.0",
                "agentd_turn_duration_seconds_count 1",
            ],
        );
    }
}
