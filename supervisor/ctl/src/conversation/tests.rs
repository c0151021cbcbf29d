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
fn the_output_of_a_terminal_grows_and_what_repeats_it_is_not_shown_again() {
    let mut conversation = Conversation::default();
    let tool = |fields: Value| {
        let mut update_of = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "1" });
        update_of.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        update(&update_of)
    };
    conversation.apply(&tool(json!({ "title": "ls" })));
    for part in ["a\n", "b\n"] {
        let delta = tool(json!({ "_meta": { "terminal_output_delta": { "terminal_id": "1", "data": part } } }));
        assert_eq!(conversation.apply(&delta), [Item::ToolOutput(part.into())]);
    }
    let repeated = tool(json!({ "rawOutput": { "formatted_output": "a\nb\n", "exit_code": 0 } }));
    assert_eq!(conversation.apply(&repeated), []);
    let content = json!([{ "type": "content", "content": { "type": "text", "text": "a\nb" } }]);
    assert_eq!(conversation.apply(&tool(json!({ "content": content }))), []);
}

#[test]
fn a_tools_output_and_its_changes_are_shown_once_wherever_they_are() {
    let mut conversation = Conversation::default();
    let raw = json!({
        "sessionUpdate": "tool_call_update", "toolCallId": "1", "rawOutput": { "stdout": "one\n" },
        "content": [{ "type": "diff", "path": "/a", "oldText": "x", "newText": "y" }],
    });
    let items = conversation.apply(&update(&raw));
    assert!(
        matches!(&items[..], [Item::ToolBegan { .. }, Item::ToolOutput(text), Item::ToolChange(_)] if text == "one\n"),
        "{items:?}"
    );
    assert_eq!(conversation.apply(&update(&raw)), []);
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

/// Returns the items that are shown without `--verbose`.
fn shown(conversation: &mut Conversation, events: &[Event]) -> Vec<Item> {
    let items = events.iter().flat_map(|event| conversation.apply(event));
    items.filter(|item| !matches!(item, Item::Detail(_))).collect()
}

fn condition(kind: &str, reason: &str, message: &str) -> Event {
    let condition = json!({
        "type": kind, "status": "False", "reason": reason, "message": message, "observed_generation": 1,
        "last_transition_time": "2026-01-01T00:00:00Z",
    });
    event("condition", &condition)
}

fn failed(reason: &str, message: &str, stderr: &[&str]) -> Failure {
    let stderr = stderr.iter().map(|&line| line.to_owned()).collect();
    Failure { reason: reason.into(), message: message.into(), stderr }
}

#[test]
fn an_agent_that_fails_leaves_its_last_words_and_one_that_is_stopped_does_not() {
    let stderr = event("agent.stderr", &json!({ "text": "no key given" }));
    let exited = |requested: bool| event("agent.exited", &json!({ "launch": 1, "status": 3, "requested": requested }));
    let failure = failed("AgentExited", "the agent exited with status 3", &["no key given"]);
    let mut conversation = Conversation::default();
    let items = shown(&mut conversation, &[stderr.clone(), exited(false)]);
    assert_eq!(items, [Item::Failed { failure, starting: true }]);
    let mut conversation = Conversation::default();
    assert_eq!(shown(&mut conversation, &[stderr, exited(true)]), []);
    assert_eq!(conversation.down(), Some(Down::Stopped));
}

#[test]
fn what_the_journal_had_no_room_for_is_said() {
    let dropped = json!({ "lines": 12, "bytes": 3456, "reason": "the journal has reached its bound" });
    let text =
        "12 of the agent's messages (3456 bytes) were dropped from the journal: the journal has reached its bound";
    assert_eq!(Conversation::default().apply(&event("agent.dropped", &dropped)), [Item::Warning(text.into())]);
}

#[test]
fn a_launch_that_fails_says_why_once() {
    let mut conversation = Conversation::default();
    let events = [
        condition("EnvironmentReady", "ScriptNotApproved", "not approved"),
        event("agent.stderr", &json!({ "text": "oh" })),
        event("launch.failed", &json!({ "launch": 1, "reason": "ScriptNotApproved", "message": "not approved" })),
        event("agent.exited", &json!({ "launch": 1, "signal": 15, "requested": true })),
        condition("AgentStarted", "ScriptNotApproved", "not approved"),
    ];
    let failure = failed("ScriptNotApproved", "not approved", &["oh"]);
    assert_eq!(shown(&mut conversation, &events), [Item::Failed { failure, starting: true }]);
    assert_eq!(conversation.down(), Some(Down::Failed), "agentd ended the agent because the launch had failed");
    conversation.apply(&event("launch.started", &json!({ "launch": 2, "reason": "resume" })));
    assert!(conversation.down().is_none() && conversation.failure().is_none());
}

#[test]
fn an_agent_that_crashes_in_a_turn_is_told_once() {
    let mut conversation = Conversation::default();
    let synthetic =
        json!({ "cause": "agent-exited", "detail": "the agent exited with status 3", "stderr": ["no key given"] });
    let events = [
        event("conversation.opened", &json!({ "launch": 1, "conversation": "c", "by": "new", "directory": "/" })),
        event("turn.queued", &json!({ "turn": "t1", "prompt": "x" })),
        event("turn.started", &json!({ "turn": "t1", "rpc": 3 })),
        event("agent.stderr", &json!({ "text": "no key given" })),
        event("agent.exited", &json!({ "launch": 1, "status": 3 })),
        event("turn.ended", &json!({ "turn": "t1", "synthetic": synthetic })),
        condition("AgentStarted", "AgentExited", "the agent exited with status 3"),
        condition("ConversationReady", "AgentExited", "the agent exited with status 3"),
    ];
    let items = shown(&mut conversation, &events);
    let failure = failed("AgentExited", "the agent exited with status 3", &["no key given"]);
    assert_eq!(items[1], Item::Failed { failure, starting: false });
    assert!(matches!(&items[2..], [Item::TurnEnded(_, None)]), "{items:#?}");
}

#[test]
fn a_turn_that_is_refused_for_want_of_a_login_has_the_words_of_the_condition() {
    let mut conversation = Conversation::default();
    let detail = "the agent answered the prompt with an error: Authentication required (-32000)";
    let message = "the agent refused the prompt for lack of a login; log in";
    let required = json!({
        "type": "AuthenticationRequired", "status": "True", "reason": "LoginLost", "message": message,
        "observed_generation": 1, "last_transition_time": "2026-01-01T00:00:00Z",
    });
    let turn = |turn: &str, required: Option<&Value>| {
        let mut events = vec![event("turn.started", &json!({ "turn": turn, "rpc": 3 }))];
        events.extend(required.map(|required| event("condition", required)));
        let synthetic = json!({ "cause": "agent-error", "detail": detail });
        events.push(event("turn.ended", &json!({ "turn": turn, "synthetic": synthetic })));
        events
    };
    let mut failure_of = |events: &[Event]| match shown(&mut conversation, events).pop() {
        Some(Item::TurnEnded(_, failure)) => failure,
        other => panic!("{other:?}"),
    };
    let required = failure_of(&turn("t1", Some(&required)));
    assert_eq!(required, Some(failed(AUTHENTICATION_REQUIRED, message, &[])));
    assert_eq!(failure_of(&turn("t2", None)), Some(failed("", detail, &[])), "a later turn has its own words");
}

#[test]
fn a_warning_is_shown_unless_it_is_the_launches_end() {
    let waits = condition("PrerequisitesMet", "Waiting", "vpn (fail): no route");
    let mut conversation = Conversation::default();
    assert_eq!(
        shown(&mut conversation, &[waits]),
        [Item::Progress("waiting: vpn (fail): no route".into())],
        "what is waited for is shown at once"
    );
    let compiles = condition("EnvironmentReady", "CompilingPlugin", "compiling corp");
    assert_eq!(shown(&mut conversation, &[compiles]), [Item::Progress("waiting: compiling corp".into())]);
    let wrong = json!({
        "type": "EnvironmentReady", "status": "Unknown", "reason": "ConfigurationInvalid",
        "message": "agentd.toml:3: no such key", "observed_generation": 1,
        "last_transition_time": "2026-01-01T00:00:00Z",
    });
    assert_eq!(
        shown(&mut conversation, &[event("condition", &wrong)]),
        [Item::Progress("waiting: agentd.toml:3: no such key".into())]
    );
    let invalid = condition("EnvironmentValid", "PathEntryMissing", "a PATH entry is missing");
    assert_eq!(shown(&mut conversation, &[invalid]), []);
    let next = condition("SecretsAvailable", "Missing", "no token");
    assert_eq!(shown(&mut conversation, &[next]), [Item::Warning("EnvironmentValid: a PATH entry is missing".into())]);
    let end = event("launch.failed", &json!({ "launch": 1, "reason": "Missing", "message": "no token" }));
    let failure = failed("Missing", "no token", &[]);
    assert_eq!(shown(&mut conversation, &[end]), [Item::Failed { failure, starting: true }]);
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

#[test]
fn a_completion_is_an_end_also_without_the_end_of_the_agent() {
    let mut conversation = Conversation::default();
    let done = json!({
        "outcome": "completed", "reason": "done", "exit_status": 0, "completed_at": "2026-01-01T00:00:00Z",
    });
    conversation.apply(&event("session.completed", &done));
    assert_eq!(conversation.down(), Some(Down::Completed));
}
