//! What sessions' environments begin with: the login shell's environment, taken once and used while it is true; a terminal's; or
//! what was stored when the session was created.
//!
//! Values are in this process's memory. The disk has, to fall back to, those that pipelines kept and that are no secrets; of the rest it has
//! the names ([`kept`]). Which variables an agent gets of all this is the providers' business, not this module's.

mod chosen;
mod depends;
mod entry;
mod fingerprint;
mod kept;
mod login;
mod path;
mod place;
mod terminal;
#[cfg(test)]
mod tests;
mod view;
mod watcher;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::environment::SnapshotSource;
use agentd_api::snapshot::SnapshotList;
use agentd_keeper::protocol::Attributes;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

pub(crate) use chosen::{Chosen, Finding, Wanted};
pub(crate) use kept::{SESSION_SNAPSHOT, reseal, reseal_all, reseal_or_remove};
pub(crate) use place::Place;
pub(crate) use terminal::{TerminalError, Terminals};

use super::capture::{Capture, CaptureError, Login, Variables};
use super::merge::{Environment, hex};
use super::quality::Quality;
use super::seed::{Seed, SeedError};
use super::sources::Source;
use super::store::Vault;
use crate::directories::{DirectoryError, make_private};
use login::{Look, Slot, Terms, blocking};

/// Whose login shell, and which.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) shell: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) sources: Vec<Source>,
    /// Where the shell went after its first prompt; without it, it stayed in the home.
    pub(crate) directory: Option<PathBuf>,
}

impl Key {
    fn digest(&self) -> impl AsRef<[u8]> + use<> {
        use std::os::unix::ffi::OsStrExt as _;
        let mut digest = Sha256::new_with_prefix(format!("{}\0{}", self.shell.display(), self.home.display()));
        if let Some(directory) = &self.directory {
            digest.update(b"\0");
            digest.update(directory.as_os_str().as_bytes());
        }
        if self.sources != Source::DEFAULT {
            digest.update(format!("\0{:?}", self.sources));
        }
        digest.finalize()
    }
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
    /// Whether the last run of the shell gave less than a terminal has.
    pub(crate) degraded: bool,
    /// How many processes were in the background when the shell ended, for those who waited for it.
    pub(crate) background: u32,
    /// Whether it is what a terminal has.
    pub(crate) quality: Quality,
    /// What its PATH lost since the last one that was accepted.
    pub(crate) path: path::Change,
    /// Whether its time is over and it is being taken again.
    pub(crate) renewing: bool,
    /// What is to be said of the session's directory, where the shell was to go there.
    pub(crate) place: place::Outcome,
    /// What else a child of the shell inherits, where it was found out.
    pub(crate) attributes: Option<Attributes>,
}

/// How long a login shell's environment is used though no file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// Where all files are known that it depends on.
    pub(crate) complete: Duration,
    /// Where the shell does not tell which files it read.
    pub(crate) incomplete: Duration,
}

impl Times {
    pub(crate) fn of(self, complete: bool) -> Duration {
        if complete { self.complete } else { self.incomplete.min(self.complete) }
    }
}

/// What runs a login shell.
#[async_trait::async_trait]
pub(crate) trait LoginShell: Send + Sync + std::fmt::Debug {
    /// Runs the shell in the user's home. With a directory it goes there after its first prompt, as its user does with `cd`.
    async fn login(&self, seed: &Seed, directory: Option<&Path>, deadline: Instant) -> Result<Login, CaptureError>;
}

#[async_trait::async_trait]
impl LoginShell for Capture {
    async fn login(&self, seed: &Seed, directory: Option<&Path>, deadline: Instant) -> Result<Login, CaptureError> {
        self.login_in(seed, directory, deadline).await
    }
}

/// Where and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    /// As configured; without it, as the user database has it.
    pub(crate) home: Option<PathBuf>,
    pub(crate) shell: Option<PathBuf>,
    /// What a login has besides the shell.
    pub(crate) sources: Vec<Source>,
    pub(crate) times: Times,
    /// How long one run of the shell may take.
    pub(crate) longest: Duration,
    /// What pipelines kept of what login shells gave, without secrets: it can be had again.
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
    /// The configuration that is to hold.
    next: Option<(Options, Arc<Vault>)>,
}

/// What is known of login shells. It outlives a reload.
#[derive(Debug)]
struct Slots {
    options: Mutex<Options>,
    vault: Mutex<Arc<Vault>>,
    known: Mutex<BTreeMap<Key, Arc<Slot>>>,
    /// The names of the variables that pipelines kept since the configuration was last loaded.
    names: Arc<Mutex<BTreeSet<String>>>,
    /// A login shell that runs has one of these.
    turns: Arc<Semaphore>,
    /// The capture of which the disk has all that pipelines kept so far.
    settled: Mutex<Option<Timestamp>>,
}

