//! Looks at what may not answer, each in a process of its own (`agentd-keeper look`) that is killed when it takes too long.
//!
//! A process that hangs in the kernel outlives its kill. It is reaped when the kernel lets go of it, and until then counts among the few
//! there may be. Who looks at the same thing meanwhile is told so at once: another process would hang beside it. What plugins ask for
//! takes never all of those few, so that the places of sessions are looked at whatever hangs for others.
//!
//! A process that has answered everything about a session's own places is kept for some seconds, for the next such look: a
//! launch needs several, and to start a process takes longer than to look. Plugins and names get a new process each time.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use agentd_keeper::look::{Look, Looked};
use agentd_plugins::Failure;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::seconds;
use crate::frame;

/// How many there may be at once, those included that hang: of places and files.
const MOST: usize = 8;
/// How many of these for plugins.
const ASKED: usize = 6;
/// How many of names. They are nobody else's to take: what is behind a VPN is silent with its names, and it is the names that tell why. A
/// lookup waits on sockets and ends when it is killed; but what it reads first (nsswitch.conf, hosts, a module) can be on a dead mount.
const NAMES: usize = 16;
/// How long one that was killed has to be gone before it is said to hang.
const GONE: Duration = Duration::from_millis(500);
/// How long one that has answered waits for the next look.
const IDLE: Duration = Duration::from_secs(5);
/// The shortest life of a process that looks, whatever its deadline: it ends by itself after that.
const LIFE: Duration = Duration::from_mins(1);
/// What is left of that life when it is taken for another look, beside the time until the deadline.
const MARGIN: Duration = Duration::from_secs(10);

/// All that look.
#[derive(Debug, Clone)]
pub(super) struct Looks {
    keeper: PathBuf,
    free: Arc<Semaphore>,
    asked: Arc<Semaphore>,
    names: Arc<Semaphore>,
    hanging: Arc<Hanging>,
    /// One that waits for the next look, and until when.
    spare: Arc<Mutex<Option<(Running, Instant)>>>,
}

/// A process that looks, and its pipes.
#[derive(Debug)]
struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// When it ends by itself.
    ends: Instant,
}

/// For what there is a look, and so how many there may be of its like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lot {
    /// A session's own places.
    Own,
    /// A file, a mount or a program that a plugin asks for.
    Asked,
    /// Names of hosts, and where they are asked for.
    Names,
}

/// What keeps a look one of few.
type Turn = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// What those look at that were killed and are not gone yet, each with its lot.
#[derive(Debug, Default)]
struct Hanging(Mutex<Vec<(Lot, String)>>);

/// What is looked at, in a few words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    what: String,
    /// What of the machine would be silent with it.
    part: String,
}

impl From<String> for Subject {
    /// Of what nothing else is known.
    fn from(what: String) -> Self {
        Self { part: what.clone(), what }
    }
}

