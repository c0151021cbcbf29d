//! Keeps a daemon running behind a control socket: as process 1 of a container, and for a runner of one session.
//!
//! This process is not the daemon: it has no sessions and answers no requests. The daemon is its child and receives
//! the socket as systemd would pass it. This process restarts a daemon that has ended. Meanwhile the keepers continue,
//! and clients wait in the socket's queue. As process 1 it reaps all processes that the kernel reparents to it.
//!
//! SIGHUP is forwarded to the daemon. For process 1, SIGTERM and SIGINT end the container; the kernel kills all its
//! processes together with process 1. Therefore it first ends the daemon, then asks each keeper to end its agent in
//! order, like a system that shuts down. A runner reacts to these signals itself, and ends the daemon at its own end.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, IntoRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use crate::serve::Options;
use agentd_control::{EndpointError, listen};
use agentd_host::directories::{Directories, DirectoryError};
use agentd_host::platform;

/// Reason why no daemon runs.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("cannot use the socket passed to process 1")]
    HandedOver(#[source] io::Error),
    #[error("cannot keep a daemon running")]
    Setup(#[source] io::Error),
    #[error("cannot start the daemon {program:?}")]
    Start { program: PathBuf, source: io::Error },
    /// The daemon has reported the reason itself.
    #[error("the first start of the daemon failed with status {status}")]
    First { status: i32 },
}

/// Subcommand with which a daemon receives the socket.
const HANDED_OVER: &str = "handed-over";
/// Pause before the first restart of a daemon that ended early. Each further pause is twice as long, up to
/// `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Run time after which the end of a daemon does not count as early.
const LONG: Duration = Duration::from_secs(10);
/// Time that the daemon gets at the container's end before the keepers are asked to end.
const DAEMON: Duration = Duration::from_secs(2);
/// Time that the keepers get at the container's end. Their own kill timeouts are shorter.
const KEEPERS: Duration = Duration::from_secs(20);
/// Interval at which remaining keepers are counted. The end of a child triggers a count too.
const LOOK: Duration = Duration::from_millis(250);

/// Reports whether this process is process 1.
pub(crate) fn is_this() -> bool {
    std::process::id() == 1
}

/// Keeps a daemon running behind the socket until the container has to end.
pub(crate) fn run(socket: &Path) -> Result<(), InitError> {
    let handed_over = platform::activated_sockets().map_err(InitError::HandedOver)?.control;
    let socket = match handed_over {
        Some(socket) => socket,
        None => listen(socket)?.into(),
    };
    let arguments = std::env::args_os().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(InitError::Setup)?;
    runtime.block_on(async {
        let mut ends = Signals::new([SIGTERM, SIGINT]).map_err(InitError::Setup)?;
        let mut init = Init::new(socket, arguments)?;
        tracing::info!("agentd runs as process 1: it holds the control socket and keeps a daemon running");
        init.keep(ends.next()).await?;
        tracing::info!("the container is ending; stopping the daemon and all sessions");
        init.end_daemon().await;
        init.end_keepers(KEEPERS).await;
        Ok(())
    })
}

/// A daemon that one program keeps running for itself.
pub struct OwnDaemon {
    directories: Directories,
    init: Init,
}

impl fmt::Debug for OwnDaemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnDaemon").field("directories", &self.directories).finish_non_exhaustive()
    }
}

impl OwnDaemon {
    /// Creates the directories of the options, and opens the control socket. The daemon has its log in a file.
    pub fn prepare(options: &Options) -> Result<Self, InitError> {
        agentd_keeper::private::protect_memory(None).map_err(InitError::Setup)?;
        let directories = Directories::find_and_create(&options.places)?;
        let socket = listen(&directories.control_socket())?.into();
        let mut arguments = vec![OsString::from("serve"), OsString::from("--background")];
        let mut add = |option: &str, path: &Path| arguments.extend([option.into(), path.into()]);
        add("--runtime-dir", &directories.runtime);
        add("--state-dir", &directories.state);
        add("--cache-dir", &directories.cache);
        add("--config-dir", &directories.config);
        add("--system-config-dir", &directories.system_config);
        if let Some(file) = &options.config_file {
            add("--config", file);
        }
        Ok(Self { init: Init::new(socket, arguments)?, directories })
    }

    /// Returns the directories of the daemon.
    pub fn directories(&self) -> &Directories {
        &self.directories
    }

    /// Keeps the daemon running until `work` is done. Fails if the daemon's first start fails.
    pub async fn keep<T>(&mut self, work: impl Future<Output = T>) -> Result<T, InitError> {
        self.init.keep(work).await
    }

    /// Ends the daemon, and all keepers of its sessions with their agents. Meanwhile each keeper has `patience` to end
    /// its agent in order.
    pub async fn end(mut self, patience: Duration) {
        self.init.end_daemon().await;
        if let Some(daemon) = self.init.daemon.take() {
            let _ = kill(daemon.pid, Signal::SIGKILL);
        }
        if is_this() {
            self.init.end_keepers(patience).await;
            return;
        }
        let sessions = std::fs::read_dir(self.directories.sessions()).into_iter().flatten().flatten();
        for (keeper, started) in sessions.flat_map(|session| platform::keepers_of(&session.path())) {
            platform::kill_tree(keeper, started);
        }
        self.init.reap();
    }
}

