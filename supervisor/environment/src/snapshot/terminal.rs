//! Holds the environments that terminals sent, in memory only. Their number is limited, and an unreferenced
//! environment is dropped after a day.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agentd_api::SessionId;
use agentd_api::snapshot::TerminalSnapshotView;
use jiff::Timestamp;

use super::{Snapshot, Variables, path};
use crate::lock::locked;
use crate::login::quality::Quality;

/// Minimum time for which an unreferenced environment is held.
pub(crate) const LIFE: Duration = Duration::from_hours(24);
/// Limits on the number and the total bytes of held environments.
const MOST: usize = 128;
const MOST_BYTES: usize = 32 << 20;

/// The held environments.
#[derive(Default)]
pub struct Terminals {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    terminals: BTreeMap<String, Terminal>,
    /// Newest environment of each directory whose sessions share.
    of_directory: BTreeMap<PathBuf, String>,
}

struct Terminal {
    variables: Arc<Variables>,
    functions: Arc<Variables>,
    captured: Timestamp,
    /// Sequence number of arrival, because two environments may arrive at the same time.
    number: u64,
    bytes: usize,
}

/// Reason why a terminal's environment is refused.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    #[error("the variable name {name:?} is empty or has a `=` or NUL in it")]
    Name { name: String },
    #[error("the value of {name:?} has a NUL byte in it")]
    Value { name: String },
    #[error("{held} terminals' environments are held for sessions, and there is no room for another")]
    Full { held: usize },
}

/// Shows the number of environments and no values.
impl std::fmt::Debug for Terminals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminals").field("held", &self.lock().terminals.len()).finish()
    }
}

impl Terminals {
    fn lock(&self) -> MutexGuard<'_, Held> {
        locked(&self.held)
    }

    /// Adds an environment. If there is no room, the oldest unreferenced environments are dropped.
    pub fn add(
        &self,
        all: Variables,
        referred: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<TerminalSnapshotView, TerminalError> {
        for (name, value) in &all {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(TerminalError::Name { name: name.clone() });
            }
            if value.contains(&0) {
                return Err(TerminalError::Value { name: name.clone() });
            }
        }
        let bytes = all.iter().map(|(name, value)| name.len() + value.len()).sum();
        let (functions, variables) = all.into_iter().partition(|(name, _)| name.starts_with("BASH_FUNC_"));
        let mut held = self.lock();
        while held.terminals.len() >= MOST || held.bytes() + bytes > MOST_BYTES {
            let free = held.terminals.iter().filter(|(id, _)| !referred.contains(*id));
            let oldest = free.min_by_key(|(_, terminal)| terminal.number).map(|(id, _)| id.clone());
            let Some(oldest) = oldest else { return Err(TerminalError::Full { held: held.terminals.len() }) };
            held.remove(&oldest);
        }
        let number = held.terminals.values().map(|terminal| terminal.number + 1).max().unwrap_or_default();
        let (variables, functions) = (Arc::new(variables), Arc::new(functions));
        let terminal = Terminal { variables, functions, captured: now, number, bytes };
        // The id is as random as a session's id, so it cannot be guessed.
        let id = SessionId::random().to_string();
        let view = terminal.view(&id);
        held.terminals.insert(id, terminal);
        Ok(view)
    }

    /// Holds an environment again under its former id, if it is not held.
    pub(super) fn put(&self, id: &str, captured: Timestamp, (variables, functions): (Variables, Variables)) {
        let bytes = variables.iter().chain(&functions).map(|(name, value)| name.len() + value.len()).sum();
        let mut held = self.lock();
        let number = held.terminals.values().map(|terminal| terminal.number + 1).max().unwrap_or_default();
        let (variables, functions) = (Arc::new(variables), Arc::new(functions));
        let terminal = Terminal { variables, functions, captured, number, bytes };
        held.terminals.entry(id.to_owned()).or_insert(terminal);
    }

    pub fn holds(&self, id: &str) -> bool {
        self.lock().terminals.contains_key(id)
    }

    pub fn holds_for(&self, directory: &Path) -> bool {
        self.lock().of_directory.contains_key(directory)
    }

    /// Returns the environment with this id. If sessions of a directory share, the newest environment of any of
    /// them is returned.
    pub(super) fn get(&self, id: Option<&str>, shared: Option<&Path>) -> Option<Snapshot> {
        let mut held = self.lock();
        let Some(directory) = shared else { return held.terminals.get(id?).map(Terminal::snapshot) };
        let common = held.of_directory.get(directory).map(String::as_str);
        let newest = [id, common].into_iter().flatten().filter_map(|id| Some((id, held.terminals.get(id)?)));
        let (id, terminal) = newest.max_by_key(|(_, terminal)| terminal.number)?;
        let (id, taken) = (id.to_owned(), terminal.snapshot());
        held.of_directory.insert(directory.to_owned(), id);
        Some(taken)
    }

    /// Drops environments that are a day old and that no session refers to by id or directory.
    pub(super) fn tidy(&self, referred: &BTreeSet<String>, directories: &BTreeSet<PathBuf>, now: Timestamp) {
        let mut held = self.lock();
        held.of_directory.retain(|directory, _| directories.contains(directory));
        let common: BTreeSet<String> = held.of_directory.values().cloned().collect();
        held.terminals.retain(|id, terminal| {
            let old = Duration::try_from(now.duration_since(terminal.captured)).is_ok_and(|age| age >= LIFE);
            !old || referred.contains(id) || common.contains(id)
        });
    }

    pub(super) fn views(&self) -> Vec<TerminalSnapshotView> {
        let held = self.lock();
        let mut views: Vec<_> = held.terminals.iter().map(|(id, terminal)| terminal.view(id)).collect();
        views.sort_by_key(|view| view.captured);
        views
    }
}

