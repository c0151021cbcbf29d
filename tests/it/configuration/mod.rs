//! A configuration with a mistake. Sessions that run continue, the daemon launches no new ones, and it reports the
//! place of the mistake.

mod tool;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use agentd_api::doctor::DoctorView;
use agentd_api::plugin::ReloadView;
use agentd_api::prerequisite::Outcome;
use agentd_api::session::{ConditionType, PermissionPolicy, Phase, RestartPolicy, SessionView};
use agentd_api::{Code, Problem};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::harness::planted::Planted;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, process, require, within};

fn file(daemon: &Daemon) -> PathBuf {
    daemon.root().join("config/agentd.toml")
}

/// Adds a mistake to the configuration and restarts the daemon. Returns the earlier configuration.
async fn restart_with(daemon: &mut Daemon, mistake: &str) -> String {
    let right = fs::read_to_string(file(daemon)).unwrap();
    daemon.terminate().await;
    fs::write(file(daemon), format!("{right}{mistake}")).unwrap();
    daemon.run().await;
    right
}

async fn reload(daemon: &Daemon) -> ReloadView {
    daemon.client.call("POST", "/v1/reload", "").await.expect(200)
}

/// Returns the status of `/readyz` after the daemon has read all sessions.
async fn readiness(daemon: &Daemon) -> u16 {
    let starting = async || {
        let response = daemon.client.get("/readyz").await;
        let is_starting = response.status != 200 && reasons(&response.problem()).contains(&"starting");
        (!is_starting).then_some(response.status.as_u16())
    };
    within("every session has been read", async {
        loop {
            match starting().await {
                Some(status) => return status,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

fn reasons(problem: &Problem) -> Vec<&str> {
    problem.particulars.reasons.iter().map(|reason| reason.code.as_str()).collect()
}

/// Waits for an open question and answers it.
async fn asked(session: &Session) {
    let view = session.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
    let path = format!("/permissions/{}", view.status.permissions[0].id);
    session.post(&path, &json!("allow")).await.expect::<SessionView>(200);
}

#[tokio::test]
async fn a_mistake_at_the_start_costs_no_running_session_and_refuses_launches_until_it_is_corrected() {
    let mut daemon = Daemon::prepare();
    let planted = Planted::new("TOKEN_OF_TEST", "secret-{}");
    let secret = daemon.root().join("secret");
    fs::write(&secret, &planted.value).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    daemon.configure(|config| {
        let declared = format!("[secrets.TOKEN_OF_TEST]\nfile = \"{}\"\n", secret.display());
        format!("{config}\n{declared}[[permissions]]\ntitle = \"*\"\nanswer = \"allow\"\n")
    });
    daemon.run().await;
    let running = daemon.session(&daemon.scripted(&[])).await;
    let mut spec = daemon.scripted(&[]);
    spec.permissions = PermissionPolicy::Allow;
    let other = daemon.session(&spec).await;
    let stopped = daemon.session(&daemon.scripted(&[])).await;
    stopped.stop().await;
    // The session's own rule allows the tool.
    assert_eq!(running.turn("tool echo ran").await.text, "ran\n");

    let right = restart_with(&mut daemon, "[limits]\nlaunchs = 3\n").await;
    let line = u32::try_from(right.lines().count()).unwrap() + 2;
    let place = format!("{}:{line}:1: limits.launchs: ", file(&daemon).display());
    // The daemon still serves sessions that run, and no rule answers a question by itself.
    assert_eq!(running.turn("say still here").await.text, "still here");
    for session in [&running, &other] {
        let accepted = session.prompt("tool echo ran").await;
        asked(session).await;
        assert_eq!(session.end_of(&accepted).await.text, "ran\n");
    }
    running.turn("env").await;
    assert_eq!(daemon.holders(&planted.value), Vec::<PathBuf>::new(), "the secret is masked all the same");
    assert_eq!(running.view().await.status.launches, 1);

    for path in ["/v1/sessions".to_owned(), stopped.path("/resume")] {
        let refused = daemon.client.post(&path, &daemon.scripted(&[])).await.problem();
        assert_eq!(refused.code, Code::ConfigurationInvalid, "{refused:?}");
        assert!(refused.detail.starts_with(&place), "{refused:?}");
        assert_eq!(
            (refused.particulars.mistakes[0].line, refused.particulars.mistakes[0].suggestion.as_deref()),
            (Some(line), Some("launches"))
        );
        assert!(refused.hint.unwrap().contains("agentctl reload"));
    }
    assert_eq!(daemon.client.get("/healthz").await.status, 200);
    readiness(&daemon).await;
    let problem = daemon.client.get("/readyz").await.problem();
    assert_eq!((problem.status, problem.code, reasons(&problem)), (503, Code::NotReady, vec!["configuration-invalid"]));
    assert!(problem.detail.contains(&place), "{problem:?}");
    let doctor: DoctorView = daemon.client.get("/v1/doctor").await.expect(200);
    let check = doctor.checks.iter().find(|check| check.name == "configuration").unwrap();
    assert!(check.outcome == Outcome::Fail && check.summary.contains(&place), "{check:?}");
    assert!(check.remedy.as_ref().unwrap().contains("`agentctl config check`"), "{check:?}");
    assert_eq!(check.run.iter().map(|command| command.line.as_str()).collect::<Vec<_>>(), ["agentctl reload"]);

    // The daemon also serves a stop. A reload with the same mistake changes nothing.
    other.stop().await;
    let still = reload(&daemon).await;
    assert!(still.mistakes.len() == 1 && still.mistakes[0].to_string().starts_with(&place), "{still:?}");
    assert_eq!(readiness(&daemon).await, 503);
    fs::write(file(&daemon), &right).unwrap();
    kill(process::pid(daemon.pid()), Signal::SIGHUP).unwrap();
    within("it is ready again", async {
        while daemon.client.get("/readyz").await.status != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    stopped.resume().await;
    stopped.wait_for_phase(Phase::Idle).await;
    assert_eq!(daemon.session(&daemon.scripted(&[])).await.turn("tool echo ran").await.text, "ran\n");
    assert_eq!(running.view().await.status.launches, 1);
}

#[tokio::test]
async fn whatever_is_wrong_at_a_start_the_daemon_serves() {
    let mut daemon = Daemon::start().await;
    let running = daemon.session(&daemon.scripted(&[])).await;
    let right = fs::read(file(&daemon)).unwrap();
    for wrong in [
        &b"\xff\xfe no text"[..],
        b"",
        b"[[[[",
        b"default_agent = \"nobody\"\n",
        b"[environment]\nproviders = [\"nobody\"]\n",
        b"[control]\ntcp = \"0.0.0.0:1\"\n",
        b"[limits]\nactive_sessions = 0\nbody = 0\nline = 0\n",
        b"[journal]\ndurability = \"sometimes\"\nrotate = -1\n",
        b"[agents.a]\n[agents.b]\ncommand = []\n[secrets.A]\n[prerequisites.a]\nplugin = \"nobody\"\n",
    ] {
        daemon.terminate().await;
        fs::write(file(&daemon), wrong).unwrap();
        daemon.run().await;
        let text = String::from_utf8_lossy(wrong).into_owned();
        assert_eq!(running.turn("say still here").await.text, "still here", "{text}");
        let expected = if wrong.is_empty() { 200 } else { 503 };
        assert_eq!(readiness(&daemon).await, expected, "{text}");
    }
    // A missing file that was named explicitly is also a mistake.
    daemon.terminate().await;
    fs::remove_file(file(&daemon)).unwrap();
    daemon.run().await;
    assert_eq!(readiness(&daemon).await, 503);
    fs::write(file(&daemon), right).unwrap();
    assert_eq!(reload(&daemon).await.mistakes, []);
    assert_eq!(readiness(&daemon).await, 200);
    assert_eq!(running.view().await.status.launches, 1);
}

#[tokio::test]
async fn an_agent_that_crashes_meanwhile_is_started_again_when_the_mistake_is_corrected() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config.replace("[launch]", "[launch]\nrestart_first = \"10ms\""));
    daemon.run().await;
    let mut spec = daemon.scripted(&[]);
    spec.restart = Some(RestartPolicy::OnFailure);
    let (crashing, other) = (daemon.session(&spec).await, daemon.session(&daemon.scripted(&[])).await);
    let right = restart_with(&mut daemon, "[limits]\nbody = \"much\"\n").await;
    crashing.prompt("die").await;
    crashing.wait_for("its agent is gone", |view| view.status.agent_pid.is_none()).await;
    // These turns together take longer than the pause before a restart.
    for _ in 0..20 {
        other.turn("count 2 20").await;
    }
    let view = crashing.view().await;
    assert_eq!((view.status.launches, view.status.phase), (1, Phase::BackingOff), "{view:#?}");
    fs::write(file(&daemon), right).unwrap();
    assert_eq!(reload(&daemon).await.mistakes, []);
    let view = crashing.wait_for("it is started again", |view| view.status.phase == Phase::Idle).await;
    assert_eq!(view.status.launches, 2);
}

#[tokio::test]
async fn a_launch_that_had_begun_waits_for_the_correction() {
    let mut daemon = Daemon::prepare();
    let begun = daemon.root().join("begun");
    let script = format!(
        "touch {}\nwhile ! test -e {}; do sleep 0.01; done\n",
        quoted(&begun),
        quoted(daemon.root().join("go"))
    );
    fs::write(daemon.root().join("config/env-setup.sh"), script).unwrap();
    daemon.run().await;
    let session = daemon.create(&daemon.scripted(&[])).await;
    crate::harness::until("the script runs", || begun.exists()).await;
    let right = fs::read_to_string(file(&daemon)).unwrap();
    daemon.kill9();
    fs::write(file(&daemon), format!("{right}\n[limits\n")).unwrap();
    daemon.run().await;
    let view = session
        .wait_for("it waits", |view| view.status.conditions.iter().any(|one| one.reason == "ConfigurationInvalid"))
        .await;
    assert_eq!(view.status.phase, Phase::Preparing);
    let condition = view.status.conditions.iter().find(|one| one.kind == ConditionType::EnvironmentReady).unwrap();
    assert!(condition.message.contains("agentd.toml:"), "{condition:?}");
    fs::write(daemon.root().join("go"), "").unwrap();
    fs::write(file(&daemon), right).unwrap();
    assert_eq!(reload(&daemon).await.mistakes, []);
    let view = session.wait_for_phase(Phase::Idle).await;
    assert_eq!(view.status.launches, 1);
}

#[tokio::test]
async fn readiness_says_each_reason_and_draining_is_one() {
    let mut daemon = Daemon::start().await;
    readiness(&daemon).await;
    let ready: Value = daemon.client.get("/readyz").await.expect(200);
    assert_eq!(ready["status"], "ready");
    restart_with(&mut daemon, "[launch\n").await;
    daemon.client.call("POST", "/v1/drain", "").await.expect::<Value>(202);
    readiness(&daemon).await;
    let problem = daemon.client.get("/readyz").await.problem();
    assert_eq!(reasons(&problem), ["draining", "configuration-invalid"]);
    assert_eq!(daemon.client.get("/healthz").await.status, 200);
    assert_eq!(daemon.client.call("POST", "/readyz", "").await.problem().code, Code::MethodNotAllowed);
}

#[tokio::test]
async fn what_the_administrator_says_applies_though_the_users_file_is_wrong_and_not_the_other_way_around() {
    if require::root("to be the administrator").is_none() {
        return;
    }
    let mut daemon = Daemon::prepare();
    let system = daemon.system_config().join("agentd.toml");
    fs::create_dir(daemon.system_config()).unwrap();
    fs::write(&system, "[limits]\nactive_sessions = 5\n").unwrap();
    daemon.configure(|config| format!("{config}\n[limits]\nqueued_turns = 7\n"));
    daemon.run().await;
    let right = fs::read_to_string(file(&daemon)).unwrap();

    // The user's former settings stay in force together with the administrator's new settings.
    fs::write(file(&daemon), format!("{right}queued_turn = 8\n")).unwrap();
    fs::write(&system, "[limits]\nactive_sessions = 1\n").unwrap();
    let view = reload(&daemon).await;
    assert_eq!(view.changed, ["limits.active_sessions"]);
    assert_eq!(view.mistakes[0].key, "limits.queued_turn");
    daemon.session(&daemon.scripted(&[])).await;
    let second = daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await.problem();
    assert_eq!(second.code, Code::TooManySessions, "{second:?}");
    assert_eq!(readiness(&daemon).await, 200);

    // A mistake of the administrator keeps the whole former configuration in force, without the user's change. Doctor
    // reports the mistake until its correction.
    fs::write(&system, "[limits]\nactive_sessions = \"many\"\n").unwrap();
    fs::write(file(&daemon), right.replace("queued_turns = 7", "queued_turns = 6")).unwrap();
    let refused = daemon.client.call("POST", "/v1/reload", "").await.problem();
    assert_eq!((refused.code, refused.particulars.mistakes[0].line), (Code::ConfigurationInvalid, Some(2)));
    assert_eq!(readiness(&daemon).await, 200);
    let doctor: DoctorView = daemon.client.get("/v1/doctor").await.expect(200);
    let check = doctor.checks.iter().find(|check| check.name == "configuration").unwrap();
    assert!(check.outcome == Outcome::Fail && check.summary.contains("stays in force"), "{check:?}");
    fs::write(&system, "").unwrap();
    let view = reload(&daemon).await;
    assert_eq!(view.changed, ["limits.active_sessions", "limits.queued_turns"]);

    // At a start there is no former configuration. The user's settings are unknown, so the daemon launches no session.
    restart_with(&mut daemon, "queued_turn = 8\n").await;
    let refused = daemon.client.post("/v1/sessions", &daemon.scripted(&[])).await.problem();
    assert_eq!(refused.code, Code::ConfigurationInvalid);
}
