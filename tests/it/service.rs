//! `agentctl service` as an ordinary user of a booted systemd (tests/systemd/lab), from a directory with a fresh build.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use agentd_api::SessionId;
use serde_json::{Value, json};

use crate::harness::lab::Lab;
use crate::harness::session::said;
use crate::harness::{paths, require};

const BUILD: &str = "/home/worker/build";

/// Returns a lab in which nothing is installed and a directory contains a build.
async fn bare() -> Lab {
    let lab = Lab::boot().await;
    lab.systemctl(&["disable", "--now", "agentd.socket"]);
    fs::create_dir_all(lab.path(BUILD)).expect("root may");
    for name in ["agentd", "agentd-keeper", "agentctl"] {
        let installed = lab.path("/home/worker/.local/bin").join(name);
        fs::copy(&installed, lab.path(BUILD).join(name)).expect("it is there");
        fs::remove_file(installed).expect("root may");
    }
    let units = lab.path("/home/worker/.config/systemd/user");
    for unit in fs::read_dir(&units).expect("it is there") {
        let unit = unit.expect("it can be listed").path();
        if unit.is_file() {
            fs::remove_file(unit).expect("root may");
        }
    }
    lab.systemctl(&["daemon-reload"]);
    // The worker owns the build, and can read the journal, as the first user of most distributions can.
    let groups = lab.path("/etc/group");
    let text = fs::read_to_string(&groups).expect("it is there");
    let text: Vec<String> = text
        .lines()
        .map(|line| if line.starts_with("systemd-journal:") { format!("{line}worker") } else { line.to_owned() })
        .collect();
    fs::write(groups, text.join("\n") + "\n").expect("root may");
    lab.write("/home/worker/build/README", "a build");
    lab
}

/// Makes another build of the same version. A byte after a program's end changes only the program's digest.
fn build_again(lab: &Lab) {
    for name in ["agentd", "agentd-keeper", "agentctl"] {
        let mut file = File::options().append(true).open(lab.path(BUILD).join(name)).expect("it is there");
        file.write_all(b"\n").expect("root may");
    }
}

