//! Manages one login shell's snapshot. Concurrent requests share one capture. A snapshot is used until one of its
//! files changes or it is too old. If a new capture fails or is weaker, the last good snapshot stays in use.
//!
//! ```text
//!   empty ──capture──► fresh ──file changed, refresh──► outdated ──capture──► fresh      (launches wait)
//!                        ├─────time over──► expired ──capture in the background──► fresh (launches do not wait)
//!                        └─it fails, or a weaker attempt gave it─► stale, degraded (tried again a minute later,
//!                                                                  or when a file has changed)
//! ```
//! A capture is a task that its waiters share. When the last waiter leaves, the task ends and its shell is killed.
//!
//! A file that changed during the run may or may not be reflected in the result, so the shell runs once more. If
//! files change again, the result is outdated from the start. No lock is held while files are examined.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use agentd_host::capability::Mounts;
use jiff::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use super::entry::{ASKED_FOR, Due, Entry, Failed, Good};
use super::fingerprint::{CheckResult, Fingerprints, Watched};
use super::watcher::{ServedFileSystems, Watcher};
use super::{Key, LoginShell, Snapshot, Times, depends, place};
use crate::blocking::blocking;
use crate::lock::locked;
use crate::login::capture::{CaptureError, Login};
use crate::login::quality::{Degraded, Quality};
use crate::login::seed::Seed;
use crate::login::shell::Shell;
use crate::secrets::HiddenValues;
use crate::store::StoredSnapshot;
use crate::store::Vault;
use agentd_api::chain;

/// Maximum number of runs of one capture. A capture is repeated if a file changed during the run.
const ROUNDS: u32 = 2;
/// Maximum number of checks of the files. A check is repeated if a capture ended meanwhile.
const LOOKS: u32 = 3;

/// A snapshot with its fixed properties and its state.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Key,
    /// File that holds the stored part of the snapshot.
    file: PathBuf,
    watcher: Watcher,
    mounts: Mounts,
    entry: Mutex<Entry>,
}

/// Settings of one launch for captures.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) times: Times,
    /// Time limit of one run of the shell.
    pub(super) longest: Duration,
    pub(super) vault: Arc<Vault>,
    /// Names that pipelines kept.
    pub(super) names: Arc<Mutex<BTreeSet<String>>>,
    /// Permits that limit the number of running login shells.
    pub(super) turns: Arc<Semaphore>,
}

/// A capture in progress.
#[derive(Debug)]
pub(super) struct Flight {
    outcome: watch::Receiver<Option<CaptureResult>>,
    task: AbortHandle,
}

type CaptureResult = Result<Snapshot, Arc<CaptureError>>;

/// Result of a request for the snapshot.
pub(super) enum Lookup {
    Have(Box<Snapshot>),
    Wait(Arc<Flight>),
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Flight {
    /// Reports whether the outcome is known.
    pub(super) fn is_over(&self) -> bool {
        self.outcome.borrow().is_some()
    }

    /// Returns the outcome. Returns `None` if the capture was dropped without an outcome, which only a shutdown
    /// does.
    pub(super) async fn outcome(&self) -> Option<CaptureResult> {
        let mut outcome = self.outcome.clone();
        outcome.wait_for(Option::is_some).await.ok()?.clone()
    }
}

impl Terms {
    fn names(&self) -> BTreeSet<String> {
        locked(&self.names).clone()
    }
}

impl Slot {
    pub(super) fn new(key: Key, file: PathBuf, mounts: Mounts) -> Self {
        Self { key, file, watcher: Watcher::default(), mounts, entry: Mutex::default() }
    }

    pub(super) fn entry(&self) -> MutexGuard<'_, Entry> {
        // A panic under this lock cannot leave the entry in an invalid state.
        locked(&self.entry)
    }

