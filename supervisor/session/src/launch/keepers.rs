//! Maps each keeper to its session, by process id and start time. A process below a keeper is recognized as a
//! guest of that session.
//!
//! A keeper is entered when the daemon has talked to it, before its agent starts. An entry never becomes wrong: a
//! process that reuses the process id has another start time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agentd_api::SessionId;

/// The keepers that this daemon has talked to, at most one for each session. Shared.
#[derive(Debug, Default)]
pub struct Keepers(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// Start time and session of a process.
    keepers: BTreeMap<u32, (u64, SessionId)>,
    /// Process of a session's keeper.
    pids: BTreeMap<SessionId, u32>,
}

impl Keepers {
    /// Enters the keeper of a session, and removes the session's former keeper.
    pub fn enter(&self, pid: u32, start_time: u64, session: &SessionId) {
        let mut entries = self.entries();
        entries.remove(session);
        if let Some((_, former)) = entries.keepers.insert(pid, (start_time, session.clone())) {
            // The process id was reused.
            entries.pids.remove(&former);
        }
        entries.pids.insert(session.clone(), pid);
    }

    /// Removes the keeper of a session that is removed.
    pub fn leave(&self, session: &SessionId) {
        self.entries().remove(session);
    }

    /// Returns the session of this keeper.
    pub fn session(&self, pid: u32, start_time: u64) -> Option<SessionId> {
        let entries = self.entries();
        entries.keepers.get(&pid).filter(|(started, _)| *started == start_time).map(|(_, session)| session.clone())
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn remove(&mut self, session: &SessionId) {
        if let Some(pid) = self.pids.remove(session) {
            self.keepers.remove(&pid);
        }
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
    #[test]
    fn no_entry_is_left_of_removed_sessions_and_reused_process_ids() {
        let (keepers, one, two) = (Keepers::default(), "one".parse().unwrap(), "two".parse().unwrap());
        keepers.enter(7, 100, &one);
        keepers.enter(7, 200, &two);
        assert_eq!((keepers.session(7, 100), keepers.session(7, 200)), (None, Some(two.clone())));
        keepers.enter(8, 300, &one);
        assert_eq!(keepers.session(7, 200), Some(two.clone()), "the former process id of another session");
        keepers.leave(&one);
        keepers.leave(&two);
        let entries = keepers.entries();
        assert!(entries.keepers.is_empty() && entries.pids.is_empty());
    }
}
