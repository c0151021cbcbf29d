//! `agentd-keeper run` runs one program with a limit on its time and output, and leaves no processes behind.
//!
//! The run ends when the *program* exits, even if other processes hold its file descriptors. It also ends at the
//! deadline, and when stdin ends because the requester no longer waits.
//!
//! In each case, the rest of the tree gets SIGTERM, has two seconds to clean up (a shell may hold a lock), and is
//! killed. If the program exited by itself, the request can ask to leave the rest running. Then the run drains the
//! pipes, up to a limit. A program that prints too much is killed at once. A run therefore takes at most its
//! deadline, two seconds, and the time that the kernel needs for the kill.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use agentd_api::ByteString;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::check::Checked;
use crate::environment::{self, Dumps};
use crate::fifo::Fifo;
use crate::fill;
use crate::frame::{self, FrameError};
use crate::protocol::{Attributes, RunOutcome, RunRequest, RunResult, Trace, Variable};
use crate::signals::Signals;
use crate::spawn::{self, Program, Spawned};
use crate::terminal::Terminal;
use crate::trace::Reader;
use crate::tree;
use crate::wait::{self, Read};
use crate::{os, private, screen};

/// Lowest file descriptor number for a capture. This process and the standard library use lower numbers.
const LEAST_CAPTURE: RawFd = 10;
/// Time limit for the rest of the program's tree to clean up after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// Time limit for a shell to exit after its terminal is closed, before the run ends its tree with SIGTERM.
const HANG_UP: Duration = Duration::from_millis(500);
/// Time limit for the rest of a typed line after the dump.
const REST_OF_THE_LINE: Duration = Duration::from_millis(500);
/// Text by which the run recognises the echo of a typed command in a terminal line.
const TYPED: &[u8] = b"agentd-keeper dump-environment";
/// Placeholder for the FIFO's path in the program's stdin.
const CAPTURE: &str = "{capture}";

