//! A command of a grant as written in a configuration: a text, or a table with the variables that a plugin may
//! set for it.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A command that a plugin may run, and the variables that the plugin may set for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandGrant {
    /// Pattern of the command.
    pub run: String,
    /// Names and patterns of variables. Variables that make programs load or run something need their exact
    /// name.
    pub variables: Vec<String>,
}

/// The table form in the configuration.
#[derive(Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "CommandTable"))]
#[serde(deny_unknown_fields)]
struct Table {
    /// Pattern of the command.
    run: String,
    /// Names and patterns of variables that the plugin may set for the command.
    #[serde(default)]
    variables: Vec<String>,
}

impl<'de> Deserialize<'de> for CommandGrant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CommandVisitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for CommandGrant {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CommandGrant".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let table = generator.subschema_for::<Table>();
        schemars::json_schema!({ "anyOf": [{ "type": "string" }, table] })
    }
}

impl Serialize for CommandGrant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { run, variables } = self.clone();
        if variables.is_empty() { run.serialize(serializer) } else { Table { run, variables }.serialize(serializer) }
    }
}

/// Deserializes either form.
struct CommandVisitor;

impl<'de> Visitor<'de> for CommandVisitor {
    type Value = CommandGrant;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a command, or { run = \"COMMAND\", variables = [\"NAME\"] }")
    }

    fn visit_str<E: Error>(self, run: &str) -> Result<CommandGrant, E> {
        Ok(run.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CommandGrant, A::Error> {
        let Table { run, variables } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(CommandGrant { run, variables })
    }
}

impl<T: Into<String>> From<T> for CommandGrant {
    fn from(run: T) -> Self {
        Self { run: run.into(), variables: Vec::new() }
    }
}

impl CommandGrant {
    /// Sets the variables of the command.
    #[must_use]
    pub fn with_variables<T: Into<String>>(self, variables: impl IntoIterator<Item = T>) -> Self {
        Self { variables: variables.into_iter().map(Into::into).collect(), ..self }
    }
}

/// Formats the command and its variables for people.
impl fmt::Display for CommandGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, variables } = self;
        if variables.is_empty() { f.write_str(run) } else { write!(f, "{run}, with {}", variables.join(", ")) }
    }
}
