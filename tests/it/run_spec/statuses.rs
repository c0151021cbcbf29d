//! The exit status and `result.json` tell how the run ended.

use std::fs;

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

use super::Run;
use crate::harness::ctl::{Said, end_of};

/// Asserts that a run ended with this status, outcome and text.
fn assert_end(run: &Run, said: &Said, status: i32, outcome: &str, text: &str) {
    assert_eq!(said.status, Some(status), "{said:?}");
    assert!(said.err.contains(text), "{text:?} is not in {said:?}");
    let result = run.result();
    assert_eq!((&result["exit_status"], &result["outcome"]), (&json!(status), &json!(outcome)), "{result}");
    assert!(!run.path("out/.result.json.partial").exists());
}

#[tokio::test]
async fn a_session_that_completes_prints_its_answer_and_leaves_no_process() {
    let prompt = "say I look\ntool exit 0\nsay 7";
    let run = Run::of(json!({ "workspace": "new", "initial_prompt": prompt, "permissions": "allow" }), &[]);
    let said = run.end().await;
    assert_end(&run, &said, 0, "completed", "completed (exit status 0)");
    assert_eq!(said.out, "7\n", "{said:?}");
    for line in ["launch 1 began", "turn t1 began", "tool: exit 0", "turn t1 ended: end_turn"] {
        assert!(said.err.contains(line), "{line:?} is not in {}", said.err);
    }
    run.nothing_is_left().await;
}

#[tokio::test]
async fn each_failure_has_a_status_of_its_own() {
    let prompt = |prompt: &str, more: serde_json::Value| {
        let mut spec = json!({ "workspace": "new", "initial_prompt": prompt });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    for (spec, status, outcome, text) in [
        (prompt("exit 3", json!({})), 1, "failed", "the agent exited with status 3"),
        (prompt("error", json!({})), 1, "failed", "as you asked: an error"),
        (prompt("hang", json!({ "limits": { "turn_seconds": 1 } })), 5, "limit", "limits.turn"),
        (prompt("say no", json!({ "answer_schema": { "type": "object" } })), 6, "schema", "is not JSON"),
        (prompt("say x", json!({ "command": ["/bin/false"] })), 7, "launch-failed", "exited with status 1"),
        (prompt("say x", json!({ "command": ["/nowhere/agent"] })), 7, "launch-failed", "/nowhere/agent"),
        (prompt("say x", json!({ "agent": "absent" })), 2, "invalid", "there is no agent \"absent\""),
        (json!({ "directory": "/nowhere", "initial_prompt": "x" }), 2, "invalid", "/nowhere"),
        (prompt("say x", json!({ "colour": "red" })), 2, "invalid", "spec.json:1:"),
    ] {
        let run = Run::of(spec, &[]);
        assert_end(&run, &run.end().await, status, outcome, text);
        run.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_file_must_have_exactly_one_session() {
    let run = Run::of_prompt("say x");
    let session = "{ workspace: new, agent: demo, initial_prompt: hello }";
    fs::write(run.path("one.yaml"), format!("sessions: [{session}]")).unwrap();
    fs::write(run.path("two.yaml"), format!("sessions: [{session}, {session}]")).unwrap();
    fs::write(run.path("none.toml"), "# nothing\n").unwrap();
    for (file, status, text) in [
        ("two.yaml", 2, "it has 2 sessions"),
        ("none.toml", 2, "error: "),
        ("absent.yaml", 2, "cannot read it"),
        ("one.yaml", 0, "completed"),
    ] {
        let _ = fs::remove_dir_all(run.path("out"));
        let said = end_of(run.command(file).spawn().unwrap()).await;
        assert!(said.status == Some(status) && said.err.contains(text), "{file}: {said:?}");
    }
}

#[tokio::test]
async fn a_name_that_the_state_has_already_is_refused() {
    let run = Run::of(json!({ "workspace": "new", "name": "job", "initial_prompt": "say 1" }), &[]);
    assert_eq!(run.end().await.status, Some(0));
    fs::rename(run.path("out"), run.path("first")).unwrap();
    assert_end(&run, &run.end().await, 4, "refused", "job");
}

#[tokio::test]
async fn a_daemon_that_cannot_start_is_reported_with_its_words() {
    let run = Run::of_prompt("say x");
    fs::create_dir_all(run.path("state/state")).unwrap();
    let lock = fs::File::create(run.path("state/state/agentd.lock")).unwrap();
    let _held = Flock::lock(lock, FlockArg::LockExclusiveNonblock).unwrap();
    assert_end(&run, &run.end().await, 3, "daemon-failed", "another agentd uses");
    let mut run = Run::of_prompt("say x");
    run.leave_out("--state");
    run.add("--state", "/proc/nowhere");
    assert_end(&run, &run.end().await, 3, "daemon-failed", "--state names a directory");
}

#[tokio::test]
async fn a_command_line_without_a_file_is_wrong() {
    let mut run = Run::of_prompt("say x");
    run.arguments.clear();
    let said = end_of(run.command("--artifacts").spawn().unwrap()).await;
    assert_eq!(said.status, Some(2), "{said:?}");
}
