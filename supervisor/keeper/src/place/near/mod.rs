//! `agentd-keeper place [FD]`: the near side, a process in place of a program that runs on a place.
//!
//! The first frame on stdin is a [`PlaceRun`]. All further bytes are the program's stdin, and its end is the program's.
//! Stdout and stderr are the program's. The client's stderr is there too, except for an agent that stays on its place.
//! The messages [`PlaceReport`] go to the file descriptor, if one is given. Without it, the message of a program that
//! did not run is on stderr.
//!
//! ```text
//!              marker, hello               running
//!   Calling ───────────────────▶ Greeted ────────────▶ Running ──▶ the program has ended
//!      └── refused, cancelled ──────┴──────────────────── └──────▶ the line is lost
//! ```
//!
//! - SIGTERM is passed on to a program that runs. Before that, SIGTERM and the end of stdin cancel the start.
//! - A cancelled start, a client that ends too early and a lost line are followed by the command `cancel`. A program
//!   with a grace ends by itself after its line is lost.
//! - All processes that the client leaves are killed at the end. For an agent that stays on its place, only the
//!   client's process group is: a container engine leaves the process that holds the container.
//!
//! **Exit status**: the program's. If a signal ended the program, this process ends by that signal, without a core
//! file. 126: the program was refused. 255: the line was lost, and the program's status is unknown.

mod finish;
mod hello;
mod resident;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use agentd_api::event::PlaceHost;
use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use nix::unistd::{dup2_stdin, dup2_stdout};

use self::hello::Noise;
use self::resident::{Start, Stays};
use super::client::{Process, with_words};
use super::flow::{Sink, Source, take};
use super::frames::{Exited, Kind, Refused, Running, Stream};
use super::line::Line;
use super::wire::{self, Incoming};
use super::{Events, PlaceError, Waits, setup};
use crate::os::{self, Family};
use crate::protocol::{PlaceLine, PlaceReport, PlaceRun, PlacedProgram};
use crate::signals::Signals;
use crate::wait::Read;
use crate::{enter, frame, private, tree};

/// Time limit of a client to exit after its program ended, or after it closed the connection.
const EXIT: Duration = Duration::from_secs(5);
/// Time limit for more bytes of a client that has exited.
const REST: Duration = Duration::from_secs(1);
/// The client's stderr is read only while fewer bytes than this wait for the reader of stderr.
const WAITING: usize = 64 << 10;
/// Exit status for a refused program.
const REFUSED: u8 = 126;

/// Performs the role. Returns the exit status.
pub fn place(report: Option<RawFd>) -> Result<u8, PlaceError> {
    os::close_inherited(report).map_err(setup("close inherited file descriptors"))?;
    private::protect_memory(None).map_err(setup("protect its memory from other processes"))?;
    let report = report.map(enter::inherited);
    let mut input = io::stdin().as_fd().try_clone_to_owned().map(File::from).map_err(setup("use stdin"))?;
    let request: PlaceRun = frame::read(&mut input).map_err(PlaceError::Request)?.ok_or(PlaceError::NoRequest)?;
    drop(input);
    if request.line.resident.is_none() {
        os::become_subreaper().map_err(setup("become the reaper of the client's descendants"))?;
    }
    let signals = Signals::install().map_err(setup("receive signals"))?;
    let stdin = take(io::stdin(), |null| dup2_stdin(null)).map_err(setup("use stdin"))?;
    let stdout = take(io::stdout(), |null| dup2_stdout(null)).map_err(setup("use stdout"))?;
    let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(setup("use stderr"))?;
    crate::spawn::nonblocking(&stderr).map_err(setup("use stderr"))?;
    let output = Output { stdout: Sink::new(Some(stdout)), stderr: Sink::new(Some(stderr)), report };
    let PlaceRun { line: mut way, program } = request;
    let orders = output.report.as_ref().and_then(|report| report.try_clone().ok()).map(Into::into);
    let resident = way.resident.take().map(|terms| Stays::new(*terms, orders));
    let mut near = Near {
        signals,
        family: Family::led_by(0, None),
        way,
        program: Some(program).filter(|_| !resident.as_ref().is_some_and(Stays::has_run)),
        client: Process::none(),
        submit: None,
        cancel: None,
        line: Line::none(),
        stdin: Source::new(Stream::In, Some(stdin)),
        output,
        noise: Noise::default(),
        state: State::Calling,
        resident,
        is_to_end: false,
        host: PlaceHost::default(),
        called: Instant::now(),
        delivery: None,
        silent_end: None,
        outcome: None,
    };
    if let Err(error) = near.call_first() {
        let message = format!("the client of place {:?} cannot be started: {error}", near.way.place);
        near.output.report(&PlaceReport::Refused { code: CLIENT_FAILED.to_owned(), message });
        return Ok(REFUSED);
    }
    near.run().map_err(setup("wait for events"))
}

