//! Helpers that the built-in prerequisites share: hosts, ports and networks, time budgets, and facts that
//! explain a failed connection.
//!
//! These helpers do not decide about outcomes. Each prerequisite does that itself.

pub mod address;
pub mod explain;
pub mod text;
pub mod time;

use agentd_plugin_sdk::{Failure, Report};

/// Turns a failed check into a report with the outcome unknown.
///
/// A failure that the administrator must correct (a setting, a grant or an approval) stays a failure.
pub fn or_unknown(found: Result<Report, Failure>) -> Result<Report, Failure> {
    match found {
        Err(failure @ (Failure::Configuration(_) | Failure::NotGranted(_) | Failure::NotApproved(_))) => Err(failure),
        Err(failure) => Ok(Report::unknown(failure.message())),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_administrator_must_change_is_a_failure_and_all_else_a_report() {
        for failure in [Failure::configuration("host", "x"), Failure::NotGranted("x".to_owned())] {
            assert_eq!(or_unknown(Err(failure.clone())), Err(failure));
        }
        for failure in [Failure::unavailable("x"), Failure::not_found("x"), Failure::TimedOut("x".to_owned())] {
            assert_eq!(or_unknown(Err(failure)), Ok(Report::unknown("x")));
        }
        assert_eq!(or_unknown(Ok(Report::pass("x"))), Ok(Report::pass("x")));
    }
}
