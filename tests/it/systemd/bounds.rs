//! A session's cgroup enforces its limits, and the limits do not affect other sessions.

use std::fs;
use std::path::{Path, PathBuf};

use agentd_api::event::{Body, Exceeded};

use super::turn_ends;
use crate::harness::lab::Lab;
use crate::harness::{require, until};

/// Returns the first of these files that exists in the unit's cgroups.
fn file(lab: &Lab, unit: &str, names: &[&str]) -> PathBuf {
    let groups = lab.cgroups(unit);
    let files = groups.iter().flat_map(|group| names.iter().map(|name| group.join(name)));
    files.into_iter().find(|file| file.exists()).unwrap_or_else(|| panic!("none of {names:?} is in {groups:?}"))
}

fn number(file: &Path) -> u64 {
    fs::read_to_string(file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or_else(|| panic!("{} has no number", file.display()))
}

#[tokio::test]
async fn a_session_cannot_have_more_tasks_than_it_may_and_its_neighbour_has_what_it_wants() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let bounded = lab.session_in("/home/worker/project", &["--permissions", "allow", "--tasks", "24"]);
    let neighbour = lab.session_in("/home/worker/project", &["--permissions", "allow"]);
    let unit = format!("agentd-session-{bounded}.service");
    assert_eq!(number(&file(&lab, &unit, &["pids.max"])), 24);
    let fork = "tool exec sh -c 'for i in $(seq 60); do sleep 4000 >/dev/null & done; echo all'";
    for session in [&bounded, &neighbour] {
        lab.worker(&["agentctl", "prompt", session.as_str(), fork]);
    }
    let current = |session: &str| number(&file(&lab, &format!("agentd-session-{session}.service"), &["pids.current"]));
    assert!(current(bounded.as_str()) <= 24, "{}", current(bounded.as_str()));
    assert!(current(neighbour.as_str()) > 60, "{}", current(neighbour.as_str()));
    let refused = fs::read_to_string(file(&lab, &unit, &["pids.events"])).expect("it can be read");
    assert!(!refused.trim().ends_with(" 0"), "nothing was refused: {refused}");
    // A session at its task limit still answers a prompt and a stop.
    lab.worker(&["agentctl", "prompt", bounded.as_str(), "say still here"]);
    for session in [bounded, neighbour] {
        lab.worker(&["agentctl", "stop", session.as_str()]);
    }
    until("nobody is left", || !lab.try_worker(&["pgrep", "-x", "sleep"]).status.success()).await;
}

#[tokio::test]
async fn a_session_that_wants_more_memory_than_it_may_have_is_ended_and_says_so_and_harms_nobody() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let allow = ["--permissions", "allow"];
    let greedy = lab.session_in("/home/worker/project", &[&allow[..], &["--memory", "100663296"]].concat());
    let neighbour = lab.session();
    let unit = format!("agentd-session-{greedy}.service");
    assert_eq!(number(&file(&lab, &unit, &["memory.limit_in_bytes", "memory.max"])), 96 << 20);
    let daemon = || lab.systemctl(&["show", "-p", "MainPID", "-p", "NRestarts", "-p", "ActiveState", "agentd.service"]);
    let (before, beside) = (daemon(), lab.agentctl(&["show", neighbour.as_str()]));

    // The kernel must kill the agent before the keeper, however little memory the agent uses.
    let held = lab.agentctl(&["show", greedy.as_str()]);
    let score = |process: &str| {
        let score = fs::read_to_string(lab.path(&format!("/proc/{}/oom_score_adj", held["status"][process])));
        score.expect("it runs").trim().parse::<i32>().expect("a number")
    };
    assert_eq!(score("agent_pid"), (score("keeper_pid") + 500).min(1000));

    // If a tool of the agent uses too much memory, the kernel kills the tool, but neither the agent nor its keeper.
    let kills = file(&lab, &unit, &["memory.oom_control", "memory.events"]);
    lab.worker(&["agentctl", "prompt", greedy.as_str(), "tool head -c 400M /dev/zero | tail | wc -c"]);
    turn_ends(&lab, &greedy).await;
    let killed = fs::read_to_string(&kills).expect("it can be read");
    assert!(killed.lines().any(|line| line == "oom_kill 1"), "{killed}");
    let view = lab.agentctl(&["show", greedy.as_str()]);
    assert_eq!(view["status"]["phase"], "idle", "{view:#}");
    let remark = ["AGENTD_SESSION", greedy.as_str()].join("=");
    let remarks = || lab.journalctl(&["-o", "cat", "SYSLOG_IDENTIFIER=agentd-keeper", &remark]);
    until("the keeper remarks on it", || remarks().contains("the kernel killed a process: out of memory")).await;

    // Now the agent itself uses too much memory.
    let prompt = lab.try_worker(&["agentctl", "prompt", greedy.as_str(), "bigline 400000000"]);
    assert!(!prompt.status.success(), "{prompt:?}");
    let shown = || lab.agentctl(&["show", greedy.as_str()]);
    until("the session has failed", || shown()["status"]["phase"] == "failed").await;
    let view = shown();
    let condition =
        view["status"]["conditions"].as_array().expect("a list").iter().find(|c| c["type"] == "AgentStarted");
    let condition = condition.expect("its agent was started");
    assert_eq!((&condition["status"], &condition["reason"]), (&"False".into(), &"OutOfMemory".into()), "{view:#}");
    for text in [&condition["message"], &view["status"]["message"]] {
        let text = text.as_str().expect("a text");
        assert!(text.contains("ran out of memory") && text.contains("98304 KiB are allowed"), "{text}");
        assert!(text.contains("`memory` of [limits]"), "{text}");
    }
    assert_eq!(view["status"]["launches"], 1, "it was not started again: {view:#}");
    let exited = lab.journal(&greedy).into_iter().find_map(|event| match event.body {
        Body::AgentExited(exited) => Some(exited),
        _ => None,
    });
    let exited = exited.expect("the keeper has told how the agent ended");
    assert_eq!((exited.signal, exited.exceeded, exited.requested), (Some(9), Some(Exceeded::Memory), false));

    assert_eq!(daemon(), before);
    lab.worker(&["agentctl", "prompt", neighbour.as_str(), "say unharmed"]);
    let after = lab.agentctl(&["show", neighbour.as_str()]);
    assert_eq!(after["status"]["agent_pid"], beside["status"]["agent_pid"]);
    // The session has no process left, and a resume succeeds.
    assert!(!lab.try_worker(&["systemctl", "--user", "is-active", &unit]).status.success());
    lab.worker(&["agentctl", "resume", greedy.as_str()]);
    lab.worker(&["agentctl", "prompt", greedy.as_str(), "say back"]);
}
