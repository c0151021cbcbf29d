//! Ids of JSON-RPC requests, answered exactly as they were written.
//!
//! A value does not hold every id: half an emoji (`"\\ud83d"`), a number with a fraction of zeros. Such an id is kept as its JSON text, in an
//! object with one key. No id is an object (JSON-RPC 2.0, section 4).

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// The key of the text.
const VERBATIM: &str = "verbatim";

#[derive(Deserialize)]
struct WithId<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
}

/// The id that was read, by how it stands in the line as it was written. `None` for null.
pub(super) fn read(readable: &RawValue, written: &RawValue) -> Option<Value> {
    let value = serde_json::from_str::<Value>(readable.get()).ok().filter(|id| !id.is_null())?;
    let written = serde_json::from_str::<WithId<'_>>(written.get());
    let text = written.as_ref().map_or(readable, |with| with.id).get();
    let is_exact = !value.is_object() && serde_json::to_string(&value).is_ok_and(|written| written == text);
    Some(if is_exact { value } else { serde_json::json!({ VERBATIM: text }) })
}

/// Writes an id as it was written.
pub(super) fn write<S: Serializer>(id: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    let text = id.get(VERBATIM).and_then(Value::as_str).map(str::to_owned);
    match text.and_then(|text| RawValue::from_string(text).ok()) {
        Some(text) => text.serialize(serializer),
        None => id.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::surrogates::mended;

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
            let readable = mended(&line);
            let Some(Message::Request { id: read, .. }) = Message::parse(&readable, &line) else { panic!("{id}") };
            let answer = unknown_method(&read, "m");
            assert!(answer.get().contains(&format!(r#""id":{id},"#)), "{id}: {answer}");
            // What is sent is known again as the answer to it.
            let Some(Message::Response { id: answered, .. }) = Message::parse(&mended(&answer), &answer) else {
                panic!("{answer}")
            };
            assert_eq!(answered, read);
        }
    }
}
