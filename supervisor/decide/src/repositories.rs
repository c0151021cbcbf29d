//! The repositories of a session: what became of each, and which of them is to be made or removed next. Pure.
//!
//! A repository is due when its state differs from the specification. A failed one is due again after a pause, for
//! which a record is written. So a daemon that takes over continues with the work of the daemon before.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use agentd_api::Body;
use agentd_api::reason;
use agentd_api::repository::{RepositoryAction, RepositoryChanged, RepositorySpec, RepositoryState, RepositoryView};
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::spec::SpecChanged;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::next::{Facts, condition};
use crate::state::{Run, State};
use crate::waits::{Wait, doubled};

/// Pause before the first repeated attempt. Each further pause is twice as long, up to [`LONGEST`].
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_mins(5);

/// The repositories of a session, in the order in which they were begun.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repositories {
    known: Vec<KnownRepository>,
    /// Whether the last change of the specification is carried out also while a turn runs.
    at_once: bool,
    /// Names of repositories that may be removed with unsaved work.
    forced: BTreeSet<String>,
}

/// A repository and the last action on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownRepository {
    /// The specification for which the action was begun.
    pub spec: RepositorySpec,
    pub place: PathBuf,
    pub action: RepositoryAction,
    pub state: RepositoryState,
    pub branch: Option<String>,
    pub commit: Option<String>,
    /// Time at which this session cloned, reset or created it.
    pub made: Option<Timestamp>,
    /// Whether the repository has been ready: what is at its place is the session's.
    pub is_accepted: bool,
    /// Number of failed attempts since the last success.
    pub failures: u32,
    pub reason: Option<String>,
    pub message: Option<String>,
}

/// The next repository to work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepositoryWork {
    /// Make the repository, or keep it if it is there. `known` is what the session knows about it.
    Provide { spec: RepositorySpec, known: Option<KnownRepository> },
    /// Remove the repository.
    Remove { known: KnownRepository, is_forced: bool },
}

impl Repositories {
    /// Applies the record of an action.
    pub(crate) fn changed(&mut self, changed: &RepositoryChanged, at: Timestamp) {
        let name = changed.repository.name();
        if changed.state == RepositoryState::Removed {
            self.known.retain(|known| known.spec.name() != name);
            self.forced.remove(&name);
            return;
        }
        let RepositoryChanged { repository, place, action, state, branch, commit, reason, message } = changed.clone();
        let before = self.known.iter().position(|known| known.spec.name() == name);
        let (made, failures) = before.map_or((None, 0), |at| (self.known[at].made, self.known[at].failures));
        let was_accepted = before.is_some_and(|at| self.known[at].is_accepted);
        let is_new = matches!(action, RepositoryAction::Clone | RepositoryAction::Reset | RepositoryAction::Worktree);
        let (made, failures) = match state {
            RepositoryState::Ready if is_new => (Some(at), 0),
            RepositoryState::Ready | RepositoryState::Retained => (made, 0),
            RepositoryState::Failed => (made, failures + 1),
            _ => (made, failures),
        };
        let known = KnownRepository {
            spec: repository,
            place,
            action,
            state,
            branch,
            commit,
            made,
            is_accepted: was_accepted || state == RepositoryState::Ready,
            failures,
            reason,
            message,
        };
        match before {
            Some(at) => self.known[at] = known,
            None => self.known.push(known),
        }
    }

    /// Applies the terms of a changed specification.
    pub(crate) fn spec_changed(&mut self, changed: &SpecChanged) {
        let forces = !changed.repositories.forced.is_empty();
        if forces || changed.changes.iter().any(|change| change.field == "repos") {
            self.at_once = changed.repositories.at_once;
        }
        self.forced.extend(changed.repositories.forced.iter().cloned());
        self.forced.retain(|name| changed.spec.repository(name).is_none());
        for known in &mut self.known {
            let name = known.spec.name();
            let is_removal = known.action == RepositoryAction::Remove;
            let is_another = match changed.spec.repository(&name) {
                Some(wanted) => is_removal || *wanted != known.spec,
                None => !is_removal || self.forced.contains(&name),
            };
            // The new specification requests something else.
            if is_another && matches!(known.state, RepositoryState::Failed | RepositoryState::Retained) {
                known.state = RepositoryState::Pending;
                (known.failures, known.reason, known.message) = (0, None, None);
            }
        }
    }

