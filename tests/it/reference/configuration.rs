//! The schema of the configuration, and the page of its keys, which is made from the schema.

use std::fmt::Write as _;

use agentd_api::configuration::Effect;
use agentd_config::{Effects, KeyOwner};
use serde_json::Value;

/// Makes the page from the schema.
pub(super) fn page(schema: &Value) -> String {
    let mut page = String::from(
        "# Configuration keys

[Configuration](../guide/configuration.md) describes the files. Editors that know JSON Schema check the keys while
you type: [agentd.schema.json](agentd.schema.json).

A *time* is a number of seconds, or a text such as `\"250ms\"`, `\"10m\"` or `\"1h30m\"`. A *size* is a number of
bytes, or a text such as `\"64K\"` or `\"2G\"`, with units that are multiples of 1024. The column *change* names the
time at which a changed value takes effect: at once, at the next launch of a session, or at agentd's next start. `–`
in the column *default* means that the key is not set. The last column then has the value that applies.

## Top level

",
    );
    Page { schema, text: &mut page }.table("", schema, KeyOwner::Anywhere);
    page
}

struct Page<'a> {
    schema: &'a Value,
    text: &'a mut String,
}

impl<'a> Page<'a> {
    /// Adds the rows of a table, and a section for each table inside.
    fn table(&mut self, path: &str, table: &'a Value, place: KeyOwner) {
        let required: Vec<&str> =
            table["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut rows = String::new();
        let mut sections = Vec::new();
        for (name, key) in table["properties"].as_object().expect("the table has keys") {
            let dotted = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let place = if path.is_empty() { KeyOwner::of(name) } else { place };
            if let Some((header, inner)) = self.inner(&dotted, key) {
                sections.push((header, meaning(key, true), inner, place));
                if !self.is_also_plain(key) {
                    continue;
                }
            }
            let default = match key.get("default").map(|default| Self::value(key, default)) {
                _ if required.contains(&name.as_str()) => "required".to_owned(),
                Some(Some(default)) => format!("`{default}`"),
                _ => "–".to_owned(),
            };
            let meaning = meaning(key, default == "–").replace('|', "\\|");
            let (kind, change) = (self.kind(key), change(&dotted));
            writeln!(rows, "| `{name}` | {kind} | {default} | {change} | {meaning} |").unwrap();
        }
        if !rows.is_empty() {
            write!(self.text, "| key | type | default | change | meaning |\n|---|---|---|---|---|\n{rows}").unwrap();
        }
        for (header, meaning, inner, place) in sections {
            write!(self.text, "\n## `{header}`\n\n{}\n{}\n\n", wrapped(&meaning), files(place)).unwrap();
            let path = header.trim_matches(['[', ']']);
            self.table(path, inner, place);
        }
    }

    /// Returns the header and the schema of a table below a key: one table, named tables, or an array of tables.
    fn inner(&self, dotted: &str, key: &'a Value) -> Option<(String, &'a Value)> {
        let key = self.resolved(key);
        if let Some(named) = key.get("additionalProperties").filter(|named| named.is_object()) {
            let name = if dotted == "directories" { "\"PATH\"" } else { "NAME" };
            let named = self.table_of(named)?;
            return Some((format!("[{dotted}.{name}]"), named));
        }
        match key.get("items") {
            Some(items) => Some((format!("[[{dotted}]]"), self.table_of(items)?)),
            None => Some((format!("[{dotted}]"), self.table_of(key)?)),
        }
    }

    /// Returns the schema of the table that a value may be.
    fn table_of(&self, schema: &'a Value) -> Option<&'a Value> {
        let schema = self.resolved(schema);
        if schema.get("properties").is_some() {
            return Some(schema);
        }
        schema["anyOf"].as_array()?.iter().find_map(|form| self.table_of(form))
    }

    /// Reports whether a key with a table can also have a value that is no table.
    fn is_also_plain(&self, key: &'a Value) -> bool {
        let key = self.resolved(key);
        let form = key.get("items").map_or(key, |items| self.resolved(items));
        let forms = form["anyOf"].as_array().into_iter().flatten();
        forms.filter(|form| form["type"] != "null").any(|form| self.table_of(form).is_none())
    }

    /// Returns the schema that a reference names.
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(path) => self.schema.pointer(path.trim_start_matches('#')).expect("the schema defines the name"),
            None => schema,
        }
    }

