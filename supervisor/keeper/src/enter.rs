//! `agentd-keeper enter`: puts itself behind the walls of an isolation, and then becomes the agent.
//!
//! It is a program of its own, since a process between fork(2) and exec(2) may hardly do anything. It has one thread. What it has to do
//! comes by a pipe and not by its arguments or its environment: the request holds the agent's variables, and a variable such as `LD_PRELOAD`
//! must not run code in this program, which is not behind the walls yet. By a second pipe it says what came of it; that pipe closes when
//! the agent's program is executed.
//!
//! Not its job: how the walls are made (`crate::os`), and what is hidden, which the daemon decides.

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

/// How long the walls may take. It is a few system calls, but a file system in the way may be slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be entered, and what is executed there.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    enclosure: Enclosure,
    program: ByteString,
    args: Vec<ByteString>,
    environment: Vec<Variable>,
    directory: ByteString,
    /// The keeper, with which the agent dies.
    keeper: u32,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    /// The walls stand. The agent is executed next.
    Entered { missing: Vec<MissingPart> },
    /// There is no agent.
    Failed { message: String },
}

/// Why a role of this module fails.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    #[error("cannot read the request")]
    Request(#[source] FrameError),
    #[error("no request came")]
    NoRequest,
    #[error("{0}")]
    Failed(String),
    #[error("cannot tell what this kernel can do")]
    Tell(#[source] io::Error),
}

/// Starts the agent of this record behind the walls of its enclosure. Gives what the walls lack, where that is allowed.
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

/// Hands the request over. The reader reads all of it before it does anything.
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

/// Waits until the agent's program is executed, or it is known why it is not.
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

/// Ends a process that does not become the agent. No other process knows of it.
fn discard(pid: i32) {
    let pid = Pid::from_raw(pid);
    let _ = kill(pid, Signal::SIGKILL);
    let _ = waitpid(pid, None);
}

/// The role: reads the request from one descriptor, enters, reports to the other, and becomes the agent. Returns only where that fails.
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

/// A descriptor that was left open for this process, which no program after it shall have.
#[allow(unsafe_code, reason = "a descriptor that is inherited comes as a number")]
fn inherited(fd: RawFd) -> File {
    // SAFETY: the caller left it open for this, and nothing else in this process owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let _ = nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC));
    File::from(fd)
}

fn begin(request: &Request, report: &mut impl io::Write) -> Result<std::convert::Infallible, String> {
    let directory = Path::new(request.directory.as_os_str());
    let missing = enclose(&request.enclosure, directory)?;
    // By its path, anew: the directory that was entered before the walls stood would still lead out of them.
    std::env::set_current_dir(directory)
        .map_err(|error| format!("the directory {:?} cannot be entered: {error}", request.directory))?;
    os::die_with_parent(request.keeper).map_err(|_| "the keeper has ended".to_owned())?;
    frame::write(report, &Report::Entered { missing }).map_err(|error| error.to_string())?;
    let error = Command::new(request.program.as_os_str())
        .args(request.args.iter().map(ByteString::as_os_str))
        .env_clear()
        .envs(request.environment.iter().map(|variable| (variable.name.as_os_str(), variable.value.as_os_str())))
        .exec();
    Err(format!("cannot execute {:?} in {:?}: {error}", request.program, request.directory))
}

/// Puts this process behind the walls. Gives the parts that are missing, where that is allowed.
fn enclose(enclosure: &Enclosure, directory: &Path) -> Result<Vec<MissingPart>, String> {
    let mut missing = Vec::new();
    let hide = || os::hide(enclosure, directory);
    if enclosure.missing == IsolationMissing::Fail {
        hide().map_err(|reason| unavailable(IsolationPart::Namespaces, &reason))?;
        os::scope().map_err(|reason| unavailable(IsolationPart::Landlock, &reason))?;
        return Ok(missing);
    }
    // Half a wall is worse than none: it is tried by another process first.
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

/// What a launch that fails for want of a part says. The reason names the remedy.
fn unavailable(part: IsolationPart, reason: &str) -> String {
    format!("{UNAVAILABLE}: {}: {reason}", part.as_str())
}

/// How the message of such a failure begins.
pub const UNAVAILABLE: &str = "isolation \"guard\" cannot be had here";

/// The role that tells what this kernel can do, as one JSON document. Everything is tried by a process that ends.
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
