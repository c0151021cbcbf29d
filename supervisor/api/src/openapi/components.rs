//! The schemas of all types that routes send or read, each under its name.
//!
//! A type has two schemas if bodies may have another form than answers, for example sizes as texts. The schema of
//! bodies is then called `…Input`.

use std::collections::BTreeSet;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::Route;
use crate::feed::{FeedGone, FeedState, Heartbeat, MARKERS, Notice};
use crate::problem::Problem;

/// Beginning of a reference to a schema of the document.
const SCHEMAS: &str = "#/components/schemas/";

/// Words in the doc comment of a variant for values of later versions.
const LATER: &str = "newer than this reader.";

/// Collects the schemas of bodies and of answers, and the refusals that several routes share.
pub(super) struct Components {
    bodies: SchemaGenerator,
    answers: SchemaGenerator,
    /// Descriptions of refusals by their names.
    pub(super) refusals: Map<String, Value>,
}

impl Default for Components {
    fn default() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        let mut answers = settings().for_serialize().into_generator();
        answers.subschema_for::<Problem>();
        Self { bodies: settings().for_deserialize().into_generator(), answers, refusals: Map::new() }
    }
}

impl Components {
    /// Returns the schema of a route's body. [`Schemas::rename`] gives its references their final names.
    pub(super) fn body(&mut self, route: Route) -> Option<Value> {
        route.body_schema(&mut self.bodies).map(|schema| cleaned(schema.to_value()))
    }

    /// Returns the schema of a route's answer.
    pub(super) fn answer(&mut self, route: Route) -> Option<Value> {
        route.answer_schema(&mut self.answers).map(|schema| cleaned(schema.to_value()))
    }

    /// Describes the kinds of the feed's own events and markers, each with the schema of its data.
    pub(super) fn feed_kinds(&mut self) -> Map<String, Value> {
        let mut kinds = Notice::schemas(&mut self.answers);
        let data = [
            self.answers.subschema_for::<FeedState>(),
            self.answers.subschema_for::<FeedGone>(),
            self.answers.subschema_for::<Heartbeat>(),
        ];
        kinds.extend(MARKERS.iter().zip(data).map(|(named, data)| (named.name, named.meaning(), data)));
        let entry = |(kind, meaning, data): (&str, String, schemars::Schema)| {
            (kind.to_owned(), json!({ "description": meaning, "data": cleaned(data.to_value()) }))
        };
        kinds.into_iter().map(entry).collect()
    }

    /// Returns all schemas.
    pub(super) fn schemas(mut self) -> Schemas {
        let clean = |definitions: Map<String, Value>| -> Map<String, Value> {
            definitions.into_iter().map(|(name, schema)| (name, cleaned(schema))).collect()
        };
        let bodies = clean(self.bodies.take_definitions(true));
        let mut all = clean(self.answers.take_definitions(true));
        let renamed = different(&bodies, &all);
        for (name, mut schema) in bodies {
            rename(&mut schema, &renamed);
            all.insert(if renamed.contains(&name) { input(&name) } else { name }, schema);
        }
        Schemas { all, renamed }
    }
}

/// The schemas by their names, and the names of types that have another schema in bodies.
pub(super) struct Schemas {
    pub(super) all: Map<String, Value>,
    renamed: BTreeSet<String>,
}

impl Schemas {
    /// Gives references of a body's schema their final names.
    pub(super) fn rename(&self, schema: &mut Value) {
        rename(schema, &self.renamed);
    }
}

fn input(name: &str) -> String {
    format!("{name}Input")
}

