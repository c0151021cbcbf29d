//! Texts of plugins that people read: nothing in them moves a cursor, forges a line or turns the direction of writing.

/// Cut to so many bytes, and without what is no plain text; line ends and tabulators stay.
pub(crate) fn lines(text: &str, most: usize) -> String {
    cut(text.chars().map(|c| if matches!(c, '\n' | '\t') { c } else { plain(c) }), most)
}

/// One line: the same, and what ends a line is a space.
pub(crate) fn line(text: &str, most: usize) -> String {
    cut(text.trim().chars().map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { plain(c) }), most)
}

/// In quotes and on one line, and not longer than is needed to know it again.
pub(crate) fn shown(text: &str) -> String {
    let shown = cut(text.chars(), 200);
    format!("{shown:?}")
}

fn plain(c: char) -> char {
    // Line and paragraph separators, and marks that change the direction of what follows.
    let disturbs = matches!(c, '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || disturbs { char::REPLACEMENT_CHARACTER } else { c }
}

fn cut(chars: impl Iterator<Item = char>, most: usize) -> String {
    let mut text = String::new();
    for c in chars {
        if text.len() + c.len_utf8() > most {
            text.push_str(" ...");
            break;
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_move_the_cursor_or_turn_the_direction() {
        assert_eq!(lines("a\tb\nc", 100), "a\tb\nc");
        assert_eq!(lines("\x1b[31mred\r", 100), "\u{fffd}[31mred\u{fffd}");
        assert_eq!(line(" one\ntwo\tthree\r\n ", 100), "one two three");
        assert_eq!(line("a\u{202e}b\u{2028}c\0", 100), "a\u{fffd}b\u{fffd}c\u{fffd}");
    }

    #[test]
    fn a_text_is_cut_at_a_character() {
        assert_eq!(line("ééé", 4), "éé ...");
        assert_eq!(line("ééé", 5), "éé ...");
        assert_eq!(line("ééé", 6), "ééé");
        assert_eq!(shown("a\"\n"), r#""a\"\n""#);
        assert!(shown(&"a".repeat(5000)).len() < 220);
    }
}
