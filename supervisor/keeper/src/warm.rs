//! An agent that is kept warm: it is started and gets its first request before its session begins.
//!
//! This process reads nothing of the agent's output. It waits in the pipes until the keeper of the session reads it
//! like all other output. [`WarmAgent::hand_over`] gives the process to a launch that would start an equal process. In
//! every other case the value is dropped, which ends the agent with its whole tree.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};

use crate::agent::{self, AgentProcess};
use crate::frame;
use crate::os::Family;
use crate::protocol::{Begin, FromKeeper, LaunchRecord, SESSION_VARIABLE};
use crate::signals::Signals;
use crate::tree;
use crate::wait;
use crate::watch::Watch;

/// Time from SIGTERM to the kill of an agent that no session has taken.
const GRACE: Duration = Duration::from_secs(1);

/// A started agent without a session. Dropping the value ends the agent.
#[derive(Debug)]
pub(crate) struct WarmAgent {
    record: Box<LaunchRecord>,
    /// The process, until a launch takes it over.
    process: Option<AgentProcess>,
    family: Family,
    watch: Option<Watch>,
    has_exited: bool,
    has_answered: bool,
}

impl WarmAgent {
    /// Starts the agent and sends it the first request.
    pub(crate) fn start(session: &str, record: Box<LaunchRecord>) -> io::Result<Self> {
        if record.place.is_some() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "no agent is kept warm on a place"));
        }
        let process = agent::start(session, &record)?;
        let warm = Self {
            family: Family::led_by(process.spawned.pid, Some((SESSION_VARIABLE, session.as_bytes()))),
            watch: Watch::new(record.limits, Instant::now()),
            process: Some(process),
            record,
            has_exited: false,
            has_answered: false,
        };
        warm.send()?;
        Ok(warm)
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, |process| process.spawned.pid.unsigned_abs())
    }

    /// Writes the first request. The pipe is empty and has room for it.
    fn send(&self) -> io::Result<()> {
        let line = self.record.initialize.as_ref().map(|line| format!("{}\n", line.get())).unwrap_or_default();
        let stdin = self.process.as_ref().and_then(|process| process.spawned.stdin.as_ref());
        let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
        let written = nix::unistd::write(stdin, line.as_bytes())?;
        if written < line.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    /// Waits for the daemon's next frame, and reports the first output of the agent. Returns `None` when the agent must
    /// be ended: it has exited or exceeds a limit, this process got SIGTERM, or the daemon closed the connection.
    pub(crate) fn wait(&mut self, daemon: &mut UnixStream, signals: &Signals) -> io::Result<Option<Begin>> {
        loop {
            let (asked, answered) = self.poll(daemon, signals)?;
            if signals.take_terminate() {
                return Ok(None);
            }
            self.reap();
            let now = Instant::now();
            let exceeded = self.watch.as_mut().and_then(|watch| watch.look(now, &mut self.family));
            if self.has_exited || exceeded.is_some() {
                return Ok(None);
            }
            if answered {
                self.has_answered = true;
                frame::write(daemon, &FromKeeper::Warm).map_err(io::Error::other)?;
            }
            if asked {
                return frame::read::<Begin>(daemon).map_err(io::Error::other);
            }
        }
    }

    /// Waits for events. Returns whether the daemon has sent something or closed the connection, and whether the first
    /// output is there.
    fn poll(&self, daemon: &UnixStream, signals: &Signals) -> io::Result<(bool, bool)> {
        let stdout = self.process.as_ref().and_then(|process| process.spawned.stdout.as_ref());
        let stdout = stdout.filter(|_| !self.has_answered);
        let mut fds = vec![
            PollFd::new(signals.children(), PollFlags::POLLIN),
            PollFd::new(signals.terminate(), PollFlags::POLLIN),
            PollFd::new(daemon.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(stdout.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        wait::wait(&mut fds, self.watch.as_ref().map(Watch::due))?;
        let has_output = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| events.contains(PollFlags::POLLIN));
        // After an interrupted wait, poll(2) has set no events.
        Ok((fds[2].revents().is_some_and(|events| !events.is_empty()), fds.get(3).is_some_and(has_output)))
    }

    /// Notes whether the agent's process has exited.
    fn reap(&mut self) {
        let leader = self.process.as_ref().map(|process| process.spawned.pid);
        let has_exited = &mut self.has_exited;
        tree::reap(|pid, _| *has_exited |= Some(pid) == leader);
    }

    /// Returns the process if it lives, and if this launch would start an equal process and send it an equal first
    /// request.
    pub(crate) fn hand_over(mut self, record: &LaunchRecord) -> Option<AgentProcess> {
        self.reap();
        if self.has_exited || !self.record.starts_like(record) { None } else { self.process.take() }
    }
}

impl Drop for WarmAgent {
    fn drop(&mut self) {
        self.record.zeroize();
        let Some(process) = self.process.take() else { return };
        let group = process.spawned.pid;
        // The closed stdin lets an agent end by itself.
        drop(process);
        tree::end(group, &mut self.family, GRACE, || {});
    }
}
