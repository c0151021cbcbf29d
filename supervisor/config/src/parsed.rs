//! Parses one configuration file and records the positions of its keys and its mistakes.
//!
//! A mistake removes the key that contains it, and the rest of the file is still read. [`super::assemble`] decides
//! whether the rest takes effect.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use agentd_api::configuration::{Consequence, Mistake};
use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::Config;
use super::files::Text;
use super::hidden::{self, Secret};
use super::template::TemplateFile;

/// Path of a key, from the outermost table inwards. An element of an array is `[N]`.
pub(super) type Key = Vec<String>;

/// A parsed configuration file.
#[derive(Debug)]
pub(super) struct ParsedFile {
    pub(super) path: PathBuf,
    pub(super) of_user: bool,
    /// The file's content without the keys that have mistakes.
    pub(super) table: toml::Table,
    pub(super) mistakes: Vec<Flaw>,
    /// The template that the file names.
    pub(super) template: Option<TemplateFile>,
    places: Positions,
}

/// A mistake and the key that contains it.
#[derive(Debug, Clone)]
pub(super) struct Flaw {
    pub(super) key: Key,
    pub(super) mistake: Mistake,
}

/// Positions of a file's keys, and the secrets in the file.
#[derive(Debug, Default)]
struct Positions {
    content: String,
    keys: BTreeMap<Key, Position>,
    secrets: Vec<Secret>,
}

#[derive(Debug, Clone)]
struct Position {
    /// Position of the key, or of the array element.
    name: Range<usize>,
    value: Range<usize>,
}

/// Maximum number of mistakes that are reported for one file.
const MAX_MISTAKES: usize = 100;

impl ParsedFile {
    pub(super) fn read(text: Text) -> Self {
        let Text { path, content, of_user, template } = text;
        let (mut document, errors) = DeTable::parse_recoverable(&content);
        let mut places = Positions { content: content.clone(), ..Positions::default() };
        places.collect(&mut Vec::new(), document.get_ref());
        let mut written = Self { path, of_user, table: toml::Table::new(), mistakes: Vec::new(), template, places };
        for error in &errors {
            written.note(Vec::new(), error);
        }
        while written.mistakes.len() < MAX_MISTAKES {
            let Err(error) = Config::deserialize(Deserializer::from(document.clone())) else { break };
            let key = error.span().map(|span| written.places.at(&span)).unwrap_or_default();
            written.note(key.clone(), &error);
            if !written.places.leave_out(document.get_mut(), &removable(&key), 0) {
                // Without the key of the mistake, no part of the file is known to be valid.
                *document.get_mut() = DeTable::new();
            }
        }
        written.table = toml::Table::deserialize(Deserializer::from(document)).unwrap_or_default();
        written
    }

    /// Adds a mistake that the parser found. Only the first mistake of each line is kept, because later ones mostly
    /// follow from it.
    fn note(&mut self, key: Key, error: &toml::de::Error) {
        let (line, column) = error.span().map(|span| self.places.line_and_column(span.start)).unzip();
        if line.is_some() && self.mistakes.iter().any(|known| known.mistake.line == line) {
            return;
        }
        let message = self.masked(&key, error.message().trim().replace('\n', ", "));
        let mistake = Mistake {
            file: Some(self.path.clone()),
            line,
            column,
            key: dotted(&key),
            suggestion: suggestion(&message),
            message,
            consequence: Consequence::LaunchesRefused,
        };
        self.mistakes.push(Flaw { key, mistake });
    }

    /// Returns a mistake in a key of this file that shows only in the merged configuration.
    pub(super) fn mistake(&self, key: &[String], message: String, consequence: Consequence) -> Mistake {
        let (line, column) = self.place(key).unzip();
        let message = self.masked(key, message);
        Mistake {
            file: Some(self.path.clone()),
            line,
            column,
            key: dotted(key),
            message,
            suggestion: None,
            consequence,
        }
    }

    /// Masks possible secrets in a message about a key of this file. An empty key means the whole file.
    pub(super) fn masked(&self, key: &[String], message: String) -> String {
        hidden::mask_secrets(&self.places.secrets, key, message)
    }

    /// Returns line and column of the key, or of the nearest table around the key that the file contains.
    pub(super) fn place(&self, key: &[String]) -> Option<(u32, u32)> {
        let mut around = (1..=key.len()).rev().map(|length| &key[..length]);
        let place = around.find_map(|key| self.places.keys.get(key))?;
        Some(self.places.line_and_column(place.name.start))
    }

    pub(super) fn contains_key(&self, key: &[String]) -> bool {
        self.places.keys.contains_key(key)
    }
}

impl Positions {
    fn collect(&mut self, around: &mut Key, table: &DeTable<'_>) {
        for (name, value) in table {
            around.push(name.get_ref().to_string());
            self.value(around, name.span(), value, None);
            around.pop();
        }
    }

