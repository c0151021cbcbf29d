//! Tests of agentd as a service of a user's systemd, in a booted lab (tests/systemd/lab).

mod boundary;
mod bounds;
mod credentials;
mod doctor;
mod guard;
mod lost;
mod mistakes;
mod readers;
mod recovery;
mod schedules;
mod sessions;
mod template;

use std::collections::BTreeMap;
use std::process::Stdio;

use agentd_api::SessionId;
use agentd_api::event::Body;
use serde_json::Value;

use crate::harness::lab::{Lab, login};
use crate::harness::planted::{Planted, found_below, found_in};
use crate::harness::session::said;
use crate::harness::{require, until};

/// Returns the numbers that the prompt `count` has printed.
fn counted(lab: &Lab, id: &SessionId) -> Vec<u32> {
    lab.journal(id).iter().filter_map(said).filter_map(|text| text.trim().parse().ok()).collect()
}

/// Prompts a session without a wait for the answer. Returns after the agent has counted to `at_least`.
async fn begin_to_count(lab: &Lab, id: &SessionId, at_least: usize) {
    lab.worker(&["agentctl", "prompt", "--no-wait", id.as_str(), "count 300 10"]);
    lab.journal_shows(id, "the agent counts", |journal| journal.matches("agent_message_chunk").count() >= at_least)
        .await;
}

async fn turn_ends(lab: &Lab, id: &SessionId) {
    lab.journal_shows(id, "the turn ends", |journal| journal.contains("\"kind\":\"turn.ended\"")).await;
}

#[tokio::test]
async fn the_units_are_valid_and_the_first_request_starts_the_service_which_says_what_it_does() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let units = ["agentd.service", "agentd.socket", "agentd-sessions.slice"]
        .map(|unit| format!("/home/worker/.config/systemd/user/{unit}"));
    let verify = lab.try_worker(&["systemd-analyze", "verify", "--user", &units[0], &units[1], &units[2]]);
    // The command also exits with 0 for an unknown key, so the test requires empty output.
    assert!(verify.status.success() && verify.stderr.is_empty(), "{verify:?}");

    let state =
        |property: &str| lab.systemctl(&["show", "--value", "-p", property, "agentd.service"]).trim().to_owned();
    assert_eq!(state("ActiveState"), "inactive");
    lab.agentctl(&["ls"]);
    assert_eq!(state("ActiveState"), "active");
    assert_eq!(state("NRestarts"), "0");
    let status = lab.worker(&["systemctl", "--user", "--no-pager", "status", "agentd.service"]);
    let line = status.lines().find(|line| line.trim_start().starts_with("Status:"));
    assert!(line.is_some_and(|line| line.contains("session")), "no status line that speaks of sessions:\n{status}");
}

#[tokio::test]
async fn a_reload_of_the_service_takes_the_new_configuration_and_fails_where_that_is_wrong() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let id = lab.session();
    let state =
        |property: &str| lab.systemctl(&["show", "--value", "-p", property, "agentd.service"]).trim().to_owned();
    let pid = state("MainPID");
    let reload = || lab.try_worker(&["systemctl", "--user", "reload", "agentd.service"]);
    let config = "/home/worker/.config/agentd/agentd.toml";
    let text = std::fs::read_to_string(lab.path(config)).expect("it is there");
    lab.write(config, &format!("{text}\n[plugins.whitelist]\nsettings = {{ allow = [\"PLANTED\"] }}\n"));
    assert!(reload().status.success());
    assert_eq!(lab.agentctl(&["plugin", "show", "whitelist"])["settings"]["allow"][0], "PLANTED");
    lab.write(config, "[limits\n");
    assert!(!reload().status.success(), "a reload of what is no TOML succeeds");
    assert_eq!(lab.agentctl(&["plugin", "show", "whitelist"])["settings"]["allow"][0], "PLANTED");
    lab.write(config, &text);
    lab.systemctl(&["kill", "-s", "HUP", "--kill-who", "main", "agentd.service"]);
    until("the signal has reloaded it", || {
        lab.agentctl(&["plugin", "show", "whitelist"])["settings"].as_object().is_some_and(serde_json::Map::is_empty)
    })
    .await;
    // The manager saw the start and the end of the reload.
    until("the service is active and not reloading any more", || state("ActiveState") == "active").await;
    assert_eq!((state("MainPID"), state("NRestarts").as_str()), (pid, "0"));
    assert_eq!(lab.agentctl(&["show", id.as_str()])["status"]["launches"], 1);
}

#[tokio::test]
async fn the_log_is_in_the_journal_with_the_session_as_a_field() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let id = lab.session();
    let mut entries = Vec::new();
    until("journald has an entry of the session", || {
        let query = ["-o", "json", "_SYSTEMD_USER_UNIT=agentd.service", &format!("AGENTD_SESSION={id}")];
        entries = lab.journalctl(&query).lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
        !entries.is_empty()
    })
    .await;
    for entry in entries {
        assert!(entry["PRIORITY"].is_string() && entry["MESSAGE"].is_string(), "{entry}");
        assert_eq!(entry["SYSLOG_IDENTIFIER"], "agentd", "{entry}");
    }
}

