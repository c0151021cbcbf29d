//! `agentd-keeper enter stay NAME`: the parent of an agent that stays on its place when the connection is lost.
//!
//! The process listens on a socket (the module `room`). `agentd-keeper enter attach NAME` connects stdin and stdout of
//! a client with it. The line to the near side is the line of `agentd-keeper enter`, except for these points:
//!
//! - A lost line ends nothing. The next connection replaces it.
//! - Output is written to the place's disk and numbered (the module `store`). Each line begins at the number that the
//!   near side names, so it gets each byte once.
//! - Lines of stdin are counted. The near side sends again from the first line that was not counted, and the part of
//!   that line that was received is skipped. So the agent gets each byte once, too.
//! - The secrets that the journal must not have are kept in memory here, for a keeper that knows nothing of the launch.
//! - The agent is ended in order when no near side was connected for `alone_ms`, and on SIGTERM.
//! - The end of the agent waits for `linger_ms` until a near side has passed it on, or `agentd-keeper enter end NAME`
//!   ends this process.
//!
//! While too much output waits for the journal, or the disk is full, the agent's output is not read.

mod output;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use agentd_caller::Caller;
use nix::poll::PollFlags;
use nix::sys::signal::Signal;

use self::output::Output;
use super::far::hello;
use super::frames::{Begin, BeginResident, Exited, Kind, Refused, Running, RunningResident, Stream, WINDOW};
use super::line::Line;
use super::program::{self, Program};
use super::room::{self, Room};
use super::wire::{self, Incoming, WireError};
use super::{Events, PlaceError, Waits, digest, outer, setup};
use crate::protocol::{Masks, StreamCursor};
use crate::signals::Signals;
use crate::wait::Read;
use crate::{os, private};

/// Time limit of a line for its first frame, and of a process for its first line.
const FIRST: Duration = Duration::from_mins(1);
const FIRST_LINE: Duration = Duration::from_hours(24);
/// Maximum number of bytes of a stream that wait for the journal.
const UNKEPT: u64 = 256 << 20;
/// Number of bytes that are stored longer than the journal asks for. After a power cut a journal can lack its end.
const SPARE: u64 = 64 << 20;
/// Time for the last frames after SIGTERM.
const FAREWELL: Duration = Duration::from_secs(5);
/// Exit status for a refused program.
const REFUSED: u8 = 126;

/// Performs the role. Returns the exit status.
pub fn stay(name: &str) -> Result<u8, PlaceError> {
    os::close_inherited(None).map_err(setup("close inherited file descriptors"))?;
    private::protect_memory(None).map_err(setup("protect its memory from other processes"))?;
    let room = Room::claim(name)?.ok_or_else(|| PlaceError::Held(name.to_owned()))?;
    let listener = room.listen()?;
    // Directories of killed parents are removed on the way.
    let _ = room::names();
    super::let_go_of_standard_fds().map_err(setup("let go of stdin and stdout"))?;
    let_go_of_stderr().map_err(setup("let go of stderr"))?;
    outer::surround(move |outer_ends| serve(room, listener, outer_ends))
}

fn serve(room: Room, listener: UnixListener, outer_ends: OwnedFd) -> Result<u8, PlaceError> {
    os::become_subreaper().map_err(setup("become the reaper of the program's descendants"))?;
    let signals = Signals::install_for_engine().map_err(setup("receive signals"))?;
    room.name_parent()?;
    let streams =
        [(Stream::Out, "out"), (Stream::Err, "err")].map(|(stream, name)| Output::new(stream, &room.path, name));
    let stay = Stay {
        signals,
        outer_ends: Some(outer_ends),
        listener,
        line: None,
        is_attached: false,
        alone_since: Instant::now(),
        program: None,
        streams,
        input: Input::default(),
        masks: Masks::default(),
        stage: Stage::Free,
        times: Times { alone: FIRST_LINE, ..Times::default() },
        retry_at: None,
        refused: None,
        exited: None,
        has_said_end: false,
        has_said_stall: String::new(),
        is_over: false,
        leaves_at: None,
    };
    let code = stay.run();
    room.remove();
    code
}

