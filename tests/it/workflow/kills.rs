//! Kills at each step of a switch: afterwards everything is as without the kill. The points are read from the binary.

use std::fs;
use std::process::Command;

use agentd_api::session::SessionView;
use nix::sys::signal::{Signal, kill};

use super::{approved, at, opened, prompts, remembered, settled, switch};
use crate::faults::{passed, set};
use crate::harness::{Daemon, paths, process};

/// Returns the points of a switch: its own, and those at the end of an agent and of a launch.
fn points() -> Vec<String> {
    let output = Command::new(paths::agentd()).arg("fault-points").output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    let is_of_it = |name: &&str| {
        ["daemon.workflow.", "daemon.stop.", "daemon.bring-up.", "daemon.launch.", "keeper.end."]
            .iter()
            .any(|step| name.starts_with(step))
    };
    names.lines().filter(is_of_it).map(str::to_owned).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Daemon,
    Keeper,
    Agent,
}

async fn one(point: &str, victim: Victim, is_back: bool) {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        config.replace("restart = \"never\"", "restart = \"on-failure\"\nrestart_first = \"10ms\"")
    });
    let faults = daemon.state().join("faults");
    fs::create_dir_all(&faults).unwrap();
    daemon.run().await;
    let directory = approved(&daemon, "calm").await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say hello").await;
    let wanted = if is_back { None } else { Some(at(&directory)) };
    if is_back {
        switch(&daemon, &session, Some(&at(&directory))).await;
        settled(&session, Some(&at(&directory))).await;
    }
    set(&faults.join(point), "pause");
    switch(&daemon, &session, wanted.as_ref()).await;
    let hit = passed(&daemon, point).await;
    let send = |pids: Vec<u32>| pids.into_iter().for_each(|pid| _ = kill(process::pid(pid), Signal::SIGKILL));
    match victim {
        Victim::Daemon => {
            daemon.kill9();
            let _ = fs::remove_file(&hit);
            daemon.run().await;
        }
        Victim::Keeper => send(process::running(daemon.root(), "agentd-keeper", Some("hold"))),
        Victim::Agent => send(process::running(daemon.root(), "scripted-agent", Some("--pidfile"))),
    }
    let _ = fs::remove_file(&hit);
    let view: SessionView = settled(&session, wanted.as_ref()).await;
    assert_eq!(view.spec.workflow, wanted, "{point} {victim:?}");
    let place = if is_back { daemon.work() } else { directory };
    assert_eq!(opened(&session).await.0, place, "{point} {victim:?}");
    let heard = remembered(&session).await;
    assert!(heard.contains(&"say hello".to_owned()), "{point} {victim:?}: {heard:?}");
    let begun = prompts(&session).iter().filter(|prompt| prompt.ends_with("begins")).count();
    assert_eq!(begun, 1, "{point} {victim:?}: the startup prompt is sent once");
}

#[tokio::test]
async fn a_kill_at_any_step_of_a_switch_changes_nothing_about_the_end() {
    let points = points();
    assert!(points.len() >= 6, "{points:?}");
    for point in &points {
        for victim in [Victim::Daemon, Victim::Keeper, Victim::Agent] {
            Box::pin(one(point, victim, false)).await;
        }
        // Without a workflow to examine, only the end of the agent and the launch follow.
        if !point.starts_with("daemon.workflow.") {
            Box::pin(one(point, Victim::Daemon, true)).await;
        }
    }
}
