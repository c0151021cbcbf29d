//! Makes texts of plugins safe to display: no cursor movement, no forged lines, no change of writing direction.

/// Returns the text on one line of at most `most` bytes. Line breaks and other special characters are escaped
/// as in Rust: `\n`, `\u{1b}`.
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

/// Returns the text on one line of at most `most` bytes. Line breaks become spaces, other special characters
/// become U+FFFD.
pub(crate) fn line(text: &str, most: usize) -> String {
    cut(text.trim().chars().map(|c| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { plain(c) }), most)
}

/// Returns the text in quotes on one line, cut after 200 bytes.
pub(crate) fn shown(text: &str) -> String {
    let shown = cut(text.chars(), 200);
    format!("{shown:?}")
}

/// Reports whether the text has no character that disturbs a terminal or a log.
pub(crate) fn is_line(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || disturbs(c))
}

fn plain(c: char) -> char {
    if c.is_control() || disturbs(c) { char::REPLACEMENT_CHARACTER } else { c }
}

/// Reports whether the character is a line or paragraph separator, or changes the writing direction.
fn disturbs(c: char) -> bool {
    let separates = matches!(c, '\u{2028}' | '\u{2029}');
    let turns = matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    separates || turns
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
