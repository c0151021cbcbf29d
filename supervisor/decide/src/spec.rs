//! Changes of a session's specification: the merge of a patch, the comparison, and the part of the state about them.
//! Pure.

use agentd_api::reason;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionSpec};
use agentd_api::spec::{ChangedField, Effect, FIELDS, SpecChanged, SpecField, SpecPatch};
use agentd_api::{Code, Problem};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::state::{Run, State};

/// Reason why a change of the specification is refused. A refused change changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecRefusal {
    #[error("the changed specification is not valid: {0}")]
    Invalid(String),
    #[error("the field {field:?} of a session never changes")]
    Fixed { field: &'static str, detail: &'static str },
    #[error("the specification has generation {present}, and the request expects {expected}")]
    Generation { present: u64, expected: String },
}

impl SpecRefusal {
    pub fn problem(&self) -> Problem {
        let (code, hint) = match self {
            Self::Invalid(_) => {
                (Code::InvalidRequest, "docs/guide/specs.md lists the fields and their values".to_owned())
            }
            Self::Fixed { detail, .. } => (Code::FieldFixed, format!("{detail} Create another session instead.")),
            Self::Generation { .. } => {
                (Code::GenerationChanged, "read the session again, and repeat the change on its new state".to_owned())
            }
        };
        Problem::new(code, self.to_string()).hint(hint)
    }
}

/// Returns the specification with a patch applied (RFC 7396), and the changed fields.
pub fn patched(
    before: &SessionSpec,
    SpecPatch(patch): &SpecPatch,
) -> Result<(SessionSpec, Vec<ChangedField>), SpecRefusal> {
    let invalid = |error: serde_json::Error| SpecRefusal::Invalid(error.to_string());
    let old = serde_json::to_value(before).map_err(invalid)?;
    let mut new = old.clone();
    json_patch::merge(&mut new, &Value::Object(patch.clone()));
    let after: SessionSpec = serde_json::from_value(new).map_err(invalid)?;
    if before.command.is_some() && after.command.is_none() {
        let detail = "Without its command the session has no agent.";
        return Err(SpecRefusal::Fixed { field: "command", detail });
    }
    // Two notations of one value are equal, and so are a default and an absent field.
    let new = serde_json::to_value(&after).map_err(invalid)?;
    let differs = |field: &&SpecField| field.value(&old) != field.value(&new);
    let change = |field: &SpecField| match field.effect {
        Effect::Never => Err(SpecRefusal::Fixed { field: field.name, detail: field.detail }),
        effect => Ok(ChangedField { field: field.name.to_owned(), effect, from: field.value(&old).clone() }),
    };
    let changes = FIELDS.iter().filter(differs).map(change).collect::<Result<_, _>>()?;
    Ok((after, changes))
}

/// Changes of the specification that take effect with the next launch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AwaitingChanges(Vec<AwaitingField>);

/// A field whose value differs from the value of the running agent's launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AwaitingField {
    field: String,
    launched: Value,
}

impl AwaitingChanges {
    /// Notes the changes that wait for a launch. A field that is changed back waits no longer.
    fn note(&mut self, changed: &SpecChanged) {
        for change in changed.changes.iter().filter(|change| change.effect == Effect::NextLaunch) {
            if !self.0.iter().any(|awaiting| awaiting.field == change.field) {
                self.0.push(AwaitingField { field: change.field.clone(), launched: change.from.clone() });
            }
        }
        let Ok(present) = serde_json::to_value(&changed.spec) else { return };
        let field = |name: &str| FIELDS.iter().find(|field| field.name == name);
        self.0
            .retain(|awaiting| field(&awaiting.field).is_none_or(|field| *field.value(&present) != awaiting.launched));
    }
}

/// Times of the session's life.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeTimes {
    /// Start of the last launch's agent.
    pub started: Option<Timestamp>,
    /// End of the session. `None` while a launch or its agent runs.
    pub ended: Option<Timestamp>,
    /// Time since which the session has been ready, or not ready.
    turned: Option<Timestamp>,
    /// Time since which the session has needed a person. Absent in states stored by older releases.
    #[serde(default)]
    pub(crate) needed: Option<Timestamp>,
}

