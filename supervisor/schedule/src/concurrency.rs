//! Decides about a run while an earlier run of the schedule is active, as a `CronJob` of Kubernetes does.

use agentd_api::schedule::Concurrency;

/// Treatment of a run that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The run starts.
    Start,
    /// The run is skipped.
    Skip,
    /// The active runs are ended, and then the run starts.
    Replace,
}

/// Decides about a run beside `active` earlier runs.
pub fn admit(policy: Concurrency, active: usize) -> Admission {
    match policy {
        _ if active == 0 => Admission::Start,
        Concurrency::Allow => Admission::Start,
        Concurrency::Forbid => Admission::Skip,
        Concurrency::Replace => Admission::Replace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_counts_only_beside_an_active_run() {
        for policy in [Concurrency::Allow, Concurrency::Forbid, Concurrency::Replace] {
            assert_eq!(admit(policy, 0), Admission::Start);
        }
        let beside = |policy| admit(policy, 2);
        assert_eq!(beside(Concurrency::Allow), Admission::Start);
        assert_eq!(beside(Concurrency::Forbid), Admission::Skip);
        assert_eq!(beside(Concurrency::Replace), Admission::Replace);
    }
}
