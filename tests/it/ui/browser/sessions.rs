//! Sessions on the page: their lives, interruptions, two pages at once, and the list.

use serde_json::json;

use super::Stage;

/// Plays a scenario that needs nothing else.
async fn play(scenario: &str) {
    if let Some(mut stage) = Stage::start().await {
        stage.play(scenario, json!({})).await;
    }
}

#[tokio::test]
async fn a_session_is_led_through_its_life() {
    play("life").await;
}

#[tokio::test]
async fn a_killed_daemon_leaves_nothing_out_and_nothing_twice() {
    play("restart").await;
}

#[tokio::test]
async fn a_killed_agent_is_shown_and_its_session_goes_on() {
    play("agent").await;
}

#[tokio::test]
async fn a_page_that_was_closed_shows_everything_that_was_missed() {
    play("closed").await;
}

#[tokio::test]
async fn two_pages_show_the_same() {
    play("pair").await;
}

#[tokio::test]
async fn a_late_list_erases_nothing_and_typed_text_stays() {
    play("list").await;
}

#[tokio::test]
async fn a_stream_that_is_silent_counts_as_dead() {
    play("silent").await;
}
