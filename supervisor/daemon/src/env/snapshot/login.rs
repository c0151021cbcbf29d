//! One login shell's snapshot: taken once for everybody who asks at the same time, used until a file that made it changes or it
//! is too old, and the last good one where it cannot be taken again.
//!
//! ```text
//!   empty ──capture──► fresh ──file changed, time over, refresh──► outdated ──capture──► fresh
//!                                                                     └─it fails─► stale (tried again a minute later,
//!                                                                                  or when a file has changed)
//! ```
//! A capture is a task that all who wait for it hold; when the last of them leaves, it ends, and the shell with it. What changed
//! while the shell ran may be in its answer or not, so the shell is run once more; what changes again then is outdated from the
//! start.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use agentd_api::snapshot::{LoginSnapshotView, SnapshotState};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::fingerprint::Fingerprints;
use super::kept::Kept;
use super::{Key, LoginShell, Taken, Variables};
use crate::env::capture::{CaptureError, Login};
use crate::env::quality::Quality;
use crate::env::secret::is_secret;
use crate::env::secrets::Hidden;
use crate::env::seed::Seed;
use crate::env::services::chain;
use crate::env::shell::Shell;

/// After a failure the shell is left alone for so long, unless a file changes: one that hangs would hold up every launch.
const PAUSE: Duration = Duration::from_mins(1);
/// A capture during which a file changed is made once more, and not for ever.
const ROUNDS: u32 = 2;
/// A shorter value hides nothing, and everything would have it.
const SHORTEST: usize = 6;
const ASKED_FOR: &str = "a fresh one was asked for";

/// What does not change of a snapshot.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Key,
    /// Where its part without secrets is kept.
    file: PathBuf,
    time_to_live: Duration,
    /// How long one run of the shell may take.
    longest: Duration,
    entry: Mutex<Entry>,
}

#[derive(Default)]
struct Entry {
    good: Option<Good>,
    watched: Fingerprints,
    /// Why the good one is to be taken again, where that is known without a look at the files.
    outdated: Option<String>,
    failed: Option<Failed>,
    flight: Weak<Flight>,
    /// Rises with each request for a fresh one.
    asked: u64,
    /// Set where the snapshot is forgotten while it is taken.
    forgotten: bool,
    /// Whether the disk has been looked at.
    loaded: bool,
    /// What changed in each of the last two runs: the shell's own files write it.
    unwatched: Vec<PathBuf>,
    /// What changed in the first run of the capture under way.
    suspects: Vec<PathBuf>,
    left: u32,
    hits: u64,
    captures: u64,
    failures: u64,
    last_duration: Option<Duration>,
}

/// The last one that was whole.
struct Good {
    variables: Arc<Variables>,
    functions: Arc<Variables>,
    /// Names of secrets that the disk did not have.
    missing: Vec<String>,
    captured: Timestamp,
    complete: bool,
    /// The user's name, which the shell was told.
    user: String,
    quality: Quality,
}

struct Failed {
    at: Instant,
    reason: String,
    watched: Fingerprints,
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
    Have(Taken),
    Wait(Arc<Flight>),
}

/// Counts only: values may be secrets.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("hits", &self.hits).field("captures", &self.captures).finish_non_exhaustive()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Flight {
    /// How it ended; `None` where it was dropped without an end, which only a shutdown does.
    pub(super) async fn outcome(&self) -> Option<Outcome> {
        let mut outcome = self.outcome.clone();
        outcome.wait_for(Option::is_some).await.ok()?.clone()
    }
}

impl Slot {
    pub(super) fn new(key: Key, file: PathBuf, time_to_live: Duration, longest: Duration) -> Self {
        Self { key, file, time_to_live, longest, entry: Mutex::default() }
    }

    fn entry(&self) -> MutexGuard<'_, Entry> {
        // Nothing that is done under this lock can leave it half done.
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn file(&self) -> &std::path::Path {
        &self.file
    }

    /// Looks at the files, and begins a capture where one is due. Blocks for as long as the file system does.
    pub(super) fn look(self: &Arc<Self>, seed: &Seed, shell: &Arc<dyn LoginShell>) -> Look {
        let mut entry = self.entry();
        entry.load(&self.file);
        if let Some(flight) = entry.flight.upgrade() {
            entry.hits += 1;
            return Look::Wait(flight);
        }
        let now = SystemTime::now();
        let why = entry.why_outdated(self.time_to_live, &seed.name, now);
        let stale = why.as_ref().and_then(|_| entry.pausing(now));
        if (why.is_none() || stale.is_some())
            && let Some(taken) = entry.taken(stale)
        {
            entry.hits += 1;
            return Look::Have(taken);
        }
        tracing::debug!(shell = %self.key.shell.display(), why, "the login shell is run");
        Look::Wait(self.begin(&mut entry, seed, shell))
    }

