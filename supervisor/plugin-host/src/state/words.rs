//! Conversions of failures and variables between the interface and this crate.

use std::time::Duration;

use crate::bindings::provider::agentd::plugin::{network, types};
use crate::call::Failure;
use crate::services::{NetworkProblem, Variables};
use crate::text::line;

/// Maximum length of a failure's text in bytes.
const FAILURE: usize = 4096;

pub(crate) fn variables(environment: Variables) -> Vec<types::Variable> {
    environment.into_iter().map(|(name, value)| types::Variable { name, value }).collect()
}

/// Converts the variables that a plugin sets for a program. Refuses variables that no environment can hold.
pub(super) fn environment(what: &str, variables: Variables) -> Result<Variables, Failure> {
    let is_unfit =
        |(name, value): &&(String, Vec<u8>)| name.is_empty() || name.contains(['=', '\0']) || value.contains(&0);
    if let Some((name, _)) = variables.iter().find(is_unfit) {
        let name = crate::text::shown(name);
        return Err(Failure::Failed(format!("{what} was given {name}, which no environment can hold")));
    }
    Ok(variables)
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl From<Failure> for types::Failure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Configuration { key, message } => Self::Configuration(types::SettingError { key, message }),
            Failure::NotGranted(text) => Self::NotGranted(text),
            Failure::NotApproved(text) => Self::NotApproved(text),
            Failure::NotFound(text) => Self::NotFound(text),
            Failure::TimedOut(text) => Self::TimedOut(text),
            Failure::TooLarge(text) => Self::TooLarge(text),
            Failure::Unavailable(text) => Self::Unavailable(text),
            Failure::Failed(text) => Self::Failed(text),
        }
    }
}

/// Limits the texts of a plugin's failure to one line, because people read them.
impl From<types::Failure> for Failure {
    fn from(failure: types::Failure) -> Self {
        let text = |text: String| line(&text, FAILURE);
        match failure {
            types::Failure::Configuration(error) => {
                Self::Configuration { key: text(error.key), message: text(error.message) }
            }
            types::Failure::NotGranted(said) => Self::NotGranted(text(said)),
            types::Failure::NotApproved(said) => Self::NotApproved(text(said)),
            types::Failure::NotFound(said) => Self::NotFound(text(said)),
            types::Failure::TimedOut(said) => Self::TimedOut(text(said)),
            types::Failure::TooLarge(said) => Self::TooLarge(text(said)),
            types::Failure::Unavailable(said) => Self::Unavailable(text(said)),
            types::Failure::Failed(said) => Self::Failed(text(said)),
        }
    }
}

impl From<NetworkProblem> for network::Problem {
    fn from(problem: NetworkProblem) -> Self {
        match problem {
            NetworkProblem::NoSuchHost(text) => Self::NoSuchHost(text),
            NetworkProblem::NotResolved(text) => Self::NotResolved(text),
            NetworkProblem::Refused(text) => Self::Refused(text),
            NetworkProblem::Unreachable(text) => Self::Unreachable(text),
            // The interface has a separate case for a timeout.
            NetworkProblem::TimedOut(text) | NetworkProblem::Other(Failure::TimedOut(text)) => Self::TimedOut(text),
            NetworkProblem::Other(failure) => Self::Other(failure.into()),
        }
    }
}
