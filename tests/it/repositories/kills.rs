//! Kills at each step of the work on repositories: afterwards everything is as without the kill.
//!
//! The points are read from the binary, as in the fault matrix.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use agentd_api::repository::{RepositoryList, RepositorySpec, RepositoryState};
use agentd_api::session::{ConditionStatus, Phase, SessionSpec, SessionView};
use agentd_api::spec::Workspace;
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::{Remote, commit, condition, git, leftovers, spec, state};
use crate::faults::{passed, set};
use crate::harness::{Daemon, Session, paths, process, within};

/// Returns the points of the daemon's work on repositories.
fn points() -> Vec<String> {
    let output = Command::new(paths::agentd()).arg("fault-points").output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().filter(|name| name.starts_with("daemon.repository.")).map(str::to_owned).collect()
}

/// The work in progress when the kill comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// A new session clones a repository.
    Clone,
    /// A new session resets a clone with work in it.
    Reset,
    /// A new session adds a worktree.
    Worktree,
    /// A repository is added to a running session.
    Add,
    /// A repository is removed from a running session.
    Remove,
    /// A worktree is removed from a running session.
    RemoveWorktree,
}

const WORKS: [Work; 6] = [Work::Clone, Work::Reset, Work::Worktree, Work::Add, Work::Remove, Work::RemoveWorktree];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Daemon,
    Keeper,
    Agent,
    /// All processes of git, by a fault in their place: the step fails.
    Step,
}

/// Waits until a point is passed, kills there, and lets the work continue.
async fn strike(daemon: &mut Daemon, point: &str, victim: Victim) {
    let hit = passed(daemon, point).await;
    let send = |pids: Vec<u32>| pids.into_iter().for_each(|pid| _ = kill(process::pid(pid), Signal::SIGKILL));
    match victim {
        Victim::Daemon => {
            daemon.kill9();
            fs::remove_file(&hit).unwrap();
            daemon.run().await;
        }
        Victim::Keeper => send(process::running(daemon.root(), "agentd-keeper", Some("hold"))),
        Victim::Agent => send(process::running(daemon.root(), "scripted-agent", Some("--pidfile"))),
        Victim::Step => {}
    }
    let _ = fs::remove_file(&hit);
}

/// Checks the end of the work.
struct End<'a> {
    remote: &'a Remote,
    place: PathBuf,
}

impl End<'_> {
    fn check(&self, work: Work, session: &Session, view: &SessionView) {
        let Self { remote, place } = self;
        assert_eq!(leftovers(place.parent().unwrap()), Vec::<String>::new());
        match work {
            Work::Remove | Work::RemoveWorktree => {
                assert!(view.status.repos.is_empty() && !place.exists(), "{view:#?}");
                assert_eq!(git(&remote.own, &["worktree", "list"]).lines().count(), 1);
            }
            _ => {
                assert_eq!(view.status.repos[0].state, RepositoryState::Ready, "{view:#?}");
                assert!(view.status.repos[0].cloned_at.is_some(), "{view:#?}");
                assert_eq!(git(place, &["status", "--porcelain"]), "");
                assert_eq!(git(place, &["rev-parse", "HEAD"]), remote.head("main"));
                assert_eq!(condition(view).map(|found| found.status), Some(ConditionStatus::True));
            }
        }
        if work == Work::Reset {
            let stash = git(place, &["show", "stash@{0}:file"]);
            assert_eq!(stash, "mine", "the changes are in the stash");
            assert_eq!(git(place, &["stash", "list"]).lines().count(), 1);
            let kept =
                git(place, &["for-each-ref", "--format=%(refname)", &format!("refs/agentd/before/{}", session.id)]);
            let kept = git(place, &["show", &format!("{kept}:commit")]);
            assert_eq!(kept, "mine");
        }
    }
}

