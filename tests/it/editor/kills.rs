//! `kill -9` of the daemon, of `agentctl acp` and of the agent, each in the middle of a turn.

use agentd_api::session::Phase;

use super::{Editor, chunks, handle, numbers};
use crate::harness::{Daemon, process};

#[tokio::test]
async fn kill_nine_of_the_daemon_is_not_noticed_by_the_turn() {
    let mut daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    let prompt = editor.prompt(&id, "count 200 10").await;
    for number in ["10\n", "80\n"] {
        editor.update("a number", |update| update["content"]["text"] == number).await;
        daemon.kill9();
        daemon.run().await;
    }
    assert_eq!(editor.response(prompt).await["result"]["stopReason"], "end_turn");
    assert_eq!(numbers(&editor.texts()), (1..=200).collect::<Vec<u32>>(), "nothing is lost or doubled");
    // A prompt while no daemon runs waits for the next one.
    daemon.kill9();
    let prompt = editor.prompt(&id, "say on").await;
    daemon.run().await;
    assert_eq!(editor.response(prompt).await["result"]["stopReason"], "end_turn");
    assert_eq!(editor.texts(), ["on"]);
}

#[tokio::test]
async fn kill_nine_of_the_command_leaves_the_turn_to_the_next_one() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.prompt(&id, "count 100 10").await;
    editor.update("a number", |update| update["content"]["text"] == "10\n").await;
    editor.kill9().await;
    let mut again = Editor::start(&daemon).await;
    again.reopen(&daemon, "session/load", &id).await;
    again.update("the end", |update| update["content"]["text"] == "100\n").await;
    assert_eq!(numbers(&again.texts()), (1..=100).collect::<Vec<u32>>());
    handle(&daemon, &id).wait_for_phase(Phase::Idle).await;
}

#[tokio::test]
async fn kill_nine_of_the_agent_is_an_error_of_the_prompt_and_the_next_prompt_starts_it_again() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.turn(&id, "say one").await;
    let prompt = editor.prompt(&id, "count 1000 10").await;
    editor.update("a number", |update| update["content"]["text"] == "10\n").await;
    let session = handle(&daemon, &id);
    process::kill9(session.view().await.status.agent_pid.expect("it runs"));
    let failed = editor.response(prompt).await;
    let message = failed["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("signal 9") && message.contains("hint: "), "{failed}");
    editor.past.clear();
    session.wait_for_phase(Phase::Failed).await;
    assert_eq!(editor.turn(&id, "remember").await["result"]["stopReason"], "end_turn");
    assert_eq!(editor.texts(), [r#"["say one","count 1000 10"]"#]);

    // A tool call that the kill has cut is not left running in the editor.
    let prompt = editor.prompt(&id, "do sleep 60").await;
    editor.update("the tool", |update| update["status"] == "in_progress").await;
    process::kill9(session.view().await.status.agent_pid.expect("it runs"));
    assert!(editor.response(prompt).await["error"].is_object());
    editor.update("its end", |update| update["status"] == "failed" && update["toolCallId"] == "unasked").await;
    assert!(chunks(&editor.past, "user_message_chunk").is_empty());
}
