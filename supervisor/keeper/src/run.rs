//! `agentd-keeper run`: one program, bounded in time and output, with nothing of it left afterwards.
//!
//! It ends when the *program* ends, whoever else holds its descriptors; or at the deadline; or when stdin ends, which
//! is when nobody waits for the result any more. In each case what is left of its tree gets SIGTERM, has two seconds to
//! clean up (a shell may hold a lock), and is killed; or it is left, where the program ended by itself and the request
//! says so. Then what is in the pipes is read, and that is bounded. One that prints too much is killed at once. So a
//! run takes at most its deadline, two seconds, and what the kernel needs to kill.

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
use crate::frame::{self, FrameError};
use crate::protocol::{Attributes, RunOutcome, RunRequest, RunResult, Trace, Variable};
use crate::signals::Signals;
use crate::spawn::{self, Program, Spawned};
use crate::terminal::Terminal;
use crate::trace::Reader;
use crate::tree;
use crate::wait::{self, Read};
use crate::{os, private, screen};

/// The least number a capture may have: below are the descriptors that this process and the standard library open.
const LEAST_CAPTURE: RawFd = 10;
/// How long whoever is left of the program's tree may take to clean up after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// How long a shell may take to end after its terminal is closed, before it is ended as others are.
const HANG_UP: Duration = Duration::from_millis(500);
/// How long the rest of a typed line may take after the dump.
const REST_OF_THE_LINE: Duration = Duration::from_millis(500);
/// What a line of a terminal has in it that is the echo of a typed command.
const TYPED: &[u8] = b"agentd-keeper dump-environment";
/// What stands for the FIFO's path in the program's stdin.
const CAPTURE: &str = "{capture}";

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("no request came on stdin")]
    NoRequest,
    #[error("cannot read the request from stdin")]
    Request(#[source] FrameError),
    #[error("the descriptor {0} for a pipe is below {LEAST_CAPTURE} or cannot be had")]
    CaptureFd(RawFd),
    #[error("cannot {action}")]
    Setup { action: &'static str, source: io::Error },
    #[error("cannot write the result to stdout")]
    Result(#[source] FrameError),
}

/// Reads the request from `input`, carries it out, writes the result to `output`. To be called in a process that has
/// its three standard descriptors and no other.
pub fn run(mut input: impl io::Read + AsFd, output: &mut impl Write) -> Result<(), RunError> {
    let setup = |action| move |source| RunError::Setup { action, source };
    os::close_inherited().map_err(setup("close what was inherited"))?;
    let before = Attributes::own();
    private::close(None).map_err(setup("close its memory to others"))?;
    let request: RunRequest = frame::read(&mut input).map_err(RunError::Request)?.ok_or(RunError::NoRequest)?;
    let started = Instant::now();
    // Before anything else is open, so that the numbers are free.
    let trace_pipe = request.trace_fd.map(pipe_with).transpose()?;
    let capture_pipe = request.capture_fd.map(pipe_with).transpose()?;
    os::become_subreaper().map_err(setup("become the reaper of the program's descendants"))?;
    let signals = Signals::install().map_err(setup("receive signals"))?;
    spawn::nonblocking(&input).map_err(setup("watch stdin"))?;

    let (traced, inherit_trace) = trace_pipe.unzip();
    let (mut captured, inherit) = capture_pipe.unzip();
    let mut fifo = None;
    if request.capture_fifo || request.terminal.is_some() {
        let (made, reader) = Fifo::make().map_err(setup("make a FIFO for the capture"))?;
        (fifo, captured) = (Some(made), Some(reader));
    }
    let deadline = started.checked_add(Duration::from_millis(request.deadline_ms));
    let terminal = request.terminal.as_ref().zip(fifo.as_ref());
    let terminal = terminal.map(|(wanted, fifo)| Terminal::open(wanted, fifo, deadline)).transpose();
    let terminal = terminal.map_err(setup("make a terminal"))?;
    let environment = with_private(&request, fifo.as_ref());
    let stdin = request.stdin.as_ref().map(|text| with_path(text, fifo.as_ref()));
    // The last thing before the program starts; what is read here is what the program will read.
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
    drop(fifo);
    if checked.ok().flatten().is_some_and(|checked| !checked.holds()) {
        result = self::result(RunOutcome::Changed);
    }
    result.attributes = result.attributes.map(|attributes| attributes.changed_since(&before));
    result.duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let cancelled = result.outcome == RunOutcome::Cancelled;
    match frame::write(output, &result) {
        // Nobody waits for it.
        Err(FrameError::Io(_)) if cancelled => Ok(()),
        written => written.map_err(RunError::Result),
    }
}

/// The program cannot be given the bytes that were looked at.
struct NotSealed;

fn seal(request: &RunRequest, checked: &Checked) -> Result<os::Sealed, NotSealed> {
    let can = request.expect.as_ref().is_some_and(|expected| os::can_substitute(expected.path.as_bytes()));
    if can { os::seal(checked.content()).map_err(|_| NotSealed) } else { Err(NotSealed) }
}

fn result(outcome: RunOutcome) -> RunResult {
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

/// The program's environment, with the run's own directory where the request wants it.
fn with_private(request: &RunRequest, fifo: Option<&Fifo>) -> Vec<Variable> {
    let mut environment = request.environment.clone();
    let names = request.terminal.iter().flat_map(|terminal| &terminal.private);
    if let Some(fifo) = fifo {
        let value = || fifo.directory().as_os_str().into();
        environment.extend(names.map(|name| Variable { name: name.as_str().into(), value: value() }));
    }
    environment
}

/// The program's stdin, with the FIFO's path in its place.
fn with_path(text: &ByteString, fifo: Option<&Fifo>) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    if let (Some(fifo), Some(at)) = (fifo, memchr::memmem::find(&bytes, CAPTURE.as_bytes())) {
        bytes.splice(at..at + CAPTURE.len(), fifo.path().as_os_str().as_bytes().iter().copied());
    }
    bytes
}

/// A pipe whose writing end has exactly this number.
#[allow(unsafe_code, reason = "a descriptor with a number of one's choice comes as that number")]
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

/// The program's stdin, written as it is read.
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

    /// Writes what the pipe takes, and closes it after the last byte, or when nobody reads it any more.
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

/// Which part of too much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    First,
    Last,
}

/// One of the program's pipes and what came out of it.
#[derive(Debug)]
struct Output {
    pipe: Option<OwnedFd>,
    bytes: Vec<u8>,
    keep: Keep,
    limit: usize,
    /// More came than is kept.
    over: bool,
    /// How much came.
    total: usize,
}

impl Output {
    fn new(pipe: Option<OwnedFd>, keep: Keep, limit: usize) -> Self {
        Self { pipe, bytes: Vec::new(), keep, limit, over: false, total: 0 }
    }

    fn poll_fd(&self) -> Option<PollFd<'_>> {
        self.pipe.as_ref().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN))
    }

    /// Reads what is there, but not more than `most` bytes, so that one pipe cannot keep the rest waiting.
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
                // Not at every read: moving is dear.
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
#[allow(clippy::struct_excessive_bools, reason = "each is a property of the run that no other decides")]
struct Run {
    pid: i32,
    family: os::Family,
    stdin: Input,
    captured: Output,
    stdout: Output,
    /// What comes from the terminal too, where there is one.
    stderr: Output,
    traced: Output,
    terminal: Option<Terminal>,
    trace: Option<Reader>,
    /// The trace comes with stderr and not in a pipe of its own.
    trace_on_stderr: bool,
    /// It comes when the start-up files have been read, and not before.
    trace_ends_start_up: bool,
    /// Since when the capture is whole, although its program has not said that it was the last.
    whole_since: Option<Instant>,
    /// Who is left when the program has ended may stay.
    leave: bool,
    /// More of stdout than is kept ends the run.
    whole_stdout: bool,
    /// The program is traced until it has opened the file that was looked at.
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
            // Without a mark: the session's agent, if one runs, has the same.
            family: os::Family::led_by(spawned.pid, None),
            stdin: Input { pipe: spawned.stdin, bytes: stdin, written: 0 },
            captured: Output::new(captured, Keep::First, limit),
            stdout: Output::new(spawned.stdout, Keep::First, limit),
            stderr: Output::new(spawned.stderr, keep, of_stderr),
            terminal: None,
            // Taken apart as it comes, and not kept.
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