/// Returns the environment of a new session's agent.
async fn environment(lab: &Lab) -> BTreeMap<String, String> {
    let id = lab.session();
    lab.worker(&["agentctl", "prompt", id.as_str(), "env"]);
    turn_ends(lab, &id).await;
    let text: String = lab.journal(&id).iter().filter_map(said).collect();
    lab.worker(&["agentctl", "stop", id.as_str()]);
    serde_json::from_str(&text.replace(id.as_str(), "SESSION")).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn the_environment_is_the_same_under_systemd_from_a_terminal_with_two_hundred_variables_and_from_env_i() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let systemd = environment(&lab).await;
    lab.systemctl(&["stop", "agentd.socket", "agentd.service"]);

    let mut terminal = login();
    terminal.extend((0..200).map(|n| (format!("PLANTED_{n}"), "planted".to_owned())));
    terminal.extend(
        [("TERM", "xterm"), ("EDITOR", "planted"), ("SSH_TTY", "/dev/pts/0")].map(|(n, v)| (n.into(), v.into())),
    );
    let mut seen = Vec::new();
    for variables in [terminal, Vec::new()] {
        let mut daemon = lab
            .as_worker(&variables, &["/home/worker/.local/bin/agentd", "serve"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nsenter runs");
        until("agentd answers", || {
            assert!(daemon.try_wait().expect("it can be waited for").is_none(), "agentd ended");
            lab.try_worker(&["test", "-S", "/run/user/4711/agentd/control.sock"]).status.success()
        })
        .await;
        seen.push(environment(&lab).await);
        lab.worker(&["pkill", "-TERM", "-x", "agentd"]);
        until("agentd ends", || daemon.try_wait().expect("it can be waited for").is_some()).await;
    }
    assert_eq!(systemd, seen[0], "systemd and a terminal");
    assert_eq!(systemd, seen[1], "systemd and env -i");
    assert_eq!(systemd.get("EDITOR").map(String::as_str), Some("ed"), "the login shell's: {systemd:#?}");
}

#[tokio::test]
async fn a_secret_of_a_file_and_one_of_a_credential_reach_the_agent_and_stand_in_no_unit_and_no_log() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let planted =
        [Planted::new("FROM_FILE", "{}"), Planted::new("FROM_CREDENTIAL", "{}"), Planted::new("API_KEY", "{}")];
    lab.write("/home/worker/keys/file", &planted[0].value);
    lab.write("/home/worker/keys/credential", &planted[1].value);
    let config = "/home/worker/.config/agentd/agentd.toml";
    let text = std::fs::read_to_string(lab.path(config)).expect("it is there")
        + "\n[secrets.FROM_FILE]\nfile = \"~/keys/file\"\n[secrets.FROM_CREDENTIAL]\ncredential = \"key\"\n\
           [secrets.API_KEY]\nsnapshot = \"API_KEY\"\n";
    lab.write(config, &text);
    lab.write(
        "/home/worker/.config/systemd/user/agentd.service.d/key.conf",
        "[Service]\nLoadCredential=key:/home/worker/keys/credential\n",
    );
    let profile = format!("export PATH=\"$HOME/.local/bin:$PATH\" API_KEY={}\n", planted[2].value);
    lab.write("/home/worker/.profile", &profile);
    lab.systemctl(&["daemon-reload"]);

    let id = lab.session_in("/home/worker/project", &["--permissions", "allow"]);
    lab.worker(&["agentctl", "prompt", id.as_str(), "env\ntool echo \"to journald: $FROM_FILE $API_KEY\" >&2"]);
    turn_ends(&lab, &id).await;
    let said: String = lab.journal(&id).iter().filter_map(said).collect();
    for one in &planted {
        assert!(said.contains(&format!("\"{}\":\"‹secret›\"", one.name)), "{}: {said}", one.name);
    }
    let nothing = std::collections::BTreeSet::new();
    for unit in [format!("agentd-session-{id}.service"), "agentd.service".to_owned()] {
        let properties = lab.systemctl(&["show", &unit]);
        assert!(properties.contains("ActiveState=active"), "{properties}");
        assert_eq!(found_in(properties.as_bytes(), &planted), nothing, "{unit}");
    }
    assert_eq!(found_in(lab.worker(&["systemctl", "--user", "show-environment"]).as_bytes(), &planted), nothing);
    lab.worker(&["agentctl", "stop", id.as_str()]);
    let log = lab.journalctl(&["-o", "json", "--all"]);
    assert!(log.contains("to journald: ‹secret› ‹secret›"), "journald was told nothing");
    assert_eq!(found_in(log.as_bytes(), &planted), nothing);
    for directory in ["/home/worker/.local/state/agentd", "/home/worker/.cache/agentd", "/run/user/4711/agentd"] {
        assert_eq!(found_below(&lab.path(directory), &planted), Vec::<String>::new());
    }
    assert_eq!(found_below(&lab.path("/home/worker/keys"), &planted).len(), 2, "the search sees what is there");
}

#[tokio::test]
async fn a_restart_of_the_service_in_mid_turn_leaves_the_session_and_its_turn_whole() {
    let Some(()) = require::systemd() else { return };
    let lab = Lab::boot().await;
    let id = lab.session();
    let before = lab.agentctl(&["show", id.as_str()]);
    begin_to_count(&lab, &id, 20).await;
    lab.systemctl(&["restart", "agentd.service"]);
    turn_ends(&lab, &id).await;
    let after = lab.agentctl(&["show", id.as_str()]);
    assert_eq!(after["status"]["agent_pid"], before["status"]["agent_pid"], "{after:#}");
    assert_eq!(after["status"]["launches"], 1, "{after:#}");
    assert_eq!(counted(&lab, &id), (1..=300).collect::<Vec<u32>>());
    let stop_reasons: Vec<Option<String>> = lab
        .journal(&id)
        .into_iter()
        .filter_map(|event| match event.body {
            Body::TurnEnded(ended) => Some(ended.stop_reason),
            _ => None,
        })
        .collect();
    assert_eq!(stop_reasons, [Some("end_turn".to_owned())]);
}
