//! The context of a session, its environment hint, its title and its progress: kept over kills, stops and resumes.

use std::fs;

use agentd_api::context::{ContextReason, ContextView};
use agentd_api::event::Body;
use agentd_api::session::SessionView;
use serde_json::{Value, json};

use crate::harness::ctl::ctl;
use crate::harness::{Daemon, Session, within};

async fn restart(daemon: &mut Daemon) {
    daemon.kill9();
    daemon.run().await;
}

/// Runs `agentctl`, which must succeed, and returns its output.
async fn printed(daemon: &Daemon, arguments: &[&str]) -> String {
    let said = ctl(daemon, arguments).await;
    assert_eq!(said.status, Some(0), "{arguments:?}: {said:?}");
    said.out
}

async fn change(daemon: &Daemon, session: &Session, body: &Value) -> ContextView {
    daemon.client.call("PATCH", &session.path("/context"), body.to_string()).await.expect(200)
}

async fn shown(daemon: &Daemon, session: &Session) -> ContextView {
    daemon.client.call("GET", &session.path("/context"), "").await.expect(200)
}

fn values(view: &ContextView, set: &str) -> Vec<String> {
    view.sets.get(set).into_iter().flatten().map(|item| item.value.clone()).collect()
}

#[tokio::test]
async fn context_survives_stop_kill_and_resume_and_a_dead_file_stays_and_is_marked() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let directory = tempfile::tempdir().unwrap();
    let (kept, dead) = (directory.path().join("kept"), directory.path().join("dead"));
    fs::write(&kept, "").unwrap();
    fs::write(&dead, "").unwrap();
    let sets = json!({ "files": [kept, dead], "ports": ["8080"], "applet": ["wave", "zoom=2"] });
    let after = change(&daemon, &session, &json!({ "sets": sets, "applet_url": "http://localhost/wave" })).await;
    assert!(after.warnings.is_empty() && after.sets["files"].iter().all(|item| !item.missing), "{after:?}");

    fs::remove_file(&dead).unwrap();
    let now = shown(&daemon, &session).await;
    let missing: Vec<bool> = now.sets["files"].iter().map(|item| item.missing).collect();
    assert_eq!(missing, [false, true]);

    session.stop().await;
    restart(&mut daemon).await;
    let view = session.resume().await;
    let context = view.status.context.expect("the view has the context");
    assert_eq!(values(&context, "applet"), ["wave", "zoom=2"]);
    assert_eq!(context.applet_url.as_deref(), Some("http://localhost/wave"));
    assert_eq!(context.sets["files"].iter().map(|item| item.missing).collect::<Vec<_>>(), [false, true]);
    let loaded = session.journal().into_iter().find_map(|event| match event.body {
        Body::ContextLoaded(loaded) => Some(loaded),
        _ => None,
    });
    let loaded = loaded.expect("the resume loads the context");
    assert_eq!((loaded.reason, loaded.launch), (ContextReason::Resume, 2));
    assert_eq!(loaded.missing, [dead.display().to_string()]);
}

