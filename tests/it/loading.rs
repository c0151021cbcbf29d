//! Continuing a conversation, by what the agent can do; and saying so where it cannot.

use agentd_api::event::{Body, OpenedBy};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionView};

use crate::harness::session::update;
use crate::harness::{Daemon, Session};

/// Returns a session that had one turn, was stopped and was resumed.
async fn resumed(daemon: &Daemon, flags: &[&str]) -> (Session, SessionView) {
    let session = daemon.session(&daemon.scripted(flags)).await;
    session.turn("say marker-of-the-past").await;
    session.stop().await;
    let view = session.resume().await;
    (session, view)
}

fn opened(session: &Session) -> Vec<OpenedBy> {
    let events = session.journal().into_iter();
    let opened = events.filter_map(|event| match event.body {
        Body::ConversationOpened(opened) => Some(opened.by),
        _ => None,
    });
    opened.collect()
}

/// Returns the number of updates in the journal that contain the marker, from the agent or from the user.
fn markers(session: &Session) -> usize {
    let updates = session.journal();
    updates.iter().filter_map(update).filter(|update| update.to_string().contains("marker-of-the-past")).count()
}

#[tokio::test]
async fn history_that_the_agent_replays_is_not_journalled_twice() {
    let daemon = Daemon::start().await;
    for flags in [&["--replay-after-response"][..], &[]] {
        let (session, view) = resumed(&daemon, flags).await;
        assert_eq!(opened(&session), [OpenedBy::New, OpenedBy::Load], "{view:#?}");
        let heard = session.turn("remember").await.text;
        assert_eq!(heard, r#"["say marker-of-the-past"]"#);
        // The marker is in the agent's first answer, and in its answer about its memory.
        assert_eq!(markers(&session), 2, "{flags:?}");
        let replayed: u64 = session
            .journal()
            .iter()
            .map(|event| if let Body::AgentReplayed(replayed) = &event.body { replayed.lines } else { 0 })
            .sum();
        assert_eq!(replayed, 2, "{flags:?}: the user's message and the agent's were replayed");
    }
}

#[tokio::test]
async fn resume_is_preferred_to_load_where_the_agent_offers_it() {
    let daemon = Daemon::start().await;
    let (session, _) = resumed(&daemon, &["--resume"]).await;
    assert_eq!(opened(&session), [OpenedBy::New, OpenedBy::Resume]);
    assert_eq!(session.turn("remember").await.text, r#"["say marker-of-the-past"]"#);
}

fn conversation_ready(view: &SessionView) -> &Condition {
    let ready = view.status.conditions.iter().find(|condition| condition.kind == ConditionType::ConversationReady);
    ready.unwrap_or_else(|| panic!("{view:#?}"))
}

#[tokio::test]
async fn an_agent_that_cannot_load_begins_anew_and_the_condition_says_what_was_lost() {
    let daemon = Daemon::start().await;
    let (session, view) = resumed(&daemon, &["--no-load"]).await;
    assert_eq!(opened(&session), [OpenedBy::New, OpenedBy::NewAfterLoss]);
    let first = session.journal().into_iter().find_map(|event| match event.body {
        Body::Condition(condition) if condition.kind == ConditionType::ConversationReady => Some(condition.reason),
        _ => None,
    });
    let condition = conversation_ready(&view);
    assert_eq!(condition.status, ConditionStatus::True, "{condition:?}");
    assert_ne!(Some(&condition.reason), first.as_ref(), "the condition reads as if nothing had been lost");
    assert_eq!(session.turn("remember").await.text.matches("marker-of-the-past").count(), 0);
}

#[tokio::test]
async fn a_conversation_that_could_not_be_restored_fails_the_resume_until_a_new_one_is_asked_for() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&["--load-fails"])).await;
    session.turn("say marker-of-the-past").await;
    session.stop().await;
    daemon.client.call("POST", &session.path("/resume?wait=60"), "").await.expect::<SessionView>(202);
    let view = session.wait_for_phase(Phase::Failed).await;
    let condition = conversation_ready(&view);
    assert_eq!(condition.status, ConditionStatus::False, "{condition:?}");
    assert!(condition.message.contains("--new-conversation"), "it does not say what to do: {condition:?}");
    assert_eq!(opened(&session), [OpenedBy::New]);

    let path = session.path("/resume?wait=60&new_conversation=true");
    daemon.client.call("POST", &path, "").await.expect::<SessionView>(202);
    session.wait_for_phase(Phase::Idle).await;
    // The client asked for a new conversation, so the daemon reports no loss.
    assert_eq!(opened(&session), [OpenedBy::New, OpenedBy::New]);
}
