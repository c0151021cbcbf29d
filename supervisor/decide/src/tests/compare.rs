//! Tests the comparison of a session's baseline with the present state.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::facts::{
    DirectoryIdentity, Repository, RepositoryFacts, RepositoryUnread, ScriptDigests, SessionFacts,
};
use agentd_api::session::ConditionStatus;
use agentd_api::staleness::{StaleKind, StalePolicy};
use jiff::Timestamp;
use proptest::prelude::*;

use super::super::facts::Baseline;
use super::super::staleness::{Comparison, Present, StalenessSettings, compare};

const DAY: Duration = Duration::from_hours(24);

fn facts(inode: u64, repository: Repository) -> SessionFacts {
    let directory = Some(DirectoryIdentity { device: 1, inode, boot: "b".to_owned() });
    SessionFacts { read_at: Timestamp::UNIX_EPOCH, directory, repository }
}

fn repository(root: &str, branch: &str, head: &str, remotes: &[&str]) -> Repository {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let remotes = remotes.iter().map(|name| ((*name).to_owned(), vec![format!("https://h/{name}")]));
    Repository::Found(RepositoryFacts {
        root: root.into(),
        branch: text(branch),
        head: text(head),
        remotes: remotes.collect(),
        dirty: None,
    })
}

fn unread() -> Repository {
    Repository::Unread(RepositoryUnread { message: "git did not answer in time".to_owned() })
}

fn baseline(facts: SessionFacts) -> Baseline {
    Baseline { facts: Some(Arc::new(facts)), ..Baseline::default() }
}

fn compared(before: &SessionFacts, now: &SessionFacts, settings: &StalenessSettings) -> Vec<Comparison> {
    let present = Present { directory: Path::new("/w"), facts: now, scripts: None, time: Timestamp::UNIX_EPOCH };
    compare(&baseline(before.clone()), &present, settings)
}

/// Returns the kinds that are stale, with their reasons.
fn stale(found: &[Comparison]) -> Vec<(StaleKind, &'static str)> {
    let stale = found.iter().filter(|one| one.status == ConditionStatus::False);
    stale.map(|one| (one.kind, one.reason)).collect()
}

#[test]
fn each_difference_has_its_kind_and_its_reason() {
    let before = facts(1, repository("/w", "main", "abc", &["origin"]));
    let of = |repository| facts(1, repository);
    let all = StalenessSettings::all(StalePolicy::Note, DAY);
    for (now, expected) in [
        (of(repository("/w", "main", "abc", &["origin"])), vec![]),
        (facts(2, repository("/w", "main", "abc", &["origin"])), vec![(StaleKind::Directory, "DirectoryReplaced")]),
        (of(Repository::None), vec![(StaleKind::Repository, "RepositoryGone")]),
        (of(unread()), vec![]),
        (of(Repository::Unknown), vec![]),
        (of(repository("/v", "x", "x", &["origin"])), vec![(StaleKind::Repository, "RepositoryMoved")]),
        (of(repository("/w", "x", "x", &["other"])), vec![(StaleKind::Repository, "RemotesChanged")]),
        (of(repository("/w", "x", "x", &["origin"])), vec![(StaleKind::Branch, "BranchChanged")]),
        (of(repository("/w", "", "abc", &["origin"])), vec![(StaleKind::Branch, "BranchChanged")]),
        (of(repository("/w", "main", "x", &["origin"])), vec![(StaleKind::Head, "HeadChanged")]),
        (of(repository("/w", "main", "", &["origin"])), vec![(StaleKind::Head, "HeadChanged")]),
    ] {
        assert_eq!(stale(&compared(&before, &now, &all)), expected, "{now:?}");
    }
    let new = compared(&of(Repository::None), &before, &all);
    assert_eq!(stale(&new), [(StaleKind::Repository, "RepositoryNew")]);
    let unknown = compared(&before, &of(unread()), &all);
    let of_repository = unknown.iter().find(|one| one.kind == StaleKind::Repository).unwrap();
    assert_eq!((of_repository.status, of_repository.reason), (ConditionStatus::Unknown, "RepositoryUnread"));
}

#[test]
fn what_is_ignored_hides_nothing_behind_it() {
    let before = facts(1, repository("/w", "main", "abc", &[]));
    let now = facts(1, repository("/v", "x", "x", &[]));
    let all = StalenessSettings::all(StalePolicy::Refuse, DAY);
    let settings = StalenessSettings { repository: StalePolicy::Ignore, ..all };
    assert_eq!(stale(&compared(&before, &now, &settings)), [(StaleKind::Branch, "BranchChanged")]);
    let settings = StalenessSettings { branch: StalePolicy::Ignore, ..settings };
    assert_eq!(stale(&compared(&before, &now, &settings)), [(StaleKind::Head, "HeadChanged")]);
}

