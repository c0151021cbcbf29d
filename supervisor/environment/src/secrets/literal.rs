//! Finds secrets that a shell text assigns literally: `export API_KEY=...` in a script, or in the trace of
//! `set -x`.
//!
//! Only literal values are found, but also in comments, because a key in a comment is still a key. Values that a
//! script computes, reads or copies are not in its text. Assignments that are not in POSIX shell syntax are not
//! recognised (`printf -v`, `read`, other languages).

use std::ops::Range;

use agentd_keeper::mask::MASK;
use agentd_keeper::tokens;

use agentd_config::secret;

/// A secret that a text assigns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedSecret {
    pub name: String,
    pub value: Vec<u8>,
    /// Range of the value in the text, including quotes.
    place: Range<usize>,
}

/// Returns the text without the values of assigned secrets and without tokens of known formats. The result may be
/// stored or shown.
pub fn redacted(text: &[u8]) -> Vec<u8> {
    let mut places: Vec<Range<usize>> = assigned(text).into_iter().map(|assigned| assigned.place).collect();
    places.extend(tokens::find(text).map(|(place, _)| place));
    places.sort_by_key(|place| place.start);
    let (mut redacted, mut at) = (Vec::with_capacity(text.len()), 0);
    for place in places {
        // A range may lie within the value of an earlier one.
        if place.start >= at {
            redacted.extend_from_slice(&text[at..place.start]);
            redacted.extend_from_slice(MASK.as_bytes());
            at = place.end;
        }
    }
    redacted.extend_from_slice(&text[at..]);
    redacted
}

/// Returns the secrets that the text assigns.
pub fn assigned(text: &[u8]) -> Vec<AssignedSecret> {
    let mut found = Vec::new();
    for equals in memchr::memchr_iter(b'=', text) {
        let before = &text[..equals];
        // `NAME+=` appends to the current value.
        let before = before.strip_suffix(b"+").unwrap_or(before);
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let length = before.iter().rev().take_while(|byte| is_word(byte)).count();
        let (before, name) = before.split_at(before.len() - length);
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if name.is_empty() || before.ends_with(b"$") || before.ends_with(b"{") {
            continue;
        }
        // `set -x` writes `export 'NAME=a value'`, and users write this form too.
        let quote = [&b"$'"[..], b"'", b"\""].into_iter().find(|quote| before.ends_with(quote)).unwrap_or_default();
        let behind = &text[equals + 1..];
        let Some((value, length)) = word(quote, behind) else { continue };
        if secret::is_worth_hiding(&value) && secret::is_secret(name, &value) {
            let mut length = length.min(behind.len());
            // If the quote was opened before the name, its closing quote stays.
            if !quote.is_empty() && behind[..length].ends_with(&quote[quote.len() - 1..]) {
                length -= 1;
            }
            found.push(AssignedSecret { name: name.to_owned(), value, place: equals + 1..equals + 1 + length });
        }
    }
    found
}

/// Parses the literal shell word at the start of the text. Returns its value and its length in the text, or `None`
/// if the word is not literal. `quote` was opened before the word.
fn word(quote: &[u8], text: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut value = Vec::new();
    let mut at = match quote {
        b"'" => single_quoted(text, &mut value)?,
        b"\"" => double_quoted(text, &mut value)?,
        b"$'" => ansi_quoted(text, &mut value)?,
        _ => 0,
    };
    while let Some(&byte) = text.get(at) {
        let rest = &text[at + 1..];
        match byte {
            b'\'' => at += 1 + single_quoted(rest, &mut value)?,
            b'"' => at += 1 + double_quoted(rest, &mut value)?,
            b'$' if rest.first() == Some(&b'\'') => at += 2 + ansi_quoted(&rest[1..], &mut value)?,
            b'$' | b'`' => return None,
            b'\\' => {
                value.extend(rest.first());
                at += 2;
            }
            b' ' | b'\t' | b'\r' | b'\n' | b';' | b'&' | b'|' | b'(' | b')' | b'<' | b'>' => break,
            _ => {
                value.push(byte);
                at += 1;
            }
        }
    }
    Some((value, at))
}

/// Parses the content of single quotes. Returns the length including the closing quote.
fn single_quoted(text: &[u8], value: &mut Vec<u8>) -> Option<usize> {
    let end = memchr::memchr(b'\'', text)?;
    value.extend_from_slice(&text[..end]);
    Some(end + 1)
}

