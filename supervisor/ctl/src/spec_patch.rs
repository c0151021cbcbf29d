//! Builds the merge patch (RFC 7396) of a session's specification: from `KEY=VALUE`, or from two specifications.

use std::fs;

use agentd_api::spec::{FIELDS, Notation, SpecField, SpecPatch};
use serde_json::{Map, Value};

use crate::error::Error;

/// Builds the patch of fields that were given as `KEY=VALUE`.
pub(crate) fn of_fields(fields: &[String]) -> Result<SpecPatch, Error> {
    let mut patch = Map::new();
    for given in fields {
        let Some((key, text)) = given.split_once('=') else {
            let detail = format!("{given:?} has no `=`");
            return Err(usage(detail, "give KEY=VALUE; KEY= restores the default".to_owned()));
        };
        let (names, value) = field(key, text)?;
        let mut object = &mut patch;
        let (last, outer) = names.split_last().unwrap_or((&key, &[]));
        for name in outer {
            let inner = object.entry(*name).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(inner) = inner else {
                return Err(usage(format!("{key} and {name} cannot both be given"), "give one of them".to_owned()));
            };
            object = inner;
        }
        if object.insert((*last).to_owned(), value).is_some() {
            return Err(usage(format!("{key} is given twice"), "give each key once".to_owned()));
        }
    }
    Ok(SpecPatch(patch))
}

fn usage(detail: String, hint: String) -> Error {
    Error::Usage { detail, hint }
}

/// Returns the parts of a key and its value.
fn field<'a>(key: &'a str, text: &str) -> Result<(Vec<&'a str>, Value), Error> {
    // A key inside of an object, as environment.refresh or environment.env.NAME.
    let contains = |field: &&SpecField| {
        field.name == key
            || matches!(field.notation, Notation::Object | Notation::Texts)
                && key.strip_prefix(field.name).is_some_and(|rest| rest.starts_with('.'))
    };
    let Some(field) = FIELDS.iter().find(contains) else {
        let names = FIELDS.map(|field| field.name).join(", ");
        return Err(usage(
            format!("a session's specification has no field {key:?}"),
            format!("the fields are {names}"),
        ));
    };
    // The name of a variable or a label is one part, whatever it contains.
    let parts = if field.notation == Notation::Texts { 2 } else { 3 };
    let names: Vec<&str> = key.splitn(parts, '.').collect();
    if text.is_empty() {
        return Ok((names, Value::Null));
    }
    let text = match text.strip_prefix('@') {
        Some(path) if field.name == "env_setup" => {
            &fs::read_to_string(path).map_err(|source| Error::File { path: path.into(), source })?
        }
        _ => text,
    };
    let json = || serde_json::from_str::<Value>(text).ok();
    let list = |words: Vec<String>| Value::Array(words.into_iter().map(Value::String).collect());
    let commas = || list(text.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect());
    let value = match field.notation {
        Notation::Flag => json().filter(Value::is_boolean).unwrap_or_else(|| Value::String(text.to_owned())),
        Notation::Text => Value::String(text.to_owned()),
        Notation::Quantity => json().filter(Value::is_number).unwrap_or_else(|| Value::String(text.to_owned())),
        Notation::List => json().filter(Value::is_array).unwrap_or_else(commas),
        Notation::Words => match json().filter(Value::is_array) {
            Some(words) => words,
            None => list(shlex::split(text).ok_or_else(|| {
                usage(format!("the quotes in the value of {key} are not closed"), "close them".to_owned())
            })?),
        },
        Notation::Texts if names.len() > 1 => Value::String(text.to_owned()),
        Notation::Texts => json().filter(Value::is_object).ok_or_else(|| {
            usage(format!("{text:?} is no JSON object"), format!("give {key}.KEY=VALUE; {key}.KEY= removes one"))
        })?,
        Notation::Object => match names[..] {
            ["environment", "allow" | "drop"] => json().filter(Value::is_array).unwrap_or_else(commas),
            ["environment", "env", _] => Value::String(text.to_owned()),
            _ => json().unwrap_or_else(|| Value::String(text.to_owned())),
        },
        Notation::Objects => json().unwrap_or_else(|| Value::String(text.to_owned())),
    };
    Ok((names, value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patch(fields: &[&str]) -> Result<Value, Error> {
        let fields: Vec<String> = fields.iter().map(|&field| field.to_owned()).collect();
        of_fields(&fields).map(|SpecPatch(patch)| Value::Object(patch))
    }

    #[test]
    fn each_notation_has_its_value() {
        let given = [
            "name=42",
            "labels.example.com/team=web",
            "labels.old=",
            "limits.memory=4G",
            "limits.tasks=7",
            "limits.turn_seconds=",
            "tags=lab, nightly",
            "requires=[\"vpn\"]",
            "command=run --name 'a b'",
            "environment.allow=CC,LM_*",
            "environment.env.A.B=1",
            "environment.shared=true",
            "environment.refresh=stored",
        ];
        let wanted = json!({
            "name": "42",
            "labels": { "example.com/team": "web", "old": null },
            "limits": { "memory": "4G", "tasks": 7, "turn_seconds": null },
            "tags": ["lab", "nightly"],
            "requires": ["vpn"],
            "command": ["run", "--name", "a b"],
            "environment": {
                "allow": ["CC", "LM_*"], "env": { "A.B": "1" }, "shared": true, "refresh": "stored",
            },
        });
        assert_eq!(patch(&given).unwrap(), wanted);
    }

    #[test]
    fn a_mistake_in_the_command_line_is_refused() {
        for given in [
            &["name"][..],
            &["colour=red"],
            &["labels=team"],
            &["labels=[1]"],
            &["labels.a=1", "labels={}"],
            &["limits=1"],
            &["limits.memory.x=1"],
            &["environments.x=1"],
            &["name=a", "name=b"],
            &["environment={}", "environment.shared=true", "environment=1"],
            &["command=a 'b"],
        ] {
            assert!(matches!(patch(given), Err(Error::Usage { .. })), "{given:?}");
        }
        assert!(matches!(patch(&["env_setup=@/nowhere/x.sh"]), Err(Error::File { .. })));
    }
}
