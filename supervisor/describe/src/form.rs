//! Fills in the form of a question at a terminal, one field after another, and describes its fields.

use agentd_api::elicitation::{Elicitation, Field, FieldKind, Form, FormError, FormValues};
use agentd_api::session::{PermissionAnswer, PermissionRequest};
use agentd_screen::terminal::Screen;
use serde_json::Value;

use crate::details::visible;

/// Returns the form of a question that a person fills in. A form without fields is only accepted or declined.
fn form(request: &PermissionRequest) -> Option<Form> {
    request.elicitation.as_ref()?.form().filter(|form| !form.fields.is_empty())
}

/// Returns the lines that describe the fields or the page of a question.
pub fn lines(request: &PermissionRequest, screen: Screen) -> Vec<String> {
    let line = |text: &str| screen.line(&visible(text));
    match &request.elicitation {
        Some(Elicitation::Url { url, .. }) => vec![format!("page {}", line(url))],
        Some(Elicitation::Unknown) => vec!["this release cannot show the question; it can be declined".to_owned()],
        Some(Elicitation::Form { .. }) | None => {
            let fields = form(request).map(|form| form.fields).unwrap_or_default();
            fields.iter().flat_map(|field| of_field(field, &line)).collect()
        }
    }
}

fn of_field(field: &Field, line: &impl Fn(&str) -> String) -> Vec<String> {
    let title = field.title.as_deref().filter(|title| *title != field.name);
    let title = title.map(|title| format!(" {}", line(title))).unwrap_or_default();
    let optional = if field.is_required { "" } else { ", optional" };
    let default = field.default.as_ref().map(|default| format!(", default {}", line(&plain(default))));
    let (kind, default) = (line(&field.kind.to_string()), default.unwrap_or_default());
    let mut lines = vec![format!("{}:{title} ({kind}{optional}{default})", line(&field.name))];
    lines.extend(field.description.iter().flat_map(|text| text.lines()).map(|text| format!("  {}", line(text))));
    if let FieldKind::Choice(choices) | FieldKind::Choices { choices, .. } = &field.kind {
        for (number, choice) in choices.iter().enumerate() {
            let description = choice.description.as_deref().map(|text| format!(": {}", line(text)));
            lines.push(format!("  {}) {}{}", number + 1, line(&choice.title), description.unwrap_or_default()));
        }
    }
    lines
}

/// Writes a value as a person would type it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        value => value.to_string(),
    }
}

/// Describes the values of an answered form.
pub fn filled(values: &FormValues) -> String {
    values.iter().map(|(name, value)| format!("{name} = {}", plain(value))).collect::<Vec<_>>().join(", ")
}

/// Returns the answer that picks a choice of a form with one choice.
pub fn pick(request: &PermissionRequest, number: usize) -> Option<PermissionAnswer> {
    let form = form(request)?;
    let (field, choices) = form.single_choice()?;
    let choice = choices.get(number.checked_sub(1)?)?;
    Some(PermissionAnswer::Form(FormValues::from_iter([(field.name.clone(), Value::from(choice.value.clone()))])))
}

/// Returns the number of choices of a form with one choice.
pub fn choices(request: &PermissionRequest) -> Option<usize> {
    form(request)?.single_choice().map(|(_, choices)| choices.len())
}

/// Reads the values that `--field NAME=VALUE` gives. The daemon refuses a name that the form does not have.
pub fn values(request: Option<&PermissionRequest>, given: &[(String, String)]) -> Result<FormValues, FormError> {
    let form = request.and_then(form);
    let read = |(name, value): &(String, String)| {
        let field = form.iter().flat_map(|form| &form.fields).find(|field| field.name == *name);
        let value = field.map_or_else(|| Ok(Value::from(value.as_str())), |field| field.read(value))?;
        Ok((name.clone(), value))
    };
    given.iter().map(read).collect()
}

/// A form that is being filled in.
#[derive(Debug)]
pub struct Filling {
    form: Form,
    values: FormValues,
    /// Index of the field that the next line fills in.
    at: usize,
    /// Why the last line did not fit.
    complaint: Option<FormError>,
}

impl Filling {
    /// Begins to fill in the form of a question, if it has one.
    pub fn of(request: &PermissionRequest) -> Option<Self> {
        form(request).map(|form| Self { form, values: FormValues::new(), at: 0, complaint: None })
    }

