//! What sessions' environments begin with: the login shell's environment, taken once and used while it is true; a terminal's; or
//! what was stored when the session was created.
//!
//! Secrets are in this process's memory and nowhere else; what is on the disk to fall back to has their names ([`kept`]). Which
//! variables an agent gets of all this is the providers' business, not this module's.

mod chosen;
mod fingerprint;
mod kept;
mod login;
mod terminal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::environment::SnapshotSource;
use agentd_api::snapshot::SnapshotList;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

pub(crate) use chosen::{Chosen, Finding, Wanted};
pub(crate) use terminal::{TerminalError, Terminals};

use super::capture::{Capture, CaptureError, Login, Variables};
use super::merge::hex;
use super::quality::Quality;
use super::seed::{Seed, SeedError};
use crate::directories::{DirectoryError, make_private};
use login::{Look, Slot, blocking};

/// Whose login shell, and which.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) shell: PathBuf,
    pub(crate) home: PathBuf,
}

/// A snapshot, as it is given to one launch.
#[derive(Clone)]
pub(crate) struct Taken {
    pub(crate) variables: Arc<Variables>,
    /// Exported bash functions, by the names they have in an environment.
    pub(crate) functions: Arc<Variables>,
    pub(crate) captured: Timestamp,
    /// Why it is not what would be had now.
    pub(crate) stale: Option<String>,
    /// How many processes were in the background when the shell ended, for those who waited for it.
    pub(crate) background: u32,
    /// Whether it is what a terminal has.
    pub(crate) quality: Quality,
}

/// What runs a login shell.
#[async_trait::async_trait]
pub(crate) trait LoginShell: Send + Sync + std::fmt::Debug {
    async fn login(&self, seed: &Seed, deadline: Instant) -> Result<Login, CaptureError>;
}

#[async_trait::async_trait]
impl LoginShell for Capture {
    async fn login(&self, seed: &Seed, deadline: Instant) -> Result<Login, CaptureError> {
        Capture::login(self, seed, deadline).await
    }
}

/// Where and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// As configured; without it, as the user database has it.
    pub(crate) home: Option<PathBuf>,
    pub(crate) shell: Option<PathBuf>,
    pub(crate) time_to_live: Duration,
    /// How long one run of the shell may take.
    pub(crate) longest: Duration,
    /// What login shells gave, without secrets: it can be had again.
    pub(crate) cache: PathBuf,
    /// What the sessions of one directory share, without secrets: it cannot.
    pub(crate) shared: PathBuf,
}

/// All snapshots of the daemon.
#[derive(Debug)]
pub(crate) struct Snapshots {
    shell: Arc<dyn LoginShell>,
    slots: Arc<Slots>,
    pub(crate) terminals: Arc<Terminals>,
}

#[derive(Debug)]
struct Slots {
    options: Options,
    known: Mutex<BTreeMap<Key, Arc<Slot>>>,
}

/// Why there is nothing to begin with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error(transparent)]
    Seed(#[from] SeedError),
    #[error(transparent)]
    Capture(Arc<CaptureError>),
    #[error("the login shell {shell:?} has not given its environment in time")]
    Late { shell: PathBuf },
    #[error("the environment of the session's terminal is not held any more, and was not stored")]
    TerminalGone,
    #[error("cannot read what is stored of the session's first environment in {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot store what the session's environment begins with in {path:?}")]
    Store { path: PathBuf, source: io::Error },
}

impl SnapshotError {
    /// One CamelCase word, for the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Capture(error) => error.login_reason(),
            Self::Seed(_) => "LoginShellFailed",
            Self::Late { .. } => "LoginShellTimedOut",
            Self::TerminalGone => "TerminalGone",
            Self::Read { .. } | Self::Store { .. } => "SnapshotNotKept",
        }
    }

    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Late { .. })
            || matches!(self, Self::Capture(error) if matches!(**error, CaptureError::TimedOut { .. }))
    }
}

/// Counts only: values may be secrets.
impl std::fmt::Debug for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taken")
            .field("variables", &self.variables.len())
            .field("captured", &self.captured)
            .field("stale", &self.stale)
            .finish_non_exhaustive()
    }
}

impl Snapshots {
    /// With the directories that it writes to.
    pub(crate) fn new(options: Options, shell: Arc<dyn LoginShell>) -> Result<Self, DirectoryError> {
        for directory in [&options.cache, &options.shared] {
            make_private(directory)?;
        }
        let slots = Arc::new(Slots { options, known: Mutex::default() });
        Ok(Self { shell, slots, terminals: Arc::default() })
    }

    /// The same under another configuration: what is held of terminals goes on, and what is known of login shells too, unless it is
    /// to be had or kept in another way.
    pub(crate) fn again(&self, options: Options, shell: Arc<dyn LoginShell>) -> Result<Self, DirectoryError> {
        let terminals = Arc::clone(&self.terminals);
        if options == self.slots.options {
            return Ok(Self { shell, slots: Arc::clone(&self.slots), terminals });
        }
        Ok(Self { terminals, ..Self::new(options, shell)? })
    }

