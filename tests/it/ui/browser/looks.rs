//! The page for all users: the findings of axe, the keyboard alone, the place of a reader, and pictures of each view.

use serde_json::json;

use super::Stage;
use crate::harness::{Daemon, paths, require};

/// A failing prerequisite, because nothing listens there, and a passing one.
const PREREQUISITES: &str = r#"
[prerequisites.board]
plugin = "tcp"
settings = { host = "127.0.0.1", port = 9 }
remedy = "connect the board with `lab connect 17`"

[plugins.command]
grant = { command = ["/bin/true **"] }

[prerequisites.lab-booked]
plugin = "command"
settings = { program = "/bin/true" }
"#;

/// Starts a daemon with prerequisites, whose agent offers options, and plays a scenario.
async fn play(scenario: &str) {
    let Some(modules) = require::browser() else { return };
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + PREREQUISITES);
    daemon.run().await;
    let settings = json!({
        "spec": daemon.scripted(&["--options", "--content"]),
        "root": daemon.root(),
        "references": paths::checkout().join("tests/ui/reference"),
        "rewrite": std::env::var_os("AGENTD_TEST_REWRITE").is_some(),
    });
    Stage::of(modules, daemon, &[]).play(scenario, settings).await;
}

#[tokio::test]
async fn axe_finds_nothing_serious_in_any_view() {
    play("axe").await;
}

#[tokio::test]
async fn every_function_works_with_the_keyboard_alone() {
    play("keyboard").await;
}

#[tokio::test]
async fn the_place_of_a_reader_stays() {
    play("place").await;
}

#[tokio::test]
async fn the_views_look_like_their_pictures() {
    play("pictures").await;
}
