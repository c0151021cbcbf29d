//! Holds the state of one login shell's snapshot and decides when to capture it again. The module runs no task and
//! no shell, and never waits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use agentd_keeper::protocol::Attributes;
use jiff::Timestamp;

use super::fingerprint::{Fingerprints, Watched};
use super::login::Flight;
use super::path::LostEntries;
use super::place::VisitOutcome;
use super::{Snapshot, Times, Variables};
use crate::login::hooks::Tool;
use crate::login::quality::Quality;
use crate::store::StoredSnapshot;
use crate::store::Vault;
use agentd_config::secret::is_secret;

/// Pause after a failed capture, unless a file changes. Without the pause, a hanging shell would delay every
/// launch.
pub(super) const PAUSE: Duration = Duration::from_mins(1);
/// Minimum length of a hidden value. A shorter value occurs in too many texts.
const SHORTEST: usize = 6;
pub(super) const ASKED_FOR: &str = "a fresh capture was requested";

#[derive(Default)]
pub(super) struct Entry {
    pub(super) good: Option<Good>,
    pub(super) watched: Arc<Fingerprints>,
    /// Reason to capture again that is known without examining the files.
    pub(super) outdated: Option<String>,
    pub(super) failed: Option<Failed>,
    /// PATH entries of the last accepted capture that the newest capture lacks.
    pub(super) path: LostEntries,
    pub(super) flight: Weak<Flight>,
    /// Whether launches need not wait for the flight.
    pub(super) in_background: bool,
    /// Number of finished captures. A change shows that an earlier look at the files is out of date.
    pub(super) generation: u64,
    /// Number of requests for a fresh capture.
    pub(super) asked: u64,
    /// Set if the snapshot is forgotten during a capture.
    pub(super) forgotten: bool,
    /// Whether the stored file has been read.
    pub(super) loaded: bool,
    /// Content of the stored file.
    pub(super) stored: Option<StoredSnapshot>,
    /// Whether the stored file is sealed. `None` if an earlier daemon wrote it.
    pub(super) sealed: Option<bool>,
    /// Number of the last refresh request whose capture set the accepted PATH.
    pub(super) accepted: u64,
    /// Files that changed in each of the last two runs, because the shell's own start-up files write them.
    pub(super) unwatched: Vec<PathBuf>,
    /// Files that changed in the first run of the current capture.
    pub(super) suspects: Vec<PathBuf>,
    pub(super) left: u32,
    pub(super) hits: u64,
    pub(super) captures: u64,
    pub(super) failures: u64,
    pub(super) last_duration: Option<Duration>,
    /// For the user's snapshot: tools whose hooks the start-up files install.
    pub(super) tools: Vec<&'static Tool>,
    /// For a directory's snapshot: files that decide the effect of hooks there.
    pub(super) decisive: Vec<Watched>,
    /// For a directory's snapshot: result of the shell's last run there.
    pub(super) outcome: VisitOutcome,
    /// Time of the last request.
    pub(super) used: Option<Instant>,
}

/// The snapshot that launches receive.
pub(super) struct Good {
    pub(super) variables: Arc<Variables>,
    pub(super) functions: Arc<Variables>,
    /// Names of secrets that the stored file lacks.
    pub(super) missing: Vec<String>,
    /// Names of other variables that the stored file lacks, because no launch before the restart kept them.
    pub(super) dropped: Vec<String>,
    pub(super) captured: Timestamp,
    pub(super) complete: bool,
    /// Name of the user for which the shell ran.
    pub(super) user: String,
    pub(super) quality: Quality,
    /// Process attributes that a child of the shell inherits.
    pub(super) attributes: Option<Attributes>,
}

/// A capture that failed or gave less than a terminal.
pub(super) struct Failed {
    pub(super) at: Instant,
    pub(super) reason: String,
    pub(super) watched: Arc<Fingerprints>,
    /// Set if a weaker attempt gave an environment.
    pub(super) degraded: bool,
}

/// Reason to capture a snapshot again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Due {
    /// The snapshot is missing or known to be out of date. Launches wait for the new one.
    Now(String),
    /// The snapshot has reached its maximum age and no change is known. Launches do not wait.
    Expired,
}

/// Shows counts only, because values may be secrets.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("hits", &self.hits).field("captures", &self.captures).finish_non_exhaustive()
    }
}