    fn begin(self: &Arc<Self>, entry: &mut Entry, seed: &Seed, shell: &Arc<dyn LoginShell>) -> Arc<Flight> {
        let (sender, outcome) = watch::channel(None);
        let (slot, seed, shell) = (Arc::clone(self), seed.clone(), Arc::clone(shell));
        let task = tokio::spawn(async move {
            let taken = slot.capture(seed, shell).await;
            sender.send_replace(Some(taken));
        });
        let flight = Arc::new(Flight { outcome, task: task.abort_handle() });
        entry.flight = Arc::downgrade(&flight);
        flight
    }

    async fn capture(self: Arc<Self>, seed: Seed, shell: Arc<dyn LoginShell>) -> Outcome {
        let mut round = 1;
        loop {
            let (slot, start) = (Arc::clone(&self), SystemTime::now());
            let (before, asked) = blocking(move || slot.prepare(start)).await;
            let began = Instant::now();
            let login = shell.login(&seed, began + self.longest).await;
            let (slot, duration, user) = (Arc::clone(&self), began.elapsed(), seed.name.clone());
            let last = round == ROUNDS;
            let settled = blocking(move || match login {
                Ok(mut login) => {
                    login.variables.retain(|(name, value)| !Seed::is_ours(name, value));
                    slot.keep(login, Run { before, asked, start, duration, user, last })
                }
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
    fn prepare(&self, now: SystemTime) -> (Fingerprints, u64) {
        let mut entry = self.entry();
        entry.captures += 1;
        let known = entry.watched.paths().chain(&entry.unwatched).cloned();
        (Fingerprints::take(known, now), entry.asked)
    }

    /// Takes a shell's answer; `None` where it is to be asked once more.
    fn keep(&self, login: Login, run: Run) -> Option<Outcome> {
        let Login { variables, functions, read, complete, left, quality } = login;
        let mut watched = Fingerprints::take(read.into_iter().chain(Seed::files()), SystemTime::now());
        let mut entry = self.entry();
        entry.last_duration = Some(run.duration);
        let changed = watched.changed_since(&run.before, run.start);
        let (restless, changed): (Vec<_>, Vec<_>) =
            changed.into_iter().partition(|path| entry.unwatched.contains(path));
        if !run.last && (!changed.is_empty() || entry.asked != run.asked) {
            entry.watched = watched;
            entry.suspects = changed;
            return None;
        }
        entry.outdated = changed.first().map(|path| format!("{} changed while it was read", path.display()));
        if entry.asked != run.asked {
            entry.outdated = Some(ASKED_FOR.to_owned());
        }
        // Changed twice in a row: it is left alone if the next capture finds it changed once more.
        let again = changed.into_iter().filter(|path| entry.suspects.contains(path));
        let restless: Vec<PathBuf> = restless.into_iter().chain(again).collect();
        watched.forget(&restless);
        entry.complete(watched, restless, left);
        let captured = Timestamp::now();
        let kept = Kept::of(captured, &variables, &functions, entry.watched.paths().cloned().collect());
        entry.good = Some(Good {
            variables: Arc::new(variables),
            functions: Arc::new(functions),
            missing: Vec::new(),
            captured,
            complete,
            user: run.user,
            quality,
        });
        if !entry.forgotten
            && let Err(error) = kept.write(&self.file)
        {
            tracing::warn!(file = %self.file.display(), %error, "the login shell's environment is not kept on the disk");
        }
        tracing::info!(
            shell = %self.key.shell.display(),
            milliseconds = run.duration.as_millis(),
            files = kept.files.len(),
            all_files = complete,
            left,
            "the login shell has given its environment"
        );
        entry.taken(None).map(|taken| Ok(Taken { background: left, ..taken }))
    }

    /// The files that the shell reads of itself, as far as they are there.
    pub(super) fn start_up_files(&self) -> Vec<PathBuf> {
        let files = Shell::of(&self.key.shell).map(|shell| shell.start_up_files(&self.key.home)).unwrap_or_default();
        files.into_iter().filter(|file| file.is_file()).collect()
    }

    fn fail(&self, error: CaptureError, duration: Duration) -> Outcome {
        let mut entry = self.entry();
        entry.failures += 1;
        entry.last_duration = Some(duration);
        // Its last words may have what its files set; of that, what stands in their text is known.
        let hidden = Hidden::default();
        let files = self.start_up_files().into_iter().chain(entry.watched.paths().cloned());
        files.for_each(|file| hidden.script(file));
        let reason = hidden.text(&entry.without_secrets(chain(&error)));
        tracing::warn!(shell = %self.key.shell.display(), reason, "the login shell's environment could not be taken");
        let watched = Fingerprints::take(entry.watched.paths().cloned(), SystemTime::now());
        entry.failed = Some(Failed { at: Instant::now(), reason: reason.clone(), watched });
        entry.taken(Some(reason)).ok_or_else(|| Arc::new(error))
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

    /// How it stands, with a look at the files.
    pub(super) fn view(&self, user: &str) -> LoginSnapshotView {
        let mut entry = self.entry();
        entry.load(&self.file);
        let why = entry.why_outdated(self.time_to_live, user, SystemTime::now());
        let failed = entry.failed.as_ref().map(|failed| failed.reason.clone());
        let (state, reason) = match (entry.flight.upgrade(), &entry.good, failed, why) {
            (Some(_), ..) => (SnapshotState::Capturing, None),
            (None, None, failed, _) => (SnapshotState::Empty, failed),
            (None, Some(_), Some(failed), _) => (SnapshotState::Stale, Some(failed)),
            (None, Some(_), None, Some(why)) => (SnapshotState::Outdated, Some(why)),
            (None, Some(_), None, None) => (SnapshotState::Fresh, None),
        };
        let good = entry.good.as_ref();
        let captured = good.map(|good| good.captured);
        LoginSnapshotView {
            shell: self.key.shell.clone(),
            home: self.key.home.clone(),
            state,
            reason,
            captured,
            age_seconds: captured.map(|captured| age(captured).as_secs()),
            expires: captured.and_then(|captured| captured.checked_add(self.time_to_live).ok()),
            variables: good.map_or(0, |good| good.variables.len()),
            functions: good.map_or(0, |good| good.functions.len()),
            missing: good.map(|good| good.missing.clone()).unwrap_or_default(),
            files: entry.watched.paths().cloned().collect(),
            complete: good.is_some_and(|good| good.complete),
            unwatched: entry.unwatched.clone(),
            left: entry.left,
            hits: entry.hits,
            captures: entry.captures,
            failures: entry.failures,
            last_duration_ms: entry.last_duration.map(|last| u64::try_from(last.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// What is known of one run of the shell.
struct Run {
    before: Fingerprints,
    asked: u64,
    start: SystemTime,
    duration: Duration,
    user: String,
    /// Whether the shell is not to be run once more.
    last: bool,
}

impl Entry {
    /// What an earlier daemon kept, as something to fall back to.
    fn load(&mut self, file: &std::path::Path) {
        if std::mem::replace(&mut self.loaded, true) {
            return;
        }
        match Kept::read(file) {
            Ok(Some(kept)) => {
                self.watched = Fingerprints::take(kept.files.iter().cloned(), SystemTime::now());
                self.outdated = Some("it was taken before agentd was started".to_owned());
                self.good = Some(Good {
                    variables: Arc::new(kept.variables()),
                    functions: Arc::new(kept.functions()),
                    missing: kept.secrets,
                    captured: kept.captured,
                    complete: false,
                    user: String::new(),
                    quality: Quality::default(),
                });
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "a kept login shell's environment is not used");
            }
        }
    }

    fn complete(&mut self, watched: Fingerprints, unwatched: Vec<PathBuf>, left: u32) {
        self.watched = watched;
        self.unwatched = unwatched;
        self.left = left;
        self.suspects.clear();
        self.failed = None;
    }

    fn why_outdated(&mut self, time_to_live: Duration, user: &str, now: SystemTime) -> Option<String> {
        let good = self.good.as_ref()?;
        if let Some(why) = &self.outdated {
            return Some(why.clone());
        }
        if good.user != user {
            return Some("the user has another name".to_owned());
        }
        if age(good.captured) >= time_to_live {
            return Some("it is too old".to_owned());
        }
        self.watched.changed(now).map(|path| format!("{} has changed", path.display()))
    }

    /// Why the shell is not run again yet, after it failed.
    fn pausing(&mut self, now: SystemTime) -> Option<String> {
        let failed = self.failed.as_mut().filter(|failed| failed.at.elapsed() < PAUSE)?;
        failed.watched.changed(now).is_none().then(|| failed.reason.clone())
    }

    /// A shell's last words may have what it once gave.
    fn without_secrets(&self, mut text: String) -> String {
        let all = self.good.iter().flat_map(|good| good.variables.iter());
        for (_, value) in all.filter(|(name, value)| value.len() >= SHORTEST && is_secret(name, value)) {
            text = text.replace(&*String::from_utf8_lossy(value), "‹secret›");
        }
        text
    }

    fn taken(&self, stale: Option<String>) -> Option<Taken> {
        let good = self.good.as_ref()?;
        let stale = stale.map(|reason| {
            let lost = if good.missing.is_empty() {
                String::new()
            } else {
                format!("; without {}, which a restart of agentd lost", good.missing.join(", "))
            };
            format!("the last good one is of {:.0}{lost}: {reason}", good.captured)
        });
        let (variables, functions) = (Arc::clone(&good.variables), Arc::clone(&good.functions));
        Some(Taken {
            variables,
            functions,
            captured: good.captured,
            stale,
            background: 0,
            quality: good.quality.clone(),
        })
    }
}

/// A clock that went back makes nothing old.
fn age(captured: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(captured)).unwrap_or_default()
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
