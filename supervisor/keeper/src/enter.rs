//! `agentd-keeper enter` isolates its own process and then executes the agent.
//!
//! The isolation runs in a separate program, because a process between fork(2) and exec(2) may call very few
//! functions. The program has one thread. The request comes through a pipe and not through arguments or the
//! environment. It contains the agent's variables, and a variable such as `LD_PRELOAD` must not run code in this
//! program before the isolation. A second pipe reports the result and closes when the agent's program is executed.
//!
//! This module does not set up the namespaces (`crate::os`), and does not choose which files to hide. The daemon
//! chooses them.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use agentd_api::ByteString;
use agentd_api::isolation::{IsolationMissing, IsolationPart, IsolationSurvey, MissingPart};
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::frame::{self, FrameError};
use crate::os;
use crate::protocol::{Enclosure, LaunchRecord, Variable};
use crate::spawn::{self, Program, Spawned};
use crate::wait;

/// Time limit of the isolation. It needs a few system calls, but a file system can be slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// Isolation to set up, and program to execute inside.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    enclosure: Enclosure,
    program: ByteString,
    args: Vec<ByteString>,
    environment: Vec<Variable>,
    directory: ByteString,
    /// Process id of the keeper; the agent is killed when the keeper exits.
    keeper: u32,
}

/// Result of the isolation.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    /// The isolation is complete. The agent is executed next.
    Entered { missing: Vec<MissingPart> },
    /// The agent was not started.
    Failed { message: String },
}

/// Error of the roles `enter` and `isolation`.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    #[error("cannot read the request")]
    Request(#[source] FrameError),
    #[error("cannot read the request: the pipe ended before it")]
    NoRequest,
    #[error("{0}")]
    Failed(String),
    #[error("cannot write the report of the kernel's abilities")]
    Tell(#[source] io::Error),
}

/// Starts the agent of this record inside its isolation. Returns the missing parts of the isolation, if the
/// configuration allows them.
pub(crate) fn spawn(record: &LaunchRecord, enclosure: &Enclosure) -> io::Result<(Spawned, Vec<MissingPart>)> {
    let (request_reader, request_writer) = io::pipe()?;
    let (report_reader, report_writer) = io::pipe()?;
    let numbers = [request_reader.as_raw_fd(), report_writer.as_raw_fd()];
    let mut args: Vec<ByteString> = vec!["enter".into()];
    args.extend(numbers.map(|number| ByteString::from(number.to_string().as_str())));
    let name = ByteString::from("agentd-keeper");
    let spawned = spawn::spawn(&Program {
        path: &os::own_program()?.into_os_string().into(),
        arg0: Some(&name),
        args: &args,
        environment: &[],
        directory: &ByteString::from("/"),
        stdin: true,
        inherit: [Some(numbers[0]), Some(numbers[1]), None],
        terminal: None,
        inherits: record.inherits(),
        traced: false,
    })?;
    drop((request_reader, report_writer));
    match tell(request_writer, record, enclosure).and_then(|()| listen(report_reader)) {
        Ok(missing) => Ok((spawned, missing)),
        Err(error) => {
            discard(spawned.pid);
            Err(error)
        }
    }
}

/// Writes the request to the pipe. The reader reads the whole request before it acts.
fn tell(to: io::PipeWriter, record: &LaunchRecord, enclosure: &Enclosure) -> io::Result<()> {
    let request = Request {
        enclosure: enclosure.clone(),
        program: record.program.clone(),
        args: record.args.clone(),
        environment: record.environment.clone(),
        directory: record.directory.clone(),
        keeper: std::process::id(),
    };
    let mut to = File::from(OwnedFd::from(to));
    frame::write(&mut to, &request).map_err(io::Error::other)
}

/// Waits until the agent's program is executed, or until an error is reported.
fn listen(from: io::PipeReader) -> io::Result<Vec<MissingPart>> {
    let deadline = Instant::now() + PATIENCE;
    let mut from = File::from(OwnedFd::from(from));
    let (mut decoder, mut part, mut entered) = (frame::Decoder::default(), [0; 4096], None);
    loop {
        let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&from), PollFlags::POLLIN)];
        wait::wait(&mut fds, Some(deadline))?;
        if Instant::now() >= deadline && fds[0].revents().is_none_or(|events| events.is_empty()) {
            let text = format!("the isolation was not set up within {} s", PATIENCE.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        let n = match from.read(&mut part) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        decoder.extend(&part[..n]);
        while let Some(body) = decoder.frame().map_err(io::Error::other)? {
            match serde_json::from_slice(&body)? {
                Report::Entered { missing } => entered = Some(missing),
                Report::Failed { message } => return Err(io::Error::other(message)),
            }
        }
        if n == 0 {
            return entered.ok_or_else(|| io::Error::other("the isolation was not set up, and no reason was given"));
        }
    }
}

