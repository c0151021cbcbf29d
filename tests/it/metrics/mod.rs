//! The metrics of a daemon after real launches, turns, failures and restarts. `prometheus` runs the tools of
//! Prometheus.

mod prometheus;

use agentd_api::Code;
use agentd_api::session::{PermissionPolicy, Phase, SessionSpec, SessionView};
use agentd_metrics::Metrics;
use serde_json::json;

use crate::harness::openmetrics::{Page, page_with};
use crate::harness::{Daemon, process, within};

/// Asserts the values of these series.
#[track_caller]
fn assert_values(page: &Page, expected: &[(&str, f64)]) {
    for (series, value) in expected {
        let found = page.value(series);
        assert!(
            found.is_some_and(|found| (found - value).abs() < 1e-9),
            "{series}: {found:?}, not {value}\n{}",
            page.0
        );
    }
}

#[tokio::test]
async fn turns_launches_answers_failures_and_restarts_are_counted() {
    let mut daemon = Daemon::prepare();
    let restart = "restart = \"on-failure\"\nrestart_first = \"10ms\"\nrestart_longest = \"10ms\"";
    daemon.configure(|config| config.replace("restart = \"never\"", restart));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say one").await;
    session.turn("say two").await;
    session.turn("error").await;
    let asked = session.prompt("ask").await;
    let view = session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    assert_values(&Page::of(&daemon.client).await, &[("agentd_open_permissions", 1.0)]);
    let answer = format!("/permissions/{}", view.status.permissions[0].id);
    session.post(&answer, &json!({ "option": "yes" })).await.expect::<SessionView>(200);
    session.end_of(&asked).await;
    let by_policy = SessionSpec { permissions: PermissionPolicy::Allow, ..daemon.scripted(&[]) };
    let by_policy = daemon.session(&by_policy).await;
    by_policy.turn("ask").await;
    by_policy.stop().await;
    process::kill9(session.view().await.status.agent_pid.unwrap());
    session.wait_for("the restart", |view| view.status.launches == 2 && view.status.phase == Phase::Idle).await;
    let refused = daemon.scripted(&["--refuse", "initialize", "-32603", "as you asked"]);
    let failed: SessionView = daemon.client.post("/v1/sessions?wait=60", &refused).await.expect(202);
    assert_eq!(failed.status.phase, Phase::Failed);

    let page = Page::of(&daemon.client).await;
    assert_values(
        &page,
        &[
            ("agentd_turns_total{outcome=\"end-turn\"}", 4.0),
            ("agentd_turns_total{outcome=\"agent-error\"}", 1.0),
            ("agentd_turn_duration_seconds_count", 5.0),
            ("agentd_launches_total{reason=\"create\",outcome=\"ready\"}", 2.0),
            ("agentd_launches_total{reason=\"create\",outcome=\"failed\"}", 1.0),
            ("agentd_launches_total{reason=\"restart\",outcome=\"ready\"}", 1.0),
            ("agentd_launch_duration_seconds_count{outcome=\"ready\"}", 3.0),
            ("agentd_launch_step_duration_seconds_count{step=\"conversation\"}", 3.0),
            ("agentd_launch_step_duration_seconds_count{step=\"environment\"}", 4.0),
            ("agentd_restarts_total", 1.0),
            ("agentd_parkings_total", 0.0),
            ("agentd_permission_answers_total{by=\"client\"}", 1.0),
            ("agentd_permission_answers_total{by=\"policy\"}", 1.0),
            ("agentd_permission_wait_seconds_count{by=\"client\"}", 1.0),
            ("agentd_environment_build_duration_seconds_count", 4.0),
            ("agentd_sessions{phase=\"idle\",agent=\"command\"}", 1.0),
            ("agentd_sessions{phase=\"stopped\",agent=\"command\"}", 1.0),
            ("agentd_sessions{phase=\"failed\",agent=\"command\"}", 1.0),
            ("agentd_session_conditions{condition=\"ConversationReady\"}", 1.0),
            ("agentd_keepers", 1.0),
            ("agentd_open_permissions", 0.0),
            ("agentd_adopted_sessions", 0.0),
            ("agentd_ready", 1.0),
            ("agentd_draining", 0.0),
        ],
    );
    // The agent whose launch failed was ended too.
    for cause in ["crashed", "requested"] {
        let ended = page.value(&format!("agentd_agent_ends_total{{cause=\"{cause}\"}}"));
        assert!(ended.is_some_and(|count| count >= 1.0), "{cause}: {}", page.0);
    }
    assert!(page.sum("agentd_plugin_calls_total", "outcome=\"ok\"") >= 4.0, "{}", page.0);
    assert!(page.sum("agentd_environment_builds_total", "") >= 4.0, "{}", page.0);
    assert!(page.value("agentd_journal_lag_seconds_count").is_some_and(|count| count > 0.0), "{}", page.0);
    for family in Metrics::ALL {
        let of = |line: &&str| line.starts_with(&format!("{}{{", family.name())) || line.starts_with(&family.name());
        let count = page.0.lines().filter(of).count();
        assert!(count <= 2000, "{} has {count} lines", family.name());
    }
}

