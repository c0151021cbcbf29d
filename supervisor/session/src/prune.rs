//! Finds sessions at rest that are no longer used, measures them, and removes them.
//!
//! An active session is never removed, and neither is a session that got events since it was found. The session's
//! driver compares the last sequence number in the step in which it gives the session up.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::event::Cause;
use agentd_api::prune::{KeptSession, PruneRequest, PruneView, PrunedSession};
use agentd_api::session::{SessionView, UnreadableSession};
use agentd_api::{Code, Problem};
use agentd_host::usage::disk_usage;
use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Session, Sessions, aside, ending};

/// Time limit for measuring all sessions of one request.
const MEASURED: Duration = Duration::from_secs(20);
/// Maximum number of directories that are measured at once.
const AT_ONCE: usize = 4;

/// A session that matches a request, or the reason why it stays.
#[derive(Debug)]
struct Match {
    session: PrunedSession,
    directory: PathBuf,
    /// The handle, unless the session cannot be read.
    handle: Option<Session>,
    kept: Option<String>,
}

impl Sessions {
    /// Lists the sessions that match the request and, unless it is a dry run, removes them.
    #[boxed]
    pub async fn prune(&self, request: &PruneRequest, cause: Cause) -> Result<PruneView, Problem> {
        check(request)?;
        let mut found = self.matches(request, Timestamp::now()).await?;
        measure(&mut found).await;
        let mut view = PruneView { dry_run: request.dry_run, ..PruneView::default() };
        for Match { session, handle, kept, .. } in found {
            let confirmed = request.confirmed.as_ref().map(|confirmed| confirmed.get(&session.id).copied());
            let kept = match (kept, confirmed) {
                (Some(kept), _) => Some(kept),
                (None, Some(None)) => continue,
                (None, Some(Some(seq))) if seq != session.last_seq => Some("it has changed".to_owned()),
                _ if request.dry_run => None,
                _ => self.remove_match(&session, handle, cause.clone()).await.err().map(|problem| problem.detail),
            };
            if let Some(reason) = kept {
                view.kept.push(KeptSession { id: session.id, name: session.name, reason });
            } else {
                view.bytes += session.bytes.unwrap_or_default();
                view.sessions.push(session);
            }
        }
        Ok(view)
    }

    async fn remove_match(
        &self,
        session: &PrunedSession,
        handle: Option<Session>,
        cause: Cause,
    ) -> Result<(), Problem> {
        match handle {
            Some(handle) => self.remove(&handle, Some(session.last_seq)).await?,
            None => self.remove_set_aside(&session.id, cause).await?,
        }
        tracing::info!(agentd.session = %session.id, reasons = session.reasons.join(", "), "pruned a session");
        Ok(())
    }

    /// Returns the sessions that match, in the order of their last activity.
    async fn matches(&self, request: &PruneRequest, now: Timestamp) -> Result<Vec<Match>, Problem> {
        let views = self.list().await;
        let (mut named, mut unreadable_named) = (BTreeSet::new(), BTreeSet::new());
        for name in &request.names {
            match self.find(name).await {
                Ok(session) if session.is_set_aside() && !request.unreadable => return Err(unreadable(&session)),
                Ok(session) => _ = named.insert(session.id().clone()),
                Err(problem) if problem.code == Code::SessionUnreadable && request.unreadable => {
                    unreadable_named.insert(name.clone());
                }
                Err(problem) => return Err(problem),
            }
        }
        let mut found = Vec::new();
        for view in &views {
            if !request.names.is_empty() && !named.contains(&view.id) {
                continue;
            }
            let Ok(session) = self.find(view.id.as_str()).await else { continue };
            let Some(reasons) = reasons(request, view, session.is_set_aside(), now) else { continue };
            let mut kept = obstacle(view, &views);
            if session.is_set_aside() && ending::has_keeper(session.directory()).await {
                kept = Some(RUNS.to_owned());
            }
            found.push(Match {
                session: pruned(view, reasons, now),
                directory: session.directory().clone(),
                handle: Some(session),
                kept,
            });
        }
        if request.stale {
            self.only_stale(&mut found).await;
        }
        if request.unreadable && request.phases.is_empty() && !request.stale {
            for unreadable in self.unreadable() {
                if request.names.is_empty() || unreadable_named.contains(&unreadable.id) {
                    found.extend(self.unreadable_match(request, unreadable, now).await);
                }
            }
        }
        found.sort_by_key(|found| found.session.last_activity);
        Ok(found)
    }