/// Error of `agentd-keeper run` without a result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot read the request: stdin ended before it")]
    NoRequest,
    #[error("cannot read the request from stdin")]
    Request(#[source] FrameError),
    #[error("cannot open a pipe as file descriptor {0}: it is in use or below {LEAST_CAPTURE}")]
    CaptureFd(RawFd),
    #[error("cannot {action}")]
    Setup { action: &'static str, source: io::Error },
    #[error("cannot write the result to stdout")]
    Result(#[source] FrameError),
}

/// Reads the request from `input`, performs it, and writes the result to `output`. The calling process must have no
/// file descriptors except stdin, stdout and stderr.
pub fn run(mut input: impl io::Read + AsFd, output: &mut impl Write) -> Result<(), RunError> {
    let setup = |action| move |source| RunError::Setup { action, source };
    os::close_inherited(None).map_err(setup("close inherited file descriptors"))?;
    let before = Attributes::own();
    private::protect_memory(None).map_err(setup("protect its memory from other processes"))?;
    let mut request: RunRequest = frame::read(&mut input).map_err(RunError::Request)?.ok_or(RunError::NoRequest)?;
    let started = Instant::now();
    // The pipes come before all other files, while their numbers are free.
    let trace_pipe = request.trace_fd.map(pipe_with).transpose()?;
    let capture_pipe = request.capture_fd.map(pipe_with).transpose()?;
    os::become_subreaper().map_err(setup("become the reaper of the program's descendants"))?;
    let signals = Signals::install().map_err(setup("receive signals"))?;
    spawn::nonblocking(&input).map_err(setup("watch stdin"))?;

    let (traced, inherit_trace) = trace_pipe.unzip();
    let (mut captured, inherit) = capture_pipe.unzip();
    let mut fifo = None;
    let has_fifo = request.capture_fifo || request.terminal.is_some();
    if has_fifo || request.fill {
        let (made, reader) = Fifo::make().map_err(setup("make a FIFO for the capture"))?;
        captured = if has_fifo { Some(reader) } else { captured };
        if request.fill {
            fill::fill(&mut request, &made).map_err(setup("make the run's private files"))?;
        }
        fifo = Some(made);
    }
    let deadline = started.checked_add(Duration::from_millis(request.deadline_ms));
    let terminal = request.terminal.as_ref().zip(fifo.as_ref());
    let terminal = terminal.map(|(wanted, fifo)| Terminal::open(wanted, fifo, deadline)).transpose();
    let terminal = terminal.map_err(setup("make a terminal"))?;
    let environment = with_private(&request, fifo.as_ref());
    let stdin = request.stdin.as_ref().map(|text| with_path(text, fifo.as_ref()));
    // The check is the last step before the start of the program, which reads exactly the checked bytes.
    let checked = request.expect.as_ref().map(Checked::open).transpose();
    let sealed = checked.as_ref().ok().and_then(Option::as_ref).map(|checked| seal(&request, checked)).transpose();
    let program = Program {
        path: &request.program,
        arg0: request.arg0.as_ref(),
        args: &request.args,
        environment: &environment,
        directory: &request.directory,
        stdin: stdin.is_some(),
        inherit: [
            request.capture_fd,
            request.trace_fd,
            sealed.as_ref().ok().and_then(Option::as_ref).map(|sealed| sealed.number),
        ],
        terminal: terminal.as_ref().map(Terminal::slave),
        inherits: request.inherits(),
        traced: request.expect.is_some(),
    };
    let spawned = match (&checked, &sealed) {
        (Err(_), _) => Err(RunOutcome::Changed),
        (_, Err(NotSealed)) => Err(RunOutcome::NotSealed),
        _ => spawn::spawn(&program).map_err(|error| match error.raw_os_error() {
            Some(spawn::NOT_TRACED) => RunOutcome::NotSealed,
            _ => RunOutcome::NotExecuted(error.to_string()),
        }),
    };
    drop((inherit, inherit_trace, sealed));
    let mut result = match spawned {
        Err(outcome) => result(outcome),
        Ok(spawned) => {
            let mut run = Run::new(spawned, stdin.unwrap_or_default(), captured, traced, &request);
            run.use_terminal(terminal).map_err(setup("read the terminal"))?;
            let outcome =
                run.until_it_ends(&signals, input.as_fd(), deadline).map_err(setup("wait for the program"))?;
            run.finish(outcome)
        }
    };
    if let Some(fifo) = fifo {
        fill::restore(&request, fifo.directory(), &mut result);
    }
    if checked.ok().flatten().is_some_and(|checked| !checked.is_unchanged()) {
        result = self::result(RunOutcome::Changed);
    }
    result.attributes = result.attributes.map(|attributes| attributes.changed_since(&before));
    result.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let cancelled = result.outcome == RunOutcome::Cancelled;
    match frame::write(output, &result) {
        // The requester no longer reads the result.
        Err(FrameError::Io(_)) if cancelled => Ok(()),
        written => written.map_err(RunError::Result),
    }
}

/// The program cannot be given the bytes that were checked.
struct NotSealed;

fn seal(request: &RunRequest, checked: &Checked) -> Result<os::Sealed, NotSealed> {
    let can = request.expect.as_ref().is_some_and(|expected| os::can_substitute(expected.path.as_bytes()));
    if can { os::seal(checked.content()).map_err(|_| NotSealed) } else { Err(NotSealed) }
}

pub(crate) fn result(outcome: RunOutcome) -> RunResult {
    let empty = ByteString::default;
    RunResult {
        outcome,
        captured: empty(),
        stdout: empty(),
        stderr: empty(),
        killed: 0,
        left: 0,
        sourced: None,
        attributes: None,
        duration_ms: 0,
    }
}

/// Returns the program's environment, with the run's private directory in the requested variables.
fn with_private(request: &RunRequest, fifo: Option<&Fifo>) -> Vec<Variable> {
    let mut environment = request.environment.clone();
    let names = request.terminal.iter().flat_map(|terminal| &terminal.private);
    if let Some(fifo) = fifo {
        let value = || fifo.directory().as_os_str().into();
        environment.extend(names.map(|name| Variable { name: name.as_str().into(), value: value() }));
    }
    environment
}

/// Returns the program's stdin with the FIFO's path in place of the placeholder.
fn with_path(text: &ByteString, fifo: Option<&Fifo>) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    if let (Some(fifo), Some(at)) = (fifo, memchr::memmem::find(&bytes, CAPTURE.as_bytes())) {
        bytes.splice(at..at + CAPTURE.len(), fifo.path().as_os_str().as_bytes().iter().copied());
    }
    bytes
}

/// Opens a pipe whose write end has exactly this file descriptor number.
#[allow(unsafe_code, reason = "fcntl returns a file descriptor with a chosen number as a plain integer")]
fn pipe_with(number: RawFd) -> Result<(OwnedFd, OwnedFd), RunError> {
    let refused = |_| RunError::CaptureFd(number);
    if number < LEAST_CAPTURE {
        return Err(RunError::CaptureFd(number));
    }
    let (reader, writer) = std::io::pipe().map_err(refused)?;
    spawn::nonblocking(&reader).map_err(refused)?;
    let got = fcntl(&writer, FcntlArg::F_DUPFD_CLOEXEC(number)).map_err(|errno| refused(errno.into()))?;
    // SAFETY: fcntl made this descriptor just now, so nothing else owns it.
    let writer = unsafe { OwnedFd::from_raw_fd(got) };
    if got == number { Ok((reader.into(), writer)) } else { Err(RunError::CaptureFd(number)) }
}

/// Data for the program's stdin, written as the program reads it.
#[derive(Debug)]
struct Input {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
    written: usize,
}

impl Input {
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.pipe.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT))
    }

    /// Writes as much as the pipe takes. Closes the pipe after the last byte, or when it has no reader.
    fn write(&mut self) {
        while let Some(pipe) = self.pipe.as_ref() {
            match nix::unistd::write(pipe, &self.bytes[self.written..]) {
                Ok(n) => self.written += n,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => break,
                Err(_) => self.written = self.bytes.len(),
            }
            if self.written == self.bytes.len() {
                self.pipe = None;
            }
        }
    }
}

