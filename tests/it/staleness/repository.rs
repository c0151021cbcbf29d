//! Facts of repositories: the agent's own changes, repositories that are new, gone or moved, and changes of others.

use std::fs;

use agentd_api::event::Body;
use agentd_api::facts::{FactsMoment, Repository, SessionFacts};
use agentd_api::session::{ConditionStatus, Phase};
use agentd_api::staleness::{StaleKind, StalePolicy};

use super::{begin_resume, condition, configure, git, repository, spec, worked};
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, until};

/// Returns the recorded facts with their moments.
fn observed(session: &Session) -> Vec<(FactsMoment, SessionFacts)> {
    let bodies = session.journal().into_iter().map(|event| event.body);
    bodies
        .filter_map(|body| match body {
            Body::FactsObserved(observed) => Some((observed.moment, SessionFacts::clone(&observed.facts))),
            _ => None,
        })
        .collect()
}

#[tokio::test]
async fn the_agents_own_commit_and_branch_are_no_staleness() {
    let daemon = Daemon::start().await;
    configure(&daemon, StaleKind::Branch, StalePolicy::Refuse, "").await;
    let directory = repository(&daemon, "own");
    let session = daemon.session(&spec(&daemon, &directory)).await;
    let command = format!("tool git -C {} switch -qc mine", quoted(&directory));
    session.turn(&command).await;
    session.stop().await;
    let view = session.resume().await;
    assert_eq!(view.status.staleness, []);
    let facts = view.status.facts.expect("they are read");
    assert_eq!(facts.repository.found().unwrap().branch.as_deref(), Some("mine"));
    let moments: Vec<FactsMoment> = observed(&session).into_iter().map(|(moment, _)| moment).collect();
    assert_eq!(moments, [FactsMoment::Launch, FactsMoment::TurnEnd, FactsMoment::Launch]);
}

#[tokio::test]
async fn a_change_of_others_while_the_agent_is_idle_is_staleness() {
    let daemon = Daemon::start().await;
    configure(&daemon, StaleKind::Head, StalePolicy::Note, "").await;
    let directory = repository(&daemon, "others");
    let session = daemon.session(&spec(&daemon, &directory)).await;
    session.turn(&format!("tool echo 2 > {}", quoted(directory.join("file")))).await;
    until("the facts are read after the turn", || observed(&session).len() == 2).await;
    git(&directory, &["commit", "-q", "--allow-empty", "-m", "of another"]);
    session.stop().await;
    let view = session.resume().await;
    let kinds: Vec<StaleKind> = view.status.staleness.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [StaleKind::Head]);
}

#[tokio::test]
async fn a_repository_that_is_new_or_gone_or_around_another_directory_is_found() {
    let daemon = Daemon::start().await;
    configure(&daemon, StaleKind::Repository, StalePolicy::Note, "").await;
    let directory = daemon.work().join("turns");
    fs::create_dir(&directory).unwrap();
    let session = worked(&daemon, &spec(&daemon, &directory)).await;
    let reason = async |expected: &str| {
        let view = session.resume().await;
        let found = condition(&view, StaleKind::Repository).unwrap_or_else(|| panic!("{expected}: {view:#?}"));
        let status = if expected == "NoRepository" { ConditionStatus::True } else { ConditionStatus::False };
        assert_eq!((found.status, found.reason.as_str()), (status, expected), "{found:?}");
        session.turn("say more").await;
        session.stop().await;
    };
    reason("NoRepository").await;
    git(&directory, &["init", "-q"]);
    reason("RepositoryNew").await;
    git(&daemon.work(), &["init", "-q"]);
    fs::remove_dir_all(directory.join(".git")).unwrap();
    reason("RepositoryMoved").await;
    fs::remove_dir_all(daemon.work().join(".git")).unwrap();
    reason("RepositoryGone").await;
}

#[tokio::test]
async fn facts_are_recorded_for_each_launch_and_else_only_if_they_differ() {
    let daemon = Daemon::start().await;
    let directory = repository(&daemon, "plain");
    let session = daemon.session(&spec(&daemon, &directory)).await;
    for prompt in ["say one", "say two", "say three"] {
        session.turn(prompt).await;
    }
    session.stop().await;
    session.resume().await;
    let observed = observed(&session);
    assert!(observed.iter().all(|(moment, _)| *moment == FactsMoment::Launch) && observed.len() == 2, "{observed:#?}");
    let Repository::Found(facts) = &observed[0].1.repository else { panic!("{observed:#?}") };
    assert_eq!((facts.branch.as_deref(), facts.dirty), (Some("main"), Some(false)));
    assert_eq!(facts.root, directory.canonicalize().unwrap());
    assert!(observed[0].1.directory.is_some());
}

#[tokio::test]
async fn a_refused_branch_is_refused_until_it_is_restored() {
    let daemon = Daemon::start().await;
    configure(&daemon, StaleKind::Branch, StalePolicy::Refuse, "").await;
    let directory = repository(&daemon, "refused");
    let session = worked(&daemon, &spec(&daemon, &directory)).await;
    git(&directory, &["switch", "-qc", "other"]);
    for launch in 2..4 {
        begin_resume(&session).await;
        session
            .wait_for("it is refused", |view| view.status.phase == Phase::Failed && view.status.launches == launch)
            .await;
    }
    git(&directory, &["switch", "-q", "main"]);
    session.resume().await;
}
