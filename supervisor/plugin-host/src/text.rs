//! Texts of plugins that people read: nothing in them moves a cursor, forges a line or turns the direction of writing.

/// One line, cut to so many bytes, in which what ends a line or is no plain text is written as it would be in a program: `\n`, `\u{1b}`.
pub(crate) fn escaped(text: &str, most: usize) -> String {
    let text = text.trim_end_matches(['\n', '\r']);
    let escape = |c: char| match c {
        _ if disturbs(c) => c.escape_unicode().to_string(),
        '\n' | '\r' | '\t' => c.escape_default().to_string(),
        c if c.is_control() => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    let mut line = String::new();
    for c in text.chars() {
        let next = escape(c);
        if line.len() + next.len() > most {
            line.push_str(" ...");
            break;
        }
        line.push_str(&next);
    }
    line
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

/// Whether nothing in it disturbs a terminal or a log.
pub(crate) fn is_line(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || disturbs(c))
}

fn plain(c: char) -> char {
    if c.is_control() || disturbs(c) { char::REPLACEMENT_CHARACTER } else { c }
}

/// Line and paragraph separators, and marks that change the direction of what follows.
fn disturbs(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
        assert_eq!(escaped("a\tb\r\nc\n", 100), "a\\tb\\r\\nc");
        assert_eq!(escaped("\x1b[31mred\u{202e}\u{85}", 100), "\\u{1b}[31mred\\u{202e}\\u{85}");
        assert_eq!(escaped("C:\\x \"é\"", 100), "C:\\x \"é\"", "what is plain stays as it is");
        assert_eq!(line(" one\ntwo\tthree\r\n ", 100), "one two three");
        assert_eq!(line("a\u{202e}b\u{2028}c\0", 100), "a\u{fffd}b\u{fffd}c\u{fffd}");
    }

    #[test]
    fn a_text_is_cut_at_a_character() {
        assert_eq!(escaped("é\n\n\x1b", 4), "é\\n ...");
        assert_eq!(line("ééé", 4), "éé ...");
        assert_eq!(line("ééé", 5), "éé ...");
        assert_eq!(line("ééé", 6), "ééé");
        assert_eq!(shown("a\"\n"), r#""a\"\n""#);
        assert!(shown(&"a".repeat(5000)).len() < 220);
    }
}