    pub fn known(&self, name: &str) -> Option<&KnownRepository> {
        self.known.iter().find(|known| known.spec.name() == name)
    }

    /// Forgets the repositories that are not wanted.
    pub fn retain(&mut self, is_wanted: impl FnMut(&KnownRepository) -> bool) {
        self.known.retain(is_wanted);
    }

    /// Returns all repositories that the session has or had begun.
    pub fn all(&self) -> &[KnownRepository] {
        &self.known
    }

    /// Returns the repositories that the specification does not have any more.
    fn unwanted<'a>(&'a self, spec: &'a SessionSpec) -> impl Iterator<Item = &'a KnownRepository> {
        self.known.iter().filter(|known| spec.repository(&known.spec.name()).is_none())
    }

    /// Returns what is due, in the order of the work: removals first, since they make room.
    fn due<'a>(&'a self, spec: &'a SessionSpec, is_launch: bool) -> impl Iterator<Item = RepositoryWork> + 'a {
        let removals = self.unwanted(spec).filter_map(move |known| {
            let is_forced = self.forced.contains(&known.spec.name());
            let waits = match known.state {
                RepositoryState::Retained => !is_forced,
                RepositoryState::Failed => known.action == RepositoryAction::Remove && !is_launch,
                _ => false,
            };
            (!waits).then(|| RepositoryWork::Remove { known: known.clone(), is_forced })
        });
        let wanted = spec.repos.iter().filter_map(move |wanted| {
            let known = self.known(&wanted.name());
            let is_done = known.is_some_and(|known| {
                known.spec == *wanted
                    && match known.state {
                        RepositoryState::Ready => !is_launch,
                        RepositoryState::Failed => known.action != RepositoryAction::Remove && !is_launch,
                        _ => false,
                    }
            });
            (!is_done).then(|| RepositoryWork::Provide { spec: wanted.clone(), known: known.cloned() })
        });
        removals.chain(wanted)
    }

    /// Returns the work of a launch. Repositories that are there are examined too.
    pub fn of_launch(&self, spec: &SessionSpec) -> Vec<RepositoryWork> {
        self.due(spec, true).collect()
    }

    /// Returns the repositories for clients: first those of the specification.
    pub fn views(&self, spec: &SessionSpec) -> Vec<RepositoryView> {
        let wanted = spec.repos.iter().map(|wanted| self.view(wanted, spec));
        let others = self.unwanted(spec).map(|known| self.view(&known.spec, spec));
        wanted.chain(others).collect()
    }

    fn view(&self, wanted: &RepositorySpec, spec: &SessionSpec) -> RepositoryView {
        let name = wanted.name();
        let known = self.known(&name);
        let state = match known.map(|known| known.state) {
            None => RepositoryState::Pending,
            // Its removal has not begun.
            Some(RepositoryState::Ready) if spec.repository(&name).is_none() => RepositoryState::Pending,
            Some(state) => state,
        };
        RepositoryView {
            place: known.map_or_else(|| spec.directory.join(wanted.place()), |known| known.place.clone()),
            url: wanted.url.clone(),
            worktree_of: wanted.local().map(ToOwned::to_owned),
            state,
            action: known.map(|known| known.action),
            branch: known.and_then(|known| known.branch.clone()).or_else(|| wanted.branch.clone()),
            commit: known.and_then(|known| known.commit.clone()),
            cloned_at: known.and_then(|known| known.made),
            ahead: None,
            dirty: None,
            unsaved: None,
            message: known.and_then(|known| known.message.clone()),
            name,
        }
    }
}

/// Returns the repository that a running session works on next. Work waits for the end of a turn, unless its request
/// did not want that.
pub fn next_work(state: &State, spec: &SessionSpec) -> Option<RepositoryWork> {
    let Run::Running(running) = &state.run else { return None };
    if running.ending.is_some() || (running.turn.is_some() && !state.repositories.at_once) {
        return None;
    }
    state.repositories.due(spec, false).next()
}

