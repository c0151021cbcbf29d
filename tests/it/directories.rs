//! Additional directories of a session: checked at the creation, at a change and at each launch; the agent gets them.
//! The endpoint completes the paths of directories.

use std::fs;
use std::path::{Path, PathBuf};

use agentd_api::Code;
use agentd_api::directories::LISTED_DIRECTORIES;
use agentd_api::session::{ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use agentd_api::spec::SpecChangeView;
use serde_json::json;

use crate::harness::client::in_query;
use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session};

/// Makes a directory beside that of the sessions.
fn made(daemon: &Daemon, name: &str) -> PathBuf {
    let path = daemon.work().parent().unwrap().join(name);
    fs::create_dir(&path).unwrap();
    path
}

/// Returns the directory and the additional directories of the open conversation.
async fn opened(session: &Session) -> (PathBuf, Option<Vec<PathBuf>>) {
    serde_json::from_str(&session.turn("opened").await.text).unwrap()
}

fn given(view: &SessionView) -> Option<(ConditionStatus, &str, &str)> {
    let found = view.status.conditions.iter().find(|one| one.kind == ConditionType::DirectoriesGiven)?;
    Some((found.status, &found.reason, &found.message))
}

#[tokio::test]
async fn an_agent_gets_the_additional_directories_of_the_session_at_each_launch() {
    let daemon = Daemon::start().await;
    let (one, two) = (made(&daemon, "one"), made(&daemon, "two"));
    for flags in [&["--directories"][..], &["--directories", "--resume"]] {
        // Its own directory is no additional one, and a repeated one counts once.
        let directories = vec![one.clone(), daemon.work(), two.clone(), one.clone()];
        let session = daemon.session(&SessionSpec { directories, ..daemon.scripted(flags) }).await;
        assert_eq!(opened(&session).await, (daemon.work(), Some(vec![one.clone(), two.clone()])), "{flags:?}");
        let view = session.view().await;
        let (status, reason, message) = given(&view).unwrap();
        assert_eq!((status, reason), (ConditionStatus::True, "DirectoriesGiven"));
        assert!(message.contains(two.to_str().unwrap()), "{message}");
        let (_, out, _) = ctl(&daemon, &["show", session.id.as_str()]).await.parts();
        assert!(out.contains(&format!("also in:       {}\n", two.display())), "{out}");

        // A change takes effect with the next launch.
        let patch = json!({ "directories": [two] });
        daemon.client.patch(&session.path(""), &patch, None).await.expect::<SpecChangeView>(200);
        let view = session.view().await;
        let awaits = view.status.conditions.iter().find(|one| one.kind == ConditionType::SpecApplied);
        assert!(awaits.is_some_and(|one| one.message.ends_with(": directories")), "{view:#?}");
        session.stop().await;
        session.resume().await;
        assert_eq!(opened(&session).await.1, Some(vec![two.clone()]), "{flags:?}");
        let patch = json!({ "directories": null });
        daemon.client.patch(&session.path(""), &patch, None).await.expect::<SpecChangeView>(200);
        session.stop().await;
        assert_eq!(given(&session.resume().await), None);
        assert_eq!(opened(&session).await.1, None);
    }
}

#[tokio::test]
async fn an_agent_that_takes_no_additional_directories_works_without_and_the_condition_names_them() {
    let daemon = Daemon::start().await;
    let one = made(&daemon, "one");
    let session = daemon.session(&SessionSpec { directories: vec![one.clone()], ..daemon.scripted(&[]) }).await;
    assert_eq!(opened(&session).await, (daemon.work(), None));
    let view = session.view().await;
    let message = format!("the agent takes no additional directories, so it does not know of {}", one.display());
    assert_eq!(given(&view), Some((ConditionStatus::False, "DirectoriesLeftOut", message.as_str())));
}

