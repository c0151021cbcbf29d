//! Sessions on the page: their lives, interruptions, two pages at once, and the list.

use serde_json::json;

use super::Stage;
use crate::harness::{Daemon, paths};

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

/// Returns the place `near`, whose client is agentd-keeper on this machine, and the place `busy`, whose queue holds
/// each launch of an agent.
fn places(daemon: &Daemon) -> String {
    let (keeper, queue) = (paths::keeper(), daemon.root().join("queue"));
    let queue = queue.display();
    // A look at the place is no launch of an agent.
    let run = format!(
        "case $1 in agentd-look-*) exec $2 enter;; esac; echo $1 queued 17 two jobs are before it > {queue}; \
         exec sleep 1000"
    );
    format!(
        "\n[places.near]\nkind = \"command\"\nkeeper = {keeper:?}\nclient = [\"{{keeper}}\", \"enter\"]\n\
         [places.busy]\nkind = \"command\"\nkeeper = {keeper:?}\npoll = \"300ms\"\n\
         client = [\"/bin/sh\", \"-c\", {run:?}, \"run\", \"{{name}}\", \"{{keeper}}\"]\n\
         status = [\"/bin/sh\", \"-c\", \"test ! -e {queue} || cat {queue}\"]\n\
         cancel = [\"/bin/rm\", \"-f\", \"{queue}\"]\n"
    )
}

#[tokio::test]
async fn the_place_of_a_session_is_chosen_and_shown_with_the_words_of_its_engine() {
    if let Some(mut stage) = Stage::configured(places, &[]).await {
        stage.play("places", json!({})).await;
    }
}
