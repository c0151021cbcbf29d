//! Process of one agent: its three pipes and its end.
//!
//! This module turns the agent's output into records. Other modules decide when to write them, and how the agent's
//! life continues.

use std::borrow::Cow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use agentd_api::event::{AgentStarted, Body, Text};
use agentd_api::isolation::{Isolated, Isolation};
use agentd_fault::Point;
use agentd_journal::Record;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use serde_json::value::{RawValue, to_raw_value};
use zeroize::Zeroize as _;

use crate::contents;
use crate::enter;
use crate::flood::Flood;
use crate::journald::{Journald, MessageSource};
use crate::lines::{Lines, Piece};
use crate::log::Log;
use crate::mask::Mask;
use crate::mute::{Mute, Verdict};
use crate::os::{self, Family};
use crate::output::concerns_the_session;
use crate::place::agent::{self as placed, AgentPlace};
use crate::protocol::{self, Fill, Hide, LaunchRecord, Masks, NewRecord, Rate, SESSION_VARIABLE, STDERR_RATE};
use crate::rate::Bucket;
use crate::spawn::{self, Program, Spawned};
use crate::wait::{self, Read};
use crate::warm::WarmAgent;

/// Maximum number of bytes that may wait for an agent that does not read its stdin.
pub(crate) const QUEUE: usize = 64 << 20;
/// Maximum length in bytes of a kept line of stderr.
const STDERR_LINE: u64 = 16 << 10;
/// A shorter read in bytes is followed by a pause. An agent that writes line by line then neither wakes the keeper
/// for each line nor waits for it.
const LITTLE: usize = 8 << 10;
/// Read size in bytes that shows an agent blocked by its full pipe. A wider pipe lets the agent and the keeper switch
/// less often.
const MUCH: usize = 32 << 10;
const WIDE: i32 = 256 << 10;
/// Length of the pause after a short read.
const GATHER: Duration = Duration::from_millis(1);

/// Running agent.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) pid: i32,
    /// The agent's process and all its descendants.
    pub(crate) family: Family,
    /// Exit status of the leader, the process that the keeper started.
    pub(crate) exit: Option<ExitStatus>,
    pub(crate) stdin: Stdin,
    pub(crate) stdout: Output,
    pub(crate) stderr: Output,
    flood: Flood,
    mask: Mask,
    fills: Vec<Fill>,
    mute: Option<Mute>,
    /// Connection to journald, if the keeper runs as a systemd unit.
    journald: Option<Journald>,
    /// Place on which the agent runs. The process is then the near side of the line.
    pub(crate) place: Option<AgentPlace>,
}

/// Returns a line with the texts of its placeholders. `None` if it has no placeholder.
fn filled(fills: &[Fill], line: &str) -> Option<String> {
    let known = fills.iter().filter(|fill| line.contains(&fill.placeholder));
    // The text gets the escapes of a JSON string, without its quotes.
    let put = |line: String, fill: &Fill| {
        let text = serde_json::to_string(&fill.text).unwrap_or_default();
        line.replace(&fill.placeholder, text.get(1..text.len().saturating_sub(1)).unwrap_or_default())
    };
    let mut known = known.peekable();
    known.peek()?;
    Some(known.fold(line.to_owned(), put))
}

/// Process of an agent that no keeper reads yet.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) spawned: Spawned,
    start_time: u64,
    isolation: Isolated,
    /// Place of the agent, and the bytes that the near side gets first.
    place: Option<(AgentPlace, Vec<u8>)>,
}

/// Starts the process of an agent.
pub(crate) fn start(session: &str, record: &LaunchRecord) -> io::Result<AgentProcess> {
    let (mut isolation, mut place) = (Isolated::default(), None);
    let spawned = match (&record.place, &record.enclosure) {
        (Some(way), _) => {
            let started = placed::start(session, record, way)?;
            place = Some((started.place, started.first));
            started.spawned
        }
        (None, Some(enclosure)) => {
            let (spawned, missing) = enter::spawn(record, enclosure)?;
            isolation = Isolated { level: Isolation::Guard, missing };
            spawned
        }
        (None, None) => spawn_open(record)?,
    };
    // The process is not reaped yet, so it has a start time even if it has exited.
    let start_time = os::start_time(spawned.pid).unwrap_or_default();
    Ok(AgentProcess { spawned, start_time, isolation, place })
}

