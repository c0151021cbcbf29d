//! Questions of an agent that are answered with values or on a page (ACP `elicitation/create`,
//! <https://agentclientprotocol.com/protocol/elicitation>).
//!
//! The protocol restricts a form to a flat object of strings, numbers, booleans and lists of choices. [`Form`] reads
//! such a schema tolerantly: a field of an unknown type takes any JSON value.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Values of a form, by the names of its fields.
pub type FormValues = Map<String, Value>;

/// Id of the option that accepts a question: sends the values, or agrees to open the page.
pub const ACCEPT: &str = "accept";
/// Id of the option that declines a question.
pub const DECLINE: &str = "decline";

/// Maximum number of fields of a form that are read.
const FIELDS: usize = 64;

/// The form or the page of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "mode", rename_all = "kebab-case")]
pub enum Elicitation {
    /// The answer has values.
    Form {
        /// JSON Schema of the values, as the agent sent it.
        schema: Value,
        /// Names of the fields in the agent's order, which a JSON object does not keep.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        order: Vec<String>,
    },
    /// The answer is given on a page, which a person opens in a browser.
    Url {
        /// The agent's id of the question, which its `elicitation/complete` names.
        id: String,
        /// Address of the page.
        url: String,
    },
    /// A mode newer than this reader. It can only be declined.
    #[serde(other)]
    Unknown,
}

impl Elicitation {
    /// Returns the form, if the question has one.
    pub fn form(&self) -> Option<Form> {
        match self {
            Self::Form { schema, order } => Some(Form::of(schema, order)),
            Self::Url { .. } | Self::Unknown => None,
        }
    }
}

/// The fields of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    /// The fields, in the agent's order.
    pub fields: Vec<Field>,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Name of the value.
    pub name: String,
    /// Title for people.
    pub title: Option<String>,
    /// Description for people.
    pub description: Option<String>,
    /// Whether the answer must have the value.
    pub is_required: bool,
    /// Value of a field that is not filled in.
    pub default: Option<Value>,
    /// Type of the value.
    pub kind: FieldKind,
}

/// Type of a field's value, with its bounds. All bounds are inclusive; lengths count characters.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldKind {
    /// A text. The agent alone checks a pattern and a format.
    Text { shortest: Option<u64>, longest: Option<u64>, format: Option<String> },
    /// A number. `is_whole` requires a whole one.
    Number { is_whole: bool, least: Option<f64>, most: Option<f64> },
    /// True or false.
    Boolean,
    /// One of the choices.
    Choice(Vec<Choice>),
    /// Any of the choices, within the bounds of their number.
    Choices { choices: Vec<Choice>, fewest: Option<u64>, most: Option<u64> },
    /// A type newer than this reader.
    Other,
}

/// A choice of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The value.
    pub value: String,
    /// Title for people.
    pub title: String,
    /// Description for people.
    pub description: Option<String>,
}

/// Reason why values do not fit a form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The answer lacks a required value.
    #[error("the value {name:?} is missing ({expected})")]
    Missing { name: String, expected: String },
    /// The form has no such field.
    #[error("the form has no field {name:?}; its fields are {known}")]
    NoField { name: String, known: String },
    /// The value does not fit the field.
    #[error("the value of {name:?} does not fit: expected {expected}")]
    Unfit { name: String, expected: String },
}

impl Form {
    /// Reads the schema of a form. Fields that `order` does not name follow the others.
    pub fn of(schema: &Value, order: &[String]) -> Self {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = schema["properties"].as_object().into_iter().flatten().take(FIELDS);
        let fields = properties.map(|(name, field)| Field::of(name, field, required.contains(&name.as_str())));
        let mut fields: Vec<Field> = fields.collect();
        fields.sort_by_key(|field| order.iter().position(|name| *name == field.name).unwrap_or(usize::MAX));
        Self { fields }
    }