    /// Records a value. `option` is the text of the preceding array element.
    fn value(&mut self, key: &mut Key, name: Range<usize>, value: &Spanned<DeValue<'_>>, option: Option<&str>) {
        self.keys.insert(key.clone(), Position { name, value: value.span() });
        match value.get_ref() {
            DeValue::Table(table) => self.collect(key, table),
            DeValue::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let before = index.checked_sub(1).and_then(|before| elements[before].get_ref().as_str());
                    key.push(format!("[{index}]"));
                    self.value(key, element.span(), element, before);
                    key.pop();
                }
            }
            DeValue::String(text) => {
                let secret = hidden::secret_part(key, option, text).map(str::to_owned);
                self.secrets.extend(secret.map(|text| Secret { key: key.clone(), text }));
            }
            _ if hidden::is_secret(key) => {
                let text = self.content.get(value.span()).unwrap_or_default().to_owned();
                self.secrets.push(Secret { key: key.clone(), text });
            }
            _ => {}
        }
    }

    /// Removes the key `key` from the table, which is at depth `depth` of the key. Returns whether the key existed.
    /// An array element is identified by its position in the text, because earlier elements may have been removed.
    fn leave_out(&self, table: &mut DeTable<'_>, key: &[String], depth: usize) -> bool {
        let Some(part) = key.get(depth) else { return false };
        let Some(name) = table.keys().find(|name| name.get_ref() == part).cloned() else { return false };
        if depth + 1 == key.len() {
            return table.remove(&name).is_some();
        }
        let Some(value) = table.get_mut(&name) else { return false };
        match value.get_mut() {
            DeValue::Table(inner) => self.leave_out(inner, key, depth + 1),
            DeValue::Array(elements) => {
                let Some(place) = self.keys.get(&key[..depth + 2]) else { return false };
                let kept = elements.iter().filter(|element| element.span() != place.value);
                let kept: toml::de::DeArray<'_> = kept.cloned().collect();
                let is_less = kept.len() < elements.len();
                *elements = kept;
                is_less
            }
            _ => false,
        }
    }

    /// Returns the innermost key whose name or value contains this part of the text.
    fn at(&self, span: &Range<usize>) -> Key {
        let has = |place: &Range<usize>| place.start <= span.start && span.end <= place.end;
        let found = self.keys.iter().filter(|(_, place)| has(&place.name) || has(&place.value));
        found.max_by_key(|(key, _)| key.len()).map(|(key, _)| key.clone()).unwrap_or_default()
    }

    /// Returns the line and the column of an offset. Both start at 1, and a column counts characters.
    fn line_and_column(&self, offset: usize) -> (u32, u32) {
        let before = &self.content.as_bytes()[..offset.min(self.content.len())];
        let line = before.split(|&byte| byte == b'\n').next_back().unwrap_or_default();
        let lines = memchr::memchr_iter(b'\n', before).count();
        let number = |count: usize| u32::try_from(count + 1).unwrap_or(u32::MAX);
        (number(lines), number(String::from_utf8_lossy(line).chars().count()))
    }
}

/// Formats the key as it appears in a file, for example `limits.turn` or `permissions[0].answer`.
pub(super) fn dotted(key: &[String]) -> String {
    key.iter().fold(String::new(), |dotted, part| {
        if dotted.is_empty() || part.starts_with('[') { dotted + part } else { format!("{dotted}.{part}") }
    })
}

/// Returns the key to remove for a mistake in `key`: a whole array, unless its elements are tables.
pub(super) fn removable(key: &[String]) -> Key {
    let element = key.iter().position(|part| part.starts_with('['));
    let length = match element {
        Some(index) if key.len() > index + 1 => index + 1,
        Some(index) => index,
        None => key.len(),
    };
    // A plugin, an agent, a place, a secret or a prerequisite is removed as a whole.
    let one_of_many =
        ["plugins", "agents", "places", "secrets", "prerequisites"].contains(&key.first().map_or("", |key| key));
    key[..if one_of_many { length.min(2) } else { length }].to_vec()
}