/// Counters of the program's stdin.
#[derive(Debug, Default)]
struct Input {
    /// Number of complete lines that were received.
    lines: u64,
    /// Number of bytes after the last complete line.
    partial: usize,
    /// Number of bytes to come that were received before.
    skip: usize,
    has_said: u64,
}

#[derive(Debug, Default)]
struct Times {
    alone: Duration,
    linger: Duration,
    close: Duration,
    term: Duration,
}

/// Step of the program's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    Closing(Instant),
    Terminating(Instant),
    /// The tree is killed, and the rest of its output is read.
    Draining,
    /// The end waits to be read.
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Outer,
    Children,
    Terminate,
    Listener,
    Tree,
    From,
    To,
    Stdin,
    Stdout,
    Stderr,
}

struct Stay {
    signals: Signals,
    outer_ends: Option<OwnedFd>,
    listener: UnixListener,
    line: Option<Line>,
    /// Whether the near side of the line has said which bytes it has.
    is_attached: bool,
    alone_since: Instant,
    program: Option<Program>,
    streams: [Output; 2],
    input: Input,
    masks: Masks,
    stage: Stage,
    times: Times,
    /// Time of the next attempt to write to the disk.
    retry_at: Option<Instant>,
    refused: Option<Refused>,
    exited: Option<Exited>,
    /// Whether the last frame was sent on this line.
    has_said_end: bool,
    /// Reason of waiting output that the near side knows.
    has_said_stall: String,
    /// Whether the near side has passed the end on.
    is_over: bool,
    /// Time at which this process ends.
    leaves_at: Option<Instant>,
}

impl Stay {
    fn run(mut self) -> Result<u8, PlaceError> {
        loop {
            self.send();
            if let Some(code) = self.end() {
                return Ok(code);
            }
            let events = self.wait().map_err(setup("wait for events"))?;
            self.note_signals(&events);
            self.accept(&events);
            self.read_line(&events);
            self.write_stdin(&events);
            self.note_line(&events);
            self.note_children(&events);
            self.note_times();
            self.read_output(&events);
        }
    }

    /// Returns the exit status when this process is to end.
    fn end(&self) -> Option<u8> {
        let leaves_at = self.leaves_at.filter(|_| self.stage == Stage::Over)?;
        if !self.is_over && leaves_at > Instant::now() {
            return None;
        }
        let code = self.program.as_ref().and_then(|program| program.exit).map(outer::code);
        Some(code.unwrap_or(REFUSED))
    }