impl State {
    /// Applies the record of a changed specification.
    pub(crate) fn spec_changed(&mut self, changed: &SpecChanged) {
        // The keeper gets the plan of the launch, which is not changed any more.
        let has_begun = match self.run {
            Run::Running(_) => true,
            Run::Preparing(_) => self.keeper.is_some(),
            Run::Ended(_) => false,
        };
        if !has_begun {
            return;
        }
        self.awaiting.note(changed);
        if self.awaiting.0.is_empty() {
            // Everything is as the running agent's launch had it.
            return self.spec_launched();
        }
        let fields: Vec<&str> = self.awaiting.0.iter().map(|awaiting| awaiting.field.as_str()).collect();
        let message = format!("changes that take effect with the next launch: {}", fields.join(", "));
        let since = self.condition(ConditionType::SpecApplied).map(|known| known.last_transition_time);
        self.set_condition(&Condition {
            kind: ConditionType::SpecApplied,
            status: ConditionStatus::False,
            reason: reason::AWAITS_LAUNCH.to_owned(),
            message,
            observed_generation: changed.generation,
            last_transition_time: since.unwrap_or(self.updated),
        });
    }

    /// Applies the plan of a launch, which takes the whole specification.
    pub(crate) fn spec_launched(&mut self) {
        self.awaiting.0.clear();
        self.conditions.retain(|condition| condition.kind != ConditionType::SpecApplied);
    }

    /// Notes the times of changes that the last record made to this phase.
    pub(crate) fn note_times(&mut self, before: Phase) {
        let now = self.phase();
        if is_ended(now) && !is_ended(before) {
            self.times.ended = Some(self.updated);
        }
        if now.is_ready() != before.is_ready() || self.times.turned.is_none() {
            self.times.turned = Some(self.updated);
        }
    }

    /// Reports whether the conversation began outside of agentd, and this session has not opened it yet.
    pub(crate) fn is_adopting(&self) -> bool {
        self.conversation.is_some() && self.conversation_born.is_none() && !self.is_taken_over
    }

    /// Returns the summary of the session's state. `phase` includes restarts.
    pub fn ready(&self, generation: u64, phase: Phase, message: Option<&str>) -> Condition {
        let is_ready = phase.is_ready();
        let first_failure = self.conditions.iter().find(|condition| {
            condition.status != ConditionStatus::True && condition.kind != ConditionType::SpecApplied
        });
        let message = match (phase, message, first_failure) {
            (Phase::Idle, ..) => "the agent waits for a prompt",
            (Phase::Busy, ..) => "a turn is running, and further prompts are queued",
            (Phase::Limited, ..) => "a turn waits for the end of a rate limit, and further prompts are queued",
            (_, Some(message), _) => message,
            (Phase::Preparing | Phase::Waiting | Phase::Starting, None, Some(condition)) => &condition.message,
            (Phase::BackingOff, ..) => "the agent crashed and is started again",
            (Phase::Stopped, ..) => "the session was stopped",
            (Phase::Completed, ..) => "the session has done its prompts",
            _ => "the agent does not accept prompts",
        };
        Condition {
            kind: ConditionType::Ready,
            status: if is_ready { ConditionStatus::True } else { ConditionStatus::False },
            reason: name_of(phase).to_owned(),
            message: message.to_owned(),
            observed_generation: generation,
            last_transition_time: self.times.turned.unwrap_or(self.updated),
        }
    }
}

fn is_ended(phase: Phase) -> bool {
    matches!(phase, Phase::Stopped | Phase::Failed | Phase::Completed)
}

