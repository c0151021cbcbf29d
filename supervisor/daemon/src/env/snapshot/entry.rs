//! What is known of one login shell's snapshot, and what is to be done with it: no task, no shell, and no wait.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use agentd_keeper::protocol::Attributes;
use jiff::Timestamp;

use super::fingerprint::{Fingerprints, Watched};
use super::kept::Kept;
use super::login::Flight;
use super::path::Change;
use super::place::Outcome;
use super::{Taken, Times, Variables};
use crate::env::hooks::Tool;
use crate::env::quality::Quality;
use crate::env::secret::is_secret;
use crate::env::store::Vault;

/// After a failure the shell is left alone for so long, unless a file changes: one that hangs would hold up every launch.
pub(super) const PAUSE: Duration = Duration::from_mins(1);
/// A shorter value hides nothing, and everything would have it.
const SHORTEST: usize = 6;
pub(super) const ASKED_FOR: &str = "a fresh one was asked for";

#[derive(Default)]
pub(super) struct Entry {
    pub(super) good: Option<Good>,
    pub(super) watched: Arc<Fingerprints>,
    /// Why the good one is to be taken again, where that is known without a look at the files.
    pub(super) outdated: Option<String>,
    pub(super) failed: Option<Failed>,
    /// What the last capture's PATH has not, and the last accepted one had.
    pub(super) path: Change,
    pub(super) flight: Weak<Flight>,
    /// Whether launches need not wait for the flight.
    pub(super) in_background: bool,
    /// Rises with each capture that ends: what was looked at before says nothing of what is there then.
    pub(super) generation: u64,
    /// Rises with each request for a fresh one.
    pub(super) asked: u64,
    /// Set where the snapshot is forgotten while it is taken.
    pub(super) forgotten: bool,
    /// Whether the disk has been looked at.
    pub(super) loaded: bool,
    /// What is on the disk.
    pub(super) stored: Option<Kept>,
    /// Whether that is sealed; nothing where an earlier daemon wrote it.
    pub(super) sealed: Option<bool>,
    /// The last request for a fresh one whose answer was taken as it is.
    pub(super) accepted: u64,
    /// What changed in each of the last two runs: the shell's own files write it.
    pub(super) unwatched: Vec<PathBuf>,
    /// What changed in the first run of the capture under way.
    pub(super) suspects: Vec<PathBuf>,
    pub(super) left: u32,
    pub(super) hits: u64,
    pub(super) captures: u64,
    pub(super) failures: u64,
    pub(super) last_duration: Option<Duration>,
    /// Of a user's own: the tools whose hooks the start-up files install.
    pub(super) tools: Vec<&'static Tool>,
    /// Of a directory: the files that decide what hooks do there.
    pub(super) decisive: Vec<Watched>,
    /// Of a directory: what the last run of the shell met there.
    pub(super) outcome: Outcome,
    /// When it was last asked for.
    pub(super) used: Option<Instant>,
}

/// The snapshot that is given.
pub(super) struct Good {
    pub(super) variables: Arc<Variables>,
    pub(super) functions: Arc<Variables>,
    /// Names of secrets that the disk did not have.
    pub(super) missing: Vec<String>,
    /// Names of the other variables that the disk did not have: no launch before the restart had kept them.
    pub(super) dropped: Vec<String>,
    pub(super) captured: Timestamp,
    pub(super) complete: bool,
    /// The user's name, which the shell was given.
    pub(super) user: String,
    pub(super) quality: Quality,
    /// What else a child of the shell inherits.
    pub(super) attributes: Option<Attributes>,
}

/// A capture that gave nothing, or less than a terminal has.
pub(super) struct Failed {
    pub(super) at: Instant,
    pub(super) reason: String,
    pub(super) watched: Arc<Fingerprints>,
    /// Set where it gave an environment, by a weaker attempt.
    pub(super) degraded: bool,
}

/// Why a snapshot is to be taken again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Due {
    /// There is none, or it is known to be another now: launches wait for the new one.
    Now(String),
    /// Its time is over, and for all that is known it is true: launches do not wait.
    Expired,
}

