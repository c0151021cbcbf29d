//! Splits the body of a stream into lines.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::client::broken;
use crate::error::Error;

/// Maximum length of a line, in bytes. A record holds at most one line of the agent, whose length the keeper
/// bounds.
const MAX_LINE: usize = 256 << 20;

/// Body of a stream of documents, one a line (NDJSON).
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    lines: Lines,
    call: String,
}

impl Body {
    pub(crate) fn new(incoming: Incoming, call: String) -> Self {
        Self { incoming, lines: Lines::default(), call }
    }

    /// Returns the next line without its newline; `None` if the daemon ended the stream in order. Empty lines, and an
    /// incomplete line at the end, are left out. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`] if the connection ended in the middle of the answer, and [`Error::TooLong`] for a line of more
    /// than 256 MiB.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let line = self.lines.next();
            if let Some(line) = line.map_err(|TooLong| Error::TooLong { call: self.call.clone(), limit: MAX_LINE })? {
                return Ok(Some(line));
            }
            match self.incoming.frame().await {
                None => return Ok(None),
                Some(Err(source)) => return Err(broken(self.call.clone(), source)),
                Some(Ok(frame)) => self.lines.push(&frame.into_data().unwrap_or_default()),
            }
        }
    }
}

/// A line is longer than [`MAX_LINE`].
struct TooLong;

/// Splits a body into lines. An incomplete line at the end is dropped.
#[derive(Debug, Default)]
struct Lines {
    buffer: Vec<u8>,
    /// Length of the searched part of the buffer.
    searched: usize,
    taken: usize,
}

impl Lines {
    fn push(&mut self, bytes: &Bytes) {
        self.buffer.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete line that is not empty.
    fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        loop {
            let Some(length) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                if self.searched - self.taken > MAX_LINE {
                    return Err(TooLong);
                }
                return Ok(None);
            };
            let end = self.searched + length;
            let line = self.buffer[self.taken..end].trim_ascii().to_vec();
            self.taken = end + 1;
            self.searched = self.taken;
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_wherever_the_pieces_end() {
        let text = b"one\n\ntwo\nthree";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let mut seen = Vec::new();
            for piece in text.chunks(size) {
                lines.push(&Bytes::copy_from_slice(piece));
                while let Some(line) = lines.next().ok().unwrap() {
                    seen.push(String::from_utf8(line).unwrap());
                }
            }
            assert_eq!(seen, ["one", "two"], "in pieces of {size}");
        }
    }
}
