//! agentd's own question about a stale session: its answers, its limit, and its life over a restart of the daemon.

use agentd_api::Code;
use agentd_api::event::{AnsweredBy, Body, PermissionOutcome};
use agentd_api::session::{PermissionOrigin, Phase, SessionSpec, SessionView};
use agentd_api::staleness::{StaleKind, StalePolicy};
use serde_json::json;

use super::{asked, begin_resume, configure, git, repository, spec, worked};
use crate::harness::ctl::{agentctl, ctl, end_of};
use crate::harness::{Daemon, Session, until};

/// Returns a session on another branch than before, whose launch waits for an answer.
async fn waiting(daemon: &Daemon, change: impl FnOnce(&mut SessionSpec)) -> Session {
    configure(daemon, StaleKind::Branch, StalePolicy::Ask, "").await;
    let directory = repository(daemon, "asked");
    let mut spec = spec(daemon, &directory);
    change(&mut spec);
    let session = worked(daemon, &spec).await;
    git(&directory, &["switch", "-qc", "other"]);
    begin_resume(&session).await;
    asked(&session).await;
    session
}

/// Returns the ends of agentd's own questions.
fn resolved(session: &Session) -> Vec<(PermissionOutcome, AnsweredBy)> {
    let (mut own, mut ends) = (Vec::new(), Vec::new());
    for event in session.journal() {
        match event.body {
            Body::PermissionRequested(asked) if asked.request.origin == PermissionOrigin::Agentd => {
                own.push(asked.request.id);
            }
            Body::PermissionResolved(end) if own.contains(&end.permission) => ends.push((end.outcome, end.by)),
            _ => {}
        }
    }
    ends
}

fn selected(option: &str) -> PermissionOutcome {
    PermissionOutcome::Selected(option.to_owned())
}

#[tokio::test]
async fn any_client_answers_and_the_agent_is_not_started_before() {
    let daemon = Daemon::start().await;
    let session = waiting(&daemon, |_| {}).await;
    let view = session.view().await;
    assert_eq!((view.status.phase, view.status.agent_pid), (Phase::Waiting, None));
    let (id, permission) = (session.id.as_str(), view.status.permissions[0].id.as_str());
    let (_, shown, _) = ctl(&daemon, &["show", id]).await.parts();
    assert!(shown.contains(&format!("agentctl answer {id} {permission} allow|deny")), "{shown}");
    let (_, listed, _) = ctl(&daemon, &["ls"]).await.parts();
    assert!(listed.contains("waiting") && listed.contains("? continue although"), "{listed}");
    let (status, _, error) = ctl(&daemon, &["answer", id, permission, "continue"]).await.parts();
    assert_eq!(status, Some(0), "{error}");
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(session.turn("say on").await.text, "on");
    assert_eq!(resolved(&session), [(selected("continue"), AnsweredBy::Client)]);
}

#[tokio::test]
async fn of_two_answers_at_once_the_first_counts() {
    let daemon = Daemon::start().await;
    let session = waiting(&daemon, |_| {}).await;
    let path = format!("/permissions/{}", session.view().await.status.permissions[0].id);
    let (allow, deny) = (json!("allow"), json!("deny"));
    let (one, other) = tokio::join!(session.post(&path, &allow), session.post(&path, &deny));
    let first = if one.status.is_success() { "continue" } else { "refuse" };
    let refused = if one.status.is_success() { other } else { one };
    assert_eq!(refused.problem().code, Code::PermissionAnswered);
    let phase = if first == "continue" { Phase::Idle } else { Phase::Failed };
    session.wait_for_phase(phase).await;
    assert_eq!(resolved(&session), [(selected(first), AnsweredBy::Client)]);
}

#[tokio::test]
async fn a_refusing_answer_fails_the_launch_and_the_next_launch_asks_again() {
    let daemon = Daemon::start().await;
    let session = waiting(&daemon, |_| {}).await;
    let path = format!("/permissions/{}", session.view().await.status.permissions[0].id);
    session.post(&path, &json!("deny")).await.expect::<SessionView>(200);
    let view = session.wait_for_phase(Phase::Failed).await;
    let message = view.status.message.unwrap_or_default();
    assert!(message.contains("a client decided not to continue"), "{message}");
    assert_eq!(view.status.launches, 2, "it was restarted");
    let id = session.id.as_str().to_owned();
    begin_resume(&session).await;
    let again = asked(&session).await.status.permissions.remove(0);
    let (status, _, error) = ctl(&daemon, &["answer", &id, again.id.as_str(), "allow"]).await.parts();
    assert_eq!(status, Some(0), "{error}");
    session.wait_for_phase(Phase::Idle).await;
}