/// Returns the reason of the summary in a phase.
fn name_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending | Phase::Unknown => reason::PENDING,
        Phase::Preparing => reason::PREPARING,
        Phase::Waiting => reason::WAITING,
        Phase::Starting => reason::STARTING,
        Phase::Idle => reason::IDLE,
        Phase::Busy => reason::BUSY,
        Phase::Limited => reason::LIMITED,
        Phase::BackingOff => reason::BACKING_OFF,
        Phase::Stopping => reason::STOPPING,
        Phase::Stopped => reason::STOPPED,
        Phase::Failed => reason::FAILED,
        Phase::Completed => reason::COMPLETED,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> SessionSpec {
        serde_json::from_value(json!({
            "directory": "/d", "agent": "demo", "tags": ["a"], "limits": { "memory": "1K", "turn_seconds": 60 },
        }))
        .unwrap()
    }

    fn patch(patch: Value) -> Result<(SessionSpec, Vec<(String, Effect)>), SpecRefusal> {
        let patch: SpecPatch = serde_json::from_value(patch).unwrap();
        let (spec, changes) = patched(&spec(), &patch)?;
        Ok((spec, changes.into_iter().map(|change| (change.field, change.effect)).collect()))
    }

    #[test]
    fn a_patch_merges_and_names_what_changed() {
        let (after, changes) = patch(json!({
            "limits": { "memory": "2K", "turn_seconds": null }, "tags": ["b", "c"], "restart": "never",
        }))
        .unwrap();
        assert_eq!((after.limits.memory, after.limits.turn_seconds), (Some(2048), None));
        assert_eq!(after.tags, ["b", "c"]);
        let wanted = [
            ("restart", Effect::Live),
            ("limits.memory", Effect::NextLaunch),
            ("limits.turn_seconds", Effect::Live),
            ("tags", Effect::Live),
        ];
        assert_eq!(changes, wanted.map(|(field, effect)| (field.to_owned(), effect)));
    }

    #[test]
    fn a_patch_without_effect_changes_nothing() {
        for same in [
            json!({}),
            json!({ "limits": { "memory": 1024 } }),
            json!({ "limits": {} }),
            json!({ "name": null, "permissions": "ask", "permissions": null }),
            json!({ "environment": { "env": {} } }),
            json!({ "directory": "/d", "agent": "demo" }),
        ] {
            let (after, changes) = patch(same.clone()).unwrap();
            assert_eq!((after, changes), (spec(), Vec::new()), "{same}");
        }
    }

    #[test]
    fn a_fixed_field_or_an_invalid_value_is_refused() {
        for fixed in [
            json!({ "directory": "/e" }),
            json!({ "directory": null }),
            json!({ "workspace": "new" }),
            json!({ "agent": null }),
            json!({ "initial_prompt": "x" }),
        ] {
            let problem = patch(fixed.clone()).unwrap_err().problem();
            assert_eq!(problem.code, Code::FieldFixed, "{fixed}: {problem:?}");
        }
        for invalid in [
            json!({ "colour": "red" }),
            json!({ "limits": { "memory": "much" } }),
            json!({ "limits": null, "tags": "a" }),
            json!({ "environment": { "colour": 1 } }),
        ] {
            let problem = patch(invalid.clone()).unwrap_err().problem();
            assert_eq!(problem.code, Code::InvalidRequest, "{invalid}: {problem:?}");
        }
    }

    /// Applies records, each `(kind, data)`, to a new state.
    fn folded(records: &[(&str, Value)]) -> State {
        let mut state = State::new(Timestamp::UNIX_EPOCH);
        for (number, (kind, data)) in records.iter().enumerate() {
            let line = json!({ "seq": number + 1, "time": "2026-01-01T00:00:00Z", "kind": kind, "data": data });
            state.apply(&agentd_api::Event::parse(line.to_string().as_bytes()).unwrap());
        }
        state
    }

    #[test]
    fn a_change_waits_for_the_next_launch_from_the_moment_when_the_plan_is_made() {
        let launch = ("launch.started", json!({ "launch": 1, "reason": "create" }));
        let keeper = json!({ "pid": 2, "start_time": 1, "version": "1", "protocol": 1, "launch": 1 });
        let agent = ("agent.started", json!({ "launch": 1, "pid": 3, "start_time": 1, "command": [] }));
        let change = |from: Option<u64>, to: Option<u64>, generation: u64| {
            let changes = json!([{ "field": "limits.memory", "effect": "next-launch", "from": from }]);
            let spec = json!({ "directory": "/d", "limits": { "memory": to } });
            ("spec.changed", json!({ "generation": generation, "spec": spec, "changes": changes }))
        };
        let (keeper, raised, undone) = (("keeper.started", keeper), change(None, Some(1), 2), change(Some(1), None, 3));
        let ended = ("agent.exited", json!({ "launch": 1, "requested": false }));
        let awaits = |records: &[&(&str, Value)]| {
            let records: Vec<(&str, Value)> = records.iter().map(|record| (*record).clone()).collect();
            folded(&records).condition(ConditionType::SpecApplied).is_some()
        };
        assert!(!awaits(&[&launch, &raised, &keeper, &agent]), "the launch has the change");
        assert!(awaits(&[&launch, &keeper, &raised, &agent]), "the keeper has the plan before the change");
        assert!(awaits(&[&launch, &keeper, &agent, &raised]));
        assert!(!awaits(&[&launch, &keeper, &agent, &raised, &undone]), "it is as it was launched");
        assert!(!awaits(&[&launch, &keeper, &raised, &ended]), "a keeper without an agent: the launch begins again");
    }
}
