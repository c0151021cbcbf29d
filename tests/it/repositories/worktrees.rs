//! Worktrees of local repositories, for parallel sessions of one repository.

use std::fs;
use std::path::Path;

use agentd_api::repository::{RepositoryList, RepositorySpec, RepositoryState};
use agentd_api::session::{Phase, SessionSpec};
use agentd_api::spec::Workspace;
use serde_json::Value;
use tokio::task::JoinSet;

use super::{Remote, commit, condition, git, leftovers, spec, state, wait_for_state};
use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session};

fn worktree(of: &Path, branch: Option<&str>) -> RepositorySpec {
    RepositorySpec { branch: branch.map(str::to_owned), ..RepositorySpec::worktree_of(of) }
}

/// Builds the spec of a session that works in a worktree.
fn inside(daemon: &Daemon, repository: RepositorySpec) -> SessionSpec {
    let directory = repository.place();
    let base = spec(daemon, vec![repository]);
    SessionSpec { workspace: Some(Workspace::New), directory, ..base }
}

fn branches(of: &Path) -> String {
    git(of, &["branch", "--format=%(refname:short)"]).replace('\n', " ")
}

fn trees(of: &Path) -> usize {
    git(of, &["worktree", "list"]).lines().count()
}

async fn remove(daemon: &Daemon, session: &Session) {
    let removed = daemon.client.call("DELETE", &session.path("?force=true"), "").await;
    assert_eq!(removed.status.as_u16(), 204, "{removed:?}");
}

#[tokio::test]
async fn a_session_works_in_a_worktree_that_is_removed_with_it() {
    let daemon = Daemon::start().await;
    let own = Remote::new(&daemon, "app").own;
    let session = daemon.session(&inside(&daemon, worktree(&own, None))).await;
    let place = daemon.state().join("workspaces").join(session.id.as_str()).join("own-app");
    assert_eq!(session.turn("cwd").await.text, place.canonicalize().unwrap().display().to_string());
    assert_eq!(branches(&own), format!("agentd/{} main next", session.id));
    let known = session.view().await.status.repos[0].clone();
    assert_eq!((known.worktree_of.as_deref(), known.state), (Some(own.as_path()), RepositoryState::Ready));
    session.stop().await;
    session.resume().await;
    remove(&daemon, &session).await;
    assert!(!place.exists());
    assert_eq!((trees(&own), branches(&own).as_str()), (1, "main next"), "the unused branch is removed too");
    assert_eq!(leftovers(&daemon.state().join("workspaces")), Vec::<String>::new());
}

#[tokio::test]
async fn work_in_a_worktree_outlives_its_session() {
    let daemon = Daemon::start().await;
    let own = Remote::new(&daemon, "app").own;
    let session = daemon.session(&inside(&daemon, worktree(&own, None))).await;
    let place = session.view().await.status.repos[0].place.clone();
    let mine = commit(&place, "mine", "mine\n");
    fs::write(place.join("new"), "new\n").unwrap();
    let said = ctl(&daemon, &["rm", "--force", session.id.as_str()]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains(&format!("kept {}", place.display())), "{said:?}");
    assert_eq!(fs::read_to_string(place.join("new")).unwrap(), "new\n");
    // Another session: without new files the tree goes, and its branch keeps the commit.
    let session = daemon.session(&inside(&daemon, worktree(&own, None))).await;
    let place = session.view().await.status.repos[0].place.clone();
    let other = commit(&place, "mine", "other\n");
    remove(&daemon, &session).await;
    assert!(!place.exists());
    assert_eq!(git(&own, &["rev-parse", &format!("agentd/{}", session.id)]), other);
    assert_eq!(git(&own, &["branch", "--contains", &mine]).lines().count(), 1);
}

#[tokio::test]
async fn the_branch_of_a_worktree_is_used_or_created() {
    let daemon = Daemon::start().await;
    let own = Remote::new(&daemon, "app").own;
    let session = daemon.session(&inside(&daemon, worktree(&own, Some("next")))).await;
    assert!(session.view().await.status.repos[0].place.join("only-next").exists());
    let other = daemon.session(&inside(&daemon, worktree(&own, Some("feature/x")))).await;
    assert_eq!(branches(&own), "feature/x main next");
    // A branch has one worktree.
    let third = daemon.create(&inside(&daemon, worktree(&own, Some("next")))).await;
    let view = third.wait_for_phase(Phase::Failed).await;
    let found = condition(&view).unwrap();
    assert_eq!(found.reason, "WorktreeFailed");
    assert!(found.message.contains("next"), "{found:?}");
    remove(&daemon, &other).await;
    assert_eq!(branches(&own), "feature/x main next", "a branch that was named stays");
    let none = daemon.create(&inside(&daemon, worktree(&daemon.work(), None))).await;
    let view = none.wait_for_phase(Phase::Failed).await;
    assert_eq!(condition(&view).map(|found| &*found.reason), Some("NoSuchRepository"));
}

