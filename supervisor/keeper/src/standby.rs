//! `agentd-keeper standby` waits for a session, so that a launch does not wait for the start of a process.
//!
//! The daemon's socket is stdin. Its first frame names the session ([`Begin`]). From then on the process is the keeper
//! of this session, and the connection is that of its daemon. If the daemon closes the socket before, the process
//! exits.
//!
//! A session can begin later than its agent: the first frame may also have the agent's launch record. The process then
//! keeps the agent warm until the next frame.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use agentd_api::{ByteString, chain};

use crate::cli::{self, Role};
use crate::frame;
use crate::hold::{self, HoldError};
use crate::os;
use crate::protocol::{Begin, FromKeeper, HoldArgs};
use crate::warm::WarmAgent;

/// Waits for a session, and then holds its agent like [`hold::hold`]. Returns without a session when the daemon closes
/// the connection. A process must call this function first, while it has a single thread.
pub fn standby() -> Result<(), HoldError> {
    hold::set_up()?;
    let setup = |source| HoldError::Setup { action: "use the daemon's connection", source };
    // hold() replaces stdin by /dev/null.
    let mut daemon = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(setup)?);
    let begin = frame::read::<Begin>(&mut daemon).map_err(|error| setup(io::Error::other(error)))?;
    let Some(begin) = begin else { return Ok(()) };
    let held = begun(begin, &mut daemon);
    // A keeper that fails while it waits for events has greeted the daemon already.
    if let Err(error) = &held
        && !matches!(error, HoldError::Wait(_))
    {
        let refused = FromKeeper::Refused { code: "not-held".to_owned(), message: chain(error), errno: None };
        // A daemon that is gone needs no message.
        let _ = frame::write(&mut daemon, &refused);
    }
    held
}

/// Holds the agent of a session that begins now, or first keeps an agent warm for it.
fn begun(mut begin: Begin, daemon: &mut UnixStream) -> Result<(), HoldError> {
    let args = hold_args(&begin)?;
    os::set_command_line(begin.arguments.iter().map(ByteString::as_bytes));
    let Some(record) = begin.warm.take() else { return hold::hold_for(&args, Some(daemon), None) };
    let signals = hold::receive_signals(&args)?;
    let failed = |source| HoldError::Setup { action: "keep an agent warm", source };
    let mut warm = WarmAgent::start(&args.session, record).map_err(failed)?;
    let launched = FromKeeper::Launched { pid: warm.pid() };
    frame::write(daemon, &launched).map_err(|error| failed(io::Error::other(error)))?;
    match warm.wait(daemon, &signals).map_err(failed)? {
        Some(begin) if hold_args(&begin)? == args => hold::hold_for(&args, Some(daemon), Some((signals, warm))),
        Some(_) => Err(failed(io::Error::other("the session has other settings"))),
        None => Ok(()),
    }
}

fn hold_args(begin: &Begin) -> Result<HoldArgs, HoldError> {
    let arguments = begin.arguments.iter().map(|argument| OsString::from(argument.as_os_str()));
    match cli::parse(arguments) {
        Ok(Role::Hold(args)) => Ok(args),
        _ => Err(HoldError::Setup {
            action: "use the arguments of the session",
            source: io::ErrorKind::InvalidInput.into(),
        }),
    }
}