/// Part of an output to keep when it exceeds its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    First,
    Last,
}

/// Output pipe of the program, and the bytes kept from it.
#[derive(Debug)]
struct Output {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
    keep: Keep,
    limit: usize,
    /// Whether more bytes came than the limit.
    over: bool,
    /// Total number of bytes that came.
    total: usize,
}

impl Output {
    fn new(pipe: Option<OwnedFd>, keep: Keep, limit: usize) -> Self {
        Self { pipe, bytes: Vec::new(), keep, limit, over: false, total: 0 }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.pipe.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN))
    }

    /// Reads the available bytes, up to about `most`, so that one pipe cannot block the others.
    fn read(&mut self, most: usize) {
        let mut block = [0; 16 << 10];
        let mut total = 0;
        while let Some(pipe) = self.pipe.as_ref().filter(|_| total < most) {
            match wait::read(pipe, &mut block) {
                Ok(Read::Some(n)) => {
                    total += n;
                    self.take(&block[..n]);
                }
                Ok(Read::Nothing) => break,
                Ok(Read::End) | Err(_) => self.pipe = None,
            }
        }
    }

    fn take(&mut self, piece: &[u8]) {
        self.total += piece.len();
        self.over |= self.bytes.len() + piece.len() > self.limit;
        match self.keep {
            Keep::First => self.bytes.extend_from_slice(&piece[..piece.len().min(self.limit - self.bytes.len())]),
            Keep::Last => {
                self.bytes.extend_from_slice(piece);
                // Not after every read, because moving the bytes is expensive.
                if self.bytes.len() > self.limit.saturating_mul(2) {
                    self.trim();
                }
            }
        }
    }

    fn trim(&mut self) {
        self.bytes.drain(..self.bytes.len().saturating_sub(self.limit));
    }

    fn into_bytes(mut self) -> ByteString {
        self.trim();
        self.bytes.into()
    }
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the properties of a run are independent")]
struct Run {
    pid: i32,
    family: os::Family,
    stdin: Input,
    captured: Output,
    stdout: Output,
    /// The program's stderr and, if there is a terminal, its output.
    stderr: Output,
    traced: Output,
    terminal: Option<Terminal>,
    trace: Option<Reader>,
    /// Whether the trace comes on stderr instead of in its own pipe.
    trace_on_stderr: bool,
    /// Whether the shell writes its trace at once, after it has read its start-up files.
    trace_ends_start_up: bool,
    /// Time since which the capture is whole, although the last command has not reported yet.
    whole_since: Option<Instant>,
    /// Whether other processes may survive the program's exit.
    leave: bool,
    /// Whether more stdout than the limit ends the run.
    whole_stdout: bool,
    /// Tracing of the program until it has opened the checked file.
    substitution: Option<os::Substitution>,
}

