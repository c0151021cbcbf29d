//! Replay of a conversation by an agent that loads it, with lines that the journal already contains.

use super::*;

/// Returns the journal's records after the request, as JSON lines and `replayed N`.
fn muted(agent_says: &str, until: usize) -> Vec<String> {
    let update =
        |kind: &str| format!(r#"{{"method":"session/update","params":{{"update":{{"sessionUpdate":"{kind}"}}}}}}"#);
    let text = format!(
        "U='{}'; O='{}'; R='{}'; E='{}'; read x; {agent_says}; read x",
        update("tool_call"),
        update("plan"),
        r#"{"id":5,"result":null}"#,
        r#"{"id":5,"error":{"code":-32002,"message":"no"}}"#,
    );
    let (keeper, mut daemon) = Keeper::with(script(&text));
    let rule = Mute { response_to: 5, updates: vec!["tool_call".to_owned()], quiet_ms: 150 };
    daemon.say_and(&json!({"id": 5, "method": "session/load"}), Some(rule));
    eventually("the replay is over", || {
        let lines = keeper.texts(|body| match body {
            Body::AgentOut(data) => Some(data.get().to_owned()),
            Body::AgentReplayed(replayed) => Some(format!("replayed {}", replayed.lines)),
            _ => None,
        });
        (lines.len() >= until).then_some(lines)
    })
}

#[test]
fn a_replay_before_the_response_is_not_journalled_twice() {
    let lines = muted(r#"echo "$U"; echo "$O"; echo "$U"; echo "$R""#, 3);
    assert!(lines[0].contains("plan"), "{lines:?}");
    assert_eq!(lines[1..], ["replayed 2", r#"{"id":5,"result":null}"#]);
}

#[test]
fn a_replay_after_the_response_is_not_journalled_twice() {
    let lines = muted(r#"echo "$R"; sleep 0.05; echo "$U"; echo "$O"; echo "$U""#, 3);
    assert!(lines[0].contains("plan"), "{lines:?}");
    assert_eq!(lines[1..], ["replayed 2", r#"{"id":5,"result":null}"#]);
}

#[test]
fn a_load_that_fails_is_told_at_once_and_what_follows_is_journalled() {
    let lines = muted(r#"echo "$U"; echo "$E"; echo "$U""#, 3);
    assert_eq!(lines[0], "replayed 1");
    assert!(lines[1].contains("-32002") && lines[2].contains("tool_call"), "{lines:?}");
}

#[test]
fn a_replay_that_the_agent_did_not_survive_is_told_before_its_end() {
    let lines = muted(r#"echo "$U"; echo "$R"; exit 0"#, 2);
    assert_eq!(lines, ["replayed 1", r#"{"id":5,"result":null}"#]);
}