#[tokio::test]
async fn an_additional_directory_that_cannot_be_used_is_refused() {
    let daemon = Daemon::start().await;
    let (one, file) = (made(&daemon, "one"), daemon.root().join("file"));
    fs::write(&file, "").unwrap();
    let session =
        daemon.session(&SessionSpec { directories: vec![one.clone()], ..daemon.scripted(&["--directories"]) }).await;
    for (wrong, words) in [
        (PathBuf::from("one"), "is not absolute"),
        (daemon.root().join("gone"), "does not exist"),
        (file, "is not a directory"),
    ] {
        let directories = vec![one.clone(), wrong];
        let problem = daemon.client.patch(&session.path(""), &json!({ "directories": directories }), None).await;
        let refused = daemon.client.post("/v1/sessions", &SessionSpec { directories, ..daemon.scripted(&[]) }).await;
        for problem in [problem.problem(), refused.problem()] {
            assert!(problem.code == Code::NoSuchDirectory && problem.detail.contains(words), "{problem:?}");
        }
    }
    session.stop().await;
    fs::remove_dir(&one).unwrap();
    let (_, out, _) = ctl(&daemon, &["ls", "--stale"]).await.parts();
    assert!(out.contains("one\" does not exist"), "{out}");
    session.post("/resume?wait=30", &json!({})).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let stale = view.status.conditions.iter().find(|one| one.kind == ConditionType::NotStale).unwrap();
    assert_eq!((stale.status, stale.reason.as_str()), (ConditionStatus::False, "DirectoryGone"));
    assert!(stale.message.contains(one.to_str().unwrap()), "{stale:?}");
}

#[tokio::test]
async fn the_command_line_adds_directories() {
    let daemon = Daemon::start().await;
    let (one, two) = (made(&daemon, "one"), daemon.work().join("two"));
    fs::create_dir(&two).unwrap();
    let agent = daemon.scripted(&["--directories"]).command.unwrap();
    // The command works in the directory of the session.
    let (sideways, below) = (format!("../{}", one.file_name().unwrap().to_str().unwrap()), "./two");
    let words = ["new", "--add-dir", &sideways, "--add-dir", below, "--"];
    let words: Vec<&str> = words.into_iter().chain(agent.iter().map(String::as_str)).collect();
    let (status, out, err) = ctl(&daemon, &words).await.parts();
    assert_eq!(status, Some(0), "{err}");
    let spec = daemon.client.view(out.trim()).await.spec;
    assert_eq!(spec.directories, [one, two]);
    assert_eq!(spec.directory, daemon.work());
}

#[tokio::test]
async fn the_endpoint_lists_the_directories_that_complete_a_path() {
    let daemon = Daemon::start().await;
    for name in ["pro", "project", "other", ".hidden"] {
        fs::create_dir(daemon.work().join(name)).unwrap();
    }
    fs::write(daemon.work().join("program"), "").unwrap();
    std::os::unix::fs::symlink("other", daemon.work().join("prolink")).unwrap();
    let client = daemon.client.typed();
    let listed = async |path: &str| client.directories(path).await.map(|list| list.value);
    let of_work = |names: &[&str]| names.iter().map(|name| daemon.work().join(name)).collect::<Vec<_>>();
    let typed = |rest: &str| format!("{}/{rest}", daemon.work().display());

    let list = listed(&typed("pro")).await.unwrap();
    assert_eq!((list.directories, list.more), (of_work(&["pro", "project", "prolink"]), false));
    assert_eq!(list.directory, daemon.work());
    assert_eq!(listed(&typed("")).await.unwrap().directories, of_work(&["other", "pro", "project", "prolink"]));
    assert_eq!(listed(&typed(".")).await.unwrap().directories, of_work(&[".hidden"]));
    assert_eq!(listed(&typed("none")).await.unwrap().directories, of_work(&[]));
    // The home of the sessions is listed for a tilde.
    let home = listed("~").await.unwrap().directory;
    assert_eq!((listed("~/").await.unwrap().directory, home.is_absolute()), (home, true));
    for (wrong, words) in
        [(typed("none/"), "does not exist"), ("pro".to_owned(), "is not absolute"), (typed("program/x"), "is not a")]
    {
        let address = format!("/v1/directories?path={}", in_query(Path::new(&wrong)));
        let problem = daemon.client.attempt("GET", &address, String::new(), None).await;
        let problem = problem.expect("an answer").problem();
        assert!(problem.code == Code::NoSuchDirectory && problem.detail.contains(words), "{problem:?}");
    }

    // A list has a largest length.
    for name in 0..=LISTED_DIRECTORIES {
        fs::create_dir(daemon.work().join(format!("many-{name}"))).unwrap();
    }
    let many = listed(&typed("many-")).await.unwrap();
    assert_eq!((many.directories.len(), many.more), (LISTED_DIRECTORIES as usize, true));
}
