//! The JSON Schema of the configuration, with hand-written schemas for types of other crates.

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
    /// Schema of a SHA-256 digest.
    Pin = { "type": "string", "pattern": "^[0-9a-fA-F]{64}$" };
    /// Schema of a CPU weight.
    CpuWeight = { "type": "integer", "minimum": 1, "maximum": 10000 };
    /// Schema of settings, whose keys depend on the plugin.
    Settings = { "type": "object" };
    /// Schema of `refresh`.
    Refresh = { "enum": ["stored", "fresh", "warn"] };
    /// Schema of `isolation`.
    Isolation = { "enum": ["none", "guard"] };
    /// Schema of `launch.isolation_missing`.
    IsolationMissing = { "enum": ["fail", "warn"] };
    /// Schema of `snapshot_scope`.
    SnapshotScope = { "enum": ["user", "directory"] };
    /// Schema of `environment.source`.
    SnapshotSource = { "enum": ["login-shell", "terminal", "stored"] };
    /// Schema of `launch.restart`.
    RestartPolicy = { "enum": ["never", "on-failure"] };
    /// Schema of `resume.note`.
    ResumeNote = { "enum": ["off", "brief", "full"] };
    /// Schema of `prerequisites.NAME.on_failure`.
    PrerequisiteOnFailure = { "enum": ["fail", "warn"] };
    /// Schema of `plugins.NAME.on_failure`.
    PluginOnFailure = { "enum": ["fail", "skip"] };
    /// Schema of `prerequisites.NAME.moment`.
    Moment = { "enum": ["before-environment", "after-environment"] };
    /// Schema of `prerequisites.NAME.required_by`.
    RequiredBy = {
        "anyOf": [
            { "const": "all" },
            {
                "type": "object",
                "properties": {
                    "all": { "type": "boolean" },
                    "agents": { "type": "array", "items": { "type": "string" } },
                    "directories": { "type": "array", "items": { "type": "string" } },
                    "tags": { "type": "array", "items": { "type": "string" } }
                },
                "additionalProperties": false
            }
        ]
    };
    /// Schema of a provider of the pipeline.
    Provider = {
        "anyOf": [
            { "type": "string" },
            {
                "type": "object",
                "properties": {
                    "plugin": { "type": "string" },
                    "name": { "type": "string", "minLength": 1 },
                    "settings": { "type": "object" }
                },
                "required": ["plugin"],
                "additionalProperties": false
            }
        ]
    };
    /// Schema of a grant.
    Grant = {
        "type": "object",
        "properties": {
            "login-shell": {
                "description": "Whether the plugin may run the login shell and read its environment.",
                "type": "boolean" },
            "script": {
                "description": "Scripts that the plugin may source.",
                "type": "array", "items": { "type": "string" } },
            "command": {
                "type": "array",
                "items": {
                    "anyOf": [
                        { "type": "string" },
                        {
                            "type": "object",
                            "properties": {
                                "run": { "type": "string" },
                                "variables": { "type": "array", "items": { "type": "string" } }
                            },
                            "required": ["run"],
                            "additionalProperties": false
                        }
                    ]
                }
            },
            "file": {
                "description": "Files and directories that the plugin may read.",
                "type": "array", "items": { "type": "string" } },
            "network": {
                "description": "Hosts and ports that the plugin may connect to.",
                "type": "array", "items": { "type": "string" } },
            "mount": {
                "description": "Mount points that the plugin may inspect.",
                "type": "array", "items": { "type": "string" } },
            "process": {
                "description": "Names of processes that the plugin may count.",
                "type": "array", "items": { "type": "string" } },
            "secret": {
                "description": "Secrets that the plugin may read.",
                "type": "array", "items": { "type": "string" } },
            "variables": { "type": "array", "items": { "type": "string" } }
        },
        "additionalProperties": false
    };
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