/// Reports whether the next turn waits for the repositories, so that its agent sees them. Repeated attempts delay no
/// turn.
pub(crate) fn holds_turn(state: &State, spec: &SessionSpec) -> bool {
    state.repositories.due(spec, false).any(|work| match work {
        RepositoryWork::Provide { known, .. } => known.is_none_or(|known| known.failures == 0),
        RepositoryWork::Remove { known, .. } => known.failures == 0,
    })
}

/// Returns the waits for repeated attempts.
pub(crate) fn waits(state: &State) -> impl Iterator<Item = Wait> {
    let failed = state.repositories.known.iter().filter(|known| known.state == RepositoryState::Failed);
    failed.map(|known| Wait::Repository { name: known.spec.name(), failures: known.failures })
}

/// Returns the pause after a number of failures.
pub(crate) fn pause(failures: u32) -> Duration {
    doubled(FIRST, failures, LONGEST)
}

/// Returns the record that begins another attempt.
pub(crate) fn again(state: &State, name: &str) -> Option<Batch> {
    let known = state.repositories.known(name).filter(|known| known.state == RepositoryState::Failed)?.clone();
    Some(Batch::of(Body::RepositoryChanged(RepositoryChanged {
        repository: known.spec,
        place: known.place,
        action: known.action,
        state: RepositoryState::Pending,
        branch: known.branch,
        commit: known.commit,
        reason: known.reason,
        message: known.message,
    })))
}

/// Returns the record of the condition `RepositoriesReady` if the condition is not recorded yet.
pub(crate) fn report(state: &State, facts: &Facts<'_>) -> Option<Batch> {
    let kind = ConditionType::RepositoriesReady;
    let repositories = &state.repositories;
    let said = state.condition(kind);
    if facts.spec.repos.is_empty() && repositories.known.is_empty() && said.is_none() {
        return None;
    }
    let is_launch = matches!(state.run, Run::Preparing(_));
    let in_trouble = |known: &&KnownRepository| {
        matches!(known.state, RepositoryState::Failed | RepositoryState::Retained)
            || (known.failures > 0 && known.state != RepositoryState::Ready)
    };
    let (status, reason, message) = if let Some(known) = repositories.known.iter().find(in_trouble) {
        let reason = known.reason.clone();
        let message = format!("{}: {}", known.spec.name(), known.message.as_deref().unwrap_or("it failed"));
        (ConditionStatus::False, reason.unwrap_or_else(|| reason::CLONE_FAILED.to_owned()), message)
    } else {
        let due: Vec<String> = repositories.due(facts.spec, false).map(|work| work.name()).collect();
        if due.is_empty() {
            let message = match repositories.known.len() {
                1 => "1 repository is there".to_owned(),
                count => format!("{count} repositories are there"),
            };
            (ConditionStatus::True, reason::ALL_READY.to_owned(), message)
        } else {
            let what = if due.len() == 1 { "repository" } else { "repositories" };
            (ConditionStatus::Unknown, reason::WORKING.to_owned(), format!("{what} {}", due.join(", ")))
        }
    };
    // A launch examines the repositories first.
    if is_launch && status == ConditionStatus::True {
        return None;
    }
    if said.is_some_and(|said| said.status == status && said.reason == reason && said.message == message) {
        return None;
    }
    Some(Batch::of(condition(state, facts, kind, status, &reason, message)))
}

