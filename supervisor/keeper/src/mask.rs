//! Masks secret values in an agent's output, as a CI system masks them in its logs.
//!
//! The mask finds a value in plain form and in JSON form: with any escapes, and escaped once more for JSON inside a
//! JSON string. In a line of JSON, it replaces only the contents of strings and numbers, so that the line stays
//! valid.
//!
//! The mask does not find these values:
//!
//! - A value shorter than [`SHORTEST`], which would be found everywhere.
//! - A value in another encoding, such as base64 or URL encoding.
//! - A value printed in pieces: in two messages, or on two lines unless the value itself has several lines.
//!
//! The mask also replaces tokens of a known format (`crate::tokens`), wherever they come from.
//!
//! The daemon uses this mask in messages about an environment that could not be built.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use zeroize::Zeroizing;

/// Text that replaces a secret value.
pub const MASK: &str = "‹secret›";

/// Minimum length in bytes of a masked value. `none`, `true` and `1234` can be given as a secret and also appear
/// everywhere else. Masking them would make the output unreadable and protect nothing.
pub const SHORTEST: usize = 6;
/// Number of recent additions that stay active.
const ADDED: u64 = 8;
/// Minimum length in bytes of a line that is masked alone, if it belongs to a value of several lines.
const SHORTEST_LINE: usize = 8;

/// Words of ACP itself, as the whole content of a string. They stay unmasked even if a secret has an equal value,
/// such as a password `content`. A message without such a word is invalid, and the word does not reveal the secret.
const PROTOCOL: &[&[u8]] = &[
    b"agentCapabilities",
    b"agentInfo",
    b"agent_message_chunk",
    b"agent_thought_chunk",
    b"allow_always",
    b"allow_once",
    b"authMethods",
    b"available_commands_update",
    b"cancelled",
    b"completed",
    b"content",
    b"current_mode_update",
    b"delete",
    b"end_turn",
    b"entries",
    b"execute",
    b"failed",
    b"in_progress",
    b"jsonrpc",
    b"loadSession",
    b"locations",
    b"max_tokens",
    b"max_turn_requests",
    b"message",
    b"method",
    b"optionId",
    b"options",
    b"params",
    b"pending",
    b"protocolVersion",
    b"rawInput",
    b"rawOutput",
    b"refusal",
    b"reject_always",
    b"reject_once",
    b"result",
    b"search",
    b"session/request_permission",
    b"session/update",
    b"sessionCapabilities",
    b"sessionId",
    b"sessionUpdate",
    b"status",
    b"stopReason",
    b"switch_mode",
    b"toolCall",
    b"toolCallId",
    b"tool_call",
    b"tool_call_update",
    b"update",
    b"user_message_chunk",
    b"version",
];

/// Mask with the secret values of one agent.
#[derive(Default)]
pub struct Mask {
    needles: Vec<Needle>,
    /// Number of additions of values.
    added: u64,
}

struct Needle {
    value: Zeroizing<Vec<u8>>,
    found_as: Finder<'static>,
    /// Whether the value has characters that JSON writers may escape.
    escapable: bool,
    /// Number of the addition that brought the value; 0 for the initial values.
    added: u64,
}

impl Needle {
    fn new(value: Vec<u8>) -> Self {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~:,;@%^*()[]{}|?!# ".contains(byte);
        let escapable = !value.iter().all(plain);
        Self { found_as: Finder::new(&value).into_owned(), escapable, value: value.into(), added: 0 }
    }

    fn is_escaped_in(&self, text: &[u8]) -> bool {
        memchr::memchr2_iter(b'\\', self.value[0], text).any(|at| escaped_match(&text[at..], &self.value).is_some())
    }
}

/// Prints the number of values and never the values.
impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mask({} needles)", self.needles.len())
    }
}

