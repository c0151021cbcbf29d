//! The description of the control endpoint as an `OpenAPI` 3.1 document, made from the table of routes and the types.
//!
//! The repository has the document as `docs/reference/openapi.json`, and the daemon serves that file. So neither the
//! daemon nor agentctl contains this module: only tests enable the feature `schema`.
//!
//! Not responsible for the callers of each route. The endpoint decides about those, so the caller passes them.

mod codes;
mod components;
mod operations;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

pub use self::codes::{codes, of_no_route};
use self::components::Components;
use crate::{Code, Route, reason};

/// Text about rules that concern all calls.
const ABOUT: &str = "\
The control endpoint of agentd, a supervisor for AI coding agents.

The endpoint answers HTTP/1.1 and HTTP/2 on a unix socket, and on TCP if that is configured. On the socket the kernel \
identifies the caller. Over TCP each request has a token, and its `Host` is a loopback address or `localhost`. A token \
permits the calls of its scope (`x-agentd-scope`). The read-only socket permits the calls of the scope `read`.

An error is a problem document (RFC 9457). The code in the document is for programs. An unknown path is answered with \
`no-such-path`, and an unknown method of a known path with `method-not-allowed` and the header `Allow`. Bytes that are \
no request of HTTP get 400, 414 or 431 without a body.

A client ignores fields, event kinds, problem codes and values of extensible enums (`x-extensible-enum`) that it does \
not know, since later versions add some. The endpoint refuses unknown query keys, and unknown fields of a body whose \
schema permits no others. The page \"Compatibility\" of the manual has the rules.";

/// Describes the control endpoint. `callers` returns the callers that may make the calls of a route.
pub fn document(callers: impl Fn(Route) -> &'static str) -> Value {
    let mut components = Components::default();
    let mut paths = Map::new();
    for route in Route::ALL {
        let item = paths.entry(route.path()).or_insert_with(|| json!({}));
        item[route.method().as_str().to_ascii_lowercase()] = operations::operation(*route, &callers, &mut components);
    }
    let mut responses = operations::responses();
    responses.append(&mut components.refusals);
    let feed_kinds = components.feed_kinds();
    let schemas = components.schemas();
    let operations = paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut);
    for body in operations.filter_map(|operation| operation.get_mut("requestBody")) {
        schemas.rename(body);
    }
    let codes = Code::ALL.iter().map(|code| (code.as_str(), code_entry(*code))).collect::<Map<_, _>>();
    let reasons =
        reason::ALL.iter().map(|named| (named.name.to_owned(), json!(named.meaning()))).collect::<Map<_, _>>();
    let document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "agentd control endpoint",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [
            {
                "url": "http://localhost",
                "description": "The control socket. The client connects to the socket, and any host name will do.",
            },
            {
                "url": "http://127.0.0.1:{port}",
                "description": "The TCP listener of `control.tcp`.",
                "variables": { "port": { "default": "7345", "description": "The port of `control.tcp`." } },
            },
        ],
        "security": [{}, { "token": [] }],
        "tags": operations::tags(),
        "paths": paths,
        "components": {
            "schemas": schemas.all,
            "headers": operations::headers(),
            "responses": responses,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `control.token` or `control.tokens`, for TCP. The roles of a call are \
                                    the scopes that the token needs. Requests over a unix socket carry no token.",
                },
            },
        },
        "x-problem-codes": codes,
        "x-condition-reasons": reasons,
        "x-feed-kinds": feed_kinds,
    });
    sorted(document)
}

/// Longest line of the document's text, where a value may share a line with its parts.
const COLUMNS: usize = 120;

/// Writes a document in a stable form for reviews: a value that fits is on one line.
pub fn text(document: &Value) -> String {
    let mut text = String::new();
    write(document, 0, 0, &mut text);
    text.push('\n');
    text
}

/// Writes a value whose first line begins at `indent` and already has `used` bytes.
fn write(value: &Value, indent: usize, used: usize, text: &mut String) {
    let line = value.to_string();
    let is_plain = !(value.is_object() || value.is_array());
    // The first levels always have lines of their own, so that a new route or type is a new line.
    if is_plain || (indent >= 4 && indent + used + line.len() < COLUMNS) {
        text.push_str(&line);
        return;
    }
    let (inner, outer) = (" ".repeat(indent + 2), " ".repeat(indent));
    let (open, close) = if value.is_object() { ('{', '}') } else { ('[', ']') };
    let names: Vec<Option<&String>> = match value {
        Value::Object(fields) => fields.keys().map(Some).collect(),
        _ => value.as_array().into_iter().flatten().map(|_| None).collect(),
    };
    let values: Vec<&Value> = match value {
        Value::Object(fields) => fields.values().collect(),
        _ => value.as_array().into_iter().flatten().collect(),
    };
    text.push(open);
    for (index, (name, value)) in names.into_iter().zip(values).enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        text.push_str(&inner);
        let name = name.map(|name| format!("{}: ", json!(name))).unwrap_or_default();
        text.push_str(&name);
        write(value, indent + 2, name.len(), text);
    }
    text.push('\n');
    text.push_str(&outer);
    text.push(close);
}

fn code_entry(code: Code) -> Value {
    let mut entry = json!({ "status": code.status(), "description": code.meaning() });
    if let Some(seconds) = code.retry_after() {
        entry["retry_after"] = json!(seconds);
    }
    entry
}

/// Sorts the keys of all objects, so that the text depends on no feature of another crate.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(fields.into_iter().map(|(name, value)| (name, sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        plain => plain,
    }
}
