//! Repositories that are added and removed while an agent runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::Code;
use agentd_api::repository::{RepositoryList, RepositorySpec, RepositoryState};
use agentd_api::session::{ConditionStatus, Phase, SessionSpec, SessionView};
use serde_json::{Value, json};

use super::{Remote, commit, condition, git, leftovers, listed, spec, state, wait_for_state};
use crate::harness::ctl::ctl;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, until};

/// Does unsaved work in a repository.
type Make = fn(&Path);

async fn add(daemon: &Daemon, session: &Session, query: &str, repository: &RepositorySpec) -> RepositoryList {
    daemon.client.post(&session.path(&format!("/repos{query}")), repository).await.expect(202)
}

#[tokio::test]
async fn a_repository_that_is_added_in_a_turn_is_there_in_the_next() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(condition(&session.view().await), None, "without repositories there is no condition");
    let (place, go) = (daemon.work().join("web"), daemon.root().join("go"));
    let first = session.prompt(&format!("do until test -e {}; do sleep 0.01; done", quoted(&go))).await;
    session.wait_for_phase(Phase::Busy).await;
    add(&daemon, &session, "", &remote.spec()).await;
    let second = session.prompt("do cat web/file").await;
    let view = session.wait_for("the condition", |view| condition(view).is_some()).await;
    assert_eq!(state(&view, "web"), Some(RepositoryState::Pending), "it waits for the end of the turn");
    assert!(!place.exists());
    fs::write(go, "").unwrap();
    session.end_of(&first).await;
    let ended = Instant::now();
    let turn = session.end_of(&second).await;
    assert!(ended.elapsed() < Duration::from_secs(3), "{:?}", ended.elapsed());
    assert_eq!(turn.ended.stop_reason.as_deref(), Some("end_turn"));
    let updates = format!("{:?}", turn.events);
    assert!(updates.contains("second"), "the agent read the file: {updates}");
    let view = session.view().await;
    assert_eq!(view.generation, 2);
    assert_eq!(condition(&view).map(|found| &*found.reason), Some("AllReady"));
    // A repeated request makes no further change.
    add(&daemon, &session, "?wait=60", &remote.spec()).await;
    assert_eq!(session.view().await.generation, 2);
    let other = RepositorySpec { branch: Some("next".to_owned()), ..remote.spec() };
    let refused = daemon.client.post(&session.path("/repos"), &other).await.problem();
    assert_eq!(refused.code, Code::NameTaken);
}

#[tokio::test]
async fn with_now_a_repository_is_added_and_removed_in_a_turn() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.prompt("hang").await;
    session.wait_for_phase(Phase::Busy).await;
    let list = add(&daemon, &session, "?now=true&wait=60", &remote.spec()).await;
    assert_eq!(list.repos[0].state, RepositoryState::Ready);
    assert_eq!(session.view().await.status.phase, Phase::Busy);
    let place = daemon.work().join("web");
    assert!(place.join("file").exists());
    let path = session.path("/repos/web?now=true&wait=60");
    let list: RepositoryList = daemon.client.call("DELETE", &path, "").await.expect(202);
    assert_eq!((list.repos.len(), place.exists()), (0, false));
    assert_eq!(session.view().await.status.phase, Phase::Busy);
}

#[tokio::test]
async fn work_is_not_lost_by_a_removal_that_is_not_forced() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let table: [(&str, Make, &str); 5] = [
        ("changed", |place| fs::write(place.join("file"), "mine\n").unwrap(), "uncommitted"),
        ("new", |place| fs::write(place.join("new"), "mine\n").unwrap(), "uncommitted"),
        ("committed", |place| drop(commit(place, "mine", "mine\n")), "1 commit"),
        (
            "branch",
            |place| {
                git(place, &["switch", "-qc", "b"]);
                commit(place, "mine", "mine\n");
                git(place, &["switch", "-q", "main"]);
            },
            "1 commit",
        ),
        (
            "stash",
            |place| {
                fs::write(place.join("file"), "mine\n").unwrap();
                git(place, &["stash", "-q"]);
            },
            "stash",
        ),
    ];
    for (name, make, words) in table {
        let wanted = RepositorySpec { name: Some(name.to_owned()), ..remote.spec() };
        let session = daemon.session(&spec(&daemon, vec![wanted])).await;
        let place = daemon.work().join(name);
        make(&place);
        let path = session.path(&format!("/repos/{name}"));
        let refused = daemon.client.call("DELETE", &path, "").await.problem();
        assert_eq!(refused.code, Code::RepositoryHasWork, "{name}");
        assert!(refused.detail.contains(words), "{name}: {refused:?}");
        let dropped = daemon.client.patch(&session.path(""), &json!({ "repos": [] }), None).await.problem();
        assert_eq!(dropped.code, Code::RepositoryHasWork, "{name}");
        assert_eq!(session.view().await.generation, 1);
        let forced = daemon.client.call("DELETE", &format!("{path}?force=true&wait=60"), "").await;
        assert_eq!(forced.expect::<RepositoryList>(202).repos, []);
        assert!(!place.exists(), "{name}");
        session.stop().await;
    }
    assert_eq!(leftovers(&daemon.work()), Vec::<String>::new());
}

