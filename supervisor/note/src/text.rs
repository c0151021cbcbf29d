//! Makes texts from agents, files and programs safe for a note: each one line, printable and of limited length.

/// Maximum number of characters of one name or title, without its escapes.
pub const MAX_TEXT: usize = 240;
/// Maximum number of characters of a path, an address or a hint, without its escapes.
pub const MAX_LONG: usize = 4096;

/// Returns a name unchanged if it has only usual characters. Any other name is quoted.
pub fn name(name: &str) -> String {
    usual(name, MAX_TEXT)
}

/// Returns a path or an address, as [`name`] does with a name.
pub fn path(path: &str) -> String {
    usual(path, MAX_LONG)
}

fn usual(text: &str, most: usize) -> String {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=~#&?".contains(c);
    if !text.is_empty() && text.len() <= most && text.chars().all(is_usual) {
        return text.to_owned();
    }
    format!("\"{}\"", escaped(text, true, most))
}

/// Returns the text in double quotes. Escapes quotes, control characters, and characters that are invisible or
/// change the direction of writing. A longer text ends with `…`.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text, true, MAX_TEXT))
}

/// Returns a hint in double quotes, as [`quoted`] does with a title.
pub fn hint(hint: &str) -> String {
    format!("\"{}\"", escaped(hint, true, MAX_LONG))
}

/// Returns agentd's own words without quotes, escaped as in [`quoted`].
pub fn line(text: &str) -> String {
    escaped(text, false, MAX_LONG)
}

fn escaped(text: &str, is_quoted: bool, most: usize) -> String {
    let mut safe = String::new();
    let mut characters = text.chars();
    for character in characters.by_ref().take(most) {
        match character {
            '\'' => safe.push('\''),
            '"' | '\\' if !is_quoted => safe.push(character),
            // `escape_debug` escapes what Unicode calls control, format, private or unassigned, and marks that
            // change the character before them.
            other => safe.extend(other.escape_debug()),
        }
    }
    if characters.next().is_some() {
        safe.push('…');
    }
    safe
}

/// Returns a length of time in words: `3 days`.
pub fn duration(seconds: u64) -> String {
    let (number, unit) = match seconds {
        0..60 => return "less than a minute".to_owned(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    if number == 1 { format!("1 {unit}") } else { format!("{number} {unit}s") }
}
