//! Provides the environments with which sessions start. The source is the login shell's environment, captured once
//! and reused, or a terminal's environment, or the environment that was stored when the session was created.
//!
//! Values are held in memory. As a fallback, the disk holds the values that pipelines kept and that are not secret;
//! other variables are stored by name only (`store`). Providers decide which of these variables an agent receives.

mod depends;
mod entry;
mod fingerprint;
mod kept_terminal;
mod login;
mod path;
mod place;
mod session_snapshot;
mod terminal;
#[cfg(test)]
mod tests;
mod view;
mod watcher;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use agentd_api::environment::SnapshotSource;
use agentd_api::reason;
use agentd_api::snapshot::SnapshotList;
use agentd_keeper::protocol::Attributes;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

pub use place::SnapshotPlace;
pub(crate) use session_snapshot::LookedUp;
pub use session_snapshot::{SessionSnapshot, SnapshotFinding, SnapshotRequest};
pub use terminal::TerminalError;
pub(crate) use terminal::Terminals;
pub use view::SnapshotTotals;

use super::merge::Environment;
use super::store::Vault;
use crate::blocking::blocking;
use crate::lock::locked;
use crate::login::capture::{Capture, CaptureError, Login, Variables};
use crate::login::quality::Quality;
use crate::login::seed::{PlaceUser, Seed, SeedError};
use agentd_api::hex;
use agentd_config::LoginSource;
use agentd_host::capability::Mounts;
use agentd_host::directories::{DirectoryError, make_private};
use login::{Lookup, Slot, Terms};

/// Identity of a login shell's snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub shell: PathBuf,
    pub home: PathBuf,
    pub sources: Vec<LoginSource>,
    /// Directory that the shell entered after its first prompt. Without a directory, the shell stayed in the home
    /// directory.
    pub directory: Option<PathBuf>,
}

impl Key {
    fn digest(&self) -> impl AsRef<[u8]> + use<> {
        use std::os::unix::ffi::OsStrExt as _;
        let mut digest = Sha256::new_with_prefix(format!("{}\0{}", self.shell.display(), self.home.display()));
        if let Some(directory) = &self.directory {
            digest.update(b"\0");
            digest.update(directory.as_os_str().as_bytes());
        }
        if self.sources != LoginSource::DEFAULT {
            digest.update(format!("\0{:?}", self.sources));
        }
        digest.finalize()
    }
}

/// A snapshot as one launch receives it.
#[derive(Clone)]
pub struct Snapshot {
    pub variables: Arc<Variables>,
    /// Exported bash functions, by their names in an environment.
    pub functions: Arc<Variables>,
    pub captured: Timestamp,
    /// Reason why a new capture could differ.
    pub stale: Option<String>,
    /// Whether the last run of the shell gave less than a terminal.
    pub degraded: bool,
    /// Number of background processes that the shell left, for callers that waited for the capture.
    pub background: u32,
    /// Reports how closely the snapshot matches a terminal's environment.
    pub quality: Quality,
    /// PATH entries that were lost since the last accepted capture.
    pub path: path::LostEntries,
    /// Whether the snapshot has expired and is being captured again.
    pub renewing: bool,
    /// Result for the session's directory, if the shell had to enter it.
    pub place: place::VisitOutcome,
    /// Process attributes that a child of the shell inherits, if known.
    pub attributes: Option<Attributes>,
}

/// Maximum age of a login shell's snapshot whose files have not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Applies if all files on which the snapshot depends are known.
    pub complete: Duration,
    /// Applies if the shell cannot report the files that it read.
    pub incomplete: Duration,
}

impl Times {
    pub fn of(self, complete: bool) -> Duration {
        if complete { self.complete } else { self.incomplete.min(self.complete) }
    }
}

/// Runs a login shell.
#[async_trait::async_trait]
pub trait LoginShell: Send + Sync + std::fmt::Debug {
    /// Runs the shell in the user's home. With a directory, the shell enters it after its first prompt, like a
    /// user's `cd`.
    async fn login(&self, seed: &Seed, directory: Option<&Path>, deadline: Instant) -> Result<Login, CaptureError>;
}

#[async_trait::async_trait]
impl LoginShell for Capture {
    async fn login(&self, seed: &Seed, directory: Option<&Path>, deadline: Instant) -> Result<Login, CaptureError> {
        self.login_in(seed, directory, deadline).await
    }
}

