//! Each session runs in its own unit. The tests check the unit's name and properties, and that no process remains after
//! its end.

use agentd_api::SessionId;

use super::{begin_to_count, counted, turn_ends};
use crate::harness::lab::Lab;
use crate::harness::{require, until};

#[tokio::test]
async fn a_session_is_a_unit_of_its_own_that_a_stop_of_the_service_leaves_and_its_own_stop_empties() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let id = lab.session();
    let unit = format!("agentd-session-{id}.service");
    let active = || lab.try_worker(&["systemctl", "--user", "is-active", &unit]).status.success();
    assert!(active(), "{}", lab.systemctl(&["list-units", "agentd*"]));
    let properties = lab.systemctl(&["show", &unit]);
    assert!(!properties.contains("EDITOR"), "the unit's properties hold the environment:\n{properties}");

    begin_to_count(&lab, &id, 20).await;
    lab.systemctl(&["stop", "agentd.service"]);
    assert!(active(), "the session's unit ended with the service");
    lab.journal_shows(&id, "the agent has counted to the end", |journal| journal.contains("\"300\\n\"")).await;
    // The socket still listens, so the next request starts the service again.
    turn_ends_after_a_look(&lab, &id).await;
    assert_eq!(counted(&lab, &id), (1..=300).collect::<Vec<u32>>());

    lab.worker(&["agentctl", "stop", id.as_str()]);
    until("the session's unit is gone", || !active()).await;
    assert!(!lab.try_worker(&["pgrep", "-x", "scripted-agent"]).status.success(), "an agent is left");
}

#[tokio::test]
async fn a_unit_starts_beside_the_environment_and_ends_with_a_launch_that_fails() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let id = lab.session();
    let unit = format!("agentd-session-{id}.service");
    let property = |name: &str| lab.systemctl(&["show", "--value", "-p", name, &unit]);
    let started = property("ExecStart");
    assert!(started.contains(&format!("/agentd-keeper standby hold --session {id} ")), "{started}");
    // The process shows its present role.
    let shown = lab.worker(&["ps", "-o", "args=", "-p", property("MainPID").trim()]);
    assert!(shown.contains(&format!("/agentd-keeper hold --session {id} ")), "{shown}");
    lab.worker(&["agentctl", "stop", id.as_str()]);

    let script = "/home/worker/.config/agentd/env-setup.sh";
    lab.write(script, "exit 3\n");
    let failed = lab.try_worker(&["agentctl", "resume", id.as_str()]);
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && said.contains("ended with status 3"), "{failed:?}");
    until("the unit of the failed launch is gone", || {
        !lab.systemctl(&["list-units", "--all", "agentd-session-*"]).contains(&unit)
    })
    .await;
    lab.write(script, "export FIXED=yes\n");
    lab.worker(&["agentctl", "resume", id.as_str()]);
    assert!(property("ExecStart").contains(" standby hold "));
}

/// Sends a request, which starts a daemon, and waits until the turn has ended.
async fn turn_ends_after_a_look(lab: &Lab, id: &SessionId) {
    lab.agentctl(&["show", id.as_str()]);
    turn_ends(lab, id).await;
}

