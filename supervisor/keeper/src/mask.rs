//! Hides secret values in what an agent prints, as a CI system hides them in its logs.
//!
//! A value is found as it is, and as JSON may write it: with any escapes, and escaped once more where JSON stands in a JSON
//! string. In a line that is JSON only the contents of strings and numbers are replaced, so that it stays JSON.
//!
//! What is not found: a value shorter than [`SHORTEST`] (it would be found everywhere), one that was encoded in a way other than
//! these (base64, URL encoding), and one that was printed in pieces: in two messages, or on two lines that it has not itself.
//!
//! Tokens of a known form (`crate::tokens`) are hidden wherever they come from.
//!
//! The daemon hides with the same rules in what it says of an environment that could not be built.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;

use memchr::memmem::{self, Finder};
use zeroize::Zeroizing;

/// What stands in a value's place.
pub const MASK: &str = "‹secret›";

/// The shortest value that is hidden, bytes. `none`, `true` and `1234` stand where a secret is meant to, and everywhere else too: to
/// hide them would make what an agent says unreadable and keep nothing from anybody.
pub const SHORTEST: usize = 6;
/// How many additions count.
const ADDED: u64 = 8;
/// The shortest line of a value of several lines that is hidden where it stands alone.
const SHORTEST_LINE: usize = 8;

/// What ACP itself says, as the whole of a string: a secret that is called the same (a password `content`, say) is not told by hiding
/// it there, and a message without these words is none.
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

/// The values of one agent.
#[derive(Default)]
pub struct Mask {
    needles: Vec<Needle>,
    /// How often values were added.
    added: u64,
}

struct Needle {
    value: Zeroizing<Vec<u8>>,
    found_as: Finder<'static>,
    /// It has characters that JSON writers escape by habit.
    escapable: bool,
    /// The addition that it came with; 0 for those of the beginning.
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

/// How many there are: never what they are.
impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mask({} needles)", self.needles.len())
    }
}

impl Mask {
    /// For these values; those that are too short are left out.
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
        // As a JSON string in a JSON string holds it, and that once more.
        for _ in 0..2 {
            let escaped: Vec<_> = values.iter().filter_map(|value| escape(value)).collect();
            values.extend(escaped);
        }
        let mut mask = Self { needles: values.into_iter().map(Needle::new).collect(), added: 0 };
        mask.order();
        mask
    }

    /// Hides these values too. Of what was added the last eight times count: a token that is renewed every minute must not make
    /// every line slower for as long as the agent lives.
    pub fn add<'a>(&mut self, secrets: impl IntoIterator<Item = &'a [u8]>) {
        self.added += 1;
        let added = self.added;
        self.needles.extend(Self::new(secrets).needles.into_iter().map(|needle| Needle { added, ..needle }));
        self.needles.retain(|needle| needle.added == 0 || needle.added + ADDED > added);
        self.order();
    }

    /// The longest first: a value may be a part of another. Of two that are the same, the one that stays longer.
    fn order(&mut self) {
        let stays = |needle: &Needle| (needle.added != 0, Reverse(needle.added));
        self.needles.sort_by(|a, b| {
            b.value.len().cmp(&a.value.len()).then_with(|| a.value.cmp(&b.value)).then_with(|| stays(a).cmp(&stays(b)))
        });
        self.needles.dedup_by(|a, b| a.value == b.value);
    }

    /// The text with its secrets hidden; with `cut`, the beginning of one at the end too, because the text goes on unseen.
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

    /// The JSON with its secrets hidden; `None` where there are none. What comes out is JSON again.
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
        // Only whole characters were replaced by whole characters; where a value had been half of one, nothing may leak.
        Some(String::from_utf8(hidden).unwrap_or_else(|_| format!("\"{MASK}\"")))
    }

    /// Whether there may be something to hide: quick, and never wrongly no.
    fn suspects(&self, text: &[u8]) -> bool {
        let escapes = !self.needles.is_empty() && memchr::memchr(b'\\', text).is_some();
        let unicode = escapes && memmem::find(text, b"\\u").is_some();
        if !tokens(text).is_empty() {
            return true;
        }
        self.needles.iter().any(|needle| {
            needle.found_as.find(text).is_some()
                || (escapes && (unicode || needle.escapable) && needle.is_escaped_in(text))
        })
    }

    /// Copies the text, which is plain or (`json`) the content of a JSON string, with every value in it replaced. In a JSON string
    /// a value that stands there as it is would be read as another one if it has escapes in it, so only what is read counts.
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
                // An escape is one character: a value may not begin in its middle.
                let (_, length) = character(rest);
                to.extend_from_slice(&rest[..length]);
                at += length;
            }
        }
    }

    /// How many bytes at the end of the text are the beginning of a value.
    fn begun(&self, text: &[u8]) -> usize {
        let begun = |needle: &Needle| {
            (SHORTEST..needle.value.len()).rev().find(|length| text.ends_with(&needle.value[..*length])).unwrap_or(0)
        };
        self.needles.iter().map(begun).max().unwrap_or(0)
    }
}

