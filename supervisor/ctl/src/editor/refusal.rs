//! Turns errors of this program into errors that an editor shows.

use agentd_api::Code;
use agentd_client::Error as ClientError;
use serde_json::json;

use super::wire::{INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, Refusal};
use crate::error::Error;
use crate::failure::Failure;
use crate::prerequisite::described;
use agentd_api::reason::{AUTHENTICATION_REQUIRED, AUTHENTICATION_REQUIRED_CODE};
use agentd_screen::terminal::Screen;

/// Returns the error that an editor gets. The message has the remedy, because editors show nothing else.
pub(super) fn of(error: &Error) -> Refusal {
    let mut refusal = Refusal::new(code(error), text(error));
    if let Some(hint) = error.hint() {
        refusal.message.push_str("\nhint: ");
        refusal.message.push_str(&hint);
    }
    if let Error::Client(ClientError::Problem { problem, .. }) = error {
        refusal.data = Some(json!({ "code": problem.code }));
    }
    refusal
}

fn code(error: &Error) -> i64 {
    match error.problem_code() {
        Some(Code::NoSuchSession) => NOT_FOUND,
        Some(
            Code::MalformedRequest
            | Code::InvalidRequest
            | Code::InvalidId
            | Code::BodyTooLarge
            | Code::NoSuchAgent
            | Code::NoSuchDirectory
            | Code::NoSuchPrerequisite,
        ) => INVALID_PARAMS,
        _ => INTERNAL_ERROR,
    }
}

fn text(error: &Error) -> String {
    match error {
        Error::Client(ClientError::Problem { problem, .. }) if !problem.prerequisites.is_empty() => {
            let plain = Screen { terminal: false, colour: false };
            let mut text = "prerequisites of the session are not met".to_owned();
            for report in &problem.prerequisites {
                text.push('\n');
                text.push_str(described(report, plain).trim_end());
            }
            text
        }
        _ => agentd_api::chain(error),
    }
}

/// Returns the error for a failed launch, agent or turn, with the remedy.
pub(super) fn of_failure(failure: &Failure, remedy: &str) -> Refusal {
    let code = match failure.reason.as_str() {
        AUTHENTICATION_REQUIRED => AUTHENTICATION_REQUIRED_CODE,
        _ => INTERNAL_ERROR,
    };
    let mut refusal = Refusal::new(code, failure.lines().join("\n"));
    if !remedy.is_empty() {
        refusal.message.push_str("\nhint: ");
        refusal.message.push_str(remedy);
    }
    if !failure.reason.is_empty() {
        refusal.data = Some(json!({ "reason": failure.reason }));
    }
    refusal
}

#[cfg(test)]
mod tests {
    use agentd_api::Problem;

    use super::*;

    #[test]
    fn an_unmet_prerequisite_is_a_message_with_its_facts_its_remedy_and_the_hint() {
        let report: agentd_api::prerequisite::CheckReport = serde_json::from_value(json!({
            "name": "vpn", "outcome": "fail", "on_failure": "fail", "summary": "it is down", "facts": [],
            "remedy": "connect", "took_ms": 3, "checked_at": "2026-01-01T00:00:00Z",
        }))
        .unwrap();
        let mut problem = Problem::new(Code::PrerequisitesNotMet, "not met").hint("wait");
        problem.prerequisites = vec![report];
        let refusal = of(&Error::from(problem));
        assert_eq!(
            (refusal.code, refusal.message.as_str()),
            (
                INTERNAL_ERROR,
                "prerequisites of the session are not met\nvpn (fail): it is down\n  remedy: connect\nhint: wait"
            )
        );
        assert_eq!(refusal.data, Some(json!({ "code": "prerequisites-not-met" })));
    }

    #[test]
    fn an_unknown_session_is_not_found_and_a_missing_login_has_the_code_of_the_protocol() {
        assert_eq!(of(&Error::from(Problem::new(Code::NoSuchSession, "none"))).code, NOT_FOUND);
        assert_eq!(of(&Error::from(Problem::new(Code::NoSuchDirectory, "none"))).code, INVALID_PARAMS);
        let failure =
            Failure { reason: AUTHENTICATION_REQUIRED.into(), message: "sign in".into(), ..Failure::default() };
        let refusal = of_failure(&failure, "agentctl resume k3m");
        assert_eq!((refusal.code, refusal.message.as_str()), (-32000, "sign in\nhint: agentctl resume k3m"));
    }
}