#[tokio::test]
async fn work_that_is_done_after_the_request_of_a_removal_stays_too() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let session = daemon.session(&spec(&daemon, vec![remote.spec()])).await;
    let go = daemon.root().join("go");
    let turn = session.prompt(&format!("do until test -e {}; do sleep 0.01; done", quoted(&go))).await;
    session.wait_for_phase(Phase::Busy).await;
    daemon.client.call("DELETE", &session.path("/repos/web"), "").await.expect::<Value>(202);
    let place = daemon.work().join("web");
    fs::write(place.join("new"), "mine\n").unwrap();
    fs::write(go, "").unwrap();
    session.end_of(&turn).await;
    wait_for_state(&session, "web", RepositoryState::Retained).await;
    let is_told = |view: &SessionView| condition(view).is_some_and(|found| found.reason == "RepositoryHasWork");
    session.wait_for("the condition", is_told).await;
    assert!(session.turn("say on").await.text.contains("on"), "the session stays usable");
    assert!(place.join("new").exists());
    let again = daemon.client.call("DELETE", &session.path("/repos/web"), "").await.problem();
    assert_eq!(again.code, Code::RepositoryHasWork);
    let list: RepositoryList =
        daemon.client.call("DELETE", &session.path("/repos/web?force=true&wait=60"), "").await.expect(202);
    assert_eq!((list.repos.len(), place.exists()), (0, false));
    session
        .wait_for("the condition is true", |view| {
            condition(view).is_some_and(|found| found.status == ConditionStatus::True)
        })
        .await;
}

#[tokio::test]
async fn a_failed_clone_leaves_the_session_usable_and_is_tried_again() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let session = daemon.session(&daemon.scripted(&[])).await;
    let away = remote.bare.with_extension("away");
    fs::rename(&remote.bare, &away).unwrap();
    let list = add(&daemon, &session, "?wait=60", &remote.spec()).await;
    assert_eq!(list.repos[0].state, RepositoryState::Failed);
    let view = session
        .wait_for("the condition", |view| condition(view).is_some_and(|found| found.status == ConditionStatus::False))
        .await;
    assert_eq!(condition(&view).map(|found| &*found.reason), Some("CloneFailed"));
    assert!(session.turn("say on").await.text.contains("on"), "the session stays usable");
    fs::rename(&away, &remote.bare).unwrap();
    let view = wait_for_state(&session, "web", RepositoryState::Ready).await;
    assert_eq!(view.status.repos[0].commit.as_deref(), Some(&*remote.head("main")));
    session
        .wait_for("the condition is true", |view| {
            condition(view).is_some_and(|found| found.status == ConditionStatus::True)
        })
        .await;
}

#[tokio::test]
async fn a_foreign_repository_at_the_place_is_neither_taken_over_nor_removed() {
    let daemon = Daemon::start().await;
    let (web, other) = (Remote::new(&daemon, "web"), Remote::new(&daemon, "other"));
    let session = daemon.session(&daemon.scripted(&[])).await;
    git(&daemon.work(), &["clone", "-q", &other.url(), "web"]);
    let list = add(&daemon, &session, "?wait=60", &web.spec()).await;
    assert_eq!(list.repos[0].state, RepositoryState::Failed);
    // The second attempt must not take the failed one for its own.
    session.stop().await;
    session.resume().await;
    let place = daemon.work().join("web");
    assert_eq!(git(&place, &["remote", "get-url", "origin"]), other.url());
    let path = session.path("/repos/web?wait=60&force=true");
    assert_eq!(daemon.client.call("DELETE", &path, "").await.expect::<RepositoryList>(202).repos, []);
    assert!(place.join("file").exists(), "it was never agentd's");
    // Another one with the same address is taken over unchanged.
    fs::remove_dir_all(&place).unwrap();
    git(&daemon.work(), &["clone", "-q", &web.url(), "web"]);
    let mine = commit(&place, "mine", "mine\n");
    let list = add(&daemon, &session, "?wait=60", &web.spec()).await;
    assert_eq!((list.repos[0].state, list.repos[0].commit.as_deref()), (RepositoryState::Ready, Some(&*mine)));
}

