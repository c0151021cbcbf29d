//! Standard input and output as lines, each on a thread of its own.
//!
//! A terminal or a pipe cannot be read without blocking on every platform. A thread that waits for the editor does not
//! hold up the rest, and ends with the process.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread::{self, JoinHandle};

use agentd_api::acp::Outgoing;
use tokio::sync::mpsc;

/// Maximum length of a line, in bytes. A prompt can hold files and images.
const MAX_LINE: usize = 64 << 20;
/// Number of lines that wait to be handled or written.
const QUEUE: usize = 256;

/// Line of the editor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Complete(Vec<u8>),
    /// The line was longer than allowed, and was skipped.
    TooLong,
}

/// Reads lines until the input ends.
pub(super) fn read(input: impl Read + Send + 'static) -> io::Result<mpsc::Receiver<Line>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    thread::Builder::new().name("input".into()).spawn(move || {
        let mut input = BufReader::with_capacity(64 << 10, input);
        while let Ok(Some(line)) = next(&mut input, MAX_LINE) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Writes lines until every sender is dropped, or the output is closed.
pub(super) fn write(mut output: impl Write + Send + 'static) -> io::Result<(mpsc::Sender<Outgoing>, JoinHandle<()>)> {
    let (sender, mut receiver) = mpsc::channel::<Outgoing>(QUEUE);
    let thread = thread::Builder::new().name("output".into()).spawn(move || {
        while let Some(message) = receiver.blocking_recv() {
            if output.write_all(&message.line).and_then(|()| output.flush()).is_err() {
                return;
            }
        }
    })?;
    Ok((sender, thread))
}

/// Returns the next line that is not blank, without its newline. A last line without a newline counts.
fn next(input: &mut impl BufRead, most: usize) -> io::Result<Option<Line>> {
    let (mut line, mut is_too_long) = (Vec::new(), false);
    loop {
        let available = match input.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        is_too_long |= line.len() + part.len() > most;
        if is_too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(part);
        }
        let (used, is_end) = (end.map_or(part.len(), |end| end + 1), available.is_empty());
        input.consume(used);
        if end.is_none() && !is_end {
            continue;
        }
        if is_too_long {
            return Ok(Some(Line::TooLong));
        }
        if !line.trim_ascii().is_empty() {
            return Ok(Some(Line::Complete(line)));
        }
        if is_end {
            return Ok(None);
        }
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_blank_ones_skipped_and_long_ones_named() {
        let mut input = BufReader::with_capacity(3, &b"one\n\n \r\ntoo long a line\ntwo\r\nend"[..]);
        let mut lines = Vec::new();
        while let Some(line) = next(&mut input, 8).unwrap() {
            lines.push(line);
        }
        let complete = |text: &str| Line::Complete(text.as_bytes().to_vec());
        assert_eq!(lines, [complete("one"), Line::TooLong, complete("two\r"), complete("end")]);
    }
}