    /// Returns the name of a type, with its allowed values.
    fn kind(&self, schema: &'a Value) -> String {
        match schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            Some("Time") => return "time".to_owned(),
            Some("Size") => return "size".to_owned(),
            Some("Kept") => return "size, or `\"unlimited\"`".to_owned(),
            Some("Pin") => return "64 hexadecimal digits".to_owned(),
            Some("Settings") => return "table".to_owned(),
            _ => {}
        }
        let schema = self.resolved(schema);
        if let Some(value) = schema.get("const") {
            return format!("`{value}`");
        }
        if let Some(values) = schema["enum"].as_array() {
            return values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
        }
        if let Some(forms) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            let forms = forms.iter().filter(|form| form["type"] != "null").map(|form| self.kind(form));
            return forms.collect::<Vec<_>>().join(", ");
        }
        if let Some([(name, value)]) =
            schema["properties"].as_object().map(|keys| keys.iter().collect::<Vec<_>>()).as_deref()
        {
            return format!("`{{ {name} = {} }}`", self.kind(value).to_uppercase());
        }
        let types = schema["type"].as_array().and_then(|types| types.first()).unwrap_or(&schema["type"]);
        let numbers = match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
            (Some(least), Some(most)) => format!(" from {least} to {most}"),
            _ => String::new(),
        };
        match types.as_str() {
            Some("array") => match self.kind(&schema["items"]).as_str() {
                "text" => "list of texts".to_owned(),
                items => format!("list of: {items}"),
            },
            Some("object") if schema["additionalProperties"].is_object() => "table of texts".to_owned(),
            Some("object") => "table".to_owned(),
            Some("integer") => format!("whole number{numbers}"),
            Some("string") => "text".to_owned(),
            Some("boolean") => "`true`, `false`".to_owned(),
            other => panic!("no name for the type {other:?}: {schema}"),
        }
    }

    /// Returns a default value as a file has it, or `None` for an absent value.
    fn value(key: &Value, default: &Value) -> Option<String> {
        let is_size = matches!(key["$ref"].as_str(), Some("#/$defs/Size" | "#/$defs/Kept"));
        match default {
            Value::Null => None,
            Value::Number(bytes) if is_size => {
                let bytes = bytes.as_u64().expect("a size is a whole number");
                let (unit, factor) = [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)]
                    .into_iter()
                    .find(|(_, factor)| bytes.is_multiple_of(*factor))
                    .unwrap_or(("", 1));
                Some(format!("\"{}{unit}\"", bytes / factor))
            }
            Value::Array(values) => {
                let values = values.iter().filter_map(|value| Self::value(key, value)).collect::<Vec<_>>();
                Some(format!("[{}]", values.join(", ")))
            }
            Value::Object(_) => Some("{}".to_owned()),
            plain => Some(plain.to_string()),
        }
    }
}

/// Returns the description of a key as one line. The hand-written default is left out beside the real one.
fn meaning(key: &Value, with_default: bool) -> String {
    let text = key["description"].as_str().unwrap_or_else(|| panic!("no description: {key}"));
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentences = joined.split_inclusive(". ").filter(|sentence| with_default || !sentence.starts_with("Default: "));
    sentences.collect::<String>().trim_end().to_owned()
}

/// Breaks a text into lines of at most 120 columns, each with a line feed.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 120 => write!(line, " {word}").unwrap(),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

/// Returns when a change of the key takes effect.
fn change(key: &str) -> &'static str {
    match Effects::change(key).effect {
        Effect::Now => "at once",
        Effect::NextLaunch => "next launch",
        Effect::NextStart => "next start",
        Effect::Unknown => panic!("{key} has no effect"),
    }
}

/// Returns the sentence about the files that may contain a table.
fn files(place: KeyOwner) -> &'static str {
    match place {
        KeyOwner::Anywhere => "Place: `/etc/agentd` and the user's file.",
        KeyOwner::DeclaredOnce => {
            "Place: `/etc/agentd` and the user's file. The user's file cannot change an entry of `/etc/agentd`."
        }
        KeyOwner::Administrator => "Place: `/etc/agentd` alone.",
    }
}