impl Entry {
    /// Loads the snapshot that an earlier daemon stored, as a fallback.
    pub(super) fn load(&mut self, file: &Path, vault: &Vault) {
        if std::mem::replace(&mut self.loaded, true) {
            return;
        }
        match StoredSnapshot::read(file, vault) {
            Ok(Some(kept)) => {
                self.outdated = Some("it was captured before agentd started".to_owned());
                self.good = Some(Good {
                    variables: Arc::new(kept.variables()),
                    functions: Arc::new(kept.functions()),
                    missing: kept.secrets.clone(),
                    dropped: kept.dropped.clone(),
                    captured: kept.captured,
                    complete: false,
                    user: String::new(),
                    quality: Quality::default(),
                    attributes: kept.attributes.clone(),
                });
                self.stored = Some(kept);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "cannot use a stored login shell environment");
            }
        }
    }

    /// Returns why a new capture is due. `changed` is a watched file that has changed.
    pub(super) fn due(&self, times: Times, user: &str, changed: Option<&Path>) -> Option<Due> {
        let Some(good) = &self.good else { return Some(Due::Now("there is no snapshot".to_owned())) };
        if let Some(why) = &self.outdated {
            return Some(Due::Now(why.clone()));
        }
        if good.user != user {
            return Some(Due::Now("the user's name has changed".to_owned()));
        }
        if let Some(path) = changed {
            return Some(Due::Now(format!("{} has changed", path.display())));
        }
        (age(good.captured) >= times.of(good.complete)).then_some(Due::Expired)
    }

    /// Returns the failure that still delays the next run. `unchanged` reports that no file has changed since.
    pub(super) fn pausing(&self, unchanged: bool) -> Option<&Failed> {
        self.failed.as_ref().filter(|failed| unchanged && failed.at.elapsed() < PAUSE)
    }

    /// Hides known values in a shell's last output. Variables that no pipeline kept are hidden too, because they
    /// may be secrets under any name.
    pub(super) fn without_secrets(&self, mut text: String) -> String {
        let dropped = self.stored.as_ref().map(|stored| stored.dropped.as_slice()).unwrap_or_default();
        let all = self.good.iter().flat_map(|good| good.variables.iter());
        let hidden =
            all.filter(|(name, value)| value.len() >= SHORTEST && (is_secret(name, value) || dropped.contains(name)));
        // Output may also contain single lines of a value.
        let mut values: Vec<String> = hidden.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect();
        values.extend(values.clone().iter().flat_map(|value| value.lines()).map(str::to_owned));
        values.retain(|value| value.len() >= SHORTEST);
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        for value in values {
            text = text.replace(&value, "‹secret›");
        }
        text
    }

    /// Returns the current capture.
    pub(super) fn flight(&self) -> Option<Arc<Flight>> {
        self.flight.upgrade().filter(|flight| !flight.is_over())
    }

    /// Reports whether a capture accepts a changed PATH because a refresh was requested.
    pub(super) fn accept_path(&mut self, asked: u64) -> bool {
        asked > std::mem::replace(&mut self.accepted, asked)
    }

    /// Reports whether the current snapshot is good, so that a weaker capture must not replace it.
    pub(super) fn has_better(&self) -> bool {
        self.good.as_ref().is_some_and(|good| good.quality == Quality::Good)
    }

    /// Returns the current snapshot with its defects.
    pub(super) fn snapshot(&self) -> Option<Snapshot> {
        let good = self.good.as_ref()?;
        let failed = self.failed.as_ref();
        let is_degraded = failed.is_some_and(|failed| failed.degraded);
        // A degraded environment without a better one before it is not stale: its quality is reported instead.
        let stale = failed.filter(|failed| !failed.degraded || good.quality == Quality::Good).map(|failed| {
            let lost = good.lost().map(|lost| format!("; without {lost}")).unwrap_or_default();
            format!("using the last good snapshot, of {:.0}{lost}: {}", good.captured, failed.reason)
        });
        Some(Snapshot {
            variables: Arc::clone(&good.variables),
            functions: Arc::clone(&good.functions),
            captured: good.captured,
            stale,
            degraded: is_degraded || good.quality != Quality::Good,
            background: 0,
            quality: good.quality.clone(),
            path: self.path.clone(),
            renewing: false,
            place: self.outcome.clone(),
            attributes: good.attributes.clone(),
        })
    }
}

impl Good {
    /// Describes the variables that a restart lost. Secrets are named. Variables that no launch kept are counted.
    pub(super) fn lost(&self) -> Option<String> {
        let secrets =
            (!self.missing.is_empty()).then(|| format!("{}, which a restart of agentd lost", self.missing.join(", ")));
        let others = match self.dropped.len() {
            0 => None,
            1 => Some("1 variable that no launch had kept".to_owned()),
            count => Some(format!("{count} variables that no launch had kept")),
        };
        let lost: Vec<String> = secrets.into_iter().chain(others).collect();
        (!lost.is_empty()).then(|| lost.join(", and "))
    }

    /// Fills in variables that the stored file lacked from another capture.
    pub(super) fn fill(&mut self, variables: &Variables, functions: &Variables) {
        let mut lacking = [std::mem::take(&mut self.missing), std::mem::take(&mut self.dropped)];
        for (own, fresh) in [(&mut self.variables, variables), (&mut self.functions, functions)] {
            let had: Vec<_> =
                fresh.iter().filter(|(name, _)| lacking.iter().flatten().any(|lack| lack == name)).cloned().collect();
            for names in &mut lacking {
                names.retain(|name| !had.iter().any(|(fresh, _)| fresh == name));
            }
            if !had.is_empty() {
                Arc::make_mut(own).extend(had);
            }
        }
        [self.missing, self.dropped] = lacking;
    }
}

/// Returns the age of a capture. If the clock went back, the age is zero.
pub(super) fn age(captured: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(captured)).unwrap_or_default()
}
