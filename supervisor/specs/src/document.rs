//! Reads and writes files of specifications: TOML or YAML, with one session or many.

use std::fmt;
use std::path::Path;

use agentd_api::schedule::ScheduleSpec;
use agentd_api::session::SessionSpec;
use agentd_api::spec::FIELDS;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_saphyr::UserMessageFormatter;

/// Format of a file of specifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Toml,
    Yaml,
}

/// A mistake in a text, with its line and column, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextMistake {
    pub(super) position: Option<(usize, usize)>,
    pub(super) message: String,
}

/// Key of the list of sessions in a file with many.
const SESSIONS: &str = "sessions";
/// Key of the list of schedules.
const SCHEDULES: &str = "schedules";

/// The sessions and schedules of a text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Parsed {
    pub(super) sessions: Vec<SessionSpec>,
    pub(super) schedules: Vec<ScheduleSpec>,
}

impl Format {
    /// Returns the format that a file's name tells. JSON is YAML too.
    pub(super) fn of_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "toml" => Some(Self::Toml),
            "yaml" | "yml" | "json" => Some(Self::Yaml),
            _ => None,
        }
    }

    /// Guesses the format from the first line with a content: in TOML a table, or a key and `=`.
    pub(super) fn of_text(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let first = lines.next().unwrap_or_default();
        let sign = first.find(['=', ':', '"', '\'']).and_then(|at| first[at..].chars().next());
        let is_quoted_key = || first.starts_with(['"', '\'']) && first.contains('=') && !first.contains(':');
        if first.starts_with('[') || sign == Some('=') || is_quoted_key() { Self::Toml } else { Self::Yaml }
    }

    /// Parses the sessions and schedules of a text.
    pub(super) fn parse(self, text: &str) -> Result<Parsed, TextMistake> {
        let documents = match self {
            Self::Toml => vec![toml::from_str::<Document>(text).map_err(|error| TextMistake {
                position: error.span().map(|span| position(text, span.start)),
                message: error.message().to_owned(),
            })?],
            Self::Yaml => {
                // A tag such as `!include` would be ignored, and its text taken as the value.
                let options = serde_saphyr::options! { with_snippet: false, reject_unsupported_tags: true };
                serde_saphyr::from_multiple_with_options(text, options).map_err(|error| of_yaml(&error))?
            }
        };
        if documents.is_empty() {
            return Err(TextMistake { position: None, message: NOTHING.to_owned() });
        }
        let mut parsed = Parsed::default();
        for Document(one) in documents {
            parsed.sessions.extend(one.sessions);
            parsed.schedules.extend(one.schedules);
        }
        Ok(parsed)
    }

    /// Writes one session as a file.
    pub fn write(self, spec: &SessionSpec) -> Result<String, String> {
        self.text(spec)
    }

    /// Writes one schedule, without the list around it.
    pub fn write_schedule(self, spec: &ScheduleSpec) -> Result<String, String> {
        self.text(spec)
    }

    /// Writes sessions as one file, which has the list also for a single session.
    pub fn write_all(self, sessions: &[SessionSpec]) -> Result<String, String> {
        #[derive(Serialize)]
        struct Many<'a> {
            sessions: &'a [SessionSpec],
        }
        self.text(&Many { sessions })
    }

    fn text(self, value: &impl Serialize) -> Result<String, String> {
        match self {
            Self::Toml => toml::to_string_pretty(value).map_err(|error| error.to_string()),
            Self::Yaml => serde_saphyr::to_string(value).map_err(|error| error.to_string()),
        }
    }
}

/// The message for a file without a session.
const NOTHING: &str = "there is no session in it";

/// Returns the line and the column of a byte.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

fn of_yaml(error: &serde_saphyr::Error) -> TextMistake {
    let position = error.location().map(|location| (location.line(), location.column()));
    let position = position.and_then(|(line, column)| Some((line.try_into().ok()?, column.try_into().ok()?)));
    let message = error.render_with_formatter(&UserMessageFormatter);
    let suffix = position.map(|(line, column): (usize, usize)| format!(" at line {line}, column {column}"));
    let message = suffix.and_then(|suffix| message.strip_suffix(&suffix).map(str::to_owned)).unwrap_or(message);
    TextMistake { position, message }
}

/// The contents of one document: a session, whose fields are those of the document, or lists.
///
/// A derived type would read the document twice, or lose the position of a mistake.
struct Document(Parsed);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the fields of a session, or `{SESSIONS}` and `{SCHEDULES}`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let FirstKey(first) = map.next_key()?.ok_or_else(|| A::Error::custom(NOTHING))?;
        if first != SESSIONS && first != SCHEDULES {
            let fields = MapAccessDeserializer::new(Continued { first: Some(first), map });
            let sessions = vec![SessionSpec::deserialize(fields)?];
            return Ok(Document(Parsed { sessions, schedules: Vec::new() }));
        }
        let mut parsed = Parsed::default();
        let mut next = Some(first);
        while let Some(key) = next {
            if key == SESSIONS {
                parsed.sessions = map.next_value()?;
            } else {
                parsed.schedules = map.next_value()?;
            }
            next = map.next_key::<ListKey>()?.map(|ListKey(key)| key);
        }
        Ok(Document(parsed))
    }
}

/// The first key of a document: a field of a session, or the key of a list. The parser adds the position to its errors.
struct FirstKey(String);

impl<'de> Deserialize<'de> for FirstKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        let mut known: Vec<&str> = FIELDS.iter().filter_map(|field| field.name.split('.').next()).collect();
        known.dedup();
        if key == SESSIONS || key == SCHEDULES || known.contains(&key.as_str()) {
            return Ok(Self(key));
        }
        let known = known.join("`, `");
        Err(D::Error::custom(format!(
            "unknown field `{key}`, expected one of `{known}`, or `{SESSIONS}` or `{SCHEDULES}`"
        )))
    }
}

/// A key after the first key of a list.
struct ListKey(String);

impl<'de> Deserialize<'de> for ListKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        if key == SESSIONS || key == SCHEDULES {
            return Ok(Self(key));
        }
        Err(D::Error::custom(format!("beside `{SESSIONS}` and `{SCHEDULES}` there is no field `{key}`")))
    }
}

/// A map whose first key has been read already.
struct Continued<A> {
    first: Option<String>,
    map: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Continued<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(first) => seed.deserialize(serde::de::value::StringDeserializer::new(first)).map(Some),
            None => self.map.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}