#[tokio::test]
async fn a_change_of_a_stopped_session_waits_for_its_launch() {
    let daemon = Daemon::start().await;
    let (web, lib) = (Remote::new(&daemon, "web"), Remote::new(&daemon, "lib"));
    let session = daemon.session(&spec(&daemon, vec![web.spec()])).await;
    session.stop().await;
    let list = add(&daemon, &session, "?wait=60", &lib.spec()).await;
    assert_eq!(list.repos[1].state, RepositoryState::Pending);
    daemon.client.call("DELETE", &session.path("/repos/web?wait=60"), "").await.expect::<Value>(202);
    assert!(daemon.work().join("web").exists());
    let view = session.resume().await;
    assert_eq!((state(&view, "web"), state(&view, "lib")), (None, Some(RepositoryState::Ready)));
    assert!(!daemon.work().join("web").exists() && daemon.work().join("lib").exists());
}

#[tokio::test]
async fn a_removal_that_waits_for_a_launch_is_done_with_the_session() {
    let daemon = Daemon::start().await;
    let (web, lib) = (Remote::new(&daemon, "web"), Remote::new(&daemon, "lib"));
    let session = daemon.session(&spec(&daemon, vec![web.spec(), lib.spec()])).await;
    session.stop().await;
    let list: RepositoryList = daemon.client.call("DELETE", &session.path("/repos/web"), "").await.expect(202);
    assert_eq!(list.repos[1].state, RepositoryState::Pending, "its removal has not begun: {list:?}");
    assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status.as_u16(), 204);
    assert!(!daemon.work().join("web").exists());
    assert!(daemon.work().join("lib/file").exists(), "a clone in the user's directory stays for the next session");
}

#[tokio::test]
async fn a_hanging_clone_ends_with_its_removal_from_the_specification() {
    let daemon = Daemon::start().await;
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/web", server.local_addr().unwrap());
    let session = daemon.create(&spec(&daemon, vec![RepositorySpec::clone_of(url)])).await;
    wait_for_state(&session, "web", RepositoryState::Working).await;
    let list: RepositoryList = daemon.client.call("DELETE", &session.path("/repos/web?wait=60"), "").await.expect(202);
    assert_eq!(list.repos, []);
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(leftovers(&daemon.work()), Vec::<String>::new());
    let running = || crate::harness::process::running(daemon.root(), "git", None);
    until("git has ended", || running().is_empty()).await;
}

#[tokio::test]
async fn a_clone_ends_at_its_deadline() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[repositories]\ndeadline = \"1s\"\n"));
    daemon.run().await;
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/web", server.local_addr().unwrap());
    let session = daemon.create(&spec(&daemon, vec![RepositorySpec::clone_of(url)])).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert_eq!(condition(&view).map(|found| &*found.reason), Some("RepositoryTimedOut"));
    assert_eq!(leftovers(&daemon.work()), Vec::<String>::new());
}

#[tokio::test]
async fn the_author_of_commits_is_set_in_clones() {
    let mut daemon = Daemon::prepare();
    let author = "\n[repositories]\nuser_name = \"Kim\"\nuser_email = \"kim@example.com\"\n";
    daemon.configure(|config| format!("{config}{author}"));
    daemon.run().await;
    let remote = Remote::new(&daemon, "web");
    daemon.session(&spec(&daemon, vec![remote.spec()])).await;
    let place = daemon.work().join("web");
    let of = |key| git(&place, &["config", "--local", key]);
    assert_eq!((of("user.name"), of("user.email")), ("Kim".to_owned(), "kim@example.com".to_owned()));
}

