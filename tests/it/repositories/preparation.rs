//! Preparation of the repositories of a new session and of a continuation.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use agentd_api::Body;
use agentd_api::event::LaunchFailed;
use agentd_api::repository::{RepositoryAction, RepositorySpec, RepositoryState};
use agentd_api::session::{ConditionStatus, Phase, SessionSpec};
use serde_json::json;

use super::{Remote, commit, condition, git, leftovers, listed, spec, state};
use crate::harness::{Daemon, Session};

/// Puts something at the place of a repository.
type Make = fn(&Path, &Remote);

fn actions(session: &Session) -> Vec<(RepositoryAction, RepositoryState)> {
    let change = |body: Body| if let Body::RepositoryChanged(changed) = body { Some(changed) } else { None };
    let changes = session.journal().into_iter().filter_map(|event| change(event.body));
    changes.map(|changed| (changed.action, changed.state)).collect()
}

fn failure(session: &Session) -> Option<LaunchFailed> {
    session.journal().into_iter().rev().find_map(|event| match event.body {
        Body::LaunchFailed(failed) => Some(failed),
        _ => None,
    })
}

#[tokio::test]
async fn a_new_session_clones_what_it_requests() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let plain = remote.spec();
    let text = |text: &str| Some(text.to_owned());
    for (directory, repository, place, branch, commits) in [
        ("plain", plain.clone(), "web", "main", 2),
        ("branch", RepositorySpec { branch: text("next"), ..plain.clone() }, "web", "next", 3),
        ("named", RepositorySpec { name: text("front"), ..plain.clone() }, "front", "main", 2),
        ("placed", RepositorySpec { path: Some("src/deep/web".into()), ..plain.clone() }, "src/deep/web", "main", 2),
        ("shallow", RepositorySpec { depth: NonZeroU32::new(1), ..plain.clone() }, "web", "main", 1),
        ("by-url", RepositorySpec::clone_of(format!("file://{}", remote.url())), "web", "main", 2),
    ] {
        let directory = daemon.work().join(directory);
        fs::create_dir(&directory).unwrap();
        let (place, name) = (directory.join(place), repository.name());
        let session = daemon.session(&SessionSpec { directory, ..spec(&daemon, vec![repository]) }).await;
        let view = session.view().await;
        let [known] = &view.status.repos[..] else { panic!("{view:#?}") };
        assert_eq!((known.state, known.place.as_path(), &known.name), (RepositoryState::Ready, place.as_path(), &name));
        assert_eq!((known.branch.as_deref(), known.commit.as_deref()), (Some(branch), Some(&*remote.head(branch))));
        assert!(known.cloned_at.is_some());
        assert_eq!(
            condition(&view).map(|found| (found.status, &*found.reason)),
            Some((ConditionStatus::True, "AllReady"))
        );
        assert_eq!(git(&place, &["rev-list", "--count", "HEAD"]), commits.to_string(), "{}", place.display());
        assert_eq!(git(&place, &["status", "--porcelain"]), "");
        assert_eq!(leftovers(place.parent().unwrap()), Vec::<String>::new());
        let expected = [RepositoryState::Working, RepositoryState::Ready].map(|state| (RepositoryAction::Clone, state));
        assert_eq!(actions(&session), expected);
        let now = listed(&daemon, &session, &name).await.unwrap();
        assert_eq!((now.ahead, now.dirty), (Some(0), Some(false)));
        session.stop().await;
    }
}

/// A state in which an earlier session left a clone.
struct Left {
    name: &'static str,
    make: fn(&Path),
    /// Whether files are stashed.
    stashed: bool,
    /// Whether the commit of the head is kept as a reference.
    kept: bool,
}

