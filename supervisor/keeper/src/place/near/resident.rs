//! An agent that stays on its place: a lost line is followed by another client, which continues where the line ended.
//!
//! Bytes of stdin are kept until the place has counted their line. The positions in stdout and stderr are those of this
//! process, so nothing is passed on twice. The keeper tells how far the journal reaches, and whether the end of stdin
//! is meant for the agent. An end without that order shows that the keeper is gone. This process then ends without the
//! agent.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use agentd_api::ByteString;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use zeroize::Zeroize as _;

use super::{CLIENT_FAILED, Name, Near, Outcome, State};
use crate::frame;
use crate::place::client::{self, Process};
use crate::place::frames::{BeginResident, Exited, Kind, RunningResident, Stream, WINDOW};
use crate::place::line::Line;
use crate::place::wire::Incoming;
use crate::protocol::{Masks, PlaceOrder, PlaceReport, Resident, StreamCursor};
use crate::wait::{self, Read};

/// First and longest pause before another client is started.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(20);
/// Longest pause for an agent that is not known to run: its engine may have started it just now.
const LONGEST_START: Duration = Duration::from_secs(5);
/// Time for the journal to get the last output. An incomplete last line gets there after the end of this process.
const LAST: Duration = Duration::from_secs(1);
/// Stdin waits while more bytes than this wait on the line.
const WAITING: usize = 256 << 10;
const READ: usize = 64 << 10;
/// Word in the client's command line that the engine's job replaces.
const JOB: &str = "{job}";

/// Bytes of stdin from the first line on that the place has not counted.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Number of lines before `bytes`.
    base: u64,
    /// Number of bytes that were sent on this line.
    sent: usize,
    has_ended: bool,
    has_said_end: bool,
}

impl Lines {
    /// Removes the lines that the place has counted.
    fn counted(&mut self, lines: u64) {
        let count = usize::try_from(lines.saturating_sub(self.base)).unwrap_or(usize::MAX);
        let end = memchr::memchr_iter(b'\n', &self.bytes).take(count).enumerate().last();
        let Some((index, at)) = end else { return };
        self.bytes.drain(..=at);
        self.base += index as u64 + 1;
        self.sent = self.sent.saturating_sub(at + 1);
    }
}

/// Knowledge about the start of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Start {
    /// No place has received the program.
    Missing,
    /// A place may have received the program.
    Possible,
    /// The agent was seen to run.
    Known,
}

/// State of an agent that stays on its place.
pub(super) struct Stays {
    pub(super) terms: Resident,
    pub(super) start: Start,
    pub(super) received: StreamCursor,
    kept: StreamCursor,
    lines: Lines,
    /// Number of bytes of stdin that may be sent until the place has taken some.
    window: usize,
    /// Time at which the next client is started.
    call_at: Option<Instant>,
    pause: Duration,
    is_away: bool,
    /// Whether the end of stdin is meant for the agent.
    is_closed: bool,
    orders: Option<OwnedFd>,
    decoder: frame::Decoder,
}

impl Stays {
    pub(super) fn new(terms: Resident, orders: Option<OwnedFd>) -> Self {
        let received = terms.resume.unwrap_or_default();
        let start = if terms.resume.is_some() { Start::Known } else { Start::Missing };
        Self {
            terms,
            start,
            received,
            kept: received,
            lines: Lines::default(),
            window: 0,
            call_at: None,
            pause: PAUSE,
            is_away: false,
            is_closed: false,
            orders,
            decoder: frame::Decoder::default(),
        }
    }

    /// Reports whether the agent was seen to run.
    pub(super) fn has_run(&self) -> bool {
        self.start == Start::Known
    }

    pub(super) fn orders(&self) -> Option<BorrowedFd<'_>> {
        self.orders.as_ref().map(|orders| orders.as_fd())
    }

    /// Returns when the next client is started.
    pub(super) fn call_at(&self) -> Option<Instant> {
        self.call_at
    }

    /// Reports whether stdin is read.
    pub(super) fn wants_input(&self) -> bool {
        !self.lines.has_ended && self.lines.bytes.len() - self.lines.sent < WINDOW
    }

    /// Makes the part of the first frame. `waiting` is the number of bytes of each stream that were not passed on.
    pub(super) fn begin(&self, waiting: StreamCursor) -> BeginResident {
        BeginResident {
            resume: self.received,
            waiting,
            kept: self.kept,
            masks: self.terms.masks.clone(),
            alone_ms: self.terms.alone_ms,
            linger_ms: self.terms.linger_ms,
        }
    }

    /// Gives the place more values to mask, now or with the next connection.
    fn hide(&mut self, masks: Masks, line: &mut Line, is_connected: bool) {
        if is_connected {
            // The values are strings, so they have a form in JSON.
            let _ = line.say_secret(Kind::Masks, &masks);
        }
        self.terms.masks.add(masks);
    }

    /// Notes the place's count of lines.
    pub(super) fn counted(&mut self, lines: u64) {
        self.lines.counted(lines);
    }

    /// Notes that the place has taken bytes of stdin.
    pub(super) fn taken(&mut self, n: u32) {
        self.window = (self.window + n as usize).min(WINDOW);
    }

    /// Notes received bytes of the agent.
    pub(super) fn receive(&mut self, stream: Stream, n: usize) {
        match stream {
            Stream::Out => self.received.out += n as u64,
            Stream::Err => self.received.err += n as u64,
            Stream::In => {}
        }
    }

    /// Continues at the place's count of lines.
    fn attached(&mut self, running: &RunningResident) {
        if self.lines.bytes.is_empty() && self.lines.base == 0 {
            // The keeper sends the lines again that the place does not have.
            self.lines.base = self.lines.base.max(running.lines);
        }
        self.lines.counted(running.lines);
        (self.lines.sent, self.lines.has_said_end) = (0, false);
        self.window = WINDOW.saturating_sub(usize::try_from(running.waiting).unwrap_or(usize::MAX));
        (self.start, self.pause, self.is_away) = (Start::Known, PAUSE, false);
    }
}

