//! Lookups of files, mounts and names that may hang, in separate processes (`agentd-keeper look`). A process that
//! exceeds its time limit is killed.
//!
//! A process that hangs in the kernel survives its kill. It is reaped when the kernel releases it, and until then it
//! counts against the maximum number of processes. A further lookup of the same part of the machine is refused at
//! once, because it would hang too. Lookups for plugins can never use all processes, so the directories of sessions
//! can be examined even if other lookups hang.
//!
//! A process that has answered all requests waits for the next lookup, because starting a process takes longer than a
//! lookup. At most [`MAX_IDLE`] processes wait, for as long as the daemon runs, and the end of their stdin ends them. A
//! process keeps nothing of a lookup ([`LookupRequest::Begin`]), so one process serves sessions and plugins. Lookups of
//! names use a new process each time, because name services keep state in the process.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use agentd_keeper::look::{LookupAnswer, LookupRequest};
use agentd_plugin_host::Failure;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::seconds;
use crate::frame;
use crate::keeper_program::{KeeperProgram, Role};

/// Maximum number of lookup processes for places and files, including hanging ones.
const MAX_PROCESSES: usize = 8;
/// Maximum number of these processes that serve plugins.
const MAX_FOR_PLUGINS: usize = 6;
/// Maximum number of lookup processes for names. They have a limit of their own, because names behind a VPN do not
/// answer without it, and the failed names show the reason. A name lookup waits on sockets and ends when it is
/// killed. However, the files it reads first (nsswitch.conf, hosts, a module) can be on a dead mount.
const MAX_FOR_NAMES: usize = 16;
/// Time after a kill, after which a process counts as hanging.
const KILL_GRACE: Duration = Duration::from_millis(500);
/// Time for the end of a client and its job on a place. It is longer than the time of the command that cancels a job.
const PLACE_GRACE: Duration = Duration::from_secs(20);
/// Maximum number of idle processes.
const MAX_IDLE: usize = 2;
/// Minimum time of one request, whatever its deadline. After this time the process exits by itself.
const MIN_TIME: Duration = Duration::from_mins(1);
/// Time of a request beyond its deadline, after which its process exits by itself.
const MARGIN: Duration = Duration::from_secs(10);

/// Error of a lookup whose process has exited.
const NO_ANSWER: &str = "the lookup process exited without an answer";

/// The pool of lookup processes. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Lookers {
    keeper: KeeperProgram,
    free: Arc<Semaphore>,
    plugins: Arc<Semaphore>,
    names: Arc<Semaphore>,
    hanging: Arc<Hanging>,
    /// Idle processes for the next lookups.
    idle: Arc<Mutex<Vec<LookerProcess>>>,
}

/// A lookup process and its pipes.
#[derive(Debug)]
struct LookerProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// Bytes that precede the first message.
    preamble: Vec<u8>,
}

impl LookerProcess {
    /// Sends a request and reads its answer; `None` if the process exited. `begin` comes before the first request of a
    /// lookup.
    async fn ask(&mut self, begin: Option<&LookupRequest>, look: &LookupRequest) -> io::Result<Option<LookupAnswer>> {
        let preamble = std::mem::take(&mut self.preamble);
        if !preamble.is_empty() {
            self.stdin.write_all(&preamble).await?;
        }
        frame::write_all(&mut self.stdin, begin.into_iter().chain([look])).await?;
        frame::read(&mut self.stdout).await
    }
}

/// Returns the request that begins a lookup with this deadline.
fn begin(begun: Instant, deadline: Instant) -> LookupRequest {
    LookupRequest::Begin { seconds: longest(begun, deadline) }
}

/// Returns the seconds after which a process exits by itself, some time after it should have been killed.
fn longest(begun: Instant, deadline: Instant) -> u32 {
    let time = deadline.saturating_duration_since(begun).saturating_add(MARGIN);
    u32::try_from(time.clamp(MIN_TIME, Duration::from_hours(24)).as_secs()).unwrap_or(u32::MAX)
}

/// Purpose of a lookup, which determines its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Directories and programs of a session.
    Session,
    /// A file, a mount or a program that a plugin requests.
    Plugin,
    /// Host names and the name servers.
    Names,
}

