//! `agentd-keeper enter attach NAME [start]`, `enter list` and `enter end NAME`: the way of a client to agents that
//! stay on this place.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, dup2_stdin, dup2_stdout, setsid};

use super::client::with_words;
use super::far::hello;
use super::flow::take;
use super::frames::{Kind, Refused};
use super::line::Line;
use super::room::{self, Found};
use super::{PlaceError, host, program, setup};
use crate::os;

/// Time limit of a started process to listen, and of an ended one to be gone.
const LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);
/// Time limit for the end of an agent and its parent. Programs can have long times for an orderly end.
const END: Duration = Duration::from_mins(5);
const BUFFER: usize = 64 << 10;
/// Maximum number of bytes of a failed parent's message.
const WORDS: u64 = 2 << 10;
/// Exit status for an agent that is not here.
const ABSENT: u8 = 126;

/// Connects stdin and stdout with the parent of an agent. With `starts`, starts a missing parent.
pub fn attach(name: &str, starts: bool) -> Result<u8, PlaceError> {
    let directory = room::directory(name)?;
    let until = Instant::now() + LIMIT;
    let mut started: Option<Child> = None;
    loop {
        let found = room::find(&directory).map_err(setup("connect to the parent of the agent"))?;
        match found {
            Found::Here(stream) => return carry(&stream),
            Found::Absent if starts && started.is_none() => {
                started = Some(start(name).map_err(setup("start the parent of the agent"))?);
            }
            _ if let Some(message) = started.as_mut().and_then(failure) => {
                return refuse(&Refused { code: "not-executed".to_owned(), message });
            }
            // A process that was just started, here or by an engine, listens soon.
            _ if until > Instant::now() => thread::sleep(PAUSE),
            Found::Absent => return refuse(&program::gone()),
            Found::Elsewhere(host) => {
                let message = format!("the agent runs on host {host:?}, and this is another machine");
                return refuse(&Refused { code: "elsewhere".to_owned(), message });
            }
        }
    }
}

/// Starts the parent of an agent in a process session of its own, so that it outlives this client.
#[allow(unsafe_code, reason = "the new process leaves the client's session between fork and exec")]
fn start(name: &str) -> io::Result<Child> {
    // The name of the process identifies a parent of an agent, so the program is started by its own path if it has one.
    let path = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(path.map_or_else(os::own_program, Ok)?);
    command.args(["enter", "stay", name]).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: setsid(2) is async-signal-safe.
    unsafe {
        command.pre_exec(|| setsid().map(drop).map_err(Into::into));
    }
    // The parent lives longer than this process.
    command.spawn()
}

/// Returns the message of a started parent that has ended.
fn failure(started: &mut Child) -> Option<String> {
    let status = started.try_wait().ok().flatten()?;
    let mut words = String::new();
    // It holds its stderr only until it listens.
    let _ = started.stderr.take().map(|stderr| stderr.take(WORDS).read_to_string(&mut words));
    Some(with_words(format!("the parent of the agent ended with {status}"), words.trim()))
}

/// Copies bytes in both directions until one side ends.
fn carry(stream: &UnixStream) -> Result<u8, PlaceError> {
    let copied = || -> io::Result<()> {
        let (mut from, mut to) = (blocking(io::stdin())?, blocking(io::stdout())?);
        let mut up = stream.try_clone()?;
        thread::spawn(move || {
            let _ = copy(&mut from, &mut up);
            // The parent of the agent takes this as the loss of the line, and closes its side.
            let _ = up.shutdown(Shutdown::Write);
        });
        copy(&mut &*stream, &mut to)
    };
    copied().map_err(setup("carry the connection"))?;
    Ok(0)
}

/// Copies bytes as they come. [`io::copy`] uses splice(2), which can keep bytes of a socket back until more arrive.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(&buffer[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns a standard file descriptor that blocks, whatever its other users set.
fn blocking(standard: impl AsFd) -> io::Result<File> {
    let own = standard.as_fd().try_clone_to_owned()?;
    let flags = OFlag::from_bits_retain(fcntl(&own, FcntlArg::F_GETFL)?);
    fcntl(&own, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(File::from(own))
}

fn take_stdin() -> io::Result<File> {
    Ok(File::from(take(io::stdin(), |null| dup2_stdin(null))?))
}

fn take_stdout() -> io::Result<File> {
    Ok(File::from(take(io::stdout(), |null| dup2_stdout(null))?))
}

/// Refuses the near side in place of the parent of an agent.
fn refuse(refused: &Refused) -> Result<u8, PlaceError> {
    let said = || -> io::Result<()> {
        let mut line = Line::new(take_stdin()?.into(), take_stdout()?.into())?;
        hello(&mut line)?;
        line.say_json(Kind::Refused, refused)?;
        line.close();
        let until = Instant::now() + LIMIT;
        while !line.is_flushed() && until > Instant::now() {
            thread::sleep(PAUSE);
            line.write();
        }
        Ok(())
    };
    said().map_err(setup("answer the near side"))?;
    Ok(ABSENT)
}

/// Prints a line for each agent that stays on this place: its name, and `running`.
pub fn list() -> Result<u8, PlaceError> {
    let mut out = io::stdout().lock();
    for name in room::names()? {
        writeln!(out, "{name} running").map_err(setup("print the agents of the place"))?;
    }
    Ok(0)
}

/// Ends an agent and its parent, and waits for that. An agent that is not here has ended.
pub fn end(name: &str) -> Result<u8, PlaceError> {
    let directory = room::directory(name)?;
    let until = Instant::now() + END;
    let mut is_first = true;
    while until > Instant::now() {
        if !room::lives(&directory).map_err(setup("find the parent of the agent"))? {
            return Ok(0);
        }
        let host = room::host_of(&directory);
        // Process ids of another machine mean other processes here.
        if !host.is_empty() && host != host::facts().host {
            return Err(PlaceError::Elsewhere(name.to_owned(), host));
        }
        if let Some(pid) = room::parent(&directory).filter(|_| is_first && !host.is_empty()) {
            is_first = false;
            kill(Pid::from_raw(pid), Signal::SIGTERM)
                .map_err(|errno| setup("end the parent of the agent")(errno.into()))?;
        }
        thread::sleep(PAUSE);
    }
    Err(PlaceError::Stuck(name.to_owned(), END.as_secs()))
}
