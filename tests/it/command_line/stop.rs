//! A stop of a session that has already ended.

use agentd_api::session::{Phase, SessionSpec, SessionView};

use crate::harness::Daemon;
use crate::harness::ctl::ctl;

#[tokio::test]
async fn a_session_that_is_stopped_or_has_failed_is_stopped_again_with_success_and_no_new_record() {
    let daemon = Daemon::start().await;
    let name = |name: &str| Some(name.parse().unwrap());
    let stopped = daemon.session(&SessionSpec { name: name("one"), ..daemon.scripted(&[]) }).await;
    let failed = daemon.create(&SessionSpec { name: name("two"), ..daemon.scripted(&["--exit", "3"]) }).await;
    failed.wait_for_phase(Phase::Failed).await;
    let before = stopped.stop().await.status.last_seq;
    for arguments in [&["stop", "one"][..], &["stop", "one", "two", "--no-wait"], &["stop", "two", "--json"]] {
        let said = ctl(&daemon, arguments).await;
        assert_eq!((said.status, said.err.as_str()), (Some(0), ""), "{arguments:?}: {said:#?}");
    }
    let view: SessionView = daemon.client.call("POST", &stopped.path("/stop"), "").await.expect(202);
    assert_eq!((view.status.phase, view.status.last_seq), (Phase::Stopped, before));
    assert_eq!(failed.view().await.status.phase, Phase::Failed, "a failure stays visible");
    let said = ctl(&daemon, &["stop", "none"]).await;
    assert_eq!(said.status, Some(1), "{said:#?}");
}
