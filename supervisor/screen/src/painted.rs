//! Measures and divides text that this program has painted.
//!
//! The only control sequences in such text are styles (SGR, `ESC [ … m`). Text of an agent must pass
//! [`crate::terminal::harmless`] before it is painted.

use unicode_width::UnicodeWidthChar as _;

const RESET: &str = "\x1b[0m";

/// Piece of painted text.
enum Piece<'a> {
    Style(&'a str),
    Char(char),
}

/// Divides painted text into styles and characters.
fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.starts_with("\x1b[")
            && let Some(end) = rest.find('m')
        {
            let (style, after) = rest.split_at(end + 1);
            rest = after;
            return Some(Piece::Style(style));
        }
        let c = rest.chars().next()?;
        rest = &rest[c.len_utf8()..];
        Some(Piece::Char(c))
    })
}

/// Returns the number of columns that the text takes on a terminal.
pub fn width(text: &str) -> usize {
    let columns = pieces(text).map(|piece| match piece {
        Piece::Style(_) => 0,
        Piece::Char(c) => c.width().unwrap_or_default(),
    });
    columns.sum()
}

/// Returns the text without its styles.
pub fn plain(text: &str) -> String {
    let chars = pieces(text).filter_map(|piece| match piece {
        Piece::Style(_) => None,
        Piece::Char(c) => Some(c),
    });
    chars.collect()
}

/// Divides one line into rows of at most this width. Each row begins with the styles that are in force.
pub fn rows(line: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(2);
    let mut rows = vec![String::new()];
    let (mut used, mut styles) = (0, String::new());
    for piece in pieces(line) {
        match piece {
            Piece::Style(style) => {
                if style == RESET {
                    styles.clear();
                } else {
                    styles.push_str(style);
                }
                if let Some(row) = rows.last_mut() {
                    row.push_str(style);
                }
            }
            Piece::Char(c) => {
                let wide = c.width().unwrap_or_default();
                if used + wide > columns {
                    if let Some(row) = rows.last_mut().filter(|_| !styles.is_empty()) {
                        row.push_str(RESET);
                    }
                    rows.push(styles.clone());
                    used = 0;
                }
                used += wide;
                if let Some(row) = rows.last_mut() {
                    row.push(c);
                }
            }
        }
    }
    if let Some(row) = rows.last_mut().filter(|_| !styles.is_empty()) {
        row.push_str(RESET);
    }
    rows
}

/// Divides one line into rows of at most this width, at spaces where possible. The space at the end of a row is left
/// out, so a text whose spaces matter needs [`rows`].
pub fn words(line: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(2);
    let (mut rows, mut row) = (Vec::new(), String::new());
    let (mut used, mut styles, mut has_word) = (0, String::new(), false);
    // The place behind the last space between words, with the styles and the width there.
    let mut gap: Option<(usize, String, usize)> = None;
    for piece in pieces(line) {
        match piece {
            Piece::Style(style) => {
                if style == RESET {
                    styles.clear();
                } else {
                    styles.push_str(style);
                }
                row.push_str(style);
            }
            Piece::Char(c) => {
                let wide = c.width().unwrap_or_default();
                if used + wide > columns {
                    let (rest, styles_there) = match gap.take() {
                        Some((at, styles_there, before)) if c != ' ' => {
                            used -= before;
                            (row.split_off(at), styles_there)
                        }
                        _ => {
                            (used, has_word) = (0, false);
                            (String::new(), styles.clone())
                        }
                    };
                    row.truncate(row.trim_end_matches(' ').len());
                    if !styles_there.is_empty() {
                        row.push_str(RESET);
                    }
                    rows.push(std::mem::replace(&mut row, styles_there + &rest));
                    if c == ' ' {
                        continue;
                    }
                }
                used += wide;
                row.push(c);
                has_word |= c != ' ';
                if c == ' ' && has_word {
                    gap = Some((row.len(), styles.clone(), used));
                }
            }
        }
    }
    if !styles.is_empty() {
        row.push_str(RESET);
    }
    rows.push(row);
    rows
}

/// Returns the beginning of a line that fits into the width. An ellipsis replaces the rest.
pub fn clip(line: &str, columns: usize) -> String {
    if width(line) <= columns {
        return line.to_owned();
    }
    let first = rows(line, columns.saturating_sub(1)).into_iter().next().unwrap_or_default();
    match first.strip_suffix(RESET) {
        Some(styled) => format!("{styled}…{RESET}"),
        None => format!("{first}…"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_take_no_columns_and_begin_again_in_each_row() {
        let text = "ab\x1b[1mcd日\x1b[0me";
        assert_eq!((width(text), plain(text).as_str()), (7, "abcd日e"));
        assert_eq!(rows(text, 3), ["ab\x1b[1mc\x1b[0m", "\x1b[1md日\x1b[0m", "e"]);
        assert_eq!(rows("", 3), [""]);
    }

    #[test]
    fn words_stay_whole_if_they_fit_into_a_row() {
        let cases: [(&str, usize, &[&str]); 9] = [
            ("one two three", 7, &["one two", "three"]),
            ("one two three", 8, &["one two", "three"]),
            ("one twothree", 6, &["one", "twothr", "ee"]),
            ("abcdefgh", 3, &["abc", "def", "gh"]),
            ("    indented text", 12, &["    indented", "text"]),
            ("日本 語日本", 5, &["日本", "語日", "本"]),
            ("a\x1b[1mb cd\x1b[0m e", 4, &["a\x1b[1mb\x1b[0m", "\x1b[1mcd\x1b[0m e"]),
            ("\x1b[2mab cd", 2, &["\x1b[2mab\x1b[0m", "\x1b[2mcd\x1b[0m"]),
            ("", 4, &[""]),
        ];
        for (line, columns, expected) in cases {
            assert_eq!(words(line, columns), expected, "{line:?}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_ends_with_an_ellipsis() {
        assert_eq!(clip("abc", 3), "abc");
        assert_eq!(clip("abcd", 3), "ab…");
        assert_eq!(clip("\x1b[2mabcd\x1b[0m", 3), "\x1b[2mab…\x1b[0m");
    }
}
