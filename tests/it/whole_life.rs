//! One session through everything at once, and its journal afterwards.

use agentd_api::event::Body;
use agentd_api::session::{PermissionPolicy, Phase, SessionView};

use crate::harness::session::said;
use crate::harness::{Daemon, process, until};

#[tokio::test]
async fn the_journal_of_a_session_that_went_through_everything_counts_without_gap_or_double() {
    let mut daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&["--banner"]);
    spec.permissions = PermissionPolicy::Allow;
    spec.initial_prompt = Some("say initial".to_owned());
    let session = daemon.session(&spec).await;
    session.turn("env\nnoise\nstderr words\nunknown-request\nask\ntool echo tool").await;
    let accepted = session.prompt("count 150 4").await;
    daemon.kill9();
    daemon.run().await;
    session.end_of(&accepted).await;

    let accepted = session.prompt("say hanging\nhang").await;
    let hangs = || session.journal().iter().filter_map(said).any(|text| text == "hanging");
    until("the agent hangs", hangs).await;
    let dropped = session.prompt("say never").await;
    daemon
        .client
        .call("DELETE", &session.path(&format!("/turns/{}", dropped.turn)), "")
        .await
        .expect::<SessionView>(202);
    daemon.client.call("POST", &session.path("/cancel"), "").await.expect::<SessionView>(202);
    session.end_of(&accepted).await;
    session.turn("error").await;

    let accepted = session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    process::kill9(session.view().await.status.agent_pid.unwrap());
    session.end_of(&accepted).await;
    session.wait_for_phase(Phase::Failed).await;
    session.resume().await;
    let accepted = session.prompt("count 100 4").await;
    daemon.terminate().await;
    daemon.run().await;
    session.end_of(&accepted).await;
    session.stop().await;
    session.resume().await;
    session.turn("remember").await;
    session.stop().await;

    let events = session.journal();
    let numbers: Vec<u32> = events.iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect();
    assert_eq!(numbers, (1..=150).chain(1..=100).collect::<Vec<u32>>());
    let count = |of: fn(&Body) -> bool| events.iter().filter(|event| of(&event.body)).count();
    let queued = count(|body| matches!(body, Body::TurnQueued(_)));
    let ended = count(|body| matches!(body, Body::TurnEnded(_)));
    assert_eq!((queued, ended), (9, 9), "every turn that was accepted has one end");
    let launches = count(|body| matches!(body, Body::LaunchStarted(_)));
    let exits = count(|body| matches!(body, Body::AgentExited(_)));
    assert_eq!((launches, exits), (3, 3), "every launch has one end");
    let asked = count(|body| matches!(body, Body::PermissionRequested(_)));
    let resolved = count(|body| matches!(body, Body::PermissionResolved(_)));
    assert_eq!((asked, resolved), (2, 2), "every question has one answer");
    assert!(events.windows(2).all(|pair| pair[0].time <= pair[1].time), "time goes back");
}
