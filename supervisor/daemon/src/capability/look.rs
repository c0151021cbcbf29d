//! Looks at what may not answer, each in a process of its own (`agentd-keeper look`) that is killed when it takes too long.
//!
//! A process that hangs in the kernel outlives its kill. It is reaped when the kernel lets go of it, and until then counts among the few
//! there may be. Who looks at the same thing meanwhile is told so at once: another process would hang beside it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentd_keeper::look::{Look, Looked};
use agentd_plugins::Failure;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::seconds;
use crate::frame;

/// How many there may be at once, those included that hang.
const MOST: usize = 8;
/// How long one that was killed has to be gone before it is said to hang.
const GONE: Duration = Duration::from_millis(500);

/// All that look.
#[derive(Debug, Clone)]
pub(super) struct Looks {
    keeper: PathBuf,
    free: Arc<Semaphore>,
    hanging: Arc<Hanging>,
}

/// What those look at that were killed and are not gone yet, and how many of each there are.
#[derive(Debug, Default)]
struct Hanging(Mutex<BTreeMap<String, usize>>);

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
    subject: Subject,
    begun: Instant,
    deadline: Instant,
    child: Option<(Child, OwnedSemaphorePermit)>,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// Whether its time was over before it answered.
    hangs: bool,
}

impl Looks {
    pub(super) fn new(keeper: PathBuf) -> Self {
        Self { keeper, free: Arc::new(Semaphore::new(MOST)), hanging: Arc::default() }
    }

    /// Why it is not worth it to look at this too: somebody hangs on it.
    pub(super) fn still(&self, subject: &Subject) -> Option<String> {
        self.hanging.still(subject)
    }

    /// One that answers until the deadline.
    pub(super) async fn open(&self, subject: impl Into<Subject>, deadline: Instant) -> Result<Eye, Failure> {
        let (begun, subject) = (Instant::now(), subject.into());
        if let Some(text) = self.hanging.still(&subject) {
            return Err(Failure::TimedOut(text));
        }
        // Where all hang it is not worth the wait; but one that was killed just now is none of them yet.
        let patience = if self.hanging.count() < MOST { deadline } else { deadline.min(begun + GONE) };
        let Ok(Ok(permit)) = timeout_at(patience.into(), Arc::clone(&self.free).acquire_owned()).await else {
            let hanging = self.hanging.all();
            if hanging.values().sum::<usize>() == MOST {
                let what = hanging.keys().cloned().collect::<Vec<_>>().join(", ");
                let text = format!("{MOST} looks hang already, and there may be no more; they are at {what}");
                return Err(Failure::Unavailable(text));
            }
            let text = format!("{MOST} looks were under way for {}; {subject} had no turn", seconds(begun, deadline));
            return Err(Failure::Unavailable(text));
        };
        let failed = |error: std::io::Error| {
            Failure::Failed(format!("cannot look at {subject}: cannot run {}: {error}", self.keeper.display()))
        };
        // It ends by itself a while after it should have been killed.
        let life = deadline.saturating_duration_since(begun).as_secs().saturating_add(10).min(86_400);
        let mut child = Command::new(&self.keeper)
            .args(["look", &life.to_string()])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let no_pipes = || failed(std::io::Error::other("it has no pipes"));
        let stdout = stdout.ok_or_else(no_pipes)?;
        Ok(Eye {
            looks: self.clone(),
            subject,
            begun,
            deadline,
            child: Some((child, permit)),
            stdin,
            stdout,
            hangs: false,
        })
    }

    /// Asks one question.
    pub(super) async fn ask(
        &self,
        subject: impl Into<Subject>,
        look: Look,
        deadline: Instant,
    ) -> Result<Glance, Failure> {
        let subject = subject.into();
        match self.hanging.still(&subject) {
            Some(text) => Ok(Glance::Hangs(text)),
            None => self.open(subject, deadline).await?.ask(&look).await,
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
        let Some(stdin) = self.stdin.as_mut() else {
            return Err(Failure::Failed(format!("cannot look at {subject}: who looked has ended")));
        };
        let asking = async {
            frame::write(stdin, look).await?;
            frame::read(&mut self.stdout).await
        };
        match timeout_at(self.deadline.into(), asking).await {
            Ok(Ok(Some(looked))) => Ok(Glance::Looked(looked)),
            Ok(Ok(None)) => {
                Err(Failure::Failed(format!("cannot look at {subject}: who looked ended without an answer")))
            }
            Ok(Err(error)) => Err(Failure::Failed(format!("cannot look at {subject}: {error}"))),
            Err(_) => {
                let time = seconds(self.begun, self.deadline);
                // What is cut off within an answer gives no further one.
                (self.stdin, self.hangs) = (None, true);
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
        let Some((mut child, permit)) = self.child.take() else { return };
        let _ = child.start_kill();
        // Without a runtime the daemon itself is ending.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (hanging, subject) = (Arc::clone(&self.looks.hanging), std::mem::take(&mut self.subject.part));
        // One whose time was over is not followed by another before it is gone.
        let mut counted = self.hangs;
        if counted {
            hanging.add(&subject);
        }
        runtime.spawn(async move {
            if tokio::time::timeout(GONE, child.wait()).await.is_err() {
                tracing::warn!("a look at {subject} hangs in the kernel and cannot be ended");
                if !std::mem::replace(&mut counted, true) {
                    hanging.add(&subject);
                }
                let _ = child.wait().await;
                tracing::info!("a look at {subject} that hung in the kernel has ended");
            }
            if counted {
                hanging.remove(&subject);
            }
            drop(permit);
        });
    }
}

impl Hanging {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it is not worth it to look at this too.
    fn still(&self, subject: &Subject) -> Option<String> {
        let Subject { what, part } = subject;
        let before = format!("an earlier look at {part} hangs still");
        let told = if what == part { before } else { format!("{what} was not looked at: {before}") };
        self.all().contains_key(part).then_some(told)
    }

    fn count(&self) -> usize {
        self.all().values().sum()
    }

    fn add(&self, subject: &str) {
        *self.all().entry(subject.to_owned()).or_default() += 1;
    }

    fn remove(&self, subject: &str) {
        let mut all = self.all();
        match all.get_mut(subject) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                all.remove(subject);
            }
        }
    }
}