    /// Checks values against the form, and adds the defaults of absent ones.
    pub fn check(&self, mut values: FormValues) -> Result<FormValues, FormError> {
        if let Some(name) = values.keys().find(|name| self.fields.iter().all(|field| field.name != **name)) {
            let known: Vec<_> = self.fields.iter().map(|field| field.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(FormError::NoField { name: name.clone(), known });
        }
        for field in &self.fields {
            let expected = || field.kind.to_string();
            match (values.get(&field.name), &field.default) {
                (Some(value), _) if field.kind.fits(value) => {}
                (Some(_), _) => return Err(FormError::Unfit { name: field.name.clone(), expected: expected() }),
                (None, Some(default)) => drop(values.insert(field.name.clone(), default.clone())),
                (None, None) if field.is_required => {
                    return Err(FormError::Missing { name: field.name.clone(), expected: expected() });
                }
                (None, None) => {}
            }
        }
        Ok(values)
    }

    /// Returns the only field, if it is one choice. Such a form is a question with several answers.
    pub fn single_choice(&self) -> Option<(&Field, &[Choice])> {
        match &*self.fields {
            [field @ Field { kind: FieldKind::Choice(choices), .. }] if !choices.is_empty() => Some((field, choices)),
            _ => None,
        }
    }
}

impl Field {
    fn of(name: &str, schema: &Value, is_required: bool) -> Self {
        let text = |key: &str| schema[key].as_str().map(str::to_owned);
        let kind = FieldKind::of(schema);
        // A default that does not fit would be refused by the agent.
        let default = schema.get("default").filter(|default| kind.fits(default)).cloned();
        Self {
            name: name.to_owned(),
            title: text("title"),
            description: text("description"),
            is_required,
            default,
            kind,
        }
    }

    /// Reads the value that a person typed: a choice by its number, its value or its title, several separated by
    /// commas.
    pub fn read(&self, typed: &str) -> Result<Value, FormError> {
        let typed = typed.trim();
        let value = match &self.kind {
            FieldKind::Text { .. } => Some(Value::from(typed)),
            FieldKind::Number { .. } => serde_json::from_str(typed).ok(),
            FieldKind::Boolean => match typed.to_lowercase().as_str() {
                "y" | "yes" | "true" | "on" => Some(Value::Bool(true)),
                "n" | "no" | "false" | "off" => Some(Value::Bool(false)),
                _ => None,
            },
            FieldKind::Choice(choices) => chosen(choices, typed).map(Value::from),
            FieldKind::Choices { choices, .. } => {
                let words = typed.split(',').map(str::trim).filter(|word| !word.is_empty());
                words.map(|word| chosen(choices, word).map(Value::from)).collect::<Option<Vec<_>>>().map(Value::from)
            }
            FieldKind::Other => Some(serde_json::from_str(typed).unwrap_or_else(|_| Value::from(typed))),
        };
        let unfit = || FormError::Unfit { name: self.name.clone(), expected: self.kind.to_string() };
        value.filter(|value| self.kind.fits(value)).ok_or_else(unfit)
    }
}

/// Returns the value of the choice that a person typed.
fn chosen(choices: &[Choice], typed: &str) -> Option<String> {
    let by_value = || choices.iter().find(|choice| choice.value == typed);
    let by_title = || choices.iter().find(|choice| choice.title.eq_ignore_ascii_case(typed));
    let by_number = || choices.get(typed.parse::<usize>().ok()?.checked_sub(1)?);
    by_value().or_else(by_title).or_else(by_number).map(|choice| choice.value.clone())
}

impl FieldKind {
    fn of(schema: &Value) -> Self {
        let whole = |key: &str| schema[key].as_u64();
        match schema["type"].as_str() {
            Some("string") => match choices(schema) {
                Some(choices) => Self::Choice(choices),
                None => Self::Text {
                    shortest: whole("minLength"),
                    longest: whole("maxLength"),
                    format: schema["format"].as_str().map(str::to_owned),
                },
            },
            Some(kind @ ("number" | "integer")) => Self::Number {
                is_whole: kind == "integer",
                least: schema["minimum"].as_f64(),
                most: schema["maximum"].as_f64(),
            },
            Some("boolean") => Self::Boolean,
            Some("array") => match choices(&schema["items"]) {
                Some(choices) => Self::Choices { choices, fewest: whole("minItems"), most: whole("maxItems") },
                None => Self::Other,
            },
            _ => Self::Other,
        }
    }

