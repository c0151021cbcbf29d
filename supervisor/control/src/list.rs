//! Implements `GET /v1/sessions`: filters, pages, sparse items and the `ETag` of a list.
//!
//! Items are written from the published views, which are not copied. The item without `fields` is made once for
//! each publication, and the item with the same names of fields too. A whole answer to the owner is kept until a
//! session changes, so a client that asks again and again costs little.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use agentd_api::label::Selector;
use agentd_api::list::{Conditions, Cursor, Fields, Phases, Selection, SessionSummary, agent_of};
use agentd_api::route::Value as _;
use agentd_api::session::{SessionView, UnreadableSession};
use agentd_api::staleness::UncheckedSession;
use agentd_api::{Call, Code, Problem, Route};
use agentd_caller::{Caller, CallerClass};
use agentd_session::Published;
use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use hyper::http::uri::PathAndQuery;
use hyper::{Response, StatusCode, Uri};
use serde::Serialize;

use super::handlers::Answer;
use super::router::Context;
use super::sparse::SparseItem;
use super::{Body, access, full};

/// Number of kept answers.
const KEPT: usize = 8;
/// Maximum length of a kept answer in bytes.
const LONGEST_KEPT: usize = 4 << 20;

/// Answers that are kept until a session changes.
#[derive(Debug, Default)]
pub struct Lists {
    kept: Mutex<VecDeque<Kept>>,
    /// Key of the hashes in tags, so that no tag of an earlier daemon is valid.
    hashes: RandomState,
}

/// The answer to a call of the owner.
#[derive(Debug)]
struct Kept {
    /// The path and the query, as the client wrote them.
    address: String,
    /// Number of the last change that the answer contains.
    change: u64,
    tag: HeaderValue,
    body: Bytes,
}

impl Lists {
    fn find(&self, address: &str, change: u64) -> Option<(HeaderValue, Bytes)> {
        let kept = self.lock();
        let found = kept.iter().find(|kept| kept.address == address && kept.change == change)?;
        Some((found.tag.clone(), found.body.clone()))
    }

