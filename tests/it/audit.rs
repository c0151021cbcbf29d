//! The audit log: the caller, call and outcome are in the log, in the journal of the session and in `agentctl audit`.

use agentd_api::audit::{AuditList, AuditRecord};
use agentd_api::event::{AnsweredBy, Body, Cause};
use agentd_api::session::{PermissionPolicy, Phase, SessionSpec};
use agentd_api::{Code, Event};
use serde_json::{Value, json};

use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, paths};

/// Returns the records of the calls whose path has this end, oldest first.
async fn calls(daemon: &Daemon, query: &str, end: &str) -> Vec<AuditRecord> {
    let list: AuditList = daemon.client.get(&format!("/v1/audit{query}")).await.expect(200);
    list.records.into_iter().filter(|record| record.path.ends_with(end)).collect()
}

/// Returns the causes of the records that `pick` chooses.
fn causes(session: &Session, pick: impl Fn(Body) -> Option<Cause>) -> Vec<Cause> {
    session.journal().into_iter().filter_map(|Event { body, .. }| pick(body)).collect()
}

#[tokio::test]
async fn a_call_that_changes_or_reveals_something_is_recorded_with_its_caller_and_outcome() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    daemon.client.get("/v1/sessions?fields=*").await.expect::<Value>(200);
    let output = ctl(&daemon, &["stop", session.id.as_str()]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    assert_eq!(daemon.client.call("POST", "/v1/sessions/none-such/stop", "").await.problem().code, Code::NoSuchSession);

    let stops = calls(&daemon, "", "/stop").await;
    let [stop, refused] = stops.as_slice() else { panic!("{stops:#?}") };
    let own = (nix::unistd::getuid().as_raw(), std::process::id());
    assert_eq!((stop.status, stop.code, stop.session.as_deref()), (202, None, Some(session.id.as_str())));
    assert!(
        stop.requester.uid == own.0 && stop.requester.pid.is_some_and(|pid| pid != own.1),
        "it was agentctl's: {stop:?}"
    );
    assert_eq!((refused.status, refused.code), (404, Some(Code::NoSuchSession)));
    assert_eq!((refused.requester.pid, refused.session.as_deref()), (Some(own.1), Some("none-such")));
    let created = calls(&daemon, "", "/v1/sessions").await;
    assert_eq!(created.len(), 1, "the list of sessions reveals nothing and is not recorded: {created:#?}");
    assert_eq!(created[0].session.as_deref(), Some(session.id.as_str()), "a new session is known by its id");

    // The next daemon still shows the records, also after a kill of the daemon and for a session that was removed.
    daemon.kill9();
    daemon.run().await;
    let removed = daemon.client.call("DELETE", &format!("/v1/sessions/{}", session.id), "").await;
    assert_eq!(removed.status, 204, "{removed:?}");
    let output = ctl(&daemon, &["audit", "--session", session.id.as_str(), "--since", "1h"]).await;
    assert_eq!(output.status, Some(0), "{output:?}");
    let lines: Vec<&str> = output.out.lines().skip(1).collect();
    let has =
        |what: &str, outcome: &str| lines.iter().any(|line| line.contains(what) && line.trim_end().ends_with(outcome));
    assert!(has("POST /v1/sessions ", "202") && has("/stop ", "202") && has("DELETE ", "204"), "{}", output.out);
    assert!(lines.iter().all(|line| line.contains(session.id.as_str())), "{}", output.out);
    assert!(calls(&daemon, "?since=2999-01-01T00:00:00Z", "").await.is_empty());
    assert_eq!(calls(&daemon, "?limit=1", "").await.len(), 1);
    assert_eq!(daemon.client.get("/v1/audit?since=soon").await.problem().code, Code::InvalidRequest);
    assert_eq!(daemon.client.get("/v1/audit?limit=0").await.problem().code, Code::InvalidRequest);
}

#[tokio::test]
async fn the_journal_says_who_answered_cancelled_and_stopped() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { permissions: PermissionPolicy::Ask, ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    let accepted = session.prompt("tool echo run").await;
    let view = session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    let answer = format!("/permissions/{}", view.status.permissions[0].id);
    session.post(&answer, &json!("allow")).await.expect::<Value>(200);
    session.end_of(&accepted).await;
    let accepted = session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    session.post("/cancel", &json!({})).await;
    session.end_of(&accepted).await;
    session.post("/stop", &json!({})).await;
    session.wait_for_phase(Phase::Stopped).await;

    let own = std::process::id();
    let resolved = causes(&session, |body| match body {
        Body::PermissionResolved(resolved) if resolved.by == AnsweredBy::Client => Some(resolved.cause),
        _ => None,
    });
    let cancelled = causes(&session, |body| match body {
        Body::TurnCancelling(cancelling) => Some(cancelling.cause),
        _ => None,
    });
    let stopped = causes(&session, |body| match body {
        Body::StopRequested(stop) => Some(stop.cause),
        _ => None,
    });
    for (what, causes) in [("answer", resolved), ("cancel", cancelled), ("stop", stopped)] {
        let [Cause { requester: Some(requester), limit: None }] = causes.as_slice() else {
            panic!("{what}: {causes:?}")
        };
        assert_eq!((requester.pid, requester.session.as_ref()), (Some(own), None), "{what}");
    }
    let asked = session.journal().into_iter().filter_map(|event| match event.body {
        Body::SessionCreated(created) => created.requester,
        Body::LaunchStarted(started) => started.requester,
        Body::TurnQueued(queued) => queued.requester,
        _ => None,
    });
    assert_eq!(asked.filter(|requester| requester.pid == Some(own)).count(), 4, "creation, launch, two prompts");
}

#[tokio::test]
async fn an_agents_own_calls_are_recorded_with_its_session() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    let (agentctl, socket) = (quoted(paths::agentctl()), quoted(daemon.client.socket()));
    session.turn(&format!("tool {agentctl} --socket {socket} drain --no-wait 2>&1")).await;
    let drains = calls(&daemon, &format!("?session={}", session.id), "/v1/drain").await;
    let [drain] = drains.as_slice() else { panic!("{drains:#?}") };
    assert_eq!(drain.requester.session.as_ref().map(agentd_api::SessionId::as_str), Some(session.id.as_str()));
    assert_eq!(drain.status, 403);
}