impl Mask {
    /// Makes a mask for these values, without those that are too short.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut values: Vec<Vec<u8>> = Vec::new();
        for secret in secrets {
            values.push(secret.to_vec());
            if secret.contains(&b'\n') {
                let lines = secret.split(|byte| *byte == b'\n').filter(|line| line.len() >= SHORTEST_LINE);
                values.extend(lines.map(<[u8]>::to_vec));
            }
        }
        values.retain(|value| value.len() >= SHORTEST);
        // The value as a JSON string inside a JSON string holds it, and with one more level of escapes.
        for _ in 0..2 {
            let escaped: Vec<_> = values.iter().filter_map(|value| escape(value)).collect();
            values.extend(escaped);
        }
        let mut mask = Self { needles: values.into_iter().map(Needle::new).collect(), added: 0 };
        mask.order();
        mask
    }

    /// Masks these values too. Only the last eight additions stay active, so that a token renewed every minute does
    /// not make each line slower for the agent's whole life.
    pub fn add<'a>(&mut self, secrets: impl IntoIterator<Item = &'a [u8]>) {
        self.added += 1;
        let added = self.added;
        self.needles.extend(Self::new(secrets).needles.into_iter().map(|needle| Needle { added, ..needle }));
        self.needles.retain(|needle| needle.added == 0 || needle.added + ADDED > added);
        self.order();
    }

    /// Sorts the longest value first, because a value may be part of another. Of two equal values, keeps the newer
    /// one.
    fn order(&mut self) {
        let stays = |needle: &Needle| (needle.added != 0, Reverse(needle.added));
        self.needles.sort_by(|a, b| {
            b.value.len().cmp(&a.value.len()).then_with(|| a.value.cmp(&b.value)).then_with(|| stays(a).cmp(&stays(b)))
        });
        self.needles.dedup_by(|a, b| a.value == b.value);
    }

    /// Returns the text with its secrets masked. With `cut`, also masks the start of a secret at the end, because the
    /// text continues unseen.
    pub fn text<'a>(&self, text: &'a [u8], cut: bool) -> Cow<'a, [u8]> {
        let end = if cut { text.len() - self.begun(text) } else { text.len() };
        if end == text.len() && !self.suspects(text) {
            return Cow::Borrowed(text);
        }
        let mut hidden = Vec::with_capacity(text.len());
        self.hide(&text[..end], false, &mut hidden);
        if end < text.len() {
            hidden.extend_from_slice(MASK.as_bytes());
        }
        Cow::Owned(hidden)
    }

    /// Returns the JSON with its secrets masked, as valid JSON; `None` if there are no secrets.
    pub(crate) fn json(&self, json: &str) -> Option<String> {
        if !self.suspects(json.as_bytes()) {
            return None;
        }
        let bytes = json.as_bytes();
        let mut hidden = Vec::with_capacity(json.len());
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let length = match rest[0] {
                b'"' => {
                    let content = string_length(&rest[1..]);
                    let text = &rest[1..=content];
                    hidden.push(b'"');
                    if PROTOCOL.binary_search(&text).is_ok() {
                        hidden.extend_from_slice(text);
                    } else {
                        self.hide(text, true, &mut hidden);
                    }
                    hidden.push(b'"');
                    (content + 2).min(rest.len())
                }
                b'-' | b'0'..=b'9' => {
                    let number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                    let length = rest.iter().take_while(|byte| number(byte)).count();
                    if self.suspects(&rest[..length]) {
                        hidden.push(b'"');
                        hidden.extend_from_slice(MASK.as_bytes());
                        hidden.push(b'"');
                    } else {
                        hidden.extend_from_slice(&rest[..length]);
                    }
                    length
                }
                other => {
                    hidden.push(other);
                    1
                }
            };
            at += length;
        }
        // Only whole characters were replaced. If a value was half of a character, no byte of the value may leak.
        Some(String::from_utf8(hidden).unwrap_or_else(|_| format!("\"{MASK}\"")))
    }

    /// Reports that no line of the block has a secret. Lines for which this is not clear are left to [`Mask::json`].
    pub(crate) fn is_free(&self, block: &[u8]) -> bool {
        !has_escaped_characters(block) && !self.suspects(block)
    }

    /// Reports whether there may be a secret. This check is fast and never misses one.
    fn suspects(&self, text: &[u8]) -> bool {
        let escapes = memchr::memchr(b'\\', text).is_some();
        if has_tokens(text, escapes) {
            return true;
        }
        let escapes = escapes && !self.needles.is_empty();
        let unicode = escapes && UNICODE.find(text).is_some();
        self.needles.iter().any(|needle| {
            needle.found_as.find(text).is_some()
                || (escapes && (unicode || needle.escapable) && needle.is_escaped_in(text))
        })
    }

    /// Copies the text with every value in it replaced. With `json`, the text is the content of a JSON string. There,
    /// only the unescaped form counts: a plain match with escapes in it would mean another value.
    fn hide(&self, text: &[u8], json: bool, to: &mut Vec<u8>) {
        let mut at = 0;
        let mut tokens = tokens(text).into_iter().peekable();
        while at < text.len() {
            let rest = &text[at..];
            while tokens.next_if(|token| token.start < at).is_some() {}
            let length_of = |needle: &Needle| {
                let literally = !json && rest.starts_with(&needle.value);
                if literally { Some(needle.value.len()) } else { escaped_match(rest, &needle.value) }
            };
            let token = tokens.next_if(|token| token.start == at).map(|token| token.len());
            if let Some(length) = self.needles.iter().find_map(length_of).max(token) {
                to.extend_from_slice(MASK.as_bytes());
                at += length;
            } else {
                // An escape is one character, so a value cannot begin inside it.
                let (_, length) = character(rest);
                to.extend_from_slice(&rest[..length]);
                at += length;
            }
        }
    }

    /// Returns how many bytes at the end of the text are the start of a value.
    fn begun(&self, text: &[u8]) -> usize {
        let begun = |needle: &Needle| {
            (SHORTEST..needle.value.len()).rev().find(|length| text.ends_with(&needle.value[..*length])).unwrap_or(0)
        };
        self.needles.iter().map(begun).max().unwrap_or(0)
    }
}