/// Codes of [`PlaceReport::Refused`].
const CLIENT_FAILED: &str = "client-failed";
const NO_ANSWER: &str = "no-answer";
const VERSION: &str = "version";
const NOT_EXECUTED: &str = "not-executed";
const CANCELLED: &str = "cancelled";
/// Code of a place that is several machines, if the agent runs on another one.
const ELSEWHERE: &str = "elsewhere";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Children,
    Terminate,
    Tree,
    From,
    To,
    Stdin,
    Stdout,
    Stderr,
    /// Stderr of the client, or output of the command `cancel`.
    Pass,
    /// Orders of the keeper.
    Orders,
}

/// State of the near side; see the module comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The command that submits the agent's parent runs.
    Submitting,
    /// The next client is started later.
    Away,
    Calling,
    Greeted,
    Running,
}

/// End of the program, or the reason why no program runs.
#[derive(Debug)]
enum Outcome {
    Ended(Exited),
    /// The far side refused the program, or cannot start it.
    Refused(Refused),
    /// The place was not reached.
    Failed(Refused),
    Lost(String),
    /// The keeper is gone. An agent that stays on its place continues without it.
    Orphaned,
}

/// Stdout and stderr of the program, and the pipe of the reports.
struct Output {
    stdout: Sink,
    stderr: Sink,
    report: Option<File>,
}

impl Output {
    fn report(&mut self, report: &PlaceReport) {
        // A parent that is gone reads no report.
        match (&mut self.report, report) {
            (Some(to), _) => {
                let _ = frame::write(to, report);
            }
            (None, PlaceReport::Refused { message, .. } | PlaceReport::Lost { message }) => {
                let _ = writeln!(io::stderr(), "{message}");
            }
            (None, _) => {}
        }
    }
}

struct Near {
    signals: Signals,
    family: Family,
    way: PlaceLine,
    /// The program, until it was sent.
    program: Option<PlacedProgram>,
    client: Process,
    /// Running command that submits the agent's parent, with its stdout and the bytes from there.
    submit: Option<(Process, Option<OwnedFd>, Vec<u8>)>,
    /// Running command `cancel`.
    cancel: Option<Process>,
    line: Line,
    stdin: Source,
    output: Output,
    noise: Noise,
    state: State,
    /// Set for an agent that stays on its place.
    resident: Option<Stays>,
    /// Whether the agent is to end.
    is_to_end: bool,
    host: PlaceHost,
    /// Time of the client's start, or of the last byte of a keeper that was sent to the place.
    called: Instant,
    /// Number of bytes of the keeper that wait to be sent to the place. `None` before the place asks for it.
    delivery: Option<usize>,
    /// Time at which the client closed the line.
    silent_end: Option<Instant>,
    outcome: Option<Outcome>,
}

impl Near {
    fn run(mut self) -> io::Result<u8> {
        loop {
            self.line.write();
            self.note_delivery();
            if let Some(outcome) = self.outcome.take() {
                return self.finish(outcome);
            }
            let events = self.wait(self.due())?;
            if events.has(Name::Terminate) && self.signals.take_terminate() {
                self.terminate();
            }
            self.pump(&events);
            self.read_line(&events);
            // The far side may wait for this report, and no other event follows then.
            self.report_taken();
            self.read_stdin(&events);
            self.note_submit();
            self.note_client();
            self.note_times();
            self.call_again();
        }
    }

    /// Returns when the state changes by itself.
    fn due(&self) -> Option<Instant> {
        let answer = self.way.enter_ms.filter(|_| self.state == State::Calling);
        let answer = answer.and_then(|limit| self.called.checked_add(Duration::from_millis(limit)));
        let call = self.resident.as_ref().and_then(Stays::call_at);
        [answer, self.line.silent_at(), self.line.beat_at(), self.client_over_at(), call].into_iter().flatten().min()
    }

