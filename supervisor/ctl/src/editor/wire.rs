//! JSON-RPC messages: one line each, parsed only as far as their outer fields.
//!
//! Ids, parameters and results stay as raw text, so that nothing is lost or rewritten on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agentd_api::acp::Outgoing;
use agentd_api::surrogates::replace_lone_surrogates;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc;

/// Codes of JSON-RPC 2.0, and of the Agent Client Protocol.
pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
pub(super) const INTERNAL_ERROR: i64 = -32603;
pub(super) const NOT_FOUND: i64 = -32002;
pub(super) const CANCELLED: i64 = -32800;

/// Id of a request, as its sender wrote it: a number, a string or null.
pub(super) type Id = Box<RawValue>;

/// The error of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

impl Refusal {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

/// Message of the editor.
#[derive(Debug)]
pub(super) enum Incoming {
    Request {
        id: Id,
        method: String,
        params: Box<RawValue>,
    },
    Notification {
        method: String,
        params: Box<RawValue>,
    },
    /// Response to a request of this program; the id is `None` if it is not a number.
    Response {
        id: Option<u64>,
        outcome: Result<Value, Value>,
    },
}

/// The outer fields of a message.
#[derive(Debug, Deserialize)]
pub(super) struct Message<'a> {
    #[serde(default, borrow, deserialize_with = "present")]
    pub(super) id: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) method: Option<String>,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(super) params: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(super) result: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    pub(super) error: Option<&'a RawValue>,
}

/// Keeps a null as a value. An `Option` of serde would take it as absent, and a null id is an id.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Parses a line of the editor. An error has the id to answer, null if the line has no readable id.
pub(super) fn parse(line: &[u8]) -> Result<Incoming, (Id, Refusal)> {
    let refuse = |code, text: String| (RawValue::NULL.to_owned(), Refusal::new(code, text));
    let raw: Box<RawValue> =
        serde_json::from_slice(line).map_err(|error| refuse(PARSE_ERROR, format!("the line is not JSON: {error}")))?;
    let text = replace_lone_surrogates(&raw);
    let message: Message<'_> = serde_json::from_str(text.get())
        .map_err(|error| refuse(INVALID_REQUEST, format!("the line is not a JSON-RPC message: {error}")))?;
    let params = || message.params.unwrap_or(RawValue::NULL).to_owned();
    match (message.method, message.id) {
        (Some(method), Some(id)) if is_id(id) => Ok(Incoming::Request { id: id.to_owned(), method, params: params() }),
        (_, Some(id)) if !is_id(id) => {
            Err(refuse(INVALID_REQUEST, "the id is neither a number, nor a string, nor null".to_owned()))
        }
        (Some(method), _) => Ok(Incoming::Notification { method, params: params() }),
        (None, Some(id)) if message.result.is_some() || message.error.is_some() => {
            let value = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or(Value::Null);
            let outcome = match message.error {
                Some(error) => Err(value(error)),
                None => Ok(message.result.map_or(Value::Null, value)),
            };
            Ok(Incoming::Response { id: id.get().parse().ok(), outcome })
        }
        (None, id) => {
            let refusal = Refusal::new(INVALID_REQUEST, "the message has neither a method nor a result");
            Err((id.unwrap_or(RawValue::NULL).to_owned(), refusal))
        }
    }
}

fn is_id(id: &RawValue) -> bool {
    id.get() == "null" || id.get().starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
}

/// Parses the parameters of a request.
pub(super) fn params<T: DeserializeOwned>(params: &RawValue) -> Result<T, Refusal> {
    // serde would read the fields of an object from an array, by their positions.
    if !params.get().starts_with('{') {
        return Err(Refusal::new(INVALID_PARAMS, "the parameters are not an object"));
    }
    serde_json::from_str(params.get())
        .map_err(|error| Refusal::new(INVALID_PARAMS, format!("the parameters are not valid: {error}")))
}

/// Sender of messages to the editor. The messages of one task arrive in their order.
#[derive(Debug, Clone)]
pub(super) struct Out {
    messages: mpsc::Sender<Outgoing>,
    next: Arc<AtomicU64>,
    /// The session that the messages concern, and its last record that the editor has completely.
    session: Option<(Arc<str>, Arc<AtomicU64>)>,
}

#[derive(Serialize)]
struct Call<'a> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: &'a RawValue,
}

#[derive(Serialize)]
struct Response<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Refusal>,
}

impl Out {
    pub(super) fn new(messages: mpsc::Sender<Outgoing>) -> Self {
        Self { messages, next: Arc::new(AtomicU64::new(1)), session: None }
    }

