//! Labels of sessions, and selectors that choose sessions by their labels. The syntax is that of Kubernetes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The labels of a session.
pub type Labels = BTreeMap<String, String>;

/// Maximum length of a key's name and of a value.
const NAME: usize = 63;
/// Maximum length of a key's prefix.
const PREFIX: usize = 253;

/// Error for a text that is not a label or not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLabel {
    #[error("{0:?} is not the key of a label")]
    Key(String),
    #[error("{value:?} is not a value of the label {key:?}")]
    Value { key: String, value: String },
    #[error("{0:?} has no `=`")]
    Pair(String),
    #[error("a part of the selector is empty")]
    Empty,
}

impl InvalidLabel {
    /// Describes the valid texts.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Key(_) => {
                "a key has up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends; a domain \
                 in lower case and `/` may stand in front, as in example.com/team"
            }
            Self::Value { .. } => {
                "a value is empty, or has up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both \
                 ends"
            }
            Self::Pair(_) => "give KEY=VALUE",
            Self::Empty => "a selector is KEY=VALUE, KEY!=VALUE, KEY or !KEY, or several of them with commas between",
        }
    }
}

/// Checks the key of a label: a name of up to 63 characters, with an optional domain and `/` in front.
///
/// # Errors
///
/// The text is not a key.
pub fn check_key(key: &str) -> Result<(), InvalidLabel> {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if is_name(name) && prefix.is_none_or(is_domain) { Ok(()) } else { Err(InvalidLabel::Key(key.to_owned())) }
}

/// Checks a label.
///
/// # Errors
///
/// The key or the value has another syntax.
pub fn check(key: &str, value: &str) -> Result<(), InvalidLabel> {
    check_key(key)?;
    if value.is_empty() || is_name(value) {
        return Ok(());
    }
    Err(InvalidLabel::Value { key: key.to_owned(), value: value.to_owned() })
}

/// Parses a label that is written as `KEY=VALUE`.
///
/// # Errors
///
/// The text has no `=`, or the key or the value has another syntax.
pub fn parse(text: &str) -> Result<(String, String), InvalidLabel> {
    let (key, value) = text.split_once('=').ok_or_else(|| InvalidLabel::Pair(text.to_owned()))?;
    check(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

fn is_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= NAME && has_ends(text, |byte| byte.is_ascii_alphanumeric()) && text.bytes().all(is_inner)
}

/// Reports whether a text is a subdomain (RFC 1123) in lower case.
fn is_domain(text: &str) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| has_ends(part, is_end) && part.bytes().all(|byte| is_end(byte) || byte == b'-');
    text.len() <= PREFIX && text.split('.').all(is_part)
}

fn has_ends(text: &str, is_end: impl Fn(u8) -> bool) -> bool {
    text.bytes().next().is_some_and(&is_end) && text.bytes().last().is_some_and(&is_end)
}

/// Chooses sessions by their labels. Each requirement must be met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Equal(String, String),
    /// The label has another value, or the session does not have the label.
    NotEqual(String, String),
    Present(String),
    Absent(String),
}

impl Selector {
    /// Reports whether labels meet every requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::Equal(key, value) => labels.get(key) == Some(value),
            Requirement::NotEqual(key, value) => labels.get(key) != Some(value),
            Requirement::Present(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
        })
    }
}

impl FromStr for Selector {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        text.split(',').map(|part| part.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Requirement {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let of = |(key, value): (&str, &str)| {
            let (key, value) = (key.trim(), value.trim());
            check(key, value).map(|()| (key.to_owned(), value.to_owned()))
        };
        if text.is_empty() {
            return Err(InvalidLabel::Empty);
        }
        if let Some(pair) = text.split_once("!=") {
            return of(pair).map(|(key, value)| Self::NotEqual(key, value));
        }
        if let Some(pair) = text.split_once("==").or_else(|| text.split_once('=')) {
            return of(pair).map(|(key, value)| Self::Equal(key, value));
        }
        let (key, requirement): (&str, fn(String) -> Self) = match text.strip_prefix('!') {
            Some(key) => (key.trim(), Self::Absent),
            None => (text, Self::Present),
        };
        check_key(key)?;
        Ok(requirement(key.to_owned()))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            match requirement {
                Requirement::Equal(key, value) => write!(f, "{key}={value}")?,
                Requirement::NotEqual(key, value) => write!(f, "{key}!={value}")?,
                Requirement::Present(key) => f.write_str(key)?,
                Requirement::Absent(key) => write!(f, "!{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_have_the_syntax_of_kubernetes() {
        let long = "a".repeat(63);
        let domain = format!("{}/x", "a.".repeat(126) + "a");
        for key in ["a", "A1", "a-b_c.d", &long, "example.com/team", "a/b", "x-1.y/Z", &domain] {
            assert_eq!(check(key, ""), Ok(()), "{key}");
        }
        let (longer, domain) = ("a".repeat(64), format!("{}/x", "a.".repeat(127) + "a"));
        for key in ["", "-a", "a-", ".a", "a b", "a=b", "é", "/a", "a/", "A.com/x", "a..b/x", "a_b/x", "a/b/c", "a\n"]
        {
            assert_eq!(check(key, ""), Err(InvalidLabel::Key(key.to_owned())), "{key}");
        }
        for key in [longer.as_str(), &domain] {
            assert!(check(key, "").is_err(), "{key}");
        }
        for value in ["", "1", "1.10", "a_B-c", &long] {
            assert_eq!(check("k", value), Ok(()), "{value}");
        }
        for value in [" ", "a b", "-", "_a", "a.", "a/b", "a,b", "é", &longer] {
            let error = InvalidLabel::Value { key: "k".to_owned(), value: value.to_owned() };
            assert_eq!(check("k", value), Err(error), "{value}");
        }
    }

    #[test]
    fn a_label_of_the_command_line_is_a_pair() {
        assert_eq!(parse("a=b"), Ok(("a".to_owned(), "b".to_owned())));
        assert_eq!(parse("a="), Ok(("a".to_owned(), String::new())));
        for wrong in ["a", "=b", "a==b", "a=b=c", " a=b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_selector_chooses_by_equality_and_presence() {
        let labels = Labels::from(
            [("team", "web"), ("example.com/tier", ""), ("v", "2")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        for (text, wanted) in [
            ("team=web", true),
            ("team == web", true),
            ("team=api", false),
            ("team!=api", true),
            ("team!=web", false),
            ("other!=web", true),
            ("team", true),
            ("other", false),
            ("!other", true),
            ("! team", false),
            ("example.com/tier=", true),
            ("v=2, team ,!other", true),
            ("v=2,team=api", false),
        ] {
            let selector: Selector = text.parse().expect(text);
            assert_eq!(selector.matches(&labels), wanted, "{text}");
            assert_eq!(selector.to_string().parse(), Ok(selector), "{text}");
        }
        for wrong in ["", ",", "a,", "a=b,,c", "=b", "!", "!a=b", "a in (b)", "a=b c", "a>1", "a===b", "a=!b"] {
            assert!(wrong.parse::<Selector>().is_err(), "{wrong}");
        }
    }
}