/// Parses the content of double quotes. Returns the length including the closing quote.
fn double_quoted(text: &[u8], value: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    loop {
        match *text.get(at)? {
            b'"' => return Some(at + 1),
            b'$' | b'`' => return None,
            b'\\' if text.get(at + 1).is_some_and(|next| b"\\\"$`".contains(next)) => {
                value.push(text[at + 1]);
                at += 2;
            }
            byte => {
                value.push(byte);
                at += 1;
            }
        }
    }
}

/// Parses the content between `$'` and `'`. Returns the length including the closing quote. `set -x` writes control
/// characters in this form.
fn ansi_quoted(text: &[u8], value: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    loop {
        match *text.get(at)? {
            b'\'' => return Some(at + 1),
            b'\\' => {
                let escaped = *text.get(at + 1)?;
                value.push(match escaped {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'e' => 0x1b,
                    other => other,
                });
                at += 2;
            }
            byte => {
                value.push(byte);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{AssignedSecret, MASK, assigned, redacted};

    fn found(text: &str) -> Vec<(String, String)> {
        let found = assigned(text.as_bytes()).into_iter();
        found.map(|one| (one.name, String::from_utf8(one.value).unwrap())).collect()
    }

    #[test]
    fn literal_assignments_are_found_with_every_kind_of_quotes() {
        for text in [
            "export API_KEY=hunter22",
            "API_KEY='hunter22' run",
            "declare -x API_KEY=\"hunter22\"; true",
            "  API_KEY=hun'ter'\"22\"\n",
            "API_KEY+=hunter\\22",
            "# API_KEY=hunter22",
            "API_KEY=hunter22\\",
            "+ export API_KEY=hunter22",
            "+ export 'API_KEY=hunter22'",
            "declare \"API_KEY=hunter22\" x",
            "+ export $'API_KEY=hunter22'",
            "true && export PLAIN=1 API_KEY=$'hunter22'",
        ] {
            assert_eq!(found(text), [("API_KEY".to_owned(), "hunter22".to_owned())], "{text}");
        }
        let url = found("DATABASE=postgres://me:hunter22@db/x");
        assert_eq!(url[0].0, "DATABASE", "a URL with a password is a secret whatever its name");
        assert_eq!(found("TOKEN=$'two\\nlines'")[0].1, "two\nlines");
        let quoted = assigned(b"+ export 'TOKEN=it'\\''s a value'\n");
        assert_eq!(quoted[0].value, b"it's a value");
        let text = "a=1\n+ export 'TOKEN=it'\\''s a value' X\nAPI_KEY=\"hunter 22\"; b # TOKEN=hunter22";
        let expected = "a=1\n+ export 'TOKEN=‹secret›' X\nAPI_KEY=‹secret›; b # TOKEN=‹secret›";
        assert_eq!(String::from_utf8(redacted(text.as_bytes())).unwrap(), expected);
    }

    #[test]
    fn a_token_of_a_known_format_is_redacted_anywhere() {
        let token = format!("npm_{}", "a1".repeat(18));
        let text = format!("# as in {token}\ncurl -H 'X-Auth: {token}' host; export NPM_TOKEN={token}\n");
        let expected = format!("# as in {MASK}\ncurl -H 'X-Auth: {MASK}' host; export NPM_TOKEN={MASK}\n");
        assert_eq!(String::from_utf8(redacted(text.as_bytes())).unwrap(), expected);
    }

    #[test]
    fn computed_values_are_not_found() {
        for text in [
            "export API_KEY=$(cat ~/key)",
            "API_KEY=\"$OTHER-suffix\"",
            "API_KEY=`pass show key`",
            "API_KEY=${OTHER}",
            "API_KEY=none",
            "API_KEY=",
            "API_KEY='unterminated",
            "API_KEY=hunt\\",
            "EDITOR=hunter22",
            "test $API_KEY = hunter22",
        ] {
            assert_eq!(found(text), [], "{text}");
        }
    }

    proptest! {
        #[test]
        fn redacted_text_assigns_no_secret(text in "(API_KEY|TOKEN=|X|[='\"$\\\\ \n]|[a-z]{1,8}){0,24}") {
            let redacted = redacted(text.as_bytes());
            let left: Vec<_> = assigned(&redacted).into_iter().filter(|one| one.value != MASK.as_bytes()).collect();
            let is_masked = |one: &AssignedSecret| memchr::memmem::find(&one.value, MASK.as_bytes()).is_some();
            prop_assert!(left.iter().all(is_masked), "{:?}", left);
        }
    }
}