    /// Returns the sender of the messages that concern a session.
    pub(super) fn of(&self, session: &str) -> Self {
        Self { session: Some((session.into(), Arc::default())), ..self.clone() }
    }

    /// Records that the editor has every message of this record, and of those before, with the next message.
    pub(super) fn reached(&self, seq: u64) {
        if let Some((_, last)) = &self.session {
            last.store(seq, Ordering::Relaxed);
        }
    }

    /// Answers a request.
    pub(super) async fn answer(&self, id: &RawValue, outcome: Result<Box<RawValue>, Refusal>) {
        let (result, error) = match &outcome {
            Ok(result) => (Some(&**result), None),
            Err(refusal) => (None, Some(refusal)),
        };
        self.send(&Response { jsonrpc: "2.0", id, result, error }).await;
    }

    pub(super) async fn notify(&self, method: &str, params: &RawValue) {
        self.send(&Call { jsonrpc: "2.0", id: None, method, params }).await;
    }

    /// Sends a request, and returns its id.
    pub(super) async fn ask(&self, method: &str, params: &RawValue) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.send(&Call { jsonrpc: "2.0", id: Some(id), method, params }).await;
        id
    }

    /// Withdraws a request that was sent.
    pub(super) async fn withdraw(&self, id: u64) {
        self.notify("$/cancel_request", &raw(&serde_json::json!({ "requestId": id }))).await;
    }

    /// Returns when the editor no longer reads.
    pub(super) async fn closed(&self) {
        self.messages.closed().await;
    }

    async fn send(&self, message: &impl Serialize) {
        let mut line = serde_json::to_vec(message).expect("a message has string keys and no failing serializer");
        line.push(b'\n');
        // An editor that reads no longer is noticed by `closed`.
        let session = self.session.as_ref().map(|(session, _)| Arc::clone(session));
        let seq = self.session.as_ref().map_or(0, |(_, last)| last.load(Ordering::Relaxed));
        let _ = self.messages.send(Outgoing { line, session, seq }).await;
    }
}

/// Returns a value as raw JSON text.
pub(super) fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("a message has string keys and no failing serializer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> (String, i64) {
        let (id, refusal) = parse(line.as_bytes()).unwrap_err();
        (id.get().to_owned(), refusal.code)
    }

    #[test]
    fn an_id_is_kept_as_it_was_written() {
        for id in ["1", "-7", "\"a\"", "null", "\"\\u0041\"", "18446744073709551616"] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            match parse(line.as_bytes()) {
                Ok(Incoming::Request { id: kept, .. }) => assert_eq!(kept.get(), id),
                other => panic!("{id}: {other:?}"),
            }
        }
    }

    #[test]
    fn hostile_lines_are_refused_with_the_code_of_their_fault() {
        for (line, code) in [
            ("hello", PARSE_ERROR),
            ("{\"id\":1", PARSE_ERROR),
            ("[]", INVALID_REQUEST),
            ("7", INVALID_REQUEST),
            ("{}", INVALID_REQUEST),
            (r#"{"id":{},"method":"m"}"#, INVALID_REQUEST),
            (r#"{"id":true,"method":"m"}"#, INVALID_REQUEST),
            (r#"{"id":[1],"result":1}"#, INVALID_REQUEST),
            (r#"{"method":7,"id":1}"#, INVALID_REQUEST),
            (r#"[{"jsonrpc":"2.0","id":1,"method":"m"}]"#, INVALID_REQUEST),
        ] {
            assert_eq!(refused(line).1, code, "{line}");
        }
        assert_eq!(refused(r#"{"id":4}"#), ("4".to_owned(), INVALID_REQUEST));
        assert!(parse(b"\xff\xfe").is_err());
    }

    #[test]
    fn half_an_emoji_does_not_make_a_prompt_unreadable() {
        let line = br#"{"id":1,"method":"m","params":{"text":"\ud83d"}}"#;
        let Ok(Incoming::Request { params, .. }) = parse(line) else { panic!() };
        assert_eq!(params.get(), r#"{"text":"\ufffd"}"#);
    }

    #[test]
    fn a_response_is_an_answer_or_an_error() {
        let read = |line: &str| match parse(line.as_bytes()) {
            Ok(Incoming::Response { id, outcome }) => (id, outcome),
            other => panic!("{other:?}"),
        };
        assert_eq!(read(r#"{"id":3,"result":null}"#), (Some(3), Ok(Value::Null)));
        assert_eq!(read(r#"{"id":"x","error":{"code":1}}"#), (None, Err(serde_json::json!({ "code": 1 }))));
    }
}
