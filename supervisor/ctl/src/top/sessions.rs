//! The sessions of the list: their compact states, the filter and the selection.
//!
//! Pure: [`super::feed`] delivers the states. The selection follows its session when the list changes.

use std::collections::BTreeMap;

use agentd_api::SessionId;
use agentd_api::feed::SessionBrief;
use agentd_api::label::Selector;

use super::groups::{Group, attention, state};

/// Sessions of the daemon, and the part of them that the user sees.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    known: BTreeMap<SessionId, SessionBrief>,
    filter: Filter,
    /// Sessions that match the filter, in the order of the list.
    listed: Vec<(Group, SessionId)>,
    selected: Option<SessionId>,
    /// Whether `listed` has the order of `known`.
    is_settled: bool,
}

impl Sessions {
    /// Makes a list without sessions.
    pub(super) fn new(filter: Filter) -> Self {
        Self { filter, ..Self::default() }
    }

    /// Replaces all sessions.
    pub(super) fn replace(&mut self, sessions: Vec<SessionBrief>) {
        self.known = sessions.into_iter().map(|brief| (brief.id.clone(), brief)).collect();
        self.is_settled = false;
    }

    /// Takes the new state of a session over.
    pub(super) fn change(&mut self, brief: SessionBrief) {
        self.known.insert(brief.id.clone(), brief);
        self.is_settled = false;
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, id: &SessionId) {
        self.known.remove(id);
        self.is_settled = false;
    }

    /// Replaces the filter.
    pub(super) fn set_filter(&mut self, filter: Filter) {
        self.filter = filter;
        self.is_settled = false;
    }

    pub(super) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Sorts the list by group and name, if a session has changed. The session at the same place replaces a selected
    /// session that has left the list.
    pub(super) fn settle(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let place = self.place().unwrap_or_default();
        let shown = self.known.values().filter(|brief| self.filter.matches(brief));
        let mut shown: Vec<_> = shown.map(|brief| (Group::of(brief), label(brief), brief.id.clone())).collect();
        shown.sort();
        self.listed = shown.into_iter().map(|(group, _, id)| (group, id)).collect();
        if self.place().is_none() {
            self.select(place);
        }
    }

    fn place(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.listed.iter().position(|(_, id)| id == selected)
    }

    fn select(&mut self, place: usize) {
        let last = self.listed.len().saturating_sub(1);
        self.selected = self.listed.get(place.min(last)).map(|(_, id)| id.clone());
    }

    /// Selects the session this many places below, or above if negative.
    pub(super) fn step(&mut self, places: isize) {
        self.settle();
        let place = self.place().unwrap_or_default();
        self.select(place.saturating_add_signed(places));
    }

    /// Selects the next session that needs a person.
    pub(super) fn next_in_need(&mut self) {
        self.settle();
        let needing = self.listed.iter().take_while(|(group, _)| *group == Group::NeedsYou).count();
        if needing > 0 {
            self.select(self.place().filter(|place| place + 1 < needing).map_or(0, |place| place + 1));
        }
    }

    /// Returns the selected session.
    pub(super) fn selected(&self) -> Option<&SessionBrief> {
        self.known.get(self.selected.as_ref()?)
    }

    /// Returns the sessions of the settled list, in its order.
    pub(super) fn listed(&self) -> impl Iterator<Item = (Group, &SessionBrief)> {
        self.listed.iter().filter_map(|(group, id)| Some((*group, self.known.get(id)?)))
    }

    /// Returns the number of all sessions, listed or not.
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns the number of all sessions that need a person, listed or not.
    pub(super) fn in_need(&self) -> usize {
        self.known.values().filter(|brief| attention(brief).is_some()).count()
    }
}

/// Returns the user's name for a session: its name, else its id.
pub(super) fn label(brief: &SessionBrief) -> String {
    brief.name.as_ref().map_or_else(|| brief.id.to_string(), ToString::to_string)
}

/// Words that a listed session must have.
#[derive(Debug, Default)]
pub(super) struct Filter {
    text: String,
    /// Words of the text in lower case, each of which a session's texts must contain.
    words: Vec<String>,
    selectors: Vec<Selector>,
}

impl Filter {
    /// Reads words that are separated by spaces. A word with `=` is a label, as `team=web` and `team!=web`.
    pub(super) fn of(text: &str) -> Self {
        let mut filter = Self { text: text.trim().to_owned(), ..Self::default() };
        for word in text.split_whitespace() {
            match word.parse() {
                Ok(selector) if word.contains('=') => filter.selectors.push(selector),
                _ => filter.words.push(word.to_lowercase()),
            }
        }
        filter
    }

