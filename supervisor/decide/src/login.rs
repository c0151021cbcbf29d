//! Logins of agents: the request `authenticate` before the conversation is opened, and the condition
//! `AuthenticationRequired`. Pure.

use agentd_api::login::{LoginKind, LoginMethod};
use agentd_api::reason;
use agentd_api::session::{Condition, ConditionStatus, ConditionType};
use serde::{Deserialize, Serialize};

use crate::acp::{self, RpcError};
use crate::batch::Batch;
use crate::next::{Facts, condition};
use crate::state::{Running, State};

const KIND: ConditionType = ConditionType::AuthenticationRequired;

/// The login of a launch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// The agent's answer to `authenticate`: nothing, or its error.
    answered: Option<Result<(), String>>,
}

impl Login {
    /// Applies the agent's answer to `authenticate`.
    pub(crate) fn answered(&mut self, error: Option<&RpcError>) {
        self.answered = Some(error.map_or(Ok(()), |error| Err(error.to_string())));
    }

    /// Returns the agent's words about a login that failed.
    pub(crate) fn error(&self) -> Option<&str> {
        self.answered.as_ref()?.as_ref().err().map(String::as_str)
    }
}

/// Logs in before the conversation is opened, if the configuration names a method, or a key of the launch has one.
pub(crate) fn step(state: &State, running: &Running) -> Option<Batch> {
    // The caller waits for a pending request.
    if running.login.answered.is_some() {
        return None;
    }
    // A terminal login is never requested by `authenticate` (ACP, "Authentication").
    let offers = |method: &&String| {
        state.login_methods.iter().any(|offered| offered.id == **method && offered.kind != LoginKind::Terminal)
    };
    let method = match &state.login {
        Some(configured) => Some(configured).filter(offers),
        None => state.key_logins.iter().find(offers),
    };
    Some(Batch::default().send(acp::authenticate(state.next_rpc, method?)))
}

/// Returns the record of an agent that requires a login.
pub(crate) fn required(state: &State, message: &str, facts: &Facts<'_>) -> Batch {
    Batch::of(condition(state, facts, KIND, ConditionStatus::True, reason::NOT_LOGGED_IN, message))
}

/// Returns what the answer to a prompt says about the login: a refusal for lack of one, or that it works again.
pub(crate) fn after_turn(state: &State, answer: Result<(), &RpcError>, facts: &Facts<'_>) -> Batch {
    match answer {
        Err(error) if acp::lacks_login(error) => {
            let way = way(state, facts);
            let message = format!(
                "the agent refused the prompt for lack of a login: {error}; {way}, then `agentctl stop` and `agentctl \
                 resume`"
            );
            let has_none = |one: &Condition| one.kind == KIND && one.reason == reason::NOT_LOGGED_IN;
            let is_first = state.completion.last.is_none() || state.conditions.iter().any(has_none);
            let reason = if is_first { reason::NOT_LOGGED_IN } else { reason::LOGIN_LOST };
            Batch::of(condition(state, facts, KIND, ConditionStatus::True, reason, message))
        }
        Ok(()) if state.holds(KIND) => {
            let message = "the agent works again";
            Batch::of(condition(state, facts, KIND, ConditionStatus::False, reason::LOGGED_IN, message))
        }
        _ => Batch::default(),
    }
}

/// Returns what to do about an agent that opens no conversation without a login.
pub(crate) fn remedy(state: &State, facts: &Facts<'_>) -> String {
    format!("{}, then `agentctl resume`", way(state, facts))
}

/// Returns the ways to a login.
fn way(state: &State, facts: &Facts<'_>) -> String {
    let offers: Vec<String> = state.login_methods.iter().map(described).collect();
    let offers = if offers.is_empty() { String::new() } else { format!(" (it offers: {})", offers.join(", ")) };
    let way = if facts.spec.command.is_some() {
        "log in with the agent's own program".to_owned()
    } else {
        format!("log in with `agentctl agent login {}`", facts.agent)
    };
    format!("{way}{offers}, or give its key as a secret in agentd.toml")
}

/// Describes a login method in a list.
fn described(method: &LoginMethod) -> String {
    match method.kind {
        LoginKind::Variables if !method.variables.is_empty() => {
            format!("{}: set {}", method.name, method.variables.join(" or "))
        }
        LoginKind::Terminal => format!("{} in a terminal", method.name),
        _ => method.name.clone(),
    }
}