#[tokio::test]
async fn a_daemon_counts_from_zero_takes_sessions_over_and_measures_their_processes_and_journals() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say one").await;
    daemon.kill9();
    daemon.run().await;
    session.turn("say two").await;
    let id = &session.id;
    let memory = format!("agentd_session_memory_bytes{{session=\"{id}\"}}");
    let page = page_with(&daemon.client, "the session is measured", |page| {
        page.value(&memory).is_some_and(|bytes| bytes > 500_000.0)
            && page.value("agentd_journal_bytes").is_some_and(|bytes| bytes > 1000.0)
            && page.value("agentd_disk_size_bytes").is_some_and(|bytes| bytes > 0.0)
            && page.value("agentd_adoption_duration_seconds").is_some_and(|seconds| seconds > 0.0)
    })
    .await;
    assert_values(
        &page,
        &[
            ("agentd_turns_total{outcome=\"end-turn\"}", 1.0),
            ("agentd_launches_total{reason=\"create\",outcome=\"ready\"}", 0.0),
            ("agentd_adopted_sessions", 1.0),
            ("agentd_sessions_left_out", 0.0),
        ],
    );
    let processes = page.value(&format!("agentd_session_processes{{session=\"{id}\"}}"));
    assert!(processes.is_some_and(|count| count >= 2.0), "{}", page.0);
    assert!(page.value(&format!("agentd_session_cpu_seconds_total{{session=\"{id}\"}}")).is_some(), "{}", page.0);
}

#[tokio::test]
async fn requests_streams_and_audit_records_are_counted_and_text_is_sent_to_those_that_accept_only_it() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    // The request that created the session counted as a stream while it waited.
    let before = page_with(&daemon.client, "no stream", |page| page.value("agentd_streams") == Some(0.0)).await;
    daemon.client.get("/healthz").await;
    daemon.client.get("/nowhere").await;
    let refused = daemon.client.call("POST", "/v1/sessions/nobody/stop", "").await.problem();
    assert_eq!(refused.code, Code::NoSuchSession);
    let events = session.events("after=0").await;
    let page = Page::of(&daemon.client).await;
    let grown = |series: &str| page.value(series).unwrap_or(0.0) - before.value(series).unwrap_or(0.0);
    for (series, by) in [
        ("agentd_requests_total{route=\"GET /healthz\",status=\"200\"}", 1.0),
        ("agentd_requests_total{route=\"none\",status=\"404\"}", 1.0),
        ("agentd_requests_total{route=\"POST /v1/sessions/{session}/stop\",status=\"404\"}", 1.0),
        ("agentd_request_duration_seconds_count{route=\"GET /healthz\"}", 1.0),
        ("agentd_audit_refusals_total", 1.0),
        ("agentd_streams", 1.0),
    ] {
        assert!((grown(series) - by).abs() < 1e-9, "{series} grew by {}\n{}", grown(series), page.0);
    }
    drop(events);
    page_with(&daemon.client, "the stream ends", |page| page.value("agentd_streams") == Some(0.0)).await;
    let text = within(
        "the text format",
        daemon.client.raw(b"GET /metrics HTTP/1.1\r\nhost: agentd\r\naccept: text/plain\r\nconnection: close\r\n\r\n"),
    )
    .await;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("content-type: text/plain; version=0.0.4") && !text.contains("# EOF"), "{text}");
    assert!(text.contains("# TYPE agentd_turns_total counter\n"), "{text}");
}