    /// Returns the text that the user gave.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    fn matches(&self, brief: &SessionBrief) -> bool {
        if !self.selectors.iter().all(|selector| selector.matches(&brief.labels)) {
            return false;
        }
        if self.words.is_empty() {
            return true;
        }
        let mut text = format!("{} {} {}", brief.id, label(brief), state(brief));
        let agent = brief.agent.as_ref().map(ToString::to_string);
        for part in [agent, brief.place.clone(), brief.message.clone()].into_iter().flatten() {
            text.push(' ');
            text.push_str(&part);
        }
        text.push(' ');
        text.push_str(&brief.directory.to_string_lossy());
        for (key, value) in &brief.labels {
            text.extend([" ", key, "=", value]);
        }
        let text = text.to_lowercase();
        self.words.iter().all(|word| text.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn brief(id: &str, phase: &str, needs: bool) -> SessionBrief {
        let needed = json!({ "type": "NeedsAttention", "status": "True", "reason": "QuestionAsked" });
        let conditions: Vec<_> = needs.then_some(needed).into_iter().collect();
        serde_json::from_value(json!({
            "id": id, "directory": format!("/src/{id}"), "phase": phase, "conditions": conditions,
            "labels": { "team": if id < "c" { "web" } else { "core" } },
            "place": (id == "d").then_some("farm"),
        }))
        .unwrap()
    }

    fn selected(sessions: &Sessions) -> Option<&str> {
        sessions.selected().map(|brief| brief.id.as_str())
    }

    /// The order of the list, and the selected session.
    fn listed(sessions: &mut Sessions) -> (Vec<&str>, Option<&str>) {
        sessions.settle();
        (sessions.listed().map(|(_, brief)| brief.id.as_str()).collect(), selected(sessions))
    }

    fn four() -> Sessions {
        let mut sessions = Sessions::default();
        sessions.replace(vec![
            brief("a", "stopped", false),
            brief("b", "idle", false),
            brief("c", "busy", true),
            brief("d", "busy", false),
        ]);
        sessions
    }

    #[test]
    fn the_list_has_the_order_of_the_groups_and_a_change_moves_the_selection_with_its_session() {
        let mut sessions = four();
        assert_eq!(listed(&mut sessions), (vec!["c", "d", "b", "a"], Some("c")));
        assert_eq!((sessions.count(), sessions.in_need()), (4, 1));
        sessions.change(brief("c", "idle", false));
        assert_eq!(listed(&mut sessions), (vec!["d", "b", "c", "a"], Some("c")));
        sessions.remove(&"c".parse().unwrap());
        assert_eq!(listed(&mut sessions), (vec!["d", "b", "a"], Some("a")));
        sessions.replace(Vec::new());
        assert_eq!(listed(&mut sessions), (vec![], None));
        sessions.change(brief("e", "idle", false));
        assert_eq!(listed(&mut sessions), (vec!["e"], Some("e")));
    }

    #[test]
    fn steps_end_at_the_ends_and_tab_goes_around_those_in_need() {
        let mut sessions = four();
        sessions.step(-1);
        assert_eq!(selected(&sessions), Some("c"));
        sessions.step(9);
        assert_eq!(selected(&sessions), Some("a"));
        sessions.change(brief("b", "idle", true));
        sessions.next_in_need();
        let first = selected(&sessions).unwrap().to_owned();
        sessions.next_in_need();
        let second = selected(&sessions).unwrap().to_owned();
        assert_ne!(first, second);
        sessions.next_in_need();
        assert_eq!(selected(&sessions), Some(first.as_str()));
        let mut calm = Sessions::default();
        calm.replace(vec![brief("a", "idle", false)]);
        calm.next_in_need();
        assert_eq!(selected(&calm), Some("a"));
    }

    #[test]
    fn a_filter_has_words_and_labels() {
        let mut sessions = four();
        for (filter, found) in [
            ("team=web", &["b", "a"][..]),
            ("team!=web", &["c", "d"]),
            ("team=web IDLE", &["b"]),
            ("question", &["c"]),
            ("/src/d", &["d"]),
            ("Farm", &["d"]),
            ("team=core busy", &["c", "d"]),
            ("nothing", &[]),
            ("  ", &["c", "d", "b", "a"]),
        ] {
            sessions.set_filter(Filter::of(filter));
            assert_eq!(listed(&mut sessions).0, found, "{filter}");
        }
        assert_eq!(sessions.count(), 4);
    }
}
