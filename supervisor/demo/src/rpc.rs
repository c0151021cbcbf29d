//! Defines the parts of JSON-RPC 2.0 that the demo agent needs: the error codes and the form of an error.

use serde_json::{Value, json};

pub(super) const PARSE_ERROR: i32 = -32700;
pub(super) const INVALID_REQUEST: i32 = -32600;
pub(super) const METHOD_NOT_FOUND: i32 = -32601;
pub(super) const INVALID_PARAMS: i32 = -32602;
pub(super) const INTERNAL_ERROR: i32 = -32603;
/// ACP: the named resource does not exist.
pub(super) const RESOURCE_NOT_FOUND: i32 = -32002;

/// Error response to a request.
#[derive(Debug)]
pub(super) struct Refusal {
    code: i32,
    message: String,
}

impl Refusal {
    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

pub(super) fn error(id: &Value, refusal: &Refusal) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": refusal.code, "message": refusal.message } })
}