    /// Runs work on files that may be on a silent server.
    pub(super) fn bounded<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.watcher.bounded(work)
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Checks the files and starts a capture if one is due. Blocks for as long as the file system does.
    pub(super) fn look_up(self: &Arc<Self>, seed: &Seed, shell: &Arc<dyn LoginShell>, terms: &Terms) -> Lookup {
        let mut round = 1;
        loop {
            let (watched, failed, generation) = {
                let mut entry = self.entry();
                entry.load(&self.file, &terms.vault);
                if let Some(flight) = entry.flight().filter(|_| !entry.in_background) {
                    entry.hits += 1;
                    return Lookup::Wait(flight);
                }
                let failed = entry.failed.as_ref().map(|failed| Arc::clone(&failed.watched));
                (Arc::clone(&entry.watched), failed, entry.generation)
            };
            let (now, served) = (SystemTime::now(), ServedFileSystems::now(&self.mounts));
            let mut found = watched.check(now, &self.watcher, &served);
            let look = |failed: Arc<Fingerprints>| failed.check(now, &self.watcher, &served).changed;
            let still_failing = failed.is_none_or(|failed| look(failed).is_none());
            let mut entry = self.entry();
            if entry.generation == generation || round == LOOKS {
                return self.decide(&mut entry, &mut found, still_failing, (seed, shell, terms));
            }
            round += 1;
        }
    }

    fn decide(
        self: &Arc<Self>,
        entry: &mut Entry,
        found: &mut CheckResult,
        still_failing: bool,
        (seed, shell, terms): (&Seed, &Arc<dyn LoginShell>, &Terms),
    ) -> Lookup {
        if let Some(again) = entry.watched.with(found) {
            entry.watched = Arc::new(again);
        }
        let is_pausing = entry.pausing(still_failing).is_some();
        let mut due = entry.due(terms.times, &seed.name, found.changed.as_deref());
        if due.is_none() && entry.failed.is_some() && !is_pausing {
            due = Some(Due::Now("the last capture failed or was degraded".to_owned()));
        }
        let flight = entry.flight();
        let have = |entry: &mut Entry| {
            let taken = entry.snapshot()?;
            entry.hits += 1;
            Some(taken)
        };
        match (&due, flight) {
            (None, _) => {
                if let Some(taken) = have(entry) {
                    return Lookup::Have(Box::new(taken));
                }
            }
            (Some(Due::Now(_)), Some(flight)) => {
                entry.hits += 1;
                return Lookup::Wait(flight);
            }
            (Some(_), _) if is_pausing => {
                if let Some(taken) = have(entry) {
                    return Lookup::Have(Box::new(taken));
                }
            }
            (Some(Due::Expired), flight) => {
                if flight.is_none() {
                    let flight = self.begin(entry, seed, shell, terms);
                    entry.in_background = true;
                    // The task keeps the capture alive, which would otherwise end with its last waiter.
                    tokio::spawn(async move { flight.outcome().await });
                }
                if let Some(taken) = have(entry) {
                    return Lookup::Have(Box::new(Snapshot { renewing: true, ..taken }));
                }
            }
            (Some(Due::Now(_)), None) => {}
        }
        tracing::debug!(shell = %self.key.shell.display(), ?due, "running the login shell");
        Lookup::Wait(self.begin(entry, seed, shell, terms))
    }

    fn begin(
        self: &Arc<Self>,
        entry: &mut Entry,
        seed: &Seed,
        shell: &Arc<dyn LoginShell>,
        terms: &Terms,
    ) -> Arc<Flight> {
        let (sender, outcome) = watch::channel(None);
        let (slot, seed, shell, terms) = (Arc::clone(self), seed.clone(), Arc::clone(shell), terms.clone());
        let task = tokio::spawn(async move {
            let taken = slot.capture(seed, shell, terms).await;
            sender.send_replace(Some(taken));
        });
        let flight = Arc::new(Flight { outcome, task: task.abort_handle() });
        entry.flight = Arc::downgrade(&flight);
        entry.in_background = false;
        flight
    }

