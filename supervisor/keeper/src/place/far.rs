//! `agentd-keeper enter` without arguments: the far side, which starts a program and is its parent.
//!
//! Stdin and stdout are the line. The program is the first frame from there. It gets exactly the given environment and
//! directory, or is refused.
//!
//! ```text
//!            line lost              grace over                 close_ms           term_ms
//!   Free ──────────────▶ Grace ─────────────────▶ Closing ───────────────▶ Terminating ────▶ the tree is killed
//!     ▲                    │                     stdin closed             SIGTERM sent
//!     └── heard again ─────┘
//! ```
//!
//! - The line is lost when stdin ends, when stdout cannot be written, and when nothing comes for `silence_ms`.
//! - There is no grace after a signal from the near side, because the program was to end anyway.
//! - SIGTERM, SIGINT and SIGHUP of this process lead to `Terminating`. The end of the outer process kills the tree.
//! - While the line is lost, output that has no room on it is dropped, and all output after it. The program does not
//!   block.
//! - When the program exits, the rest of its tree is killed. The frame with the exit status follows all output. An
//!   agent whose started process exits first lives as long as other processes hold its stdin and stdout.
//!
//! The exit status is the program's, or 128 and the number of its signal. It is 126 for a refused program, and 1 if the
//! line ended before it named a program.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use nix::sys::signal::Signal;
use nix::unistd::{dup2_stdin, dup2_stdout};

use super::flow::take;
use super::frames::{Begin, Hello, Kind, MARKER, PROTOCOL, Running, Stream};
use super::line::Line;
use super::program::{Program, gone};
use super::wire;
use super::{Events, PlaceError, Waits, digest, host, outer, setup};
use crate::os;
use crate::private;
use crate::signals::Signals;
use crate::wait::Read;

/// Time limit for the first frame.
const FIRST: Duration = Duration::from_mins(1);
/// Time limit for the last frame on a line whose other direction has ended.
const FAREWELL: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read after the kill. A process that survived it may write forever.
const DRAIN: usize = 64 << 20;
/// Exit statuses.
const REFUSED: u8 = 126;
const LOST: u8 = 255;

/// Performs the role. Returns the exit status.
pub fn enter() -> Result<u8, PlaceError> {
    os::close_inherited(None).map_err(setup("close inherited file descriptors"))?;
    private::protect_memory(None).map_err(setup("protect its memory from other processes"))?;
    outer::surround(serve)
}

fn serve(outer_ends: OwnedFd) -> Result<u8, PlaceError> {
    os::become_subreaper().map_err(setup("become the reaper of the program's descendants"))?;
    let signals = Signals::install_for_engine().map_err(setup("receive signals"))?;
    let line = open_line().map_err(setup("use stdin and stdout"))?;
    let far = Far {
        signals,
        outer_ends: Some(outer_ends),
        line,
        program: None,
        stage: Stage::Free,
        times: Times::default(),
        is_to_end: false,
        is_cut: false,
        end: None,
    };
    far.run()
}

/// Opens the line, and greets the near side.
fn open_line() -> io::Result<Line> {
    let from = take(io::stdin(), |null| dup2_stdin(null))?;
    let to = take(io::stdout(), |null| dup2_stdout(null))?;
    let mut line = Line::new(from, to)?;
    hello(&mut line)?;
    line.limit_silence(FIRST);
    Ok(line)
}

/// Greets the near side.
pub(super) fn hello(line: &mut Line) -> io::Result<()> {
    line.outgoing.push_raw(MARKER);
    let hello = Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: serde_json::to_value(host::facts())?,
    };
    line.say_json(Kind::Hello, &hello)?;
    line.open();
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Outer,
    Children,
    Terminate,
    Tree,
    From,
    To,
    Stdin,
    Stdout,
    Stderr,
}

#[derive(Debug, Default)]
struct Times {
    grace: Duration,
    close: Duration,
    term: Duration,
}