impl Subject {
    pub(super) fn of(what: String, part: String) -> Self {
        Self { what, part }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// What came of a look.
#[derive(Debug)]
pub(super) enum Glance {
    Looked(Looked),
    /// It took longer than it may, or somebody hangs on the same already; in words.
    Hangs(String),
}

/// One process that looks.
#[derive(Debug)]
pub(super) struct Eye {
    looks: Looks,
    lot: Lot,
    subject: Subject,
    begun: Instant,
    deadline: Instant,
    running: Option<(Running, Turn)>,
    /// Whether a question has no whole answer yet.
    asks: bool,
    /// Whether its time was over before it answered.
    hangs: bool,
}

impl Looks {
    pub(super) fn new(keeper: PathBuf) -> Self {
        let [free, asked, names] = [MOST, ASKED, NAMES].map(|most| Arc::new(Semaphore::new(most)));
        Self { keeper, free, asked, names, hanging: Arc::default(), spare: Arc::default() }
    }

    /// Why it is not worth it to look at this too: somebody hangs on it.
    pub(super) fn still(&self, subject: &Subject) -> Option<String> {
        self.hanging.still(subject)
    }

    async fn turn(&self, lot: Lot) -> Result<Turn, AcquireError> {
        let of = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_owned();
        Ok(match lot {
            Lot::Own => (of(&self.free).await?, None),
            Lot::Asked => {
                let asked = of(&self.asked).await?;
                (of(&self.free).await?, Some(asked))
            }
            Lot::Names => (of(&self.names).await?, None),
        })
    }

    /// One that answers until the deadline.
    pub(super) async fn open(&self, lot: Lot, subject: impl Into<Subject>, deadline: Instant) -> Result<Eye, Failure> {
        let (begun, subject) = (Instant::now(), subject.into());
        if let Some(text) = self.hanging.still(&subject) {
            return Err(Failure::TimedOut(text));
        }
        // Where all hang it is not worth the wait; but one that was killed just now is none of them yet.
        let patience = if self.hanging.full(lot).is_none() { deadline } else { deadline.min(begun + GONE) };
        let Ok(Ok(turn)) = timeout_at(patience.into(), self.turn(lot)).await else {
            let busy = || {
                let time = seconds(begun, deadline);
                format!("as many looks as there may be were under way for {time}; {subject} had no turn")
            };
            return Err(Failure::Unavailable(self.hanging.full(lot).unwrap_or_else(busy)));
        };
        let running = match self.take_spare(lot, deadline) {
            Some(running) => running,
            None => self.start(begun, deadline).map_err(|error| {
                Failure::Failed(format!("cannot look at {subject}: cannot run {}: {error}", self.keeper.display()))
            })?,
        };
        Ok(Eye {
            looks: self.clone(),
            lot,
            subject,
            begun,
            deadline,
            running: Some((running, turn)),
            asks: false,
            hangs: false,
        })
    }

    fn start(&self, begun: Instant, deadline: Instant) -> io::Result<Running> {
        // It ends by itself a while after it should have been killed.
        let life = deadline.saturating_duration_since(begun).saturating_add(MARGIN);
        let life = life.clamp(LIFE, Duration::from_hours(24));
        let mut child = Command::new(&self.keeper)
            .args(["look", &life.as_secs().to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(|| io::Error::other("it has no pipes"))?;
        Ok(Running { child, stdin, stdout, ends: begun + life })
    }

    fn spare(&self) -> MutexGuard<'_, Option<(Running, Instant)>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that has answered before, and lives long enough.
    fn take_spare(&self, lot: Lot, deadline: Instant) -> Option<Running> {
        if lot != Lot::Own {
            return None;
        }
        let (mut running, _) = self.spare().take()?;
        let lives = matches!(running.child.try_wait(), Ok(None));
        (lives && deadline + MARGIN <= running.ends).then_some(running)
    }

    /// Keeps one that has answered for a while. Without an owner it ends, since its stdin does.
    fn keep(&self, running: Running) {
        // Without a runtime the daemon itself is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let until = Instant::now() + IDLE;
        *self.spare() = Some((running, until));
        let looks = self.clone();
        runtime.spawn(async move {
            tokio::time::sleep_until(until.into()).await;
            let mut spare = looks.spare();
            // Another may have come into its place since.
            if spare.as_ref().is_some_and(|(_, other)| *other <= until) {
                *spare = None;
            }
        });
    }

    /// Asks one question.
    pub(super) async fn ask(
        &self,
        lot: Lot,
        subject: impl Into<Subject>,
        look: Look,
        deadline: Instant,
    ) -> Result<Glance, Failure> {
        let subject = subject.into();
        match self.hanging.still(&subject) {
            Some(text) => Ok(Glance::Hangs(text)),
            None => self.open(lot, subject, deadline).await?.ask(&look).await,
        }
    }
}

impl Glance {
    /// The answer; to hang is a failure.
    pub(super) fn answer(self) -> Result<Looked, Failure> {
        match self {
            Self::Looked(looked) => Ok(looked),
            Self::Hangs(text) => Err(Failure::TimedOut(text)),
        }
    }
}

impl Eye {
    /// What it looks at from now on, and until when.
    pub(super) fn turn(&mut self, subject: Subject, deadline: Instant) {
        (self.subject, self.begun, self.deadline) = (subject, Instant::now(), deadline);
    }

    pub(super) async fn ask(&mut self, look: &Look) -> Result<Glance, Failure> {
        let subject = &self.subject;
        let running = self.running.as_mut().filter(|_| !self.asks);
        let Some((Running { stdin, stdout, .. }, _)) = running else {
            return Err(Failure::Failed(format!("cannot look at {subject}: who looked has ended")));
        };
        // What is cut off within an answer gives no further one.
        self.asks = true;
        let asking = async {
            frame::write(stdin, look).await?;
            frame::read(stdout).await
        };
        match timeout_at(self.deadline.into(), asking).await {
            Ok(Ok(Some(looked))) => {
                self.asks = false;
                Ok(Glance::Looked(looked))
            }
            Ok(Ok(None)) => {
                Err(Failure::Failed(format!("cannot look at {subject}: who looked ended without an answer")))
            }
            Ok(Err(error)) => Err(Failure::Failed(format!("cannot look at {subject}: {error}"))),
            Err(_) => {
                let time = seconds(self.begun, self.deadline);
                self.hangs = true;
                Ok(Glance::Hangs(format!("{subject} did not answer within {time}")))
            }
        }
    }

    pub(super) async fn answer(&mut self, look: &Look) -> Result<Looked, Failure> {
        self.ask(look).await?.answer()
    }
}

impl Drop for Eye {
    fn drop(&mut self) {
        let Some((running, turn)) = self.running.take() else { return };
        if self.lot == Lot::Own && !self.asks {
            self.looks.keep(running);
            return;
        }
        let mut child = running.child;
        let _ = child.start_kill();
        // Without a runtime the daemon itself is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (hanging, lot) = (Arc::clone(&self.looks.hanging), self.lot);
        let subject = std::mem::take(&mut self.subject.part);
        // One whose time was over is not followed by another before it is gone.
        let mut counted = self.hangs;
        if counted {
            hanging.add(lot, &subject);
        }
        runtime.spawn(async move {
            if tokio::time::timeout(GONE, child.wait()).await.is_err() {
                tracing::warn!("a look at {subject} hangs in the kernel and cannot be ended");
                if !std::mem::replace(&mut counted, true) {
                    hanging.add(lot, &subject);
                }
                let _ = child.wait().await;
                tracing::info!("a look at {subject} that hung in the kernel has ended");
            }
            if counted {
                hanging.remove(lot, &subject);
            }
            drop(turn);
        });
    }
}

impl Hanging {
    fn all(&self) -> MutexGuard<'_, Vec<(Lot, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it is not worth it to look at this too.
    fn still(&self, subject: &Subject) -> Option<String> {
        let Subject { what, part } = subject;
        let before = format!("an earlier look at {part} hangs still");
        let told = if what == part { before } else { format!("{what} was not looked at: {before}") };
        self.all().iter().any(|(_, hangs)| hangs == part).then_some(told)
    }

    /// Why there can be no more of this lot: as many as there may be hang.
    fn full(&self, lot: Lot) -> Option<String> {
        let limits: &[(&[Lot], usize, &str)] = match lot {
            Lot::Own => &[(&[Lot::Own, Lot::Asked], MOST, "")],
            Lot::Asked => &[(&[Lot::Asked], ASKED, " for plugins"), (&[Lot::Own, Lot::Asked], MOST, "")],
            Lot::Names => &[(&[Lot::Names], NAMES, " for names")],
        };
        let all = self.all();
        limits.iter().find_map(|(lots, most, whose)| {
            let of_them = all.iter().filter(|(lot, _)| lots.contains(lot)).map(|(_, part)| part.as_str());
            let (count, parts) = (of_them.clone().count(), of_them.collect::<BTreeSet<_>>());
            let parts = parts.into_iter().collect::<Vec<_>>().join(", ");
            let text = || format!("{most} looks{whose} hang already, and there may be no more; they are at {parts}");
            (count >= *most).then(text)
        })
    }

    fn add(&self, lot: Lot, subject: &str) {
        self.all().push((lot, subject.to_owned()));
    }

    fn remove(&self, lot: Lot, subject: &str) {
        let mut all = self.all();
        if let Some(at) = all.iter().position(|(of, part)| (*of, part.as_str()) == (lot, subject)) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_for_plugins_leaves_looks_for_sessions_and_names_are_apart() {
        let hanging = Hanging::default();
        let full = || [Lot::Own, Lot::Asked, Lot::Names].map(|lot| hanging.full(lot).is_some());
        for at in 0..ASKED {
            assert_eq!(full(), [false; 3]);
            hanging.add(Lot::Asked, &format!("mount {at}"));
        }
        assert_eq!(full(), [false, true, false]);
        let told = hanging.full(Lot::Asked).unwrap();
        assert!(told.starts_with("6 looks for plugins hang already, and there may be no more; they are at mount 0, "));
        for _ in ASKED..MOST {
            hanging.add(Lot::Own, "home");
        }
        assert_eq!(full(), [true, true, false]);
        hanging.remove(Lot::Asked, "mount 0");
        assert_eq!(full(), [false; 3]);
        assert!(hanging.still(&"home".to_owned().into()).is_some());
        assert!(hanging.still(&"mount 0".to_owned().into()).is_none());
    }
}