    async fn capture(self: Arc<Self>, seed: Seed, shell: Arc<dyn LoginShell>, terms: Terms) -> CaptureResult {
        let mut round = 1;
        loop {
            let (slot, start) = (Arc::clone(&self), SystemTime::now());
            let _turn = terms.turns.acquire().await;
            let (before, asked) = blocking(move || slot.begin_capture(start)).await;
            let began = Instant::now();
            let login = shell.login(&seed, self.key.directory.as_deref(), began + terms.longest).await;
            let (slot, duration, seed, terms) = (Arc::clone(&self), began.elapsed(), seed.clone(), terms.clone());
            let last = round == ROUNDS;
            let settled = blocking(move || match login {
                Ok(login) => slot.keep(login, &Run { before, asked, start, duration, last }, &seed, &terms),
                Err(error) => Some(slot.fail(error, duration)),
            })
            .await;
            match settled {
                Some(outcome) => return outcome,
                None => round += 1,
            }
        }
    }

    /// Returns the prints of the files before the shell reads them, and the number of the request that this capture
    /// answers.
    fn begin_capture(&self, now: SystemTime) -> (Arc<Fingerprints>, u64) {
        let (known, asked) = {
            let mut entry = self.entry();
            entry.captures += 1;
            let unwatched = entry.unwatched.iter().cloned().map(Watched::Content);
            (entry.watched.watched().cloned().chain(unwatched).collect::<Vec<_>>(), entry.asked)
        };
        (self.prints(known, now).unwrap_or_default(), asked)
    }

