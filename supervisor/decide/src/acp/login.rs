//! Logins: the request `authenticate` (<https://agentclientprotocol.com/protocol/authentication>).

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::method;

/// Builds `authenticate`.
pub fn authenticate(id: u64, login: &str) -> Box<RawValue> {
    to_raw_value(&json!({
        "jsonrpc": "2.0", "id": id, "method": method::AUTHENTICATE, "params": { "methodId": login },
    }))
    .expect("a JSON value can be written")
}

/// Returns the method of a request `authenticate`.
pub fn login_of(params: &RawValue) -> Option<String> {
    let params: Value = serde_json::from_str(params.get()).ok()?;
    Some(params.get("methodId")?.as_str()?.to_owned())
}
