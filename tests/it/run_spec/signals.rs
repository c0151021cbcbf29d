//! The first signal stops the session in order, the second kills the agent, and a killed daemon comes back.

use std::fs;
use std::time::{Duration, Instant};

use agentd_api::Body;
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::Run;
use crate::harness::ctl::end_of;
use crate::harness::process;
use crate::harness::until;

/// A prompt that leaves a file and then never ends.
const HANG: &str = "do printf abc > artifacts/a\nsay working\nhang";

#[tokio::test]
async fn the_first_signal_stops_the_session_in_order_and_the_results_are_delivered() {
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let run = Run::of_prompt(HANG);
        let child = run.start();
        run.said("working").await;
        kill(process::pid(child.id()), signal).unwrap();
        let said = end_of(child).await;
        assert_eq!(said.status, Some(status), "{said:?}");
        let result = run.result();
        assert_eq!((&result["outcome"], &result["signal"]), (&json!("stopped"), &json!(signal as i32)), "{result}");
        assert_eq!((result.get("killed"), &result["completion"]["outcome"]), (None, &json!("cancelled")), "{result}");
        assert_eq!(fs::read_to_string(run.path("out/artifacts/a")).unwrap(), "abc");
        assert!(run.delivered().iter().any(|event| matches!(event.body, Body::StopRequested(_))));
        run.nothing_is_left().await;
    }
}

/// Prepares an agent that ends neither with its stdin nor with SIGTERM, with a grandchild of its own.
fn stubborn(grace: &str) -> Run {
    let flags = ["--ignore-eof", "--ignore-sigterm"];
    let prompt = format!("do setsid sleep 1000 > /dev/null 2>&1 &\n{HANG}");
    let mut run = Run::of(json!({ "workspace": "new", "initial_prompt": prompt }), &flags);
    // agentd itself would wait for longer than the grace.
    fs::write(run.path("agentd.toml"), "[launch]\nstop_close = \"5m\"\nstop_term = \"5m\"\n").unwrap();
    run.add("--grace", grace);
    run
}

#[tokio::test]
async fn an_agent_that_does_not_end_is_killed_after_the_grace() {
    let run = stubborn("1s");
    let child = run.start();
    run.said("working").await;
    kill(process::pid(child.id()), Signal::SIGTERM).unwrap();
    let said = end_of(child).await;
    assert_eq!(said.status, Some(143), "{said:?}");
    assert!(said.err.contains("did not stop within the grace"), "{said:?}");
    let result = run.result();
    assert_eq!((&result["outcome"], &result["killed"]), (&json!("stopped"), &json!(true)), "{result}");
    assert_eq!(result["completion"]["agent_signal"], json!(9), "{result}");
    assert_eq!(fs::read_to_string(run.path("out/artifacts/a")).unwrap(), "abc");
    run.nothing_is_left().await;
}

#[tokio::test]
async fn the_second_signal_kills_the_agent_at_once() {
    let run = stubborn("10m");
    let child = run.start();
    run.said("working").await;
    let begun = Instant::now();
    kill(process::pid(child.id()), Signal::SIGTERM).unwrap();
    let stops = |body: &Body| matches!(body, Body::StopRequested(_));
    until("the stop is requested", || run.so_far().iter().any(|event| stops(&event.body))).await;
    kill(process::pid(child.id()), Signal::SIGTERM).unwrap();
    let said = end_of(child).await;
    assert!(begun.elapsed() < Duration::from_mins(2), "the grace was waited for");
    assert_eq!((said.status, &run.result()["killed"]), (Some(143), &json!(true)), "{said:?}");
    assert_eq!(fs::read_to_string(run.path("out/artifacts/a")).unwrap(), "abc");
    run.nothing_is_left().await;
}

#[tokio::test]
async fn a_signal_ends_a_launch_and_a_wait_for_standard_input() {
    let run = Run::of(json!({ "workspace": "new", "initial_prompt": "say x" }), &["--slow-init", "600000"]);
    let child = run.start();
    let started = |body: &Body| matches!(body, Body::AgentStarted(_));
    until("the agent starts", || run.so_far().iter().any(|event| started(&event.body))).await;
    kill(process::pid(child.id()), Signal::SIGTERM).unwrap();
    let said = end_of(child).await;
    assert_eq!((said.status, &run.result()["outcome"]), (Some(143), &json!("stopped")), "{said:?}");
    run.nothing_is_left().await;

    let run = Run::of_prompt("say x");
    let mut child = run.command("-").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take();
    // The run reads its standard input once it has opened the directory of the results.
    until("the run begins", || run.path("out/.result.json.partial").exists()).await;
    kill(process::pid(child.id()), Signal::SIGINT).unwrap();
    let said = end_of(child).await;
    drop(input);
    assert_eq!((said.status, &run.result()["outcome"]), (Some(130), &json!("stopped")), "{said:?}");
}

#[tokio::test]
async fn a_stop_by_a_client_is_no_stop_by_a_signal() {
    let run = Run::of_prompt(HANG);
    let child = run.start();
    run.said("working").await;
    let client = agentd_client::Client::new(run.path("state/run/control.sock"));
    let sessions = client.sessions(&[]).await.unwrap();
    client.stop(sessions[0].id.as_str(), None).await.unwrap();
    let said = end_of(child).await;
    let result = run.result();
    assert_eq!((said.status, &result["outcome"], result.get("signal")), (Some(130), &json!("cancelled"), None));
}

#[tokio::test]
async fn a_daemon_that_is_killed_in_the_turn_is_started_again_and_the_session_completes() {
    let run = Run::of_prompt("say working\ncount 200 10\ndo printf abc > artifacts/a\nsay done");
    let child = run.start();
    run.said("working").await;
    let daemons = process::running(&run.path("state"), "agentd", Some("serve"));
    assert_eq!(daemons.len(), 1, "{daemons:?}");
    process::kill9(daemons[0]);
    let said = end_of(child).await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), "done\n"), "{said:?}");
    assert!(said.err.contains("agentd was started again"), "{said:?}");
    let starts = run.delivered().into_iter().filter(|event| matches!(event.body, Body::AgentStarted(_))).count();
    assert_eq!(starts, 1, "the agent goes through");
    assert_eq!(fs::read_to_string(run.path("out/artifacts/a")).unwrap(), "abc");
    run.nothing_is_left().await;
}
