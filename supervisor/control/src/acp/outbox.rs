//! The messages for one client until it has read them, and a little longer. Rules and counts; no I/O.
//!
//! A client reads all messages from one stream, or those of a session from a stream of their own: drafts of the
//! transport differ in this. A message belongs to the stream of its session if the client has ever opened that stream.
//!
//! Delivered messages are kept for a client that lost its connection, up to a limit. Messages that wait are limited
//! too: without room, nothing further is read from the journals.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use agentd_api::acp::Outgoing;
use bytes::Bytes;

use super::cursor::Cursor;

/// Number of bytes that wait for the client before no further message is taken.
const WAITING: usize = 4 << 20;
/// Number of bytes of delivered messages that each stream keeps.
const KEPT: usize = 2 << 20;

/// A stream of one client: all messages without a stream of their own, or those of one session.
pub(super) type Scope = Option<Arc<str>>;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Id of the connection.
    id: String,
    /// Number of the last message.
    number: u64,
    streams: HashMap<Scope, Stream>,
    /// Bytes of all messages that wait.
    waiting: usize,
}

#[derive(Debug, Default)]
struct Stream {
    messages: VecDeque<Message>,
    /// Number of delivered messages at the beginning of `messages`.
    delivered: usize,
    /// Bytes of the delivered messages.
    kept: usize,
    /// Number of the last message that is no longer kept.
    dropped: u64,
    positions: BTreeMap<Arc<str>, u64>,
    /// Number of the present reader, which replaced all readers before.
    reader: u64,
    is_read: bool,
}

#[derive(Debug)]
struct Message {
    number: u64,
    id: String,
    line: Bytes,
}

/// Result of a look for the next message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A message with the id of its event.
    Message {
        id: String,
        line: Bytes,
    },
    Nothing,
    /// A later reader has the stream.
    Replaced,
}

