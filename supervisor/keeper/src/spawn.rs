//! Starts one program with exactly what it is given: its environment and directory, a process session of its own, default
//! signals, pipes, and nothing else of this process. Where memory runs out it is killed before this process is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use agentd_api::ByteString;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;

use crate::attributes::Inherited;
use crate::protocol::Variable;
use crate::{os, private};

/// The program and all that it gets.
pub(crate) struct Program<'a> {
    pub(crate) path: &'a ByteString,
    /// `argv[0]`, where it is not the path.
    pub(crate) arg0: Option<&'a ByteString>,
    pub(crate) args: &'a [ByteString],
    pub(crate) environment: &'a [Variable],
    pub(crate) directory: &'a ByteString,
    /// Whether stdin is a pipe; else it is null.
    pub(crate) stdin: bool,
    /// Descriptors, by their numbers, that the program shall have too.
    pub(crate) inherit: [Option<RawFd>; 3],
    /// The terminal that is its stdin, stdout and stderr, and controls it. Then there are no pipes.
    pub(crate) terminal: Option<BorrowedFd<'a>>,
    /// What it begins with that is not as this process has it.
    pub(crate) inherits: Inherited,
    /// Whether it is traced by this process from its exec on.
    pub(crate) traced: bool,
}

/// What a program fails with that cannot be traced: neither a directory nor an exec has this error.
pub(crate) const NOT_TRACED: i32 = libc::ENOTSUP;

/// A program that runs. This process's ends of the pipes do not block.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: i32,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

/// Returns after the program's exec, with its error where it failed.
pub(crate) fn spawn(program: &Program<'_>) -> io::Result<Spawned> {
    let mut command = Command::new(program.path.as_os_str());
    command
        .args(program.args.iter().map(ByteString::as_os_str))
        .env_clear()
        .envs(program.environment.iter().map(|variable| (variable.name.as_os_str(), variable.value.as_os_str())))
        .current_dir(program.directory.as_os_str())
        .stdin(if program.stdin { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(arg0) = program.arg0 {
        command.arg0(arg0.as_os_str());
    }
    if let Some(terminal) = program.terminal {
        let own = || terminal.try_clone_to_owned().map(Stdio::from);
        command.stdin(own()?).stdout(own()?).stderr(own()?);
    }
    prepare(&mut command, program);
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(NOT_TRACED) => error,
        _ => explain(&error, program),
    };
    let mut child = command.spawn().map_err(failed)?;
    os::make_expendable(child.id(), &os::expendable());
    let stdin = child.stdin.take().map(OwnedFd::from);
    let (stdout, stderr) = (child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from));
    for fd in [&stdin, &stdout, &stderr].into_iter().flatten() {
        nonblocking(fd)?;
    }
    // The child is reaped with all other descendants, by pid.
    Ok(Spawned { pid: i32::try_from(child.id()).map_err(io::Error::other)?, stdin, stdout, stderr })
}

/// What the child does between fork and exec. This process is small, so that the fork is cheap.
#[allow(unsafe_code, reason = "there is no safe way to do something between fork and exec")]
fn prepare(command: &mut Command, program: &Program<'_>) {
    let (inherit, traced, has_terminal, inherits) =
        (program.inherit, program.traced, program.terminal.is_some(), program.inherits);
    let keeper = std::process::id();
    let (expendable, core) = (os::expendable(), private::core_limit());
    let before_exec = move || {
        nix::unistd::setsid()?;
        // SAFETY: ioctl(2) is async-signal-safe, and this request takes a number.
        if has_terminal && unsafe { libc::ioctl(0, libc::TIOCSCTTY as _, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        os::die_with_parent(keeper)?;
        os::become_expendable(&expendable);
        private::restore_core_limit(core);
        inherits.set();
        // What is ignored stays so across exec: whoever started the keeper under nohup did not mean the agent.
        for number in 1..=64 {
            // SAFETY: signal(2) is async-signal-safe, and SIG_DFL is a disposition; what cannot be set is left alone.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        for fd in inherit.into_iter().flatten() {
            // SAFETY: the descriptor is open: it was made in the parent, which waits for this exec.
            fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
        }
        if traced && os::trace_me().is_err() {
            return Err(io::Error::from_raw_os_error(NOT_TRACED));
        }
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe calls and allocates nothing. std empties the signal mask itself.
    unsafe { command.pre_exec(before_exec) };
}

pub(crate) fn nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Says which of the two, program or directory, is not as it should be: the system's error is the same for both.
fn explain(error: &io::Error, program: &Program<'_>) -> io::Error {
    let directory = Path::new(program.directory.as_os_str());
    let text = match directory.metadata() {
        Err(cause) => format!("the directory {:?} cannot be entered: {cause}", program.directory),
        Ok(metadata) if !metadata.is_dir() => format!("{:?} is not a directory", program.directory),
        Ok(_) => format!("cannot execute {:?} in {:?}: {error}", program.path, program.directory),
    };
    io::Error::new(error.kind(), text)
}