/// Counts only: values may be secrets.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("hits", &self.hits).field("captures", &self.captures).finish_non_exhaustive()
    }
}

impl Entry {
    /// What an earlier daemon kept, as something to fall back to.
    pub(super) fn load(&mut self, file: &Path, vault: &Vault) {
        if std::mem::replace(&mut self.loaded, true) {
            return;
        }
        match Kept::read(file, vault) {
            Ok(Some(kept)) => {
                self.outdated = Some("it was taken before agentd was started".to_owned());
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
                tracing::warn!(file = %file.display(), %error, "a kept login shell's environment is not used");
            }
        }
    }

    /// Why it is to be taken again; `changed` is a watched file that is not as it was.
    pub(super) fn due(&self, times: Times, user: &str, changed: Option<&Path>) -> Option<Due> {
        let Some(good) = &self.good else { return Some(Due::Now("there is none".to_owned())) };
        if let Some(why) = &self.outdated {
            return Some(Due::Now(why.clone()));
        }
        if good.user != user {
            return Some(Due::Now("the user has another name".to_owned()));
        }
        if let Some(path) = changed {
            return Some(Due::Now(format!("{} has changed", path.display())));
        }
        (age(good.captured) >= times.of(good.complete)).then_some(Due::Expired)
    }

    /// Why the shell is not run again yet, after it failed; `unchanged` says that no file has changed since.
    pub(super) fn pausing(&self, unchanged: bool) -> Option<&Failed> {
        self.failed.as_ref().filter(|failed| unchanged && failed.at.elapsed() < PAUSE)
    }

    /// A shell's last words may have what it once gave. What no pipeline kept may be a secret too, whatever it is called.
    pub(super) fn without_secrets(&self, mut text: String) -> String {
        let dropped = self.stored.as_ref().map(|stored| stored.dropped.as_slice()).unwrap_or_default();
        let all = self.good.iter().flat_map(|good| good.variables.iter());
        let hidden =
            all.filter(|(name, value)| value.len() >= SHORTEST && (is_secret(name, value) || dropped.contains(name)));
        // The lines of a value are printed one by one, too.
        let mut values: Vec<String> = hidden.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect();
        values.extend(values.clone().iter().flat_map(|value| value.lines()).map(str::to_owned));
        values.retain(|value| value.len() >= SHORTEST);
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        for value in values {
            text = text.replace(&value, "‹secret›");
        }
        text
    }

    /// The capture under way.
    pub(super) fn flight(&self) -> Option<Arc<Flight>> {
        self.flight.upgrade().filter(|flight| !flight.is_over())
    }

    /// Whether a capture that answers this request is accepted as it is, because it was asked for.
    pub(super) fn accept_path(&mut self, asked: u64) -> bool {
        asked > std::mem::replace(&mut self.accepted, asked)
    }

    /// Whether a weaker capture must not take the place of what is there.
    pub(super) fn has_better(&self) -> bool {
        self.good.as_ref().is_some_and(|good| good.quality == Quality::Good)
    }

    /// Gives what is there, with what there is to say against it.
    pub(super) fn taken(&self) -> Option<Taken> {
        let good = self.good.as_ref()?;
        let failed = self.failed.as_ref();
        let is_degraded = failed.is_some_and(|failed| failed.degraded);
        // A degraded environment without a better one before it is not stale: its quality is reported instead.
        let stale = failed.filter(|failed| !failed.degraded || good.quality == Quality::Good).map(|failed| {
            let lost = good.lost().map(|lost| format!("; without {lost}")).unwrap_or_default();
            format!("the last good one is of {:.0}{lost}: {}", good.captured, failed.reason)
        });
        Some(Taken {
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
    /// What a restart lost of it, in words. Secrets are named; of the variables that no launch had kept there is the number.
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

    /// Fills in what the disk did not have from another capture.
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

/// A clock that went back makes nothing old.
pub(super) fn age(captured: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(captured)).unwrap_or_default()
}
