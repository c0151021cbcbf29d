//! The records of the feed's own journal. The kind of a record is the kind of the event.

use std::borrow::Cow;

use agentd_api::SessionId;
use agentd_api::event::Envelope;
use agentd_journal::Line;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Data of a record: a reference (`s` and `q`), or an event as a whole (`d`).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stored<'a> {
    /// Session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) s: Option<SessionId>,
    /// Sequence number in the session's journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) q: Option<u64>,
    /// Data of an event that no journal of a session has.
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub(crate) d: Option<&'a RawValue>,
}

/// A record that was read.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Number of the event in the era.
    pub(crate) number: u64,
    pub(crate) kind: String,
    pub(crate) session: Option<SessionId>,
    pub(crate) content: Content,
}

/// Content of an event.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// The record with this sequence number in the session's journal.
    Record(u64),
    /// The time and the data.
    Whole { time: String, data: Box<RawValue> },
}

/// A line of the feed's journal is not an event.
#[derive(Debug, thiserror::Error)]
#[error("record {number} of the feed is not an event")]
pub(crate) struct NoEntry {
    pub(crate) number: u64,
}

impl Entry {
    pub(crate) fn of(line: Line<'_>) -> Result<Self, NoEntry> {
        let bad = |_| NoEntry { number: line.seq };
        let parts = parts(line).map_err(bad)?;
        let stored: Stored<'_> = serde_json::from_slice(parts.data).map_err(bad)?;
        let content = match (stored.q, stored.d) {
            (Some(seq), _) if stored.s.is_some() => Content::Record(seq),
            (_, Some(data)) => Content::Whole { time: parts.time.into_owned(), data: data.to_owned() },
            _ => return Err(NoEntry { number: line.seq }),
        };
        Ok(Self { number: line.seq, kind: parts.kind.into_owned(), session: stored.s, content })
    }
}

/// The parts of a line of any journal.
pub(crate) struct LineParts<'a> {
    pub(crate) time: Cow<'a, str>,
    pub(crate) kind: Cow<'a, str>,
    pub(crate) data: &'a [u8],
}

/// Splits a line, without parsing it if it has the usual form.
pub(crate) fn parts(line: Line<'_>) -> Result<LineParts<'_>, serde_json::Error> {
    if let Some(parts) = line.parts() {
        return Ok(LineParts { time: parts.time.into(), kind: parts.kind.into(), data: parts.data });
    }
    let envelope: Envelope<'_> = serde_json::from_slice(line.bytes)?;
    Ok(LineParts {
        time: format!("{:.6}", envelope.time).into(),
        kind: envelope.kind,
        data: envelope.data.get().as_bytes(),
    })
}

/// Writes the line of an event, as [`agentd_api::feed::FeedEvent`] has it.
pub(crate) fn line(
    cursor: u64,
    session: Option<&SessionId>,
    seq: Option<u64>,
    (time, kind): (&str, &str),
    data: &[u8],
) -> Vec<u8> {
    let mut line = Vec::with_capacity(data.len() + kind.len() + 128);
    line.extend_from_slice(b"{\"cursor\":");
    line.extend_from_slice(cursor.to_string().as_bytes());
    if let Some(session) = session {
        line.extend_from_slice(b",\"session\":\"");
        line.extend_from_slice(session.as_str().as_bytes());
        line.push(b'"');
    }
    if let Some(seq) = seq {
        line.extend_from_slice(b",\"seq\":");
        line.extend_from_slice(seq.to_string().as_bytes());
    }
    line.extend_from_slice(b",\"time\":\"");
    line.extend_from_slice(time.as_bytes());
    line.extend_from_slice(b"\",\"kind\":");
    line.extend_from_slice(&serde_json::to_vec(kind).unwrap_or_default());
    line.extend_from_slice(b",\"data\":");
    line.extend_from_slice(data);
    line.push(b'}');
    line
}

#[cfg(test)]
mod tests {
    use agentd_api::feed::FeedEvent;

    use super::*;

    #[test]
    fn a_line_reads_back_as_an_event() {
        let id: SessionId = "abcdefghjkmn".parse().unwrap();
        let text = line(7, Some(&id), Some(3), ("2026-01-01T00:00:00.000000Z", "odd \"kind\""), b"{\"a\":1}");
        let event: FeedEvent = serde_json::from_slice(&text).unwrap();
        assert_eq!((event.cursor, event.session, event.seq), (7, Some(id), Some(3)));
        assert_eq!((event.kind.as_str(), event.data["a"].as_u64()), ("odd \"kind\"", Some(1)));
        let text = line(8, None, None, ("2026-01-01T00:00:00.000000Z", "daemon.stopping"), b"{}");
        let event: FeedEvent = serde_json::from_slice(&text).unwrap();
        assert_eq!((event.cursor, event.session, event.seq), (8, None, None));
    }
}
