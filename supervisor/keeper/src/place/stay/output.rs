//! Output of an agent that stays: from its pipes to the disk, and from there to the line.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Name, Stage, Stay};
use crate::place::Events;
use crate::place::frames::{Kind, Stream, WINDOW};
use crate::place::store::Store;
use crate::wait::{self, Read};

/// Interval at which a failed write is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// Output waits on disk while more bytes than this wait on the line.
const WAITING: usize = 256 << 10;
const READ: usize = 64 << 10;

/// Output of the program.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) stream: Stream,
    pub(super) store: Store,
    /// Bytes that the disk did not take.
    pub(super) unstored: Vec<u8>,
    /// Reason why the disk does not take them. Empty if it does.
    pub(super) stall: String,
    /// Number of the next byte for the line.
    pub(super) sent: u64,
    /// Number of bytes that may be sent until the near side has taken some.
    pub(super) window: usize,
    pub(super) has_ended: bool,
    pub(super) has_said_end: bool,
}

impl Output {
    /// Makes a stream without bytes. Its files have this name in the directory.
    pub(super) fn new(stream: Stream, directory: &Path, name: &'static str) -> Self {
        Self {
            stream,
            store: Store::new(directory, name),
            unstored: Vec::new(),
            stall: String::new(),
            sent: 0,
            window: WINDOW,
            has_ended: false,
            has_said_end: false,
        }
    }
}

impl Stay {
    /// Stores output of the program.
    pub(super) fn read_output(&mut self, events: &Events<Name>) {
        let is_draining = self.stage == Stage::Draining;
        let Some(program) = &mut self.program else { return };
        let sources = [(Name::Stdout, &mut program.stdout), (Name::Stderr, &mut program.stderr)];
        for ((name, source), output) in sources.into_iter().zip(&mut self.streams) {
            while self.retry_at.is_none() && (events.has(name) || is_draining || !output.unstored.is_empty()) {
                if output.unstored.is_empty() {
                    let Some(fd) = source.fd() else { break };
                    let mut buffer = vec![0; READ];
                    match wait::read(fd, &mut buffer).unwrap_or(Read::End) {
                        Read::Some(n) => {
                            buffer.truncate(n);
                            output.unstored = buffer;
                        }
                        Read::Nothing if !is_draining => break,
                        Read::Nothing | Read::End => {
                            source.forget();
                            output.has_ended = true;
                            break;
                        }
                    }
                }
                match output.store.append(&output.unstored) {
                    Ok(()) => (output.unstored, output.stall) = (Vec::new(), String::new()),
                    Err(error) => {
                        output.stall = error.to_string();
                        self.retry_at = Some(Instant::now() + RETRY);
                    }
                }
                if !is_draining {
                    break;
                }
            }
        }
        if is_draining && self.streams.iter().all(|output| output.has_ended && output.unstored.is_empty()) {
            self.exited = self.program.as_ref().map(|program| program.exited(false));
            self.stage = Stage::Over;
            self.leaves_at.get_or_insert_with(|| Instant::now() + self.times.linger);
        }
    }

    /// Puts output and the end on the line, as far as it has room.
    pub(super) fn send(&mut self) {
        let Some(line) = self.line.as_mut() else { return };
        if self.is_attached && self.refused.is_none() {
            if self.input.has_said != self.input.lines {
                self.input.has_said = self.input.lines;
                line.say(Kind::Lines, &self.input.lines.to_le_bytes());
            }
            let stall = self.streams.iter().map(|output| &output.stall).find(|stall| !stall.is_empty());
            let stall = stall.cloned().unwrap_or_default();
            if self.has_said_stall != stall {
                line.say(Kind::Stalled, stall.as_bytes());
                self.has_said_stall = stall;
            }
            let mut buffer = Vec::new();
            for output in &mut self.streams {
                while output.window > 0 && line.outgoing.waiting() < WAITING && line.can_say() {
                    buffer.resize(READ.min(output.window), 0);
                    // The next line tries the unreadable disk again, from this byte on.
                    let Ok(n) = output.store.read(output.sent, &mut buffer) else {
                        line.fail();
                        break;
                    };
                    if n == 0 {
                        break;
                    }
                    line.say(Kind::Data(output.stream), &buffer[..n]);
                    (output.sent, output.window) = (output.sent + n as u64, output.window - n);
                }
                let is_whole = output.has_ended && output.unstored.is_empty() && output.sent == output.store.end();
                if is_whole && !std::mem::replace(&mut output.has_said_end, true) {
                    line.say(Kind::End(output.stream), b"");
                }
            }
            let is_whole = self.streams.iter().all(|output| output.has_said_end);
            if let Some(exited) = self.exited.filter(|_| is_whole && !self.has_said_end) {
                self.has_said_end = true;
                if line.say_json(Kind::Exited, &exited).is_err() {
                    line.fail();
                }
            }
        }
        line.write();
    }
}