/// Returns the known key or value that is most similar to an unknown one, if any is similar enough. The message of
/// serde lists the known ones in backticks.
fn suggestion(message: &str) -> Option<String> {
    const NEAR: f64 = 0.8;
    if !message.starts_with("unknown ") {
        return None;
    }
    let mut words = message.split('`').skip(1).step_by(2);
    let wrong = words.next()?;
    let rated = words.map(|word| (strsim::jaro_winkler(wrong, word), word)).filter(|(rate, _)| *rate >= NEAR);
    rated.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, word)| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> ParsedFile {
        ParsedFile::read(Text { path: "/a.toml".into(), content: content.to_owned(), of_user: true, template: None })
    }

    fn mistakes(content: &str) -> Vec<(Option<u32>, Option<u32>, String)> {
        let mistakes = read(content).mistakes.into_iter().map(|flaw| flaw.mistake);
        mistakes.map(|mistake| (mistake.line, mistake.column, mistake.key)).collect()
    }

    #[test]
    fn each_mistake_has_its_line_its_column_and_its_key() {
        let text = "default_agent = 7\n\n[limits]\n  launchs = 2\nturn = \"soon\"\nbody = 9\n\
                    [[permissions]]\nanswer = \"yes\"\n";
        assert_eq!(
            mistakes(text),
            [
                (Some(1), Some(17), "default_agent".to_owned()),
                (Some(4), Some(3), "limits.launchs".to_owned()),
                (Some(5), Some(8), "limits.turn".to_owned()),
                (Some(8), Some(10), "permissions[0].answer".to_owned()),
            ]
        );
        // The rest of the file is still read.
        let read = read(text);
        assert_eq!(read.table["limits"]["body"].as_integer(), Some(9));
        assert!(read.table["limits"].get("turn").is_none() && read.table["permissions"].as_array().unwrap().is_empty());
    }

    #[test]
    fn a_text_that_is_not_toml_is_read_as_far_as_it_goes() {
        let text = "[limits]\nbody = 9\n[launch\nrestart = \"never\"\n";
        assert_eq!(mistakes(text)[0].0, Some(3));
        assert_eq!(read(text).table["limits"]["body"].as_integer(), Some(9));
        for text in ["\u{0}", "[", "= 1", "a.", "a = [", "\"", "a = \"\"\"", "[[a]]\n[a]\n", "a = 1\na = 2\n"] {
            assert!(!mistakes(text).is_empty(), "{text:?}");
        }
    }

    #[test]
    fn a_misspelt_key_has_a_suggestion_and_a_strange_one_has_none() {
        let suggestion = |text: &str| read(text).mistakes[0].mistake.suggestion.clone();
        assert_eq!(suggestion("[limits]\nlaunchs = 2").as_deref(), Some("launches"));
        assert_eq!(suggestion("[enviroment]\n").as_deref(), Some("environment"));
        assert_eq!(suggestion("[launch]\nrestart = \"on-failur\"").as_deref(), Some("on-failure"));
        assert_eq!(suggestion("[limits]\nquux = 2"), None);
    }

    #[test]
    fn of_an_array_each_element_with_a_mistake_is_left_out_and_no_other() {
        let right = |title: &str| format!("[[permissions]]\ntitle = \"{title}\"\nanswer = \"ask\"\n");
        let wrong = "[[permissions]]\nanswer = \"yes\"\n";
        let text = [wrong, &right("one"), wrong, &right("two"), wrong, &right("three")].concat();
        let read = read(&text);
        assert_eq!(read.mistakes.len(), 3);
        let kept = read.table["permissions"].as_array().unwrap().iter().map(|rule| rule["title"].as_str().unwrap());
        assert_eq!(kept.collect::<Vec<_>>(), ["one", "two", "three"]);
    }

    #[test]
    fn no_mistake_says_a_secret() {
        for text in [
            "[control]\ntoken = \"hunter2-s3cret\"",
            "[control]\ntokens = { ops = \"hunter2-s3cret\" }",
            "[control]\ntoken = [\"hunter2-s3cret\"]",
            "[control]\ntoken = { file = [\"hunter2-s3cret\"] , hunter = 1 }",
            "secrets.A = \"hunter2-s3cret\"",
            "[environment.encryption]\nkey = \"hunter2-s3cret\"",
            "[environment.encryption]\nprevious = [\"hunter2-s3cret\"]",
            "[agents.a]\ncommand = \"TOKEN=hunter2-s3cret\"",
            "[agents.a]\ncommand = [\"--token\", \"hunter2-s3cret\"]\nrefresh = \"sk-hunter2-s3cret-0123456789\"",
            "[limits]\napi_key = \"hunter2-s3cret\"",
            "[limits]\nturn = \"sk-hunter2-s3cret-0123456789\"",
            "[limits]\nturn = \"https://kim:hunter2-s3cret@host\"",
            "token = \"hunter2-s3cret",
            "token = hunter2-s3cret",
            "token hunter2-s3cret",
            "token = \"a\" \"hunter2-s3cret\"",
            "token = 'hunter2-s3cret\n'",
            "[plugins.a]\nsettings = \"password=hunter2-s3cret\"",
        ] {
            let read = read(text);
            assert!(!read.mistakes.is_empty(), "{text}");
            for Flaw { mistake, .. } in &read.mistakes {
                assert!(!format!("{mistake:?}").contains("hunter2-s3cret"), "{text}: {mistake:?}");
            }
        }
        let message = &read("secrets.A = 12345678").mistakes[0].mistake.message;
        assert!(message.contains("***") && !message.contains("12345678"), "{message}");
        // Values that are no secrets stay in the message, because they help the user.
        let message = &read("[launch]\nrestart = \"soon\"\n").mistakes[0].mistake.message;
        assert!(message.contains("soon"), "{message}");
    }

    #[test]
    fn a_mistake_in_one_plugin_leaves_out_the_whole_of_it_and_nothing_else() {
        let pin = "sha256 = \"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\"";
        let written = read(&format!("[plugins.a]\n{pin}\n[plugins.b]\n{pin}\nlimits = {{ time = true }}\n"));
        assert_eq!(written.mistakes.len(), 1);
        assert_eq!(written.mistakes[0].key[..2], ["plugins", "b"]);
        assert_eq!(written.table["plugins"].as_table().unwrap().keys().collect::<Vec<_>>(), ["a"]);
    }
}