fn service(lab: &Lab, words: &[&str]) -> Output {
    lab.try_worker(&[&["/home/worker/build/agentctl", "service"], words].concat())
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the output and the exit status of `status --json`.
fn status(lab: &Lab) -> (Value, Option<i32>) {
    let output = service(lab, &["status", "--json"]);
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (document, output.status.code())
}

fn property(lab: &Lab, unit: &str, name: &str) -> String {
    lab.systemctl(&["show", "--value", "-p", name, unit]).trim().to_owned()
}

fn counted(lab: &Lab, id: &SessionId) -> Vec<u32> {
    lab.journal(id).iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect()
}

async fn begin_to_count(lab: &Lab, id: &SessionId) {
    lab.worker(&["agentctl", "prompt", "--no-wait", id.as_str(), "count 300 10"]);
    lab.journal_shows(id, "the agent counts", |journal| journal.matches("agent_message_chunk").count() >= 20).await;
}

async fn turn_ends(lab: &Lab, id: &SessionId) {
    lab.journal_shows(id, "the turn ends", |journal| journal.contains("\"kind\":\"turn.ended\"")).await;
}

/// Returns whether the running service has this program, byte for byte.
fn runs(lab: &Lab, program: &Path) -> bool {
    let pid = property(lab, "agentd.service", "MainPID");
    let running = fs::read(lab.path(&format!("/proc/{pid}/exe"))).expect("it runs");
    running == fs::read(program).expect("it is there")
}

#[tokio::test]
async fn an_ordinary_user_installs_agentd_the_first_request_starts_it_and_an_upgrade_in_mid_turn_interrupts_no_session()
{
    let Some(()) = require::systemd() else { return };
    let lab = bare().await;
    let output = succeeds(&service(&lab, &["install", "--no-linger"]));
    assert!(output.contains("systemctl --user enable agentd.socket"), "{output}");
    assert!(output.contains("man pages in /home/worker/.local/share/man/man1\n"), "{output}");
    let (document, code) = status(&lab);
    assert_eq!((&document["socket"]["state"], &document["running"], code), (&json!("active"), &json!([]), Some(3)));
    assert_eq!(property(&lab, "agentd.service", "ActiveState"), "inactive", "it was not started by being asked for");
    for file in ["programs", "units", "documents"].iter().flat_map(|kind| document[kind].as_array().unwrap()) {
        assert_eq!(file["state"], "current", "{file}");
    }

    let id = lab.session();
    let (document, code) = status(&lab);
    assert_eq!((&document["running"][0]["active"], code), (&json!(1), Some(0)), "{document:#}");
    assert!(runs(&lab, &lab.path("/home/worker/.local/bin/agentd")));
    assert_eq!(succeeds(&service(&lab, &["install", "--no-linger"])), "everything is up to date\n");
    let doctor = |what: &str, outcomes: &[(&str, &str)]| {
        let view = lab.agentctl(&["doctor"]);
        for (name, outcome) in outcomes {
            let check = view["checks"].as_array().and_then(|checks| checks.iter().find(|check| check["name"] == *name));
            assert_eq!(check.map(|check| &check["outcome"]), Some(&json!(outcome)), "{what}, {name}: {view:#}");
        }
    };
    let well = ["service", "linger", "socket", "process", "versions", "directories", "disk", "agents", "sessions"];
    doctor("after the install", &well.map(|name| (name, if name == "agents" { "warn" } else { "pass" })));

    // The installed file is replaced, so the running program differs from it.
    let installed = lab.path("/home/worker/.local/bin/agentd");
    let content = fs::read(&installed).expect("it is there");
    fs::write(installed.with_extension("new"), [content.as_slice(), b"\n"].concat()).expect("root may");
    fs::set_permissions(installed.with_extension("new"), Permissions::from_mode(0o755)).expect("root may");
    fs::rename(installed.with_extension("new"), &installed).expect("root may");
    doctor("after another program was put there", &[("process", "warn"), ("socket", "pass")]);
    fs::write(installed.with_extension("old"), content).expect("root may");
    fs::set_permissions(installed.with_extension("old"), Permissions::from_mode(0o755)).expect("root may");
    fs::rename(installed.with_extension("old"), &installed).expect("root may");

    // A build that cannot read the present session documents is refused, and nothing changes.
    let (build, agent) =
        (lab.path(BUILD).join("agentd"), lab.agentctl(&["show", id.as_str()])["status"]["agent_pid"].clone());
    let good = fs::read(&build).expect("it is there");
    let knows = json!({ "version": "9.0.0", "keeper_protocols": [9], "session_documents": [9], "trust_records": [1],
        "environments": [9] });
    fs::write(&build, format!("#!/bin/sh\necho '{knows}'\n")).expect("root may");
    let refused = service(&lab, &["install", "--no-linger"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("the new build cannot take over"), "{refused:?}");
    assert!(said.contains(&format!("session {id}")), "the keeper that runs is named: {said}");
    assert!(runs(&lab, &lab.path("/home/worker/.local/bin/agentd")));
    fs::write(&build, good).expect("root may");

    begin_to_count(&lab, &id).await;
    build_again(&lab);
    let before = property(&lab, "agentd.service", "MainPID");
    let output = succeeds(&service(&lab, &["install", "--no-linger"]));
    assert!(output.contains("wait until agentd answers with version"), "{output}");
    assert_ne!(property(&lab, "agentd.service", "MainPID"), before);
    assert!(runs(&lab, &build), "the new one");
    turn_ends(&lab, &id).await;
    assert_eq!(counted(&lab, &id), (1..=300).collect::<Vec<u32>>());
    let view = lab.agentctl(&["show", id.as_str()]);
    assert_eq!((&view["status"]["agent_pid"], &view["status"]["launches"]), (&agent, &json!(1)), "{view:#}");

    let log = succeeds(&service(&lab, &["logs", "--session", id.as_str()]));
    assert!(log.contains("agentd["), "{log}");
    let log = succeeds(&service(&lab, &["logs", "--lines", "200"]));
    assert!(log.contains("agentd is ready"), "{log}");
}

#[tokio::test]
async fn an_upgrade_whose_daemon_does_not_start_leaves_the_one_before_running_and_uninstall_leaves_nothing_of_its_own()
{
    let Some(()) = require::systemd() else { return };
    let lab = bare().await;
    succeeds(&service(&lab, &["install", "--no-linger"]));
    let id = lab.session();
    let build = lab.path(BUILD).join("agentd");
    let (good, knows) =
        (fs::read(&build).expect("it is there"), lab.worker(&["/home/worker/build/agentd", "compatibility"]));
    fs::write(&build, format!("#!/bin/sh\n[ \"$1\" != compatibility ] || {{ echo '{knows}'; exit; }}\nexit 1\n"))
        .expect("root may");
    let output = service(&lab, &["install", "--no-linger"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("every earlier step was undone"), "{output:?}");
    assert_eq!(property(&lab, "agentd.service", "ActiveState"), "active");
    fs::write(&build, good).expect("root may");
    assert!(runs(&lab, &build), "the one before");
    assert_eq!(lab.agentctl(&["show", id.as_str()])["status"]["launches"], 1);

    succeeds(&service(&lab, &["uninstall"]));
    let unit = format!("agentd-session-{id}.service");
    assert_eq!(property(&lab, &unit, "ActiveState"), "active", "the session goes on");
    for unit in ["agentd.service", "agentd.socket"] {
        assert_eq!(property(&lab, unit, "LoadState"), "not-found");
        assert_eq!(property(&lab, unit, "ActiveState"), "inactive");
    }
    let left = |directory: &str| -> Vec<String> {
        let found = lab.worker(&["find", directory, "-not", "-type", "d"]);
        found.lines().map(str::to_owned).collect()
    };
    assert_eq!(left("/home/worker/.local/bin"), ["/home/worker/.local/bin/scripted-agent"]);
    assert_eq!(left("/home/worker/.config/systemd"), Vec::<String>::new());
    assert_eq!(left("/home/worker/.local/share"), Vec::<String>::new());
    assert_eq!(left("/home/worker/.config/fish"), Vec::<String>::new());
    assert!(lab.path("/home/worker/.local/state/agentd/sessions").join(id.as_str()).exists(), "state stays");

    // The next installation takes the session over, and `--drain` ends it.
    succeeds(&service(&lab, &["install", "--no-linger"]));
    assert_eq!(lab.agentctl(&["show", id.as_str()])["status"]["launches"], 1);
    succeeds(&service(&lab, &["uninstall", "--drain"]));
    assert_ne!(property(&lab, &unit, "ActiveState"), "active");
}

#[tokio::test]
async fn an_install_takes_over_the_sessions_of_an_agentd_that_no_manager_started() {
    let Some(()) = require::systemd() else { return };
    let lab = bare().await;
    let made = lab.worker(&[
        "/home/worker/build/agentctl",
        "--json",
        "new",
        "--agent",
        "scripted",
        "--dir",
        "/home/worker/project",
        "--ready",
        "60",
    ]);
    let made: Value = serde_json::from_str(&made).expect("it is JSON");
    let id: SessionId = made["id"].as_str().and_then(|id| id.parse().ok()).expect("it has an id");
    let (document, code) = status(&lab);
    let stray = document["running"][0]["pid"].clone();
    assert_eq!((&document["running"][0]["unit"], code), (&Value::Null, Some(0)), "{document:#}");

    let output = succeeds(&service(&lab, &["install", "--no-linger"]));
    assert!(output.contains(&format!("(pid {stray}); its sessions continue")), "{output}");
    let view = lab.agentctl(&["show", id.as_str()]);
    assert_eq!(
        (&view["status"]["agent_pid"], &view["status"]["launches"]),
        (&made["status"]["agent_pid"], &json!(1)),
        "{view:#}"
    );
    let (document, _) = status(&lab);
    assert_eq!(document["running"][0]["unit"], "agentd.service", "{document:#}");
}

#[test]
fn an_install_that_is_interrupted_leaves_everything_as_it_was() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let (home, bin) = (root.path().join("home"), root.path().join("bin"));
    fs::create_dir(&home).expect("it is empty");
    fs::create_dir(&bin).expect("it is empty");
    let stand_in = "#!/bin/sh\necho \"$*\" >> \"$(dirname \"$0\")/../calls\"\n\
                    case $* in *'enable agentd.socket') kill -INT $PPID;; esac\n";
    fs::write(bin.join("systemctl"), stand_in).expect("it is empty");
    fs::set_permissions(bin.join("systemctl"), Permissions::from_mode(0o755)).expect("it is ours");
    let output = Command::new(paths::agentctl())
        .arg("--socket")
        .arg(root.path().join("none.sock"))
        .args(["service", "install", "--manager", "systemd", "--no-linger"])
        .env_clear()
        .env("HOME", &home)
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .stdin(Stdio::null())
        .output()
        .expect("agentctl can be executed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("every earlier step was undone: interrupted"), "{said}");
    let calls = fs::read_to_string(root.path().join("calls")).expect("it was called");
    assert!(!calls.contains("start agentd.socket") && calls.contains("disable agentd.socket"), "{calls}");
    let mut left = vec![home];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("it can be listed") {
            let path = entry.expect("it can be listed").path();
            assert!(path.is_dir(), "{} is left", path.display());
            left.push(path);
        }
    }
}

#[tokio::test]
async fn an_administrator_installs_the_template_for_a_user_and_an_upgrade_interrupts_no_session_of_the_user() {
    let Some(()) = require::systemd() else { return };
    let lab = bare().await;
    let as_root = |words: &[&str]| lab.root(&[&["/home/worker/build/agentctl", "service"], words].concat());
    as_root(&["install", "--system", "--user", "worker"]);
    let id = lab.session();
    assert_eq!(lab.root(&["systemctl", "is-active", "agentd@worker.service"]), "active\n");
    as_root(&["status", "--system", "--user", "worker"]);
    let before = lab.agentctl(&["show", id.as_str()]);

    begin_to_count(&lab, &id).await;
    build_again(&lab);
    let output = as_root(&["install", "--system"]);
    assert!(output.contains("wait until agentd of worker answers"), "{output}");
    turn_ends(&lab, &id).await;
    assert_eq!(counted(&lab, &id), (1..=300).collect::<Vec<u32>>());
    let after = lab.agentctl(&["show", id.as_str()]);
    assert_eq!(
        (&after["status"]["agent_pid"], &after["status"]["launches"]),
        (&before["status"]["agent_pid"], &json!(1))
    );

    let refused = service(&lab, &["install", "--no-linger"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("agentd runs for you as agentd@worker.service"), "{refused:?}");
    let doctor = lab.agentctl(&["doctor"]);
    let installed =
        doctor["checks"].as_array().and_then(|checks| checks.iter().find(|check| check["name"] == "service"));
    assert_eq!(installed.map(|check| &check["outcome"]), Some(&json!("pass")), "{doctor:#}");

    as_root(&["uninstall", "--system", "--user", "worker"]);
    assert!(lab.path("/etc/systemd/system/agentd@.service").exists(), "it is there for other users");
    assert_eq!(property(&lab, &format!("agentd-session-{id}.service"), "ActiveState"), "active");
    as_root(&["uninstall", "--system"]);
    for path in [
        "/etc/systemd/system/agentd@.service",
        "/usr/local/bin/agentd",
        "/etc/systemd/user/agentd-sessions.slice",
        "/usr/local/share/man/man1/agentctl.1",
        "/usr/local/share/bash-completion/completions/agentctl",
    ] {
        assert!(!lab.path(path).exists(), "{path}");
    }
}