/// Settings of snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// User of the place whose login shell runs. Without it, the user of this machine.
    pub user: Option<PlaceUser>,
    /// Configured home directory. Without it, the user database decides.
    pub home: Option<PathBuf>,
    pub shell: Option<PathBuf>,
    /// Sources that a login reads besides the shell's files.
    pub sources: Vec<LoginSource>,
    pub times: Times,
    /// Time limit of one run of the shell.
    pub longest: Duration,
    /// Directory of stored login snapshots, without secrets. Its content can be rebuilt.
    pub cache: PathBuf,
    /// Directory of the environments that sessions of one directory share, without secrets. Its content cannot be
    /// rebuilt.
    pub shared: PathBuf,
}

/// All snapshots of the daemon.
#[derive(Debug)]
pub struct Snapshots {
    shell: Arc<dyn LoginShell>,
    slots: Arc<Slots>,
    pub terminals: Arc<Terminals>,
    /// Configuration that applies after `take_effect`.
    next: Option<(Options, Arc<Vault>)>,
}

/// State of login shells. It survives a reload.
#[derive(Debug)]
struct Slots {
    options: Mutex<Options>,
    vault: Mutex<Arc<Vault>>,
    known: Mutex<BTreeMap<Key, Arc<Slot>>>,
    /// Names of the variables that pipelines kept since the configuration was last loaded.
    names: Arc<Mutex<BTreeSet<String>>>,
    /// Permits that limit the number of running login shells.
    turns: Arc<Semaphore>,
    /// Mount table, by which files on servers are known.
    mounts: Mounts,
    /// Time of the capture whose kept variables are all stored.
    settled: Mutex<Option<Timestamp>>,
}

/// Maximum number of login shells that run concurrently.
const TURNS: usize = 4;

/// Reason why no start environment is available.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    Seed(#[from] SeedError),
    #[error(transparent)]
    Capture(Arc<CaptureError>),
    #[error("the login shell {shell:?} did not return its environment in time")]
    Late { shell: PathBuf },
    #[error("the environment of the session's terminal is no longer held and was not stored")]
    TerminalGone,
    #[error("cannot read the session's stored first environment in {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot store the session's first environment in {path:?}")]
    Store { path: PathBuf, source: io::Error },
}

impl SnapshotError {
    /// Returns the CamelCase reason for the condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Capture(error) => error.login_reason(),
            Self::Seed(_) => reason::LOGIN_SHELL_FAILED,
            Self::Late { .. } => reason::LOGIN_SHELL_TIMED_OUT,
            Self::TerminalGone => reason::TERMINAL_GONE,
            Self::Read { .. } | Self::Store { .. } => reason::SNAPSHOT_NOT_KEPT,
        }
    }

    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Late { .. })
            || matches!(self, Self::Capture(error) if matches!(**error, CaptureError::TimedOut { .. }))
    }
}

/// Shows counts only, because values may be secrets.
impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("variables", &self.variables.len())
            .field("captured", &self.captured)
            .field("stale", &self.stale)
            .finish_non_exhaustive()
    }
}

impl Snapshots {
    /// Creates the snapshots and their directories.
    pub fn new(options: Options, shell: Arc<dyn LoginShell>, vault: Arc<Vault>) -> Result<Self, DirectoryError> {
        for directory in [&options.cache, &options.shared] {
            make_private(directory)?;
        }
        let (options, vault, turns) = (Mutex::new(options), Mutex::new(vault), Arc::new(Semaphore::new(TURNS)));
        let slots = Arc::new(Slots {
            options,
            vault,
            known: Mutex::default(),
            names: Arc::default(),
            settled: Mutex::default(),
            turns,
            mounts: Mounts::default(),
        });
        Ok(Self { shell, slots, terminals: Arc::default(), next: None })
    }

    /// Copies these snapshots for a new configuration, which applies after `take_effect`.
    #[must_use]
    pub fn reconfigured(&self, options: Options, shell: Arc<dyn LoginShell>, vault: Arc<Vault>) -> Self {
        let (slots, terminals) = (Arc::clone(&self.slots), Arc::clone(&self.terminals));
        Self { shell, slots, terminals, next: Some((options, vault)) }
    }

    /// Applies its configuration. Terminals' environments stay. Login snapshots stay too, unless the home directory
    /// or the shell changed. The names that pipelines keep are collected again.
    pub fn take_effect(&self) {
        let (slots, Some((options, vault))) = (&self.slots, self.next.clone()) else { return };
        let before = std::mem::replace(&mut *locked(&slots.options), options.clone());
        if (before.home, before.shell) != (options.home, options.shell) {
            slots.lock().clear();
        }
        *locked(&slots.vault) = vault;
        locked(&slots.names).clear();
        *locked(&slots.settled) = None;
    }