    /// Drops the sessions that are not stale. A session that could not be checked in time stays.
    async fn only_stale(&self, found: &mut Vec<Match>) {
        let ids = found.iter().filter_map(|one| one.handle.as_ref().map(|handle| handle.id().clone())).collect();
        let mut results = self.look_at(ids).await.into_iter();
        found.retain_mut(|one| match results.next().unwrap_or_else(|| Ok(Vec::new())) {
            Ok(findings) => {
                let stale = findings.iter().map(|finding| format!("{}: {}", finding.kind.as_str(), finding.message));
                one.session.reasons.extend(stale);
                !findings.is_empty()
            }
            Err(reason) => {
                one.kept.get_or_insert(reason);
                true
            }
        });
    }

    /// Returns a session whose document cannot be read, if it is old enough. Its last activity is the newest change of
    /// its files.
    async fn unreadable_match(
        &self,
        request: &PruneRequest,
        unreadable: UnreadableSession,
        now: Timestamp,
    ) -> Option<Match> {
        let directory = self.generations().now().daemon.directories.sessions().join(&unreadable.id);
        let looked_at = directory.clone();
        let last = agentd_host::work::blocking(move || newest(&looked_at)).await.ok().flatten()?;
        if !is_old_enough(request, last, now) {
            return None;
        }
        let kept = ending::has_keeper(&directory).await.then(|| RUNS.to_owned());
        let session = PrunedSession {
            id: unreadable.id,
            name: None,
            phase: None,
            last_activity: last,
            age_seconds: age(last, now),
            last_seq: 0,
            bytes: None,
            reasons: vec![format!("it cannot be read: {}", unreadable.reason)],
        };
        Some(Match { session, directory, handle: None, kept })
    }
}

/// Returns the refusal for a named session whose journal cannot be read.
fn unreadable(session: &Session) -> Problem {
    let reason = session.view().status.message.clone().unwrap_or_default();
    aside::problem(&UnreadableSession { id: session.id().to_string(), reason })
}

/// Reason for keeping a session that cannot be read but has a keeper.
const RUNS: &str = "it cannot be read, and its agent may still run; stop it first";

/// Refuses a request without a criterion, or for active sessions.
fn check(request: &PruneRequest) -> Result<(), Problem> {
    let invalid = |detail: String, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
    if let Some(phase) = request.phases.iter().find(|phase| !phase.is_over()) {
        let detail = format!("a session in phase {:?} is never pruned", phase.as_str());
        return invalid(detail, "name stopped, failed or pending; stop other sessions first");
    }
    if !chooses_readable(request) && !request.unreadable {
        let hint = "give an age, phases, names, `stale` or `unreadable`";
        return invalid("the request names no criterion, and would remove every session at rest".to_owned(), hint);
    }
    Ok(())
}

/// Reports whether the request has a criterion for sessions that can be read.
fn chooses_readable(request: &PruneRequest) -> bool {
    let PruneRequest { names, older_than_seconds, phases, stale, .. } = request;
    !names.is_empty() || older_than_seconds.is_some() || !phases.is_empty() || *stale
}

