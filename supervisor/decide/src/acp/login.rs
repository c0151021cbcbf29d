//! Logins: the request `authenticate` (<https://agentclientprotocol.com/protocol/authentication>).

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::method;

/// Builds `authenticate`.
pub fn authenticate(id: u64, login: &str) -> Box<RawValue> {
    to_raw_value(&json!({
        "jsonrpc": "2.0", "id": id, "method": method::AUTHENTICATE, "params": { "methodId": login },
    }))
    .expect("a JSON value can be written")
}