    /// Returns the environment of the user's login shell. An up-to-date snapshot is reused. Otherwise the shell
    /// runs once for all concurrent requests.
    #[boxed]
    pub async fn get(&self, deadline: Instant) -> Result<Snapshot, SnapshotError> {
        self.look_up(None, deadline).await
    }

    /// Returns the environment of the login shell in a directory, or in the home directory ([`place`]).
    async fn look_up(
        &self,
        destination: Option<place::Destination>,
        deadline: Instant,
    ) -> Result<Snapshot, SnapshotError> {
        let (slots, shell) = (Arc::clone(&self.slots), Arc::clone(&self.shell));
        // Every launch waits for this call, so it uses one blocking task instead of two.
        let looked = blocking(move || {
            let (seed, slot) = slots.of(destination)?;
            Ok::<_, SeedError>((slot.look_up(&seed, &shell, &slots.terms()), slot))
        });
        let (lookup, slot) = looked.await?;
        waited(lookup, &slot, deadline).await
    }

    async fn own(&self) -> Result<(Seed, Arc<Slot>), SeedError> {
        let slots = Arc::clone(&self.slots);
        blocking(move || slots.own()).await
    }

    /// Runs the login shell even if the snapshot is up to date.
    #[boxed]
    pub async fn recapture(&self, deadline: Instant) -> Result<Snapshot, SnapshotError> {
        let (_, slot) = self.own().await?;
        let asked = slot.outdate();
        // Snapshots of directories are captured again by the launches that need them.
        let of_directories: Vec<_> =
            self.slots.lock().values().filter(|slot| slot.key.directory.is_some()).cloned().collect();
        for slot in of_directories {
            slot.outdate();
        }
        let mut taken = self.get(deadline).await?;
        // A run that began before the request does not answer it. A second run does, unless the snapshot was
        // forgotten meanwhile.
        if !slot.has_answered(asked) {
            taken = self.get(deadline).await?;
        }
        Ok(taken)
    }

    /// Runs the login shell and discards the result, to test whether the shell can run.
    #[boxed]
    pub async fn attempt(&self, deadline: Instant) -> Result<(), SnapshotError> {
        let (seed, slot) = self.own().await?;
        let late = || SnapshotError::Late { shell: slot.key.shell.clone() };
        let ran = tokio::time::timeout_at(deadline.into(), self.shell.login(&seed, None, deadline)).await;
        let login = ran.map_err(|_| late())?.map_err(|error| SnapshotError::Capture(Arc::new(error)))?;
        drop(login);
        Ok(())
    }

    /// Drops all login snapshots, in memory and on disk.
    #[boxed]
    pub async fn invalidate(&self) -> io::Result<()> {
        // Creates the slot of a snapshot that exists only on disk.
        let _ = self.own().await;
        let mut forgotten = std::mem::take(&mut *self.slots.lock()).into_values();
        blocking(move || forgotten.try_for_each(|slot| slot.forget())).await
    }

    /// Returns the state of all snapshots.
    #[boxed]
    pub async fn list(&self) -> SnapshotList {
        let user = self.own().await.map(|(seed, _)| seed.name).unwrap_or_default();
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        let Terms { times, vault, .. } = self.slots.terms();
        let view = move || slots.iter().map(|slot| slot.view(&user, times, &vault)).collect();
        let login_shells = blocking(view).await;
        SnapshotList { login_shells, terminals: self.terminals.views() }
    }

    /// Records the variables that a pipeline kept of a login shell's environment, and stores them.
    pub(super) async fn settle(&self, captured: Timestamp, kept: BTreeSet<String>) {
        let is_new = {
            let mut names = locked(&self.slots.names);
            let before = names.len();
            names.extend(kept);
            names.len() > before
        };
        if !is_new && *locked(&self.slots.settled) == Some(captured) {
            return;
        }
        let slots = Arc::clone(&self.slots);
        blocking(move || {
            let (known, terms) = (slots.lock().values().cloned().collect::<Vec<_>>(), slots.terms());
            for slot in known {
                slot.settle(captured, &terms);
            }
            *locked(&slots.settled) = Some(captured);
        })
        .await;
    }