#[tokio::test]
async fn a_new_session_resets_a_reused_clone_to_its_branch_and_loses_nothing() {
    let daemon = Daemon::start().await;
    let left = |name, make, stashed, kept| Left { name, make, stashed, kept };
    for Left { name, make, stashed, kept } in [
        left("behind", |_| {}, false, false),
        left("changed", |place| fs::write(place.join("file"), "mine\n").unwrap(), true, false),
        left("new-file", |place| fs::write(place.join("new"), "mine\n").unwrap(), true, false),
        left(
            "staged",
            |place| {
                fs::write(place.join("new"), "mine\n").unwrap();
                git(place, &["add", "new"]);
            },
            true,
            false,
        ),
        left("committed", |place| drop(commit(place, "mine", "mine\n")), false, true),
        left(
            "elsewhere",
            |place| {
                git(place, &["switch", "-qc", "mine"]);
                commit(place, "mine", "mine\n");
            },
            false,
            false,
        ),
        left(
            "detached",
            |place| {
                git(place, &["switch", "-q", "--detach"]);
                commit(place, "mine", "mine\n");
            },
            false,
            true,
        ),
        left("deleted", |place| fs::remove_file(place.join("file")).unwrap(), true, false),
    ] {
        let remote = Remote::new(&daemon, name);
        let place = remote.left_clone(&daemon, name);
        fs::write(place.join(".git/info/exclude"), "ignored\n").unwrap();
        fs::write(place.join("ignored"), "build\n").unwrap();
        make(&place);
        let mine = git(&place, &["rev-parse", "HEAD"]);
        let pushed = remote.push("main", "file", "third\n");
        let session = daemon.session(&spec(&daemon, vec![remote.spec()])).await;
        let known = session.view().await.status.repos[0].clone();
        assert_eq!((known.branch.as_deref(), known.commit.as_deref()), (Some("main"), Some(&*pushed)), "{name}");
        assert_eq!(git(&place, &["status", "--porcelain", "--branch"]), "## main...origin/main", "{name}");
        assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "third\n");
        assert_eq!(fs::read_to_string(place.join("ignored")).unwrap(), "build\n", "ignored files stay");
        let stashes = git(&place, &["stash", "list"]);
        assert_eq!(stashes.contains(session.id.as_str()), stashed, "{name}: {stashes:?}");
        let reference = kept.then(|| format!("refs/agentd/before/{}/{mine}", session.id));
        let references = git(&place, &["for-each-ref", "--format=%(refname)", "refs/agentd"]);
        assert_eq!(references, reference.unwrap_or_default(), "{name}");
        assert_eq!(known.message.is_some(), stashed || kept, "{name}: {:?}", known.message);
        assert_eq!(leftovers(&daemon.work()), Vec::<String>::new());
        if stashed {
            let files = git(&place, &["stash", "show", "--include-untracked", "--name-only"]);
            assert_eq!(files, if ["changed", "deleted"].contains(&name) { "file" } else { "new" }, "{name}");
        }
        session.stop().await;
    }
}

/// Puts something into a clone, and then something else into its remote, so that a reset would lose the first.
type Clash = fn(&Path, &Remote);

#[tokio::test]
async fn a_clone_with_work_that_git_cannot_put_aside_is_not_reset() {
    let daemon = Daemon::start().await;
    let table: [(&str, Clash, &str); 7] = [
        ("ignored", |place, _| fs::write(place.join("clash"), "precious\n").unwrap(), "clash"),
        (
            "ignored-directory",
            |place, _| {
                fs::create_dir(place.join("clash")).unwrap();
                fs::write(place.join("clash/x"), "precious\n").unwrap();
            },
            "clash/x",
        ),
        (
            "nested",
            |place, _| {
                git(place, &["init", "-q", "clash"]);
                commit(&place.join("clash"), "inner", "precious\n");
            },
            "clash/inner",
        ),
        (
            "status-fails",
            |place, _| {
                fs::write(place.join("file"), "precious\n").unwrap();
                git(place, &["config", "status.showUntrackedFiles", "garbage"]);
            },
            "file",
        ),
        (
            "filter",
            |place, _| {
                git(place, &["config", "filter.x.smudge", "touch ran; cat"]);
                fs::write(place.join("file"), "precious\n").unwrap();
            },
            "file",
        ),
        (
            "submodule",
            |place, remote| {
                git(place, &["-c", "protocol.file.allow=always", "submodule", "-q", "add", &remote.url(), "inside"]);
                git(place, &["commit", "-qm", "submodule"]);
                fs::write(place.join("inside/file"), "precious\n").unwrap();
            },
            "inside/file",
        ),
        (
            "bisect",
            |place, _| {
                git(place, &["bisect", "start"]);
                fs::write(place.join("file"), "precious\n").unwrap();
            },
            "file",
        ),
    ];
    for (name, make, precious) in table {
        let remote = Remote::new(&daemon, name);
        let place = remote.left_clone(&daemon, name);
        make(&place, &remote);
        if name.starts_with("ignored") {
            fs::write(place.join(".git/info/exclude"), "/clash\n").unwrap();
        }
        remote.push("main", "clash", "of the remote\n");
        let session = daemon.create(&spec(&daemon, vec![remote.spec()])).await;
        session.wait_for_phase(Phase::Failed).await;
        assert_eq!(fs::read_to_string(place.join(precious)).unwrap(), "precious\n", "{name}");
        let failed = failure(&session).unwrap();
        assert!(["RepositoryBusy", "ResetFailed"].contains(&failed.reason.as_str()), "{name}: {failed:?}");
        assert!(!place.join("ran").exists(), "no program of the clone runs");
        assert_eq!(leftovers(&daemon.work()), Vec::<String>::new(), "{name}");
    }
}