#[tokio::test]
async fn repositories_are_managed_on_the_command_line() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let session = daemon.session(&SessionSpec { name: Some("build".parse().unwrap()), ..daemon.scripted(&[]) }).await;
    let said = ctl(&daemon, &["repo", "add", "build", &remote.url(), "--branch", "next"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    assert!(said.err.contains("web is at") && said.err.contains("next"), "{said:?}");
    let said = ctl(&daemon, &["repo", "ls", "build"]).await;
    assert!(said.out.contains("ready") && said.out.contains(&remote.head("next")[..9]), "{said:?}");
    fs::write(daemon.work().join("web/new"), "").unwrap();
    let said = ctl(&daemon, &["repo", "rm", "build", "web"]).await;
    assert_eq!(said.status, Some(4), "{said:?}");
    assert!(said.err.contains("uncommitted changes") && said.err.contains("force"), "{said:?}");
    let said = ctl(&daemon, &["repo", "rm", "build", "web", "--force"]).await;
    assert_eq!((said.status, said.err.trim()), (Some(0), "web is removed"));
    let said = ctl(&daemon, &["repo", "rm", "build", "web"]).await;
    assert_eq!(said.status, Some(1), "{said:?}");
    // A path is made absolute, and a clone that fails is an error.
    let said = ctl(&daemon, &["repo", "add", "build", "../own-web", "--name", "own"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let said = ctl(&daemon, &["repo", "add", "build", "/no/where"]).await;
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(said.err.contains("failed") && said.err.contains("/no/where"), "{said:?}");
    let json = ctl(&daemon, &["--json", "repo", "ls", "build"]).await.out;
    let list: RepositoryList = serde_json::from_str(&json).unwrap();
    assert_eq!(list.repos.iter().map(|view| &*view.name).collect::<Vec<_>>(), ["own", "where"]);
    assert_eq!(
        listed(&daemon, &session, "own").await.unwrap().url.map(PathBuf::from),
        Some(remote.own.canonicalize().unwrap())
    );
}

#[tokio::test]
async fn a_repository_does_not_move_and_does_not_become_another_kind() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    let session = daemon.session(&spec(&daemon, vec![remote.spec()])).await;
    for other in [
        json!([{ "url": remote.url(), "path": "elsewhere", "name": "web" }]),
        json!([{ "path": remote.own, "worktree": true, "name": "web" }]),
    ] {
        let refused = daemon.client.patch(&session.path(""), &json!({ "repos": other }), None).await.problem();
        assert_eq!(refused.code, Code::InvalidRequest, "{refused:?}");
    }
    // A branch of a clone that is there is the agent's own matter.
    let other = json!([{ "url": remote.url(), "branch": "next" }]);
    daemon.client.patch(&session.path(""), &json!({ "repos": other }), None).await.expect::<Value>(200);
    let told = |view: &SessionView| view.status.repos[0].message.as_deref() == Some("it stays on main");
    session.wait_for("the branch stays", told).await;
}

#[tokio::test]
async fn what_a_removal_loses_besides_branches_is_known() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "web");
    // A tag of the remote on no branch is no local work.
    git(&remote.own, &["switch", "-qc", "release"]);
    commit(&remote.own, "release", "release\n");
    git(&remote.own, &["tag", "v1"]);
    git(&remote.own, &["push", "-q", remote.bare.to_str().unwrap(), "v1"]);
    let table: [(&str, Make, Option<&str>); 4] = [
        ("clean", |_| {}, None),
        (
            "tag",
            |place| {
                git(place, &["switch", "-q", "--detach"]);
                commit(place, "mine", "mine\n");
                git(place, &["tag", "mine"]);
                git(place, &["switch", "-q", "main"]);
            },
            Some("1 commit"),
        ),
        ("worktree", |place| drop(git(place, &["worktree", "add", "-q", "--detach", "../side"])), Some("worktrees")),
        (
            "inside",
            |place| {
                git(place, &["init", "-q", "sub"]);
                commit(&place.join("sub"), "mine", "mine\n");
                git(place, &["add", "sub"]);
                git(place, &["commit", "-qm", "sub"]);
                git(place, &["push", "-q", "origin", "HEAD:sub"]);
            },
            Some("submodules"),
        ),
    ];
    for (name, make, words) in table {
        let wanted = RepositorySpec { name: Some(name.to_owned()), ..remote.spec() };
        let session = daemon.session(&spec(&daemon, vec![wanted])).await;
        make(&daemon.work().join(name));
        let answer = daemon.client.call("DELETE", &session.path(&format!("/repos/{name}?wait=60")), "").await;
        match words {
            Some(words) => assert!(answer.problem().detail.contains(words), "{name}: {answer:?}"),
            None => drop(answer.expect::<Value>(202)),
        }
        session.stop().await;
    }
}