/// How many login shells run at once.
const TURNS: usize = 4;

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
    pub(crate) fn new(options: Options, shell: Arc<dyn LoginShell>, vault: Arc<Vault>) -> Result<Self, DirectoryError> {
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
        });
        Ok(Self { shell, slots, terminals: Arc::default(), next: None })
    }

    /// Copies these snapshots for a new configuration, which applies after `take_effect`.
    pub(crate) fn again(&self, options: Options, shell: Arc<dyn LoginShell>, vault: Arc<Vault>) -> Self {
        let (slots, terminals) = (Arc::clone(&self.slots), Arc::clone(&self.terminals));
        Self { shell, slots, terminals, next: Some((options, vault)) }
    }

    /// Puts its configuration in force: what is held of terminals goes on, and what is known of login shells too, unless it is that of
    /// another home or shell. What pipelines keep is found out anew.
    pub(crate) fn take_effect(&self) {
        let (slots, Some((options, vault))) = (&self.slots, self.next.clone()) else { return };
        let before = std::mem::replace(&mut *locked(&slots.options), options.clone());
        if (before.home, before.shell) != (options.home, options.shell) {
            slots.lock().clear();
        }
        *locked(&slots.vault) = vault;
        locked(&slots.names).clear();
        *locked(&slots.settled) = None;
    }

    /// What the user's login shell gives: what is known of it while that is true; else it is run, once for all who ask.
    pub(crate) async fn get(&self, deadline: Instant) -> Result<Taken, SnapshotError> {
        self.look(None, deadline).await
    }

    /// The same of the shell in a directory, where there is one that it is to go to ([`place`]).
    async fn look(&self, entered: Option<place::Entered>, deadline: Instant) -> Result<Taken, SnapshotError> {
        let (slots, shell) = (Arc::clone(&self.slots), Arc::clone(&self.shell));
        // One hop to where files may be looked at, and not two: this is what every launch waits for.
        let looked = blocking(move || {
            let (seed, slot) = slots.of(entered)?;
            Ok::<_, SeedError>((slot.look(&seed, &shell, &slots.terms()), slot))
        });
        match looked.await? {
            (Look::Have(taken), _) => Ok(*taken),
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
        // Those of directories are taken again by the launches that need them.
        let of_directories: Vec<_> =
            self.slots.lock().values().filter(|slot| slot.key.directory.is_some()).cloned().collect();
        for slot in of_directories {
            slot.outdate();
        }
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
        let ran = tokio::time::timeout_at(deadline.into(), self.shell.login(&seed, None, deadline)).await;
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
        let Terms { times, vault, .. } = self.slots.terms();
        let view = move || slots.iter().map(|slot| slot.view(&user, times, &vault)).collect();
        let login_shells = blocking(view).await;
        SnapshotList { login_shells, terminals: self.terminals.views() }
    }

    /// Takes note of what a pipeline kept of a login shell's environment, and has the disk have that.
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

    /// Drops what no session refers to: `terminals` are the ids that sessions name, `directories` those of sessions that share.
    pub(crate) fn tidy(&self, terminals: &BTreeSet<String>, directories: &BTreeSet<PathBuf>) {
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

    /// What the sessions of a directory have in common, without secrets.
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

    /// What the configuration in force says of captures.
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

    /// The files that the login shell reads of itself, as far as they are there.
    fn start_up_files(&self) -> Vec<PathBuf> {
        self.own().map(|(_, slot)| slot.start_up_files()).unwrap_or_default()
    }

    fn own(&self) -> Result<(Seed, Arc<Slot>), SeedError> {
        self.of(None)
    }

    /// The user whose shell it is, asked anew each time: `chsh` is a change too. Blocks for as long as the user database does.
    fn of(&self, entered: Option<place::Entered>) -> Result<(Seed, Arc<Slot>), SeedError> {
        let Options { home, shell, sources, cache, .. } = locked(&self.options).clone();
        let seed = Seed::find(home.as_deref(), shell.as_deref())?.with_sources(sources.clone());
        let (directory, decisive) = entered.map(|entered| (entered.directory, entered.decisive)).unzip();
        let key = Key { shell: seed.shell.clone(), home: seed.home.clone(), sources, directory };
        let mut known = self.lock();
        let slot = Arc::clone(known.entry(key).or_insert_with_key(|key| {
            let file = cache.join(format!("{}.json", hex(key.digest().as_ref())));
            Arc::new(Slot::new(key.clone(), file))
        }));
        place::use_one(&mut known, &slot, decisive);
        drop(known);
        Ok((seed, slot))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names of the variables and functions that a pipeline kept of what it began with. One that it took away, and that a later step set
/// again, is not among them: the value that it began with was dropped.
pub(super) fn kept_of(environment: &Environment, variables: &Variables, functions: &Variables) -> BTreeSet<String> {
    let kept = variables.iter().chain(functions).filter(|(name, value)| environment.has_kept(name, value));
    kept.map(|(name, _)| name.clone()).collect()
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
