//! What the built-in prerequisites share: hosts, ports and networks as people write them, time that is shared out among what is asked,
//! and the facts that explain a connection that did not come about.
//!
//! Not its job: what an outcome is. Each prerequisite decides that.

pub mod address;
pub mod explain;
pub mod text;
pub mod time;

use agentd_plugin_sdk::{Failure, Report};

/// What a check gives that could not be made: a report that says so, which is no mistake of the plugin's. What the administrator must
/// change, a setting or a grant, stays a failure.
pub fn told(found: Result<Report, Failure>) -> Result<Report, Failure> {
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
            assert_eq!(told(Err(failure.clone())), Err(failure));
        }
        for failure in [Failure::unavailable("x"), Failure::not_found("x"), Failure::TimedOut("x".to_owned())] {
            assert_eq!(told(Err(failure)), Ok(Report::unknown("x")));
        }
        assert_eq!(told(Ok(Report::pass("x"))), Ok(Report::pass("x")));
    }
}