/// Does one work with one kill.
async fn one(work: Work, point: &str, victim: Victim) {
    let mut daemon = Daemon::prepare();
    // The agent that is killed comes back by itself.
    daemon.configure(|config| {
        config.replace("restart = \"never\"", "restart = \"on-failure\"\nrestart_first = \"10ms\"")
    });
    fs::create_dir_all(daemon.state().join("faults")).unwrap();
    daemon.run().await;
    let remote = Remote::new(&daemon, "web");
    let tree = RepositorySpec { name: Some("web".to_owned()), ..RepositorySpec::worktree_of(&remote.own) };
    let wanted = match work {
        Work::Worktree | Work::RemoveWorktree => tree,
        _ => remote.spec(),
    };
    let is_launch = matches!(work, Work::Clone | Work::Reset | Work::Worktree);
    let base = match work {
        Work::Add | Work::Reset | Work::Clone => spec(&daemon, vec![wanted.clone()]),
        _ => SessionSpec {
            workspace: Some(Workspace::New),
            directory: PathBuf::new(),
            ..spec(&daemon, vec![wanted.clone()])
        },
    };
    if work == Work::Reset {
        let place = remote.left_clone(&daemon, "web");
        commit(&place, "commit", "mine\n");
        fs::write(place.join("file"), "mine\n").unwrap();
    }
    let arm = |daemon: &Daemon| {
        let order = if victim == Victim::Step { "fail" } else { "pause" };
        set(&daemon.state().join("faults").join(point), order);
    };
    let (session, place);
    if is_launch {
        arm(&daemon);
        session = daemon.create(&base).await;
        strike(&mut daemon, point, victim).await;
        if victim == Victim::Step {
            session.wait_for_phase(Phase::Failed).await;
            session.resume().await;
        }
        place = base.workspace.map_or_else(|| daemon.work(), |_| session_workspace(&daemon, &session)).join("web");
    } else {
        let first = if work == Work::Add { SessionSpec { repos: Vec::new(), ..base.clone() } } else { base.clone() };
        session = daemon.session(&first).await;
        place = base.workspace.map_or_else(|| daemon.work(), |_| session_workspace(&daemon, &session)).join("web");
        arm(&daemon);
        let path = session.path("");
        let repos = if work == Work::Add { json!([wanted]) } else { json!([]) };
        daemon.client.patch(&path, &json!({ "repos": repos }), None).await.expect::<serde_json::Value>(200);
        strike(&mut daemon, point, victim).await;
    }
    let is_done = |view: &SessionView| {
        let is_settled = match work {
            Work::Remove | Work::RemoveWorktree => view.status.repos.is_empty(),
            _ => state(view, "web") == Some(RepositoryState::Ready),
        };
        is_settled
            && view.status.phase == Phase::Idle
            // After a launch without repositories there is no condition.
            && condition(view).is_none_or(|found| found.status == ConditionStatus::True)
    };
    let view = session.wait_for(&format!("{work:?} {point} {victim:?}"), is_done).await;
    End { remote: &remote, place }.check(work, &session, &view);
    // The session works.
    assert!(session.turn("say on").await.text.contains("on"));
    let list: RepositoryList = daemon.client.get(&session.path("/repos")).await.expect(200);
    assert!(list.repos.iter().all(|view| view.dirty == Some(false)), "{list:?}");
}

fn session_workspace(daemon: &Daemon, session: &Session) -> PathBuf {
    daemon.state().join("workspaces").join(session.id.as_str())
}

#[tokio::test]
async fn a_kill_at_any_step_changes_nothing_about_the_end() {
    let points = points();
    assert!(points.len() >= 3, "{points:?}");
    for work in WORKS {
        for point in &points {
            // Only repositories that are made under a temporary name pass this point.
            if point == "daemon.repository.made" && !matches!(work, Work::Clone | Work::Worktree | Work::Add) {
                continue;
            }
            let victims = match work {
                Work::Clone | Work::Reset | Work::Worktree => &[Victim::Daemon, Victim::Step][..],
                _ => &[Victim::Daemon, Victim::Keeper, Victim::Agent, Victim::Step],
            };
            for victim in victims {
                Box::pin(one(work, point, *victim)).await;
            }
        }
    }
}

/// Writes a program `git` that waits at one command, until a file exists.
fn slow_git(daemon: &Daemon, command: &str) -> PathBuf {
    let hook = daemon.home().join(".gitconfig");
    let waiting = daemon.root().join("waiting");
    let script = format!("touch '{}'; while test -e '{}'; do sleep 0.01; done", waiting.display(), waiting.display());
    let filter = format!(
        "[filter \"slow\"]\n\t{command} = \"{script}; cat\"\n[core]\n\tattributesFile = {}\n",
        daemon.home().join("attributes").display()
    );
    fs::write(hook, filter).unwrap();
    fs::write(daemon.home().join("attributes"), "* filter=slow\n").unwrap();
    waiting
}

#[tokio::test]
async fn git_that_is_killed_in_the_middle_of_a_checkout_leaves_no_half_of_it() {
    for (work, is_resumed) in
        [(Work::Clone, true), (Work::Worktree, true), (Work::Clone, false), (Work::Worktree, false)]
    {
        let daemon = Daemon::start().await;
        let remote = Remote::new(&daemon, "web");
        let waiting = slow_git(&daemon, "smudge");
        let tree = RepositorySpec { name: Some("web".to_owned()), ..RepositorySpec::worktree_of(&remote.own) };
        let wanted = if work == Work::Clone { remote.spec() } else { tree };
        let session = daemon.create(&spec(&daemon, vec![wanted])).await;
        within("git checks files out", async {
            while !waiting.exists() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
        let place = daemon.work().join("web");
        assert!(!place.exists(), "it has no final name before it is complete");
        for pid in process::running(daemon.root(), "git", None) {
            let _ = kill(process::pid(pid), Signal::SIGKILL);
        }
        session.wait_for_phase(Phase::Failed).await;
        assert!(!place.exists());
        fs::remove_file(daemon.home().join(".gitconfig")).unwrap();
        let _ = fs::remove_file(&waiting);
        if is_resumed {
            session.resume().await;
            assert_eq!(git(&place, &["rev-parse", "HEAD"]), remote.head("main"));
            assert_eq!(git(&place, &["status", "--porcelain"]), "");
        } else {
            assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status.as_u16(), 204);
            assert_eq!(fs::read_dir(daemon.work()).unwrap().count(), 0);
        }
        assert_eq!(leftovers(&daemon.work()), Vec::<String>::new());
        let has_tree = is_resumed && work == Work::Worktree;
        assert_eq!(git(&remote.own, &["worktree", "list"]).lines().count(), if has_tree { 2 } else { 1 });
    }
}
