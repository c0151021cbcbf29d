use serde_json::{Value, json};

use super::*;

fn attachment(after: u64, view: Option<Value>, goal: Goal) -> Attachment {
    Attachment {
        id: "s".into(),
        label: "s".into(),
        after,
        view: view.map(|view| serde_json::from_value(view).unwrap()),
        agent: "agent".into(),
        directory: Some("/".into()),
        goal,
        json: false,
        verbose: false,
        count_dropped: false,
        starter: None,
    }
}

fn view(last_seq: u64, status: &Value) -> Value {
    let time = "2026-01-01T00:00:00Z";
    let mut whole = json!({
        "phase": "busy", "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": last_seq,
        "updated": time,
    });
    whole.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
    json!({ "id": "s", "generation": 1, "created": time, "spec": { "directory": "/" }, "status": whole })
}

fn feed(attached: &mut Attached<'_>, seq: u64, kind: &str, data: &Value) -> Option<End> {
    let line = json!({ "seq": seq, "time": "2026-01-01T00:00:00Z", "kind": kind, "data": data }).to_string();
    attached.record(seq, line.as_bytes()).unwrap()
}

fn question(id: &str) -> Value {
    json!({ "id": id, "title": "ls", "options": [{ "id": "y", "name": "Yes", "kind": "allow_once" }] })
}

#[test]
fn one_prompt_ends_with_its_own_turn_and_not_with_the_one_before_it() {
    let client = Client::new("/nonexistent");
    let goal = Goal::Turn(Some(TurnId::numbered(2)));
    let mut attached = Attached::new(&client, attachment(4, None, goal)).unwrap();
    assert_eq!(feed(&mut attached, 5, "turn.queued", &json!({ "turn": "t2", "prompt": "x" })), None);
    assert_eq!(feed(&mut attached, 6, "turn.ended", &json!({ "turn": "t1", "stop_reason": "end_turn" })), None);
    assert_eq!(feed(&mut attached, 7, "turn.started", &json!({ "turn": "t2", "rpc": 9 })), None);
    let end = feed(&mut attached, 8, "turn.ended", &json!({ "turn": "t2", "stop_reason": "cancelled" }));
    assert_eq!(end, Some(End::Turn(130)));
}

#[test]
fn a_new_sessions_goal_is_the_first_turn_it_queues() {
    let client = Client::new("/nonexistent");
    let mut attached = Attached::new(&client, attachment(0, None, Goal::Turn(None))).unwrap();
    for (seq, turn) in [(1, "t1"), (2, "t2")] {
        feed(&mut attached, seq, "turn.queued", &json!({ "turn": turn, "prompt": "x" }));
    }
    let end = feed(&mut attached, 3, "turn.ended", &json!({ "turn": "t1", "stop_reason": "end_turn" }));
    assert_eq!(end, Some(End::Turn(0)));
}

#[test]
fn a_question_of_history_is_not_asked_and_one_from_before_the_history_shown_is() {
    let client = Client::new("/nonexistent");
    let open = json!({ "turn": { "id": "t3", "prompt": "x" }, "permissions": [question("p1")] });
    let goal = Goal::Turn(Some(TurnId::numbered(3))); // opens no input
    let mut attached = Attached::new(&client, attachment(4, Some(view(6, &open)), goal)).unwrap();
    feed(&mut attached, 5, "permission.requested", &json!({ "request": question("p2"), "rpc": 1 }));
    assert!(attached.question().is_none(), "history is not over");
    let resolved = json!({ "permission": "p2", "outcome": "cancelled", "by": "cancel" });
    feed(&mut attached, 6, "permission.resolved", &resolved);
    assert_eq!(attached.question().map(|request| request.id.as_str()), Some("p1"));
}

#[test]
fn a_session_that_is_down_is_looked_at_again_only_once_history_is_over() {
    let client = Client::new("/nonexistent");
    let stopped = view(2, &json!({ "phase": "idle" }));
    let mut attached =
        Attached::new(&client, attachment(0, Some(stopped), Goal::Turn(Some(TurnId::numbered(9))))).unwrap();
    feed(&mut attached, 1, "agent.exited", &json!({ "launch": 1, "status": 0, "requested": true }));
    assert!(attached.settle.is_none());
    feed(&mut attached, 2, "launch.started", &json!({ "launch": 2, "reason": "resume" }));
    assert!(attached.settle.is_none(), "the view says that it is idle");
    feed(&mut attached, 3, "agent.exited", &json!({ "launch": 2, "status": 0, "requested": true }));
    assert!(attached.settle.is_some());
}
