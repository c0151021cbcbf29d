//! agentd as process 1 of a container: a small init that holds the control socket and keeps a daemon running behind it.
//!
//! It is not the daemon: it knows no session and answers no request. The daemon is its child, which gets the socket as systemd would hand it over,
//! and is started again when it ends: the keepers go on meanwhile, as children that the kernel gives to process 1, and whoever connects waits in
//! the socket's queue. It reaps whatever is given to it.
//!
//! SIGHUP is passed on. SIGTERM and SIGINT end the container, and with process 1 the kernel kills everything in it: so the daemon is ended
//! first, then each keeper is asked to end its agent in order, as a system does that shuts down.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, IntoRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use crate::control::{EndpointError, listen};
use crate::platform;

/// Why there is no daemon.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("the socket handed over to process 1 cannot be used")]
    HandedOver(#[source] io::Error),
    #[error("cannot run as process 1")]
    Prepare(#[source] io::Error),
    #[error("cannot start the daemon {program:?}")]
    Start { program: PathBuf, source: io::Error },
    /// It has said why.
    #[error("the daemon ended with status {status} when it was started first")]
    First { status: i32 },
}

/// The subcommand by which a daemon gets the socket.
const HANDED_OVER: &str = "handed-over";
/// Before the first restart of a daemon that ended early; each further one is twice as late, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A daemon that has run for so long did not end early.
const LONG: Duration = Duration::from_secs(10);
/// At the end: how long the daemon may take before the keepers are asked all the same.
const DAEMON: Duration = Duration::from_secs(2);
/// At the end: how long the keepers may take. They kill what is slower than their own times, which are shorter.
const KEEPERS: Duration = Duration::from_secs(20);
/// How often it is looked which keepers are left, besides when one ends.
const LOOK: Duration = Duration::from_millis(250);

/// Whether this process is process 1.
pub(crate) fn is_this() -> bool {
    std::process::id() == 1
}

/// Keeps a daemon running behind the socket until the container is to end.
pub(crate) fn run(socket: &Path) -> Result<(), InitError> {
    let handed_over = platform::activated_socket().map_err(InitError::HandedOver)?;
    let socket = match handed_over {
        Some(socket) => socket,
        None => listen(socket)?.into(),
    };
    let program = std::env::current_exe().map_err(InitError::Prepare)?;
    let arguments = std::env::args_os().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(InitError::Prepare)?;
    runtime.block_on(async {
        let signals = Signals::new([SIGCHLD, SIGTERM, SIGINT, SIGHUP]).map_err(InitError::Prepare)?;
        Init { socket, program, arguments, signals, daemon: None }.run().await
    })
}

struct Init {
    socket: OwnedFd,
    program: PathBuf,
    /// The daemon's: our own.
    arguments: Vec<OsString>,
    signals: Signals,
    daemon: Option<Daemon>,
}

/// The one that runs.
#[derive(Clone, Copy)]
struct Daemon {
    pid: Pid,
    since: Instant,
}

/// How a daemon ended.
struct Ended {
    ran: Duration,
    status: WaitStatus,
}

impl Init {
    async fn run(mut self) -> Result<(), InitError> {
        tracing::info!("agentd is process 1: it holds the control socket, and keeps a daemon behind it");
        let (mut pause, mut is_first) = (FIRST_PAUSE, true);
        self.start()?;
        let mut again: Option<Instant> = None;
        loop {
            let signal = tokio::select! {
                signal = self.signals.next() => signal,
                () = until(again) => {
                    again = None;
                    if let Err(error) = self.start() {
                        tracing::error!(error = %crate::message::chain(&error), "the daemon is tried again");
                        again = Some(Instant::now() + LONGEST_PAUSE);
                    }
                    continue;
                }
            };
            match signal {
                Some(SIGCHLD) => {
                    let Some(Ended { ran, status }) = self.reap() else { continue };
                    if let WaitStatus::Exited(_, status) = status
                        && status != 0
                        && is_first
                        && ran < LONG
                    {
                        return Err(InitError::First { status });
                    }
                    is_first = false;
                    if ran >= LONG {
                        pause = FIRST_PAUSE;
                    }
                    tracing::warn!(?status, "the daemon ended, and is started again in {} ms", pause.as_millis());
                    again = Some(Instant::now() + pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Some(SIGHUP) => self.signal(Signal::SIGHUP),
                _ => break,
            }
        }
        tracing::info!("the container ends: so do the daemon and every session");
        self.end().await;
        Ok(())
    }

    fn start(&mut self) -> Result<(), InitError> {
        let failed = |source| InitError::Start { program: self.program.clone(), source };
        let socket = self.socket.try_clone().map_err(failed)?;
        let child =
            Command::new(&self.program).arg(HANDED_OVER).args(&self.arguments).stdin(Stdio::from(socket)).spawn();
        // It is waited for with all the others.
        let pid = child.map_err(failed)?.id();
        let pid = i32::try_from(pid).map_err(io::Error::other).map_err(failed)?;
        self.daemon = Some(Daemon { pid: Pid::from_raw(pid), since: Instant::now() });
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(daemon) = self.daemon {
            // It may have ended a moment ago.
            let _ = kill(daemon.pid, signal);
        }
    }

    /// Takes every child that has ended off the kernel's hands; the daemon's end, where it was among them.
    fn reap(&mut self) -> Option<Ended> {
        let mut found = None;
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            let Some(pid) = status.pid() else { break };
            if let Some(daemon) = self.daemon.filter(|daemon| daemon.pid == pid) {
                self.daemon = None;
                found = Some(Ended { ran: daemon.since.elapsed(), status });
            }
        }
        found
    }

    /// Ends the daemon, then the keepers.
    async fn end(&mut self) {
        self.signal(Signal::SIGTERM);
        let until = Instant::now() + DAEMON;
        while self.daemon.is_some() && Instant::now() < until {
            self.look(until).await;
        }
        let mut asked = Vec::new();
        let until = Instant::now() + KEEPERS;
        loop {
            let left = keepers();
            for &keeper in left.iter().filter(|keeper| !asked.contains(*keeper)) {
                let _ = kill(keeper, Signal::SIGTERM);
            }
            if (left.is_empty() && self.daemon.is_none()) || Instant::now() >= until {
                return;
            }
            asked = left;
            self.look(until).await;
        }
    }

    /// Waits until a child has ended, or for a moment.
    async fn look(&mut self, until: Instant) {
        let _ = tokio::time::timeout_at(until.min(Instant::now() + LOOK), self.signals.next()).await;
        self.reap();
    }
}

/// The keepers there are, wherever in the tree. proc(5): this is Linux, on macOS process 1 is launchd.
fn keepers() -> Vec<Pid> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_keeper = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // One that has ended and is still to be reaped counts no more.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        stat.contains("(agentd-keeper)") && !matches!(state, None | Some('Z' | 'X'))
    };
    pids.filter(is_keeper).map(Pid::from_raw).collect()
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Becomes `agentd ARGUMENTS` with stdin, which is the socket, handed over as `sd_listen_fds(3)` has it: the process's own id is among what is
/// said, so that nobody can say it beforehand. Returns only where it fails.
pub fn hand_over(arguments: &[OsString]) -> io::Result<Infallible> {
    const FIRST: i32 = 3;
    let program = std::env::current_exe()?;
    // SAFETY: nothing of this process has that descriptor: it has opened nothing, and what was handed to it is stdin.
    #[allow(unsafe_code, reason = "a descriptor's number is what the protocol fixes")]
    let socket = unsafe { nix::unistd::dup2_raw(io::stdin().as_fd(), FIRST) }?;
    // It is left open for the program.
    let _ = socket.into_raw_fd();
    nix::unistd::dup2_stdin(File::open("/dev/null")?.as_fd())?;
    let mut command = Command::new(program);
    command.args(arguments).env("LISTEN_PID", std::process::id().to_string());
    Err(command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "control").exec())
}
