//! Records that may be dropped when the disk is full, and records that never are.
//!
//! The agent's requests and responses, and all records of the keeper and the daemon, are essential and never dropped.
//! A conversation continues without notifications, noise and stderr. The code that drops records reports their
//! number.

use agentd_journal::Record;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Minimal view of a JSON-RPC message. Requests and responses have an id.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
}

/// Reports whether the record must never be dropped.
pub(crate) fn is_essential(record: &Record<'_>) -> bool {
    match record.kind {
        "agent.out" => {
            // Data that does not parse is kept, because its meaning is unknown.
            serde_json::from_str::<Message<'_>>(record.data.get()).map_or(true, |message| message.id.is_some())
        }
        "agent.noise" | "agent.stderr" => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_responses_are_essential_and_notifications_noise_and_stderr_are_not() {
        for (kind, data, expected) in [
            ("agent.out", r#"{"id":1,"method":"session/request_permission","params":{}}"#, true),
            ("agent.out", r#"{"id":"a\ud83d","result":{"stopReason":"end_turn"}}"#, true),
            ("agent.out", r#"{"method":"session/update","params":{"id":7,"text":"\ud83d"}}"#, false),
            ("agent.out", "[1]", true),
            ("agent.noise", r#"{"text":"x"}"#, false),
            ("agent.stderr", r#"{"text":"x"}"#, false),
            ("agent.exited", r#"{"launch":1}"#, true),
            ("turn.ended", r#"{"turn":"t1"}"#, true),
        ] {
            let data = RawValue::from_string(data.to_owned()).unwrap();
            assert_eq!(is_essential(&Record { kind, data: &data }), expected, "{kind} {}", data.get());
        }
    }
}