/// Returns the types whose schema differs between bodies and answers, or that contain such a type.
fn different(bodies: &Map<String, Value>, answers: &Map<String, Value>) -> BTreeSet<String> {
    let differs = |(name, schema): &(&String, &Value)| answers.get(*name).is_some_and(|other| other != *schema);
    let mut found: BTreeSet<String> = bodies.iter().filter(differs).map(|(name, _)| name.clone()).collect();
    loop {
        let contains = |(_, schema): &(&String, &Value)| {
            let mut copy = (*schema).clone();
            rename(&mut copy, &found);
            copy != **schema
        };
        let more: BTreeSet<String> = bodies
            .iter()
            .filter(|(name, _)| answers.contains_key(*name) && !found.contains(*name))
            .filter(contains)
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Renames the references to these types.
fn rename(schema: &mut Value, renamed: &BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(name) = reference.strip_prefix(SCHEMAS).filter(|name| renamed.contains(*name))
            {
                *reference = format!("{SCHEMAS}{}", input(name));
            }
            fields.values_mut().for_each(|value| rename(value, renamed));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, renamed)),
        _ => {}
    }
}

/// Prepares a derived schema for readers: doc comments become plain text, and enums become lists of their values.
fn cleaned(mut schema: Value) -> Value {
    clean(&mut schema);
    schema
}

fn clean(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(clean);
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = plain(text);
            }
            // A field that may be absent has no value that could be shown as its default.
            if fields.get("default").is_some_and(Value::is_null) {
                fields.remove("default");
            }
            // Some generators read only objects as schemas of properties.
            let properties = fields.get_mut("properties").and_then(Value::as_object_mut);
            for property in properties.into_iter().flat_map(Map::values_mut).filter(|property| **property == true) {
                *property = json!({});
            }
            if !is_list_of_values(fields) {
                leave_out_later_variants(fields);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        _ => {}
    }
}

/// Returns a doc comment as plain text: one line for each paragraph, without links.
fn plain(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut text = paragraphs.collect::<Vec<_>>().join("\n\n");
    while let Some((before, rest)) = text.split_once("[`")
        && let Some((target, after)) = rest.split_once("`]")
    {
        let name = target.rsplit("::").next().unwrap_or_default();
        text = format!("{before}`{name}`{after}");
    }
    text
}

/// Reports whether a form of an enum is for values of later versions, so that later versions add some.
fn is_later(form: &Value) -> bool {
    form["description"].as_str().is_some_and(|text| text.contains(LATER))
}

/// Reports whether a form of an enum is for values of later versions alone. This version never writes such a form.
fn is_only_later(form: &Value) -> bool {
    is_later(form) && form["description"].as_str().is_some_and(|text| text.starts_with("A ") || text.starts_with("An "))
}

/// Makes a list of values from the forms of an enum whose variants have no data. Reports whether it is such an enum.
fn is_list_of_values(fields: &mut Map<String, Value>) -> bool {
    let Some(Value::Array(forms)) = fields.get("oneOf") else { return false };
    let (mut values, mut meanings, mut is_extensible) = (Vec::new(), Map::new(), false);
    for form in forms {
        if form["type"] != "string" {
            return false;
        }
        match (form["const"].as_str(), form["enum"].as_array()) {
            (Some(_), _) if is_only_later(form) => is_extensible = true,
            (Some(value), _) => {
                is_extensible |= is_later(form);
                values.push(json!(value));
                if let Some(meaning) = form.get("description") {
                    meanings.insert(value.to_owned(), meaning.clone());
                }
            }
            (None, Some(more)) => values.extend(more.iter().cloned()),
            (None, None) => return false,
        }
    }
    fields.remove("oneOf");
    fields.insert("type".to_owned(), json!("string"));
    fields.insert("enum".to_owned(), Value::Array(values));
    if !meanings.is_empty() {
        fields.insert("x-enum-descriptions".to_owned(), Value::Object(meanings));
    }
    if is_extensible {
        fields.insert("x-extensible-enum".to_owned(), json!(true));
    }
    true
}

/// Removes the forms of an enum that are for values of later versions.
fn leave_out_later_variants(fields: &mut Map<String, Value>) {
    for key in ["oneOf", "anyOf"] {
        let Some(Value::Array(forms)) = fields.get_mut(key) else { continue };
        let is_extensible = forms.iter().any(is_later);
        forms.retain(|form| !is_only_later(form));
        if is_extensible {
            fields.insert("x-extensible-enum".to_owned(), json!(true));
        }
    }
}
