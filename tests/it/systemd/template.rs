//! agentd as an administrator runs it for a user. The daemon is in a sandbox, and the sessions are outside this
//! sandbox.

use std::collections::BTreeMap;

use agentd_api::SessionId;

use super::{begin_to_count, counted, environment, turn_ends};
use crate::harness::lab::Lab;
use crate::harness::session::said;
use crate::harness::{paths, require};

#[test]
fn the_template_is_exposed_by_2_at_most() {
    let Some(()) = require::systemd() else { return };
    let unit = paths::checkout().join("units/systemd/system/agentd@.service");
    let judged = std::process::Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20", "--no-pager"])
        .arg(unit)
        .output()
        .expect("systemd-analyze can be executed");
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
}

/// Returns the agent's answer to a prompt, which must be the only turn of this launch.
async fn answer(lab: &Lab, id: &SessionId, prompt: &str) -> String {
    let before = lab.journal(id).len();
    lab.worker(&["agentctl", "prompt", id.as_str(), prompt]);
    turn_ends(lab, id).await;
    lab.journal(id)[before..].iter().filter_map(said).collect()
}

const CONFIGURED: &str = r#"
[plugins.command]
grant = { command = ["/usr/bin/test **"] }
[prerequisites.home]
plugin = "command"
settings = { program = "/usr/bin/test", arguments = ["-w", "/home/worker"] }
required_by = "all"
[prerequisites.root]
plugin = "mount"
settings = { path = "/" }
required_by = "all"
"#;

#[tokio::test]
async fn a_whole_session_of_an_ordinary_user_runs_under_the_template_and_its_agent_outside_of_the_sandbox() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let by_the_users_service = environment(&lab).await;
    lab.administer();
    assert_eq!(environment(&lab).await, by_the_users_service, "an agent's environment, whoever runs agentd");
    let verify = lab.command(["systemd-analyze", "verify", "agentd@worker.service", "agentd@worker.socket"]).output();
    let verify = verify.expect("nsenter can be executed");
    assert!(verify.status.success() && verify.stderr.is_empty(), "{verify:?}");

    let config = "/home/worker/.config/agentd/agentd.toml";
    let text = std::fs::read_to_string(lab.path(config)).expect("it is there") + CONFIGURED;
    lab.write(config, &text);
    // The agent sees the file that the environment script creates in /tmp.
    lab.write(
        "/home/worker/project/.agentd-env.sh",
        "echo made > /tmp/by-script\nexport FROM_SCRIPT=$(cat /proc/self/status | sed -n 's/^NoNewPrivs:.//p')\n",
    );
    lab.worker(&["agentctl", "env", "allow", "/home/worker/project", "--yes"]);

    let id = lab.session_in("/home/worker/project", &["--permissions", "allow"]);
    assert_eq!(lab.root(&["systemctl", "is-active", "agentd@worker.service"]), "active\n");
    assert!(!lab.try_worker(&["systemctl", "--user", "is-active", "agentd.service"]).status.success());
    let view = lab.agentctl(&["show", id.as_str()]);
    let conditions: BTreeMap<&str, &str> = view["status"]["conditions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| (c["type"].as_str().unwrap(), c["status"].as_str().unwrap()))
        .collect();
    for kind in ["PrerequisitesMet", "SnapshotFresh", "EnvironmentReady", "ConversationReady"] {
        assert_eq!(conditions.get(kind), Some(&"True"), "{kind}: {view:#}");
    }
    let variables = answer(&lab, &id, "env").await;
    assert!(variables.contains("\"EDITOR\":\"ed\""), "the login shell's: {variables}");
    assert!(variables.contains("\"FROM_SCRIPT\":\"1\""), "the script's, from inside of the sandbox: {variables}");

    // The agent runs outside the sandbox, in the namespaces of the user's manager.
    let look = "tool touch $HOME/project/written /var/tmp/written && cat /tmp/by-script && ls -d /home && \
                readlink /proc/self/ns/mnt /proc/self/ns/user && grep -E 'NoNewPrivs|Seccomp:' /proc/self/status";
    let inside = answer(&lab, &id, look).await;
    let manager = lab.worker(&["pgrep", "-U", "worker", "-x", "systemd"]);
    let manager = manager.trim();
    let of = |pid: &str, kind: &str| lab.root(&["readlink", &format!("/proc/{pid}/ns/{kind}")]);
    let expected = format!("made\n/home\n{}{}NoNewPrivs:\t0\nSeccomp:\t0\n", of(manager, "mnt"), of(manager, "user"));
    assert_eq!(inside, expected);
    assert!(lab.path("/home/worker/project/written").exists());
    let daemon = lab.root(&["systemctl", "show", "--value", "-p", "MainPID", "agentd@worker.service"]);
    assert_ne!(of(daemon.trim(), "mnt"), of(manager, "mnt"), "the daemon is in no sandbox");
    let kept = std::fs::read_to_string(lab.path(&format!("/proc/{}/status", daemon.trim()))).expect("it runs");
    assert!(kept.contains("NoNewPrivs:\t1") && kept.contains("Seccomp:\t2"), "{kept}");
    assert!(
        lab.journalctl(&["-u", "agentd@worker.service"]).contains("interpret"),
        "the log says that plugins are interpreted"
    );

    // A restart of the service leaves the session unchanged.
    begin_to_count(&lab, &id, 20).await;
    lab.root(&["systemctl", "restart", "agentd@worker.service"]);
    lab.journal_shows(&id, "the agent has counted to the end", |journal| journal.contains("\"300\\n\"")).await;
    lab.agentctl(&["show", id.as_str()]);
    turn_ends(&lab, &id).await;
    assert_eq!(counted(&lab, &id), (1..=300).collect::<Vec<u32>>());
    lab.root(&["systemctl", "reload", "agentd@worker.service"]);

    lab.worker(&["agentctl", "stop", id.as_str()]);
    lab.worker(&["agentctl", "resume", id.as_str()]);
    let remembered = answer(&lab, &id, "remember").await;
    assert!(remembered.contains("count 300 10"), "{remembered}");
    lab.worker(&["agentctl", "stop", id.as_str()]);
    lab.worker(&["agentctl", "rm", id.as_str()]);
}

#[tokio::test]
async fn without_a_manager_of_the_user_a_session_fails_and_says_how_to_have_one() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    lab.administer();
    lab.root(&["loginctl", "disable-linger", "worker"]);
    lab.root(&["systemctl", "stop", "user@4711.service"]);
    let made =
        lab.try_worker(&["agentctl", "new", "--agent", "scripted", "--dir", "/home/worker/project", "--ready", "60"]);
    assert!(!made.status.success(), "{made:?}");
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(said.contains("loginctl enable-linger"), "{said}");
    // After the user's manager has started again, the daemon finds it.
    lab.root(&["loginctl", "enable-linger", "worker"]);
    lab.root(&["systemctl", "start", "user@4711.service"]);
    let id = lab.session();
    lab.worker(&["agentctl", "stop", id.as_str()]);
}
