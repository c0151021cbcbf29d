//! Calls that list sessions: whole, sparse and in pages.

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::label::Selector;
use agentd_api::list::{Conditions, Cursor, Fields, Phases, agent_of};
use agentd_api::route::Value as _;
use agentd_api::session::{SessionList, SessionView, UnreadableSession, WholeList};
use agentd_api::{Call, Code, SessionId, SessionName};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{BUILDING, Client, Document, document};
use crate::error::Error;

/// Number of sessions on a page.
const PAGE: u64 = 500;

/// Fields without which no session can be read as a [`SessionView`], and those by which messages name it.
const BASE: &[&str] = &[
    "id",
    "generation",
    "created",
    "parent",
    "spec.name",
    "spec.agent",
    "spec.command",
    "spec.directory",
    "status.phase",
    "status.observed_generation",
    "status.conditions.NeedsAttention",
    "status.launches",
    "status.last_seq",
    "status.updated",
];

/// Returns these fields in addition to those of each session.
pub fn fields(more: &[&str]) -> Fields {
    Fields(BASE.iter().chain(more).map(|name| (*name).to_owned()).collect())
}

/// The sessions to list, and the fields of each.
#[derive(Debug, Clone)]
pub struct ListQuery {
    /// Labels of the sessions.
    pub label: Option<Selector>,
    /// Phases of the sessions.
    pub phase: Option<Phases>,
    /// Name of the agent.
    pub agent: Option<String>,
    /// Directory of the sessions, or a directory above.
    pub directory: Option<PathBuf>,
    /// Conditions of the sessions.
    pub condition: Option<Conditions>,
    /// Fields of each item.
    pub fields: Fields,
}

impl ListQuery {
    /// Returns the query for whole sessions.
    pub fn whole(label: Option<Selector>) -> Self {
        Self { label, ..Self::of(Fields(vec!["*".to_owned()])) }
    }

    /// Returns the query for these fields of all sessions.
    pub fn of(fields: Fields) -> Self {
        Self { label: None, phase: None, agent: None, directory: None, condition: None, fields }
    }

    fn call(&self, stale: bool, limit: Option<u64>, after: Option<Cursor>) -> Call {
        Call::Sessions {
            stale: stale.then_some(true),
            label: self.label.clone(),
            phase: self.phase.clone(),
            agent: self.agent.clone(),
            directory: self.directory.as_ref().map(|directory| directory.to_string_lossy().into_owned()),
            condition: self.condition.clone(),
            fields: Some(self.fields.clone()),
            limit,
            after,
        }
    }

    /// Reports whether a session of a daemon that does not filter is wanted.
    fn matches(&self, session: &Value) -> bool {
        let Ok(view) = serde_json::from_value::<SessionView>(session.clone()) else { return false };
        self.phase.as_ref().is_none_or(|Phases(phases)| phases.contains(&view.status.phase))
            && self.agent.as_ref().is_none_or(|agent| agent_of(&view) == *agent)
            && self.directory.as_ref().is_none_or(|directory| view.spec.directory.starts_with(directory))
            && self.condition.as_ref().is_none_or(|condition| condition.matches(&view.status.conditions))
    }
}

/// Returns the call in the form that daemons of the first release take: they list whole sessions on one page.
fn older(call: &Call) -> Option<Call> {
    let Call::Sessions { stale, label, .. } = call else { return None };
    Some(Call::Sessions {
        stale: *stale,
        label: label.clone(),
        phase: None,
        agent: None,
        directory: None,
        condition: None,
        fields: None,
        limit: None,
        after: None,
    })
}

/// Reports whether a daemon of an older release refused a call for its query.
fn is_too_new(error: &Error) -> bool {
    matches!(error, Error::Problem { problem, .. }
        if problem.code == Code::InvalidRequest && problem.detail.contains("takes no query key"))
}

/// A list in pages, of which a refresh reads only those that have changed.
#[derive(Debug)]
pub struct Pages {
    query: ListQuery,
    /// Whether the daemon takes the query. An older daemon lists whole sessions, and this program chooses among them.
    is_older: bool,
    read: Vec<Page>,
}

