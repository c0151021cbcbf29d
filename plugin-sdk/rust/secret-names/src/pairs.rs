//! Finds values that follow the name of a secret: in program options, connection strings, URL queries, JSON,
//! YAML, INI, XML, HTTP headers and netrc files.

use crate::encoded;
use crate::names::{is_secret_name, is_switched_off};

/// Names that are too short to make a variable secret, but sufficient in front of a value.
const ALONE: &[&str] = &["PASS", "PWD", "PW", "AUTH"];

/// Names of URL signatures (learn.microsoft.com on SAS, docs.aws.amazon.com on presigned URLs).
const SIGNATURES: &[&str] = &["SIG", "SIGNATURE"];
/// Minimum length of a URL signature. A shorter value has another meaning.
const SHORTEST_SIGNATURE: usize = 16;

/// Values that are not secrets although their name is a secret's: switches, and kinds of authentication.
const NO_SECRETS: &[&str] = &[
    "0",
    "1",
    "true",
    "false",
    "yes",
    "no",
    "on",
    "off",
    "none",
    "null",
    "nil",
    "always",
    "never",
    "auto",
    "basic",
    "digest",
    "ntlm",
    "kerberos",
    "negotiate",
    "spnego",
    "gssapi",
    "any",
    "plain",
    "required",
    "optional",
    "legacy",
];

/// Returns the value of the first secret name that is followed by `=`, `: ` or `":`, or that is in `<name>`.
pub(crate) fn named(value: &[u8]) -> Option<&[u8]> {
    let separators = value.iter().enumerate().filter(|(_, byte)| matches!(byte, b'=' | b':' | b'>'));
    separators.map(|(at, _)| at).find_map(|at| of_separator(value, at))
}

fn of_separator(value: &[u8], at: usize) -> Option<&[u8]> {
    let separator = value[at];
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let before = value[..at].trim_ascii_end();
    let has_blank = before.len() < at;
    let is_quoted_name = before.ends_with(b"\"") || before.ends_with(b"'");
    let before = if is_quoted_name {
        before[..before.len() - 1].strip_suffix(b"\\").unwrap_or(&before[..before.len() - 1])
    } else {
        before
    };
    let length = before.iter().rev().take_while(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(byte)).count();
    let (around, name) = before.split_at(before.len() - length);
    let behind = &value[at + 1..];
    let fits = match separator {
        b'=' => has_blank || !behind.first().is_some_and(is_blank),
        // `a:b` is a list of paths.
        b':' => behind.first().is_some_and(|byte| is_blank(byte) || matches!(byte, b'"' | b'\'' | b'\\')),
        _ => around.ends_with(b"<"),
    };
    if !fits || name.is_empty() {
        return None;
    }
    let shortest = of_secret(name)?;
    let behind = behind.trim_ascii_start();
    let behind = behind.strip_prefix(b"\\").unwrap_or(behind);
    let text = match behind.first() {
        Some(quote @ (b'"' | b'\'')) => until(&behind[1..], |byte| byte == *quote || byte == b'\\'),
        _ if separator == b'>' => until(behind, |byte| byte == b'<'),
        _ if name.starts_with(b"-") => until(behind, |byte| byte.is_ascii_whitespace()),
        // The value of a header is the rest of its line.
        _ if separator == b':' && is_quoted_name => until(behind, |byte| matches!(byte, b',' | b'}' | b'\n')),
        _ if separator == b':' => until(behind, |byte| matches!(byte, b',' | b'}' | b'\n' | b'"' | b'\'')),
        _ => until(behind, |byte| byte.is_ascii_whitespace() || b";&|\"'<>".contains(&byte)),
    };
    let is_directory = name == b"PWD" && text.starts_with(b"/");
    (text.len() >= shortest && is_secret_text(text) && !is_directory).then_some(text)
}

/// Returns the value in a separate word: `--password hunter2`, `-u kim:hunter2`, netrc's `password hunter2` and
/// `Bearer ...`.
pub(crate) fn by_words(value: &[u8]) -> Option<&[u8]> {
    let words = || value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_netrc = words().any(|word| word == b"machine" || word == b"default") && words().any(|word| word == b"login");
    words().zip(words().skip(1)).find_map(|(word, next)| {
        let next = unquoted(next);
        let is_it = if word.starts_with(b"-") {
            let is_user = matches!(word, b"-u" | b"--user") && is_user_with_password(next);
            is_user || !word.contains(&b'=') && of_secret(word) == Some(1) && !next.starts_with(b"-")
        } else {
            let word = unquoted(word);
            match () {
                () if word.eq_ignore_ascii_case(b"bearer") => next.len() >= SHORTEST_SIGNATURE,
                () if word.eq_ignore_ascii_case(b"basic") => {
                    encoded::decode(next).is_some_and(|text| text.contains(&b':'))
                }
                () => is_netrc && word == b"password",
            }
        };
        (is_it && is_secret_text(next)).then_some(next)
    })
}

fn is_user_with_password(word: &[u8]) -> bool {
    let Some(colon) = word.iter().position(|byte| *byte == b':') else { return false };
    let is_number = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    colon > 0 && colon + 1 < word.len() && !(is_number(&word[..colon]) && is_number(&word[colon + 1..]))
}

fn unquoted(word: &[u8]) -> &[u8] {
    let is_quote = |byte: &u8| matches!(byte, b'"' | b'\'');
    let begin = word.iter().position(|byte| !is_quote(byte)).unwrap_or(word.len());
    let end = word.iter().rposition(|byte| !is_quote(byte)).map_or(begin, |last| last + 1);
    &word[begin..end]
}

/// Returns the minimum length of a value that follows this name, or `None` if the name is not a secret's. `-D`
/// is Java's prefix.
fn of_secret(name: &[u8]) -> Option<usize> {
    let name = std::str::from_utf8(name).ok()?;
    let plain = name.trim_start_matches('-');
    let plain = if name.starts_with("-D") { plain.trim_start_matches('D') } else { plain };
    if is_switched_off(plain) {
        return None;
    }
    let last = plain.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default().to_ascii_uppercase();
    if SIGNATURES.contains(&last.as_str()) {
        return Some(SHORTEST_SIGNATURE);
    }
    let is_alone = ALONE.contains(&plain.trim_matches(['_', '.']).to_ascii_uppercase().as_str());
    (is_alone || is_secret_name(plain)).then_some(1)
}

/// Reports whether a text may be a secret: it is not empty, not a switch and not a reference to another
/// variable.
fn is_secret_text(text: &[u8]) -> bool {
    let is_none = NO_SECRETS.iter().any(|none| text.eq_ignore_ascii_case(none.as_bytes()));
    let is_reference =
        text.starts_with(b"$") && text[1..].iter().all(|byte| byte.is_ascii_alphanumeric() || b"_{}".contains(byte));
    !text.is_empty() && !is_none && !is_reference && text.iter().any(|byte| *byte != b'*')
}

fn until(text: &[u8], ends: impl Fn(u8) -> bool) -> &[u8] {
    let text = &text[..text.iter().position(|byte| ends(*byte)).unwrap_or(text.len())];
    text.trim_ascii_end()
}
