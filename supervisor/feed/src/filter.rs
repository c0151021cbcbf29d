//! Chooses the events of a stream.

use std::collections::BTreeMap;

use agentd_api::SessionId;
use agentd_api::feed::{MARKERS, SessionBrief};
use agentd_api::label::Selector;

use crate::recent::FeedFacts;

/// The events that a reader wants and may see.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Kinds, and beginnings of kinds with `*` behind. All kinds if empty.
    pub kinds: Vec<String>,
    /// The session whose events are wanted.
    pub session: Option<SessionId>,
    /// Labels of the sessions whose events are wanted.
    pub label: Option<Selector>,
    /// The session inside which the reader runs. The reader sees that session and the sessions which it created.
    pub guest: Option<SessionId>,
}

impl Filter {
    /// Reports whether the kind is wanted. Markers always are.
    pub(crate) fn takes_kind(&self, kind: &str) -> bool {
        let fits = |wanted: &String| match wanted.strip_suffix('*') {
            Some(beginning) => kind.starts_with(beginning),
            None => kind == wanted,
        };
        self.kinds.is_empty() || self.kinds.iter().any(fits) || MARKERS.iter().any(|marker| marker.name == kind)
    }

    /// Reports whether events of a session with this state are wanted.
    pub(crate) fn takes_session(&self, id: &SessionId, brief: Option<&SessionBrief>) -> bool {
        let is_seen =
            |guest: &SessionId| guest == id || brief.is_some_and(|brief| brief.parent.as_ref() == Some(guest));
        self.session.as_ref().is_none_or(|session| session == id)
            && self.guest.as_ref().is_none_or(is_seen)
            && self.label.as_ref().is_none_or(|label| brief.is_some_and(|brief| label.matches(&brief.labels)))
    }

    /// Reports whether the events of every session and of the daemon are wanted.
    fn takes_all(&self) -> bool {
        self.session.is_none() && self.guest.is_none() && self.label.is_none()
    }
}

/// A filter with the answers for sessions, which are looked up once for each chunk.
#[derive(Debug)]
pub(crate) struct Sieve<'a> {
    filter: &'a Filter,
    sessions: BTreeMap<SessionId, bool>,
}

impl<'a> Sieve<'a> {
    pub(crate) fn new(filter: &'a Filter) -> Self {
        Self { filter, sessions: BTreeMap::new() }
    }

    /// Reports whether an event is wanted. `facts` is asked once for each session.
    pub(crate) fn takes<F>(&mut self, kind: &str, session: Option<&SessionId>, facts: F) -> bool
    where
        F: FnOnce(&SessionId) -> Option<std::sync::Arc<SessionBrief>>,
    {
        if !self.filter.takes_kind(kind) {
            return false;
        }
        if self.filter.takes_all() {
            return true;
        }
        let Some(session) = session else { return false };
        if let Some(known) = self.sessions.get(session) {
            return *known;
        }
        let takes = self.filter.takes_session(session, facts(session).as_deref());
        self.sessions.insert(session.clone(), takes);
        takes
    }
}

impl FeedFacts {
    /// Returns the states in the feed of the sessions that the filter takes, and the removed sessions.
    pub(crate) fn states(&self, filter: &Filter) -> (Vec<SessionBrief>, Vec<SessionId>) {
        let stated = self.known.values().filter_map(|known| known.stated.as_deref());
        let sessions = stated.filter(|brief| filter.takes_session(&brief.id, Some(brief))).cloned().collect();
        let removed = self.removed.iter().filter(|brief| filter.takes_session(&brief.id, Some(brief)));
        (sessions, removed.map(|brief| brief.id.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::session::Phase;

    use super::*;

    fn brief(id: &str, parent: Option<&str>, label: &str) -> SessionBrief {
        SessionBrief {
            id: id.parse().unwrap(),
            name: None,
            parent: parent.map(|parent| parent.parse().unwrap()),
            agent: None,
            directory: "/".into(),
            place: None,
            labels: [("team".to_owned(), label.to_owned())].into(),
            phase: Phase::Idle,
            message: None,
            turn: None,
            permissions: Vec::new(),
            conditions: Vec::new(),
        }
    }

    #[test]
    fn kinds_are_equal_or_begin_alike_and_markers_pass() {
        let filter = |kinds: &[&str]| Filter {
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            ..Filter::default()
        };
        let takes = |kinds: &[&str], kind: &str| filter(kinds).takes_kind(kind);
        assert!(takes(&[], "agent.out") && takes(&["turn.*"], "turn.ended") && takes(&["a", "agent.out"], "agent.out"));
        assert!(!takes(&["turn.*"], "turning") && !takes(&["turn"], "turn.ended") && !takes(&["a"], "agent.out"));
        assert!(takes(&["turn.*"], "feed.gone") && takes(&["turn.*"], "heartbeat") && takes(&["*"], "x"));
    }

    #[test]
    fn a_guest_sees_its_own_session_and_its_children_and_no_event_of_the_daemon() {
        let (own, child, other) = (
            brief("aaaaaaaaaaaa", None, "a"),
            brief("bbbbbbbbbbbb", Some("aaaaaaaaaaaa"), "b"),
            brief("cccccccccccc", None, "a"),
        );
        let filter = Filter { guest: Some(own.id.clone()), ..Filter::default() };
        let mut sieve = Sieve::new(&filter);
        let takes = |sieve: &mut Sieve<'_>, brief: &SessionBrief| {
            sieve.takes("x", Some(&brief.id), |_| Some(std::sync::Arc::new(brief.clone())))
        };
        assert!(takes(&mut sieve, &own) && takes(&mut sieve, &child) && !takes(&mut sieve, &other));
        assert!(!sieve.takes("daemon.started", None, |_| None));
        let filter = Filter { label: Some("team=a".parse().unwrap()), ..Filter::default() };
        let mut sieve = Sieve::new(&filter);
        assert!(takes(&mut sieve, &own) && !takes(&mut sieve, &child) && takes(&mut sieve, &other));
        assert!(!sieve.takes("daemon.started", None, |_| None));
    }
}
