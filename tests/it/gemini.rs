//! A real agent, gemini-cli. The tests that every real agent must pass are in `real_agent.rs`.
//!
//! Findings with `@google/gemini-cli` 0.61.0, from ACP without agentd (`gemini --acp`):
//! - `initialize` answers after 1.0 s, or 1.5 s with the launcher: `loadSession: true`, no `session/resume`. The method
//!   of authentication is set in `~/.gemini/settings.json`, and `GEMINI_API_KEY` may have any value.
//! - Before each turn it asks a small model which model to use (no tools offered):
//!   `POST /v1beta/models/gemini-3.5-flash-lite:generateContent`. Then it calls
//!   `:streamGenerateContent?alt=sse`. With `GEMINI_MODEL` the first call is omitted. It never called `:countTokens`.
//!   The first content of a conversation has a separate part, `<session_context>`, before the user's words.
//! - Its tool `run_shell_command` runs `/usr/bin/bash -c` in its own process session, with many additions to the
//!   environment (`GIT_CONFIG_*`, `PAGER`, `TERM`). It sends no `tool_call` before the permission request, and no
//!   update between the request and the tool's end.
//! - A permission request has three options: `proceed_always` (`allow_always`), `proceed_once` (`allow_once`), `cancel`
//!   (`reject_once`).
//! - The started process is a launcher. The agent is its child with the same stdio, and outlives the launcher's kill
//!   -9. The launcher ignores SIGTERM (observed for 4 s). With `GEMINI_CLI_NO_RELAUNCH=true` the started process is the
//!   agent, and SIGTERM ends the agent and its tool within 0.04 s.
//! - After the end of its stdin it exits within 0.4 s. While a tool runs, it does not exit (observed for 5 s).
//! - `session/load` replays the first message before its response and the rest after the response.
//! - The file name of a conversation contains the UTC minute of the conversation's start. A load in that minute does
//!   not find the conversation, and overwrites its file (upstream #28693). The daemon does not know about this problem,
//!   so the test waits for the end of the minute before it resumes.

use std::fs;
use std::path::Path;

use agentd_api::event::OpenedBy;
use agentd_api::isolation::Isolation;

use crate::harness::{Daemon, process, require};
use crate::real_agent::{Model, RealAgent, argument, is_held_by_rules, whole_life};

const TOOL: &str = "run_shell_command";

pub(crate) fn gemini(program: &Path, daemon: &Daemon, model: &Model) -> RealAgent {
    let directory = daemon.home().join(".gemini");
    fs::create_dir(&directory).expect("the home is new");
    let settings = r#"{ "security": { "auth": { "selectedType": "gemini-api-key" } } }"#;
    fs::write(directory.join("settings.json"), settings).expect("the home is writable");
    RealAgent {
        entry: None,
        mode: None,
        command: vec![argument(program), "--acp".to_owned()],
        settings: vec![
            ("GOOGLE_GEMINI_BASE_URL", model.server.origin()),
            ("GEMINI_API_KEY", "a-key-that-opens-nothing".to_owned()),
            ("GEMINI_MODEL", "gemini-2.5-pro".to_owned()),
            ("GEMINI_CLI_NO_RELAUNCH", "true".to_owned()),
        ],
        reopened_by: OpenedBy::Load,
        isolation: Isolation::None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_is_held_by_a_rule_and_shows_its_command() {
    let Some(program) = require::gemini() else { return };
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        format!("{config}\n[[permissions]]\nkind = \"execute\"\ntitle = \"git push*\"\nanswer = \"deny\"\n")
    });
    daemon.run().await;
    let model = Model::start(TOOL).await;
    let agent = gemini(&program, &daemon, &model);
    is_held_by_rules(&daemon, &agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_comes_through_a_whole_life() {
    let Some(program) = require::gemini() else { return };
    let mut daemon = Daemon::start().await;
    let model = Model::start(TOOL).await;
    let agent = gemini(&program, &daemon, &model);
    whole_life(&mut daemon, &agent, &model).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_lives_on_without_its_launcher_and_a_stop_ends_what_the_launcher_started() {
    let Some(program) = require::gemini() else { return };
    let daemon = Daemon::start().await;
    let model = Model::start(TOOL).await;
    let mut agent = gemini(&program, &daemon, &model);
    agent.settings.retain(|(name, _)| *name != "GEMINI_CLI_NO_RELAUNCH");
    let session = daemon.session(&agent.spec(&daemon)).await;
    let accepted = session.prompt("take your time").await;
    model.heard("take your time").await;
    let launcher = session.view().await.status.agent_pid.unwrap();
    process::kill9(launcher);
    process::gone(&[launcher]).await;
    model.release();
    let turn = session.end_of(&accepted).await;
    assert_eq!((turn.text.as_str(), turn.ended.stop_reason.as_deref()), ("that took a while", Some("end_turn")));
    session.stop().await;
    process::assert_only(&[daemon.pid()], daemon.root(), "the stop left something");
}
