//! A file server that does not answer delays only requests that need the server. No thread of the daemon waits for it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use agentd_api::Code;
use agentd_api::prerequisite::{CheckReport, Outcome};
use agentd_api::session::{Condition, ConditionType, Phase, SessionSpec, SessionView};

use serde_json::json;

use crate::harness::client::in_query;
use crate::harness::dead::Dead;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, require, until};
use crate::prerequisites::{ALL, calls, met, with, world};

/// Threads of the daemon that wait for the server.
fn stuck(daemon: &Daemon) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let waits = |task: &fs::DirEntry| fs::read_to_string(task.path().join("stack")).unwrap_or_default();
    tasks.flatten().filter(|task| waits(task).contains("fuse_")).count()
}

/// Counts the daemon's `look` processes that are looking or hang, without those that wait for their next question.
fn looks(daemon: &Daemon) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_ours = |process: &Path| {
        // proc(5): the parent is the second field behind the name's parenthesis.
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let waits = fs::read_to_string(process.join("stack")).unwrap_or_default().contains("pipe_read");
        parent == Some(daemon.pid()) && command.split(|byte| *byte == 0).nth(1) == Some(b"look") && !waits
    };
    all.filter(|process| is_ours(process)).count()
}

fn condition(view: &SessionView, kind: ConditionType) -> Option<Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == kind).cloned()
}

#[tokio::test]
async fn a_working_directory_that_is_silent_refuses_its_launches_and_holds_no_thread() {
    if require::fuse().is_none() {
        return;
    }
    let keys = format!("{ALL}\nmoment = \"after-environment\"\ninterval = \"200ms\"\ntime = \"2s\"\ncache = \"0s\"");
    let daemon = with(&[("licence", &keys)]).await;
    world(&daemon, "licence", "pass");
    let directory = daemon.work().join("project");
    fs::create_dir(&directory).unwrap();
    let spec = SessionSpec { directory: directory.clone(), ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    fs::remove_dir(&directory).unwrap();
    let mut dead = Dead::mount(directory, "fuse", "dead", &[]);

    // The session's prerequisite is still checked at its interval.
    let before = calls(&daemon, "licence").await;
    world(&daemon, "licence", "warn: one left");
    session.wait_for("the check says what it finds", |view| met(view).reason == "PrerequisiteWarns").await;
    let asked = Instant::now();
    while calls(&daemon, "licence").await < before + 6 {
        assert_eq!(stuck(&daemon), 0);
        assert!(asked.elapsed() < crate::harness::LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until("all but one look at it have ended", || looks(&daemon) == 1).await;

    session.stop().await;
    assert_eq!(daemon.client.call("POST", &session.path("/resume"), "").await.status, 202);
    let silent = |view: &SessionView| {
        condition(view, ConditionType::NotStale).is_some_and(|fresh| fresh.reason == "DirectorySilent")
    };
    let view = session.wait_for("the launch says why it fails", silent).await;
    let message = condition(&view, ConditionType::NotStale).unwrap().message;
    assert!(message.contains("was not examined: an earlier lookup of the file system at"), "{message}");
    let problem = daemon.client.post("/v1/sessions", &spec).await.problem();
    assert_eq!((problem.status, problem.code), (503, Code::DirectorySilent));
    for path in [session.path("/validation"), format!("/v1/scripts?directory={}", in_query(&spec.directory))] {
        daemon.client.get(&path).await;
        assert_eq!(stuck(&daemon), 0, "{path}");
    }
    // The daemon looked once, and killed the process that looked.
    assert_eq!((stuck(&daemon), looks(&daemon), dead.requests()), (0, 1, 2), "nobody else has touched it");
    let other = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(other.turn("say here").await.text, "here");

    dead.release();
    until("nobody looks any more", || looks(&daemon) == 0).await;
    assert_eq!(session.resume().await.status.phase, Phase::Idle);
}

#[tokio::test]
async fn what_is_silent_in_the_path_is_told_and_passed_over() {
    if require::fuse().is_none() {
        return;
    }
    let daemon = Daemon::start().await;
    let programs = daemon.root().join("programs");
    fs::create_dir(&programs).unwrap();
    let spec = daemon.scripted(&[]);
    std::os::unix::fs::symlink(crate::harness::scripted_agent(), programs.join("agent-by-name")).unwrap();
    let dead = Dead::mount(daemon.root().join("tools"), "fuse", "dead", &[]);
    let path = format!("export PATH={}/bin:{}", quoted(&dead.path), quoted(&programs));
    let spec =
        SessionSpec { agent: None, command: Some(vec!["agent-by-name".to_owned()]), env_setup: Some(path), ..spec };
    let session = daemon.session(&spec).await;
    let valid = condition(&session.view().await, ConditionType::EnvironmentValid).unwrap();
    assert_eq!(valid.reason, "PathEntrySilent", "{valid:?}");
    assert_eq!(session.turn("say found").await.text, "found");
    assert_eq!(stuck(&daemon), 0);
}

#[tokio::test]
async fn a_licence_file_that_is_silent_is_named_beside_what_else_was_found() {
    if require::fuse().is_none() {
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut daemon = Daemon::prepare();
    let dead = Dead::mount(daemon.root().join("licences"), "fuse", "dead", &[]);
    let (one, two) = (dead.path.join("one.lic"), dead.path.join("two.lic"));
    let servers = format!("{}:{}:{port}@127.0.0.1", one.display(), two.display());
    daemon.configure(|config| {
        let keys = "moment = \"before-environment\"\ntime = \"2s\"";
        let alone = format!("[prerequisites.alone]\nplugin = \"license-server\"\nsettings = {{ servers = [{two:?}] }}");
        let both =
            format!("[prerequisites.both]\nplugin = \"license-server\"\nsettings = {{ servers = [{servers:?}] }}");
        format!("{config}\n{alone}\n{keys}\n{both}\n{keys}\n")
    });
    daemon.run().await;
    let check = async |name: &str| -> CheckReport {
        daemon.client.post(&format!("/v1/prerequisites/{name}/check"), &json!({})).await.expect(200)
    };
    let both = check("both").await;
    assert_eq!(both.outcome, Outcome::Warn, "{both:?}");
    let told = |report: &CheckReport, text: &str| report.facts.iter().any(|fact| fact.value.contains(text));
    assert!(told(&both, &format!("{one:?} did not answer within")), "{both:?}");
    assert!(told(&both, &format!("{two:?} was not examined: an earlier lookup of")), "{both:?}");
    assert!(told(&both, &format!("answers at 127.0.0.1 port {port}")), "{both:?}");
    let alone = check("alone").await;
    assert_eq!(alone.outcome, Outcome::Unknown, "{alone:?}");
    assert!(alone.summary.contains(&format!("{two:?}")) && !alone.facts.is_empty(), "{alone:?}");
    assert_eq!((stuck(&daemon), looks(&daemon), dead.requests()), (0, 1, 2));
}
