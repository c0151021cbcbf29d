//! The query of a request: the values that a key can have, how a query is read, and how a query is written.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Route;
use crate::environment::Moment;
use crate::label::Selector;
use crate::problem::{Code, Problem};
use crate::quantity::Time;

/// A type of the values of a query key.
pub trait Value: Sized {
    /// Describes the values for people.
    fn describe() -> String;

    /// Returns the JSON Schema of the values.
    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value;

    /// Reads a value; `None` for a text that is no such value.
    fn read(text: &str) -> Option<Self>;

    /// Writes a value as [`Self::read`] reads it.
    fn write(&self) -> String;
}

/// A flag. The key alone means `true`.
impl Value for bool {
    fn describe() -> String {
        "`true` or `false`; the key alone means `true`".to_owned()
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "boolean" })
    }

    fn read(text: &str) -> Option<Self> {
        match text {
            "" | "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Value for u64 {
    fn describe() -> String {
        "a whole number from 0".to_owned()
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "integer", "format": "uint64", "minimum": 0 })
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn describe() -> String {
        "a text".to_owned()
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string" })
    }

    fn read(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn write(&self) -> String {
        self.clone()
    }
}

impl Value for Moment {
    fn describe() -> String {
        "`created`, `last` or `now`".to_owned()
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string", "enum": ["created", "last", "now"] })
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn write(&self) -> String {
        self.as_str().to_owned()
    }
}

impl Value for Selector {
    fn describe() -> String {
        "`KEY=VALUE`, `KEY!=VALUE`, `KEY` or `!KEY`, or several of them with commas between".to_owned()
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string", "examples": ["team=web,stage!=test"] })
    }

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// Pattern of times in a query.
#[cfg(feature = "schema")]
const TIME: &str = "^([0-9]+(\\.[0-9]+)?|[0-9]+(ms|s|m|h|d)( ?[0-9]+(ms|s|m|h))*)$";

/// A length of time of at most `SECONDS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within<const SECONDS: u64>(pub Duration);

/// Time that a request waits for its result.
pub type Wait = Within<600>;
/// Time that a launch waits for missing prerequisites.
pub type PrerequisiteWait = Within<604_800>;

impl<const SECONDS: u64> Value for Within<SECONDS> {
    fn describe() -> String {
        format!("a time from 0 to {SECONDS} seconds: a number of seconds, or with units, as `30s` or `1m30s`")
    }

    #[cfg(feature = "schema")]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "string", "pattern": TIME, "examples": ["30s", "1m30s"] })
    }

    fn read(text: &str) -> Option<Self> {
        let Time(time) = text.parse().ok()?;
        (time <= Duration::from_secs(SECONDS)).then_some(Self(time))
    }

    fn write(&self) -> String {
        self.0.as_secs_f64().to_string()
    }
}

/// The keys and values of a query, of which each key belongs to the route and occurs once.
pub(super) struct Query {
    route: Route,
    values: BTreeMap<&'static str, String>,
}

impl Query {
    /// Splits and decodes the query of a call of `route`.
    pub(super) fn parse(route: Route, text: &str) -> Result<Self, Problem> {
        let mut values = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let known = route.keys().iter().find(|key| key.name == name);
            let key = known.ok_or_else(|| refused(format!("{route} takes no query key {name:?}"), route))?;
            let value = decode(value)
                .ok_or_else(|| refused(format!("{route} cannot decode {name}={value}: it is not UTF-8"), route))?;
            if values.insert(key.name, value).is_some() {
                return Err(refused(format!("{route} takes the query key {name:?} once, not twice"), route));
            }
        }
        Ok(Self { route, values })
    }

    /// Removes and parses the value of a key.
    pub(super) fn take<T: Value>(&mut self, name: &str) -> Result<Option<T>, Problem> {
        let Some(text) = self.values.remove(name) else { return Ok(None) };
        let value = T::read(&text).ok_or_else(|| {
            let detail = format!("{} takes no {name}={text}", self.route);
            Problem::new(Code::InvalidRequest, detail).hint(format!("{name} is {}", T::describe()))
        })?;
        Ok(Some(value))
    }
}

fn refused(detail: String, route: Route) -> Problem {
    let names: Vec<&str> = route.keys().iter().map(|key| key.name).collect();
    let hint = match names.as_slice() {
        [] => "send the request without a query".to_owned(),
        [one] => format!("the only key is {one}"),
        [others @ .., last] => format!("the keys are {} and {last}, each at most once", others.join(", ")),
    };
    Problem::new(Code::InvalidRequest, detail).hint(hint)
}

/// Appends a key to the address of a request.
pub(super) fn append<T: Value>(address: &mut String, name: &str, value: Option<&T>) {
    let Some(value) = value else { return };
    address.push(if address.contains('?') { '&' } else { '?' });
    address.push_str(name);
    address.push('=');
    address.push_str(&escape(&value.write()));
}

/// Percent-encodes a path segment or a query value: all but the unreserved characters of RFC 3986.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let digit = |digit: u8| char::from(b"0123456789ABCDEF"[usize::from(digit)]);
            escaped.extend(['%', digit(byte >> 4), digit(byte & 0xf)]);
        }
    }
    escaped
}

/// Decodes a value (RFC 3986 section 2.1), with `+` as a blank, as in forms. `None` if the value is not UTF-8.
fn decode(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let byte = digit()? << 4 | digit()?;
                bytes.push(u8::try_from(byte).ok()?);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_decoded_and_a_broken_one_is_none() {
        assert_eq!(decode("%2Fa%20b+c").as_deref(), Some("/a b c"));
        for broken in ["%", "%4", "%zz", "%+1", "%ff"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }

    #[test]
    fn what_is_not_plain_is_escaped_so_that_it_stays_one_segment() {
        assert_eq!(escape("a-b.c_d~9"), "a-b.c_d~9");
        assert_eq!(escape("../x?y z\u{e9}"), "..%2Fx%3Fy%20z%C3%A9");
        assert_eq!(decode(&escape("../x?y z\u{e9}+&")).as_deref(), Some("../x?y z\u{e9}+&"));
    }

    #[test]
    fn a_time_is_written_as_it_is_read_and_not_longer_than_its_limit() {
        let time = Wait::read("60.5").unwrap();
        assert_eq!((time.write().as_str(), Wait::read(&time.write())), ("60.5", Some(time)));
        assert!(Wait::read("600").is_some() && Wait::read("601").is_none() && Wait::read("").is_none());
        assert!(PrerequisiteWait::read("168h").is_some() && PrerequisiteWait::read("200h").is_none());
    }
}