    /// Returns the input mark: the field, its default, and why the last line did not fit.
    pub fn mark(&self) -> String {
        let Some(field) = self.form.fields.get(self.at) else { return String::new() };
        let complaint = self.complaint.as_ref().map(|error| format!("{error}; ")).unwrap_or_default();
        let default = match &field.default {
            Some(default) => format!(" [{}]", plain(default)),
            None if field.is_required => String::new(),
            None => " [leave it out]".to_owned(),
        };
        let mark = format!("{complaint}{}{default}", field.title.as_deref().unwrap_or(&field.name));
        // A line is read with a mark only at a terminal.
        let screen = Screen { terminal: true, colour: false };
        format!("{}: ", screen.line(&visible(&mark)))
    }

    /// Takes the line for the present field: an empty line takes the default, or leaves an optional field out. Returns
    /// the answer after the last field.
    pub fn line(&mut self, line: &str) -> Option<PermissionAnswer> {
        let field = self.form.fields.get(self.at)?;
        let is_left_out = line.trim().is_empty() && (field.default.is_some() || !field.is_required);
        let read = if is_left_out { Ok(field.default.clone()) } else { field.read(line).map(Some) };
        match read {
            Ok(value) => {
                self.values.extend(value.map(|value| (field.name.clone(), value)));
                (self.at, self.complaint) = (self.at + 1, None);
            }
            Err(error) => self.complaint = Some(error),
        }
        (self.at == self.form.fields.len()).then(|| PermissionAnswer::Form(std::mem::take(&mut self.values)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(properties: &Value, required: &Value) -> PermissionRequest {
        let schema = json!({ "properties": properties, "required": required });
        serde_json::from_value(json!({
            "id": "p1", "title": "Which?", "elicitation": { "mode": "form", "schema": schema },
            "options": [{ "id": "accept", "name": "Answer", "kind": "allow_once" }],
        }))
        .unwrap()
    }

    #[test]
    fn a_form_is_filled_in_line_by_line() {
        let properties = json!({
            "a": { "type": "integer", "title": "Size" },
            "b": { "type": "string", "default": "x\u{1b}[31m" },
            "c": { "type": "boolean" },
        });
        let mut filling = Filling::of(&request(&properties, &json!(["a", "b"]))).unwrap();
        assert_eq!(filling.mark(), "Size: ");
        assert_eq!(filling.line("many"), None);
        assert!(filling.mark().contains("expected a whole number; Size: "), "{}", filling.mark());
        assert_eq!(filling.line(""), None, "a required field has a value");
        assert_eq!(filling.line("3"), None);
        assert!(!filling.mark().contains('\u{1b}'), "{:?}", filling.mark());
        assert_eq!(filling.line(""), None);
        assert_eq!(filling.mark(), "c [leave it out]: ");
        let values = json!({ "a": 3, "b": "x\u{1b}[31m" });
        assert_eq!(filling.line(""), Some(PermissionAnswer::Form(serde_json::from_value(values).unwrap())));
    }

    #[test]
    fn a_form_of_one_choice_is_a_question_with_numbers() {
        let choice = request(&json!({ "q": { "type": "string", "enum": ["left", "right"] } }), &json!(["q"]));
        assert_eq!(choices(&choice), Some(2));
        let right = serde_json::from_value(json!({ "q": "right" })).unwrap();
        assert_eq!(pick(&choice, 2), Some(PermissionAnswer::Form(right)));
        assert_eq!((pick(&choice, 0), pick(&choice, 3)), (None, None));
        let screen = Screen { terminal: false, colour: false };
        assert_eq!(lines(&choice, screen), ["q: (one of left, right)", "  1) left", "  2) right"]);
        assert!(Filling::of(&request(&json!({}), &json!([]))).is_none());
    }

    #[test]
    fn values_of_the_command_line_have_the_types_of_their_fields() {
        let form = request(&json!({ "n": { "type": "number" }, "t": { "type": "string" } }), &json!([]));
        let given = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            values(Some(&form), &pairs).map(Value::from)
        };
        assert_eq!(given(&[("n", "3"), ("t", "3"), ("u", "3")]), Ok(json!({ "n": 3, "t": "3", "u": "3" })));
        assert!(given(&[("n", "x")]).is_err());
    }
}
