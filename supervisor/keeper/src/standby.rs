//! `agentd-keeper standby` waits for a session, so that a launch does not wait for the start of a process.
//!
//! The daemon's socket is stdin. Its first frame names the session ([`Begin`]). From then on the process is the keeper
//! of this session, and the connection is that of its daemon. If the daemon closes the socket before, the process
//! exits.

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

/// Waits for a session, and then holds its agent like [`hold::hold`]. Returns without a session when the daemon closes
/// the connection. A process must call this function first, while it has a single thread.
pub fn standby() -> Result<(), HoldError> {
    hold::set_up()?;
    let setup = |source| HoldError::Setup { action: "use the daemon's connection", source };
    // hold() replaces stdin by /dev/null.
    let mut daemon = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(setup)?);
    let begin = frame::read::<Begin>(&mut daemon).map_err(|error| setup(io::Error::other(error)))?;
    let Some(begin) = begin else { return Ok(()) };
    let held = hold_args(&begin).and_then(|args| {
        os::set_command_line(begin.arguments.iter().map(ByteString::as_bytes));
        hold::hold_for(&args, Some(&daemon))
    });
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