/// Kills and reaps a process that did not become the agent. No other code knows its process id.
fn discard(pid: i32) {
    let pid = Pid::from_raw(pid);
    let _ = kill(pid, Signal::SIGKILL);
    let _ = waitpid(pid, None);
}

/// Performs the role: reads the request from one file descriptor, isolates the process, reports to the other, and
/// executes the agent. Returns only on an error.
pub fn enter(request: RawFd, report: RawFd) -> Result<(), EnterError> {
    let (mut request, mut report) = (inherited(request), inherited(report));
    let request: Request = frame::read(&mut request).map_err(EnterError::Request)?.ok_or(EnterError::NoRequest)?;
    let message = match begin(&request, &mut report) {
        Ok(never) => match never {},
        Err(message) => message,
    };
    let _ = frame::write(&mut report, &Report::Failed { message: message.clone() });
    Err(EnterError::Failed(message))
}

/// Takes ownership of an inherited file descriptor and marks it close-on-exec.
#[allow(unsafe_code, reason = "an inherited file descriptor is known only by its number")]
pub(crate) fn inherited(fd: RawFd) -> File {
    // SAFETY: the parent left it open for this use, and no other code in this process owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let _ = nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC));
    File::from(fd)
}

fn begin(request: &Request, report: &mut impl io::Write) -> Result<std::convert::Infallible, String> {
    let directory = Path::new(request.directory.as_os_str());
    let missing = enclose(&request.enclosure, directory)?;
    // Entered again by its path: a directory entered before the isolation still leads outside.
    std::env::set_current_dir(directory)
        .map_err(|error| format!("cannot enter the directory {:?}: {error}", request.directory))?;
    os::die_with_parent(request.keeper).map_err(|_| "the keeper has ended".to_owned())?;
    frame::write(report, &Report::Entered { missing }).map_err(|error| error.to_string())?;
    let error = Command::new(request.program.as_os_str())
        .args(request.args.iter().map(ByteString::as_os_str))
        .env_clear()
        .envs(request.environment.iter().map(|variable| (variable.name.as_os_str(), variable.value.as_os_str())))
        .exec();
    Err(format!("cannot execute {:?} in {:?}: {error}", request.program, request.directory))
}

/// Isolates this process. Returns the missing parts, if the configuration allows them.
fn enclose(enclosure: &Enclosure, directory: &Path) -> Result<Vec<MissingPart>, String> {
    let mut missing = Vec::new();
    let hide = || os::hide(enclosure, directory);
    if enclosure.missing == IsolationMissing::Fail {
        hide().map_err(|reason| unavailable(IsolationPart::Namespaces, &reason))?;
        os::scope().map_err(|reason| unavailable(IsolationPart::Landlock, &reason))?;
        return Ok(missing);
    }
    // A partial isolation is worse than none, so a child process tries it first.
    let lacks = match os::attempt(hide) {
        Ok(()) => hide().map_err(|reason| unavailable(IsolationPart::Namespaces, &reason))?,
        Err(reason) => Some(reason),
    };
    missing.extend(lacks.map(|reason| MissingPart { part: IsolationPart::Namespaces, reason }));
    if let Err(reason) = os::scope() {
        missing.push(MissingPart { part: IsolationPart::Landlock, reason });
    }
    Ok(missing)
}

/// Returns the message of a launch that fails because a part of the isolation is unavailable. The reason names the
/// remedy.
fn unavailable(part: IsolationPart, reason: &str) -> String {
    format!("{UNAVAILABLE}: {}: {reason}", part.as_str())
}

/// Prefix of the message of a launch that fails because of the isolation.
pub const UNAVAILABLE: &str = "isolation \"guard\" cannot be had here";

/// Performs the role `isolation`: writes the kernel's abilities as one JSON document. A child process tries each
/// part.
pub fn survey(to: &mut impl io::Write) -> Result<(), EnterError> {
    let mut missing = Vec::new();
    let mut look = |part, tried: Result<(), String>| {
        missing.extend(tried.err().map(|reason| MissingPart { part, reason }));
    };
    look(IsolationPart::Namespaces, os::attempt(|| os::hide(&Enclosure::default(), Path::new("/"))));
    look(IsolationPart::Landlock, os::attempt(os::scope));
    serde_json::to_writer(&mut *to, &IsolationSurvey { missing }).map_err(io::Error::from).map_err(EnterError::Tell)?;
    writeln!(to).map_err(EnterError::Tell)
}