impl Near {
    /// Submits the agent's parent to the engine, or starts the first client.
    pub(super) fn call_first(&mut self) -> io::Result<()> {
        let submit = self.resident.as_mut().filter(|stays| stays.terms.job.is_none());
        let Some(command) = submit.and_then(|stays| stays.terms.submit.take()) else { return self.call() };
        let spawned = client::start(&command, &self.way.environment, false)?;
        let pipes: Vec<OwnedFd> = spawned.stderr.into_iter().collect();
        self.submit = Some((Process::new(spawned.pid, pipes), spawned.stdout, Vec::new()));
        self.state = State::Submitting;
        Ok(())
    }

    /// Starts a client.
    pub(super) fn call(&mut self) -> io::Result<()> {
        let job = self.resident.as_ref().and_then(|stays| stays.terms.job.clone());
        let with_job = |word: &ByteString| match (word.as_os_str().to_str(), &job) {
            (Some(text), Some(job)) if text.contains(JOB) => text.replace(JOB, job).into(),
            _ => word.clone(),
        };
        let client: Vec<ByteString> = self.way.client.iter().map(with_job).collect();
        let spawned = client::start(&client, &self.way.environment, true)?;
        let unpiped = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (to, from) = (spawned.stdin.ok_or_else(unpiped)?, spawned.stdout.ok_or_else(unpiped)?);
        self.client = Process::new(spawned.pid, spawned.stderr.into_iter().collect());
        self.family = crate::os::Family::led_by(spawned.pid, None);
        self.line = Line::new(from, to)?;
        (self.noise, self.delivery) = (super::Noise::default(), None);
        (self.state, self.called, self.silent_end) = (State::Calling, Instant::now(), None);
        Ok(())
    }

    /// Reads the engine's job when the command that submits it has ended.
    pub(super) fn note_submit(&mut self) {
        let Some((process, stdout, output)) = &mut self.submit else { return };
        let mut buffer = [0; 1 << 10];
        while let Some(pipe) = stdout {
            match wait::read(pipe.as_fd(), &mut buffer) {
                Ok(Read::Some(n)) if output.len() < READ => output.extend_from_slice(&buffer[..n]),
                Ok(Read::Some(_)) => {}
                Ok(Read::Nothing) => break,
                Ok(Read::End) | Err(_) => *stdout = None,
            }
        }
        let Some(exit) = process.exit.filter(|_| stdout.is_none()) else { return };
        let text = String::from_utf8_lossy(output);
        // `sbatch --parsable` prints the job, and behind a semicolon the cluster.
        let job = text.split_whitespace().next().and_then(|word| word.split(';').next()).unwrap_or_default().to_owned();
        process.read();
        let how = process.describe();
        self.submit = None;
        if exit.success() && !job.is_empty() {
            self.output.report(&PlaceReport::Submitted { job: job.clone() });
            if let Some(stays) = &mut self.resident {
                (stays.terms.job, stays.start) = (Some(job), Start::Possible);
            }
            if let Err(error) = self.call() {
                self.away(format!("its client cannot be started: {error}"));
            }
        } else {
            let why = if exit.success() { "printed no job".to_owned() } else { how };
            let message = format!("place {:?} did not take the launch: its command `submit` {why}", self.way.place);
            self.fail(CLIENT_FAILED, message);
        }
    }

    /// Reads the keeper's orders.
    pub(super) fn read_orders(&mut self) {
        let Some(stays) = &mut self.resident else { return };
        let (mut buffer, mut is_new) = (vec![0; 4 << 10], false);
        while let Some(orders) = &stays.orders {
            match recv(orders.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => stays.orders = None,
                Ok(n) => stays.decoder.extend(&buffer[..n]),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => stays.orders = None,
            }
        }
        while let Ok(Some(mut body)) = stays.decoder.frame() {
            match serde_json::from_slice(&body) {
                Ok(PlaceOrder::Kept(kept)) => (stays.kept, is_new) = (kept, true),
                Ok(PlaceOrder::Close) => stays.is_closed = true,
                Ok(PlaceOrder::Hide(masks)) => stays.hide(masks, &mut self.line, self.state == State::Running),
                // The keeper is this program, so its orders have a known form.
                Err(_) => {}
            }
            body.zeroize();
        }
        if is_new && self.state == State::Running {
            let kept = [stays.kept.out.to_le_bytes(), stays.kept.err.to_le_bytes()].concat();
            self.line.say(Kind::Kept, &kept);
        }
    }