/// Starts the agent, or takes over the process that was kept warm. Returns it with its `agent.started` record.
pub(crate) fn launch(
    session: &str,
    record: &LaunchRecord,
    warm: Option<WarmAgent>,
) -> io::Result<(Agent, AgentStarted)> {
    let kept = warm.and_then(|warm| warm.hand_over(record));
    let is_warm = kept.is_some();
    let AgentProcess { spawned, start_time, isolation, place } = match kept {
        Some(process) => process,
        None => start(session, record)?,
    };
    let (place, first) = place.unzip();
    let started = AgentStarted {
        launch: record.launch,
        pid: spawned.pid.unsigned_abs(),
        start_time,
        command: [&record.program].into_iter().chain(&record.args).map(|word| word.display().into_owned()).collect(),
        isolation,
        warm: is_warm,
        place: record.place.as_ref().map(|line| line.place.clone()),
        resident: record.place.as_ref().is_some_and(|line| line.resident.is_some()),
    };
    let agent = Agent {
        pid: spawned.pid,
        family: Family::led_by(spawned.pid, Some((SESSION_VARIABLE, session.as_bytes()))),
        exit: None,
        stdin: Stdin::new(spawned.stdin, first.unwrap_or_default()),
        stdout: Output::new(spawned.stdout, record.max_line, record.output_rate),
        stderr: Output::new(spawned.stderr, STDERR_LINE, None),
        flood: Flood::new(record.stderr_rate.unwrap_or(STDERR_RATE), Instant::now()),
        mask: Mask::new(record.secrets.iter().map(agentd_api::ByteString::as_bytes)),
        fills: record.fills.clone(),
        mute: record.mute.clone().map(Mute::new),
        journald: record.is_unit.then(|| Journald::connect(session)).flatten(),
        place,
    };
    Ok((agent, started))
}

/// Starts the agent's program without isolation.
fn spawn_open(record: &LaunchRecord) -> io::Result<Spawned> {
    spawn::spawn(&Program {
        path: &record.program,
        arg0: None,
        args: &record.args,
        environment: &record.environment,
        directory: &record.directory,
        stdin: true,
        inherit: [None; 3],
        terminal: None,
        inherits: record.inherits(),
        traced: false,
    })
}