    /// Drops files and environments without a session. `terminals` are the ids that sessions name, and
    /// `directories` those of sessions that share.
    pub fn tidy(&self, terminals: &BTreeSet<String>, directories: &BTreeSet<PathBuf>) {
        const SOURCES: [SnapshotSource; 2] = [SnapshotSource::Terminal, SnapshotSource::Stored];
        const MONTH: Duration = Duration::from_hours(30 * 24);
        self.terminals.tidy(terminals, directories, Timestamp::now());
        let shared: BTreeSet<PathBuf> = directories
            .iter()
            .flat_map(|directory| SOURCES.map(|source| self.shared_file(directory, source)))
            .collect();
        remove_files(&locked(&self.slots.options).shared.clone(), Duration::ZERO, |file| shared.contains(file));
        let used: BTreeSet<PathBuf> = self.slots.lock().values().map(|slot| slot.file().to_owned()).collect();
        remove_files(&locked(&self.slots.options).cache.clone(), MONTH, |file| used.contains(file));
    }

    /// Returns the file that the sessions of a directory share, without secrets.
    fn shared_file(&self, directory: &Path, source: SnapshotSource) -> PathBuf {
        use std::os::unix::ffi::OsStrExt as _;
        let mut name = Sha256::new_with_prefix(format!("{source:?}\0"));
        name.update(directory.as_os_str().as_bytes());
        locked(&self.slots.options).shared.join(format!("{}.json", hex(&name.finalize())))
    }
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Slot>>> {
        locked(&self.known)
    }

    /// Returns the current settings for captures.
    fn terms(&self) -> Terms {
        let (times, longest) = {
            let options = locked(&self.options);
            (options.times, options.longest)
        };
        Terms { times, longest, vault: self.vault(), names: Arc::clone(&self.names), turns: Arc::clone(&self.turns) }
    }

    fn vault(&self) -> Arc<Vault> {
        Arc::clone(&locked(&self.vault))
    }

    /// Returns the existing files that the login shell reads by default.
    fn start_up_files(&self) -> Vec<PathBuf> {
        self.own().map(|(_, slot)| slot.start_up_files()).unwrap_or_default()
    }

    fn own(&self) -> Result<(Seed, Arc<Slot>), SeedError> {
        self.of(None)
    }

    /// Finds the user and the slot of the shell. The user database is read each time, because `chsh` may change the
    /// shell. Blocks for as long as the database does.
    fn of(&self, destination: Option<place::Destination>) -> Result<(Seed, Arc<Slot>), SeedError> {
        let Options { user, home, shell, sources, cache, .. } = locked(&self.options).clone();
        let seed = match &user {
            Some(user) => Seed::of_place(user),
            None => Seed::find(home.as_deref(), shell.as_deref())?.with_sources(sources.clone()),
        };
        let (directory, decisive) =
            destination.map(|destination| (destination.directory, destination.decisive)).unzip();
        let key = Key { shell: seed.shell.clone(), home: seed.home.clone(), sources, directory };
        let mut known = self.lock();
        let slot = Arc::clone(known.entry(key).or_insert_with_key(|key| {
            let file = cache.join(format!("{}.json", hex(key.digest().as_ref())));
            Arc::new(Slot::new(key.clone(), file, self.mounts.clone()))
        }));
        place::use_one(&mut known, &slot, decisive);
        drop(known);
        Ok((seed, slot))
    }
}

/// Waits for the snapshot that was looked up.
async fn waited(lookup: Lookup, slot: &Slot, deadline: Instant) -> Result<Snapshot, SnapshotError> {
    match lookup {
        Lookup::Have(taken) => Ok(*taken),
        Lookup::Wait(flight) => match tokio::time::timeout_at(deadline.into(), flight.outcome()).await {
            Ok(Some(outcome)) => outcome.map_err(SnapshotError::Capture),
            Ok(None) | Err(_) => Err(SnapshotError::Late { shell: slot.key.shell.clone() }),
        },
    }
}

/// Returns the names of the variables and functions that a pipeline kept. A variable that the pipeline removed and
/// later set again is not included, because its start value was dropped.
pub(super) fn kept_of(environment: &Environment, variables: &Variables, functions: &Variables) -> BTreeSet<String> {
    let kept = variables.iter().chain(functions).filter(|(name, value)| environment.has_kept(name, value));
    kept.map(|(name, _)| name.clone()).collect()
}

/// Removes files of a directory that are older than `older` and that `keep` does not select.
fn remove_files(directory: &Path, older: Duration, keep: impl Fn(&Path) -> bool) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let old = modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= older));
        if old && !keep(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