#[tokio::test]
async fn status_says_whose_unit_it_is_whatever_the_directory_is_called() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let directory = "/home/worker/100%h \u{1b}[31m";
    lab.worker(&["mkdir", directory]);
    let id = lab.session_in(directory, &["--name", "fix-it", "--cpu-weight", "20"]);
    let unit = format!("agentd-session-{id}.service");
    let description = lab.systemctl(&["show", "--value", "-p", "Description", &unit]);
    assert_eq!(description, "agentd: fix-it, scripted in /home/worker/100%h \u{fffd}[31m\n");
    let status = lab.worker(&["systemctl", "--user", "--no-pager", "status", &unit]);
    assert!(status.lines().next().is_some_and(|line| line.contains("agentd: fix-it, scripted in ")), "{status}");
    // The slice limits all sessions of the user together.
    let groups = lab.cgroups(&unit);
    assert!(
        !groups.is_empty() && groups.iter().all(|group| group.parent().unwrap().ends_with("agentd-sessions.slice"))
    );
    let weight = groups.iter().find_map(|group| {
        let shares = std::fs::read_to_string(group.join("cpu.shares"));
        // A weight of 100 corresponds to 1024 shares (systemd.resource-control(5)).
        let shares = shares.map(|shares| shares.trim().parse::<u64>().unwrap() * 100 / 1024);
        shares.ok().or_else(|| std::fs::read_to_string(group.join("cpu.weight")).ok()?.trim().parse().ok())
    });
    assert!(weight.is_none_or(|weight| weight == 19 || weight == 20), "{weight:?}");
    lab.worker(&["agentctl", "stop", id.as_str()]);
    let refused = lab.try_worker(&["agentctl", "new", "--dir", directory, "--cpu-weight", "0"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[tokio::test]
async fn a_stop_leaves_no_process_in_any_cgroup_of_a_session_whose_tools_left_their_process_sessions_and_its_cgroup() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let id = lab.session_in("/home/worker/project", &["--permissions", "allow"]);
    let unit = format!("agentd-session-{id}.service");
    let groups = lab.cgroups(&unit);
    // The cgroup that systemd gave to the unit. A tool may create other cgroups below it.
    let inside = lab.systemctl(&["show", "--value", "-p", "ControlGroup", &unit]);
    let script = format!(
        "tool cd /sys/fs/cgroup/systemd{0} 2>/dev/null || cd /sys/fs/cgroup{0}; mkdir sub && \
         (setsid sh -c 'echo $$ > sub/cgroup.procs; exec sleep 4000' & setsid setsid sleep 4000 &) \
         >/dev/null 2>&1; while [ -z \"$(cat sub/cgroup.procs)\" ]; do sleep 0.05; done",
        inside.trim()
    );
    lab.worker(&["agentctl", "prompt", id.as_str(), &format!("setsid-child\ndaemonize\n{script}")]);
    turn_ends(&lab, &id).await;
    let processes = |groups: &[std::path::PathBuf]| -> Vec<String> {
        groups.iter().flat_map(|group| below(group)).filter_map(|file| std::fs::read_to_string(file).ok()).collect()
    };
    let before = processes(&groups);
    assert!(groups.iter().any(|group| group.join("sub").is_dir()), "the tool made no cgroup: {before:?}");
    lab.worker(&["agentctl", "stop", id.as_str()]);
    until("no process is left", || processes(&groups).iter().all(|list| list.trim().is_empty())).await;
    let runs = |name: &str| lab.try_worker(&["pgrep", "-x", name]).status.success();
    for name in ["sleep", "scripted-agent"] {
        assert!(!runs(name), "a {name} is left");
    }
    // A lookup process of the daemon may wait for its next lookup.
    let holds = || lab.try_worker(&["pgrep", "-f", "agentd-keeper hold"]).status.success();
    until("no agentd-keeper is left", || !holds()).await;
}

/// Returns the path of each `cgroup.procs` at and below this cgroup.
fn below(group: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = vec![group.join("cgroup.procs")];
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(below(&entry.path()));
        }
    }
    found
}

#[tokio::test]
async fn journalctl_shows_daemon_keeper_and_the_agents_stderr_of_one_session_and_of_no_other() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let (id, other) = (lab.session(), lab.session());
    for (session, text) in [(&id, "of this one"), (&other, "of the other one")] {
        lab.worker(&["agentctl", "prompt", session.as_str(), &format!("stderr {text}")]);
    }
    lab.worker(&["agentctl", "stop", id.as_str()]);
    let field = format!("AGENTD_SESSION={id}");
    let mut entries = Vec::new();
    until("journald has the keeper's last word", || {
        let told = lab.journalctl(&["-o", "json", &field]);
        entries = told.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()).collect();
        entries.iter().any(|entry| entry["MESSAGE"].as_str().is_some_and(|text| text.starts_with("the agent ended")))
    })
    .await;
    let said_by = |who: &str| -> Vec<&str> {
        let by = entries.iter().filter(|entry| entry["SYSLOG_IDENTIFIER"] == who);
        by.filter_map(|entry| entry["MESSAGE"].as_str()).collect()
    };
    assert!(said_by("agentd").iter().any(|text| text.contains("is idle")), "{entries:#?}");
    assert!(said_by("agentd-keeper").iter().any(|text| text.starts_with("launch 1 of the agent")), "{entries:#?}");
    assert!(said_by("agentd-agent").contains(&"of this one"), "{entries:#?}");
    assert!(!said_by("agentd-agent").contains(&"of the other one"), "{entries:#?}");
    // journald itself records the unit and the user.
    let unit = format!("agentd-session-{id}.service");
    let agents = entries.iter().find(|entry| entry["SYSLOG_IDENTIFIER"] == "agentd-agent").expect("as above");
    assert_eq!((&agents["_SYSTEMD_USER_UNIT"], &agents["_UID"]), (&unit.into(), &"4711".into()));
    let mut stop = serde_json::Value::Null;
    until("journald has the audit record of the stop", || {
        let audited = lab.journalctl(&["-o", "json", "AGENTD_AUDIT=1", &field]);
        let mut audited = audited.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let found = audited.find(|entry| entry["MESSAGE"].as_str().is_some_and(|text| text.contains("/stop")));
        stop = found.unwrap_or_default();
        !stop.is_null()
    })
    .await;
    assert_eq!((&stop["AGENTD_CALLER_UID"], &stop["AGENTD_STATUS"]), (&"4711".into(), &"202".into()), "{stop:#?}");
}