impl Agent {
    /// Reports whether the agent stays on its place when the connection is lost.
    pub(crate) fn is_resident(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.position.is_some())
    }

    /// Reads stdout once and writes the resulting records. Returns the result of the read. With `rest`, an incomplete
    /// last line becomes a record too. `is_followed` is whether a daemon follows the journal.
    pub(crate) fn read_stdout(&mut self, log: &mut Log, rest: bool, is_followed: bool) -> Read {
        let (now, result) = (Instant::now(), self.stdout.read());
        let rest = rest || result == Read::End;
        let block = self.stdout.lines.block(rest);
        let is_quiet = is_followed && self.mute.is_none() && !concerns_the_session(block);
        let block = Block { text: std::str::from_utf8(block).ok(), is_free: self.mask.is_free(block) };
        let mut records = Vec::new();
        for piece in self.stdout.lines.pieces(rest) {
            let before = records.len();
            stdout_records(piece, block, &self.mask, &mut self.mute, now, &mut records);
            if records.len() > before && self.place.as_mut().is_some_and(|place| place.skips(true)) {
                records.truncate(before);
            }
        }
        let (consumed, stays) = (self.stdout.lines.consumed(rest), self.mute.is_some());
        let read = self.place.as_mut().and_then(|place| place.consume(consumed, 0, stays));
        records.extend(read.map(|read| (READ, owned(&read))));
        write_output(log, &records, is_quiet);
        drop(records);
        self.stdout.lines.consume(rest);
        result
    }

    /// Reports whether a read of stdout has returned any bytes.
    pub(crate) fn has_spoken(&self) -> bool {
        self.stdout.has_spoken
    }

    /// Reads stderr like [`Agent::read_stdout`], and drops lines above the rate.
    pub(crate) fn read_stderr(&mut self, log: &mut Log, rest: bool) -> Read {
        let (now, result) = (Instant::now(), self.stderr.read());
        let rest = rest || result == Read::End;
        let mut records = Vec::new();
        for piece in self.stderr.lines.pieces(rest) {
            if self.place.as_mut().is_some_and(|place| place.skips(false)) {
                continue;
            }
            let verdict = self.flood.judge(now, piece);
            records.extend(verdict.report.map(|dropped| left_out(dropped, self.journald.as_ref())));
            if verdict.keep {
                if let Some(journald) = &self.journald {
                    journald.say(MessageSource::Agent, &self.mask.text(piece.text, piece.cut > 0));
                }
                records.push(text(STDERR, piece, &self.mask));
            }
        }
        if rest {
            let dropped = self.flood.report(now, true);
            records.extend(dropped.map(|dropped| left_out(dropped, self.journald.as_ref())));
        }
        let (consumed, stays) = (self.stderr.lines.consumed(rest), self.mute.is_some());
        let read = self.place.as_mut().and_then(|place| place.consume(0, consumed, stays));
        records.extend(read.map(|read| (READ, owned(&read))));
        write_output(log, &records, false);
        drop(records);
        self.stderr.lines.consume(rest);
        result
    }

    /// Returns when [`Agent::report_flood`] is due.
    pub(crate) fn flood_due(&self, now: Instant) -> Option<Instant> {
        self.flood.due(now)
    }

    /// Reports the dropped bytes of stderr if the report is due.
    pub(crate) fn report_flood(&mut self, now: Instant, log: &mut Log) {
        if let Some(dropped) = self.flood.report(now, false) {
            write(log, &[left_out(dropped, self.journald.as_ref())]);
        }
    }

    /// Sends a message of the keeper to journald, if it is connected.
    pub(crate) fn remark(&self, message: &str) {
        if let Some(journald) = &self.journald {
            journald.say(MessageSource::Keeper, message.as_bytes());
        }
    }

    /// Queues a record's line for the agent, with the texts of its placeholders. `session` is the session's directory.
    pub(crate) fn push(&mut self, record: &NewRecord, session: &Path) {
        // A line for an agent that is not connected yet is read from the journal afterwards.
        if !self.place.as_ref().is_some_and(AgentPlace::is_resuming) {
            self.push_line(record.data.get(), (record.fill, record.contents), session);
        }
        self.place.iter_mut().for_each(AgentPlace::count_line);
    }

    /// Queues a line that may have been queued before.
    pub(crate) fn push_line(&mut self, line: &str, (fill, contents): (bool, bool), session: &Path) {
        let with_texts = fill.then(|| filled(&self.fills, line)).flatten();
        let line = with_texts.as_deref().unwrap_or(line);
        let with_contents = contents.then(|| contents::filled(session, line)).flatten();
        self.stdin.push(with_contents.as_deref().unwrap_or(line));
    }

    /// Takes over the secrets of a launch that another keeper began.
    pub(crate) fn adopt(&mut self, masks: Masks) {
        self.mask.add(masks.secrets.iter().map(agentd_api::ByteString::as_bytes));
        self.fills = masks.fills;
    }

    /// Masks these values in all output read from now on.
    pub(crate) fn hide(&mut self, hide: &Hide) {
        self.mask.add(hide.secrets.iter().map(agentd_api::ByteString::as_bytes));
        self.place.iter_mut().for_each(|place| place.hide(hide));
    }

    /// Expects a replay from now on.
    pub(crate) fn mute(&mut self, rule: protocol::Mute, log: &mut Log) {
        self.unmute(log);
        self.mute = Some(Mute::new(rule));
    }

    /// Returns when the replay ends unless more of it arrives.
    pub(crate) fn mute_ends(&self) -> Option<Instant> {
        self.mute.as_ref().and_then(Mute::deadline)
    }

    /// Ends the replay.
    pub(crate) fn unmute(&mut self, log: &mut Log) {
        let mut records = Vec::new();
        end_mute(&mut self.mute, &self.mask, &mut records);
        let read = self.place.as_mut().and_then(|place| place.consume(0, 0, false));
        records.extend(read.map(|read| (READ, owned(&read))));
        write(log, &records);
    }
}

const OUT: &str = "agent.out";
const NOISE: &str = "agent.noise";
const STDERR: &str = "agent.stderr";
const READ: &str = "place.read";

/// Kind and data of a new record. The data borrows from the read buffer unless it had to be changed.
type New<'a> = (&'static str, Cow<'a, RawValue>);

fn write(log: &mut Log, records: &[New<'_>]) {
    let records: Vec<_> = records.iter().map(|(kind, data)| Record { kind, data }).collect();
    log.write(&records);
}

/// Writes the agent's output.
fn write_output(log: &mut Log, records: &[New<'_>], is_quiet: bool) {
    let records: Vec<_> = records.iter().map(|(kind, data)| Record { kind, data }).collect();
    match agentd_fault::at(Point::KeeperOutputRead) {
        Ok(()) => log.write_output(&records, is_quiet),
        Err(_) => log.defer(&records),
    }
}

fn left_out(bytes: u64, journald: Option<&Journald>) -> New<'static> {
    if let Some(journald) = journald {
        journald.say(MessageSource::Keeper, format!("dropped {bytes} bytes of the agent's stderr").as_bytes());
    }
    (STDERR, owned(&Body::AgentStderr(Text { text: Vec::new().into(), cut: bytes })))
}

fn owned(body: &Body) -> Cow<'static, RawValue> {
    Cow::Owned(body.to_data())
}