    fn wait(&self) -> io::Result<Events<Name>> {
        let mut waits = Waits::new();
        waits.add(Name::Outer, self.outer_ends.as_ref().map(AsFd::as_fd), PollFlags::POLLIN);
        waits.add(Name::Children, Some(self.signals.children()), PollFlags::POLLIN);
        waits.add(Name::Terminate, Some(self.signals.terminate()), PollFlags::POLLIN);
        waits.add(Name::Listener, Some(self.listener.as_fd()), PollFlags::POLLIN);
        waits.until(self.retry_at);
        waits.until(self.leaves_at.filter(|_| self.stage == Stage::Over));
        if let Some(line) = &self.line {
            let (from, to) = line.fds();
            waits.add_poll(Name::From, from);
            waits.add_poll(Name::To, to);
            waits.until(line.silent_at());
            waits.until(line.beat_at());
        } else if self.stage != Stage::Over {
            waits.until(self.alone_since.checked_add(self.times.alone));
        }
        if let Stage::Closing(at) | Stage::Terminating(at) = self.stage {
            waits.until(Some(at));
        }
        let Some(program) = &self.program else { return waits.wait() };
        if program.stdin.waiting() > 0 {
            waits.add(Name::Stdin, program.stdin.fd(), PollFlags::POLLOUT);
        } else if program.is_outlived {
            // Without a flag, poll(2) reports a pipe without a reader.
            waits.add(Name::Stdin, program.stdin.fd(), PollFlags::empty());
        }
        for ((name, source), output) in
            [(Name::Stdout, &program.stdout), (Name::Stderr, &program.stderr)].into_iter().zip(&self.streams)
        {
            if self.retry_at.is_none() && (output.store.unkept() < UNKEPT || self.stage == Stage::Draining) {
                waits.add(name, source.fd(), PollFlags::POLLIN);
                // A process that survived the kill may hold the pipe and write nothing.
                waits.until(source.fd().filter(|_| self.stage == Stage::Draining).map(|_| Instant::now()));
            }
        }
        if program.is_outlived && program.stdout.fd().is_none() && !self.has_ended() {
            waits.until(Some(Instant::now()));
        }
        match program.family.due(Instant::now()) {
            Ok(changes) => waits.add(Name::Tree, changes, PollFlags::POLLIN),
            Err(not_before) => waits.until(Some(not_before)),
        }
        waits.wait()
    }

    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Draining | Stage::Over)
    }

    fn note_signals(&mut self, events: &Events<Name>) {
        if events.has(Name::Terminate) && self.signals.take_terminate() {
            self.leaves_at = Some(Instant::now() + FAREWELL);
            if self.program.is_none() {
                self.stage = Stage::Over;
            } else if matches!(self.stage, Stage::Free | Stage::Closing(_)) {
                self.terminate();
            }
        }
        if events.has(Name::Outer) {
            self.outer_ends = None;
            self.leaves_at = Some(Instant::now());
            match self.program {
                None => self.stage = Stage::Over,
                Some(_) => self.end_tree(),
            }
        }
    }

    /// Greets a client, whose line replaces the present one.
    fn accept(&mut self, events: &Events<Name>) {
        if !events.has(Name::Listener) {
            return;
        }
        let Ok((stream, _)) = self.listener.accept() else { return };
        // An agent runs below such a process, and no client does.
        if !Caller::is_client(&stream) {
            return;
        }
        // A stream that cannot be used is closed, and its client tries again.
        if let Ok(line) = open(stream) {
            self.line = Some(line);
            (self.is_attached, self.has_said_end) = (false, false);
            self.has_said_stall.clear();
        }
    }

    fn read_line(&mut self, events: &Events<Name>) {
        let Some(mut line) = self.line.take() else { return };
        let is_silent = line.silent_at().is_some_and(|at| at <= Instant::now());
        // This process may have been stopped for longer than the silence. The bytes that came meanwhile count.
        while (events.has(Name::From) || is_silent)
            && let Read::Some(_) = line.read()
        {
            let mut incoming = std::mem::take(&mut line.incoming);
            let taken = self.take_frames(&mut incoming, &mut line);
            let is_full = incoming.is_full();
            line.incoming = incoming;
            if taken.is_err() {
                line.deafen();
            }
            if !is_full {
                break;
            }
        }
        self.line = Some(line);
    }

    fn take_frames(&mut self, incoming: &mut Incoming, line: &mut Line) -> Result<(), WireError> {
        while let Some((kind, range)) = incoming.next()? {
            let bytes = incoming.bytes(range.clone());
            match kind {
                Kind::Begin if !self.is_attached => {
                    let begin = wire::parse::<Begin>(bytes);
                    incoming.erase(range);
                    self.begin(begin?, line)?;
                }
                Kind::Data(Stream::In) => self.take_input(bytes, line),
                Kind::End(Stream::In) => {
                    if let Some(program) = &mut self.program {
                        program.stdin.close();
                    }
                }
                Kind::Signal => self.signal(wire::number(bytes)?),
                Kind::Over => self.is_over = self.has_said_end,
                Kind::Masks => {
                    let masks = wire::parse(bytes);
                    incoming.erase(range);
                    self.masks.add(masks?);
                }
                Kind::Kept => {
                    let kept = wire::cursor(bytes)?;
                    self.keep(kept);
                }
                Kind::Taken(stream) => {
                    let n = wire::number(bytes)? as usize;
                    for output in self.streams.iter_mut().filter(|output| output.stream == stream) {
                        output.window = (output.window + n).min(WINDOW);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts the program unless it runs, and continues with its streams where the near side is.
    fn begin(&mut self, mut begin: Begin, line: &mut Line) -> Result<(), WireError> {
        let Some(terms) = begin.resident.take() else {
            return Err(WireError::Content("the program is not to stay here".to_owned()));
        };
        line.expect(begin.silence_ms);
        let duration = Duration::from_millis;
        self.times = Times {
            alone: duration(terms.alone_ms),
            linger: duration(terms.linger_ms),
            close: duration(begin.close_ms),
            term: duration(begin.term_ms),
        };
        if self.program.is_none() && self.refused.is_none() {
            let checked = digest::check(begin.sha256.as_deref());
            let start = |()| begin.program.as_ref().map_or_else(|| Err(program::gone()), Program::start);
            match checked.and_then(start) {
                Ok(program) => self.program = Some(program),
                Err(refused) => {
                    (self.refused, self.stage) = (Some(refused), Stage::Over);
                    self.leaves_at = Some(Instant::now() + self.times.linger);
                }
            }
            self.masks = terms.masks.clone();
        }
        if let Some(program) = &mut begin.program {
            program.zeroize();
        }
        os::release_memory();
        self.keep(terms.kept);
        self.is_attached = true;
        let said = match self.answer(&terms) {
            Ok(running) => line.say_secret(Kind::Running, &running),
            Err(refused) => {
                self.has_said_end = true;
                line.say_json(Kind::Refused, &refused)
            }
        };
        if said.is_err() {
            line.fail();
        }
        Ok(())
    }

    /// Sets the streams to the position of the near side.
    fn answer(&mut self, terms: &BeginResident) -> Result<Running, Refused> {
        if let Some(refused) = &self.refused {
            return Err(refused.clone());
        }
        let Some(program) = &mut self.program else { return Err(program::gone()) };
        program.stdin.forget_taken();
        let positions = [(terms.resume.out, terms.waiting.out), (terms.resume.err, terms.waiting.err)];
        for (output, (resume, waiting)) in self.streams.iter_mut().zip(positions) {
            if resume < output.store.start() || resume > output.store.end() {
                let (start, end) = (output.store.start(), output.store.end());
                let message = format!("the output from byte {resume} on is not stored: there are {start} to {end}");
                return Err(Refused { code: "gone".to_owned(), message });
            }
            output.sent = resume;
            output.window = WINDOW.saturating_sub(usize::try_from(waiting).unwrap_or(usize::MAX));
            output.has_said_end = false;
        }
        self.input.skip = self.input.partial;
        self.input.has_said = self.input.lines;
        let resident = RunningResident {
            lines: self.input.lines,
            waiting: program.stdin.waiting() as u64,
            masks: self.masks.clone(),
        };
        Ok(Running { pid: program.pid.unsigned_abs(), resident: Some(resident) })
    }

    fn keep(&mut self, kept: StreamCursor) {
        let [out, err] = &mut self.streams;
        out.store.kept(kept.out, SPARE);
        err.store.kept(kept.err, SPARE);
    }

    /// Gives the program those bytes that it does not have yet.
    fn take_input(&mut self, bytes: &[u8], line: &mut Line) {
        let skipped = self.input.skip.min(bytes.len());
        self.input.skip -= skipped;
        if skipped > 0 {
            line.say(Kind::Taken(Stream::In), &u32::try_from(skipped).unwrap_or(u32::MAX).to_le_bytes());
        }
        let fresh = &bytes[skipped..];
        let Some(program) = self.program.as_mut().filter(|_| !fresh.is_empty()) else { return };
        self.input.lines += memchr::memchr_iter(b'\n', fresh).count() as u64;
        self.input.partial = match memchr::memrchr(b'\n', fresh) {
            Some(at) => fresh.len() - at - 1,
            None => self.input.partial + fresh.len(),
        };
        program.stdin.put(fresh);
    }

    /// Passes a signal of the near side on. A program that does not obey SIGTERM is killed.
    fn signal(&mut self, number: u32) {
        let signal = i32::try_from(number).ok().and_then(|number| Signal::try_from(number).ok());
        match signal {
            Some(Signal::SIGTERM) if matches!(self.stage, Stage::Free | Stage::Closing(_)) => self.terminate(),
            Some(signal) if !self.has_ended() => {
                if let Some(program) = &mut self.program {
                    program.signal(signal);
                }
            }
            _ => {}
        }
    }

    fn write_stdin(&mut self, events: &Events<Name>) {
        let Some(program) = &mut self.program else { return };
        if events.has(Name::Stdin) {
            program.stdin.write();
        }
        let taken = program.stdin.report();
        if let (Some(n), Some(line)) = (taken, self.line.as_mut().filter(|_| self.is_attached)) {
            line.say(Kind::Taken(Stream::In), &n.to_le_bytes());
        }
    }

    /// Notes a lost line.
    fn note_line(&mut self, events: &Events<Name>) {
        let Some(line) = &mut self.line else { return };
        if events.is_broken(Name::To) {
            line.fail();
        }
        let is_silent = line.silent_at().is_some_and(|at| at <= Instant::now());
        if is_silent || !line.can_hear() || !line.can_say() {
            (self.line, self.is_attached, self.alone_since) = (None, false, Instant::now());
        } else {
            line.beat(Instant::now());
        }
    }

    fn note_children(&mut self, events: &Events<Name>) {
        let came = events.has(Name::Children) && self.signals.take_children();
        let (is_free, has_ended) = (self.stage == Stage::Free, self.has_ended());
        let Some(program) = self.program.as_mut().filter(|_| !has_ended) else { return };
        if program.note_children(came, is_free) {
            self.end_tree();
        }
    }

    fn note_times(&mut self) {
        let now = Instant::now();
        let is_alone = self.line.is_none()
            && self.alone_since.checked_add(self.times.alone).is_some_and(|at| at <= now)
            && self.stage == Stage::Free;
        match self.stage {
            Stage::Free if is_alone => {
                if let Some(program) = &mut self.program {
                    program.stdin.abandon();
                    self.stage = Stage::Closing(now + self.times.close);
                } else {
                    (self.stage, self.leaves_at) = (Stage::Over, Some(now));
                }
            }
            Stage::Closing(at) if at <= now => self.terminate(),
            Stage::Terminating(at) if at <= now => self.end_tree(),
            _ => {}
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
    }

    /// Sends SIGTERM to the program.
    fn terminate(&mut self) {
        let Some(program) = &mut self.program else { return };
        program.stdin.abandon();
        program.signal(Signal::SIGTERM);
        self.stage = Stage::Terminating(Instant::now() + self.times.term);
    }

    fn end_tree(&mut self) {
        let has_ended = self.has_ended();
        let Some(program) = self.program.as_mut().filter(|_| !has_ended) else { return };
        program.end_tree();
        self.stage = Stage::Draining;
    }
}

/// Makes the line of a client, and greets the near side.
fn open(stream: UnixStream) -> io::Result<Line> {
    let from = stream.try_clone()?;
    let mut line = Line::new(from.into(), stream.into())?;
    hello(&mut line)?;
    line.limit_silence(FIRST);
    Ok(line)
}

/// Points stderr at `/dev/null`. Messages about the start are the only ones.
fn let_go_of_stderr() -> io::Result<()> {
    let null = std::fs::File::options().write(true).open("/dev/null")?;
    Ok(nix::unistd::dup2_stderr(null.as_fd())?)
}
