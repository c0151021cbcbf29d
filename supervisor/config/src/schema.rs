//! The JSON Schema of the configuration, with hand-written schemas for types that a derived one does not describe.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::Config;

/// Returns the JSON Schema of a configuration file.
pub fn schema() -> Schema {
    schemars::schema_for!(Config)
}

/// Declares types with a schema that is written by hand.
macro_rules! schemas {
    ($($(#[$doc:meta])* $name:ident = $schema:tt;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub(super) struct $name;

            impl JsonSchema for $name {
                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!($schema)
                }
            }
        )*
    };
}

schemas! {
    /// Schema of a duration.
    Time = {
        "description": "A number of seconds, or a text with units: 250ms, 10m, 1h30m.",
        "anyOf": [
            { "type": "number", "minimum": 0 },
            { "type": "string", "pattern": "^[0-9.]+( ?[a-z]+( ?[0-9.]+ ?[a-z]+)*)?$" }
        ]
    };
    /// Schema of a size.
    Size = {
        "description": "A number of bytes, or a text with a unit: 64K, 2G, 1.5M. Units are multiples of 1024.",
        "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": "^[0-9]+([.][0-9]+)? *(B|k|K|M|G|T|KiB|MiB|GiB|TiB)?$" }
        ]
    };
    /// Schema of the size of a journal.
    Kept = {
        "description": "A size, or \"unlimited\".",
        "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": "^(unlimited|[0-9]+([.][0-9]+)? *(B|k|K|M|G|T|KiB|MiB|GiB|TiB)?)$" }
        ]
    };
    /// Schema of an agent's name.
    Name = { "type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$" };
    /// Schema of a CPU weight of systemd.
    CpuWeight = { "type": "integer", "minimum": 1, "maximum": 10_000 };
    /// Schema of a SHA-256 digest.
    Pin = { "type": "string", "pattern": "^[0-9a-fA-F]{64}$" };
    /// Schema of settings, whose keys depend on the plugin.
    Settings = { "type": "object" };
    /// Schema of a provider of the pipeline.
    Provider = {
        "anyOf": [
            { "type": "string" },
            {
                "type": "object",
                "properties": {
                    "plugin": {
                        "type": "string",
                        "description": "Name of the plugin: a `[plugins.NAME]` or a built-in one."
                    },
                    "name": {
                        "type": "string",
                        "minLength": 1,
                        "description": "Name of this provider in provenance and messages. Default: the plugin's name."
                    },
                    "settings": {
                        "type": "object",
                        "description": "Settings for this use. They override the plugin's own settings key by key.",
                        "default": {}
                    }
                },
                "required": ["plugin"],
                "additionalProperties": false
            }
        ]
    };
}

/// Schema of `prerequisites.NAME.required_by`.
#[derive(Debug)]
pub(super) struct RequiredBy;

impl JsonSchema for RequiredBy {
    fn schema_name() -> Cow<'static, str> {
        "AllOrSome".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let table = generator.subschema_for::<agentd_api::prerequisite::RequiredBy>();
        json_schema!({ "anyOf": [{ "const": "all" }, table] })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    /// Collects the dotted keys of an object schema that have no keys below them.
    fn keys(schema: &Value, defs: &Value, around: &str, keys: &mut Vec<String>) {
        let name = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
        let schema = name.map_or(schema, |name| &defs[name]);
        match schema.get("properties").and_then(Value::as_object) {
            Some(properties) => {
                for (name, inner) in properties {
                    let key = if around.is_empty() { name.clone() } else { format!("{around}.{name}") };
                    self::keys(inner, defs, &key, keys);
                }
            }
            None => keys.push(around.to_owned()),
        }
    }

    #[test]
    fn the_schema_has_the_keys_and_a_description_of_each_table() {
        let schema = super::schema().to_value();
        let mut found = Vec::new();
        keys(&schema, &schema["$defs"], "", &mut found);
        assert!(found.contains(&"limits.turn".to_owned()) && found.contains(&"environment.encryption.key".to_owned()));
        for (name, table) in schema["properties"].as_object().unwrap() {
            assert!(table["description"].is_string(), "{name}");
        }
        assert_eq!(schema["additionalProperties"], Value::Bool(false));
    }
}
