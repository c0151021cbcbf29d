//! JSON Schemas of types that read and write themselves, so that no derived schema describes their JSON.
//!
//! A schema depends on the direction: a body may have `"2G"` where an answer always has the number of bytes.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::acp::AcpMessage;
use crate::bytes::ByteString;
use crate::session::{CpuWeight, SessionSpec};
use crate::spec::SpecPatch;

/// Pattern of ids and names: `a-z 0-9 -`, without `-` at the beginning or end.
pub const LABEL: &str = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";

/// Implements the schema of a type that gets no name of its own in a document.
macro_rules! inline {
    ($($name:ident => $schema:expr;)*) => {
        $(
            impl JsonSchema for $name {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                    let schema: fn(&mut SchemaGenerator) -> Schema = $schema;
                    schema(generator)
                }
            }
        )*
    };
}

/// A number of bytes. A body may also have a text such as `"2G"`.
#[derive(Debug)]
pub struct Size;

/// A number of seconds. A body may also have a text such as `"10m"`.
#[derive(Debug)]
pub struct Seconds;

inline! {
    Size => |generator| quantity(generator, "integer", "^[0-9]+(\\.[0-9]+)?([KMGT](iB)?)?$");
    Seconds => |generator| quantity(generator, "number", "^[0-9]+(ms|s|m|h|d)( ?[0-9]+(ms|s|m|h))*$");
    CpuWeight => |_| json_schema!({ "type": "integer", "minimum": 1, "maximum": 10_000 });
}

/// Returns the schema of an amount: an integer in answers, and a number or a text in bodies.
fn quantity(generator: &SchemaGenerator, number: &str, pattern: &str) -> Schema {
    if generator.contract().is_serialize() {
        return json_schema!({ "type": "integer", "minimum": 0 });
    }
    json_schema!({ "anyOf": [{ "type": number, "minimum": 0 }, { "type": "string", "pattern": pattern }] })
}

/// Values of a form. The type has a name, since generators of clients need names.
#[derive(Debug)]
pub struct Values;

impl JsonSchema for Values {
    fn schema_name() -> Cow<'static, str> {
        "FormValues".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "Values of a form, by the names of its fields.", "type": "object" })
    }
}

impl JsonSchema for ByteString {
    fn schema_name() -> Cow<'static, str> {
        "ByteString".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Bytes: a text if they are UTF-8, else an object with their base64 form (RFC 4648).",
            "anyOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "base64": { "type": "string", "contentEncoding": "base64" } },
                    "required": ["base64"],
                    "additionalProperties": false,
                },
            ],
        })
    }
}

impl JsonSchema for AcpMessage {
    fn schema_name() -> Cow<'static, str> {
        "AcpMessage".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Message of the Agent Client Protocol: a request, a notification or an answer of \
                            JSON-RPC 2.0.",
            "type": "object",
            "properties": {
                "jsonrpc": { "type": "string", "const": "2.0" },
                "id": { "type": ["string", "integer", "null"] },
                "method": { "type": "string" },
                "params": true,
                "result": true,
                "error": { "type": "object" },
            },
        })
    }
}

/// The patch has the fields of a specification, and each may be `null`.
impl JsonSchema for SpecPatch {
    fn schema_name() -> Cow<'static, str> {
        "SpecPatch".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = SessionSpec::json_schema(generator);
        schema.remove("required");
        let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
        for property in properties.into_iter().flat_map(|properties| properties.values_mut()) {
            nullable(property);
        }
        schema.insert(
            "description".to_owned(),
            json!(
                "The body of `PATCH /v1/sessions/{session}`: a JSON merge patch of the specification (RFC 7396). A \
                 field with the value `null` gets its default."
            ),
        );
        schema
    }
}

/// Permits `null` as a value of a property.
fn nullable(property: &mut Value) {
    let Some(fields) = property.as_object_mut() else { return };
    let null = json!({ "type": "null" });
    match fields.get_mut("type") {
        Some(Value::Array(types)) if types.contains(&json!("null")) => {}
        Some(Value::Array(types)) => types.push(json!("null")),
        Some(one) => *one = json!([one.take(), "null"]),
        None => {
            if let Some(Value::Array(forms)) = fields.get_mut("anyOf") {
                if !forms.contains(&null) {
                    forms.push(null);
                }
            } else if let Some(reference) = fields.remove("$ref") {
                fields.insert("anyOf".to_owned(), json!([{ "$ref": reference }, { "type": "null" }]));
            }
        }
    }
    fields.remove("default");
}