impl RepositoryWork {
    /// Returns the name of the repository.
    pub fn name(&self) -> String {
        match self {
            Self::Provide { spec, .. } => spec.name(),
            Self::Remove { known, .. } => known.spec.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(urls: &[&str]) -> SessionSpec {
        let repos = urls.iter().map(|url| RepositorySpec::clone_of(*url)).collect();
        SessionSpec { repos, ..SessionSpec::new("/w") }
    }

    fn record(url: &str, action: RepositoryAction, state: RepositoryState) -> RepositoryChanged {
        let repository = RepositorySpec::clone_of(url);
        let (place, message) = ("/w/x".into(), Some("why".to_owned()));
        RepositoryChanged { repository, place, action, state, branch: None, commit: None, reason: None, message }
    }

    fn after(records: &[(&str, RepositoryAction, RepositoryState)]) -> Repositories {
        let mut repositories = Repositories::default();
        for (url, action, state) in records {
            repositories.changed(&record(url, *action, *state), Timestamp::UNIX_EPOCH);
        }
        repositories
    }

    fn names(works: impl Iterator<Item = RepositoryWork>) -> Vec<String> {
        works
            .map(|work| match &work {
                RepositoryWork::Provide { .. } => work.name(),
                RepositoryWork::Remove { is_forced, .. } => {
                    format!("-{}{}", work.name(), if *is_forced { "!" } else { "" })
                }
            })
            .collect()
    }

    use RepositoryAction::{Clone, Keep, Remove};
    use RepositoryState::{Failed, Pending, Ready, Removed, Retained, Working};

    #[test]
    fn what_differs_from_the_specification_is_due() {
        let both = spec(&["/r/a", "/r/b"]);
        for (records, due, at_launch) in [
            (&[][..], &["a", "b"][..], &["a", "b"][..]),
            (&[("/r/a", Clone, Ready)], &["b"], &["a", "b"]),
            (&[("/r/a", Clone, Working)], &["a", "b"], &["a", "b"]),
            (&[("/r/a", Clone, Failed)], &["b"], &["a", "b"]),
            (&[("/r/a", Clone, Failed), ("/r/a", Clone, Pending)], &["a", "b"], &["a", "b"]),
            (&[("/r/c", Clone, Ready), ("/r/a", Clone, Ready)], &["-c", "b"], &["-c", "a", "b"]),
            (&[("/r/c", Remove, Failed)], &["a", "b"], &["-c", "a", "b"]),
            (&[("/r/c", Remove, Retained)], &["a", "b"], &["a", "b"]),
            (&[("/r/c", Clone, Ready), ("/r/c", Remove, Removed)], &["a", "b"], &["a", "b"]),
            // Its removal failed or was refused, and it is wanted again.
            (&[("/r/a", Remove, Retained)], &["a", "b"], &["a", "b"]),
            (&[("/r/a", Remove, Failed)], &["a", "b"], &["a", "b"]),
            // Its address has changed.
            (&[("/other/a", Clone, Ready)], &["a", "b"], &["a", "b"]),
        ] {
            let repositories = after(records);
            assert_eq!(names(repositories.due(&both, false)), due, "{records:?}");
            assert_eq!(names(repositories.of_launch(&both).into_iter()), at_launch, "{records:?}");
        }
    }

    #[test]
    fn a_forced_removal_does_not_stop_at_unsaved_work() {
        let mut repositories = after(&[("/r/c", Remove, Retained)]);
        repositories.forced.insert("c".to_owned());
        assert_eq!(names(repositories.due(&spec(&[]), false)), ["-c!"]);
        repositories.changed(&record("/r/c", Remove, Removed), Timestamp::UNIX_EPOCH);
        assert!(repositories.forced.is_empty());
    }

    #[test]
    fn the_pauses_grow_up_to_the_longest() {
        assert_eq!([1, 2, 3, 7, 100].map(|failures| pause(failures).as_secs()), [5, 10, 20, 300, 300]);
    }

    #[test]
    fn failures_are_counted_until_a_success_and_the_time_is_that_of_the_clone() {
        let mut repositories = after(&[("/r/a", Clone, Failed), ("/r/a", Clone, Pending), ("/r/a", Clone, Failed)]);
        assert_eq!(repositories.known("a").unwrap().failures, 2);
        let later: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        repositories.changed(&record("/r/a", Clone, Ready), later);
        repositories.changed(&record("/r/a", Keep, Ready), Timestamp::UNIX_EPOCH);
        let known = repositories.known("a").unwrap();
        assert_eq!((known.failures, known.made), (0, Some(later)));
    }
}
