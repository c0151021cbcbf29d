//! The schema of events: one for each kind.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::{Body, Event};

/// Name of the schema for a kind: `turn.ended` has `TurnEndedEvent`.
fn name(kind: &str) -> String {
    let capital = |word: &str| word.split_at_checked(1).map(|(first, rest)| first.to_ascii_uppercase() + rest);
    kind.split('.').filter_map(capital).collect::<String>() + "Event"
}

impl JsonSchema for Event {
    fn schema_name() -> Cow<'static, str> {
        "Event".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let kinds = Body::schemas(generator);
        let (mut forms, mut mapping) = (Vec::new(), Map::new());
        for (kind, meaning, data) in kinds {
            let schema = json!({
                "description": meaning,
                "type": "object",
                "properties": {
                    "seq": { "type": "integer", "format": "uint64", "minimum": 1 },
                    "time": { "type": "string", "format": "date-time" },
                    "kind": { "type": "string", "const": kind },
                    "data": data,
                },
                "required": ["seq", "time", "kind", "data"],
            });
            let reference = format!("#/components/schemas/{}", name(kind));
            generator.definitions_mut().insert(name(kind), schema);
            forms.push(json!({ "$ref": reference }));
            mapping.insert(kind.to_owned(), Value::String(reference));
        }
        json_schema!({
            "description": "One record of a session's journal. `seq` counts from 1 without gaps in a session. Later \
                            versions add kinds.",
            "oneOf": forms,
            "discriminator": { "propertyName": "kind", "mapping": mapping },
            "x-extensible-enum": true,
        })
    }
}