#[derive(Debug)]
struct Page {
    after: Option<String>,
    tag: Option<String>,
    list: SessionList<Value>,
}

impl Pages {
    /// Makes a list that was not read yet.
    pub fn new(query: ListQuery) -> Self {
        Self { query, is_older: false, read: Vec::new() }
    }

    /// Reads the list, and returns whether it has changed.
    pub async fn refresh(&mut self, client: &Client) -> Result<bool, Error> {
        let (mut known, mut pages) = (std::mem::take(&mut self.read).into_iter(), Vec::new());
        let (mut after, mut has_changed) = (None::<String>, false);
        loop {
            let before = known.next().filter(|page| page.after == after);
            let tag = before.as_ref().and_then(|page| page.tag.as_deref());
            let page = match (self.page(client, after.clone(), tag).await?, before) {
                (None, Some(before)) => before,
                (read, _) => {
                    has_changed = true;
                    read.unwrap_or_else(|| Page { after: after.clone(), tag: None, list: empty() })
                }
            };
            after.clone_from(&page.list.next);
            pages.push(page);
            if after.is_none() {
                break;
            }
        }
        has_changed |= known.next().is_some();
        self.read = pages;
        Ok(has_changed)
    }

    /// Returns the page after a place; `None` if it still has the tag.
    async fn page(&mut self, client: &Client, after: Option<String>, tag: Option<&str>) -> Result<Option<Page>, Error> {
        let cursor = after.as_deref().and_then(Cursor::read);
        let call = self.query.call(false, Some(PAGE), cursor);
        if !self.is_older {
            match client.page(&call, tag).await {
                Err(error) if is_too_new(&error) => self.is_older = true,
                read => {
                    let Some(mut answer) = read? else { return Ok(None) };
                    let tag = answer.tag.take();
                    let list = document::<SessionList<Value>>(&call, answer)?.value;
                    return Ok(Some(Page { after, tag, list }));
                }
            }
        }
        let Some(call) = older(&call) else { return Ok(None) };
        let mut list = client.fetch::<SessionList<Value>>(&call, Duration::ZERO).await?.value;
        list.sessions.retain(|session| self.query.matches(session));
        Ok(Some(Page { after, tag: None, list }))
    }

    /// Returns the sessions as the daemon sent them.
    pub fn documents(&self) -> impl Iterator<Item = &Value> {
        self.read.iter().flat_map(|page| &page.list.sessions)
    }

    /// Returns the sessions that could not be read.
    pub fn unreadable(&self) -> impl Iterator<Item = &UnreadableSession> {
        self.read.iter().flat_map(|page| &page.list.unreadable)
    }

    /// Returns the list on one page.
    pub fn whole(&self) -> SessionList<Value> {
        let unreadable = self.unreadable().cloned().collect();
        SessionList { sessions: self.documents().cloned().collect(), unreadable, ..empty() }
    }

    /// Returns the sessions with the fields of the query. The other fields have their defaults.
    pub fn sessions(&self) -> Result<Vec<SessionView>, Error> {
        let call = self.query.call(false, Some(PAGE), None).to_string();
        let views = self.documents().map(|document| serde_json::from_value(document.clone()));
        views.collect::<Result<_, _>>().map_err(|error| Error::Answer { call, status: 200, reason: error.to_string() })
    }
}

fn empty() -> SessionList<Value> {
    SessionList { sessions: Vec::new(), next: None, unreadable: Vec::new(), unchecked: Vec::new() }
}

impl Client {
    /// Lists whole sessions.
    pub async fn list(&self, label: Option<Selector>) -> Result<Document<WholeList>, Error> {
        self.list_once(&ListQuery::whole(label), false).await
    }

    /// Lists sessions on one page.
    pub async fn list_all(&self, query: &ListQuery) -> Result<Document<SessionList<Value>>, Error> {
        self.list_once(query, false).await
    }