/// Returns the criteria that a session matches, or `None` if it fails one. Pure.
fn reasons(request: &PruneRequest, view: &SessionView, is_set_aside: bool, now: Timestamp) -> Option<Vec<String>> {
    let last = last_activity(view);
    if !is_old_enough(request, last, now) {
        return None;
    }
    let mut reasons = Vec::new();
    if request.older_than_seconds.is_some() {
        reasons.push(format!("last active at {last:.0}"));
    }
    if is_set_aside {
        let reason = view.status.message.clone().unwrap_or_default();
        reasons.push(format!("it cannot be read: {reason}"));
        return (request.unreadable && request.phases.is_empty() && !request.stale).then_some(reasons);
    }
    if !chooses_readable(request) || !(request.phases.is_empty() || request.phases.contains(&view.status.phase)) {
        return None;
    }
    reasons.push(view.status.phase.as_str().to_owned());
    Some(reasons)
}

/// Returns why a matching session stays. Pure.
fn obstacle(view: &SessionView, all: &[SessionView]) -> Option<String> {
    let phase = view.status.phase;
    if !phase.is_over() {
        return Some(format!("it is {}", phase.as_str()));
    }
    let is_up = |other: &&SessionView| !other.status.phase.is_over();
    let mut others = all.iter().filter(is_up);
    others.find_map(|other| {
        // A parent reads what its children wrote, and acts for them.
        if view.parent.as_ref() == Some(&other.id) {
            return Some(format!("the session {} that created it is {}", other.id, other.status.phase.as_str()));
        }
        let is_child = other.parent.as_ref() == Some(&view.id);
        is_child.then(|| format!("the session {} that it created is {}", other.id, other.status.phase.as_str()))
    })
}

/// Returns the time of the last event, or of a person's last look if that is later.
fn last_activity(view: &SessionView) -> Timestamp {
    view.status.last_observed_at.map_or(view.status.updated, |observed| observed.max(view.status.updated))
}

fn age(last: Timestamp, now: Timestamp) -> u64 {
    u64::try_from(now.duration_since(last).as_secs()).unwrap_or(0)
}

fn is_old_enough(request: &PruneRequest, last: Timestamp, now: Timestamp) -> bool {
    let Some(seconds) = request.older_than_seconds else { return true };
    i64::try_from(seconds).is_ok_and(|seconds| now.duration_since(last) >= SignedDuration::from_secs(seconds))
}

fn pruned(view: &SessionView, reasons: Vec<String>, now: Timestamp) -> PrunedSession {
    let last = last_activity(view);
    PrunedSession {
        id: view.id.to_string(),
        name: view.spec.name.as_ref().map(ToString::to_string),
        phase: Some(view.status.phase),
        last_activity: last,
        age_seconds: age(last, now),
        last_seq: view.status.last_seq,
        bytes: None,
        reasons,
    }
}

/// Returns the time of the newest change of a file in the directory.
fn newest(directory: &Path) -> Option<Timestamp> {
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let times = entries.filter_map(|entry| entry.metadata().ok()?.modified().ok());
    let newest = times.chain(directory.metadata().ok()?.modified().ok()).max()?;
    newest.try_into().ok()
}