    /// Reads what is in the pipes, at most so much of each.
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

    /// What comes of the terminal: types, and says whether the run has what it is for, or never will.
    fn at_terminal(&mut self) -> Option<RunOutcome> {
        // fish writes its trace when it has read its start-up files, before its first prompt.
        let starting = (self.trace_ends_start_up && self.traced.total == 0).then_some(self.pid);
        let terminal = self.terminal.as_mut()?;
        let now = Instant::now();
        match Dumps::of(&self.captured.bytes) {
            Dumps { last: true, .. } => return Some(RunOutcome::Captured),
            // The rest of the line failed, or takes long: what counts is there.
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
                // The stops of a program that is traced are no ends.
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
        // A shell passes the end of its terminal on to what it has in the background, which counts as ended all the same.
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
                // It has given what it was run for, and had its time.
                let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            }
        }
        let unopened = self.substitution.as_ref().is_some_and(|substitution| !substitution.is_done());
        if unopened && !by_itself {
            // It would stop at each signal, and has nothing to clean up before its file is opened.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        let (left, killed) = if self.leave && by_itself {
            (tree::count(&mut self.family), 0)
        } else {
            // All are counted: the program itself has been reaped where it ended by itself.
            let mut family = std::mem::replace(&mut self.family, os::Family::led_by(self.pid, None));
            // Whoever cleans up may say something about it, and must not wait for a pipe that is full. What prints
            // without end is killed at once: it would go on printing, and the one who waits has its deadline.
            let grace = if outcome == RunOutcome::TooMuchOutput { Duration::ZERO } else { GRACE };
            (0, tree::end(self.pid, &mut family, grace, || self.read(256 << 10)).others.max(behind))
        };
        // Who was left, or changed its user and cannot be killed, may write for ever: hence a bound here too.
        self.read(4 << 20);
        let outcome = match outcome {
            RunOutcome::Exited(_) if self.too_much() => RunOutcome::TooMuchOutput,
            // Whatever it gave does not come from the file.
            RunOutcome::Exited(_) if unopened && !self.captured.bytes.is_empty() => {
                RunOutcome::NotExecuted("it did not open the file that it was given".to_owned())
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

/// Ends the shell at a terminal as a terminal does that is closed: SIGHUP to it and to what is in the foreground. Where
/// others are to stay it is killed, since a shell passes SIGHUP on to all that it started.
fn hang_up(pid: i32, group: Option<i32>, leave: bool, mut meanwhile: impl FnMut()) -> bool {
    let (shell, signal) = (Pid::from_raw(pid), if leave { Signal::SIGKILL } else { Signal::SIGHUP });
    // Who is gone needs none.
    let _ = kill(shell, signal);
    if let Some(group) = group {
        let _ = killpg(Pid::from_raw(group), signal);
    }
    let _ = kill(shell, Signal::SIGCONT);
    // A number that no process has any more as its group is gone; so are those that the dump was in.
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

/// Whether stdin has ended; what else comes on it is nothing to this.
fn ended(input: BorrowedFd<'_>) -> bool {
    matches!(wait::read(input, &mut [0; 64]), Ok(Read::End) | Err(_))
}

fn outcome(status: ExitStatus) -> RunOutcome {
    match (status.code(), status.signal()) {
        (Some(code), _) => RunOutcome::Exited(code),
        (None, signal) => RunOutcome::Signalled(signal.unwrap_or(0)),
    }
}