/// Step of the program's end; see the module comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Free,
    Grace(Instant),
    Closing(Instant),
    Terminating(Instant),
    /// The tree is killed, and the rest of its output is read.
    Draining,
    /// The last frame is on its way. The time is that of the process's end, if the frame does not arrive.
    Farewell(Option<Instant>),
}

struct Far {
    signals: Signals,
    outer_ends: Option<OwnedFd>,
    line: Line,
    program: Option<Program>,
    stage: Stage,
    times: Times,
    /// Whether the near side has sent a signal, so that the program is to end.
    is_to_end: bool,
    /// Whether output was dropped.
    is_cut: bool,
    /// Exit status of this process.
    end: Option<u8>,
}

impl Far {
    fn run(mut self) -> Result<u8, PlaceError> {
        loop {
            self.line.write();
            if let Some(end) = self.end.filter(|_| self.has_said_farewell()) {
                return Ok(end);
            }
            let events = self.wait().map_err(setup("wait for events"))?;
            self.note_signals(&events);
            self.read_line(&events)?;
            self.write_stdin(&events);
            self.note_line()?;
            self.note_children(&events);
            self.note_times();
            self.read_output(&events);
        }
    }

    fn has_said_farewell(&self) -> bool {
        let Stage::Farewell(until) = self.stage else { return false };
        let is_late = until.is_some_and(|until| until <= Instant::now());
        self.line.is_flushed() || is_late || self.is_silent()
    }