    /// Reports whether a value has this type and is within the bounds.
    fn fits(&self, value: &Value) -> bool {
        let within = |count: usize, least: Option<u64>, most: Option<u64>| {
            let count = count as u64;
            least.is_none_or(|least| count >= least) && most.is_none_or(|most| count <= most)
        };
        let offers = |choices: &[Choice], value: &str| choices.iter().any(|choice| choice.value == value);
        match self {
            Self::Text { shortest, longest, .. } => {
                value.as_str().is_some_and(|text| within(text.chars().count(), *shortest, *longest))
            }
            Self::Number { is_whole, least, most } => value.as_f64().is_some_and(|number| {
                let is_kind = !is_whole || value.is_i64() || value.is_u64();
                is_kind && least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most)
            }),
            Self::Boolean => value.is_boolean(),
            Self::Choice(choices) => value.as_str().is_some_and(|value| offers(choices, value)),
            Self::Choices { choices, fewest, most } => value.as_array().is_some_and(|values| {
                let are_offered = values.iter().all(|value| value.as_str().is_some_and(|value| offers(choices, value)));
                are_offered && within(values.len(), *fewest, *most)
            }),
            Self::Other => true,
        }
    }
}

/// Describes the expected value: `a whole number from 1 to 9`.
impl std::fmt::Display for FieldKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named =
            |choices: &[Choice]| choices.iter().map(|choice| choice.value.as_str()).collect::<Vec<_>>().join(", ");
        match self {
            Self::Text { shortest, longest, format } => {
                write!(f, "a text")?;
                bounds(f, shortest.as_ref(), longest.as_ref(), " with", " characters")?;
                format.as_ref().map_or(Ok(()), |format| write!(f, " in the format {format}"))
            }
            Self::Number { is_whole, least, most } => {
                write!(f, "{}", if *is_whole { "a whole number" } else { "a number" })?;
                bounds(f, least.as_ref(), most.as_ref(), "", "")
            }
            Self::Boolean => write!(f, "true or false"),
            Self::Choice(choices) => write!(f, "one of {}", named(choices)),
            Self::Choices { choices, fewest, most } => {
                write!(f, "any of {}", named(choices))?;
                bounds(f, fewest.as_ref(), most.as_ref(), ",", " of them")
            }
            Self::Other => write!(f, "a JSON value"),
        }
    }
}

fn bounds<N: std::fmt::Display>(
    f: &mut std::fmt::Formatter<'_>,
    least: Option<&N>,
    most: Option<&N>,
    before: &str,
    unit: &str,
) -> std::fmt::Result {
    match (least, most) {
        (Some(least), Some(most)) => write!(f, "{before} from {least} to {most}{unit}"),
        (Some(least), None) => write!(f, "{before} at least {least}{unit}"),
        (None, Some(most)) => write!(f, "{before} at most {most}{unit}"),
        (None, None) => Ok(()),
    }
}