impl Run {
    fn new(
        spawned: Spawned,
        stdin: Vec<u8>,
        captured: Option<OwnedFd>,
        traced: Option<OwnedFd>,
        request: &RunRequest,
    ) -> Self {
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let limit = size(request.max_output);
        let (keep, of_stderr) = request.first_of_stderr.map_or((Keep::Last, limit), |first| (Keep::First, size(first)));
        Self {
            pid: spawned.pid,
            // No session variable: an agent of the session would have an equal variable.
            family: os::Family::led_by(spawned.pid, None),
            stdin: Input { pipe: spawned.stdin, bytes: stdin, written: 0 },
            captured: Output::new(captured, Keep::First, limit),
            stdout: Output::new(spawned.stdout, Keep::First, limit),
            stderr: Output::new(spawned.stderr, keep, of_stderr),
            terminal: None,
            // Parsed as it arrives and not kept.
            traced: Output::new(traced, Keep::First, usize::MAX),
            trace: request.trace.map(Reader::new),
            trace_on_stderr: request.trace == Some(Trace::Zsh),
            trace_ends_start_up: request.trace == Some(Trace::Fish),
            whole_since: None,
            leave: request.leave,
            whole_stdout: request.whole_stdout,
            substitution: request
                .expect
                .as_ref()
                .map(|expected| os::Substitution::new(spawned.pid, expected.path.as_bytes())),
        }
    }

    fn use_terminal(&mut self, terminal: Option<Terminal>) -> io::Result<()> {
        if let Some(terminal) = &terminal {
            (self.stderr.pipe, self.stderr.keep) = (Some(terminal.output()?), Keep::Last);
        }
        self.terminal = terminal;
        Ok(())
    }

    fn too_much(&self) -> bool {
        self.captured.over || (self.whole_stdout && self.stdout.over)
    }

    /// Reads the available bytes of each pipe, up to a limit.
    fn read(&mut self, most: usize) {
        let before = self.stderr.total;
        for output in [&mut self.captured, &mut self.stdout, &mut self.stderr, &mut self.traced] {
            output.read(most);
        }
        let new = self.stderr.total - before;
        let printed = &self.stderr.bytes[self.stderr.bytes.len().saturating_sub(new)..];
        if let Some(terminal) = &mut self.terminal {
            terminal.take(printed);
        }
        let Some(reader) = self.trace.as_mut() else { return };
        reader.take(&self.traced.bytes);
        self.traced.bytes.clear();
        if self.trace_on_stderr {
            reader.take(printed);
        }
    }

