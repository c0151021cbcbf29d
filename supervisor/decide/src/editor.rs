//! Requests of an agent that only an editor can carry out. They stay open until an editor answers, or until their time
//! limit is over. Pure.

use std::time::Duration;

use agentd_api::editor::{EditorTool, RequestAnswer, RequestOutcome};
use serde_json::{Value, json};

use crate::acp;
use crate::batch::Batch;
use crate::rules::Refusal;
use crate::state::{Run, Running, State};

/// Time limit for an editor's answer. A command in a terminal may take any time.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
const UNLIMITED: &str = "terminal/wait_for_exit";
/// Code of the error that agentd gives in place of an editor (JSON-RPC 2.0, section 5.1).
const INTERNAL_ERROR: i64 = -32603;

/// Reports whether an editor answers requests with this method.
pub(crate) fn is_offered(running: &Running, method: &str) -> bool {
    EditorTool::of_method(method).is_some_and(|tool| running.editor.contains(&tool))
}

/// Returns the ids of the requests that wait for an editor, with a time limit.
pub(crate) fn waiting(running: &Running) -> impl Iterator<Item = &Value> {
    let asked = running.asked.iter().filter(|asked| asked.method != UNLIMITED);
    asked.filter(|asked| is_offered(running, &asked.method)).map(|asked| &asked.rpc)
}

/// Returns the error that the agent gets if no editor answers.
pub(crate) fn unanswered(state: &State, rpc: &Value, limit: Duration) -> Option<Batch> {
    let Run::Running(running) = &state.run else { return None };
    let asked = running.asked.iter().find(|asked| asked.rpc == *rpc)?;
    let message = format!("no editor answered {} within {} s", asked.method, limit.as_secs());
    let outcome = RequestOutcome::Error(json!({ "code": INTERNAL_ERROR, "message": message }));
    Some(Batch::default().send(acp::request_answer(rpc, &outcome)))
}

/// Passes an editor's answer on to the agent.
pub(crate) fn answer(state: &State, answer: &RequestAnswer) -> Result<Batch, Refusal> {
    let refusal = || Refusal::NoSuchRequest { id: answer.id.to_string() };
    let Run::Running(running) = &state.run else { return Err(refusal()) };
    let is_it = |rpc: &Value| match rpc.get("verbatim").and_then(Value::as_str) {
        Some(text) => serde_json::from_str::<Value>(text).is_ok_and(|id| id == answer.id),
        None => *rpc == answer.id,
    };
    let mut asked = running.asked.iter().filter(|asked| is_offered(running, &asked.method));
    let asked = asked.find(|asked| is_it(&asked.rpc)).ok_or_else(refusal)?;
    Ok(Batch::default().send(acp::request_answer(&asked.rpc, &answer.outcome)))
}

#[cfg(test)]
mod tests {
    use agentd_api::{Body, Event};
    use jiff::Timestamp;

    use super::*;

    fn state(offered: &Value) -> State {
        let hello =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "clientCapabilities": offered } });
        let asks = |id: u64, method: &str| ("agent.out", json!({ "id": id, "method": method, "params": {} }));
        let mut state = State::new(Timestamp::UNIX_EPOCH);
        for (at, (kind, data)) in [
            ("launch.started", json!({ "launch": 1, "reason": "create" })),
            ("agent.started", json!({ "launch": 1, "pid": 7, "start_time": 1, "command": ["a"] })),
            ("agent.in", hello),
            asks(5, "fs/read_text_file"),
            asks(6, "terminal/wait_for_exit"),
        ]
        .into_iter()
        .enumerate()
        {
            let line = json!({ "seq": at + 1, "time": "2026-01-01T00:00:00Z", "kind": kind, "data": data });
            state.apply(&Event::parse(line.to_string().as_bytes()).unwrap());
        }
        state
    }

    fn running(state: &State) -> &Running {
        let Run::Running(running) = &state.run else { panic!("{state:?}") };
        running
    }

    #[test]
    fn a_request_without_an_editor_fails_after_its_time_and_a_command_may_take_any_time() {
        let state = state(&json!({ "fs": { "readTextFile": true }, "terminal": true }));
        assert_eq!(waiting(running(&state)).collect::<Vec<_>>(), [&json!(5)]);
        let batch = unanswered(&state, &json!(5), LIMIT).unwrap();
        let Body::AgentIn(line) = &batch.entries[0].body else { panic!("{batch:?}") };
        let message: Value = serde_json::from_str(line.get()).unwrap();
        assert_eq!((&message["id"], &message["error"]["code"]), (&json!(5), &json!(INTERNAL_ERROR)));
        assert_eq!(message["error"]["message"], "no editor answered fs/read_text_file within 60 s");
        assert!(unanswered(&state, &json!(9), LIMIT).is_none());
    }

    #[test]
    fn an_answer_needs_a_request_that_was_offered() {
        let answered = |state: &State, id: u64| {
            let given = RequestAnswer { id: json!(id), outcome: RequestOutcome::Result(json!({})) };
            answer(state, &given).is_ok()
        };
        let all = state(&json!({ "fs": { "readTextFile": true }, "terminal": true }));
        assert_eq!([5, 6, 7].map(|id| answered(&all, id)), [true, true, false]);
        let files = state(&json!({ "fs": { "readTextFile": true } }));
        assert_eq!([5, 6].map(|id| answered(&files, id)), [true, false]);
        assert!(!answered(&state(&json!({})), 5));
    }
}