#[tokio::test]
async fn without_an_answer_the_launch_fails_at_the_limit_of_permissions() {
    let daemon = Daemon::start().await;
    let session = waiting(&daemon, |spec| spec.limits.permission_seconds = Some(1)).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let message = view.status.message.unwrap_or_default();
    assert!(message.contains("no client answered within limits.permission"), "{message}");
    assert_eq!(resolved(&session), [(selected("refuse"), AnsweredBy::Expiry)]);
}

#[tokio::test]
async fn a_question_survives_kill_nine_of_the_daemon() {
    let mut daemon = Daemon::start().await;
    let session = waiting(&daemon, |_| {}).await;
    let before = session.view().await.status.permissions;
    daemon.kill9();
    daemon.run().await;
    let after = asked(&session).await.status;
    assert_eq!((&after.permissions, after.phase), (&before, Phase::Waiting));
    let path = format!("/permissions/{}", before[0].id);
    session.post(&path, &json!({ "option": "continue" })).await.expect::<SessionView>(200);
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(resolved(&session), [(selected("continue"), AnsweredBy::Client)]);
}

#[tokio::test]
async fn a_stop_cancels_the_question() {
    let daemon = Daemon::start().await;
    let session = waiting(&daemon, |_| {}).await;
    let view = session.stop().await;
    assert_eq!(view.status.permissions, []);
    assert_eq!(resolved(&session), [(PermissionOutcome::Cancelled, AnsweredBy::Cancel)]);
}

#[tokio::test]
async fn resume_names_the_question_and_attach_shows_it() {
    let daemon = Daemon::start().await;
    let session = waiting(&daemon, |_| {}).await;
    let id = session.id.as_str();
    let shown = daemon.root().join("shown");
    let until_shown = async |text: &str| {
        until(text, || std::fs::read_to_string(&shown).unwrap_or_default().contains(text)).await;
    };
    let begin = |arguments: &[&str]| {
        let mut command = agentctl(&daemon, arguments);
        command.stderr(std::fs::File::create(&shown).unwrap()).stdin(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let attached = begin(&["attach", id]);
    until_shown("? agentd asks whether to continue although the repository is on the branch \"other\"").await;
    let path = format!("/permissions/{}", session.view().await.status.permissions[0].id);
    session.post(&path, &json!("deny")).await.expect::<SessionView>(200);
    end_of(attached).await;
    session.wait_for_phase(Phase::Failed).await;

    let resumed = begin(&["resume", id]);
    let permission = asked(&session).await.status.permissions.remove(0).id;
    until_shown(&format!("answer with: agentctl answer {id} {permission} allow|deny")).await;
    session.post(&format!("/permissions/{permission}"), &json!("allow")).await.expect::<SessionView>(200);
    assert_eq!(end_of(resumed).await.status, Some(0));
}

#[tokio::test]
async fn a_prompt_to_a_session_that_waits_for_an_answer_names_the_question() {
    let daemon = Daemon::start().await;
    let session = waiting(&daemon, |_| {}).await;
    let id = session.id.as_str();
    let permission = session.view().await.status.permissions.remove(0).id;
    let shown = daemon.root().join("shown");
    let mut command = agentctl(&daemon, &["prompt", id, "say hello"]);
    command.stderr(std::fs::File::create(&shown).unwrap());
    let prompted = command.spawn().unwrap();
    let named = format!("answer with: agentctl answer {id} {permission} allow|deny");
    until(&named, || std::fs::read_to_string(&shown).unwrap_or_default().contains(&named)).await;
    session.post(&format!("/permissions/{permission}"), &json!("allow")).await.expect::<SessionView>(200);
    assert_eq!(end_of(prompted).await.status, Some(0));
}
