//! One login shell's snapshot: taken once for everybody who asks at the same time, used until a file that made it changes or it
//! is too old, and the last good one where it cannot be taken again, or only by a weaker attempt.
//!
//! ```text
//!   empty ──capture──► fresh ──file changed, refresh──► outdated ──capture──► fresh      (launches wait)
//!                        ├─────time over──► expired ──capture in the background──► fresh (launches do not wait)
//!                        └─it fails, or a weaker attempt gave it─► stale, degraded (tried again a minute later,
//!                                                                  or when a file has changed)
//! ```
//! A capture is a task that all who wait for it hold; when the last of them leaves, it ends, and the shell with it. What changed
//! while the shell ran may be in its answer or not, so the shell is run once more; what changes again then is outdated from the
//! start. No lock is held while a file is looked at.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use super::entry::{ASKED_FOR, Due, Entry, Failed, Good};
use super::fingerprint::{Fingerprints, Seen, Watched};
use super::kept::Kept;
use super::watcher::{Served, Watcher};
use super::{Key, LoginShell, Taken, Times, depends, place};
use crate::env::capture::{CaptureError, Login};
use crate::env::quality::{Degraded, Quality};
use crate::env::secrets::Hidden;
use crate::env::seed::Seed;
use crate::env::services::chain;
use crate::env::shell::Shell;
use crate::env::store::Vault;

/// A capture during which a file changed is made once more, and not for ever.
const ROUNDS: u32 = 2;
/// How often a look is made anew because a capture ended meanwhile.
const LOOKS: u32 = 3;

/// What does not change of a snapshot.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Key,
    /// Where the part of it is kept that may be on the disk.
    file: PathBuf,
    watcher: Watcher,
    entry: Mutex<Entry>,
}

/// What one launch's configuration says of captures.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    pub(super) times: Times,
    /// How long one run of the shell may take.
    pub(super) longest: Duration,
    pub(super) vault: Arc<Vault>,
    /// The names that pipelines kept.
    pub(super) names: Arc<Mutex<BTreeSet<String>>>,
    /// A shell that runs has one of these.
    pub(super) turns: Arc<Semaphore>,
}

/// A capture under way.
#[derive(Debug)]
pub(super) struct Flight {
    outcome: watch::Receiver<Option<Outcome>>,
    task: AbortHandle,
}

type Outcome = Result<Taken, Arc<CaptureError>>;

