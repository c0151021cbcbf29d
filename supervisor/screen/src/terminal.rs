//! Makes text safe for a terminal, and paints it.
//!
//! Text from agents and tools is not trusted: it could move the cursor, set the title, or hide the meaning of a
//! question. On a terminal every control character is replaced by its control picture. Other outputs receive
//! the text unchanged, as data.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

/// Style of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStyle {
    Dim,
    Bold,
    Good,
    Bad,
    Ask,
}

/// Standard output or standard error: whether it is a terminal, and whether to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    pub terminal: bool,
    pub colour: bool,
}

impl Screen {
    pub fn stdout() -> Self {
        Self::of(io::stdout().is_terminal())
    }

    pub fn stderr() -> Self {
        Self::of(io::stderr().is_terminal())
    }

    fn of(terminal: bool) -> Self {
        // https://no-color.org: the variable is set and not empty.
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        Self { terminal, colour: terminal && !refused && !dumb }
    }

    /// Returns text of any length, safe for this output.
    pub fn text(self, text: &str) -> Cow<'_, str> {
        if self.terminal { harmless(text) } else { Cow::Borrowed(text) }
    }

    /// Returns text on one line, safe for this output.
    pub fn line(self, text: &str) -> String {
        let text: String = text.chars().map(|c| if c == '\n' || c == '\t' { ' ' } else { c }).collect();
        self.text(text.trim()).into_owned()
    }

    pub fn paint(self, look: TextStyle, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match look {
            TextStyle::Dim => "2",
            TextStyle::Bold => "1",
            TextStyle::Good => "32",
            TextStyle::Bad => "31",
            TextStyle::Ask => "33",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Returns text that is safe for standard error.
pub fn for_stderr(text: &str) -> Cow<'_, str> {
    Screen { terminal: io::stderr().is_terminal(), colour: false }.text(text)
}

/// Returns the width of standard output, if it is a terminal.
pub fn columns() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0)
}

/// Reports whether a terminal acts on the character instead of showing it. This includes the marks that reorder
/// text (Unicode Bidirectional Algorithm, UAX #9), which could disguise a question.
fn is_active(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the longest prefix of a line that fits into a number of columns, safe for any output, including
/// files read on a terminal later. Colours and cursor movements (ECMA-48 control sequences) are removed. Other
/// control characters become pictures.
pub fn excerpt(line: &str, columns: usize) -> String {
    let mut text = String::new();
    let mut left = line;
    while let Some(at) = left.find("\x1b[") {
        text.push_str(&left[..at]);
        let sequence = &left[at + 2..];
        // Parameters and intermediates are 0x20 to 0x3f, the final byte is 0x40 to 0x7e (ECMA-48, 5.4).
        let end = sequence.find(|c: char| !(' '..='?').contains(&c));
        let end = end.filter(|&end| sequence[end..].starts_with(|c: char| ('@'..='~').contains(&c)));
        if let Some(end) = end {
            left = &sequence[end + 1..];
        } else {
            text.push('\u{241b}');
            left = &left[at + 1..];
        }
    }
    text.push_str(left);
    let text = harmless(text.trim_end()).replace(['\n', '\t'], " ");
    crate::table::shorten(&text, columns, crate::table::Cut::End)
}

pub fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return Cow::Borrowed(text);
    }
    let text = text.replace("\r\n", "\n");
    Cow::Owned(
        text.chars()
            .map(|c| match c {
                '\u{7f}' => '\u{2421}',
                // Control pictures are in the order of the control characters.
                c if is_active(c) && c < ' ' => {
                    char::from_u32(0x2400 + u32::from(c)).unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                c if is_active(c) => char::REPLACEMENT_CHARACTER,
                c => c,
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMINAL: Screen = Screen { terminal: true, colour: true };
    const FILE: Screen = Screen { terminal: false, colour: false };

    #[test]
    fn an_agent_cannot_move_the_cursor_set_the_title_or_turn_text_around() {
        assert_eq!(TERMINAL.text("a\x1b[2Jb\x1b]0;title\x07c"), "a␛[2Jb␛]0;title␇c");
        assert_eq!(TERMINAL.text("\u{9b}31m \u{7f} \u{202e}fdp"), "\u{fffd}31m \u{2421} \u{fffd}fdp");
        assert_eq!(TERMINAL.text("one\r\ntwo\tthree\rfour"), "one\ntwo\tthree␍four");
    }

    #[test]
    fn what_is_not_for_a_terminal_is_left_as_it_is() {
        assert_eq!(FILE.text("a\x1b[2J\r\n"), "a\x1b[2J\r\n");
        assert_eq!(FILE.paint(TextStyle::Bad, "no"), "no");
    }

    #[test]
    fn an_excerpt_is_one_short_line_without_colours_and_with_no_other_control_character() {
        assert_eq!(excerpt("\x1b[1;31mError:\x1b[0m no\tkey\x07 \x1b]0;t\x1b[", 40), "Error: no key␇ ␛]0;t␛[");
        assert_eq!(excerpt("\x1b[é \x1b[31", 40), "␛[é ␛[31");
        assert_eq!(excerpt("a\nb\r\nc", 40), "a b c");
        assert_eq!(excerpt(&"日".repeat(30), 11), format!("{}…", "日".repeat(5)));
        assert_eq!(excerpt("   indented  ", 40), "   indented");
    }

    #[test]
    fn a_title_stays_on_one_line() {
        assert_eq!(TERMINAL.line("rm -rf /\n\n  harmless "), "rm -rf /    harmless");
    }
}
