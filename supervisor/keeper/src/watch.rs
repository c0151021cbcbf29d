//! Watches that an agent's tree stays within [`Limits`].

use std::time::{Duration, Instant};

use agentd_api::event::Exceeded;

use crate::os::{self, Family};
use crate::protocol::Limits;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Watch {
    limits: Limits,
    next: Instant,
}

impl Watch {
    /// `None` where nothing is limited.
    pub(crate) fn new(limits: Limits, now: Instant) -> Option<Self> {
        (limits != Limits::default()).then_some(Self { limits, next: now + EVERY })
    }

    /// When to look.
    pub(crate) fn due(&self) -> Instant {
        self.next
    }

    /// Looks where it is time to, and says which limit is passed.
    pub(crate) fn look(&mut self, now: Instant, family: &mut Family) -> Option<(Exceeded, String)> {
        if now < self.next {
            return None;
        }
        self.next = now + EVERY;
        // Where it cannot be told (no descriptor is free, say) it is asked again.
        let tree = family.tree().ok()?;
        over(
            self.limits,
            tree.len() as u64,
            || tree.iter().map(|pid| os::resident(*pid)).sum(),
            || tree.iter().map(|pid| os::proportional(*pid)).sum(),
        )
    }
}

/// The sum of resident memory counts what is shared as often as it is shared: it is never too small, and cheap. Only where it is
/// above the limit the dear question is asked.
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
    fn a_limit_that_is_passed_is_named_with_both_numbers() {
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
