//! `agentctl wait` for phases and conditions of batch sessions.

use agentd_api::session::{Phase, SessionSpec};

use super::{batch, result};
use crate::harness::Daemon;
use crate::harness::ctl::ctl;

#[tokio::test]
async fn wait_ends_with_the_state_or_when_it_can_no_longer_come() {
    let daemon = Daemon::start().await;
    let named = |name: &str, spec: SessionSpec| SessionSpec { name: Some(name.parse().unwrap()), ..spec };
    daemon.create(&named("good", batch(&daemon, "count 30 5"))).await;
    let wait = |name: &'static str, wanted: &'static str, timeout: &'static str| {
        let daemon = &daemon;
        async move { ctl(daemon, &["wait", name, "--for", wanted, "--timeout", timeout]).await }
    };
    for wanted in ["Completed", "phase=completed", "Ready=False"] {
        let said = wait("good", wanted, "1m").await;
        assert_eq!(said.status, Some(0), "{wanted}: {said:?}");
    }
    // A completed session changes only by a resume.
    for wanted in ["Ready", "phase=idle", "Failed"] {
        let said = wait("good", wanted, "1m").await;
        assert_eq!(said.status, Some(4), "{wanted}: {said:?}");
        assert!(said.err.contains("can no longer have") && said.err.contains("agentctl resume good"), "{said:?}");
    }
    // A wait that began before the end fails with the end.
    let bad = daemon.create(&named("bad", batch(&daemon, "count 30 5\nexit 1"))).await;
    let said = wait("bad", "Completed", "1m").await;
    assert!(said.status == Some(4) && said.err.contains("its phase is failed"), "{said:?}");
    assert_eq!(result(&bad).await.0.status.phase, Phase::Failed);
    // An interactive session never completes, and another state may come in time.
    daemon.session(&named("talk", daemon.scripted(&[]))).await;
    assert_eq!(wait("talk", "Completed", "1m").await.status, Some(4));
    assert_eq!(wait("talk", "RepositoriesReady=False", "0").await.status, Some(1), "not in time");
    assert_eq!(wait("talk", "Complete", "0").await.status, Some(2), "no such state");
    assert_eq!(wait("bad", "deleted", "0").await.status, Some(1));
}