#[test]
fn scripts_are_named_and_a_session_is_unused_after_its_time() {
    let digests = |scripts: &[(&str, &str)]| -> ScriptDigests {
        scripts.iter().map(|(path, digest)| ((*path).to_owned(), (*digest).to_owned())).collect()
    };
    let facts = facts(1, Repository::None);
    let before = Baseline {
        scripts: Some(Arc::new(digests(&[("/a", "1"), ("/b", "1"), ("/c", "1")]))),
        used: Some(Timestamp::UNIX_EPOCH),
        ..baseline(facts.clone())
    };
    let settings = StalenessSettings::all(StalePolicy::Note, DAY);
    for (second, is_stale) in [(0, false), (86_400, false), (86_401, true)] {
        let (scripts, time) =
            (digests(&[("/a", "1"), ("/b", "2"), ("/d", "1")]), Timestamp::from_second(second).unwrap());
        let present = Present { directory: Path::new("/w"), facts: &facts, scripts: Some(&scripts), time };
        let found = compare(&before, &present, &settings);
        let of = |kind| found.iter().find(|one| one.kind == kind).unwrap();
        let message = &of(StaleKind::Scripts).message;
        assert!(message.ends_with("\"/b\" has changed, \"/d\" is new, \"/c\" is gone"), "{message}");
        let status = if is_stale { ConditionStatus::False } else { ConditionStatus::True };
        assert_eq!(of(StaleKind::Unused).status, status, "{second}");
    }
}

#[test]
fn many_names_are_counted() {
    let names: Vec<String> = (0..30).map(|n| format!("r{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (before, now) = (facts(1, repository("/w", "m", "a", &[])), facts(1, repository("/w", "m", "a", &names)));
    let found = compared(&before, &now, &StalenessSettings::all(StalePolicy::Note, DAY));
    let message = &found.iter().find(|one| one.kind == StaleKind::Repository).unwrap().message;
    assert!(message.ends_with("\"r19\" is new, and 10 more") && !message.contains("r20"), "{message}");
}

fn any_repository() -> impl Strategy<Value = Repository> {
    prop_oneof![
        Just(Repository::None),
        Just(Repository::Unknown),
        Just(unread()),
        ("/[ab]", "[ab]?", "[ab]?", prop::collection::vec("[ab]", 0..2)).prop_map(|(root, branch, head, remotes)| {
            repository(&root, &branch, &head, &remotes.iter().map(String::as_str).collect::<Vec<_>>())
        }),
    ]
}

fn any_policy() -> impl Strategy<Value = StalePolicy> {
    prop::sample::select(StalePolicy::ALL)
}

proptest! {
    #[test]
    fn a_state_is_never_stale_against_itself_and_no_kind_is_found_twice_or_though_ignored(
        before in (0..3_u64, any_repository()),
        now in (0..3_u64, any_repository()),
        policies in prop::array::uniform8(any_policy()),
    ) {
        let [directory, repository, branch, head, scripts, unused, environment, agent_version] = policies;
        let settings = StalenessSettings {
            directory, repository, branch, head, scripts, unused, environment, agent_version, unused_after: DAY,
        };
        let (before, now) = (facts(before.0, before.1), facts(now.0, now.1));
        prop_assert_eq!(stale(&compared(&before, &before, &settings)), vec![]);
        let found = compared(&before, &now, &settings);
        let mut kinds = BTreeMap::new();
        for one in &found {
            *kinds.entry(one.kind).or_insert(0) += 1;
            prop_assert!(settings.policy(one.kind) != StalePolicy::Ignore, "{:?}", one);
            prop_assert_eq!(one.finding(&settings).is_some(), one.status == ConditionStatus::False);
        }
        prop_assert!(kinds.values().all(|count| *count == 1), "{:?}", found);
        // A move of a repository that both sides know is found.
        if let (Repository::Found(before), Repository::Found(now)) = (&before.repository, &now.repository)
            && settings.repository != StalePolicy::Ignore
        {
            let moved = before.root != now.root || before.remotes != now.remotes;
            let found_move = stale(&found).iter().any(|(kind, _)| *kind == StaleKind::Repository);
            prop_assert_eq!(moved, found_move);
        }
    }
}