/// Returns the choices of a schema: `enum`, or `oneOf` or `anyOf` with titles.
fn choices(schema: &Value) -> Option<Vec<Choice>> {
    let plain = |value: &str| Choice { value: value.to_owned(), title: value.to_owned(), description: None };
    if let Some(values) = schema["enum"].as_array() {
        return Some(values.iter().filter_map(Value::as_str).map(plain).collect());
    }
    let titled = ["oneOf", "anyOf"].iter().find_map(|key| schema[*key].as_array())?;
    let text = |option: &Value, key: &str| option[key].as_str().map(str::to_owned);
    let choice = |option: &Value| {
        let value = text(option, "const")?;
        let title = text(option, "title").unwrap_or_else(|| value.clone());
        Some(Choice { value, title, description: text(option, "description") })
    };
    Some(titled.iter().filter_map(choice).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn form() -> Form {
        Form::of(
            &json!({
                "type": "object",
                "required": ["name", "size", "colour"],
                "properties": {
                    "name": { "type": "string", "minLength": 2, "maxLength": 4 },
                    "size": { "type": "integer", "minimum": 1, "maximum": 9, "default": 3 },
                    "ratio": { "type": "number" },
                    "fast": { "type": "boolean", "default": "no boolean" },
                    "colour": { "type": "string", "oneOf": [
                        { "const": "r", "title": "Red", "description": "like blood" },
                        { "const": "g", "title": "Green" },
                        { "title": "no value" }] },
                    "parts": { "type": "array", "items": { "enum": ["a", "b", "c"] }, "maxItems": 2 },
                    "new": { "type": "date-of-tomorrow" },
                },
            }),
            &["size", "name", "colour"].map(str::to_owned),
        )
    }

    fn values(values: Value) -> FormValues {
        serde_json::from_value(values).unwrap()
    }

    #[test]
    fn values_are_checked_and_defaults_are_added() {
        let form = form();
        let names: Vec<_> = form.fields.iter().take(3).map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["size", "name", "colour"], "fields without a place follow");
        let good = json!({ "name": "né", "colour": "g", "parts": ["a", "b"], "new": [1], "ratio": 0.5 });
        let checked = form.check(values(good)).unwrap();
        assert_eq!(checked["size"], 3);
        assert!(!checked.contains_key("fast"), "a default of another type is no default");
        let error = |given: Value| form.check(values(given)).unwrap_err().to_string();
        for (given, expected) in [
            (json!({ "colour": "g" }), r#"the value "name" is missing (a text with from 2 to 4 characters)"#),
            (json!({ "name": "néééé", "colour": "g" }), r#"the value of "name" does not fit"#),
            (json!({ "name": "ab", "colour": "Green" }), "expected one of r, g"),
            (json!({ "name": "ab", "colour": "g", "size": 1.5 }), "expected a whole number from 1 to 9"),
            (json!({ "name": "ab", "colour": "g", "size": "3" }), "expected a whole number from 1 to 9"),
            (json!({ "name": "ab", "colour": "g", "parts": ["a", "b", "c"] }), "any of a, b, c, at most 2 of them"),
            (json!({ "name": "ab", "colour": "g", "fast": 1 }), "expected true or false"),
            (json!({ "name": "ab", "colour": "g", "other": 1 }), r#"no field "other"; its fields are "#),
        ] {
            let said = error(given.clone());
            assert!(said.contains(expected), "{given}: {said}");
        }
    }

    #[test]
    fn a_person_types_a_choice_by_number_value_or_title() {
        let form = form();
        let read = |name: &str, typed: &str| {
            form.fields.iter().find(|field| field.name == name).unwrap().read(typed).map_err(|error| error.to_string())
        };
        for (name, typed, value) in [
            ("name", " ab ", json!("ab")),
            ("size", "9", json!(9)),
            ("ratio", "-1e3", json!(-1000.0)),
            ("fast", "Y", json!(true)),
            ("fast", "off", json!(false)),
            ("colour", "2", json!("g")),
            ("colour", "red", json!("r")),
            ("colour", "r", json!("r")),
            ("parts", "3, a", json!(["c", "a"])),
            ("parts", "", json!([])),
            ("new", "tomorrow", json!("tomorrow")),
            ("new", "[1]", json!([1])),
        ] {
            assert_eq!(read(name, typed), Ok(value), "{name} {typed:?}");
        }
        for (name, typed) in
            [("size", "10"), ("size", "x"), ("colour", "3"), ("colour", "0"), ("fast", ""), ("parts", "d")]
        {
            assert!(read(name, typed).is_err(), "{name} {typed:?}");
        }
    }

    #[test]
    fn a_schema_that_is_none_is_an_empty_form() {
        for schema in [json!(null), json!([]), json!({ "properties": [] }), json!({ "required": 7 })] {
            assert_eq!(Form::of(&schema, &[]).check(FormValues::new()), Ok(FormValues::new()), "{schema}");
        }
        let choice = Form::of(&json!({ "properties": { "q": { "type": "string", "enum": ["a", "b"] } } }), &[]);
        assert_eq!(choice.single_choice().map(|(field, choices)| (field.name.as_str(), choices.len())), Some(("q", 2)));
        assert_eq!(form().single_choice(), None);
    }

    #[test]
    fn a_mode_of_a_later_release_is_read() {
        let read = |text| serde_json::from_str::<Elicitation>(text).unwrap();
        assert_eq!(read(r#"{"mode":"telepathy","thought":1}"#), Elicitation::Unknown);
        assert_eq!(read(r#"{"mode":"url","id":"1","url":"https://x"}"#).form(), None);
    }
}