/// What there is for one who asks.
pub(super) enum Look {
    Have(Box<Taken>),
    Wait(Arc<Flight>),
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Flight {
    /// Whether its outcome is there.
    pub(super) fn is_over(&self) -> bool {
        self.outcome.borrow().is_some()
    }

    /// How it ended; `None` where it was dropped without an end, which only a shutdown does.
    pub(super) async fn outcome(&self) -> Option<Outcome> {
        let mut outcome = self.outcome.clone();
        outcome.wait_for(Option::is_some).await.ok()?.clone()
    }
}

impl Terms {
    fn names(&self) -> BTreeSet<String> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Slot {
    pub(super) fn new(key: Key, file: PathBuf) -> Self {
        Self { key, file, watcher: Watcher::default(), entry: Mutex::default() }
    }

    pub(super) fn entry(&self) -> MutexGuard<'_, Entry> {
        // Nothing that is done under this lock can leave it half done.
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does work on files that may be on a silent server.
    pub(super) fn bounded<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.watcher.bounded(work)
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Looks at the files, and begins a capture where one is due. Blocks for as long as the file system does.
    pub(super) fn look(self: &Arc<Self>, seed: &Seed, shell: &Arc<dyn LoginShell>, terms: &Terms) -> Look {
        let mut round = 1;
        loop {
            let (watched, failed, generation) = {
                let mut entry = self.entry();
                entry.load(&self.file, &terms.vault);
                if let Some(flight) = entry.flight().filter(|_| !entry.in_background) {
                    entry.hits += 1;
                    return Look::Wait(flight);
                }
                let failed = entry.failed.as_ref().map(|failed| Arc::clone(&failed.watched));
                (Arc::clone(&entry.watched), failed, entry.generation)
            };
            let (now, served) = (SystemTime::now(), Served::now());
            let mut found = watched.look(now, &self.watcher, &served);
            let look = |failed: Arc<Fingerprints>| failed.look(now, &self.watcher, &served).changed;
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
        found: &mut Seen,
        still_failing: bool,
        (seed, shell, terms): (&Seed, &Arc<dyn LoginShell>, &Terms),
    ) -> Look {
        if let Some(again) = entry.watched.with(found) {
            entry.watched = Arc::new(again);
        }
        let is_pausing = entry.pausing(still_failing).is_some();
        let mut due = entry.due(terms.times, &seed.name, found.changed.as_deref());
        if due.is_none() && entry.failed.is_some() && !is_pausing {
            due = Some(Due::Now("the last attempt was not good".to_owned()));
        }
        let flight = entry.flight();
        let have = |entry: &mut Entry| {
            let taken = entry.taken()?;
            entry.hits += 1;
            Some(taken)
        };
        match (&due, flight) {
            (None, _) => {
                if let Some(taken) = have(entry) {
                    return Look::Have(Box::new(taken));
                }
            }
            (Some(Due::Now(_)), Some(flight)) => {
                entry.hits += 1;
                return Look::Wait(flight);
            }
            (Some(_), _) if is_pausing => {
                if let Some(taken) = have(entry) {
                    return Look::Have(Box::new(taken));
                }
            }
            (Some(Due::Expired), flight) => {
                if flight.is_none() {
                    let flight = self.begin(entry, seed, shell, terms);
                    entry.in_background = true;
                    // A task holds the capture: it would end when its last waiter leaves.
                    tokio::spawn(async move { flight.outcome().await });
                }
                if let Some(taken) = have(entry) {
                    return Look::Have(Box::new(Taken { renewing: true, ..taken }));
                }
            }
            (Some(Due::Now(_)), None) => {}
        }
        tracing::debug!(shell = %self.key.shell.display(), ?due, "the login shell is run");
        Look::Wait(self.begin(entry, seed, shell, terms))
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

    async fn capture(self: Arc<Self>, seed: Seed, shell: Arc<dyn LoginShell>, terms: Terms) -> Outcome {
        let mut round = 1;
        loop {
            let (slot, start) = (Arc::clone(&self), SystemTime::now());
            let _turn = terms.turns.acquire().await;
            let (before, asked) = blocking(move || slot.prepare(start)).await;
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

    /// The files as they are before the shell reads them, and which request this capture answers.
    fn prepare(&self, now: SystemTime) -> (Arc<Fingerprints>, u64) {
        let (known, asked) = {
            let mut entry = self.entry();
            entry.captures += 1;
            let unwatched = entry.unwatched.iter().cloned().map(Watched::Content);
            (entry.watched.watched().cloned().chain(unwatched).collect::<Vec<_>>(), entry.asked)
        };
        (self.prints(known, now).unwrap_or_default(), asked)
    }

    /// The prints of all these; nothing where a file server is silent.
    fn prints(&self, all: Vec<Watched>, now: SystemTime) -> Option<Arc<Fingerprints>> {
        let served = Served::now();
        let (there, here): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| served.has(one.path(), None));
        if there.is_empty() && self.entry().watched.served().next().is_none() {
            return Some(Arc::new(Fingerprints::take(here, now, &served)));
        }
        let take = move || Arc::new(Fingerprints::take(there.into_iter().chain(here), now, &served));
        self.watcher.bounded(take)
    }

    /// What the login depended on; where the home's file server is silent, the files that the shell named.
    fn depends(&self, seed: &Seed, login: &Login) -> Vec<Watched> {
        let decisive = self.entry().decisive.clone();
        let of_the_tools = place::watched_by_tools(login);
        self.of_start_up(seed, login).into_iter().chain(decisive).chain(of_the_tools).collect()
    }

    fn of_start_up(&self, seed: &Seed, login: &Login) -> Vec<Watched> {
        let served = Served::now();
        if !login.read.iter().chain([&self.key.home]).any(|path| served.has(path, None)) {
            return depends::of(&self.key.shell, seed, login);
        }
        let (shell, of, given) = (self.key.shell.clone(), seed.clone(), login.clone());
        let found = self.watcher.bounded(move || depends::of(&shell, &of, &given));
        found.unwrap_or_else(|| login.read.iter().cloned().map(Watched::Content).collect())
    }

    /// Takes a shell's answer; `None` where it is to be asked once more.
    fn keep(&self, mut login: Login, run: &Run, seed: &Seed, terms: &Terms) -> Option<Outcome> {
        let found = self.depends(seed, &login);
        login.variables.retain(|(name, value)| !Seed::is_ours(name, value));
        let taken = self.prints(found, SystemTime::now());
        let (is_whole, watched) = (taken.is_some(), taken.unwrap_or_default());
        let outcome = place::Outcome::of(self.key.directory.as_deref(), &login);
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
        // Changed twice in a row: it is left alone if the next capture finds it changed once more.
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
            tracing::warn!(shell = %self.key.shell.display(), "the login shell gave less than a terminal has; the last good environment is kept");
            if let Some(good) = &mut entry.good {
                good.fill(&variables, &functions);
            }
            // A request for a fresh one is answered by that it could not be had.
            entry.outdated.get_or_insert_with(|| "the last capture is weaker than it".to_owned());
            return entry.taken().map(Ok);
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
            "the login shell has given its environment"
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
        entry.taken().map(|taken| Ok(Taken { background: left, ..taken }))
    }

    /// Why an environment is weaker, without what is a secret in its words.
    fn masked(&self, degraded: &Degraded, variables: &super::Variables) -> Degraded {
        let hidden = self.hidden();
        hidden.variables(variables);
        // The lock is free again before a file is read.
        let known = |text: &str| self.entry().without_secrets(text.to_owned());
        let text = |text: &str| {
            let text = known(text);
            hidden.text(&text)
        };
        Degraded { attempt: degraded.attempt, why: text(&degraded.why), last_words: text(&degraded.last_words) }
    }

    /// What a shell's last words may have: what its files set, as far as it stands in their text.
    fn hidden(&self) -> Hidden {
        let hidden = Hidden::default();
        let watched: Vec<PathBuf> = {
            let (entry, served) = (self.entry(), Served::now());
            let on_servers: BTreeSet<&Watched> = entry.watched.served().collect();
            let is_here = |one: &&Watched| !on_servers.contains(one) && !served.has(one.path(), None);
            let here = entry.watched.watched().filter(is_here);
            here.filter(|one| matches!(one, Watched::Content(_))).map(|one| one.path().to_owned()).collect()
        };
        self.start_up_files().into_iter().chain(watched).for_each(|file| hidden.script(file));
        hidden
    }

    /// The files that the shell reads of itself, as far as they are there.
    pub(super) fn start_up_files(&self) -> Vec<PathBuf> {
        let files = Shell::of(&self.key.shell).map(|shell| shell.start_up_files(&self.key.home)).unwrap_or_default();
        files.into_iter().filter(|file| file.is_file()).collect()
    }

    fn fail(&self, error: CaptureError, duration: Duration) -> Outcome {
        let text = self.entry().without_secrets(chain(&error));
        let reason = self.hidden().text(&text);
        let all: Vec<Watched> = self.entry().watched.watched().cloned().collect();
        let watched = self.prints(all, SystemTime::now());
        let mut entry = self.entry();
        entry.generation += 1;
        entry.failures += 1;
        entry.last_duration = Some(duration);
        tracing::warn!(shell = %self.key.shell.display(), reason, "the login shell's environment could not be taken");
        let watched = watched.unwrap_or_else(|| Arc::clone(&entry.watched));
        entry.failed = Some(Failed { at: Instant::now(), reason, watched, degraded: false });
        entry.taken().ok_or_else(|| Arc::new(error))
    }

    /// Writes to the disk what pipelines kept, where that is other than what is there.
    pub(super) fn settle(&self, captured: Timestamp, terms: &Terms) {
        let mut entry = self.entry();
        if entry.good.as_ref().is_some_and(|good| good.captured == captured) {
            self.store(&mut entry, terms);
        }
    }

    fn store(&self, entry: &mut Entry, terms: &Terms) {
        let Some(good) = entry.good.as_ref().filter(|good| good.quality == Quality::Good) else { return };
        let names = terms.names();
        // What an earlier daemon wrote is not made less by what the first launches of this one keep.
        let is_whole = entry.stored.as_ref().is_some_and(|stored| !stored.is_first && stored.captured == good.captured);
        if entry.forgotten || names.is_empty() || (good.user.is_empty() && is_whole) {
            return;
        }
        let kept = Kept::of(good.captured, (&good.variables, &good.functions), &names);
        let mut kept = kept.with_attributes(good.attributes.clone());
        // What came from the disk without them is kept without them.
        kept.secrets.extend(good.missing.iter().cloned());
        kept.dropped.extend(good.dropped.iter().cloned());
        let sealed = terms.vault.is_enabled();
        if entry.stored.as_ref() == Some(&kept) && entry.sealed == Some(sealed) {
            return;
        }
        match kept.write(&self.file, &terms.vault) {
            Ok(()) => (entry.stored, entry.sealed) = (Some(kept), Some(sealed)),
            Err(error) => {
                tracing::warn!(file = %self.file.display(), %error, "the login shell's environment is not kept on the disk");
            }
        }
    }

    /// What is there is taken again by the next who asks; a capture under way is no answer to one who asks after this.
    pub(super) fn outdate(&self) -> u64 {
        let mut entry = self.entry();
        entry.asked += 1;
        entry.failed = None;
        entry.outdated = Some(ASKED_FOR.to_owned());
        entry.asked
    }

    /// Whether what is there is from after the request that `outdate` numbered, or could not be had.
    pub(super) fn has_answered(&self, asked: u64) -> bool {
        let entry = self.entry();
        entry.failed.is_some() || entry.asked > asked || entry.outdated.is_none()
    }

    /// Forgets it, on the disk too; what a capture under way brings is for those who wait for it.
    pub(super) fn forget(&self) -> std::io::Result<()> {
        self.entry().forgotten = true;
        match std::fs::remove_file(&self.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// How the files stand, with a look at them.
    pub(super) fn seen(&self, vault: &Vault) -> Seen {
        let watched = {
            let mut entry = self.entry();
            entry.load(&self.file, vault);
            Arc::clone(&entry.watched)
        };
        watched.look(SystemTime::now(), &self.watcher, &Served::now())
    }
}

/// What is known of one run of the shell.
struct Run {
    before: Arc<Fingerprints>,
    asked: u64,
    start: SystemTime,
    duration: Duration,
    /// Whether the shell is not to be run once more.
    last: bool,
}

/// Work on files, away from the threads that everybody shares.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The daemon ends, and with it whoever waits here.
            Err(_) => std::future::pending().await,
        },
    }
}
