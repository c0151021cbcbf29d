//! Minimal terminal emulation: answers a program's terminal queries, and strips control sequences from its output.
//!
//! This module displays nothing. It does not answer an unknown query, like a terminal that does not know it.

/// Maximum length in bytes of a control sequence; every known query is shorter.
const LONGEST: usize = 64;

/// Parser for queries in the output of a program.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    /// Bytes of an incomplete control sequence.
    begun: Vec<u8>,
    /// Text of the cursor's line.
    line: Vec<u8>,
}

impl Screen {
    /// Parses a piece of output and returns the terminal's answers.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        for &byte in piece {
            if self.begun.is_empty() && byte != 0x1b {
                match byte {
                    b'\n' | b'\r' => self.line.clear(),
                    _ if self.line.len() < LONGEST * 4 => self.line.push(byte),
                    _ => {}
                }
                continue;
            }
            if byte == 0x1b && !self.begun.starts_with(b"\x1b]") && !self.begun.starts_with(b"\x1bP") {
                self.begun.clear();
            }
            self.begun.push(byte);
            if let Some(answer) = answer(&self.begun) {
                answers.extend_from_slice(answer);
            }
            if is_whole(&self.begun) || self.begun.len() > LONGEST {
                self.begun.clear();
            }
        }
        answers
    }

    /// Reports whether the cursor's line ends like a prompt.
    pub(crate) fn shows_prompt(&self) -> bool {
        self.line.trim_ascii_end().last().is_some_and(|last| b"$#%".contains(last))
    }
}

/// Returns the answer of a VT220 terminal to a query.
fn answer(sequence: &[u8]) -> Option<&'static [u8]> {
    match sequence {
        b"\x1b[c" | b"\x1b[0c" => Some(b"\x1b[?62;22c"),
        b"\x1b[>c" | b"\x1b[>0c" => Some(b"\x1b[>1;10;0c"),
        b"\x1b[5n" => Some(b"\x1b[0n"),
        b"\x1b[6n" => Some(b"\x1b[1;1R"),
        b"\x1b]10;?\x07" | b"\x1b]10;?\x1b\\" => Some(b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\"),
        b"\x1b]11;?\x07" | b"\x1b]11;?\x1b\\" => Some(b"\x1b]11;rgb:0000/0000/0000\x1b\\"),
        _ => None,
    }
}

/// Reports whether a sequence is complete (ECMA-48). `ESC [` ends with a final byte; `ESC ]` and `ESC P` end with BEL
/// or ST. Other sequences end with the byte after their intermediate bytes.
fn is_whole(sequence: &[u8]) -> bool {
    match sequence {
        [0x1b] => false,
        [0x1b, b'[', rest @ ..] => rest.last().is_some_and(|last| (0x40..=0x7e).contains(last)),
        [0x1b, b']' | b'P' | b'_' | b'^' | b'X', rest @ ..] => rest.ends_with(b"\x07") || rest.ends_with(b"\x1b\\"),
        [0x1b, rest @ ..] => rest.last().is_some_and(|last| !(0x20..=0x2f).contains(last)),
        _ => true,
    }
}

/// Returns the text without control sequences and without the lines that contain the typed command.
pub(crate) fn plain(bytes: &[u8], typed: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    let mut sequence: Vec<u8> = Vec::new();
    for &byte in bytes {
        if sequence.is_empty() && byte != 0x1b {
            if byte == b'\n' || byte == b'\t' || !byte.is_ascii_control() {
                text.push(byte);
            }
            continue;
        }
        sequence.push(byte);
        if is_whole(&sequence) || sequence.len() > 4096 {
            sequence.clear();
        }
    }
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.filter(|line| memchr::memmem::find(line, typed).is_none()).flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_answered_once_for_every_split_of_the_bytes() {
        let output = b"hi\x1b[31mred\x1b[c\x1b]11;?\x07\x1b[6n\x1b[?25h\x1bP+q544e\x1b\\\x1b(B$ ";
        let expected = b"\x1b[?62;22c\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[1;1R".to_vec();
        for size in [1, 3, 100] {
            let mut screen = Screen::default();
            let answers: Vec<u8> = output.chunks(size).flat_map(|piece| screen.take(piece)).collect();
            assert_eq!(answers, expected, "{size}");
            assert!(screen.shows_prompt());
        }
    }

    #[test]
    fn an_endless_sequence_takes_no_memory_and_blocks_no_later_query() {
        let mut screen = Screen::default();
        screen.take(b"\x1b]");
        for _ in 0..1000 {
            screen.take(&[b'x'; 100]);
            assert!(screen.begun.len() <= LONGEST + 1 && screen.line.len() <= LONGEST * 4);
        }
        assert_eq!(screen.take(b"\x1b[c"), b"\x1b[?62;22c");
    }

    #[test]
    fn a_message_has_no_control_sequences_and_no_typed_command() {
        let output = b"\x1b]0;title\x07\x1b[1mno luck\x1b[0m\r\n$  /x/agentd-keeper dump-environment /x\r\nbye\r\n";
        assert_eq!(plain(output, b"dump-environment"), b"no luck\nbye\n");
    }
}
