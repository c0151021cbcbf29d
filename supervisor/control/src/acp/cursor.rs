//! Positions in a client's stream: the ids of its events, which come back in `Last-Event-ID`.

use std::fmt;
use std::str::FromStr;

/// Position after one event. Written as `CONNECTION.NUMBER;SESSION=SEQ;SESSION=SEQ`.
///
/// Within a connection the number names the event. Afterwards the sequence numbers lead into the journals of the
/// stream's sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) connection: String,
    pub(super) number: u64,
    /// The last record of each session that the client has.
    pub(super) sessions: Vec<(String, u64)>,
}

/// The text is no position.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoCursor;

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Self, NoCursor> {
        let mut parts = text.split(';');
        let (connection, number) = parts.next().and_then(|event| event.split_once('.')).ok_or(NoCursor)?;
        let sessions = parts.map(|part| {
            let (session, seq) = part.split_once('=')?;
            Some((session.to_owned(), seq.parse().ok()?))
        });
        let sessions = sessions.collect::<Option<_>>().ok_or(NoCursor)?;
        let number = number.parse().map_err(|_| NoCursor)?;
        Ok(Self { connection: connection.to_owned(), number, sessions })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.connection, self.number)?;
        self.sessions.iter().try_for_each(|(session, seq)| write!(formatter, ";{session}={seq}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written() {
        let sessions = vec![("k3m".to_owned(), 120), ("x9".to_owned(), 0)];
        let cursor = Cursor { connection: "ab".to_owned(), number: 7, sessions };
        assert_eq!(cursor.to_string(), "ab.7;k3m=120;x9=0");
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        assert_eq!("ab.1".parse::<Cursor>().unwrap().sessions, []);
        for text in ["", "ab", "ab.", "ab.x", "ab.1;", "ab.1;k3m", "ab.1;k3m=", "ab.1;k3m=-1", "7"] {
            assert_eq!(text.parse::<Cursor>(), Err(NoCursor), "{text}");
        }
    }
}