fn text(kind: &'static str, piece: Piece<'_>, mask: &Mask) -> New<'static> {
    let text = Text { text: mask.text(piece.text, piece.cut > 0).into_owned().into(), cut: piece.cut };
    let data = to_raw_value(&text).expect("a text has string keys and no failing serializer");
    (kind, Cow::Owned(data))
}

fn out<'a>(json: Cow<'a, RawValue>, mask: &Mask) -> New<'a> {
    let Some(hidden) = mask.json(json.get()) else { return (OUT, json) };
    match RawValue::from_string(hidden) {
        Ok(hidden) => (OUT, Cow::Owned(hidden)),
        Err(_) => text(NOISE, Piece { text: json.get().as_bytes(), at: 0, cut: 0 }, mask),
    }
}

/// Facts about all lines of one read. To find them out for each line takes longer, because most lines are short.
#[derive(Clone, Copy)]
struct Block<'a> {
    /// The lines, if all of them are UTF-8.
    text: Option<&'a str>,
    /// Whether no line has a secret.
    is_free: bool,
}

impl<'a> Block<'a> {
    /// Returns the piece if it is a line of JSON.
    fn json(self, piece: Piece<'a>) -> Option<&'a RawValue> {
        if piece.cut > 0 {
            return None;
        }
        match self.text.and_then(|text| text.get(piece.at..piece.at + piece.text.len())) {
            Some(line) => serde_json::from_str(line).ok(),
            None => serde_json::from_slice(piece.text).ok(),
        }
    }

    fn out(self, json: &'a RawValue, mask: &Mask) -> New<'a> {
        if self.is_free { (OUT, Cow::Borrowed(json)) } else { out(Cow::Borrowed(json), mask) }
    }
}

fn stdout_records<'a>(
    piece: Piece<'a>,
    block: Block<'a>,
    mask: &Mask,
    mute: &mut Option<Mute>,
    now: Instant,
    records: &mut Vec<New<'a>>,
) {
    let Some(json) = block.json(piece) else { return records.push(text(NOISE, piece, mask)) };
    match mute.as_mut().map_or(Verdict::Journal, |mute| mute.judge(json, now)) {
        Verdict::Journal => records.push(block.out(json, mask)),
        Verdict::Replay | Verdict::Hold => {}
        Verdict::End => {
            end_mute(mute, mask, records);
            records.push(block.out(json, mask));
        }
    }
}

fn end_mute(mute: &mut Option<Mute>, mask: &Mask, records: &mut Vec<New<'_>>) {
    let Some(mute) = mute.take() else { return };
    let (replayed, response) = mute.end();
    let replayed = Body::AgentReplayed(replayed);
    records.push(("agent.replayed", owned(&replayed)));
    records.extend(response.map(|response| out(Cow::Owned(response), mask)));
}

/// Queue and pipe of the agent's stdin.
#[derive(Debug)]
pub(crate) struct Stdin {
    pipe: Option<OwnedFd>,
    queue: Vec<u8>,
    sent: usize,
    /// Whether the pipe is closed when the queue is empty.
    closing: bool,
    /// Whether the queue is overwritten before its memory is released.
    is_secret: bool,
}

impl Stdin {
    /// Makes a stdin that gets these bytes first.
    fn new(pipe: Option<OwnedFd>, first: Vec<u8>) -> Self {
        Self { pipe, is_secret: !first.is_empty(), queue: first, sent: 0, closing: false }
    }

    fn empty(&mut self) {
        if std::mem::take(&mut self.is_secret) {
            self.queue.zeroize();
        }
        (self.queue, self.sent) = (Vec::new(), 0);
    }

    /// Returns the pipe if bytes wait to be written.
    pub(crate) fn wanting(&self) -> Option<&OwnedFd> {
        self.pipe.as_ref().filter(|_| self.sent < self.queue.len())
    }

    pub(crate) fn pipe(&self) -> Option<&OwnedFd> {
        self.pipe.as_ref()
    }