    fn wait(&self, until: Option<Instant>) -> io::Result<Events<Name>> {
        let mut waits = Waits::new();
        waits.until(until);
        waits.add(Name::Children, Some(self.signals.children()), PollFlags::POLLIN);
        waits.add(Name::Terminate, Some(self.signals.terminate()), PollFlags::POLLIN);
        let (from, to) = self.line.fds();
        waits.add_poll(Name::From, from);
        waits.add_poll(Name::To, to);
        if let Some(stays) = &self.resident {
            waits.add(Name::Stdin, self.stdin.fd().filter(|_| stays.wants_input()), PollFlags::POLLIN);
            waits.add(Name::Orders, stays.orders(), PollFlags::POLLIN);
        } else if let Some(at) = self.stdin.paused_until() {
            waits.until(Some(at));
        } else if self.stdin.has_room(self.line.outgoing.waiting()) {
            waits.add(Name::Stdin, self.stdin.fd(), PollFlags::POLLIN);
        } else if self.state != State::Running {
            // Without a flag, poll(2) reports the end of the writer, behind bytes that are not read yet.
            waits.add(Name::Stdin, self.stdin.fd(), PollFlags::empty());
        }
        waits.add(Name::Stdout, self.output.stdout.wanting(), PollFlags::POLLOUT);
        waits.add(Name::Stderr, self.output.stderr.wanting(), PollFlags::POLLOUT);
        if let Some((process, stdout, _)) = &self.submit {
            for pipe in process.passes.iter().chain(stdout) {
                waits.add(Name::Pass, Some(pipe.as_fd()), PollFlags::POLLIN);
            }
        }
        if self.output.stderr.waiting() < WAITING {
            for pipe in self.client.passes.iter().chain(self.cancel.iter().flat_map(|cancel| &cancel.passes)) {
                waits.add(Name::Pass, Some(pipe.as_fd()), PollFlags::POLLIN);
            }
        }
        match self.family.due(Instant::now()) {
            Ok(changes) => waits.add(Name::Tree, changes, PollFlags::POLLIN),
            Err(not_before) => waits.until(Some(not_before)),
        }
        waits.wait()
    }

    /// Passes on all output, and reaps processes.
    fn pump(&mut self, events: &Events<Name>) {
        self.family.take_changes(Instant::now());
        if events.has(Name::Children) && self.signals.take_children() {
            let Self { client, cancel, submit, .. } = self;
            tree::reap(|pid, status| {
                let others = cancel.iter_mut().chain(submit.iter_mut().map(|(process, ..)| process));
                std::iter::once(&mut *client).chain(others).for_each(|process| process.note(pid, status));
            });
        }
        if events.has(Name::Pass) {
            self.pass();
        }
        if events.has(Name::Stdout) {
            self.output.stdout.write();
        }
        if events.has(Name::Stderr) {
            self.output.stderr.write();
        }
        if events.is_broken(Name::To) {
            self.line.fail();
        }
        self.report_taken();
    }

    /// Passes on one read of each output of the client and of the command `cancel`. The bytes of an agent that stays on
    /// its place are counted, so other bytes may not come between them.
    fn pass(&mut self) {
        for process in [Some(&mut self.client), self.cancel.as_mut()].into_iter().flatten() {
            let bytes = process.read();
            if self.resident.is_none() {
                self.output.stderr.put(&bytes);
            }
        }
        if let Some((submit, ..)) = &mut self.submit {
            submit.read();
        }
    }

    /// Passes SIGTERM on, or cancels the start.
    fn terminate(&mut self) {
        self.is_to_end = true;
        if self.state == State::Running {
            self.line.say(Kind::Signal, &(Signal::SIGTERM as u32).to_le_bytes());
        } else {
            self.cancelled();
        }
    }

    fn cancelled(&mut self) {
        let message = format!("the start on place {:?} was stopped before the program ran", self.way.place);
        self.fail(CANCELLED, message);
    }

    /// Ends before the program runs.
    fn fail(&mut self, code: &str, message: String) {
        self.outcome.get_or_insert(Outcome::Failed(Refused { code: code.to_owned(), message }));
    }

    /// Ends because the line does. `why` continues a sentence about the line.
    fn lose(&mut self, code: &str, why: String) {
        if self.resident.as_ref().is_some_and(|stays| stays.start > Start::Missing) {
            self.away(why);
        } else if self.state == State::Running {
            self.outcome.get_or_insert(Outcome::Lost(why));
        } else {
            let message = format!("place {:?} was not reached: {why}", self.way.place);
            self.fail(code, message);
        }
    }

    fn is_silent(&self) -> bool {
        self.line.silent_at().is_some_and(|at| at <= Instant::now())
    }

    fn read_line(&mut self, events: &Events<Name>) {
        // This process may have been stopped for longer than the silence. The bytes that came meanwhile count.
        if !events.has(Name::From) && !self.is_silent() {
            return;
        }
        loop {
            match self.line.read() {
                Read::Some(_) => {}
                Read::Nothing => return,
                Read::End => {
                    self.silent_end.get_or_insert_with(Instant::now);
                    return;
                }
            }
            let mut incoming = std::mem::take(&mut self.line.incoming);
            if self.state == State::Calling {
                self.listen(&mut incoming);
            }
            if self.state != State::Calling && self.outcome.is_none() {
                self.take_frames(&mut incoming);
            }
            let is_full = incoming.is_full();
            self.line.incoming = incoming;
            if !is_full || self.outcome.is_some() {
                return;
            }
        }
    }