    /// Handles terminal output and types the next line. Returns an outcome if the capture is whole or cannot be had
    /// any more.
    fn at_terminal(&mut self) -> Option<RunOutcome> {
        // fish writes its trace after its start-up files and before its first prompt.
        let starting = (self.trace_ends_start_up && self.traced.total == 0).then_some(self.pid);
        let terminal = self.terminal.as_mut()?;
        let now = Instant::now();
        match Dumps::of(&self.captured.bytes) {
            Dumps { last: true, .. } => return Some(RunOutcome::Captured),
            // The rest of the line failed or is slow, but the needed part of the capture is whole.
            Dumps { whole: true, .. } if self.whole_since.get_or_insert(now).elapsed() > REST_OF_THE_LINE => {
                return Some(RunOutcome::Captured);
            }
            Dumps { whole: true, .. } => {}
            Dumps { steps, .. } => {
                terminal.step_is_done(steps);
                if terminal.has_given_up(now) {
                    return Some(RunOutcome::Unanswered);
                }
                terminal.act(now, &mut self.family, starting);
            }
        }
        None
    }

    fn until_it_ends(
        &mut self,
        signals: &Signals,
        input: BorrowedFd<'_>,
        deadline: Option<Instant>,
    ) -> io::Result<RunOutcome> {
        loop {
            self.stdin.write();
            let mut fds = vec![
                PollFd::new(input, PollFlags::POLLIN),
                PollFd::new(signals.children(), PollFlags::POLLIN),
                PollFd::new(signals.terminate(), PollFlags::POLLIN),
            ];
            fds.extend(
                [&self.captured, &self.stdout, &self.stderr, &self.traced].into_iter().filter_map(Output::poll_fd),
            );
            fds.extend(self.stdin.poll_fd());
            let mut until = deadline;
            if self.terminal.is_some() {
                let due = Terminal::due(Instant::now());
                until = until.map_or(Some(due), |until| Some(until.min(due)));
            }
            match self.family.due(Instant::now()) {
                Ok(changes) => fds.extend(changes.map(|changes| PollFd::new(changes, PollFlags::POLLIN))),
                Err(not_before) => until = until.map_or(Some(not_before), |until| Some(until.min(not_before))),
            }
            wait::wait(&mut fds, until)?;
            let input_ready = wait::ready(&fds[0]);
            drop(fds);
            self.family.take_changes(Instant::now());
            if signals.take_children() {
                let mut status = None;
                let traced = self.substitution.as_mut().filter(|substitution| !substitution.is_done());
                let step = traced.map(os::Substitution::step);
                if let Some(os::Step::Ended(ended)) = step {
                    status = Some(ended);
                }
                // A traced program's stops are not exits.
                if !matches!(step, Some(os::Step::Watching)) {
                    tree::reap(|pid, ended| {
                        if pid == self.pid {
                            status = Some(ended);
                        }
                    });
                }
                if let Some(status) = status {
                    return Ok(outcome(status));
                }
            }
            self.read(256 << 10);
            if self.too_much() {
                return Ok(RunOutcome::TooMuchOutput);
            }
            if let Some(outcome) = self.at_terminal() {
                return Ok(outcome);
            }
            if signals.take_terminate() || (input_ready && ended(input)) {
                return Ok(RunOutcome::Cancelled);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(RunOutcome::TimedOut);
            }
        }
    }

