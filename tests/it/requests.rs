//! Requests that come twice, cursors that come too late, builds that take over from one another.

use std::fs;
use std::process::Command;

use agentd_api::event::Body;
use agentd_api::session::{PromptAccepted, SessionView};
use agentd_api::{Code, Problem};
use serde::de::DeserializeOwned;

use crate::harness::{Daemon, Session, paths, until};

/// Sends a request with an idempotency key, and returns the status and the document.
async fn keyed<T: DeserializeOwned>(daemon: &Daemon, path: &str, key: &str, body: &str) -> (u16, T) {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: agentd\r\nidempotency-key: {key}\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = String::from_utf8(daemon.client.raw(request.as_bytes()).await).unwrap();
    let (head, document) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(document).unwrap_or_else(|error| panic!("{error}: {answer}")))
}

fn queued(session: &Session) -> usize {
    session.journal().iter().filter(|event| matches!(event.body, Body::TurnQueued(_))).count()
}

#[tokio::test]
async fn a_prompt_that_is_sent_again_with_its_key_is_one_turn_even_to_another_daemon() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let path = session.path("/prompt");
    let (status, first): (u16, PromptAccepted) = keyed(&daemon, &path, "k-1", r#"{"prompt":"say once"}"#).await;
    assert_eq!(status, 202);
    let (_, again): (u16, PromptAccepted) = keyed(&daemon, &path, "k-1", r#"{"prompt":"say once"}"#).await;
    assert_eq!(again, first);
    assert!(session.end_of(&again).await.text.contains("once"));
    daemon.kill9();
    daemon.run().await;
    let (_, later): (u16, PromptAccepted) = keyed(&daemon, &path, "k-1", r#"{"prompt":"say once"}"#).await;
    assert_eq!(later, first);
    assert_eq!(queued(&session), 1);
    let (status, problem): (u16, Problem) = keyed(&daemon, &path, "k-1", r#"{"prompt":"say other"}"#).await;
    assert_eq!((status, problem.code), (422, Code::KeyReused));
    assert_eq!(queued(&session), 1);
}

#[tokio::test]
async fn a_session_that_is_asked_for_again_with_its_key_is_made_once() {
    let mut daemon = Daemon::start().await;
    let body = serde_json::to_string(&daemon.scripted(&[])).unwrap();
    let (_, first): (u16, SessionView) = keyed(&daemon, "/v1/sessions?wait=30", "s-1", &body).await;
    daemon.kill9();
    daemon.run().await;
    let (status, again): (u16, SessionView) = keyed(&daemon, "/v1/sessions?wait=30", "s-1", &body).await;
    assert_eq!((status, &again.id), (202, &first.id));
    let other = body.replace("\"command\"", "\"name\":\"other\",\"command\"");
    let (status, problem): (u16, Problem) = keyed(&daemon, "/v1/sessions", "s-1", &other).await;
    assert_eq!((status, problem.code), (422, Code::KeyReused));
}

#[tokio::test]
async fn old_segments_are_removed_and_a_cursor_into_them_is_told_where_to_begin() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[journal]\nrotate = 20_000\nkeep_session = 60_000\n"));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    for _ in 0..4 {
        session.turn("count 200 0").await;
    }
    let client = daemon.client.clone();
    let events = async |after: u64| client.get(&session.path(&format!("/events?after={after}&follow=false"))).await;
    let (mut after, mut refusals) = (1, 0);
    // The keeper removes segments a moment after the turn that filled the next segment. A cursor that was valid may be
    // gone.
    let kept = loop {
        let answer = events(after).await;
        if answer.status == 410 {
            let problem = answer.problem();
            assert_eq!(problem.code, Code::CursorGone);
            after = problem.detail.split(' ').find_map(|word| word.parse::<u64>().ok()).unwrap() - 1;
            refusals += 1;
        } else if refusals == 0 {
            assert!(session.view().await.status.last_seq < 100_000, "nothing is ever removed");
            session.turn("count 50 0").await;
        } else {
            break answer;
        }
    };
    let kept: Vec<u64> = kept
        .body
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| agentd_api::Event::parse(line).unwrap().seq)
        .collect();
    let last = session.view().await.status.last_seq;
    assert_eq!(kept, (after + 1..=last).collect::<Vec<u64>>(), "there is a gap");
    // The next daemon does not need the removed records: the session's view is unchanged.
    let before = session.view().await;
    daemon.kill9();
    daemon.run().await;
    until("the session is taken over", || fs::exists(daemon.root().join("run").join(session.id.as_str())).unwrap())
        .await;
    let after = session.wait_for("it is idle", |view| view.status.last_seq > before.status.last_seq).await;
    assert_eq!(after.status.conversation, before.status.conversation);
    assert!(session.turn("say on").await.text.contains("on"));
}

#[tokio::test]
async fn programs_replaced_under_a_running_daemon_take_over_with_nothing_lost() {
    let mut daemon = Daemon::prepare();
    let programs = daemon.root().join("bin");
    fs::create_dir(&programs).unwrap();
    let install = |suffix: &str| {
        for (name, path) in
            [("agentd", paths::agentd()), ("agentd-keeper", paths::keeper()), ("agentctl", paths::agentctl())]
        {
            // As in an installation, a new file replaces the old file under its name.
            let new = programs.join(format!("{name}{suffix}"));
            fs::copy(path, &new).unwrap();
            fs::rename(new, programs.join(name)).unwrap();
        }
    };
    install(".1");
    daemon.set_program(programs.join("agentd"));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let agent = session.view().await.status.agent_pid;
    let accepted = session.prompt("count 60 20").await;
    let check = Command::new(programs.join("agentctl"))
        .args(["--socket".as_ref(), daemon.client.socket().as_os_str(), "upgrade-check".as_ref()])
        .output()
        .unwrap();
    assert!(check.status.success(), "{check:?}");
    assert!(String::from_utf8_lossy(&check.stdout).contains(session.id.as_str()), "{check:?}");
    install(".2");
    // The running daemon is the old file, which no longer has a name. It launches with the new keeper.
    let other = daemon.session(&daemon.scripted(&[])).await;
    daemon.terminate().await;
    daemon.run().await;
    let turn = session.end_of(&accepted).await;
    let counted: Vec<u32> = turn.text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(counted, (1..=60).collect::<Vec<u32>>());
    assert_eq!(session.view().await.status.agent_pid, agent);
    assert!(other.turn("say adopted").await.text.contains("adopted"));
}

#[tokio::test]
async fn a_program_that_is_no_agentd_is_not_called_safe() {
    let daemon = Daemon::start().await;
    let check = Command::new(paths::agentctl())
        .args(["--socket".as_ref(), daemon.client.socket().as_os_str(), "upgrade-check".as_ref(), "/bin/true".as_ref()])
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    assert!(String::from_utf8_lossy(&check.stderr).contains("/bin/true"), "{check:?}");
}

#[tokio::test]
async fn the_events_of_a_session_that_is_being_removed_are_not_found_and_no_failure_of_agentd() {
    let daemon = Daemon::start().await;
    for _ in 0..4 {
        let session = daemon.session(&daemon.scripted(&[])).await;
        session.stop().await;
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..24 {
            let (client, path) = (daemon.client.clone(), session.path("/events?follow=false"));
            asking.spawn(async move {
                loop {
                    let status = client.get(&path).await.status.as_u16();
                    if status != 200 {
                        return status;
                    }
                }
            });
        }
        assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status, 204);
        while let Some(status) = asking.join_next().await {
            assert_eq!(status.unwrap(), 404);
        }
    }
}
