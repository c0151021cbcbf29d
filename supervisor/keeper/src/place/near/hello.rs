//! From the start of the client to the frame with the program. The output of a login shell is skipped. A place that
//! lacks the keeper gets it. Then the far side says hello.

use std::fs;
use std::time::Instant;

use agentd_api::place::KEEPER_WANTED;

use super::resident::{Start, Stays};
use super::{CLIENT_FAILED, NOT_EXECUTED, Near, Outcome, State, VERSION};
use crate::place::client::{Tail, with_words};
use crate::place::frames::{Begin, Hello, PROTOCOL, Refused, WORD};
use crate::place::wire::Incoming;
use crate::protocol::{PlaceLine, PlacedProgram, StreamCursor};

/// Maximum number of bytes before the first frame.
const NOISE: usize = 1 << 20;
/// Code of a keeper that cannot be sent to the place.
const KEEPER_FILE: &str = "keeper-file";

/// Bytes before the first frame.
#[derive(Debug, Default)]
pub(super) struct Noise {
    tail: Tail,
    length: usize,
}

impl Near {
    /// Waits for the far side's first frame, behind the output of a login shell.
    pub(super) fn listen(&mut self, incoming: &mut Incoming) {
        let noise = &mut self.noise;
        let hello = incoming.hello(|bytes| {
            noise.length += bytes.len();
            noise.tail.add(bytes);
        });
        match hello {
            Some(hello) => self.greet(&hello),
            None if self.noise.length > NOISE => {
                let why = format!("its client printed {} MiB, and agentd-keeper did not answer", NOISE >> 20);
                self.lose(CLIENT_FAILED, with_words(why, &self.noise.tail.words()));
            }
            None => self.deliver(incoming.unread()),
        }
    }

    /// Sends the keeper to a place that asks for it: a script on the place stores it and runs it.
    fn deliver(&mut self, unread: &[u8]) {
        let Some((keeper, sha256)) = self.way.keeper.as_ref().zip(self.way.sha256.as_ref()) else { return };
        if self.delivery.is_some() || !self.noise.tail.has(&format!("{KEEPER_WANTED} {sha256}"), unread) {
            return;
        }
        let path = keeper.path.as_os_str();
        match fs::read(path) {
            Ok(content) if content.len() as u64 == keeper.bytes => {
                (self.delivery, self.called) = (Some(content.len()), Instant::now());
                self.line.say_early(content);
            }
            Ok(_) => self.fail(KEEPER_FILE, format!("{} was changed just now: start again", path.display())),
            Err(error) => self.fail(KEEPER_FILE, format!("cannot read {}: {error}", path.display())),
        }
    }

    /// Notes that the place receives its keeper. Its time for an answer begins again with each byte.
    pub(super) fn note_delivery(&mut self) {
        let left = self.line.early_left();
        if self.delivery.is_some_and(|known| known > left) {
            (self.delivery, self.called) = (Some(left), Instant::now());
        }
    }

    /// Sends the program to a far side of an equal version.
    fn greet(&mut self, hello: &Hello) {
        let (own, place) = (env!("CARGO_PKG_VERSION"), &self.way.place);
        // An agent that runs has the version of its start.
        let has_run = self.resident.as_ref().is_some_and(Stays::has_run);
        if hello.protocol != PROTOCOL || (hello.version != own && !has_run) {
            let message = format!(
                "place {place:?} has agentd-keeper {}, and this agentd is {own}: install agentd-keeper {own} there",
                hello.version
            );
            let refused = Refused { code: VERSION.to_owned(), message };
            self.outcome.get_or_insert(Outcome::Refused(refused));
            return;
        }
        self.host = hello.host();
        let (program, resident) = match &mut self.resident {
            None => (self.program.take(), None),
            Some(stays) => {
                stays.start = stays.start.max(Start::Possible);
                let [out, err] = [&mut self.output.stdout, &mut self.output.stderr].map(|sink| {
                    sink.forget_taken();
                    sink.waiting() as u64
                });
                // The place may not get the frame, so the program stays here until it runs.
                (self.program.clone(), Some(stays.begin(StreamCursor { out, err })))
            }
        };
        let PlaceLine { silence_ms, grace_ms, close_ms, term_ms, .. } = self.way;
        let sha256 = self.way.sha256.clone();
        let mut begin = Begin { program, silence_ms, grace_ms, close_ms, term_ms, resident, sha256 };
        let sent = self.line.begin(&begin);
        begin.program.iter_mut().for_each(PlacedProgram::zeroize);
        begin.resident.iter_mut().for_each(|resident| resident.masks.zeroize());
        self.line.expect(silence_ms);
        self.state = State::Greeted;
        if let Err(error) = sent {
            let refused = Refused { code: NOT_EXECUTED.to_owned(), message: error.to_string() };
            self.outcome.get_or_insert(Outcome::Refused(refused));
        }
    }

    /// Returns the end of a message about a far side that has not answered: the last output of the client.
    pub(super) fn noise_words(&mut self) -> String {
        self.noise.tail.add(self.line.incoming.unread());
        let words = self.noise.tail.words();
        if words.contains(WORD) {
            "; it changes the bytes of agentd-keeper, as a terminal does: let it use no terminal".to_owned()
        } else if self.client.tail.words().is_empty() {
            with_words(String::new(), &words)
        } else {
            String::new()
        }
    }
}