    /// Lists the stale sessions, whole. The time limit covers a look at many directories.
    pub async fn list_stale(&self, query: &ListQuery) -> Result<Document<WholeList>, Error> {
        self.list_once(query, true).await
    }

    async fn list_once<T: DeserializeOwned>(
        &self,
        query: &ListQuery,
        stale: bool,
    ) -> Result<Document<SessionList<T>>, Error> {
        let (call, wait) = (query.call(stale, None, None), if stale { BUILDING } else { Duration::ZERO });
        match (self.fetch(&call, wait).await, older(&call)) {
            (Err(error), Some(older)) if is_too_new(&error) => self.fetch(&older, wait).await,
            (listed, _) => listed,
        }
    }

    /// Returns all sessions with these fields, and with those that each session has. The others have their defaults.
    pub async fn sessions(&self, more: &[&str]) -> Result<Vec<SessionView>, Error> {
        let mut pages = Pages::new(ListQuery::of(fields(more)));
        pages.refresh(self).await?;
        pages.sessions()
    }

    /// Finds a session by its id, its name, or an unambiguous prefix of its id. A complete id or name takes
    /// precedence.
    pub async fn find(&self, given: &str) -> Result<Document<SessionView>, Error> {
        if given.parse::<SessionId>().is_err()
            && let Err(error) = given.parse::<SessionName>()
        {
            return Err(Error::NoName { given: given.to_owned(), reason: error.to_string() });
        }
        let found = self.session(given).await;
        // An agent does not learn whether another session exists.
        let is_unknown = |error: &Error| matches!(error.problem_code(), Some(Code::NoSuchSession | Code::InSession));
        if !found.as_ref().is_err_and(is_unknown) {
            return found;
        }
        let sessions = self.sessions(&[]).await?;
        let beginning = |view: &&SessionView| view.id.as_str().starts_with(given);
        let mut candidates: Vec<&SessionView> = sessions.iter().filter(beginning).collect();
        match candidates.as_slice() {
            [] => found,
            [one] => self.session(one.id.as_str()).await,
            _ => {
                candidates.sort_by_key(|view| view.created);
                let candidates = candidates.into_iter().map(|view| match &view.spec.name {
                    Some(name) => format!("{} ({name})", view.id),
                    None => view.id.to_string(),
                });
                Err(Error::Ambiguous { given: given.into(), candidates: candidates.collect() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::Problem;
    use agentd_api::list::Selection;
    use bytes::Bytes;

    use super::*;

    #[test]
    fn the_fields_of_each_session_exist_and_suffice_for_a_view() {
        let Ok(Selection::Named(fields)) = fields(&["status.turn"]).selection() else { panic!("a field is unknown") };
        assert_eq!(fields.conditions.len(), 1);
        let time = "2026-01-01T00:00:00Z";
        let sparse = serde_json::json!({
            "id": "k3m", "generation": 1, "created": time, "spec": { "directory": "/d" },
            "status": {
                "phase": "idle", "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 1,
                "updated": time,
            },
        });
        assert!(serde_json::from_value::<SessionView>(sparse).is_ok());
    }

    #[test]
    fn a_daemon_of_the_first_release_is_asked_without_the_keys_that_it_refuses() {
        let call = ListQuery::whole("team=web".parse().ok()).call(false, Some(PAGE), None);
        assert_eq!(call.address(), "/v1/sessions?label=team%3Dweb&fields=%2A&limit=500");
        assert_eq!(older(&call).unwrap().address(), "/v1/sessions?label=team%3Dweb");
        let refused = |code, detail: &str| {
            let problem = Box::new(Problem::new(code, detail));
            is_too_new(&Error::Problem { problem, raw: Bytes::new() })
        };
        assert!(refused(Code::InvalidRequest, "GET /v1/sessions takes no query key \"fields\""));
        assert!(!refused(Code::InvalidRequest, "GET /v1/sessions takes no label=,"));
        assert!(!refused(Code::TooBusy, "it takes no query key"));
    }
}