/// Permits that a lookup holds while it counts against the limits.
type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// Parts of the machine whose lookup processes were killed and have not exited, each with its purpose.
#[derive(Debug, Default)]
struct Hanging(Mutex<Vec<(Purpose, String)>>);

/// Description of the object of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    what: String,
    /// Part of the machine that hangs together with the object.
    part: String,
}

impl From<String> for Subject {
    /// Describes an object that hangs alone.
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

/// Result of a lookup.
#[derive(Debug)]
pub(super) enum LookupResult {
    /// The answer of the lookup process.
    Answer(LookupAnswer),
    /// The time limit was exceeded, or an earlier lookup of the same part hangs; with a message.
    TimedOut(String),
}

/// A lookup in progress, with its process.
#[derive(Debug)]
pub(super) struct Looker {
    lookers: Lookers,
    purpose: Purpose,
    subject: Subject,
    begun: Instant,
    deadline: Instant,
    running: Option<(LookerProcess, Permits)>,
    /// Request that begins the lookup, until it is sent.
    beginning: Option<LookupRequest>,
    /// Whether the process has not completely answered a request.
    is_asking: bool,
    /// Whether the time limit was exceeded before the answer.
    timed_out: bool,
    /// Whether the process was kept from an earlier lookup and has not answered yet. It may have exited unnoticed.
    is_reused: bool,
}

impl Lookers {
    pub(super) fn new(keeper: KeeperProgram) -> Self {
        let [free, plugins, names] =
            [MAX_PROCESSES, MAX_FOR_PLUGINS, MAX_FOR_NAMES].map(|most| Arc::new(Semaphore::new(most)));
        Self { keeper, free, plugins, names, hanging: Arc::default(), idle: Arc::default() }
    }

    /// Returns a message if an earlier lookup of the subject's part of the machine hangs.
    pub(super) fn hanging_message(&self, subject: &Subject) -> Option<String> {
        self.hanging.hanging_message(subject)
    }

    async fn permits(&self, purpose: Purpose) -> Result<Permits, AcquireError> {
        let of = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_owned();
        Ok(match purpose {
            Purpose::Session => (of(&self.free).await?, None),
            Purpose::Plugin => {
                let plugin = of(&self.plugins).await?;
                (of(&self.free).await?, Some(plugin))
            }
            Purpose::Names => (of(&self.names).await?, None),
        })
    }

    /// Starts a lookup process, or reuses an idle one, that answers until the deadline.
    pub(super) async fn open(
        &self,
        purpose: Purpose,
        subject: impl Into<Subject>,
        deadline: Instant,
    ) -> Result<Looker, Failure> {
        let (begun, subject) = (Instant::now(), subject.into());
        if let Some(text) = self.hanging.hanging_message(&subject) {
            return Err(Failure::TimedOut(text));
        }
        // If all processes hang, a wait is pointless. However, a process that was killed just now does not count as
        // hanging yet.
        let patience =
            if self.hanging.exhausted_message(purpose).is_none() { deadline } else { deadline.min(begun + KILL_GRACE) };
        let Ok(Ok(permits)) = timeout_at(patience.into(), self.permits(purpose)).await else {
            let busy = || {
                let time = seconds(begun, deadline);
                format!("cannot examine {subject}: all lookups were busy for {time}")
            };
            return Err(Failure::Unavailable(self.hanging.exhausted_message(purpose).unwrap_or_else(busy)));
        };
        let idle = self.take_idle(purpose);
        let is_reused = idle.is_some();
        let running = match idle {
            Some(running) => running,
            None => self.start_for(&subject, begun, deadline)?,
        };
        Ok(Looker {
            lookers: self.clone(),
            purpose,
            subject,
            begun,
            deadline,
            running: Some((running, permits)),
            beginning: Some(begin(begun, deadline)),
            is_asking: false,
            timed_out: false,
            is_reused,
        })
    }

    fn start_for(&self, subject: &Subject, begun: Instant, deadline: Instant) -> Result<LookerProcess, Failure> {
        self.start(begun, deadline)
            .map_err(|error| Failure::Failed(format!("cannot examine {subject}: cannot run {}: {error}", self.keeper)))
    }

