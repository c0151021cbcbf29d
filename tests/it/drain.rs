//! Draining stops every session in order and launches no session, until it is undone or the daemon starts again.

use agentd_api::Code;
use agentd_api::drain::DrainView;
use agentd_api::event::Body;
use agentd_api::session::{PermissionPolicy, Phase, RestartPolicy, SessionSpec, SessionView};

use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths, process, until};

fn stops(session: &Session) -> Vec<String> {
    let reason = |body| match body {
        Body::StopRequested(stop) => Some(stop.reason),
        _ => None,
    };
    session.journal().into_iter().filter_map(|event| reason(event.body)).collect()
}

#[tokio::test]
async fn a_drain_stops_every_session_in_order_tells_how_far_it_is_and_leaves_no_process() {
    let daemon = Daemon::start().await;
    let named = SessionSpec { name: Some("slow".parse().unwrap()), ..daemon.scripted(&["--ignore-eof"]) };
    let sessions = [
        daemon.session(&named).await,
        daemon.session(&daemon.scripted(&[])).await,
        daemon.session(&daemon.scripted(&[])).await,
    ];
    sessions[1].prompt("hang").await;
    sessions[1].wait_for_phase(Phase::Busy).await;

    let output = ctl(&daemon, &["drain"]).await;
    assert!(output.status == Some(0) && output.out.starts_with("drained"), "{output:?}");
    assert!(output.err.contains("stopping") && output.err.contains("slow"), "{output:?}");
    for session in &sessions {
        assert_eq!(session.view().await.status.phase, Phase::Stopped);
        let reasons = stops(session);
        assert!(
            matches!(reasons.as_slice(), [reason] if reason.contains("drained") && reason.contains("user")),
            "{reasons:?}"
        );
    }
    until("no process is left", || process::of(daemon.root()) == [daemon.pid()]).await;
    let view: DrainView = daemon.client.get("/v1/drain").await.expect(200);
    assert!(view.draining && view.since.is_some() && view.by.is_some() && view.active.is_empty(), "{view:?}");
}

#[tokio::test]
async fn a_drained_daemon_launches_nothing_by_any_way_and_does_again_when_that_is_undone() {
    let daemon = Daemon::start().await;
    let stopped = daemon.session(&daemon.scripted(&[])).await;
    stopped.stop().await;
    // The agent crashes, and the daemon plans its restart.
    daemon.configure(|config| config.replace("restart = \"never\"", "restart_first = \"2s\""));
    daemon.client.call("POST", "/v1/reload", "").await.expect::<serde_json::Value>(200);
    let crashing = SessionSpec { restart: Some(RestartPolicy::OnFailure), ..daemon.scripted(&[]) };
    let crashing = daemon.session(&crashing).await;
    let agent = crashing.view().await.status.agent_pid.unwrap();
    process::kill9(agent);
    crashing.wait_for_phase(Phase::BackingOff).await;

    let view: DrainView = daemon.client.call("POST", "/v1/drain?wait=60", "").await.expect(202);
    assert!(view.draining && view.active.is_empty(), "{view:?}");
    let refused = [
        daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await.problem(),
        daemon.client.call("POST", &stopped.path("/resume"), "").await.problem(),
    ];
    for problem in refused {
        assert_eq!((problem.code, problem.status), (Code::Draining, 409));
        assert!(problem.hint.unwrap().contains("--undo"));
    }
    let output = ctl(&daemon, &["resume", stopped.id.as_str()]).await;
    assert_eq!(output.status, Some(4), "{output:?}");
    let version = ctl(&daemon, &["version"]).await;
    assert!(version.out.contains("drained"), "{version:?}");

    let put_off = crashing.wait_for_phase(Phase::BackingOff).await.status;
    let output = ctl(&daemon, &["drain", "--undo"]).await;
    assert!(output.status == Some(0), "{output:?}");
    // The drain postponed the restart, and the restart takes place after the drain.
    assert!(put_off.next_restart_at.is_none(), "{put_off:#?}");
    let again = crashing.wait_for_phase(Phase::Idle).await;
    assert_eq!(again.status.launches, 2, "{again:#?}");
    stopped.resume().await;
    assert!(!daemon.client.get("/v1/drain").await.expect::<DrainView>(200).draining);
}

#[tokio::test]
async fn sessions_that_are_asked_for_while_the_drain_begins_are_stopped_or_refused() {
    let daemon = Daemon::start().await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let (client, spec) = (daemon.client.clone(), daemon.scripted(&[]));
        asking.spawn(async move { client.post("/v1/sessions?wait=60", &spec).await.status.as_u16() });
    }
    until("some are there", || std::fs::read_dir(daemon.state().join("sessions")).unwrap().count() > 2).await;
    daemon.client.call("POST", "/v1/drain", "").await.expect::<DrainView>(202);
    while let Some(status) = asking.join_next().await {
        assert!(matches!(status.unwrap(), 202 | 409));
    }
    let view: DrainView = daemon.client.get("/v1/drain?wait=60").await.expect(200);
    assert_eq!(view.active, []);
    let list: agentd_api::session::WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert!(!list.sessions.is_empty());
    for SessionView { status, .. } in list.sessions {
        assert!(!status.phase.is_active(), "{status:#?}");
    }
}

#[tokio::test]
async fn the_next_daemon_launches_again() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    daemon.client.call("POST", "/v1/drain?wait=60", "").await.expect::<DrainView>(202);
    daemon.terminate().await;
    daemon.run().await;
    assert_eq!(session.view().await.status.phase, Phase::Stopped);
    session.resume().await;
}

#[tokio::test]
async fn an_agent_cannot_end_the_others_work() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    let (agentctl, socket) = (quoted(paths::agentctl()), quoted(daemon.client.socket()));
    let turn = session.turn(&format!("tool {agentctl} --socket {socket} drain --no-wait 2>&1")).await;
    assert!(turn.text.contains("the call comes from inside the session"), "{}", turn.text);
    assert!(!daemon.client.get("/v1/drain").await.expect::<DrainView>(200).draining);
    assert_eq!(session.view().await.status.phase, Phase::Idle);
}
