//! Watches whether an agent's process tree stays within its [`Limits`].

use std::time::{Duration, Instant};

use agentd_api::event::Exceeded;

use crate::os::{self, Family};
use crate::protocol::Limits;

/// Interval between two checks.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Watch {
    limits: Limits,
    next: Instant,
}

impl Watch {
    /// Makes a watch. Returns `None` if there are no limits.
    pub(crate) fn new(limits: Limits, now: Instant) -> Option<Self> {
        (limits != Limits::default()).then_some(Self { limits, next: now + EVERY })
    }

    /// Returns when the next check is due.
    pub(crate) fn due(&self) -> Instant {
        self.next
    }

    /// Checks the tree if the check is due. Returns the exceeded limit with a reason.
    pub(crate) fn look(&mut self, now: Instant, family: &mut Family) -> Option<(Exceeded, String)> {
        if now < self.next {
            return None;
        }
        self.next = now + EVERY;
        // If the tree cannot be listed (no free file descriptor, for example), the next check retries.
        let tree = family.tree().ok()?;
        over(
            self.limits,
            tree.len() as u64,
            || tree.iter().map(|pid| os::resident(*pid)).sum(),
            || tree.iter().map(|pid| os::proportional(*pid)).sum(),
        )
    }
}

/// Compares a tree with its limits. `most` is the sum of resident memory: cheap, and never too small, because it
/// counts shared memory several times. Only if it exceeds the limit, `exact` does the expensive measurement.
fn over(
    limits: Limits,
    processes: u64,
    most: impl FnOnce() -> u64,
    exact: impl FnOnce() -> u64,
) -> Option<(Exceeded, String)> {
    if let Some(allowed) = limits.processes.filter(|allowed| processes > *allowed) {
        return Some((Exceeded::Tasks, format!("it has {processes} processes, and {allowed} are allowed")));
    }
    let allowed = limits.memory_bytes?;
    if most() <= allowed {
        return None;
    }
    let used = exact();
    let message = || format!("its processes use {} KiB of memory, and {} KiB are allowed", used >> 10, allowed >> 10);
    (used > allowed).then(|| (Exceeded::Memory, message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exceeded_limit_is_reported_with_both_numbers() {
        let limits = Limits { memory_bytes: Some(8192), processes: Some(3) };
        assert_eq!(over(limits, 3, || 8192, || panic!("not asked")), None);
        let (what, message) = over(limits, 4, || 0, || 0).unwrap();
        assert_eq!((what, message.as_str()), (Exceeded::Tasks, "it has 4 processes, and 3 are allowed"));
        assert_eq!(over(limits, 1, || 9000, || 8000), None, "shared memory counts once");
        let (what, message) = over(limits, 1, || 99_999, || 10_240).unwrap();
        assert_eq!(what, Exceeded::Memory);
        assert_eq!(message, "its processes use 10 KiB of memory, and 8 KiB are allowed");
        assert_eq!(over(Limits::default(), 9, || panic!(), || panic!()), None);
        assert!(Watch::new(Limits::default(), Instant::now()).is_none());
    }
}