#[tokio::test]
async fn only_the_clone_of_a_removed_session_is_reset() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let first = daemon.session(&spec(&daemon, vec![remote.spec()])).await;
    let place = daemon.work().join("web");
    fs::write(place.join("file"), "mine\n").unwrap();
    // Another session in the same directory uses it too.
    let second = daemon.session(&spec(&daemon, vec![remote.spec()])).await;
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "mine\n");
    let known = second.view().await.status.repos[0].clone();
    assert!(known.cloned_at.is_none() && known.message.is_some(), "{known:?}");
    let path = second.path("/repos/web?force=true&wait=60");
    daemon.client.call("DELETE", &path, "").await.expect::<serde_json::Value>(202);
    assert!(place.join("file").exists(), "the first session made it");
    for session in [first, second] {
        assert_eq!(daemon.client.call("DELETE", &session.path("?force=true"), "").await.status.as_u16(), 204);
    }
    let third = daemon.session(&spec(&daemon, vec![remote.spec()])).await;
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "second\n");
    assert!(git(&place, &["stash", "list"]).contains(third.id.as_str()));
    // A removal would lose the stash of the reset.
    let refused = daemon.client.call("DELETE", &third.path("/repos/web"), "").await.problem();
    assert!(refused.detail.contains("stash"), "{refused:?}");
    assert_eq!(daemon.client.call("DELETE", &third.path("?force=true"), "").await.status.as_u16(), 204);
    // The user's own clone is used unchanged, and stays.
    fs::remove_dir_all(&place).unwrap();
    git(&daemon.work(), &["clone", "-q", &remote.url(), "web"]);
    fs::write(place.join("file"), "the user's\n").unwrap();
    let fourth = daemon.session(&spec(&daemon, vec![remote.spec()])).await;
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "the user's\n");
    let path = fourth.path("/repos/web?force=true&wait=60");
    daemon.client.call("DELETE", &path, "").await.expect::<serde_json::Value>(202);
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "the user's\n");
}

#[tokio::test]
async fn sessions_that_want_one_clone_at_the_same_moment_share_it() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let mut creating = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (client, body) = (daemon.client.clone(), spec(&daemon, vec![remote.spec()]));
        creating.spawn(async move {
            let view = client.post("/v1/sessions?wait=60", &body).await.expect::<agentd_api::session::SessionView>(202);
            (view.status.phase, view.status.repos[0].cloned_at.is_some())
        });
    }
    let ends = creating.join_all().await;
    assert!(ends.iter().all(|(phase, _)| *phase == Phase::Idle), "{ends:?}");
    assert_eq!(ends.iter().filter(|(_, made)| *made).count(), 1, "one of them made it: {ends:?}");
    assert_eq!(git(&daemon.work().join("web"), &["status", "--porcelain"]), "");
    assert_eq!(leftovers(&daemon.work()), Vec::<String>::new());
}

#[tokio::test]
async fn a_reused_clone_is_reset_to_the_requested_branch() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    git(&daemon.work(), &["clone", "-q", "--single-branch", &remote.url(), "web"]);
    git(&daemon.work().join("web"), &["config", "agentd.session", "gone"]);
    let wanted = RepositorySpec { branch: Some("next".to_owned()), ..remote.spec() };
    let session = daemon.session(&spec(&daemon, vec![wanted])).await;
    let place = daemon.work().join("web");
    assert_eq!(git(&place, &["status", "--porcelain", "--branch"]), "## next...origin/next");
    assert_eq!(git(&place, &["rev-parse", "HEAD"]), remote.head("next"));
    assert_eq!(actions(&session).last(), Some(&(RepositoryAction::Reset, RepositoryState::Ready)));
}