#[tokio::test]
async fn ten_sessions_of_one_repository_work_side_by_side() {
    let daemon = Daemon::start().await;
    let own = Remote::new(&daemon, "app").own;
    let mut creating = JoinSet::new();
    for _ in 0..10 {
        let body = inside(&daemon, worktree(&own, None));
        let client = daemon.client.clone();
        creating.spawn(async move {
            client.post("/v1/sessions?wait=60", &body).await.expect::<agentd_api::session::SessionView>(202).id
        });
    }
    let ids = creating.join_all().await;
    let sessions: Vec<Session> =
        ids.into_iter().map(|id| Session::new(id, daemon.client.clone(), daemon.state())).collect();
    let committing = "do echo $PPID > mine && git -c user.name=k -c user.email=k@k add mine && \
        git -c user.name=k -c user.email=k@k commit -qm mine && git rev-parse --abbrev-ref HEAD";
    let turns: Vec<_> = futures_of(&sessions, committing).await;
    for (session, text) in sessions.iter().zip(turns) {
        let view = session.view().await;
        assert_eq!(state(&view, "own-app"), Some(RepositoryState::Ready), "{view:#?}");
        assert!(text.contains(&format!("agentd/{}", session.id)), "{text}");
        let branch = format!("agentd/{}", session.id);
        assert_eq!(git(&own, &["rev-list", "--count", &format!("main..{branch}")]), "1");
    }
    assert_eq!(trees(&own), 11);
    let mut removing = JoinSet::new();
    for session in &sessions {
        let (client, path) = (daemon.client.clone(), session.path("?force=true"));
        removing.spawn(async move { client.call("DELETE", &path, "").await.status.as_u16() });
    }
    assert_eq!(removing.join_all().await, [204; 10]);
    assert_eq!(trees(&own), 1, "{}", git(&own, &["worktree", "list"]));
    assert_eq!(fs::read_dir(daemon.state().join("workspaces")).unwrap().count(), 0);
    assert_eq!(git(&own, &["status", "--porcelain"]), "");
    assert_eq!(git(&own, &["branch", "--list", "agentd/*"]).lines().count(), 10, "the branches have the commits");
}

/// Sends a prompt to all sessions at once, and returns what their turns contain.
async fn futures_of(sessions: &[Session], prompt: &str) -> Vec<String> {
    let mut accepted = Vec::new();
    for session in sessions {
        accepted.push(session.prompt(prompt).await);
    }
    let mut texts = Vec::new();
    for (session, accepted) in sessions.iter().zip(&accepted) {
        texts.push(format!("{:?}", session.end_of(accepted).await.events));
    }
    texts
}

#[tokio::test]
async fn a_worktree_is_added_to_and_removed_from_a_running_session() {
    let daemon = Daemon::start().await;
    let own = Remote::new(&daemon, "app").own;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let path = session.path("/repos?wait=60");
    let list: RepositoryList = daemon.client.post(&path, &worktree(&own, None)).await.expect(202);
    assert_eq!(list.repos[0].state, RepositoryState::Ready);
    let place = daemon.work().join("own-app");
    commit(&place, "mine", "mine\n");
    // The commit is in a branch of the repository, so nothing would be lost.
    daemon.client.call("DELETE", &session.path("/repos/own-app?wait=60"), "").await.expect::<Value>(202);
    assert!(!place.exists());
    assert_eq!(trees(&own), 1);
    let list: RepositoryList = daemon.client.post(&path, &worktree(&own, None)).await.expect(202);
    assert_eq!(list.repos[0].state, RepositoryState::Ready, "its branch is used again: {list:?}");
    assert!(place.join("mine").exists());
    git(&place, &["switch", "-q", "--detach"]);
    commit(&place, "lost", "lost\n");
    let refused = daemon.client.call("DELETE", &session.path("/repos/own-app"), "").await;
    assert_eq!(refused.status.as_u16(), 409, "no branch has the commit: {refused:?}");
}