impl Held {
    fn bytes(&self) -> usize {
        self.terminals.values().map(|terminal| terminal.bytes).sum()
    }

    fn remove(&mut self, id: &str) {
        self.terminals.remove(id);
        self.of_directory.retain(|_, common| common != id);
    }
}

impl Terminal {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            variables: Arc::clone(&self.variables),
            functions: Arc::clone(&self.functions),
            captured: self.captured,
            stale: None,
            degraded: false,
            background: 0,
            quality: Quality::default(),
            path: path::LostEntries::default(),
            renewing: false,
            place: super::place::VisitOutcome::default(),
            attributes: None,
        }
    }

    fn view(&self, id: &str) -> TerminalSnapshotView {
        TerminalSnapshotView {
            id: id.to_owned(),
            captured: self.captured,
            variables: self.variables.len(),
            functions: self.functions.len(),
            expires: self.captured.checked_add(LIFE).unwrap_or(Timestamp::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(terminals: &Terminals, value: &str, referred: &[&str]) -> Result<String, TerminalError> {
        let referred = referred.iter().map(|&id| id.to_owned()).collect();
        let all = vec![("A".to_owned(), value.as_bytes().to_vec()), ("BASH_FUNC_f%%".to_owned(), b"() {".to_vec())];
        terminals.add(all, &referred, Timestamp::UNIX_EPOCH).map(|view| {
            assert_eq!((view.variables, view.functions), (1, 1));
            view.id
        })
    }

    fn value(taken: Option<Snapshot>) -> Option<String> {
        taken.map(|taken| String::from_utf8(taken.variables[0].1.clone()).unwrap())
    }

    #[test]
    fn an_unreferenced_terminal_is_dropped_after_a_day_or_for_lack_of_room() {
        let terminals = Terminals::default();
        let (used, unused) = (add(&terminals, "1", &[]).unwrap(), add(&terminals, "2", &[]).unwrap());
        let referred = BTreeSet::from([used.clone()]);
        let at = |hours: u64| Timestamp::UNIX_EPOCH.checked_add(Duration::from_hours(hours)).unwrap();
        terminals.tidy(&referred, &BTreeSet::new(), at(23));
        assert!(terminals.holds(&unused));
        terminals.tidy(&referred, &BTreeSet::new(), at(24));
        assert!(!terminals.holds(&unused) && terminals.holds(&used));

        let first = add(&terminals, "first", &[&used]).unwrap();
        for n in 2..MOST {
            add(&terminals, &n.to_string(), &[&used]).unwrap();
        }
        assert!(terminals.holds(&first));
        add(&terminals, "one more", &[&used]).unwrap();
        assert!(!terminals.holds(&first) && terminals.holds(&used));
        let all: Vec<String> = terminals.views().into_iter().map(|view| view.id).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert!(matches!(add(&terminals, "x", &all), Err(TerminalError::Full { held: MOST })));
    }

    #[test]
    fn terminals_bytes_are_bounded_and_an_invalid_environment_is_refused() {
        let terminals = Terminals::default();
        let large = "x".repeat(MOST_BYTES / 2);
        let first = add(&terminals, &large, &[]).unwrap();
        add(&terminals, &large, &[]).unwrap();
        assert!(!terminals.holds(&first), "there is room for one of these");
        let refused = |name: &str, value: &[u8]| {
            terminals.add(vec![(name.to_owned(), value.to_vec())], &BTreeSet::new(), Timestamp::UNIX_EPOCH).is_err()
        };
        assert!(refused("", b"") && refused("A=B", b"") && refused("A", b"\0"));
    }

    #[test]
    fn sharing_sessions_of_a_directory_have_the_newest_terminal() {
        let terminals = Terminals::default();
        let (old, new) = (add(&terminals, "old", &[]).unwrap(), add(&terminals, "new", &[]).unwrap());
        let (here, there) = (Path::new("/here"), Path::new("/there"));
        assert!(!terminals.holds_for(here));
        assert_eq!(value(terminals.get(Some(&old), Some(here))).as_deref(), Some("old"));
        assert_eq!(value(terminals.get(Some(&new), Some(here))).as_deref(), Some("new"));
        assert_eq!(value(terminals.get(Some(&old), Some(here))).as_deref(), Some("new"), "it came later");
        assert_eq!(value(terminals.get(None, Some(here))).as_deref(), Some("new"));
        assert_eq!(value(terminals.get(Some(&old), Some(there))).as_deref(), Some("old"), "another directory");
        assert_eq!(value(terminals.get(Some(&old), None)).as_deref(), Some("old"), "one that does not share");
        assert_eq!(value(terminals.get(None, None)), None);
    }
}