#[tokio::test]
async fn what_is_not_the_repository_fails_the_launch_and_stays() {
    let daemon = Daemon::start().await;
    let other = Remote::new(&daemon, "other");
    let table: [(&str, Make, &str); 5] = [
        ("file", |place, _| fs::write(place, "mine\n").unwrap(), "PathTaken"),
        (
            "directory",
            |place, _| {
                fs::create_dir(place).unwrap();
                fs::write(place.join("mine"), "").unwrap();
            },
            "PathTaken",
        ),
        ("link", |place, other| std::os::unix::fs::symlink(&other.own, place).unwrap(), "PathTaken"),
        (
            "foreign",
            |place, other| {
                let to = place.to_str().unwrap();
                git(place.parent().unwrap(), &["clone", "-q", &other.url(), to]);
            },
            "PathTaken",
        ),
        (
            "other-tree",
            |place, _| {
                git(place.parent().unwrap(), &["init", "-q", place.to_str().unwrap()]);
                git(place, &["config", "core.worktree", "/"]);
            },
            "PathTaken",
        ),
    ];
    for (name, make, reason) in table {
        let remote = Remote::new(&daemon, name);
        let place = daemon.work().join(name);
        make(&place, &other);
        let before = fs::symlink_metadata(&place).unwrap().modified().unwrap();
        let session = daemon.create(&spec(&daemon, vec![remote.spec()])).await;
        let view = session.wait_for_phase(Phase::Failed).await;
        let failed = failure(&session).unwrap();
        assert_eq!(failed.reason, reason, "{name}: {failed:?}");
        assert!(failed.message.contains(place.to_str().unwrap()), "{name}: {failed:?}");
        assert_eq!(condition(&view).map(|found| found.status), Some(ConditionStatus::False));
        assert_eq!(state(&view, name), Some(RepositoryState::Failed), "{name}");
        assert_eq!(fs::symlink_metadata(&place).unwrap().modified().unwrap(), before, "{name} is unchanged");
    }
}

#[tokio::test]
async fn a_merge_in_progress_is_not_reset() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let place = remote.left_clone(&daemon, "web");
    commit(&place, "file", "mine\n");
    git(&place, &["switch", "-qc", "side", "HEAD~1"]);
    commit(&place, "file", "other\n");
    let identity = ["-c", "user.name=kim", "-c", "user.email=kim@example.com"];
    let merge = std::process::Command::new("git").args(identity).args(["merge", "main"]).current_dir(&place).output();
    let merge = merge.unwrap();
    assert!(!merge.status.success(), "it has a conflict");
    let session = daemon.create(&spec(&daemon, vec![remote.spec()])).await;
    session.wait_for_phase(Phase::Failed).await;
    assert_eq!(failure(&session).unwrap().reason, "RepositoryBusy");
    assert!(place.join(".git/MERGE_HEAD").exists());
    assert!(fs::read_to_string(place.join("file")).unwrap().contains("<<<<<<<"));
    // The person ends the merge, and the next launch resets the clone.
    git(&place, &["merge", "--abort"]);
    session.resume().await;
    assert_eq!(git(&place, &["rev-parse", "HEAD"]), remote.head("main"));
}

