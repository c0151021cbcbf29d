//! Continuing a conversation, by what the agent can do; and saying so where it cannot.

use agentd_api::event::{Body, OpenedBy};
use agentd_api::session::{ConditionStatus, ConditionType, SessionView};

use crate::harness::session::update;
use crate::harness::{Daemon, Session};

/// A session with one turn behind it, stopped and resumed.
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

/// How often the journal has the agent's own update that holds the marker, and the user's.
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
        // Once when it was said, once when it was remembered.
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

#[tokio::test]
async fn a_conversation_that_cannot_be_restored_is_never_silently_a_fresh_one() {
    let daemon = Daemon::start().await;
    for flags in [&["--no-load"][..], &["--load-fails"]] {
        let (session, view) = resumed(&daemon, flags).await;
        assert_eq!(opened(&session), [OpenedBy::New, OpenedBy::NewAfterLoss], "{flags:?}");
        let condition =
            view.status.conditions.iter().find(|condition| condition.kind == ConditionType::ConversationReady);
        let condition = condition.unwrap_or_else(|| panic!("{view:#?}"));
        assert_eq!(condition.status, ConditionStatus::True, "{condition:?}");
        let fresh = session.journal().into_iter().find_map(|event| match event.body {
            Body::Condition(condition) if condition.kind == ConditionType::ConversationReady => Some(condition.reason),
            _ => None,
        });
        assert_ne!(Some(&condition.reason), fresh.as_ref(), "the condition reads as if nothing had been lost");
    }
}
