//! Defines `agentctl wait` and the states of sessions.

use std::str::FromStr;

use agentd_api::quantity::Time;
use agentd_api::session::{ConditionStatus, ConditionType, Phase, SessionView};
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  agentctl wait k3m                                 until it accepts prompts
  agentctl wait k3m --for phase=idle --timeout 10m  until its turn is over
  agentctl wait k3m --for Completed --timeout 1h    until its prompts are done
  agentctl wait k3m --for PrerequisitesMet=False    until something is missing
  agentctl wait a1 b2 --for deleted                 until both are removed

Exit status: 0 if it holds for each session, 1 if it does not in time, 4 if
it can no longer hold without a request: phase=completed of a failed session.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WaitArgs {
    #[arg(required = true, value_name = "SESSION")]
    pub(crate) sessions: Vec<String>,
    /// A condition, CONDITION=True, False or Unknown, phase=PHASE, a phase such as Completed, or deleted
    #[arg(long = "for", value_name = "WHAT", default_value = "Ready")]
    pub(crate) wanted: Wanted,
    /// Wait at most this long in all; 0 looks once
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) timeout: Time,
}

/// A state of a session to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The session has the condition with this status.
    Condition(ConditionType, ConditionStatus),
    Phase(Phase),
    /// The session does not exist.
    Deleted,
}

impl Wanted {
    /// Reports whether a session that exists has the state.
    pub(crate) fn holds(&self, view: &SessionView) -> bool {
        match self {
            Self::Condition(kind, status) => {
                let mut conditions = view.status.conditions.iter();
                conditions.any(|condition| condition.kind == *kind && condition.status == *status)
            }
            Self::Phase(phase) => view.status.phase == *phase,
            Self::Deleted => false,
        }
    }

    /// Reports whether the session cannot come to the state by itself: it completes only once, and a completed session
    /// changes only by a resume.
    pub(crate) fn is_hopeless(&self, view: &SessionView) -> bool {
        match self {
            Self::Deleted => false,
            _ if view.status.phase == Phase::Completed => true,
            Self::Phase(Phase::Completed) => view.status.interactive,
            _ => false,
        }
    }

    /// Describes the session's present state in the terms of this state.
    pub(crate) fn present(&self, view: &SessionView) -> String {
        let found = match self {
            Self::Condition(kind, _) => view.status.conditions.iter().find(|condition| condition.kind == *kind),
            Self::Phase(_) | Self::Deleted => None,
        };
        let phase = view.status.phase.as_str();
        match (found, self) {
            (Some(condition), _) => {
                format!("{:?} is {:?}: {}", condition.kind, condition.status, condition.message)
            }
            (None, Self::Condition(kind, _)) => format!("it has no condition {kind:?}, and its phase is {phase}"),
            (None, _) => format!("its phase is {phase}"),
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Condition(kind, status) => write!(f, "{kind:?}={status:?}"),
            Self::Phase(phase) => write!(f, "phase={}", phase.as_str()),
            Self::Deleted => f.write_str("deleted"),
        }
    }
}

/// Parses a name as JSON has it; `None` for a name that this version does not know.
fn known<T: serde::de::DeserializeOwned + PartialEq>(name: &str, unknown: &T) -> Option<T> {
    serde_json::from_value(name.into()).ok().filter(|value| value != unknown)
}

/// Parses the name of a phase in the notation of a condition: `Completed`, `BackingOff`.
fn phase_of(text: &str) -> Option<Phase> {
    let is_name = text.starts_with(|first: char| first.is_ascii_uppercase());
    let mut kebab = String::new();
    for letter in text.chars().filter(|_| is_name) {
        if letter.is_ascii_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.push(letter.to_ascii_lowercase());
    }
    known(&kebab, &Phase::Unknown)
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "deleted" || text == "delete" {
            return Ok(Self::Deleted);
        }
        if let Some(phase) = text.strip_prefix("phase=") {
            return known(phase, &Phase::Unknown)
                .map(Self::Phase)
                .ok_or_else(|| format!("no session has the phase {phase:?}"));
        }
        if let Some(phase) = phase_of(text) {
            return Ok(Self::Phase(phase));
        }
        // kubectl writes condition=NAME=STATUS.
        let text = text.strip_prefix("condition=").unwrap_or(text);
        let (name, status) = text.split_once('=').unwrap_or((text, "True"));
        let kind = known(name, &ConditionType::Unknown)
            .ok_or_else(|| format!("no session has the condition {name:?}; docs/reference/conditions.md lists them"))?;
        let status = match status.to_ascii_lowercase().as_str() {
            "true" => ConditionStatus::True,
            "false" => ConditionStatus::False,
            "unknown" => ConditionStatus::Unknown,
            _ => return Err(format!("a condition is True, False or Unknown, and not {status:?}")),
        };
        Ok(Self::Condition(kind, status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_wait_for_is_parsed() {
        let condition = |kind, status| Ok(Wanted::Condition(kind, status));
        for (text, wanted) in [
            ("Ready", condition(ConditionType::Ready, ConditionStatus::True)),
            ("condition=Ready", condition(ConditionType::Ready, ConditionStatus::True)),
            ("Ready=false", condition(ConditionType::Ready, ConditionStatus::False)),
            ("KeeperAnswers=Unknown", condition(ConditionType::KeeperAnswers, ConditionStatus::Unknown)),
            ("phase=backing-off", Ok(Wanted::Phase(Phase::BackingOff))),
            ("Completed", Ok(Wanted::Phase(Phase::Completed))),
            ("BackingOff", Ok(Wanted::Phase(Phase::BackingOff))),
            ("deleted", Ok(Wanted::Deleted)),
        ] {
            assert_eq!(text.parse(), wanted, "{text}");
        }
        for invalid in ["", "ready", "Unknown", "phase=", "phase=unknown", "Ready=maybe", "condition="] {
            assert!(invalid.parse::<Wanted>().is_err(), "{invalid}");
        }
    }
}
