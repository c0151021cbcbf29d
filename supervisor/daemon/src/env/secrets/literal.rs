//! Secrets that stand literally in a shell's text: `export API_KEY=...` in a script, and the same line again where `set -x` prints it.
//!
//! Only what is assigned as it stands is found, in a comment too: a key that was put there is one still. What a script computes, reads or takes from another variable is not in its text, and
//! assignments in other words than a POSIX shell's (`printf -v`, `read`, another language) are not understood.

use std::ops::Range;

use agentd_keeper::mask::MASK;
use agentd_keeper::tokens;

use super::super::secret;

/// A secret in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) name: String,
    pub(crate) value: Vec<u8>,
    /// Where in the text the value stands, quotes and all.
    place: Range<usize>,
}

/// The text without the values of the secrets that it assigns, and without tokens of known forms wherever they stand: what
/// may be kept of a script, or shown.
pub(crate) fn redacted(text: &[u8]) -> Vec<u8> {
    let mut places: Vec<Range<usize>> = assigned(text).into_iter().map(|assigned| assigned.place).collect();
    places.extend(tokens::find(text).map(|(place, _)| place));
    places.sort_by_key(|place| place.start);
    let (mut redacted, mut at) = (Vec::with_capacity(text.len()), 0);
    for place in places {
        // One may stand in another's value.
        if place.start >= at {
            redacted.extend_from_slice(&text[at..place.start]);
            redacted.extend_from_slice(MASK.as_bytes());
            at = place.end;
        }
    }
    redacted.extend_from_slice(&text[at..]);
    redacted
}

/// The secrets that this text assigns.
pub(crate) fn assigned(text: &[u8]) -> Vec<Assigned> {
    let mut found = Vec::new();
    for equals in memchr::memchr_iter(b'=', text) {
        let before = &text[..equals];
        // `NAME+=` adds to what there is.
        let before = before.strip_suffix(b"+").unwrap_or(before);
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let length = before.iter().rev().take_while(|byte| is_word(byte)).count();
        let (before, name) = before.split_at(before.len() - length);
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if name.is_empty() || before.ends_with(b"$") || before.ends_with(b"{") {
            continue;
        }
        // `export 'NAME=a value'` is how `set -x` writes it, and people do so too.
        let quote = [&b"$'"[..], b"'", b"\""].into_iter().find(|quote| before.ends_with(quote)).unwrap_or_default();
        let behind = &text[equals + 1..];
        let Some((value, length)) = word(quote, behind) else { continue };
        if secret::is_worth_hiding(&value) && secret::is_secret(name, &value) {
            let mut length = length.min(behind.len());
            // Of a quote that was opened before the name the closing one stays.
            if !quote.is_empty() && behind[..length].ends_with(&quote[quote.len() - 1..]) {
                length -= 1;
            }
            found.push(Assigned { name: name.to_owned(), value, place: equals + 1..equals + 1 + length });
        }
    }
    found
}

/// The shell word that the text begins with, where it says literally what it stands for, and how long it is there; `quote` was opened
/// before it.
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

/// What stands between single quotes; how long it is with the closing one.
fn single_quoted(text: &[u8], value: &mut Vec<u8>) -> Option<usize> {
    let end = memchr::memchr(b'\'', text)?;
    value.extend_from_slice(&text[..end]);
    Some(end + 1)
}

/// What stands between double quotes; how long it is with the closing one.
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

/// What stands between `$'` and `'`; how long it is with the closing one. `set -x` writes control characters so.
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

    use super::{MASK, assigned, redacted};

    fn found(text: &str) -> Vec<(String, String)> {
        let found = assigned(text.as_bytes()).into_iter();
        found.map(|one| (one.name, String::from_utf8(one.value).unwrap())).collect()
    }

    #[test]
    fn what_a_script_assigns_literally_is_found_however_it_is_quoted() {
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
    fn a_token_of_a_known_form_is_taken_out_wherever_it_stands() {
        let token = format!("npm_{}", "a1".repeat(18));
        let text = format!("# as in {token}\ncurl -H 'X-Auth: {token}' host; export NPM_TOKEN={token}\n");
        let expected = format!("# as in {MASK}\ncurl -H 'X-Auth: {MASK}' host; export NPM_TOKEN={MASK}\n");
        assert_eq!(String::from_utf8(redacted(text.as_bytes())).unwrap(), expected);
    }

    #[test]
    fn what_a_script_computes_is_none() {
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
        fn of_whatever_text_what_is_left_assigns_no_secret(text in "(API_KEY|TOKEN=|X|[='\"$\\\\ \n]|[a-z]{1,8}){0,24}") {
            let redacted = redacted(text.as_bytes());
            let left: Vec<_> = assigned(&redacted).into_iter().filter(|one| one.value != MASK.as_bytes()).collect();
            prop_assert!(left.iter().all(|one| memchr::memmem::find(&one.value, MASK.as_bytes()).is_some()), "{:?}", left);
        }
    }
}
