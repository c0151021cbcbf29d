//! What a session may use is enforced by its cgroup, and is nobody else's concern.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::lab::Lab;
use crate::harness::{require, until};

/// A file of the unit's cgroup, where a controller has it.
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
    // It is full, and can be talked to and stopped all the same.
    lab.worker(&["agentctl", "prompt", bounded.as_str(), "say still here"]);
    for session in [bounded, neighbour] {
        lab.worker(&["agentctl", "stop", session.as_str()]);
    }
    until("nobody is left", || !lab.try_worker(&["pgrep", "-x", "sleep"]).status.success()).await;
}
