//! Hostile agents and hostile pages. Nothing runs, nothing leaks, and nothing is changed.

use serde_json::json;

use super::Stage;

/// Plays a scenario with these arguments for `agentctl ui`.
async fn play(scenario: &str, arguments: &[&str]) {
    if let Some(mut stage) = Stage::with(arguments).await {
        stage.play(scenario, json!({})).await;
    }
}

#[tokio::test]
async fn no_text_of_an_agent_runs() {
    play("hostile", &[]).await;
}

#[tokio::test]
async fn pages_of_other_servers_see_and_change_nothing() {
    play("foreign", &[]).await;
}

#[tokio::test]
async fn the_cookie_alone_opens_nothing() {
    play("cookie", &[]).await;
}

#[tokio::test]
async fn a_read_only_page_changes_nothing() {
    play("read-only", &["--read-only"]).await;
}
