//! Reads and writes the ids of JSON-RPC requests. A response repeats the id exactly as the request spelled it.
//!
//! A `Value` cannot represent every id exactly, for example half an emoji (`"\\ud83d"`) or the number `1.0`. Such
//! an id is stored as its JSON text in an object with one key. No id is an object itself (JSON-RPC 2.0, section 4).

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Key of the object that holds an id's JSON text.
const VERBATIM: &str = "verbatim";

#[derive(Deserialize)]
struct WithId<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
}

/// Returns the id of `readable`, with the spelling of `written`, the line as received. Returns `None` for null.
pub(super) fn read(readable: &RawValue, written: &RawValue) -> Option<Value> {
    let value = serde_json::from_str::<Value>(readable.get()).ok().filter(|id| !id.is_null())?;
    let written = serde_json::from_str::<WithId<'_>>(written.get());
    let text = written.as_ref().map_or(readable, |with| with.id).get();
    let is_exact = !value.is_object() && serde_json::to_string(&value).is_ok_and(|written| written == text);
    Some(if is_exact { value } else { serde_json::json!({ VERBATIM: text }) })
}

/// Writes an id in its original spelling.
pub(super) fn write<S: Serializer>(id: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    let text = id.get(VERBATIM).and_then(Value::as_str).map(str::to_owned);
    match text.and_then(|text| RawValue::from_string(text).ok()) {
        Some(text) => text.serialize(serializer),
        None => id.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::surrogates::replace_lone_surrogates;

    use super::super::{Message, unknown_method};
    use super::*;

    #[test]
    fn an_id_is_answered_exactly_as_it_was_written() {
        for id in [
            r#""\ud83d""#,
            r#""\uD83D\ude00""#,
            r#""a\/b""#,
            r#""\ufffd""#,
            "7",
            "1.0",
            "1e2",
            "-0",
            "123456789012345678901234567890",
            r#"{"verbatim":"7"}"#,
            "[1]",
            "true",
        ] {
            let line = RawValue::from_string(format!(r#"{{"jsonrpc":"2.0","id": {id} ,"method":"m"}}"#)).unwrap();
            let readable = replace_lone_surrogates(&line);
            let Some(Message::Request { id: read, .. }) = Message::parse(&readable, &line) else { panic!("{id}") };
            let answer = unknown_method(&read, "m");
            assert!(answer.get().contains(&format!(r#""id":{id},"#)), "{id}: {answer}");
            // The answer that agentd sent parses back to the id of the request.
            let Some(Message::Response { id: answered, .. }) =
                Message::parse(&replace_lone_surrogates(&answer), &answer)
            else {
                panic!("{answer}")
            };
            assert_eq!(answered, read);
        }
    }
}
