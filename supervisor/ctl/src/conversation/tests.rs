use serde_json::{Value, json};

use super::*;

fn event(kind: &str, data: &Value) -> Event {
    let line = json!({ "seq": 1, "time": "2026-01-01T00:00:00Z", "kind": kind, "data": data }).to_string();
    Event::parse(line.as_bytes()).unwrap()
}

fn update(update: &Value) -> Event {
    event("agent.out", &json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } }))
}

fn tool_output(text: &str) -> Event {
    let content = json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
    update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "content": content }))
}

fn request(id: &str) -> Value {
    json!({ "id": id, "title": "run ls", "options": [{ "id": "y", "name": "Allow once", "kind": "allow_once" }] })
}

#[test]
fn a_tools_output_that_grows_is_shown_once() {
    let mut conversation = Conversation::default();
    let began = update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "1", "title": "ls", "kind": "execute" }));
    assert_eq!(conversation.apply(&began), [Item::ToolBegan { title: "ls".into(), kind: Some("execute".into()) }]);
    assert_eq!(conversation.apply(&tool_output("a\n")), [Item::ToolOutput("a\n".into())]);
    assert_eq!(conversation.apply(&tool_output("a\nb\n")), [Item::ToolOutput("b\n".into())]);
    assert_eq!(conversation.apply(&tool_output("a\nb\n")), []);
    assert_eq!(conversation.apply(&tool_output("anew\n")), [Item::ToolOutput("anew\n".into())]);
    let ended = update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed" }));
    assert_eq!(conversation.apply(&ended), [Item::ToolEnded { title: "ls".into(), status: "completed".into() }]);
}

#[test]
fn a_turn_begins_with_its_prompt_even_when_others_wait_before_it() {
    let mut conversation = Conversation::default();
    conversation.apply(&event("turn.queued", &json!({ "turn": "t1", "prompt": "one" })));
    conversation.apply(&event("turn.queued", &json!({ "turn": "t2", "prompt": "two" })));
    assert_eq!(conversation.first_turn().unwrap().as_str(), "t1");
    conversation
        .apply(&event("turn.ended", &json!({ "turn": "t1", "synthetic": { "cause": "dropped", "detail": "" } })));
    let items = conversation.apply(&event("turn.started", &json!({ "turn": "t2", "rpc": 4 })));
    assert_eq!(items, [Item::Prompt { turn: TurnId::numbered(2), prompt: "two".into() }]);
    assert!(conversation.has_work());
    conversation.apply(&event("turn.ended", &json!({ "turn": "t2", "stop_reason": "end_turn" })));
    assert!(!conversation.has_work() && conversation.running().is_none());
}

#[test]
fn a_question_is_open_until_somebody_answers_it_or_the_agent_is_gone() {
    let mut conversation = Conversation::default();
    for id in ["p1", "p2"] {
        conversation.apply(&event("permission.requested", &json!({ "request": request(id), "rpc": 1 })));
    }
    let resolved = json!({ "permission": "p1", "outcome": { "selected": "y" }, "by": "policy" });
    let items = conversation.apply(&event("permission.resolved", &resolved));
    assert_eq!(items, [Item::Answered { title: "run ls".into(), how: "Allow once, by policy".into() }]);
    assert_eq!(conversation.permissions().len(), 1);
    conversation.apply(&event("agent.exited", &json!({ "launch": 1, "signal": 9 })));
    assert!(conversation.permissions().is_empty());
    assert_eq!(conversation.down(), Some(Down::Failed));
}

#[test]
fn an_agent_that_fails_leaves_its_last_words_and_one_that_is_stopped_does_not() {
    for (requested, shown) in [(false, 2), (true, 0)] {
        let mut conversation = Conversation::default();
        conversation.apply(&event("agent.stderr", &json!({ "text": "no key given" })));
        let items =
            conversation.apply(&event("agent.exited", &json!({ "launch": 1, "status": 3, "requested": requested })));
        let warnings: Vec<_> = items.iter().filter(|item| matches!(item, Item::Warning(_))).collect();
        assert_eq!(warnings.len(), shown, "{items:?}");
    }
}

#[test]
fn a_launch_that_fails_says_why_once() {
    let mut conversation = Conversation::default();
    let condition = json!({
        "type": "EnvironmentReady", "status": "False", "reason": "ScriptNotApproved", "message": "not approved",
        "observed_generation": 1, "last_transition_time": "2026-01-01T00:00:00Z",
    });
    let failed = json!({ "launch": 1, "reason": "ScriptNotApproved", "message": "not approved" });
    let mut items = conversation.apply(&event("condition", &condition));
    items.extend(conversation.apply(&event("launch.failed", &failed)));
    assert_eq!(items, [Item::Warning("EnvironmentReady: not approved".into())]);
    assert_eq!(conversation.down(), Some(Down::Failed));
    conversation.apply(&event("launch.started", &json!({ "launch": 2, "reason": "resume" })));
    assert_eq!(conversation.down(), None);
}

#[test]
fn only_an_agents_own_end_of_turn_is_success() {
    for (ended, status) in [
        (json!({ "turn": "t1", "stop_reason": "end_turn" }), 0),
        (json!({ "turn": "t1", "stop_reason": "cancelled" }), 130),
        (json!({ "turn": "t1", "stop_reason": "refusal" }), 1),
        (json!({ "turn": "t1" }), 1),
        (json!({ "turn": "t1", "synthetic": { "cause": "agent-exited", "detail": "" } }), 1),
        (json!({ "turn": "t1", "stop_reason": "end_turn", "synthetic": { "cause": "agent-error", "detail": "" } }), 1),
        (json!({ "turn": "t1", "synthetic": { "cause": "dropped", "detail": "" } }), 130),
    ] {
        assert_eq!(exit_of(&serde_json::from_value(ended.clone()).unwrap()), status, "{ended}");
    }
}