/// The value as the content of a JSON string, where that differs.
fn escape(value: &[u8]) -> Option<Vec<u8>> {
    let json = serde_json::to_string(std::str::from_utf8(value).ok()?).ok()?;
    let content = &json.as_bytes()[1..json.len() - 1];
    (content != value).then(|| content.to_vec())
}

/// How long the content is of the string that begins here, up to its closing quote.
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

/// How long the value is that the text begins with, any of its characters written as an escape.
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

/// One byte, or what one escape stands for (in UTF-8).
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

/// The places of tokens of a known form, also where JSON writes their characters as escapes (`\u0067hp_`, `\/`).
fn tokens(text: &[u8]) -> Vec<Range<usize>> {
    let places = |text: &[u8]| crate::tokens::find(text).map(|(place, _)| place).collect();
    if memmem::find(text, b"\\u").is_none() && memmem::find(text, b"\\/").is_none() {
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

/// What stands at the beginning of the text, which is not empty, and how long it is there.
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

/// `\uXXXX`, or two of them that make one character.
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
    fn a_value_is_hidden_however_json_writes_it() {
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
    fn a_line_of_json_stays_json() {
        assert_eq!(
            json(&["123456"], r#"{"id":123456,"t":"x123456","n":-1234567}"#),
            r#"{"id":"‹secret›","t":"x‹secret›","n":"‹secret›"}"#
        );
        // The n of an escape is not the beginning of a value.
        assert_eq!(json(&["nabcde"], r#"["\nabcde","\\nabcde","nabcde"]"#), r#"["\nabcde","\\‹secret›","‹secret›"]"#);
        // Nor is the backslash of an escape its end.
        assert_eq!(json(&["abcde\\"], r#"["abcde\n","abcde\\"]"#), r#"["abcde\n","‹secret›"]"#);
        // What goes across strings is no value.
        assert_eq!(json(&["abc\",\"b"], r#"["xabc","by"]"#), r#"["xabc","by"]"#);
        assert_eq!(json(&["[false]"], "[false]"), "[false]");
    }

    #[test]
    fn a_secret_that_is_a_word_of_the_protocol_does_not_make_a_message_none() {
        assert!(PROTOCOL.is_sorted(), "it is searched by halves");
        let line = r#"{"method":"session/update","params":{"update":{"content":{"text":"my content: session"}}}}"#;
        let masked = r#"{"method":"session/update","params":{"update":{"content":{"text":"my ‹secret›: ‹secret›"}}}}"#;
        assert_eq!(json(&["content", "session", "update"], line), masked);
    }

    #[test]
    fn text_is_hidden_too_and_so_is_each_line_of_a_value_of_several() {
        let key = "-----BEGIN-----\nabcdefghij\nxy\n-----END-----";
        let mask = mask(&[key, "token-1"]);
        assert_eq!(mask.text(b"a token-1 and abcdefghij xy", false), "a ‹secret› and ‹secret› xy".as_bytes());
        assert_eq!(mask.text(b"nothing", false), &b"nothing"[..]);
        assert_eq!(mask.text(b"\xfftoken-1\xff", false), [b"\xff", MASK.as_bytes(), b"\xff"].concat());
    }

    #[test]
    fn a_token_of_a_known_form_is_hidden_though_nobody_named_it() {
        let token = format!("ghp_{}", "a1B2c3".repeat(6));
        assert_eq!(
            json(&[], &format!(r#"{{"t":"x\n{token}, {token}","n":1}}"#)),
            r#"{"t":"x\n‹secret›, ‹secret›","n":1}"#
        );
        assert_eq!(json(&["a1B2c3"], &format!(r#"["{token}"]"#)), r#"["‹secret›"]"#);
        assert_eq!(mask(&[]).text(format!("is {token}").as_bytes(), false), "is ‹secret›".as_bytes());
    }

    #[test]
    fn a_token_that_is_written_with_escapes_is_hidden() {
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
    fn the_beginning_of_a_value_at_a_cut_is_hidden() {
        let mask = mask(&["token-1234"]);
        assert_eq!(mask.text(b"x token-12", true), "x ‹secret›".as_bytes());
        assert_eq!(mask.text(b"x token-12", false), &b"x token-12"[..]);
    }

    #[test]
    fn the_longer_of_two_values_wins_and_a_short_one_is_left() {
        assert_eq!(
            json(&["abcdef", "abcdefgh", "abcde", "1", ""], r#"["abcdefgh","abcdef","abcde",1]"#),
            r#"["‹secret›","‹secret›","abcde",1]"#
        );
    }

    #[test]
    fn values_that_come_later_are_hidden_too_and_the_oldest_of_them_go() {
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
        fn whatever_the_value_json_stays_json_and_does_not_say_it(
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
