//! `agentd-keeper hold` becomes the parent process of an agent.
//!
//! This module sets the keeper up: it closes inherited file descriptors, locks the journal and listens on the socket.
//! Then it redirects stderr to `/dev/null` and closes the inherited stdout. The end of stdout shows the starter that
//! the keeper listens.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use agentd_api::event::{Body, KeeperStarted};
use agentd_fault::Point;
use agentd_journal::{OpenError, Writer};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, getpid, getsid, setsid};

use crate::bound::Bound;
use crate::keeper::Keeper;
use crate::log::Log;
use crate::protocol::{HoldArgs, PROTOCOL};
use crate::signals::Signals;
use crate::warm::WarmAgent;
use crate::{os, private};

/// Error of a keeper that cannot hold an agent.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another keeper or a daemon holds the session's journal.
    #[error("session {session:?} is held already")]
    Held { session: String, source: OpenError },
    #[error("cannot open the journal of session {session:?}")]
    Journal { session: String, source: OpenError },
    #[error("cannot listen on {path:?}: the path has {length} bytes; this system allows {}", os::SOCKET_PATH_MAX)]
    PathTooLong { path: PathBuf, length: usize },
    #[error("cannot listen on {path:?}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot {action}")]
    Setup { action: &'static str, source: io::Error },
    #[error("cannot poll for events")]
    Wait(#[source] io::Error),
}

/// Holds an agent until it has ended and the daemon was notified. A process must call this function first, while it
/// has a single thread.
pub fn hold(args: &HoldArgs) -> Result<(), HoldError> {
    set_up()?;
    hold_for(args, None, None)
}

/// Prepares the process for any session.
pub(crate) fn set_up() -> Result<(), HoldError> {
    os::close_inherited(None).map_err(setup("close inherited file descriptors"))?;
    os::refuse_tracing().map_err(setup("protect its memory from other processes"))?;
    forget_environment();
    if getsid(None).ok() != Some(getpid()) {
        setsid().map_err(io::Error::from).map_err(setup("begin a process session"))?;
    }
    std::env::set_current_dir("/").map_err(setup("change its working directory to the root"))?;
    os::become_subreaper().map_err(setup("become the reaper of the agent's descendants"))
}

fn setup(action: &'static str) -> impl Fn(io::Error) -> HoldError {
    move |source| HoldError::Setup { action, source }
}

/// Protects the memory of this process, and installs its signals.
pub(crate) fn receive_signals(args: &HoldArgs) -> Result<Signals, HoldError> {
    private::protect_memory(args.core).map_err(setup("protect its memory from other processes"))?;
    Signals::install().map_err(setup("receive signals"))
}

/// Takes the session's journal, listens, and holds the agent. `daemon` is the connection of the daemon that started
/// this process, if there is one. `warm` is an agent that was started before, with the signals of this process.
pub(crate) fn hold_for(
    args: &HoldArgs,
    daemon: Option<&UnixStream>,
    warm: Option<(Signals, WarmAgent)>,
) -> Result<(), HoldError> {
    let (signals, warm) = match warm {
        Some((signals, warm)) => (signals, Some(warm)),
        None => (receive_signals(args)?, None),
    };
    let pid = std::process::id();
    let own = i32::try_from(pid).map_err(io::Error::other).and_then(os::start_time);
    let start_time = own.map_err(setup("read its own start time"))?;

    // `state` is `$STATE/sessions/<id>`, so faults are in `$STATE/faults`. A release build does nothing here.
    if let Some(root) = args.state.parent().and_then(Path::parent) {
        agentd_fault::arm(&root.join("faults"));
    }
    let session = args.session.clone();
    let (writer, _) = Writer::open(&args.state, args.journal).map_err(|source| match source {
        OpenError::Held { .. } => HoldError::Held { session, source },
        source => HoldError::Journal { session, source },
    })?;
    agentd_fault::at(Point::KeeperStartLocked).map_err(setup("continue with the journal locked"))?;
    let bound = Bound::new(args.state.clone(), args.keep, args.journal.rotate);
    let mut log = Log::new(writer, bound);
    log.write_body(&Body::KeeperStarted(KeeperStarted {
        pid,
        start_time,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        fills_contents: true,
        launch: args.launch,
    }));
    let listener = listen(&args.socket)?;
    let redirected = agentd_fault::at(Point::KeeperStartListening).and_then(|()| redirect_standard_fds());
    if let Err(source) = redirected {
        let _ = fs::remove_file(&args.socket);
        return Err(setup("replace its standard file descriptors")(source));
    }
    let mut keeper = Keeper::new(args, start_time, signals, listener, log);
    keeper.warm = warm;
    if let Some(daemon) = daemon {
        // Without the connection, the daemon connects to the socket like any other.
        daemon.try_clone().map(|daemon| keeper.connect(daemon)).map_err(setup("use the daemon's connection"))?;
    }
    let ended = keeper.run();
    // The lock is released later, when the process exits. The journal can still be locked after the socket is gone.
    let _ = fs::remove_file(&args.socket);
    ended.map_err(HoldError::Wait)
}

/// Removes all variables from the keeper's environment. They come from the process that started the keeper and may
/// contain secrets. The keeper does not need them, and the launch record has the agent's whole environment.
#[allow(unsafe_code, reason = "changing the environment is unsafe because another thread could read it")]
fn forget_environment() {
    for (name, _) in std::env::vars_os() {
        // SAFETY: this process has one thread.
        unsafe { std::env::remove_var(name) };
    }
}

/// Points the standard file descriptors at `/dev/null`. The end of stdout shows the starter that the keeper listens.
fn redirect_standard_fds() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stderr(&null)?;
    Ok(dup2_stdout(&null)?)
}

/// Number of attempts, and the pause between them, to create the socket while another process removes its directory.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// Listens at the path, and creates its directory if it is missing.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, HoldError> {
    let length = path.as_os_str().len();
    if length > os::SOCKET_PATH_MAX {
        return Err(HoldError::PathTooLong { path: path.to_owned(), length });
    }
    let mut made = listen_once(path);
    for _ in 1..TRIES {
        match &made {
            Err(error) if error.kind() == io::ErrorKind::NotFound => thread::sleep(PAUSE),
            _ => break,
        }
        made = listen_once(path);
    }
    made.map_err(|source| HoldError::Listen { path: path.to_owned(), source })
}

fn listen_once(path: &Path) -> io::Result<UnixListener> {
    if let Some(directory) = path.parent() {
        agentd_directory::create(directory)?;
    }
    // The previous owner of the socket is gone, because this process holds the journal's lock.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let before = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    umask(before);
    let listener = listener?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Returns the device and inode of the file at the path, without following a link. Returns `None` if they cannot be
/// read.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
