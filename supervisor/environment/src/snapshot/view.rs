//! Builds the view of a login shell's snapshot, without values.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::snapshot::{LoginSnapshotView, SnapshotQuality, SnapshotState};
use agentd_keeper::protocol::Attributes;

use super::entry::{Due, age};
use super::fingerprint::Watched;
use super::login::Slot;
use super::{Snapshots, Times};
use crate::login::quality::Quality;
use crate::store::Vault;

/// Totals of the snapshots of all login shells that are in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotTotals {
    /// Number of uses without a run of the shell.
    pub hits: u64,
    /// Number of captures.
    pub captures: u64,
    /// Age of the oldest snapshot.
    pub oldest: Option<Duration>,
}

impl Snapshots {
    /// Returns the totals. Blocks while a launch reads a snapshot from a disk.
    pub fn totals(&self) -> SnapshotTotals {
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        slots.iter().fold(SnapshotTotals::default(), |totals, slot| {
            let entry = slot.entry();
            SnapshotTotals {
                hits: totals.hits + entry.hits,
                captures: totals.captures + entry.captures,
                oldest: totals.oldest.max(entry.good.as_ref().map(|good| age(good.captured))),
            }
        })
    }
}

impl Slot {
    /// Checks the files and returns the view.
    pub(super) fn view(&self, user: &str, times: Times, vault: &Vault) -> LoginSnapshotView {
        let seen = self.check_files(vault);
        let entry = self.entry();
        let due = entry.good.as_ref().and_then(|_| entry.due(times, user, seen.changed.as_deref()));
        let failed = entry.failed.as_ref();
        let reason = failed.map(|failed| failed.reason.clone());
        let (state, reason) = match (entry.flight(), &entry.good, failed, due) {
            (Some(_), ..) => (SnapshotState::Capturing, None),
            (None, None, ..) => (SnapshotState::Empty, reason),
            (None, Some(_), Some(failed), _) if failed.degraded => (SnapshotState::Degraded, reason),
            (None, Some(_), Some(_), _) => (SnapshotState::Stale, reason),
            (None, Some(_), None, Some(Due::Now(why))) => (SnapshotState::Outdated, Some(why)),
            (None, Some(_), None, Some(Due::Expired)) => {
                (SnapshotState::Outdated, Some("it is too old; the next launch captures it again".to_owned()))
            }
            (None, Some(_), None, None) => (SnapshotState::Fresh, None),
        };
        let good = entry.good.as_ref();
        let captured = good.map(|good| good.captured);
        let life = good.map(|good| times.of(good.complete));
        let quality = |quality: &Quality| match quality {
            Quality::Good => SnapshotQuality::Good,
            Quality::Degraded(_) => SnapshotQuality::Degraded,
        };
        LoginSnapshotView {
            shell: self.key.shell.clone(),
            home: self.key.home.clone(),
            directory: self.key.directory.clone(),
            state,
            reason,
            quality: good.map(|good| quality(&good.quality)),
            captured,
            age_seconds: captured.map(|captured| age(captured).as_secs()),
            expires: captured.zip(life).and_then(|(captured, life)| captured.checked_add(life).ok()),
            variables: good.map_or(0, |good| good.variables.len()),
            functions: good.map_or(0, |good| good.functions.len()),
            stored: entry.stored.as_ref().map_or(0, crate::store::StoredSnapshot::len),
            missing: good.map(|good| good.missing.clone()).unwrap_or_default(),
            path_lost: entry.path.lost.clone(),
            withheld: good.and_then(|good| good.attributes.as_ref()).map(Attributes::withheld).unwrap_or_default(),
            files: entry.watched.watched().map(Watched::shown).collect(),
            complete: good.is_some_and(|good| good.complete),
            unwatched: entry.unwatched.clone(),
            unanswered: seen.silent,
            left: entry.left,
            hits: entry.hits,
            captures: entry.captures,
            failures: entry.failures,
            last_duration_ms: entry.last_duration.map(|last| u64::try_from(last.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}