    fn finish(mut self, outcome: RunOutcome) -> RunResult {
        // A shell forwards the hangup of its terminal to its background processes, which count as killed too.
        let mut behind = 0;
        let mut by_itself = matches!(outcome, RunOutcome::Exited(_) | RunOutcome::Signalled(_));
        if let Some(terminal) = self.terminal.as_ref().filter(|_| !by_itself) {
            let group = terminal.foreground();
            let is_left =
                |process: &&os::Process| !process.zombie && process.pid != self.pid && Some(process.group) != group;
            let there = self.family.descendants().unwrap_or_default();
            behind = u32::try_from(there.iter().filter(is_left).count()).unwrap_or(u32::MAX);
            let has_ended = hang_up(self.pid, group, self.leave, || self.read(256 << 10));
            by_itself = outcome == RunOutcome::Captured;
            if by_itself && !has_ended {
                // The shell has written the capture and had time to finish.
                let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            }
        }
        let unopened = self.substitution.as_ref().is_some_and(|substitution| !substitution.is_done());
        if unopened && !by_itself {
            // A traced program would stop at each signal, and has nothing to clean up before its file is opened.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        let (left, killed) = if self.leave && by_itself {
            (tree::count(&mut self.family), 0)
        } else {
            // Counts all processes: if the program exited by itself, it is already reaped.
            let mut family = std::mem::replace(&mut self.family, os::Family::led_by(self.pid, None));
            // A process that cleans up may print and must not block on a full pipe. After too much output, processes
            // are killed at once, because they would continue to print until the deadline.
            let grace = if outcome == RunOutcome::TooMuchOutput { Duration::ZERO } else { GRACE };
            (0, tree::end(self.pid, &mut family, grace, || self.read(256 << 10)).others.max(behind))
        };
        // A process that was left running, or that changed its user and survived the kill, may write forever. This
        // read needs a limit too.
        self.read(4 << 20);
        let outcome = match outcome {
            RunOutcome::Exited(_) if self.too_much() => RunOutcome::TooMuchOutput,
            // The output of such a program does not come from the expected file.
            RunOutcome::Exited(_) if unopened && !self.captured.bytes.is_empty() => {
                RunOutcome::NotExecuted("the program did not open the file that it was given".to_owned())
            }
            outcome => outcome,
        };
        let mut stderr = self.stderr.into_bytes();
        let sourced = self.trace.map(|reader| reader.finish(&mut stderr.0));
        if self.terminal.is_some() {
            stderr.0 = screen::plain(&stderr.0, TYPED);
        }
        let mut captured = self.captured.into_bytes();
        let mut attributes = None;
        if environment::are_records(captured.as_bytes()) {
            let record = Dumps::of(captured.as_bytes()).record;
            attributes = record.as_ref().map(|record| record.attributes.clone());
            captured = record.map(|record| record.variables).unwrap_or_default().into();
        }
        RunResult {
            captured,
            attributes,
            stdout: self.stdout.into_bytes(),
            killed,
            left,
            sourced,
            stderr,
            ..result(outcome)
        }
    }
}

/// Ends the shell like a closed terminal: sends SIGHUP to the shell and to the foreground process group. If other
/// processes are to survive, kills the shell, because a shell forwards SIGHUP to all its children.
fn hang_up(pid: i32, group: Option<i32>, leave: bool, mut meanwhile: impl FnMut()) -> bool {
    let (shell, signal) = (Pid::from_raw(pid), if leave { Signal::SIGKILL } else { Signal::SIGHUP });
    // A process that has exited needs no signal.
    let _ = kill(shell, signal);
    if let Some(group) = group {
        let _ = killpg(Pid::from_raw(group), signal);
    }
    let _ = kill(shell, Signal::SIGCONT);
    // A process group without processes is gone. This includes the groups in which the dump ran.
    let is_there = |group: i32| killpg(Pid::from_raw(group), None).is_ok();
    let until = Instant::now() + HANG_UP;
    let mut has_ended = false;
    while Instant::now() < until && (!has_ended || group.is_some_and(is_there)) {
        tree::reap(|ended, _| has_ended |= ended == pid);
        meanwhile();
        std::thread::sleep(Duration::from_millis(1));
    }
    has_ended
}

/// Reports whether stdin has ended. Ignores any other data on it.
fn ended(input: BorrowedFd<'_>) -> bool {
    matches!(wait::read(input, &mut [0; 64]), Ok(Read::End) | Err(_))
}

fn outcome(status: ExitStatus) -> RunOutcome {
    match (status.code(), status.signal()) {
        (Some(code), _) => RunOutcome::Exited(code),
        (None, signal) => RunOutcome::Signalled(signal.unwrap_or(0)),
    }
}