    /// Returns the prints of all these files, or `None` if a file server is silent.
    fn prints(&self, all: Vec<Watched>, now: SystemTime) -> Option<Arc<Fingerprints>> {
        let served = ServedFileSystems::now(&self.mounts);
        let (there, here): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| served.has(one.path(), None));
        if there.is_empty() && self.entry().watched.served().next().is_none() {
            return Some(Arc::new(Fingerprints::take(here, now, &served)));
        }
        let take = move || Arc::new(Fingerprints::take(there.into_iter().chain(here), now, &served));
        self.watcher.bounded(take)
    }

    /// Returns the files on which the login depended. If the home's file server is silent, only the files that the
    /// shell named are returned.
    fn depends(&self, seed: &Seed, login: &Login) -> Vec<Watched> {
        let decisive = self.entry().decisive.clone();
        let of_the_tools = place::watched_by_tools(login);
        self.of_start_up(seed, login).into_iter().chain(decisive).chain(of_the_tools).collect()
    }

    fn of_start_up(&self, seed: &Seed, login: &Login) -> Vec<Watched> {
        let served = ServedFileSystems::now(&self.mounts);
        if !login.read.iter().chain([&self.key.home]).any(|path| served.has(path, None)) {
            return depends::of(&self.key.shell, seed, login);
        }
        let (shell, of, given) = (self.key.shell.clone(), seed.clone(), login.clone());
        let found = self.watcher.bounded(move || depends::of(&shell, &of, &given));
        found.unwrap_or_else(|| login.read.iter().cloned().map(Watched::Content).collect())
    }

    /// Records a shell's result. Returns `None` if the shell must run once more.
    fn keep(&self, mut login: Login, run: &Run, seed: &Seed, terms: &Terms) -> Option<CaptureResult> {
        let found = self.depends(seed, &login);
        login.variables.retain(|(name, value)| !Seed::is_ours(name, value));
        let taken = self.prints(found, SystemTime::now());
        let (is_whole, watched) = (taken.is_some(), taken.unwrap_or_default());
        let outcome = place::VisitOutcome::of(self.key.directory.as_deref(), &login);
        let tools = if self.key.directory.is_none() { place::tools(&seed.home, watched.watched()) } else { Vec::new() };
        let Login { variables, functions, complete, left, quality, attributes, .. } = login;
        let degraded = match &quality {
            Quality::Good => None,
            Quality::Degraded(degraded) => Some(self.masked(degraded, &variables)),
        };
        let mut entry = self.entry();
        (entry.tools, entry.outcome) = (tools, outcome);
        entry.last_duration = Some(run.duration);
        let changed = watched.changed_since(&run.before, run.start);
        let (restless, changed): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|path| entry.unwatched.contains(path));
        if !run.last && (!changed.is_empty() || entry.asked != run.asked) {
            entry.suspects = changed;
            return None;
        }
        let outdated = changed.first().map(|path| format!("{} changed while it was read", path.display()));
        let outdated = if entry.asked == run.asked { outdated } else { Some(ASKED_FOR.to_owned()) };
        // A file that changed in two runs in a row is no longer watched if the next capture finds it changed again.
        let again = changed.into_iter().filter(|path| entry.suspects.contains(path));
        let restless: Vec<PathBuf> = restless.into_iter().chain(again).collect();
        let mut watched = Arc::unwrap_or_clone(watched);
        watched.forget(&restless);
        let watched = Arc::new(watched);
        entry.generation += 1;
        entry.suspects.clear();
        (entry.unwatched, entry.left) = (restless, left);
        entry.failed = degraded.as_ref().map(|degraded| Failed {
            at: Instant::now(),
            reason: format!("the login shell's environment was {degraded}"),
            watched: Arc::clone(&watched),
            degraded: true,
        });
        if degraded.is_some() && entry.has_better() {
            entry.failures += 1;
            tracing::warn!(
                shell = %self.key.shell.display(),
                "the login shell gave less than at a terminal; keeping the last good environment"
            );
            if let Some(good) = &mut entry.good {
                good.fill(&variables, &functions);
            }
            // The caller of a refresh learns that no fresh capture was possible.
            entry.outdated.get_or_insert_with(|| "the last capture was weaker".to_owned());
            return entry.snapshot().map(Ok);
        }
        (entry.outdated, entry.watched) = (outdated, watched);
        let accept = entry.accept_path(run.asked);
        let accepted = entry.good.as_ref().map(|good| Arc::clone(&good.variables)).unwrap_or_default();
        entry.path = entry.path.next(&accepted, &variables, accept);
        tracing::info!(
            shell = %self.key.shell.display(),
            milliseconds = run.duration.as_millis(),
            files = entry.watched.watched().count(),
            all_files = complete,
            left,
            "captured the login shell's environment"
        );
        let is_good = degraded.is_none();
        entry.good = Some(Good {
            variables: Arc::new(variables),
            functions: Arc::new(functions),
            missing: Vec::new(),
            dropped: Vec::new(),
            captured: Timestamp::now(),
            complete: complete && is_whole,
            user: seed.name.clone(),
            quality: degraded.map_or(Quality::Good, Quality::Degraded),
            attributes,
        });
        if is_good {
            self.store(&mut entry, terms);
        }
        entry.snapshot().map(|taken| Ok(Snapshot { background: left, ..taken }))
    }

    /// Returns why an environment is weaker, with secrets hidden.
    fn masked(&self, degraded: &Degraded, variables: &super::Variables) -> Degraded {
        let hidden = self.hidden();
        hidden.variables(variables);
        // The lock is released again before a file is read.
        let known = |text: &str| self.entry().without_secrets(text.to_owned());
        let text = |text: &str| {
            let text = known(text);
            hidden.text(&text)
        };
        Degraded { attempt: degraded.attempt, why: text(&degraded.why), last_words: text(&degraded.last_words) }
    }

    /// Returns the values to hide in a shell's last output: the values that its files assign in their text.
    fn hidden(&self) -> HiddenValues {
        let hidden = HiddenValues::default();
        let watched: Vec<PathBuf> = {
            let (entry, served) = (self.entry(), ServedFileSystems::now(&self.mounts));
            let on_servers: BTreeSet<&Watched> = entry.watched.served().collect();
            let is_here = |one: &&Watched| !on_servers.contains(one) && !served.has(one.path(), None);
            let here = entry.watched.watched().filter(is_here);
            here.filter(|one| matches!(one, Watched::Content(_))).map(|one| one.path().to_owned()).collect()
        };
        self.start_up_files().into_iter().chain(watched).for_each(|file| hidden.script(file));
        hidden
    }

    /// Returns the existing files that the shell reads by default.
    pub(super) fn start_up_files(&self) -> Vec<PathBuf> {
        let files = Shell::of(&self.key.shell).map(|shell| shell.start_up_files(&self.key.home)).unwrap_or_default();
        files.into_iter().filter(|file| file.is_file()).collect()
    }

    fn fail(&self, error: CaptureError, duration: Duration) -> CaptureResult {
        let text = self.entry().without_secrets(chain(&error));
        let reason = self.hidden().text(&text);
        let all: Vec<Watched> = self.entry().watched.watched().cloned().collect();
        let watched = self.prints(all, SystemTime::now());
        let mut entry = self.entry();
        entry.generation += 1;
        entry.failures += 1;
        entry.last_duration = Some(duration);
        tracing::warn!(shell = %self.key.shell.display(), reason, "cannot capture the login shell's environment");
        let watched = watched.unwrap_or_else(|| Arc::clone(&entry.watched));
        entry.failed = Some(Failed { at: Instant::now(), reason, watched, degraded: false });
        entry.snapshot().ok_or_else(|| Arc::new(error))
    }

    /// Stores the variables that pipelines kept, if the stored file differs.
    pub(super) fn settle(&self, captured: Timestamp, terms: &Terms) {
        let mut entry = self.entry();
        if entry.good.as_ref().is_some_and(|good| good.captured == captured) {
            self.store(&mut entry, terms);
        }
    }

    fn store(&self, entry: &mut Entry, terms: &Terms) {
        let Some(good) = entry.good.as_ref().filter(|good| good.quality == Quality::Good) else { return };
        let names = terms.names();
        // The first launches of a new daemon must not reduce the file that an earlier daemon wrote.
        let is_whole = entry.stored.as_ref().is_some_and(|stored| !stored.is_first && stored.captured == good.captured);
        if entry.forgotten || names.is_empty() || (good.user.is_empty() && is_whole) {
            return;
        }
        let kept = StoredSnapshot::of(good.captured, (&good.variables, &good.functions), &names);
        let mut kept = kept.with_attributes(good.attributes.clone());
        // Variables that were missing in the file stay missing.
        kept.secrets.extend(good.missing.iter().cloned());
        kept.dropped.extend(good.dropped.iter().cloned());
        let sealed = terms.vault.is_enabled();
        if entry.stored.as_ref() == Some(&kept) && entry.sealed == Some(sealed) {
            return;
        }
        match kept.write(&self.file, &terms.vault) {
            Ok(()) => (entry.stored, entry.sealed) = (Some(kept), Some(sealed)),
            Err(error) => {
                tracing::warn!(file = %self.file.display(), %error, "cannot store the login shell's environment");
            }
        }
    }

    /// Marks the snapshot as outdated, so that the next request captures it. A capture in progress does not answer
    /// later requests.
    pub(super) fn outdate(&self) -> u64 {
        let mut entry = self.entry();
        entry.asked += 1;
        entry.failed = None;
        entry.outdated = Some(ASKED_FOR.to_owned());
        entry.asked
    }

    /// Reports whether the snapshot is newer than the request that `outdate` numbered, or whether its capture
    /// failed.
    pub(super) fn has_answered(&self, asked: u64) -> bool {
        let entry = self.entry();
        entry.failed.is_some() || entry.asked > asked || entry.outdated.is_none()
    }

    /// Drops the snapshot, in memory and on disk. A capture in progress still answers its waiters.
    pub(super) fn forget(&self) -> std::io::Result<()> {
        self.entry().forgotten = true;
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Checks the files and returns the result.
    pub(super) fn check_files(&self, vault: &Vault) -> CheckResult {
        let watched = {
            let mut entry = self.entry();
            entry.load(&self.file, vault);
            Arc::clone(&entry.watched)
        };
        watched.check(SystemTime::now(), &self.watcher, &ServedFileSystems::now(&self.mounts))
    }
}

/// Facts about one run of the shell.
struct Run {
    before: Arc<Fingerprints>,
    asked: u64,
    start: SystemTime,
    duration: Duration,
    /// Whether the shell must not run again.
    last: bool,
}