    /// Reads stdin, and sends as much of it as the place takes.
    pub(super) fn read_lines(&mut self, may_read: bool) {
        self.read_orders();
        let Some(stays) = &mut self.resident else { return };
        if may_read && stays.wants_input() {
            let mut buffer = vec![0; READ];
            match self.stdin.fd().map_or(Ok(Read::End), |stdin| wait::read(stdin, &mut buffer)) {
                Ok(Read::Some(n)) => stays.lines.bytes.extend_from_slice(&buffer[..n]),
                Ok(Read::Nothing) => {}
                Ok(Read::End) | Err(_) => {
                    stays.lines.has_ended = true;
                    self.stdin.forget();
                    if !stays.is_closed {
                        // The keeper was killed. The agent stays.
                        self.outcome.get_or_insert(Outcome::Orphaned);
                        return;
                    }
                    if stays.start == Start::Missing {
                        return self.cancelled();
                    }
                }
            }
        }
        if self.state == State::Running {
            stays.send(&mut self.line);
        }
    }

    /// Continues with an agent that runs.
    pub(super) fn attached(&mut self, running: RunningResident) {
        let Some(stays) = &mut self.resident else { return };
        stays.attached(&running);
        if let Some(mut program) = self.program.take() {
            program.zeroize();
        }
        let RunningResident { lines, mut masks, .. } = running;
        self.output.report(&PlaceReport::Attached { lines, masks: masks.clone() });
        masks.zeroize();
    }

    /// Starts another client later. `why` continues a sentence about the line.
    pub(super) fn away(&mut self, why: String) {
        self.client.kill();
        self.line.fail();
        self.line.deafen();
        self.state = State::Away;
        let Some(stays) = &mut self.resident else { return };
        stays.call_at = Instant::now().checked_add(stays.pause);
        stays.pause = (stays.pause * 2).min(if stays.has_run() { LONGEST } else { LONGEST_START });
        if stays.has_run() && !std::mem::replace(&mut stays.is_away, true) {
            self.output.report(&PlaceReport::Away { message: why });
        }
        if self.is_to_end {
            self.cancelled();
        }
    }

    /// Passes on the rest of the output, and tells the place that the end was passed on. The place keeps the end and
    /// the output until then.
    pub(super) fn confirm_end(&mut self, outcome: &Outcome) -> io::Result<()> {
        if self.resident.is_none() {
            return Ok(());
        }
        if let Outcome::Ended(Exited { status, signal, killed, .. }) = *outcome {
            self.linger(None, true, |near| near.output.stdout.waiting() + near.output.stderr.waiting() == 0)?;
            self.output.report(&PlaceReport::Ended { status, signal, killed });
            let until = Instant::now() + LAST;
            while self.resident.as_ref().is_some_and(|stays| stays.orders.is_some() && stays.kept != stays.received)
                && Instant::now() < until
            {
                self.line.write();
                let events = self.wait(Some(until))?;
                if events.has(Name::From) {
                    self.line.read();
                    self.line.incoming = Incoming::default();
                }
                self.pump(&events);
                self.read_orders();
            }
        }
        // Without a keeper, the journal may lack the end.
        if self.resident.as_ref().is_some_and(|stays| stays.orders.is_some()) {
            self.line.say(Kind::Over, b"");
        }
        Ok(())
    }

    /// Starts the next client when it is time.
    pub(super) fn call_again(&mut self) {
        let now = Instant::now();
        let Some(stays) = self.resident.as_mut().filter(|stays| stays.call_at.is_some_and(|at| at <= now)) else {
            return;
        };
        stays.call_at = None;
        if let Err(error) = self.call() {
            self.away(format!("its client cannot be started: {error}"));
        }
    }
}

impl Stays {
    /// Puts bytes of stdin on the line, as far as the place takes them.
    fn send(&mut self, line: &mut Line) {
        let lines = &mut self.lines;
        while self.window > 0 && lines.sent < lines.bytes.len() && line.outgoing.waiting() < WAITING {
            let n = (lines.bytes.len() - lines.sent).min(self.window).min(READ);
            line.say(Kind::Data(Stream::In), &lines.bytes[lines.sent..lines.sent + n]);
            (lines.sent, self.window) = (lines.sent + n, self.window - n);
        }
        let is_whole = lines.has_ended && lines.sent == lines.bytes.len();
        if is_whole && !std::mem::replace(&mut lines.has_said_end, true) {
            line.say(Kind::End(Stream::In), b"");
        }
    }
}