/// The messages after this position are no longer kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Outbox {
    pub(super) fn new(id: &str) -> Self {
        let streams = HashMap::from([(None, Stream::default())]);
        Self { id: id.to_owned(), streams, ..Self::default() }
    }

    pub(super) fn push(&mut self, outgoing: Outgoing) {
        let Outgoing { mut line, session, seq } = outgoing;
        line.truncate(line.trim_ascii_end().len());
        // Outside of strings a carriage return is a space (RFC 8259 section 2), and in an event it would end a line.
        line.iter_mut().filter(|byte| **byte == b'\r' || **byte == b'\n').for_each(|byte| *byte = b' ');
        self.number += 1;
        self.waiting += line.len();
        let scope = session.clone().filter(|session| self.streams.contains_key(&Some(Arc::clone(session))));
        let Some(stream) = self.streams.get_mut(&scope) else { return };
        if let Some(session) = session {
            stream.positions.insert(session, seq);
        }
        let positions = stream.positions.iter().map(|(session, seq)| (session.to_string(), *seq));
        let cursor = Cursor { connection: self.id.clone(), number: self.number, sessions: positions.collect() };
        stream.messages.push_back(Message { number: self.number, id: cursor.to_string(), line: line.into() });
    }

    /// Reports whether a further message may be taken.
    pub(super) fn has_room(&self) -> bool {
        self.waiting < WAITING
    }

    pub(super) fn is_read(&self) -> bool {
        self.streams.values().any(|stream| stream.is_read)
    }

    /// Reports whether a message of this session has passed.
    pub(super) fn knows(&self, session: &str) -> bool {
        self.streams.values().any(|stream| stream.positions.contains_key(session))
    }

    /// Begins to read a stream, and returns the number of the reader. `after` is the last message that the client has;
    /// without it, the messages begin after those that were delivered.
    pub(super) fn open(&mut self, scope: Scope, after: Option<u64>) -> Result<u64, Gone> {
        let stream = self.streams.entry(scope).or_default();
        if let Some(after) = after {
            if after < stream.dropped {
                return Err(Gone);
            }
            let before = stream.delivered;
            stream.delivered = stream.messages.iter().take_while(|message| message.number <= after).count();
            let bytes = |messages: &[&Message]| messages.iter().map(|message| message.line.len()).sum::<usize>();
            let again: Vec<&Message> = stream.messages.iter().take(before).skip(stream.delivered).collect();
            let (again, early) = (bytes(&again), stream.messages.iter().take(stream.delivered).skip(before));
            let early = bytes(&early.collect::<Vec<_>>());
            stream.kept = stream.kept + early - again;
            self.waiting = self.waiting + again - early;
        }
        stream.reader += 1;
        stream.is_read = true;
        Ok(stream.reader)
    }

    /// Takes the next message of a stream.
    pub(super) fn take(&mut self, scope: &Scope, reader: u64) -> Next {
        let Some(stream) = self.streams.get_mut(scope).filter(|stream| stream.reader == reader) else {
            return Next::Replaced;
        };
        let Some(message) = stream.messages.get(stream.delivered) else { return Next::Nothing };
        let (id, line) = (message.id.clone(), message.line.clone());
        stream.delivered += 1;
        stream.kept += line.len();
        self.waiting -= line.len();
        while stream.kept > KEPT && stream.delivered > 1 {
            let Some(message) = stream.messages.pop_front() else { break };
            stream.delivered -= 1;
            stream.kept -= message.line.len();
            stream.dropped = message.number;
        }
        Next::Message { id, line }
    }

    /// Ends the reading of a stream. Its messages wait for the next reader.
    pub(super) fn close(&mut self, scope: &Scope, reader: u64) {
        if let Some(stream) = self.streams.get_mut(scope).filter(|stream| stream.reader == reader) {
            stream.is_read = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing(text: &str, session: Option<&str>, seq: u64) -> Outgoing {
        Outgoing { line: format!("{text}\n").into_bytes(), session: session.map(Into::into), seq }
    }

    fn all(outbox: &mut Outbox, scope: &Scope, reader: u64) -> Vec<(String, String)> {
        std::iter::from_fn(|| match outbox.take(scope, reader) {
            Next::Message { id, line } => Some((id, String::from_utf8(line.to_vec()).unwrap())),
            Next::Nothing | Next::Replaced => None,
        })
        .collect()
    }

    fn pair(id: &str, line: &str) -> (String, String) {
        (id.to_owned(), line.to_owned())
    }

    #[test]
    fn a_reader_that_lost_its_connection_continues_after_the_message_that_it_names() {
        let mut outbox = Outbox::new("c");
        for (number, text) in ["a", "b\r", "c"].into_iter().enumerate() {
            outbox.push(outgoing(text, Some("k"), number as u64 * 10));
        }
        let reader = outbox.open(None, None).unwrap();
        let expected = [pair("c.1;k=0", "a"), pair("c.2;k=10", "b"), pair("c.3;k=20", "c")];
        assert_eq!(all(&mut outbox, &None, reader), expected);
        assert_eq!(outbox.waiting, 0);
        let again = outbox.open(None, Some(1)).unwrap();
        assert_eq!(outbox.take(&None, reader), Next::Replaced);
        assert_eq!(all(&mut outbox, &None, again), expected[1..]);
        outbox.close(&None, reader);
        assert!(outbox.is_read(), "an old reader cannot end a new one");
        outbox.close(&None, again);
        assert!(!outbox.is_read());
        // Messages that wait are skipped if the client has them.
        outbox.push(outgoing("d", None, 0));
        outbox.push(outgoing("e", None, 0));
        let last = outbox.open(None, Some(4)).unwrap();
        assert_eq!(all(&mut outbox, &None, last), [pair("c.5;k=20", "e")]);
        assert_eq!(outbox.waiting, 0);
    }

    #[test]
    fn messages_of_a_session_take_its_stream_from_its_first_reader_on() {
        let mut outbox = Outbox::new("c");
        outbox.push(outgoing("early", Some("k"), 1));
        let one = outbox.open(Some("k".into()), None).unwrap();
        outbox.push(outgoing("own", Some("k"), 2));
        outbox.push(outgoing("other", Some("x"), 3));
        let main = outbox.open(None, None).unwrap();
        assert_eq!(all(&mut outbox, &Some("k".into()), one), [pair("c.2;k=2", "own")]);
        assert_eq!(all(&mut outbox, &None, main), [pair("c.1;k=1", "early"), pair("c.3;k=1;x=3", "other")]);
        assert!(outbox.knows("x") && !outbox.knows("y"));
    }

    #[test]
    fn memory_is_bounded_and_a_position_before_it_is_refused() {
        let mut outbox = Outbox::new("c");
        let long = "x".repeat(1 << 20);
        while outbox.has_room() {
            outbox.push(outgoing(&long, None, 0));
        }
        assert_eq!(outbox.number, 4);
        let reader = outbox.open(None, None).unwrap();
        assert_eq!(all(&mut outbox, &None, reader).len(), 4);
        assert!(outbox.has_room());
        assert_eq!(outbox.open(None, Some(1)), Err(Gone));
        let again = outbox.open(None, Some(2)).unwrap();
        assert_eq!(all(&mut outbox, &None, again).len(), 2);
        // One message longer than the limit is still delivered, and kept.
        outbox.push(outgoing(&long.repeat(3), None, 0));
        assert_eq!(all(&mut outbox, &None, again).len(), 1);
        assert_eq!(outbox.open(None, Some(4)), Ok(again + 1));
    }
}