    fn start(&self, begun: Instant, deadline: Instant) -> io::Result<LookerProcess> {
        let Role { mut child, preamble } = self.keeper.start(&["look", &longest(begun, deadline).to_string()])?;
        let stderr = child.stderr.take();
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(|| io::Error::other("the process has no pipes"))?;
        Ok(LookerProcess { child, stdin, stdout, stderr, preamble })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<LookerProcess>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle process that still runs.
    fn take_idle(&self, purpose: Purpose) -> Option<LookerProcess> {
        if purpose == Purpose::Names {
            return None;
        }
        let mut idle = self.idle();
        std::iter::from_fn(|| idle.pop()).find_map(|mut running| {
            let lives = matches!(running.child.try_wait(), Ok(None));
            lives.then_some(running)
        })
    }

    /// Keeps an idle process. Ends it if enough processes wait.
    fn keep(&self, running: LookerProcess) {
        // On a place, an idle process would occupy a connection or a job.
        if self.keeper.place().is_some() {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE {
            idle.push(running);
        }
    }

    /// Sends one request.
    pub(super) async fn ask(
        &self,
        purpose: Purpose,
        subject: impl Into<Subject>,
        look: LookupRequest,
        deadline: Instant,
    ) -> Result<LookupResult, Failure> {
        let subject = subject.into();
        match self.hanging.hanging_message(&subject) {
            Some(text) => Ok(LookupResult::TimedOut(text)),
            None => self.open(purpose, subject, deadline).await?.ask(&look).await,
        }
    }
}

impl LookupResult {
    /// Returns the answer. A timeout becomes a failure.
    pub(super) fn answer(self) -> Result<LookupAnswer, Failure> {
        match self {
            Self::Answer(looked) => Ok(looked),
            Self::TimedOut(text) => Err(Failure::TimedOut(text)),
        }
    }
}

impl Looker {
    /// Begins another lookup, with the subject and the deadline of the next requests.
    pub(super) fn set_subject(&mut self, subject: Subject, deadline: Instant) {
        (self.subject, self.begun, self.deadline) = (subject, Instant::now(), deadline);
        self.beginning = Some(begin(self.begun, deadline));
    }

    pub(super) async fn ask(&mut self, look: &LookupRequest) -> Result<LookupResult, Failure> {
        let subject = &self.subject;
        let Some((process, _)) = self.running.as_mut().filter(|_| !self.is_asking) else {
            return Err(Failure::Failed(format!("cannot examine {subject}: the lookup process has exited")));
        };
        // An answer that is cut off makes further answers unreadable.
        self.is_asking = true;
        let begin = self.beginning.take();
        let mut asked = timeout_at(self.deadline.into(), process.ask(begin.as_ref(), look)).await;
        if std::mem::take(&mut self.is_reused) && matches!(asked, Ok(Ok(None) | Err(_))) {
            // The process ended between two lookups. A lookup changes nothing, so a new process repeats it.
            *process = self.lookers.start_for(subject, self.begun, self.deadline)?;
            asked = timeout_at(self.deadline.into(), process.ask(begin.as_ref(), look)).await;
        }
        match asked {
            Ok(Ok(Some(looked))) => {
                self.is_asking = false;
                Ok(LookupResult::Answer(looked))
            }
            Ok(Ok(None)) => {
                let explained = self.lookers.keeper.explain(process.stderr.take(), NO_ANSWER).await;
                Err(Failure::Failed(format!("cannot examine {subject}: {explained}")))
            }
            Ok(Err(error)) => Err(Failure::Failed(format!("cannot examine {subject}: {error}"))),
            Err(_) => {
                let time = seconds(self.begun, self.deadline);
                self.timed_out = true;
                Ok(LookupResult::TimedOut(format!("{subject} did not answer within {time}")))
            }
        }
    }

    pub(super) async fn answer(&mut self, look: &LookupRequest) -> Result<LookupAnswer, Failure> {
        self.ask(look).await?.answer()
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        let Some((running, permits)) = self.running.take() else { return };
        if self.purpose != Purpose::Names && !self.is_asking {
            self.lookers.keep(running);
            return;
        }
        let LookerProcess { mut child, stdin, .. } = running;
        let is_elsewhere = self.lookers.keeper.place().is_some();
        drop(stdin);
        if !is_elsewhere {
            let _ = child.start_kill();
        }
        // Without a runtime, the daemon is exiting.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (hanging, purpose) = (Arc::clone(&self.lookers.hanging), self.purpose);
        let subject = std::mem::take(&mut self.subject.part);
        // After a timeout, no further lookup of this part starts until the process has exited.
        let mut counted = self.timed_out;
        if counted {
            hanging.add(purpose, &subject);
        }
        runtime.spawn(async move {
            // On a place, the end of its stdin ends the client, and what the client has started there.
            if is_elsewhere && tokio::time::timeout(PLACE_GRACE, child.wait()).await.is_err() {
                let _ = child.start_kill();
            }
            if tokio::time::timeout(KILL_GRACE, child.wait()).await.is_err() {
                tracing::warn!("the lookup of {subject} hangs in the kernel and cannot be killed");
                if !std::mem::replace(&mut counted, true) {
                    hanging.add(purpose, &subject);
                }
                let _ = child.wait().await;
                tracing::info!("the lookup of {subject} no longer hangs in the kernel");
            }
            if counted {
                hanging.remove(purpose, &subject);
            }
            drop(permits);
        });
    }
}

impl Hanging {
    fn all(&self) -> MutexGuard<'_, Vec<(Purpose, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a message if a lookup of the subject's part hangs.
    fn hanging_message(&self, subject: &Subject) -> Option<String> {
        let Subject { what, part } = subject;
        let before = format!("an earlier lookup of {part} still hangs");
        let message = if what == part { before } else { format!("{what} was not examined: {before}") };
        self.all().iter().any(|(_, hangs)| hangs == part).then_some(message)
    }

    /// Returns a message if as many lookups of this purpose hang as the limits permit.
    fn exhausted_message(&self, purpose: Purpose) -> Option<String> {
        let limits: &[(&[Purpose], usize, &str)] = match purpose {
            Purpose::Session => &[(&[Purpose::Session, Purpose::Plugin], MAX_PROCESSES, "")],
            Purpose::Plugin => &[
                (&[Purpose::Plugin], MAX_FOR_PLUGINS, " for plugins"),
                (&[Purpose::Session, Purpose::Plugin], MAX_PROCESSES, ""),
            ],
            Purpose::Names => &[(&[Purpose::Names], MAX_FOR_NAMES, " for names")],
        };
        let all = self.all();
        limits.iter().find_map(|(purposes, most, whose)| {
            let matching = all.iter().filter(|(purpose, _)| purposes.contains(purpose)).map(|(_, part)| part.as_str());
            let (count, parts) = (matching.clone().count(), matching.collect::<BTreeSet<_>>());
            let parts = parts.into_iter().collect::<Vec<_>>().join(", ");
            let text = || format!("{most} lookups{whose} hang, which is the limit; they are at {parts}");
            (count >= *most).then(text)
        })
    }

    fn add(&self, purpose: Purpose, subject: &str) {
        self.all().push((purpose, subject.to_owned()));
    }

    fn remove(&self, purpose: Purpose, subject: &str) {
        let mut all = self.all();
        if let Some(at) = all.iter().position(|(of, part)| (*of, part.as_str()) == (purpose, subject)) {
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
        let full = || {
            [Purpose::Session, Purpose::Plugin, Purpose::Names]
                .map(|purpose| hanging.exhausted_message(purpose).is_some())
        };
        for at in 0..MAX_FOR_PLUGINS {
            assert_eq!(full(), [false; 3]);
            hanging.add(Purpose::Plugin, &format!("mount {at}"));
        }
        assert_eq!(full(), [false, true, false]);
        let message = hanging.exhausted_message(Purpose::Plugin).unwrap();
        assert!(message.starts_with("6 lookups for plugins hang, which is the limit; they are at mount 0, "));
        for _ in MAX_FOR_PLUGINS..MAX_PROCESSES {
            hanging.add(Purpose::Session, "home");
        }
        assert_eq!(full(), [true, true, false]);
        hanging.remove(Purpose::Plugin, "mount 0");
        assert_eq!(full(), [false; 3]);
        assert!(hanging.hanging_message(&"home".to_owned().into()).is_some());
        assert!(hanging.hanging_message(&"mount 0".to_owned().into()).is_none());
    }
}