#[tokio::test]
async fn a_continuation_keeps_everything_and_clones_what_was_added_or_is_gone() {
    let daemon = Daemon::start().await;
    let (web, gone, added) = (Remote::new(&daemon, "web"), Remote::new(&daemon, "gone"), Remote::new(&daemon, "added"));
    let session = daemon.session(&spec(&daemon, vec![web.spec(), gone.spec()])).await;
    let place = daemon.work().join("web");
    let mine = commit(&place, "mine", "mine\n");
    git(&place, &["switch", "-qc", "work"]);
    fs::write(place.join("file"), "edited\n").unwrap();
    fs::write(place.join("new"), "new\n").unwrap();
    web.push("main", "file", "third\n");
    session.stop().await;
    fs::remove_dir_all(daemon.work().join("gone")).unwrap();
    // The server has moved, and a repository is added.
    let moved = daemon.root().join("moved.git");
    fs::rename(&web.bare, &moved).unwrap();
    let repos = json!([{ "url": moved, "name": "web" }, gone.spec(), added.spec()]);
    daemon.client.patch(&session.path(""), &json!({ "repos": repos }), None).await.expect::<serde_json::Value>(200);
    let view = session.resume().await;
    assert_eq!(git(&place, &["rev-parse", "main", "HEAD"]), format!("{mine}\n{mine}"));
    assert_eq!(git(&place, &["branch", "--show-current"]), "work");
    assert_eq!(git(&place, &["status", "--porcelain"]), " M file\n?? new");
    assert_eq!(git(&place, &["stash", "list"]), "");
    assert_eq!(git(&place, &["remote", "get-url", "origin"]), moved.to_str().unwrap());
    for name in ["gone", "added"] {
        assert_eq!(git(&daemon.work().join(name), &["branch", "--show-current"]), "main");
        assert_eq!(state(&view, name), Some(RepositoryState::Ready));
    }
    let now = listed(&daemon, &session, "web").await.unwrap();
    assert_eq!((now.ahead, now.dirty, now.branch.as_deref()), (Some(1), Some(true), Some("work")));
}

#[tokio::test]
async fn a_session_whose_repository_cannot_be_cloned_starts_degraded_or_after_the_cause_is_gone() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let away = remote.bare.with_extension("away");
    fs::rename(&remote.bare, &away).unwrap();
    let session = daemon.create(&spec(&daemon, vec![remote.spec()])).await;
    session.wait_for_phase(Phase::Failed).await;
    assert_eq!(failure(&session).unwrap().reason, "CloneFailed");
    assert_eq!(leftovers(&daemon.work()), Vec::<String>::new());
    let path = session.path("/resume?wait=60&degraded=true");
    daemon.client.call("POST", &path, "").await.expect::<serde_json::Value>(202);
    let view = session.wait_for_phase(Phase::Idle).await;
    assert_eq!(view.status.degraded[0].name, "web");
    assert!(session.turn("say here").await.text.contains("here"));
    session.stop().await;
    fs::rename(&away, &remote.bare).unwrap();
    let view = session.resume().await;
    assert_eq!(state(&view, "web"), Some(RepositoryState::Ready));
    assert_eq!(git(&daemon.work().join("web"), &["rev-parse", "HEAD"]), remote.head("main"));
}

#[tokio::test]
async fn an_invalid_repository_is_refused_before_anything_is_created() {
    let daemon = Daemon::start().await;
    let token = agentd_keeper::tokens::examples().next().unwrap();
    for (repos, words) in [
        (json!([{}]), "either a `url`"),
        (json!([{ "url": "ext::sh -c id", "name": "x" }]), "cannot clone"),
        (json!([{ "url": "https://kim:hunter2@host/web" }]), "password"),
        (json!([{ "url": "https://hunter2@host/web" }]), "names a user"),
        (json!([{ "url": "/a/web", "path": "a\u{0}b" }]), "control character"),
        (json!([{ "url": format!("https://{token}@host/web") }]), "token"),
        (json!([{ "url": "/a/web" }, { "url": "/b/web" }]), "name \"web\""),
        (json!([{ "url": "/a/web", "path": "../web" }]), "lead below it"),
        (json!([{ "url": "https://host/web", "secret": "undeclared" }]), "not declared"),
        (json!([{ "path": "web", "worktree": true }]), "absolute"),
        (json!([{ "url": "/a/web", "colour": "red" }]), "colour"),
    ] {
        let mut body = serde_json::to_value(daemon.scripted(&[])).unwrap();
        body["repos"] = repos.clone();
        let refused = daemon.client.post("/v1/sessions", &body).await;
        let problem = refused.problem();
        assert_eq!(problem.status, 400, "{repos}: {problem:?}");
        assert!(problem.detail.contains(words), "{repos}: {problem:?}");
        assert!(!format!("{problem:?}").contains("hunter2") && !problem.detail.contains(&token), "{problem:?}");
    }
    assert_eq!(daemon.holders("hunter2"), Vec::<std::path::PathBuf>::new());
}
