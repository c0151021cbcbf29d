//! Maps each keeper to its session, by process id and start time. A process below a keeper is recognized as a
//! guest of that session.
//!
//! A keeper is entered when the daemon has talked to it, before its agent starts. An entry never becomes wrong: a
//! process that reuses the process id has another start time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use agentd_api::SessionId;

/// The keepers that this daemon has talked to, at most one for each session. Shared.
#[derive(Debug, Default)]
pub struct Keepers(Mutex<BTreeMap<u32, (u64, SessionId)>>);

impl Keepers {
    /// Enters the keeper of a session, and removes the session's former keeper.
    pub fn enter(&self, pid: u32, start_time: u64, session: &SessionId) {
        let mut keepers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|_, (_, held)| held != session);
        keepers.insert(pid, (start_time, session.clone()));
    }

    /// Returns the session of this keeper.
    pub fn session(&self, pid: u32, start_time: u64) -> Option<SessionId> {
        let keepers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.get(&pid).filter(|(started, _)| *started == start_time).map(|(_, session)| session.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_is_known_until_its_session_has_another_and_never_by_its_pid_alone() {
        let (keepers, one, two) = (Keepers::default(), "one".parse().unwrap(), "two".parse().unwrap());
        keepers.enter(7, 100, &one);
        keepers.enter(8, 100, &two);
        assert_eq!((keepers.session(7, 100), keepers.session(7, 101)), (Some(one.clone()), None));
        keepers.enter(9, 200, &one);
        assert_eq!((keepers.session(7, 100), keepers.session(9, 200)), (None, Some(one)));
        assert_eq!(keepers.session(8, 100), Some(two));
    }
}