#[tokio::test]
async fn a_change_over_a_limit_or_with_a_bad_item_is_refused_and_changes_nothing() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    change(&daemon, &session, &json!({ "sets": { "ports": ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"] } }))
        .await;
    let before = shown(&daemon, &session).await;
    for (body, code, words) in [
        (json!({ "sets": { "ports": ["11"] } }), "context-full", "at most 10"),
        (json!({ "sets": { "ports": ["70000"] }, "mode": "replace" }), "invalid-request", "70000"),
        (json!({ "sets": { "endpoints": ["http://h/"], "files": ["a.txt"] } }), "invalid-request", "a.txt"),
        (json!({ "sets": { "endpoints": ["nothing"] } }), "invalid-request", "nothing"),
        (json!({ "sets": { "Ports": ["1"] } }), "invalid-request", "Ports"),
        (json!({ "sets": { "ports": [1] } }), "malformed-request", "integer"),
        (json!({ "set": "ports" }), "malformed-request", "set"),
    ] {
        let response = daemon.client.call("PATCH", &session.path("/context"), body.to_string()).await;
        let problem: Value = response.json();
        assert_eq!(problem["code"], code, "{body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words) && problem["hint"].is_string(), "{problem}");
        assert_eq!(shown(&daemon, &session).await, before, "{body}");
    }
    let warned = change(&daemon, &session, &json!({ "sets": { "flies": ["x"] } })).await;
    assert!(warned.warnings.len() == 1 && warned.warnings[0].contains("flies"), "{warned:?}");
    let again = change(&daemon, &session, &json!({ "sets": { "flies": ["y"] } })).await;
    assert!(again.warnings.is_empty() && values(&again, "flies") == ["x", "y"], "{again:?}");
}

#[tokio::test]
async fn a_hundred_merges_at_once_lose_none_although_the_daemon_is_killed_among_them() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let item = |n: usize| (format!("set-{}", n % 5), format!("item-{}", n % 50));
    for round in 0..2 {
        let mut merges = tokio::task::JoinSet::new();
        for n in round * 50..(round + 1) * 50 {
            let (client, path, (set, item)) = (daemon.client.clone(), session.path("/context"), item(n));
            let body = json!({ "sets": { set: [item] } }).to_string();
            merges.spawn(async move { client.call("PATCH", &path, body).await.status });
        }
        let statuses = within("the merges", merges.join_all()).await;
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        restart(&mut daemon).await;
    }
    // Of merges that are under way while the daemon is killed, each answered one is kept.
    let mut merges = tokio::task::JoinSet::new();
    let body = json!({ "mode": "replace", "sets": { "set-0": [] } }).to_string();
    daemon.client.call("PATCH", &session.path("/context"), body).await.expect::<ContextView>(200);
    for n in 0..10 {
        let (client, path) = (daemon.client.clone(), session.path("/context"));
        let body = json!({ "sets": { "set-0": [format!("late-{n}")] } }).to_string();
        merges.spawn(async move {
            (n, client.attempt("PATCH", &path, body, None).await.is_some_and(|it| it.status == 200))
        });
    }
    let first = merges.join_next().await.expect("there are ten").unwrap();
    restart(&mut daemon).await;
    let answered = merges.join_all().await.into_iter().chain([first]).filter(|(_, is_done)| *is_done);
    let view = shown(&daemon, &session).await;
    let late = values(&view, "set-0");
    for (n, _) in answered {
        assert!(late.contains(&format!("late-{n}")), "the merge {n} was answered and is lost: {late:?}");
    }
    let mut all: Vec<String> = (1..5).flat_map(|n| values(&view, &format!("set-{n}"))).collect();
    all.sort();
    let mut expected: Vec<String> = (0..50).filter(|n| n % 5 != 0).map(|n| format!("item-{n}")).collect();
    expected.sort();
    assert_eq!(all, expected);
}

#[tokio::test]
async fn hint_title_progress_and_the_last_look_are_kept_and_shown() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say first words\nand more").await;
    let put = async |what: &str, body: Value| -> SessionView {
        daemon.client.call("PUT", &session.path(what), body.to_string()).await.expect(200)
    };
    let view = put("/progress", json!({ "message": "half way", "percent": 50 })).await;
    assert_eq!(view.status.title.as_deref(), Some("say first words"));
    assert!(view.status.idle_since.is_some() && view.status.last_observed_at.is_some(), "{:?}", view.status);
    put("/title", json!({ "title": "The wave viewer" })).await;
    put("/hint", json!({ "hint": "source setup.sh first" })).await;
    for what in ["/title", "/hint"] {
        let refused = daemon.client.call("PUT", &session.path(what), "{}").await;
        let problem: Value = refused.json();
        assert_eq!(problem["code"], "malformed-request", "only an explicit null removes a text: {problem}");
    }
    daemon.client.call("POST", &session.path("/observed"), "").await.expect::<SessionView>(200);
    let observed = session.journal().iter().filter(|event| matches!(event.body, Body::SessionObserved(_))).count();
    assert_eq!(observed, 0, "the prompt a moment ago was a look");

    restart(&mut daemon).await;
    let text = printed(&daemon, &["show", session.id.as_str()]).await;
    for line in ["The wave viewer", "source setup.sh first", "half way (50 %)", "last observed:", "idle since:"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let hint = printed(&daemon, &["hint", session.id.as_str(), "--remove"]).await;
    assert_eq!(hint, "");
    let title = printed(&daemon, &["title", session.id.as_str(), "--remove"]).await;
    assert_eq!(title, "say first words\n");
}

#[tokio::test]
async fn the_command_makes_paths_absolute_and_shows_the_sets() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let text = printed(&daemon, &["context", session.id.as_str(), "files", "gone.txt"]).await;
    let row = text.lines().find(|line| line.contains("gone.txt")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains(" /") && row.ends_with("missing"), "{row}");
    printed(&daemon, &["context", session.id.as_str(), "files", "--replace"]).await;
    assert!(shown(&daemon, &session).await.sets.is_empty());
}