/// Returns the value as the content of a JSON string, if that differs from the value.
fn escape(value: &[u8]) -> Option<Vec<u8>> {
    let json = serde_json::to_string(std::str::from_utf8(value).ok()?).ok()?;
    let content = &json.as_bytes()[1..json.len() - 1];
    (content != value).then(|| content.to_vec())
}

/// Returns the length of the string content at this position, up to its closing quote.
fn string_length(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'"', b'\\', &text[at..]) {
        at += found;
        if text[at] == b'"' {
            return at;
        }
        at = (at + 2).min(text.len());
    }
    text.len()
}

/// Returns the length of the value at the start of the text, with any of its characters escaped.
fn escaped_match(text: &[u8], value: &[u8]) -> Option<usize> {
    let (mut at, mut matched) = (0, 0);
    while matched < value.len() {
        let (decoded, length) = character(text.get(at..).filter(|rest| !rest.is_empty())?);
        let decoded = decoded.as_bytes();
        if !value[matched..].starts_with(decoded) {
            return None;
        }
        matched += decoded.len();
        at += length;
    }
    Some(at)
}

/// One byte, or the UTF-8 form of one escape.
enum Character {
    Byte(u8),
    Decoded([u8; 4], usize),
}

impl Character {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Byte(byte) => std::slice::from_ref(byte),
            Self::Decoded(bytes, length) => &bytes[..*length],
        }
    }
}

static UNICODE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\\u"));
static SLASH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\\/"));

/// Reports whether the text has escapes of characters that a token may consist of.
fn has_escaped_characters(text: &[u8]) -> bool {
    memchr::memchr(b'\\', text).is_some() && (UNICODE.find(text).is_some() || SLASH.find(text).is_some())
}

/// Reports whether the text has a token of a known format. `escapes` is whether it has a backslash.
fn has_tokens(text: &[u8], escapes: bool) -> bool {
    if escapes { !tokens(text).is_empty() } else { crate::tokens::find(text).next().is_some() }
}

/// Returns the positions of tokens of a known format, also with JSON escapes (`\u0067hp_`, `\/`).
fn tokens(text: &[u8]) -> Vec<Range<usize>> {
    let places = |text: &[u8]| crate::tokens::find(text).map(|(place, _)| place).collect();
    if !has_escaped_characters(text) {
        return places(text);
    }
    let (mut decoded, mut starts, mut at) = (Vec::with_capacity(text.len()), Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        let (character, length) = character(&text[at..]);
        decoded.extend_from_slice(character.as_bytes());
        starts.resize(decoded.len(), at);
        at += length;
    }
    starts.push(text.len());
    let written = |place: Range<usize>| starts[place.start]..starts[place.end];
    places(&decoded).into_iter().map(written).collect()
}