#[tokio::test]
async fn a_worktree_is_requested_on_the_command_line() {
    let daemon = Daemon::start().await;
    let own = Remote::new(&daemon, "app").own;
    let flag = format!("--worktree={}#fix", own.display());
    let said = ctl(&daemon, &["new", "--ready", "60s", "--agent", "scripted", "--name", "fix", &flag]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let view = daemon.client.view("fix").await;
    assert_eq!(view.status.repos[0].branch.as_deref(), Some("fix"));
    assert_eq!(view.spec.workspace, Some(Workspace::New));
    assert!(view.spec.directory.ends_with("own-app") && view.spec.directory.join("file").exists());
    let said = ctl(&daemon, &["new", "--agent", "scripted", "--worktree"]).await;
    assert_eq!(said.status, Some(2), "the current directory is in no repository: {said:?}");
}

/// Does something to the worktree of a session, so that its removal would lose work.
type Harm = fn(&Path, &Path);

#[tokio::test]
async fn a_tree_that_is_no_longer_the_sessions_worktree_outlives_it() {
    let daemon = Daemon::start().await;
    let table: [(&str, Harm); 4] = [
        ("plain", |place, _| fs::remove_file(place.join(".git")).unwrap()),
        ("clone", |place, own| {
            fs::remove_dir_all(place).unwrap();
            git(place.parent().unwrap(), &["clone", "-q", own.to_str().unwrap(), place.to_str().unwrap()]);
            commit(place, "mine", "mine\n");
        }),
        ("broken-reference", |place, own| {
            git(place, &["switch", "-q", "--detach"]);
            commit(place, "mine", "mine\n");
            fs::write(own.join(".git/refs/heads/broken"), "bad\n").unwrap();
        }),
        ("further-repository", |place, _| {
            let other = place.parent().unwrap().join("other");
            fs::create_dir(&other).unwrap();
            git(&other, &["init", "-q"]);
            commit(&other, "mine", "mine\n");
        }),
    ];
    for (name, harm) in table {
        let own = Remote::new(&daemon, name).own;
        let session = daemon.session(&inside(&daemon, worktree(&own, None))).await;
        let place = session.view().await.status.repos[0].place.clone();
        fs::write(place.join("precious"), "mine\n").unwrap();
        git(&place, &["add", "precious"]);
        git(&place, &["commit", "-qm", "precious"]);
        harm(&place, &own);
        remove(&daemon, &session).await;
        assert!(place.exists(), "{name}");
        if name == "further-repository" {
            assert!(place.parent().unwrap().join("other/mine").exists());
        }
    }
}

#[tokio::test]
async fn a_worktree_goes_with_its_session_although_its_workspace_or_its_place_is_gone() {
    let daemon = Daemon::start().await;
    let own = Remote::new(&daemon, "app").own;
    for whole in [true, false] {
        let session = daemon.session(&inside(&daemon, worktree(&own, None))).await;
        let place = session.view().await.status.repos[0].place.clone();
        session.stop().await;
        fs::remove_dir_all(if whole { place.parent().unwrap() } else { &place }).unwrap();
        remove(&daemon, &session).await;
        assert_eq!((trees(&own), branches(&own).as_str()), (1, "main next"), "{whole}");
        assert_eq!(fs::read_dir(daemon.state().join("workspaces")).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn directories_that_nobody_can_write_to_are_removed_too() {
    use std::os::unix::fs::PermissionsExt as _;
    let daemon = Daemon::start().await;
    let own = Remote::new(&daemon, "app").own;
    fs::write(own.join(".git/info/exclude"), "/cache\n").unwrap();
    let session = daemon.session(&inside(&daemon, worktree(&own, None))).await;
    let cache = session.view().await.status.repos[0].place.join("cache/x");
    fs::create_dir_all(&cache).unwrap();
    fs::write(cache.join("file"), "").unwrap();
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o500)).unwrap();
    remove(&daemon, &session).await;
    assert_eq!(fs::read_dir(daemon.state().join("workspaces")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_session_that_continues_another_one_works_on_in_its_trees() {
    let daemon = Daemon::start().await;
    let local = Remote::new(&daemon, "app").own;
    let remote = Remote::new(&daemon, "web");
    let repos = vec![RepositorySpec::worktree_of(&local), remote.spec()];
    let parent = daemon.session(&SessionSpec { repos: repos.clone(), ..daemon.scripted(&["--fork"]) }).await;
    let tree = parent.view().await.status.repos[0].place.clone();
    let clone = parent.view().await.status.repos[1].place.clone();
    fs::write(tree.join("draft"), "in work\n").unwrap();
    let own = commit(&clone, "own", "own\n");
    let child = SessionSpec { parent: Some(parent.id.as_str().parse().unwrap()), repos, ..SessionSpec::new("") };
    let child = daemon.session(&child).await;
    for name in [tree.file_name().unwrap().to_str().unwrap(), "web"] {
        wait_for_state(&child, name, RepositoryState::Ready).await;
    }
    assert_eq!(fs::read_to_string(tree.join("draft")).unwrap(), "in work\n");
    assert_eq!(git(&clone, &["rev-parse", "HEAD"]), own);
    // The parent's removal leaves the trees to the child, and a session that comes later does not reset them.
    remove(&daemon, &parent).await;
    assert!(tree.join("draft").exists());
    let later = daemon.session(&SessionSpec { repos: vec![remote.spec()], ..daemon.scripted(&[]) }).await;
    wait_for_state(&later, "web", RepositoryState::Ready).await;
    assert_eq!(git(&clone, &["rev-parse", "HEAD"]), own);
    // The child's removal removes the clean tree, with the branch that agentd chose.
    fs::remove_file(tree.join("draft")).unwrap();
    assert_eq!(branches(&local), format!("agentd/{} main next", parent.id));
    remove(&daemon, &child).await;
    assert!(!tree.exists());
    assert_eq!((trees(&local), branches(&local).as_str()), (1, "main next"));
    assert_eq!(git(&clone, &["rev-parse", "HEAD"]), own);
}