    fn wait(&self) -> io::Result<Events<Name>> {
        let mut waits = Waits::new();
        waits.add(Name::Outer, self.outer_ends.as_ref().map(AsFd::as_fd), PollFlags::POLLIN);
        waits.add(Name::Children, Some(self.signals.children()), PollFlags::POLLIN);
        waits.add(Name::Terminate, Some(self.signals.terminate()), PollFlags::POLLIN);
        let (from, to) = self.line.fds();
        waits.add_poll(Name::From, from);
        waits.add_poll(Name::To, to);
        waits.until(self.line.silent_at());
        waits.until(self.line.beat_at());
        if let Stage::Grace(at) | Stage::Closing(at) | Stage::Terminating(at) | Stage::Farewell(Some(at)) = self.stage {
            waits.until(Some(at));
        }
        let Some(program) = &self.program else { return waits.wait() };
        if program.stdin.waiting() > 0 {
            waits.add(Name::Stdin, program.stdin.fd(), PollFlags::POLLOUT);
        } else if program.is_outlived {
            // Without a flag, poll(2) reports a pipe without a reader.
            waits.add(Name::Stdin, program.stdin.fd(), PollFlags::empty());
        }
        for (name, source) in [(Name::Stdout, &program.stdout), (Name::Stderr, &program.stderr)] {
            if let Some(at) = source.paused_until().filter(|_| self.stage == Stage::Free) {
                waits.until(Some(at));
            } else if self.drops() || source.has_room(self.line.outgoing.waiting()) {
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

    /// Reports whether the tree was killed, or no program was started.
    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Draining | Stage::Farewell(_))
    }

    /// Reports whether output without room on the line is dropped.
    fn drops(&self) -> bool {
        self.is_cut || self.is_lost()
    }

    fn is_lost(&self) -> bool {
        !self.line.can_hear() || !self.line.can_say() || self.is_silent()
    }

    fn is_silent(&self) -> bool {
        self.line.silent_at().is_some_and(|at| at <= Instant::now())
    }

    fn note_signals(&mut self, events: &Events<Name>) {
        if events.has(Name::Terminate) && self.signals.take_terminate() {
            if self.program.is_none() {
                self.finish_with(128 + Signal::SIGTERM as u8);
            } else if matches!(self.stage, Stage::Free | Stage::Grace(_) | Stage::Closing(_)) {
                self.terminate();
            }
        }
        if events.has(Name::Outer) {
            self.outer_ends = None;
            match self.program {
                None => self.finish_with(LOST),
                Some(_) => self.end_tree(),
            }
        }
        if events.is_broken(Name::To) {
            self.line.fail();
        }
    }

    /// Ends this process without a frame for the near side.
    fn finish_with(&mut self, code: u8) {
        self.line.fail();
        (self.end, self.stage) = (Some(code), Stage::Farewell(None));
    }

    fn read_line(&mut self, events: &Events<Name>) -> Result<(), PlaceError> {
        // This process may have been stopped for longer than the silence. The bytes that came meanwhile count.
        if !events.has(Name::From) && !self.is_silent() {
            return Ok(());
        }
        while let Read::Some(_) = self.line.read() {
            let mut incoming = std::mem::take(&mut self.line.incoming);
            let taken = self.take_frames(&mut incoming);
            let is_full = incoming.is_full();
            self.line.incoming = incoming;
            taken?;
            if !is_full {
                break;
            }
        }
        Ok(())
    }

    fn take_frames(&mut self, incoming: &mut wire::Incoming) -> Result<(), PlaceError> {
        let damaged = |error: wire::WireError| PlaceError::Damaged(error.to_string());
        loop {
            let (kind, range) = match incoming.next() {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame,
                Err(error) if self.program.is_none() => return Err(damaged(error)),
                Err(_) => {
                    // Nothing that follows can be understood, as on a line that has ended.
                    self.line.deafen();
                    return Ok(());
                }
            };
            let bytes = incoming.bytes(range.clone());
            match kind {
                Kind::Begin if self.program.is_none() && self.end.is_none() => {
                    let begin = wire::parse::<Begin>(bytes);
                    incoming.erase(range);
                    self.begin(begin.map_err(damaged)?);
                }
                Kind::Data(Stream::In) => {
                    if let Some(program) = &mut self.program {
                        program.stdin.put(bytes);
                    }
                }
                Kind::End(Stream::In) => {
                    if let Some(program) = &mut self.program {
                        program.stdin.close();
                    }
                }
                Kind::Signal => self.signal(wire::number(bytes).unwrap_or(0)),
                Kind::Taken(stream) => {
                    let n = wire::number(bytes).unwrap_or(0);
                    if let Some(program) = &mut self.program {
                        match stream {
                            Stream::Out => program.stdout.taken(n),
                            Stream::Err => program.stderr.taken(n),
                            Stream::In => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Starts the program, or refuses it.
    fn begin(&mut self, mut begin: Begin) {
        self.line.expect(begin.silence_ms);
        let duration = Duration::from_millis;
        self.times =
            Times { grace: duration(begin.grace_ms), close: duration(begin.close_ms), term: duration(begin.term_ms) };
        let started = digest::check(begin.sha256.as_deref());
        let started = started.and_then(|()| begin.program.as_ref().map_or_else(|| Err(gone()), Program::start));
        if let Some(program) = &mut begin.program {
            program.zeroize();
        }
        drop(begin);
        // The program's environment may have been large.
        os::release_memory();
        let said = match started {
            Ok(program) => {
                let running = Running { pid: program.pid.unsigned_abs(), resident: None };
                self.program = Some(program);
                self.line.say_json(Kind::Running, &running)
            }
            Err(refused) => {
                (self.end, self.stage) = (Some(REFUSED), Stage::Farewell(None));
                self.line.say_json(Kind::Refused, &refused)
            }
        };
        if said.is_err() {
            self.line.fail();
        }
        if self.end.is_some() {
            self.line.close();
        }
    }

    /// Passes a signal of the near side on.
    fn signal(&mut self, number: u32) {
        self.is_to_end = true;
        let signal = i32::try_from(number).ok().and_then(|number| Signal::try_from(number).ok());
        if let (Some(program), Some(signal)) = (&mut self.program, signal) {
            program.signal(signal);
        }
    }

    fn write_stdin(&mut self, events: &Events<Name>) {
        let Some(program) = &mut self.program else { return };
        if events.has(Name::Stdin) {
            program.stdin.write();
        }
        if let Some(n) = program.stdin.report() {
            self.line.say(Kind::Taken(Stream::In), &n.to_le_bytes());
        }
    }

    fn note_children(&mut self, events: &Events<Name>) {
        let came = events.has(Name::Children) && self.signals.take_children();
        let is_free = matches!(self.stage, Stage::Free | Stage::Grace(_));
        let has_ended = self.has_ended();
        let Some(program) = self.program.as_mut().filter(|_| !has_ended) else { return };
        if program.note_children(came, is_free) {
            self.end_tree();
        }
    }

    /// Notes a lost line, and a line that is there again.
    fn note_line(&mut self) -> Result<(), PlaceError> {
        let (is_silent, is_lost, now) = (self.is_silent(), self.is_lost(), Instant::now());
        if self.stage == Stage::Farewell(None) && !self.line.can_hear() {
            self.stage = Stage::Farewell(Some(now + FAREWELL));
        }
        if self.program.is_none() {
            return match self.end {
                None if is_silent => Err(PlaceError::Silent(FIRST.as_secs())),
                None if is_lost => Err(PlaceError::NoBegin),
                _ => Ok(()),
            };
        }
        match self.stage {
            Stage::Free | Stage::Grace(_) | Stage::Closing(_) | Stage::Terminating(_) if is_lost && self.is_to_end => {
                self.end_tree();
            }
            Stage::Free if is_lost => self.stage = Stage::Grace(now + self.times.grace),
            Stage::Grace(_) if !is_lost && !self.is_cut => self.stage = Stage::Free,
            _ => {}
        }
        Ok(())
    }

    fn read_output(&mut self, events: &Events<Name>) {
        let (drops, is_draining) = (self.drops(), self.stage == Stage::Draining);
        let Some(program) = &mut self.program else { return };
        for (name, source) in [(Name::Stdout, &mut program.stdout), (Name::Stderr, &mut program.stderr)] {
            if !events.has(name) && !is_draining {
                continue;
            }
            while source.fd().is_some() {
                let has_room = !self.is_cut && self.line.can_say() && source.has_room(self.line.outgoing.waiting());
                if !has_room && !drops {
                    break;
                }
                let read = if has_room { source.read(&mut self.line.outgoing) } else { source.drop_bytes() };
                if let Read::Some(n) = read {
                    self.is_cut |= !has_room;
                    program.drained += n;
                    self.line.write();
                }
                if is_draining && (read == Read::Nothing || program.drained > DRAIN) {
                    source.end(&mut self.line.outgoing);
                }
                if !is_draining {
                    break;
                }
            }
        }
        let is_empty = program.stdout.fd().is_none() && program.stderr.fd().is_none();
        if is_draining && is_empty {
            self.say_farewell();
        }
    }

    fn say_farewell(&mut self) {
        let Some(program) = &self.program else { return };
        let exited = program.exited(self.is_cut);
        self.end = Some(program.exit.map_or(LOST, outer::code));
        if self.line.say_json(Kind::Exited, &exited).is_err() {
            self.line.fail();
        }
        self.line.close();
        self.stage = Stage::Farewell(None);
    }

    fn note_times(&mut self) {
        let now = Instant::now();
        match self.stage {
            Stage::Grace(at) if at <= now => {
                if let Some(program) = &mut self.program {
                    program.stdin.abandon();
                }
                self.stage = Stage::Closing(now + self.times.close);
            }
            Stage::Closing(at) if at <= now => self.terminate(),
            Stage::Terminating(at) if at <= now => self.end_tree(),
            _ => {}
        }
        self.line.beat(now);
    }

    /// Sends SIGTERM to the program.
    fn terminate(&mut self) {
        let Some(program) = &mut self.program else { return };
        program.stdin.abandon();
        program.signal(Signal::SIGTERM);
        self.stage = Stage::Terminating(Instant::now() + self.times.term);
    }

    /// Kills the rest of the tree. The rest of the output is read next.
    fn end_tree(&mut self) {
        let has_ended = self.has_ended();
        let Some(program) = self.program.as_mut().filter(|_| !has_ended) else { return };
        program.end_tree();
        self.stage = Stage::Draining;
    }
}
