//! Large and fast sessions in the page. The test measures times, so it runs alone.

use serde_json::json;

use super::Stage;

#[tokio::test]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn large_and_fast_sessions_are_shown_like_small_ones() {
    let Some(mut stage) = Stage::start().await else { return };
    stage.play("sizes", json!({})).await;
}