/// Decodes the first character of the text, which is not empty. Returns the character and its length in the text.
fn character(text: &[u8]) -> (Character, usize) {
    let plain = (Character::Byte(text[0]), 1);
    if text[0] != b'\\' {
        return plain;
    }
    let byte = match text.get(1) {
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'b') => 8,
        Some(b'f') => 12,
        Some(other @ (b'"' | b'\\' | b'/')) => *other,
        Some(b'u') => return unicode(text).unwrap_or(plain),
        _ => return plain,
    };
    (Character::Byte(byte), 2)
}

/// Decodes `\uXXXX`, or a surrogate pair of two.
fn unicode(text: &[u8]) -> Option<(Character, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let units: Vec<u16> = [unit(0), unit(6)].into_iter().map_while(|unit| unit).collect();
    let character = char::decode_utf16(units).next()?.ok()?;
    let mut bytes = [0; 4];
    let length = character.encode_utf8(&mut bytes).len();
    Some((Character::Decoded(bytes, length), 6 * character.len_utf16()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mask(secrets: &[&str]) -> Mask {
        Mask::new(secrets.iter().map(|secret| secret.as_bytes()))
    }

    fn json(secrets: &[&str], text: &str) -> String {
        let masked = mask(secrets).json(text).unwrap_or_else(|| text.to_owned());
        serde_json::from_str::<serde_json::Value>(&masked).unwrap();
        masked
    }

    #[test]
    fn a_value_is_masked_in_every_json_form() {
        let secret = "pa\"ss/wörd\\\n😀<x>";
        let nested = serde_json::to_string(&serde_json::to_string(secret).unwrap()).unwrap();
        for written in [
            serde_json::to_string(secret).unwrap(),
            r#""pa\u0022ss\/w\u00f6rd\u005c\u000a\ud83d\ude00\u003cx\u003e""#.to_owned(),
            r#""pa\"ss/wörd\\\n😀\u003cx\u003e""#.to_owned(),
        ] {
            assert_eq!(serde_json::from_str::<String>(&written).unwrap(), secret);
            assert_eq!(json(&[secret], &format!("{{\"a\":[{written},1]}}")), r#"{"a":["‹secret›",1]}"#);
        }
        assert_eq!(json(&[secret], &nested), r#""\"‹secret›\"""#);
    }

    #[test]
    fn a_block_is_free_only_if_each_line_is() {
        let secrets = mask(&["hunter2/x"]);
        let token = crate::tokens::examples().next().unwrap();
        let free = r#"{"text":"nothing, with \n and \""}"#;
        for (line, is_free) in [
            (free, true),
            (r#"{"text":"hunter2/x"}"#, false),
            (r#"{"text":"hunter2\/x"}"#, false),
            (r#"{"text":"\u0068unter2/x"}"#, false),
            (&format!(r#"["{token}"]"#), false),
            (&format!(r#"["\u0067{}"]"#, &token[1..]), false),
        ] {
            let block = format!("{free}\n{line}\n{free}\n");
            assert_eq!(secrets.is_free(block.as_bytes()), is_free, "{line}");
            assert_eq!(secrets.json(line).is_none(), is_free, "{line}");
        }
    }

    #[test]
    fn a_line_of_json_stays_json() {
        assert_eq!(
            json(&["123456"], r#"{"id":123456,"t":"x123456","n":-1234567}"#),
            r#"{"id":"‹secret›","t":"x‹secret›","n":"‹secret›"}"#
        );
        // The n of an escape is not the start of a value.
        assert_eq!(json(&["nabcde"], r#"["\nabcde","\\nabcde","nabcde"]"#), r#"["\nabcde","\\‹secret›","‹secret›"]"#);
        // The backslash of an escape is not the end of a value.
        assert_eq!(json(&["abcde\\"], r#"["abcde\n","abcde\\"]"#), r#"["abcde\n","‹secret›"]"#);
        // Text across two strings is not a value.
        assert_eq!(json(&["abc\",\"b"], r#"["xabc","by"]"#), r#"["xabc","by"]"#);
        assert_eq!(json(&["[false]"], "[false]"), "[false]");
    }

    #[test]
    fn a_secret_equal_to_a_protocol_word_does_not_break_messages() {
        assert!(PROTOCOL.is_sorted(), "it is searched by halves");
        let line = r#"{"method":"session/update","params":{"update":{"content":{"text":"my content: session"}}}}"#;
        let masked = r#"{"method":"session/update","params":{"update":{"content":{"text":"my ‹secret›: ‹secret›"}}}}"#;
        assert_eq!(json(&["content", "session", "update"], line), masked);
    }

    #[test]
    fn text_is_masked_too_and_so_is_each_line_of_a_multiline_value() {
        let key = "-----BEGIN-----\nabcdefghij\nxy\n-----END-----";
        let mask = mask(&[key, "token-1"]);
        assert_eq!(mask.text(b"a token-1 and abcdefghij xy", false), "a ‹secret› and ‹secret› xy".as_bytes());
        assert_eq!(mask.text(b"nothing", false), &b"nothing"[..]);
        assert_eq!(mask.text(b"\xfftoken-1\xff", false), [b"\xff", MASK.as_bytes(), b"\xff"].concat());
    }

    #[test]
    fn a_token_of_a_known_format_is_masked_without_being_declared() {
        let token = format!("ghp_{}", "a1B2c3".repeat(6));
        assert_eq!(
            json(&[], &format!(r#"{{"t":"x\n{token}, {token}","n":1}}"#)),
            r#"{"t":"x\n‹secret›, ‹secret›","n":1}"#
        );
        assert_eq!(json(&["a1B2c3"], &format!(r#"["{token}"]"#)), r#"["‹secret›"]"#);
        assert_eq!(mask(&[]).text(format!("is {token}").as_bytes(), false), "is ‹secret›".as_bytes());
    }

    #[test]
    fn a_token_with_json_escapes_is_masked() {
        let token = format!("ghp_{}", "a1".repeat(18));
        let escaped: Vec<String> = token.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
        let escaped = escaped.concat();
        assert_eq!(json(&[], &format!(r#"["x {escaped} y\u00e9"]"#)), r#"["x ‹secret› y\u00e9"]"#);
        assert_eq!(json(&[], &format!(r#"["\u0067{}"]"#, &token[1..])), r#"["‹secret›"]"#);
        let key = format!("AccountKey={}", "a1/+".repeat(22));
        assert_eq!(json(&[], &format!(r#"["{}"]"#, key.replace('/', r"\/"))), r#"["‹secret›"]"#);
        assert_eq!(mask(&[]).json(r#"["\u00e9\/ghp_"]"#), None);
    }

    #[test]
    fn the_start_of_a_value_at_a_cut_is_masked() {
        let mask = mask(&["token-1234"]);
        assert_eq!(mask.text(b"x token-12", true), "x ‹secret›".as_bytes());
        assert_eq!(mask.text(b"x token-12", false), &b"x token-12"[..]);
    }

    #[test]
    fn the_longer_of_two_values_wins_and_a_short_one_stays_plain() {
        assert_eq!(
            json(&["abcdef", "abcdefgh", "abcde", "1", ""], r#"["abcdefgh","abcdef","abcde",1]"#),
            r#"["‹secret›","‹secret›","abcde",1]"#
        );
    }

    #[test]
    fn later_values_are_masked_too_and_the_oldest_additions_expire() {
        let mut mask = mask(&["from the start"]);
        for n in 0..=ADDED {
            mask.add([format!("token-{n}").as_bytes(), b"from the start", b"in each"]);
        }
        let said = "from the start, in each, token-0, token-1, token-8";
        assert_eq!(
            mask.text(said.as_bytes(), false),
            "‹secret›, ‹secret›, token-0, ‹secret›, ‹secret›".as_bytes(),
            "eight additions count"
        );
        assert_eq!(mask.needles.len(), 10);
    }

    proptest! {
        #[test]
        fn masked_json_stays_valid_and_never_contains_the_value(
            secret in "[a-c\"\\\\/\n\té0-9]{6,9}",
            before in "[a-c\"\\\\\n0-9]{0,6}",
            after in "[a-c\"\\\\\n0-9]{0,6}",
        ) {
            let whole = format!("{before}{secret}{after}");
            let line = serde_json::to_string(&serde_json::json!({"k": whole, "n": 12})).unwrap();
            let masked = mask(&[&secret]).json(&line).unwrap();
            let value: serde_json::Value = serde_json::from_str(&masked).unwrap();
            prop_assert!(!value["k"].as_str().unwrap().contains(&secret), "{}", masked);
        }
    }
}