    fn keep(&self, answer: Kept) {
        if answer.body.len() > LONGEST_KEPT {
            return;
        }
        let mut kept = self.lock();
        kept.retain(|other| other.address != answer.address);
        kept.truncate(KEPT - 1);
        kept.push_front(answer);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Kept>> {
        // No code under this lock can leave the list inconsistent.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tag of a page. Each publication has a number of its own, so equal tags mean equal pages.
    fn tag(&self, page: &Page, unreadable: &[UnreadableSession]) -> HeaderValue {
        let mut hash = self.hashes.build_hasher();
        for published in &page.items {
            published.number().hash(&mut hash);
        }
        page.next.hash(&mut hash);
        for one in unreadable {
            (&one.id, &one.reason).hash(&mut hash);
        }
        HeaderValue::from_str(&format!("\"{:016x}\"", hash.finish())).unwrap_or(HeaderValue::from_static("\"\""))
    }
}

/// The sessions for which a call asks.
#[derive(Debug)]
struct Filter {
    label: Option<Selector>,
    phase: Option<Phases>,
    agent: Option<String>,
    directory: Option<PathBuf>,
    condition: Option<Conditions>,
}

impl Filter {
    fn matches(&self, caller: &Caller, view: &SessionView) -> bool {
        access::sees(caller, view)
            && self.label.as_ref().is_none_or(|label| label.matches(&view.spec.labels))
            && self.phase.as_ref().is_none_or(|Phases(phases)| phases.contains(&view.status.phase))
            && self.agent.as_ref().is_none_or(|agent| agent_of(view) == *agent)
            && self.directory.as_ref().is_none_or(|directory| view.spec.directory.starts_with(directory))
            && self.condition.as_ref().is_none_or(|condition| condition.matches(&view.status.conditions))
    }
}

/// The form of the items of a call with `fields`.
struct ItemForm {
    selection: Selection,
    /// Value of `fields`, by which a session's item is found again.
    name: Arc<str>,
}

impl ItemForm {
    fn of(fields: &Fields) -> Result<Self, Problem> {
        Ok(Self { selection: fields.selection()?, name: fields.write().into() })
    }
}

/// A part of the list.
struct Page {
    items: Vec<Arc<Published>>,
    /// Place of the last item, if further ones follow.
    next: Option<String>,
}

impl Page {
    /// Returns the first matching sessions after a place. `all` has the order of creation.
    fn of(
        all: Vec<Arc<Published>>,
        matches: impl Fn(&SessionView) -> bool,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Self {
        let is_after = |one: &Arc<Published>| after.is_none_or(|cursor| cursor.is_before(&one.view));
        let mut matching = all.into_iter().filter(|one| is_after(one) && matches(&one.view));
        let items: Vec<Arc<Published>> = matching.by_ref().take(limit).collect();
        let last = items.last().filter(|_| matching.next().is_some());
        let next = last.map(|last| Cursor { created: last.view.created, id: last.view.id.clone() }.to_string());
        Self { items, next }
    }
}

fn address(uri: &Uri) -> &str {
    uri.path_and_query().map_or("", PathAndQuery::as_str)
}

/// Returns the kept answer to a request of the owner, if no session has changed since.
pub(super) fn kept(context: &Context, route: Route, uri: &Uri, headers: &HeaderMap) -> Option<Response<Body>> {
    if route != Route::Sessions || context.caller.who != CallerClass::Owner {
        return None;
    }
    let (tag, body) = context.lists.find(address(uri), context.sessions.last_change())?;
    Some(answer(tag, body, headers))
}

/// Answers the call with the sessions that its caller sees. The answer to the owner is kept.
pub(super) async fn sessions(context: &Context, call: Call, uri: &Uri, headers: &HeaderMap) -> Answer {
    let Call::Sessions { stale, label, phase, agent, directory, condition, fields, limit, after } = call else {
        return Err(Problem::new(Code::Internal, format!("internal error: {call} lists no sessions")));
    };
    let directory = directory.map(absolute).transpose()?;
    let selection = fields.as_ref().map(ItemForm::of).transpose()?;
    let filter = Filter { label, phase, agent, directory, condition };
    if stale.unwrap_or(false) {
        if limit.is_some() || after.is_some() {
            return Err(Problem::new(Code::InvalidRequest, "a list of stale sessions has no pages")
                .hint("remove limit and after: each call looks at all sessions"));
        }
        return stale_sessions(context, &filter, selection.as_ref()).await;
    }
    let limit = limit.map(up_to).transpose()?.unwrap_or(usize::MAX);
    let is_owner = context.caller.who == CallerClass::Owner;
    let change = context.sessions.last_change();
    let all = context.sessions.published().await;
    let page = Page::of(all, |view| filter.matches(&context.caller, view), after.as_ref(), limit);
    let unreadable = if is_owner && after.is_none() { context.sessions.unreadable() } else { Vec::new() };
    let tag = context.lists.tag(&page, &unreadable);
    if is_known(headers, &tag) {
        return Ok(answer(tag, Bytes::new(), headers));
    }
    let items = page.items.iter().map(|one| (one.view.as_ref(), Some(one.as_ref())));
    let body = body(items, selection.as_ref(), page.next.as_deref(), &unreadable, &[])?;
    if is_owner {
        context.lists.keep(Kept { address: address(uri).to_owned(), change, tag: tag.clone(), body: body.clone() });
    }
    Ok(answer(tag, body, headers))
}

/// Answers with the sessions that are stale now. Such a list has no tag, because it depends on the file system.
async fn stale_sessions(context: &Context, filter: &Filter, selection: Option<&ItemForm>) -> Answer {
    if matches!(context.caller.who, CallerClass::Stranger(_)) {
        // agentd waits for these callers, so they must not wait for git.
        access::owner_only(context, "only the owner and guests look for stale sessions")?;
    }
    let all = context.sessions.published().await;
    let wanted = all.iter().filter(|one| filter.matches(&context.caller, &one.view));
    let views = wanted.map(|one| SessionView::clone(&one.view)).collect();
    let is_owner = context.caller.who == CallerClass::Owner;
    let unreadable = if is_owner { context.sessions.unreadable() } else { Vec::new() };
    let (stale, unchecked) = context.sessions.stale(views).await;
    let body = body(stale.iter().map(|view| (view, None)), selection, None, &unreadable, &unchecked)?;
    Ok(document(body))
}

fn absolute(directory: String) -> Result<PathBuf, Problem> {
    if Path::new(&directory).is_absolute() {
        return Ok(directory.into());
    }
    Err(Problem::new(Code::InvalidRequest, format!("directory={directory} is not an absolute path"))
        .hint("give the whole path; sessions in this directory and below it are listed"))
}

fn up_to(limit: u64) -> Result<usize, Problem> {
    usize::try_from(limit).ok().filter(|limit| *limit > 0).ok_or_else(|| {
        Problem::new(Code::InvalidRequest, format!("cannot list {limit} sessions"))
            .hint("limit is a whole number from 1; without limit all sessions are listed")
    })
}

/// Reports whether the client has the page with this tag (RFC 9110 section 13.1.2).
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let tag = tag.to_str().unwrap_or_default();
    let values = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

/// Answers with the page, or with 304 to a client that has the page.
fn answer(tag: HeaderValue, body: Bytes, headers: &HeaderMap) -> Response<Body> {
    let mut response = if is_known(headers, &tag) {
        let mut response = Response::new(full(Bytes::new()));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        document(body)
    };
    response.headers_mut().insert(ETAG, tag);
    // A client may keep the page, and asks each time whether the page is still current.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    response
}

fn document(body: Bytes) -> Response<Body> {
    let mut response = Response::new(full(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn internal(error: &serde_json::Error) -> Problem {
    Problem::new(Code::Internal, format!("internal error: cannot write a list: {error}"))
}

/// Writes a [`agentd_api::list::SessionList`]. A session that is listed in its present state has its publication, which
/// keeps items.
fn body<'a>(
    sessions: impl Iterator<Item = (&'a SessionView, Option<&'a Published>)>,
    form: Option<&ItemForm>,
    next: Option<&str>,
    unreadable: &[UnreadableSession],
    unchecked: &[UncheckedSession],
) -> Result<Bytes, Problem> {
    let mut body = b"{\"sessions\":[".to_vec();
    for (number, (view, published)) in sessions.enumerate() {
        if number > 0 {
            body.push(b',');
        }
        match (form.map(|form| (&form.selection, &form.name)), published) {
            (None, Some(published)) => body.extend_from_slice(published.summary()),
            (None, None) => write(&mut body, &SessionSummary::of(view))?,
            (Some((Selection::Whole, _)), _) => write(&mut body, view)?,
            (Some((Selection::Named(selected), name)), Some(published)) => {
                published.item(name, &mut body, |body| write(body, &SparseItem { view, selected }))?;
            }
            (Some((Selection::Named(selected), _)), None) => write(&mut body, &SparseItem { view, selected })?,
        }
    }
    body.push(b']');
    if let Some(next) = next {
        body.extend(b",\"next\":");
        write(&mut body, next)?;
    }
    if !unreadable.is_empty() {
        body.extend(b",\"unreadable\":");
        write(&mut body, unreadable)?;
    }
    if !unchecked.is_empty() {
        body.extend(b",\"unchecked\":");
        write(&mut body, unchecked)?;
    }
    body.extend(b"}\n");
    Ok(body.into())
}

fn write<T: Serialize + ?Sized>(body: &mut Vec<u8>, value: &T) -> Result<(), Problem> {
    serde_json::to_writer(body, value).map_err(|error| internal(&error))
}

#[cfg(test)]
mod tests {
    use agentd_api::list::SessionList;
    use serde_json::{Value, json};

    use super::*;

    fn view() -> SessionView {
        let time = "2026-01-01T00:00:00.123456789Z";
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": "rm -r target",
                "observed_generation": 1, "last_transition_time": time,
            })
        };
        serde_json::from_value(json!({
            "id": "k3m7qx2p", "generation": 3, "created": time,
            "spec": {
                "name": "fix-login", "agent": "claude", "directory": "/home/kim/projects/agentd",
                "labels": { "team": "web" },
            },
            "status": {
                "phase": "busy", "observed_generation": 1, "launches": 1, "last_seq": 4711, "updated": time,
                "title": "Fix the login page so that it accepts long names of users and of their groups",
                "conditions": [
                    condition("AgentStarted", "True", "Started"),
                    condition("NeedsAttention", "True", "PermissionRequested"),
                    condition("Ready", "True", "Busy"),
                ],
            },
        }))
        .unwrap()
    }

    fn listed(fields: Option<&str>) -> Value {
        let selection = fields.map(|fields| ItemForm::of(&Fields::read(fields).unwrap()).unwrap());
        let view = view();
        let written = body(std::iter::once((&view, None)), selection.as_ref(), Some("1.k3m"), &[], &[]).unwrap();
        let list: SessionList<Value> = serde_json::from_slice(&written).unwrap();
        assert_eq!(list.next.as_deref(), Some("1.k3m"));
        list.sessions.into_iter().next().unwrap()
    }

    #[test]
    fn an_item_has_at_most_400_bytes_and_the_fields_that_a_person_looks_for() {
        let item = listed(None);
        assert!(item.to_string().len() <= 400, "{} bytes: {item}", item.to_string().len());
        assert_eq!((&item["agent"], &item["attention"]), (&json!("claude"), &json!("PermissionRequested")));
        assert_eq!(serde_json::from_value::<SessionSummary>(item).unwrap(), SessionSummary::of(&view()));
    }

    #[test]
    fn a_sparse_item_has_the_named_fields_alone() {
        for (fields, wanted) in [
            ("id,name", json!({ "id": "k3m7qx2p", "name": "fix-login" })),
            ("generation,parent,spec.labels", json!({ "generation": 3, "spec": { "labels": { "team": "web" } } })),
            ("status.last_seq,status.turn,phase", json!({ "phase": "busy", "status": { "last_seq": 4711 } })),
            ("status.conditions.Degraded", json!({ "status": { "conditions": [] } })),
        ] {
            assert_eq!(listed(Some(fields)), wanted, "{fields}");
        }
        let ready = listed(Some("status.conditions.Ready,status.phase"));
        assert_eq!(ready["status"]["phase"], "busy");
        let kinds: Vec<&Value> =
            ready["status"]["conditions"].as_array().unwrap().iter().map(|one| &one["type"]).collect();
        assert_eq!(kinds, ["Ready"]);
        assert_eq!(listed(Some("*")), serde_json::to_value(view()).unwrap());
        assert_eq!(listed(Some("spec,status,id"))["status"], serde_json::to_value(view().status).unwrap());
    }

    /// A view in which most fields are present.
    fn full_view() -> SessionView {
        let mut view = serde_json::to_value(view()).unwrap();
        view["parent"] = "k3m7qx2q".into();
        view["spec"]["initial_prompt"] = "say x".into();
        view["spec"]["limits"] = json!({ "memory": "1G" });
        view["status"]["message"] = "it failed".into();
        view["status"]["agent_pid"] = 4711.into();
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn each_field_alone_has_the_value_of_the_whole_session() {
        let view = full_view();
        let whole = serde_json::to_value(&view).unwrap();
        let summary = serde_json::to_value(SessionSummary::of(&view)).unwrap();
        let alone = |fields: &str| {
            let form = ItemForm::of(&Fields::read(fields).unwrap()).unwrap();
            let written = body(std::iter::once((&view, None)), Some(&form), None, &[], &[]).unwrap();
            serde_json::from_slice::<SessionList<Value>>(&written).unwrap().sessions.remove(0)
        };
        let (mut all, mut count) = (Vec::new(), 0);
        for part in ["spec", "status"] {
            for (name, value) in whole[part].as_object().unwrap() {
                let field = format!("{part}.{name}");
                assert_eq!(alone(&field), json!({ part: { name: value } }), "{field}");
                all.push(field);
                count += 1;
            }
        }
        for (name, value) in summary.as_object().unwrap() {
            assert_eq!(alone(name), json!({ name: value }), "{name}");
            all.push(name.clone());
        }
        for name in ["generation", "parent"] {
            assert_eq!(alone(name), json!({ name: whole[name] }), "{name}");
            all.push(name.to_owned());
        }
        assert!(count > 12, "the view has only {count} fields");
        let mut wanted = summary;
        for name in ["generation", "parent", "spec", "status"] {
            wanted[name] = whole[name].clone();
        }
        assert_eq!(alone(&all.join(",")), wanted);
        // A field that the session does not have is absent.
        assert_eq!(alone("spec.command,status.turn"), json!({ "spec": {}, "status": {} }));
    }

    #[test]
    fn a_tag_matches_itself_any_tag_and_its_weak_form() {
        let tag = HeaderValue::from_static("\"a\"");
        let known = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(IF_NONE_MATCH, HeaderValue::from_static(value));
            }
            is_known(&headers, &tag)
        };
        for same in [&["\"a\""][..], &["*"], &["W/\"a\""], &["\"b\", \"a\""], &["\"b\"", "\"a\""]] {
            assert!(known(same), "{same:?}");
        }
        for other in [&[][..], &["\"b\""], &["a"], &[""]] {
            assert!(!known(other), "{other:?}");
        }
    }

    #[test]
    fn the_kept_answers_are_few_and_those_of_the_last_change() {
        let lists = Lists::default();
        let kept = |number: usize, change| Kept {
            address: format!("/v1/sessions?limit={number}"),
            change,
            tag: HeaderValue::from_static("\"a\""),
            body: Bytes::new(),
        };
        for number in 0..=KEPT {
            lists.keep(kept(number, 1));
        }
        assert!(lists.find("/v1/sessions?limit=0", 1).is_none(), "the oldest is dropped");
        assert!(lists.find("/v1/sessions?limit=1", 1).is_some() && lists.find("/v1/sessions?limit=1", 2).is_none());
        lists.keep(kept(1, 2));
        assert_eq!(lists.lock().len(), KEPT);
        assert!(lists.find("/v1/sessions?limit=1", 1).is_none() && lists.find("/v1/sessions?limit=1", 2).is_some());
        lists.keep(Kept { body: vec![0; LONGEST_KEPT + 1].into(), ..kept(99, 1) });
        assert!(lists.find("/v1/sessions?limit=99", 1).is_none());
    }
}