    /// Reports whether any process holds the read end. For a pipe without a reader, poll(2) reports POLLERR.
    pub(crate) fn is_held(&self) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
        let now = Some(Instant::now());
        wait::wait(&mut fds, now).is_ok() && !fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLERR))
    }

    /// Reports whether this many more bytes may wait. A single message is always accepted.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.queue.len() - self.sent;
        self.pipe.is_none() || waiting == 0 || waiting + bytes <= QUEUE
    }

    /// Queues one line. Does nothing if the agent no longer reads stdin.
    pub(crate) fn push(&mut self, line: &str) {
        if self.pipe.is_some() && !self.closing {
            self.queue.extend_from_slice(line.as_bytes());
            self.queue.push(b'\n');
        }
    }

    /// Writes as much as the pipe takes.
    pub(crate) fn write(&mut self) {
        while let Some(pipe) = self.wanting() {
            match nix::unistd::write(pipe, &self.queue[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                // The agent closed its stdin.
                Err(_) => self.pipe = None,
            }
        }
        if self.wanting().is_none() {
            self.empty();
            if self.closing {
                self.pipe = None;
            }
        } else if self.sent > 1 << 20 {
            self.queue.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Closes the pipe after the queued bytes are written.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.write();
    }

    /// Closes the pipe at once and discards the queue.
    pub(crate) fn abandon(&mut self) {
        self.pipe = None;
        self.empty();
    }
}

/// Output pipe of the agent.
#[derive(Debug)]
pub(crate) struct Output {
    pipe: Option<OwnedFd>,
    lines: Lines,
    /// Time before which the pipe is not read, so that more output gathers.
    not_before: Option<Instant>,
    /// Whether the last read returned at least [`LITTLE`] bytes.
    much: bool,
    /// Whether any bytes were read.
    has_spoken: bool,
    /// Whether the pipe was given more than the default capacity.
    wide: bool,
    rate: Option<Bucket>,
}

impl Output {
    fn new(pipe: Option<OwnedFd>, limit: u64, rate: Option<Rate>) -> Self {
        let rate = rate.map(|rate| Bucket::new(rate, Instant::now()));
        Self { pipe, lines: Lines::new(limit), not_before: None, much: false, has_spoken: false, wide: false, rate }
    }

    /// Returns the pipe if it is time to read it, and otherwise the time for that.
    pub(crate) fn due(&self, now: Instant) -> Result<Option<&OwnedFd>, Instant> {
        match self.not_before.filter(|not_before| self.pipe.is_some() && now < *not_before) {
            Some(not_before) => Err(not_before),
            None => Ok(self.pipe.as_ref()),
        }
    }

    /// Reports whether more output is probably available already.
    pub(crate) fn has_more(&self) -> bool {
        self.pipe.is_some() && self.much
    }

    fn read(&mut self) -> Read {
        let Some(pipe) = &self.pipe else { return Read::End };
        // A failed read counts as the end of the output.
        let read = self.lines.read(pipe.as_fd()).unwrap_or(Read::End);
        let now = Instant::now();
        // A pipe with a rate limit must not grow, so that the agent is slowed down.
        if matches!(read, Read::Some(n) if n >= MUCH) && !self.wide && self.rate.is_none() {
            self.wide = true;
            os::widen(pipe, WIDE);
        }
        self.has_spoken |= matches!(read, Read::Some(_));
        self.much = matches!(read, Read::Some(n) if n >= LITTLE || self.lines.is_full());
        self.not_before = (matches!(read, Read::Some(_)) && !self.much).then(|| now + GATHER);
        if let (Read::Some(n), Some(rate)) = (read, &mut self.rate) {
            rate.take(now, n as u64);
            let wait = rate.wait(now, 0);
            if wait > Duration::ZERO {
                self.not_before = now.checked_add(wait).max(self.not_before);
            }
        }
        if read == Read::End {
            self.pipe = None;
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_gets_its_text_with_the_escapes_of_json() {
        let fill = |placeholder: &str, text: &str| Fill { placeholder: placeholder.into(), text: text.into() };
        let fills = [fill("‹secret A›", "a\"\\\n"), fill("‹secret B›", "b")];
        assert_eq!(filled(&fills, r#"{"x":"plain"}"#), None);
        let line = filled(&fills, r#"{"x":"Bearer ‹secret A›","y":["‹secret B›","‹secret B›"]}"#).unwrap();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value, serde_json::json!({ "x": "Bearer a\"\\\n", "y": ["b", "b"] }));
        assert!(!format!("{fills:?}").contains("\\n"), "{fills:?}");
    }
}