/// Measures the directories of the sessions that do not stay. A size that is not known in time stays unknown.
async fn measure(found: &mut [Match]) {
    let (deadline, running) = (Instant::now() + MEASURED, Arc::new(Semaphore::new(AT_ONCE)));
    let mut tasks = JoinSet::new();
    for (number, directory) in
        found.iter().enumerate().filter(|(_, one)| one.kept.is_none()).map(|(at, one)| (at, one.directory.clone()))
    {
        let running = Arc::clone(&running);
        tasks.spawn(async move {
            let _permit = running.acquire_owned().await;
            let measured = agentd_host::work::blocking(move || disk_usage(&directory, deadline));
            // A hanging disk must not delay the answer.
            let measured = tokio::time::timeout_at(deadline.into(), measured).await;
            (number, measured.ok().and_then(Result::ok).and_then(Result::ok).flatten())
        });
    }
    let mut sizes = BTreeMap::new();
    while let Some(ended) = tasks.join_next().await {
        sizes.extend(ended.ok());
    }
    for (number, bytes) in sizes {
        found[number].session.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(id: &str, phase: &str, parent: Option<&str>) -> SessionView {
        serde_json::from_value(serde_json::json!({
            "id": id, "generation": 1, "created": "2026-01-01T00:00:00Z", "spec": { "directory": "/w" },
            "parent": parent,
            "status": {
                "phase": phase, "observed_generation": 1, "conditions": [], "launches": 1, "last_seq": 9,
                "updated": "2026-01-01T00:00:00Z",
            },
        }))
        .unwrap()
    }

    fn request(request: serde_json::Value) -> PruneRequest {
        serde_json::from_value(request).unwrap()
    }

    #[test]
    fn a_request_needs_a_criterion_and_none_is_for_active_sessions() {
        for bad in [
            serde_json::json!({}),
            serde_json::json!({ "dry_run": true }),
            serde_json::json!({ "phases": ["idle"] }),
            serde_json::json!({ "phases": ["stopped", "backing-off"] }),
        ] {
            let problem = check(&request(bad.clone())).unwrap_err();
            assert_eq!((problem.code, problem.hint.is_some()), (Code::InvalidRequest, true), "{bad}");
        }
        for good in [
            serde_json::json!({ "older_than_seconds": 0 }),
            serde_json::json!({ "phases": ["stopped", "failed", "completed", "pending"] }),
            serde_json::json!({ "names": ["a"] }),
            serde_json::json!({ "stale": true }),
            serde_json::json!({ "unreadable": true }),
        ] {
            assert!(check(&request(good.clone())).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_session_matches_if_it_meets_every_criterion() {
        let now: Timestamp = "2026-01-31T00:00:00Z".parse().unwrap();
        let matches = |asked: serde_json::Value, phase: &str, is_set_aside: bool| {
            reasons(&request(asked), &view("a", phase, None), is_set_aside, now).is_some()
        };
        let days = |days: u64| serde_json::json!({ "older_than_seconds": days * 86_400 });
        assert!(matches(days(30), "stopped", false) && !matches(days(31), "stopped", false));
        let both = serde_json::json!({ "older_than_seconds": 60, "phases": ["failed"] });
        assert!(matches(both.clone(), "failed", false) && !matches(both, "stopped", false));
        // A session that cannot be read is removed only on request.
        assert!(!matches(days(30), "failed", true));
        let unreadable = serde_json::json!({ "unreadable": true, "older_than_seconds": 60 });
        assert!(matches(unreadable.clone(), "failed", true) && matches(unreadable, "failed", false));
        let unreadable = serde_json::json!({ "unreadable": true });
        assert!(matches(unreadable.clone(), "failed", true) && !matches(unreadable, "failed", false));
        for other in [serde_json::json!({ "unreadable": true, "phases": ["failed"] }), both_kinds()] {
            assert!(!matches(other.clone(), "failed", true), "{other}");
        }
    }

    fn both_kinds() -> serde_json::Value {
        serde_json::json!({ "unreadable": true, "stale": true })
    }

    #[test]
    fn an_active_session_stays_and_so_do_its_parent_and_its_children() {
        let all = [view("a", "idle", None), view("b", "stopped", Some("a")), view("c", "stopped", None)];
        assert_eq!(obstacle(&all[0], &all).unwrap(), "it is idle");
        assert_eq!(obstacle(&all[1], &all).unwrap(), "the session a that created it is idle");
        assert_eq!(obstacle(&all[2], &all), None);
        let all = [view("a", "stopped", None), view("b", "backing-off", Some("a"))];
        assert_eq!(obstacle(&all[0], &all).unwrap(), "the session b that it created is backing-off");
        assert!(obstacle(&all[1], &all).is_some());
        let all = [view("a", "stopped", None), view("b", "failed", Some("a"))];
        assert_eq!((obstacle(&all[0], &all), obstacle(&all[1], &all)), (None, None));
    }
}