struct Init {
    socket: OwnedFd,
    program: PathBuf,
    /// Arguments for the daemon.
    arguments: Vec<OsString>,
    signals: Signals,
    daemon: Option<Daemon>,
}

/// The running daemon.
#[derive(Debug, Clone, Copy)]
struct Daemon {
    pid: Pid,
    since: Instant,
}

/// End of a daemon.
struct Ended {
    ran: Duration,
    status: WaitStatus,
}

impl Init {
    fn new(socket: OwnedFd, arguments: Vec<OsString>) -> Result<Self, InitError> {
        let program = std::env::current_exe().map_err(InitError::Setup)?;
        let signals = Signals::new([SIGCHLD, SIGHUP]).map_err(InitError::Setup)?;
        Ok(Self { socket, program, arguments, signals, daemon: None })
    }

    /// Keeps the daemon running until `work` is done.
    async fn keep<T>(&mut self, work: impl Future<Output = T>) -> Result<T, InitError> {
        let mut work = pin!(work);
        let (mut pause, mut is_first) = (FIRST_PAUSE, true);
        self.start()?;
        let mut again: Option<Instant> = None;
        loop {
            let signal = tokio::select! {
                done = &mut work => return Ok(done),
                signal = self.signals.next() => signal,
                () = until(again) => {
                    again = None;
                    if let Err(error) = self.start() {
                        let (error, pause) = (agentd_api::chain(&error), LONGEST_PAUSE.as_secs());
                        tracing::error!(%error, "cannot start the daemon; trying again in {pause} s");
                        again = Some(Instant::now() + LONGEST_PAUSE);
                    }
                    continue;
                }
            };
            if signal == Some(SIGHUP) {
                self.signal(Signal::SIGHUP);
                continue;
            }
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
            tracing::warn!(?status, "the daemon ended; restarting it in {} ms", pause.as_millis());
            again = Some(Instant::now() + pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn start(&mut self) -> Result<(), InitError> {
        let failed = |source| InitError::Start { program: self.program.clone(), source };
        let socket = self.socket.try_clone().map_err(failed)?;
        let child =
            Command::new(&self.program).arg(HANDED_OVER).args(&self.arguments).stdin(Stdio::from(socket)).spawn();
        // `reap` waits for this child together with all others.
        let pid = child.map_err(failed)?.id();
        let pid = i32::try_from(pid).map_err(io::Error::other).map_err(failed)?;
        self.daemon = Some(Daemon { pid: Pid::from_raw(pid), since: Instant::now() });
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        if let Some(daemon) = self.daemon {
            // The daemon may have ended a moment ago.
            let _ = kill(daemon.pid, signal);
        }
    }

    /// Reaps all children that have ended. Returns the daemon's end if the daemon was among them.
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

    /// Asks the daemon to end, and waits for its end for a limited time.
    async fn end_daemon(&mut self) {
        self.signal(Signal::SIGTERM);
        let until = Instant::now() + DAEMON;
        while self.daemon.is_some() && Instant::now() < until {
            self.look(until).await;
        }
    }

    /// Asks all keepers of the container to end their agents, and waits for their end.
    async fn end_keepers(&mut self, patience: Duration) {
        let mut asked = Vec::new();
        let until = Instant::now() + patience;
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

    /// Waits until a child has ended, or for `LOOK`.
    async fn look(&mut self, until: Instant) {
        let _ = tokio::time::timeout_at(until.min(Instant::now() + LOOK), self.signals.next()).await;
        self.reap();
    }
}

/// Returns the pids of all keepers in the container. Reads proc(5), which exists on Linux; on macOS process 1 is
/// launchd.
fn keepers() -> Vec<Pid> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_keeper = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A keeper that has ended and is not reaped yet does not count.
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

/// Executes `agentd ARGUMENTS` and passes stdin, which is the socket, as `sd_listen_fds(3)` describes. `LISTEN_PID`
/// names this process, so no other process can set the variables beforehand. Returns only on failure.
pub fn hand_over(arguments: &[OsString]) -> io::Result<Infallible> {
    const FIRST: i32 = 3;
    let program = std::env::current_exe()?;
    // SAFETY: this process has opened no descriptor, and its caller passed only stdin. So descriptor 3 is unused.
    #[allow(unsafe_code, reason = "a descriptor's number is what the protocol fixes")]
    let socket = unsafe { nix::unistd::dup2_raw(io::stdin().as_fd(), FIRST) }?;
    // The descriptor stays open for the program.
    let _ = socket.into_raw_fd();
    nix::unistd::dup2_stdin(File::open("/dev/null")?.as_fd())?;
    let mut command = Command::new(program);
    command.args(arguments).env("LISTEN_PID", std::process::id().to_string());
    Err(command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "control").exec())
}