    fn take_frames(&mut self, incoming: &mut Incoming) {
        loop {
            let taken = match incoming.next() {
                Ok(None) => return,
                Ok(Some((kind, range))) => self.take_frame(kind, incoming.bytes(range)),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                let why = format!("its client changes the bytes, or another program writes between them: {error}");
                return self.lose(CLIENT_FAILED, why);
            }
            if self.outcome.is_some() {
                return;
            }
        }
    }

    fn take_frame(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), wire::WireError> {
        match kind {
            Kind::Data(stream @ (Stream::Out | Stream::Err)) => {
                if let Some(stays) = &mut self.resident {
                    stays.receive(stream, bytes.len());
                }
                match stream {
                    Stream::Out => self.output.stdout.put(bytes),
                    _ => self.output.stderr.put(bytes),
                }
            }
            Kind::End(Stream::Out) => self.output.stdout.close(),
            Kind::Taken(Stream::In) => match &mut self.resident {
                Some(stays) => stays.taken(wire::number(bytes)?),
                None => self.stdin.taken(wire::number(bytes)?),
            },
            Kind::Lines => {
                if let Some(stays) = &mut self.resident {
                    stays.counted(wire::count(bytes)?);
                }
            }
            Kind::Stalled => self.output.report(&PlaceReport::Stalled {
                message: Some(String::from_utf8_lossy(bytes).into_owned()).filter(|message| !message.is_empty()),
            }),
            Kind::Running => {
                let Running { pid, resident } = wire::parse(bytes)?;
                self.host.agent_pid = Some(pid);
                self.state = State::Running;
                // The request may have been large.
                os::release_memory();
                self.output.report(&PlaceReport::Running(self.host.clone()));
                if let Some(resident) = resident {
                    self.attached(resident);
                }
            }
            Kind::Refused => {
                let Refused { code, message } = wire::parse(bytes)?;
                let stays = self.resident.as_ref().filter(|stays| stays.has_run() || code == ELSEWHERE);
                if let Some(stays) = stays {
                    let is_gone = stays.has_run() && code != ELSEWHERE;
                    if is_gone {
                        self.outcome = Some(Outcome::Lost(message));
                    } else {
                        self.away(message);
                    }
                    return Ok(());
                }
                let message = format!("on host {} of place {:?}: {message}", self.host.host, self.way.place);
                self.outcome = Some(Outcome::Refused(Refused { code, message }));
            }
            Kind::Exited => {
                let exited: Exited = wire::parse(bytes)?;
                self.outcome = Some(if exited.cut {
                    Outcome::Lost("it was interrupted, and a part of the output is missing".to_owned())
                } else {
                    Outcome::Ended(exited)
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn read_stdin(&mut self, events: &Events<Name>) {
        if self.outcome.is_some() {
            return;
        }
        if self.resident.is_some() {
            return self.read_lines(events.has(Name::Stdin));
        }
        if !events.has(Name::Stdin) {
            return;
        }
        let has_ended = if self.stdin.has_room(self.line.outgoing.waiting()) {
            self.stdin.read(&mut self.line.outgoing) == Read::End
        } else {
            true
        };
        if has_ended && self.state != State::Running {
            self.cancelled();
        }
    }

    /// Returns when a client that ends or has ended sends no more bytes.
    fn client_over_at(&self) -> Option<Instant> {
        if matches!(self.state, State::Submitting | State::Away) {
            return None;
        }
        match (self.client.exited_at, self.silent_end) {
            (Some(_), Some(ended)) => Some(ended),
            (Some(exited), None) => Some(exited.max(self.line.heard()) + REST),
            (None, Some(ended)) => Some(ended + EXIT),
            (None, None) => None,
        }
    }

    fn note_client(&mut self) {
        if self.outcome.is_some() || self.client_over_at().is_none_or(|at| at > Instant::now()) {
            return;
        }
        // The last lines of stderr may explain the end.
        self.pass();
        let mut why = format!("its client {}", self.client.describe());
        if self.state == State::Calling {
            why += &self.noise_words();
        }
        self.lose(CLIENT_FAILED, why);
    }

    fn note_times(&mut self) {
        let now = Instant::now();
        self.line.beat(now);
        let seconds = |milliseconds: u64| format!("{} s", Duration::from_millis(milliseconds).as_secs_f64());
        if self.outcome.is_some() {
        } else if self.is_silent() {
            self.lose(NO_ANSWER, format!("nothing was received for {}", seconds(self.way.silence_ms)));
        } else if let Some(limit) = self.way.enter_ms.filter(|_| self.state == State::Calling)
            && self.called.checked_add(Duration::from_millis(limit)).is_some_and(|at| at <= now)
        {
            let why = format!("agentd-keeper did not answer within {}", seconds(limit));
            let why = with_words(why, &self.client.tail.words()) + &self.noise_words();
            self.lose(NO_ANSWER, why);
        }
    }
}