    /// What the user's login shell gives: what is known of it while that is true; else it is run, once for all who ask.
    pub(crate) async fn get(&self, deadline: Instant) -> Result<Taken, SnapshotError> {
        let (slots, shell) = (Arc::clone(&self.slots), Arc::clone(&self.shell));
        // One hop to where files may be looked at, and not two: this is what every launch waits for.
        let looked = blocking(move || {
            let (seed, slot) = slots.own()?;
            Ok::<_, SeedError>((slot.look(&seed, &shell), slot))
        });
        match looked.await? {
            (Look::Have(taken), _) => Ok(taken),
            (Look::Wait(flight), slot) => match tokio::time::timeout_at(deadline.into(), flight.outcome()).await {
                Ok(Some(outcome)) => outcome.map_err(SnapshotError::Capture),
                Ok(None) | Err(_) => Err(SnapshotError::Late { shell: slot.key.shell.clone() }),
            },
        }
    }

    async fn own(&self) -> Result<(Seed, Arc<Slot>), SeedError> {
        let slots = Arc::clone(&self.slots);
        blocking(move || slots.own()).await
    }

    /// Runs the login shell, whatever is known of it.
    pub(crate) async fn refresh(&self, deadline: Instant) -> Result<Taken, SnapshotError> {
        let (_, slot) = self.own().await?;
        let asked = slot.outdate();
        let mut taken = self.get(deadline).await?;
        // A run that began before the request is no answer to it. One more is, unless the snapshot was forgotten meanwhile.
        if !slot.has_answered(asked) {
            taken = self.get(deadline).await?;
        }
        Ok(taken)
    }

    /// Runs the login shell, and keeps nothing of what it gives: whether it can be run now.
    pub(crate) async fn attempt(&self, deadline: Instant) -> Result<(), SnapshotError> {
        let (seed, slot) = self.own().await?;
        let late = || SnapshotError::Late { shell: slot.key.shell.clone() };
        let ran = tokio::time::timeout_at(deadline.into(), self.shell.login(&seed, deadline)).await;
        let login = ran.map_err(|_| late())?.map_err(|error| SnapshotError::Capture(Arc::new(error)))?;
        drop(login);
        Ok(())
    }

    /// Forgets what login shells gave, in memory and on the disk, the last good one too.
    pub(crate) async fn invalidate(&self) -> io::Result<()> {
        // One that is only on the disk yet has no slot before.
        let _ = self.own().await;
        let mut forgotten = std::mem::take(&mut *self.slots.lock()).into_values();
        blocking(move || forgotten.try_for_each(|slot| slot.forget())).await
    }

    /// How everything stands.
    pub(crate) async fn list(&self) -> SnapshotList {
        let user = self.own().await.map(|(seed, _)| seed.name).unwrap_or_default();
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        let login_shells = blocking(move || slots.iter().map(|slot| slot.view(&user)).collect()).await;
        SnapshotList { login_shells, terminals: self.terminals.views() }
    }

    /// Drops what no session refers to: `terminals` are the ids that sessions name, `directories` those of sessions that share.
    pub(crate) fn tidy(&self, terminals: &BTreeSet<String>, directories: &BTreeSet<PathBuf>) {
        const SOURCES: [SnapshotSource; 2] = [SnapshotSource::Terminal, SnapshotSource::Stored];
        const MONTH: Duration = Duration::from_hours(30 * 24);
        self.terminals.tidy(terminals, directories, Timestamp::now());
        let shared: BTreeSet<PathBuf> = directories
            .iter()
            .flat_map(|directory| SOURCES.map(|source| self.shared_file(directory, source)))
            .collect();
        remove_files(&self.slots.options.shared, Duration::ZERO, |file| shared.contains(file));
        let used: BTreeSet<PathBuf> = self.slots.lock().values().map(|slot| slot.file().to_owned()).collect();
        remove_files(&self.slots.options.cache, MONTH, |file| used.contains(file));
    }

    /// What the sessions of a directory have in common, without secrets.
    fn shared_file(&self, directory: &Path, source: SnapshotSource) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        let mut name = Sha256::new_with_prefix(format!("{source:?}\0"));
        name.update(directory.as_os_str().as_bytes());
        self.slots.options.shared.join(format!("{}.json", hex(&name.finalize())))
    }
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Slot>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files that the login shell reads of itself, as far as they are there.
    fn start_up_files(&self) -> Vec<PathBuf> {
        self.own().map(|(_, slot)| slot.start_up_files()).unwrap_or_default()
    }

    /// The user whose shell it is, asked anew each time: `chsh` is a change too. Blocks for as long as the user database does.
    fn own(&self) -> Result<(Seed, Arc<Slot>), SeedError> {
        let Options { home, shell, time_to_live, longest, cache, .. } = &self.options;
        let seed = Seed::find(home.as_deref(), shell.as_deref())?;
        let key = Key { shell: seed.shell.clone(), home: seed.home.clone() };
        let new = || {
            let name = hex(&Sha256::digest(format!("{}\0{}", key.shell.display(), key.home.display())));
            Arc::new(Slot::new(key.clone(), cache.join(format!("{name}.json")), *time_to_live, *longest))
        };
        let slot = Arc::clone(self.lock().entry(key.clone()).or_insert_with(new));
        Ok((seed, slot))
    }
}

/// Removes a directory's files that are older than this and not to be kept.
fn remove_files(directory: &Path, older: Duration, keep: impl Fn(&Path) -> bool) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let old = modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= older));
        if old && !keep(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
