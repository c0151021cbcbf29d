//! Starts one program with exactly the given properties: environment, directory, its own process session, default
//! signals, and pipes. The program inherits nothing else. When memory runs out, the kernel kills the program before
//! this process.

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

/// Program to start, and everything that it gets.
pub(crate) struct Program<'a> {
    pub(crate) path: &'a ByteString,
    /// `argv[0]`, if it differs from the path.
    pub(crate) arg0: Option<&'a ByteString>,
    pub(crate) args: &'a [ByteString],
    pub(crate) environment: &'a [Variable],
    pub(crate) directory: &'a ByteString,
    /// Whether stdin is a pipe. Otherwise stdin is `/dev/null`.
    pub(crate) stdin: bool,
    /// Numbers of further file descriptors that the program inherits.
    pub(crate) inherit: [Option<RawFd>; 3],
    /// Controlling terminal that is the program's stdin, stdout and stderr. With a terminal, there are no pipes.
    pub(crate) terminal: Option<BorrowedFd<'a>>,
    /// Process attributes of the program in place of this process's own.
    pub(crate) inherits: Inherited,
    /// Whether this process traces the program from its exec on.
    pub(crate) traced: bool,
}

/// Value of `errno` for a program that cannot be traced. Neither a directory nor an exec fails with this errno.
pub(crate) const NOT_TRACED: i32 = libc::ENOTSUP;

/// Running program. This process's ends of the pipes do not block.
#[derive(Debug)]
pub(crate) struct Spawned {
    pub(crate) pid: i32,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
}

/// Starts the program. Returns after its exec, with the error if the exec failed.
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
    set_up_child(&mut command, program);
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
    // The child is reaped by process id, together with all other descendants.
    Ok(Spawned { pid: i32::try_from(child.id()).map_err(io::Error::other)?, stdin, stdout, stderr })
}

/// Sets up what the child does between fork and exec. The fork is cheap because this process is small.
#[allow(unsafe_code, reason = "Rust has no safe way to run code between fork and exec")]
fn set_up_child(command: &mut Command, program: &Program<'_>) {
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
        // Ignored signals stay ignored across exec. A keeper started under nohup must not pass that on to the agent.
        for number in 1..=64 {
            // SAFETY: signal(2) is async-signal-safe, and SIG_DFL is a valid disposition. An error is ignored.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        for fd in inherit.into_iter().flatten() {
            // SAFETY: the file descriptor is open: the parent opened it and waits for this exec.
            fcntl(unsafe { BorrowedFd::borrow_raw(fd) }, FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
        }
        if traced && os::trace_me().is_err() {
            return Err(io::Error::from_raw_os_error(NOT_TRACED));
        }
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe calls and allocates nothing. std empties the signal mask
    // itself.
    unsafe { command.pre_exec(before_exec) };
}

pub(crate) fn nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Explains whether the program or the directory caused the error. The system returns equal errors for both.
fn explain(error: &io::Error, program: &Program<'_>) -> io::Error {
    let directory = Path::new(program.directory.as_os_str());
    let text = match directory.metadata() {
        Err(cause) => format!("cannot enter the directory {:?}: {cause}", program.directory),
        Ok(metadata) if !metadata.is_dir() => format!("cannot enter {:?}: not a directory", program.directory),
        Ok(_) => format!("cannot execute {:?} in {:?}: {error}", program.path, program.directory),
    };
    io::Error::new(error.kind(), text)
}
