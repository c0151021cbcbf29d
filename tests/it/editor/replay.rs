//! Opening a session again: the replay of its journal, also of what happened without the editor.

use agentd_api::session::Phase;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Editor, QUIET, chunks, handle, numbers};
use crate::harness::Daemon;
use crate::harness::session::said;

#[tokio::test]
async fn the_end_of_the_input_leaves_the_turn_and_opening_again_finds_it_whole_and_marked() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.prompt(&id, "count 200 10").await;
    editor.update("some numbers", |update| update["content"]["text"] == "20\n").await;
    assert_eq!(editor.leave().await, Some(0));
    let session = handle(&daemon, &id);
    let mut events = session.events("after=0").await;
    events.until("more numbers", |event| said(event).is_some_and(|said| said == "80\n")).await;
    assert_eq!(session.view().await.status.phase, Phase::Busy, "the turn goes on");

    let mut again = Editor::start(&daemon).await;
    let loaded = again.reopen(&daemon, "session/load", &id).await;
    assert!(loaded["result"].is_object(), "{loaded}");
    again.update("the rest", |update| update["content"]["text"] == "200\n").await;
    let said = chunks(&again.past, "agent_message_chunk");
    let texts: Vec<String> = said.iter().map(|(text, _)| text.clone()).collect();
    assert_eq!(numbers(&texts), (1..=200).collect::<Vec<u32>>());
    let (prompt, meta) = &chunks(&again.past, "user_message_chunk")[0];
    assert_eq!((prompt.as_str(), &meta["away"]), ("count 200 10", &Value::Null), "the editor had the prompt: {meta}");
    assert_eq!(said[0].1["away"], Value::Null, "{}", said[0].1);
    let is_away = |(_, meta): &(String, Value)| meta["away"] == true;
    assert!(said.iter().any(is_away), "what went on without the editor is marked");
    let live = &said.last().unwrap().1;
    assert!(live["seq"].is_u64() && live["away"].is_null(), "what is live is not marked as away: {live}");
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(again.turn(&id, "say on").await["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn another_editor_has_seen_nothing_and_a_resume_replays_nothing() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.turn(&id, "say one").await;
    editor.leave().await;

    let mut other = Editor::named(&daemon, "Another Editor", &[]).await;
    other.reopen(&daemon, "session/load", &id).await;
    assert_eq!(chunks(&other.past, "agent_message_chunk")[0].1["away"], true);

    let mut resumed = Editor::start(&daemon).await;
    let answer = resumed.reopen(&daemon, "session/resume", &id).await;
    assert_eq!(answer["result"], json!({}), "{answer}");
    timeout(QUIET, resumed.message("a message", |_| true)).await.expect_err("nothing is replayed");
    assert_eq!(resumed.turn(&id, "remember").await["result"]["stopReason"], "end_turn");
    assert_eq!(resumed.texts(), [r#"["say one"]"#], "the agent knows the conversation");
}

#[tokio::test]
async fn a_prompt_of_another_client_is_shown_with_its_origin() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    handle(&daemon, &id).turn("say from elsewhere").await;
    editor.update("the answer", |update| update["content"]["text"] == "from elsewhere").await;
    let (prompt, meta) = &chunks(&editor.past, "user_message_chunk")[0];
    assert_eq!((prompt.as_str(), &meta["other_client"]), ("say from elsewhere", &json!(true)));
}

#[tokio::test]
async fn a_long_line_reaches_the_editor() {
    let daemon = Daemon::start().await;
    let mut editor = Editor::start(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.turn(&id, "bigline 3000000").await;
    assert_eq!(chunks(&editor.past, "agent_message_chunk")[0].0.len(), 3_000_000);
    editor.reopen(&daemon, "session/load", &id).await;
    assert_eq!(editor.texts().iter().map(String::len).collect::<Vec<_>>(), [3_000_000, 3_000_000]);
}
