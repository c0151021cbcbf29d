//! A daemon without a service that ends while the page is open.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};

use super::{Shown, Visitor};
use crate::harness::home::Home;
use crate::harness::{process, until, within};

/// Returns the process of the daemon, once it answers through the page.
async fn daemon(visitor: &Visitor<'_>) -> u32 {
    within("the daemon answers", async {
        loop {
            let answer = visitor.get("/host/this/v1/version").await;
            if answer.status == 200 {
                return u32::try_from(answer.json()["pid"].as_u64().unwrap()).unwrap();
            }
            assert_eq!(answer.code(), "ui.host_unreachable");
        }
    })
    .await
}

#[tokio::test]
async fn a_crashed_daemon_is_started_again_and_one_that_was_stopped_stays_down() {
    let home = Home::new();
    let mut command = home.agentctl();
    command.args(["ui", "--json", "--no-open"]).stdout(Stdio::piped());
    let shown = Shown::run(&mut command);
    let visitor = shown.sign_in().await;

    let first = daemon(&visitor).await;
    kill(process::pid(first), Signal::SIGKILL).unwrap();
    let second = daemon(&visitor).await;
    assert_ne!(first, second);

    kill(process::pid(second), Signal::SIGTERM).unwrap();
    until("the daemon has ended", || !process::is_alive(second)).await;
    // Longer than the pause before a crashed daemon is started.
    let since = std::time::Instant::now();
    while since.elapsed() < std::time::Duration::from_secs(4) {
        assert_eq!(visitor.get("/host/this/v1/version").await.code(), "ui.host_unreachable");
    }
}
