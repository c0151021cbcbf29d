//! Logins: the request `authenticate` (<https://agentclientprotocol.com/protocol/authentication>), and errors for lack
//! of a login.

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::limit::Said;
use super::{AUTHENTICATION_REQUIRED, RpcError, method};

/// HTTP status of a request without a valid login.
const UNAUTHORIZED: u64 = 401;
/// Values that name a missing or invalid login, in lower case and without punctuation.
const KINDS: [&str; 6] = [
    "authenticationerror",
    "authenticationfailed",
    "unauthenticated",
    "invalidapikey",
    "apikeyinvalid",
    "providerautherror",
];
/// Phrases of the vendors' errors for a wrong key, in lower case.
const PHRASES: [&str; 6] = [
    "incorrect api key provided",
    "invalid api key",
    "api key not valid",
    "invalid x-api-key",
    "invalid authentication credentials",
    "401 unauthorized",
];

/// Reports whether an agent's answer to a prompt is an error for lack of a login. ACP has a code for it. Some agents
/// pass on the words of their provider instead.
///
/// Seen in gemini-cli 0.61.0 (code 401, and Google's `UNAUTHENTICATED`) and opencode 1.18.33 (the provider's message).
pub fn lacks_login(error: &RpcError) -> bool {
    if error.code == AUTHENTICATION_REQUIRED || u64::try_from(error.code) == Ok(UNAUTHORIZED) {
        return true;
    }
    let said = Said::of(error);
    KINDS.iter().any(|kind| said.has(kind)) || said.has_status(UNAUTHORIZED) || said.has_one_of(&PHRASES)
}

/// Builds `authenticate`.
pub fn authenticate(id: u64, login: &str) -> Box<RawValue> {
    to_raw_value(&json!({
        "jsonrpc": "2.0", "id": id, "method": method::AUTHENTICATE, "params": { "methodId": login },
    }))
    .expect("a JSON value can be written")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(error: Value) -> bool {
        lacks_login(&serde_json::from_value(error).unwrap())
    }

    #[test]
    fn a_refused_login_is_recognised_in_codes_fields_and_words() {
        let google =
            r#"{"error":{"code":400,"message":"API key not valid.","details":[{"reason":"API_KEY_INVALID"}]}}"#;
        for error in [
            json!({ "code": -32000, "message": "Authentication required" }),
            json!({ "code": 401, "message": "no" }),
            json!({ "code": 400, "message": google }),
            json!({ "code": -32603, "message": "Internal error: Incorrect API key provided." }),
            json!({ "code": -32603, "message": "no", "data": { "type": "authentication_error" } }),
            json!({ "code": -32603, "message": "no", "data": { "statusCode": 401 } }),
            json!({ "code": -32603, "message": "unexpected status 401 Unauthorized: no" }),
        ] {
            assert!(read(error.clone()), "{error}");
        }
        for error in [
            json!({ "code": -32603, "message": "the file login.rs has 401 lines" }),
            json!({ "code": -32603, "message": "no", "data": { "statusCode": 403 } }),
            json!({ "code": -32002, "message": "Resource not found" }),
            json!({ "code": 429, "message": "rate limit" }),
        ] {
            assert!(!read(error.clone()), "{error}");
        }
    }
}
