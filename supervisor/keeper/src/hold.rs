//! `agentd-keeper hold`: becomes the process that an agent lives under, and then is that.
//!
//! This is the way in: what is inherited is let go of, the journal is locked, the socket listens. After that nothing is written
//! to stderr any more and stdout is closed, by which whoever started it can tell that it listens.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
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
use crate::{os, private};

/// Why an agent cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another keeper or a daemon has the session.
    #[error("session {session:?} is held already")]
    Held { session: String, source: OpenError },
    #[error("cannot open the journal of session {session:?}")]
    Journal { session: String, source: OpenError },
    #[error("the socket's path {path:?} has {length} bytes; this system allows {}", os::SOCKET_PATH_MAX)]
    PathTooLong { path: PathBuf, length: usize },
    #[error("cannot listen on {path:?}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot {action}")]
    Setup { action: &'static str, source: io::Error },
    #[error("cannot wait for anything any more")]
    Wait(#[source] io::Error),
}

/// Holds an agent until it has ended and the daemon was told. To be called first thing in a process with one thread.
pub fn hold(args: &HoldArgs) -> Result<(), HoldError> {
    let setup = |action| move |source| HoldError::Setup { action, source };
    os::close_inherited().map_err(setup("close what was inherited"))?;
    private::close(args.core).map_err(setup("close its memory to others"))?;
    forget_environment();
    if getsid(None).ok() != Some(getpid()) {
        setsid().map_err(io::Error::from).map_err(setup("begin a process session"))?;
    }
    std::env::set_current_dir("/").map_err(setup("leave the directory it was started in"))?;
    os::become_subreaper().map_err(setup("become the reaper of the agent's descendants"))?;
    let signals = Signals::install().map_err(setup("receive signals"))?;
    let pid = std::process::id();
    let own = i32::try_from(pid).map_err(io::Error::other).and_then(os::start_time);
    let start_time = own.map_err(setup("read its own start time"))?;

    // `$STATE/sessions/<id>`, so `$STATE/faults`. In a release build this is nothing.
    if let Some(root) = args.state.parent().and_then(Path::parent) {
        agentd_fault::arm(&root.join("faults"));
    }
    let session = args.session.clone();
    let (writer, _) = Writer::open(&args.state, args.journal).map_err(|source| match source {
        OpenError::Held { .. } => HoldError::Held { session, source },
        source => HoldError::Journal { session, source },
    })?;
    agentd_fault::at(Point::KeeperStartLocked).map_err(setup("go on with the journal locked"))?;
    let bound = Bound::new(args.state.clone(), args.keep, args.journal.rotate);
    let mut log = Log::new(writer, bound);
    log.write_body(&Body::KeeperStarted(KeeperStarted {
        pid,
        start_time,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        launch: args.launch,
    }));
    let listener = listen(&args.socket)?;
    let let_go = agentd_fault::at(Point::KeeperStartListening).and_then(|()| let_go());
    if let Err(source) = let_go {
        let _ = fs::remove_file(&args.socket);
        return Err(setup("let go of its standard descriptors")(source));
    }
    let ended = Keeper::new(args, start_time, signals, listener, log).run();
    // The lock goes with the process, after this: who finds the socket gone may still find the journal held.
    let _ = fs::remove_file(&args.socket);
    ended.map_err(HoldError::Wait)
}

/// The keeper's own environment is that of whoever started it, and may hold secrets: it is of no use here, and the agent's is
/// given to it word for word in the launch record.
#[allow(unsafe_code, reason = "changing the environment is unsafe because another thread could read it")]
fn forget_environment() {
    for (name, _) in std::env::vars_os() {
        // SAFETY: this process has one thread.
        unsafe { std::env::remove_var(name) };
    }
}

/// Whoever started the keeper can tell by this that it listens.
fn let_go() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stderr(&null)?;
    Ok(dup2_stdout(&null)?)
}

/// How often the socket is made whose directory somebody removes at the same moment, and how long after one another.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// Listens at the path, in a directory that is made where it is missing.
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
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    // Whose it was is gone: the journal's lock is held here.
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

/// Which file stands at the path, by device and inode. A link is not followed; nothing where the path cannot be looked at.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
