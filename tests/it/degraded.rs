//! Degraded launches: a launch that would have failed continues without the parts that failed, if its caller allows
//! that. What it went without is in the journal, in the status and in a condition.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use agentd_api::degraded::{LaunchDegraded, MissingKind, MissingPart, NOT_LEFT_OUT};
use agentd_api::environment::{EnvironmentSpec, EnvironmentView, Refresh};
use agentd_api::event::LaunchStarted;
use agentd_api::prerequisite::Outcome;
use agentd_api::session::{Condition, ConditionStatus, ConditionType, Phase, SessionSpec, SessionView};
use agentd_api::{Body, Code};
use serde_json::{Value, json};

use crate::boundary::children::{ask, refusal, running};
use crate::guest::Guest;
use crate::harness::ctl::ctl;
use crate::harness::digest::sha256;
use crate::harness::planted::Planted;
use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, process, until, within};
use crate::prerequisites;
use crate::secrets::private;

/// Adds a provider that crashes to the end of the pipeline.
fn add_failing_provider(daemon: &Daemon) {
    let component = Guest { provide: "(unreachable)", ..Guest::default() }.provider();
    let file = daemon.root().join("config/hostile.wasm");
    fs::write(&file, &component).unwrap();
    daemon.configure(|config| {
        let providers = "[environment]\nproviders = [\"snapshot\", \"whitelist\", \"env-script\", \"hostile\"]";
        let plugin = format!("\n[plugins.hostile]\nfile = '{}'\nsha256 = \"{}\"\n", file.display(), sha256(&component));
        config.replace("[environment]", providers) + &plugin
    });
}

fn script(daemon: &Daemon, place: &str, text: &str) {
    let file = daemon.root().join(place);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
}

fn condition(view: &SessionView, kind: ConditionType) -> Option<Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == kind).cloned()
}

/// Returns status and reason of the condition `Degraded`.
fn standing(view: &SessionView) -> Option<(ConditionStatus, String)> {
    condition(view, ConditionType::Degraded).map(|condition| (condition.status, condition.reason))
}

fn named(view: &SessionView) -> Vec<(MissingKind, &str)> {
    view.status.degraded.iter().map(|part| (part.kind, part.name.as_str())).collect()
}

async fn of_agent(session: &Session) -> Value {
    serde_json::from_str(&session.turn("env").await.text).unwrap()
}

async fn resume(daemon: &Daemon, session: &Session, query: &str) -> crate::harness::Response {
    daemon.client.call("POST", &session.path(&format!("/resume?wait=60&{query}")), "").await
}

async fn degraded(daemon: &Daemon, session: &Session) -> SessionView {
    resume(daemon, session, "degraded").await.expect::<SessionView>(202);
    session.wait_for_phase(Phase::Idle).await
}

fn records(session: &Session) -> (Vec<LaunchStarted>, Vec<LaunchDegraded>) {
    let (mut started, mut degraded) = (Vec::new(), Vec::new());
    for event in session.journal() {
        match event.body {
            Body::LaunchStarted(launch) => started.push(launch),
            Body::LaunchDegraded(launch) => degraded.push(launch),
            _ => {}
        }
    }
    (started, degraded)
}

/// Creates a session whose first launch fails.
async fn failing(daemon: &Daemon, spec: &SessionSpec) -> (Session, SessionView) {
    let session = daemon.create(spec).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert_eq!((standing(&view), named(&view)), (None, vec![]));
    (session, view)
}

#[tokio::test]
async fn a_provider_that_fails_is_left_out_and_named_in_journal_status_condition_list_and_log() {
    let mut daemon = Daemon::prepare();
    add_failing_provider(&daemon);
    script(&daemon, "config/env-setup.sh", "export FROM_SCRIPT=yes\n");
    daemon.run().await;
    let (session, failed) = failing(&daemon, &daemon.scripted(&[])).await;
    let why = failed.status.message.unwrap();
    assert!(why.contains("hostile"), "{why}");

    let view = degraded(&daemon, &session).await;
    assert_eq!(named(&view), [(MissingKind::Provider, "hostile")]);
    assert!(view.status.degraded[0].message.contains("hostile"), "{:?}", view.status.degraded);
    assert_eq!(standing(&view), Some((ConditionStatus::True, "WithoutProvider".to_owned())));
    let ready = condition(&view, ConditionType::EnvironmentReady).unwrap();
    assert_eq!((ready.status, ready.reason.as_str()), (ConditionStatus::True, "BuiltWithout"));
    assert!(ready.message.contains("without: provider hostile: "), "{}", ready.message);
    let environment = of_agent(&session).await;
    assert_eq!((&environment["EDITOR"], &environment["FROM_SCRIPT"]), (&json!("ed"), &json!("yes")));
    assert_eq!(environment["FROM_PROFILE"], Value::Null, "the whitelist is never left out");
    let of_environment: EnvironmentView = daemon.client.get(&session.path("/environment")).await.expect(200);
    assert_eq!(of_environment.without, view.status.degraded);

    let (started, records) = records(&session);
    let [record] = &records[..] else { panic!("{records:?}") };
    assert_eq!((record.launch, &record.missing), (2, &view.status.degraded));
    assert_eq!((record.by.uid, record.by.pid), (nix::unistd::getuid().as_raw(), Some(std::process::id())));
    assert_eq!((started[0].degraded_by.is_none(), started[1].degraded_by.as_ref()), (true, Some(&record.by)));
    let id = session.id.as_str();
    let (shown, listed) = (ctl(&daemon, &["show", id]).await.out, ctl(&daemon, &["ls"]).await.out);
    assert!(shown.contains("without:       provider hostile: "), "{shown}");
    assert!(listed.contains("without provider hostile"), "{listed}");
    let log = daemon.last_words();
    assert!(log.contains("WARN") && log.contains("without: provider hostile"), "{log}");

    // The term belongs to one launch.
    session.stop().await;
    resume(&daemon, &session, "").await.expect::<SessionView>(202);
    let view = session.wait_for_phase(Phase::Failed).await;
    assert_eq!((standing(&view), named(&view)), (None, vec![]));
}

#[tokio::test]
async fn a_script_is_left_out_alone_if_it_fails_or_is_not_approved() {
    let daemon = Daemon::start().await;
    script(&daemon, "config/env-setup.sh", "export GLOBAL=yes\n");
    script(&daemon, "work/.agentd-env.sh", "export UNAPPROVED=yes GLOBAL=changed\n");
    let mut spec = daemon.scripted(&[]);
    // The login shell has the value, so agentd knows it, and a script prints the value.
    let secret = Planted::new("DEPLOY_PASSWORD", "{}");
    private(&daemon.root().join("password"), &secret.value);
    let password = quoted(daemon.root().join("password"));
    script(&daemon, "home/.profile", &format!("export EDITOR=ed DEPLOY_PASSWORD=\"$(cat {password})\"\n"));
    spec.env_setup = Some(format!("export HALF=yes\necho got $(cat {password}) >&2\nexit 3\n"));
    let (session, _) = failing(&daemon, &spec).await;
    let view = degraded(&daemon, &session).await;
    let own = session.directory().join("env-setup.sh").display().to_string();
    let foreign = daemon.work().join(".agentd-env.sh").display().to_string();
    assert_eq!(named(&view), [(MissingKind::Script, foreign.as_str()), (MissingKind::Script, own.as_str())]);
    assert_eq!(standing(&view), Some((ConditionStatus::True, "WithoutScript".to_owned())));
    let messages: Vec<&str> = view.status.degraded.iter().map(|part| part.message.as_str()).collect();
    assert!(messages[0].contains("agentctl env allow") && messages[1].contains("status 3"), "{messages:#?}");
    assert!(messages[1].contains("got ") && !messages[1].contains(&secret.value), "{messages:#?}");
    assert_eq!(daemon.holders(&secret.value), [""; 0].map(PathBuf::from), "no message holds a secret");
    let environment = of_agent(&session).await;
    assert_eq!(environment["GLOBAL"], "yes");
    assert_eq!((&environment["UNAPPROVED"], &environment["HALF"]), (&Value::Null, &Value::Null));
    session.stop().await;

    // The approval is asked for again, and the other script still fails.
    resume(&daemon, &session, "").await.expect::<SessionView>(202);
    session.wait_for_phase(Phase::Failed).await;
    let allowed = json!({ "directory": daemon.work() });
    assert_eq!(daemon.client.post("/v1/scripts/allow", &allowed).await.status, 200);
    let view = degraded(&daemon, &session).await;
    assert_eq!(named(&view), [(MissingKind::Script, own.as_str())]);
    assert_eq!(of_agent(&session).await["UNAPPROVED"], "yes");
}

#[tokio::test]
async fn a_prerequisite_is_left_out_at_once_or_after_a_wait() {
    let daemon = prerequisites::with(&[("vpn", prerequisites::ALL)]).await;
    let (session, _) = failing(&daemon, &daemon.scripted(&[])).await;
    let refused = resume(&daemon, &session, "").await.problem();
    assert_eq!(refused.code, Code::PrerequisitesNotMet);
    assert!(refused.hint.as_ref().is_some_and(|hint| hint.contains("--degraded")), "{refused:?}");
    for query in ["degraded", "degraded&force", "degraded&wait_for_prerequisites=1"] {
        resume(&daemon, &session, query).await.expect::<SessionView>(202);
        let view = session.wait_for_phase(Phase::Idle).await;
        assert_eq!(named(&view), [(MissingKind::Prerequisite, "vpn")], "{query}");
        assert_eq!(standing(&view), Some((ConditionStatus::True, "WithoutPrerequisite".to_owned())), "{query}");
        let met = prerequisites::met(&view);
        assert_eq!((met.status, met.reason.as_str()), (ConditionStatus::False, "Forced"), "{query}");
        session.stop().await;
    }
    let waited = session.journal().iter().any(|event| match &event.body {
        Body::Condition(condition) => condition.reason == "Waiting",
        _ => false,
    });
    assert!(waited, "a degraded launch waits if it is asked to");
    let both = resume(&daemon, &session, "degraded&force&wait_for_prerequisites=1").await.problem();
    assert_eq!(both.code, Code::InvalidRequest);
    // With everything there, the condition says that nothing is missing.
    prerequisites::world(&daemon, "vpn", "pass");
    within("the check passes", async {
        while prerequisites::check(&daemon, "vpn").await.outcome != Outcome::Pass {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let view = degraded(&daemon, &session).await;
    assert_eq!(standing(&view), Some((ConditionStatus::False, "Complete".to_owned())));
    assert_eq!((named(&view), records(&session).1.len()), (vec![], 3));
}

#[tokio::test]
async fn a_required_secret_is_left_out() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        format!("{config}\n[secrets.TOKEN_A]\nfile = \"/nowhere/a\"\n[secrets.TOKEN_B]\nfile = \"/nowhere/b\"\n")
    });
    daemon.run().await;
    let (session, _) = failing(&daemon, &daemon.scripted(&[])).await;
    let view = degraded(&daemon, &session).await;
    assert_eq!(named(&view), [(MissingKind::Secret, "TOKEN_A"), (MissingKind::Secret, "TOKEN_B")]);
    assert_eq!(standing(&view), Some((ConditionStatus::True, "WithoutSecret".to_owned())));
    let secrets = condition(&view, ConditionType::SecretsAvailable).unwrap();
    assert_eq!((secrets.status, secrets.reason.as_str()), (ConditionStatus::False, "SecretUnavailable"));
    let environment = of_agent(&session).await;
    assert_eq!((&environment["EDITOR"], &environment["TOKEN_A"]), (&json!("ed"), &Value::Null));
}

#[tokio::test]
async fn whitelist_directory_and_program_are_never_left_out_and_the_message_says_so() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[plugins.whitelist]\nlimits = {{ memory = 65536 }}\n"));
    daemon.run().await;
    let (session, _) = failing(&daemon, &daemon.scripted(&[])).await;
    let is_refused = async |session: &Session, kind: ConditionType| {
        resume(&daemon, session, "degraded").await.expect::<SessionView>(202);
        let view = session.wait_for_phase(Phase::Failed).await;
        let message = view.status.message.clone().unwrap();
        assert!(message.ends_with(NOT_LEFT_OUT), "{message}");
        assert_eq!(condition(&view, kind).unwrap().message, message);
        assert!(!session.journal().iter().any(|event| matches!(event.body, Body::AgentStarted(_))), "{kind:?}");
        let shown = ctl(&daemon, &["show", session.id.as_str()]).await.out;
        assert!(!shown.contains("--degraded"), "{shown}");
    };
    is_refused(&session, ConditionType::EnvironmentReady).await;

    daemon.configure(|config| config.replace("memory = 65536", "memory = 67108864"));
    assert_eq!(daemon.client.call("POST", "/v1/reload", "").await.status, 200);
    let spec = SessionSpec { command: Some(vec!["no-such-agent".into()]), ..daemon.scripted(&[]) };
    let (session, _) = failing(&daemon, &spec).await;
    is_refused(&session, ConditionType::AgentStarted).await;
    fs::create_dir(daemon.root().join("gone")).unwrap();
    let spec = SessionSpec { directory: daemon.root().join("gone"), ..daemon.scripted(&[]) };
    let spec = SessionSpec { command: Some(vec!["no-such-agent".into()]), ..spec };
    let (session, _) = failing(&daemon, &spec).await;
    fs::remove_dir(daemon.root().join("gone")).unwrap();
    is_refused(&session, ConditionType::NotStale).await;
}

#[tokio::test]
async fn without_a_login_shell_the_environment_of_the_launch_before_is_used_and_that_is_said() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    assert_eq!(of_agent(&session).await["EDITOR"], "ed");
    session.stop().await;
    // With the stored snapshot, agentd would use that instead.
    script(&daemon, "home/.profile", "exec false\n");
    assert_eq!(daemon.client.call("POST", "/v1/snapshots/invalidate", "").await.status, 200);
    resume(&daemon, &session, "").await.expect::<SessionView>(202);
    let failed = session.wait_for_phase(Phase::Failed).await;
    assert!(
        condition(&failed, ConditionType::EnvironmentReady).unwrap().reason.starts_with("LoginShell"),
        "{failed:#?}"
    );
    // The second degraded launch has the environment of the first.
    for launch in 1..=2 {
        let view = degraded(&daemon, &session).await;
        let [MissingPart { kind: MissingKind::Provider, name, message }] = &view.status.degraded[..] else {
            panic!("{:#?}", view.status.degraded)
        };
        let used = if launch == 1 { "the environment of launch 1 was" } else { "the environment of launch 3 was" };
        assert!(name == "snapshot" && message.contains(used), "{message}");
        let ready = condition(&view, ConditionType::EnvironmentReady).unwrap();
        assert_eq!(ready.reason, "GivenAgain", "{}", ready.message);
        assert_eq!(of_agent(&session).await["EDITOR"], "ed");
        session.stop().await;
    }
}

#[tokio::test]
async fn a_degraded_environment_is_not_restored_by_a_later_launch() {
    let daemon = Daemon::start().await;
    script(&daemon, "config/env-setup.sh", "export FIXED=no\nexit 3\n");
    let environment = EnvironmentSpec { refresh: Some(Refresh::Stored), ..EnvironmentSpec::default() };
    let spec = SessionSpec { environment, ..daemon.scripted(&[]) };
    let (session, _) = failing(&daemon, &spec).await;
    degraded(&daemon, &session).await;
    assert_eq!(of_agent(&session).await["FIXED"], Value::Null);
    session.stop().await;
    script(&daemon, "config/env-setup.sh", "export FIXED=yes\n");
    let view = session.resume().await;
    assert_eq!(of_agent(&session).await["FIXED"], "yes");
    let ready = condition(&view, ConditionType::EnvironmentReady).unwrap();
    assert_eq!(ready.reason, "BuiltAnew");
    assert!(ready.message.contains("launch 2 was degraded and left out script "), "{}", ready.message);
    session.stop().await;
    let view = session.resume().await;
    assert_eq!(condition(&view, ConditionType::EnvironmentReady).unwrap().reason, "GivenAgain");
}

#[tokio::test]
async fn a_daemon_killed_during_a_degraded_launch_continues_the_launch_on_its_terms() {
    let mut daemon = Daemon::start().await;
    let gate = daemon.root().join("gate");
    let begun = daemon.root().join("begun");
    let wait = format!("touch '{}'\nuntil [ -e '{}' ]; do sleep 0.01; done\nexit 3\n", begun.display(), gate.display());
    script(&daemon, "config/env-setup.sh", "exit 3\n");
    let (session, _) = failing(&daemon, &daemon.scripted(&[])).await;
    script(&daemon, "config/env-setup.sh", &wait);
    daemon.client.call("POST", &session.path("/resume?degraded"), "").await.expect::<SessionView>(202);
    until("the script runs", || begun.exists()).await;
    daemon.kill9();
    fs::write(&gate, "").unwrap();
    daemon.run().await;
    let view = session.wait_for_phase(Phase::Idle).await;
    let path = daemon.root().join("config/env-setup.sh").display().to_string();
    assert_eq!((view.status.launches, named(&view)), (2, vec![(MissingKind::Script, path.as_str())]));
    let (_, records) = records(&session);
    assert_eq!(records.iter().map(|record| record.launch).collect::<Vec<_>>(), [2]);
    // The state of a session at rest comes from its document, or from its journal.
    session.stop().await;
    daemon.kill9();
    daemon.run().await;
    assert_eq!(named(&session.view().await), [(MissingKind::Script, path.as_str())]);
}

#[tokio::test]
async fn a_restart_after_a_crash_is_degraded_too_and_takes_back_what_works_again() {
    let mut daemon = Daemon::prepare();
    let restart = "restart = \"on-failure\"\nrestart_first = \"10ms\"\nrestart_longest = \"10ms\"";
    daemon.configure(|config| config.replace("restart = \"never\"", restart));
    daemon.run().await;
    script(&daemon, "config/env-setup.sh", "export FIXED=no\nexit 3\n");
    let (session, _) = failing(&daemon, &daemon.scripted(&[])).await;
    let mut view = degraded(&daemon, &session).await;
    for launch in [3, 4] {
        if launch == 4 {
            script(&daemon, "config/env-setup.sh", "export FIXED=yes\n");
        }
        process::kill9(view.status.agent_pid.unwrap());
        let is_next = |view: &SessionView| view.status.launches == launch && view.status.phase == Phase::Idle;
        view = session.wait_for("the agent is restarted", is_next).await;
        let (status, reason) = match launch {
            3 => (ConditionStatus::True, "WithoutScript"),
            _ => (ConditionStatus::False, "Complete"),
        };
        assert_eq!(standing(&view), Some((status, reason.to_owned())), "{launch}");
    }
    assert_eq!(of_agent(&session).await["FIXED"], "yes");
    let (started, _) = records(&session);
    assert!(started[1..].iter().all(|launch| launch.degraded_by.is_some()), "{started:#?}");
}

#[tokio::test]
async fn an_agent_cannot_degrade_a_launch() {
    let (daemon, session) = running().await;
    let child = json!({ "directory": daemon.work().join("sub") });
    let answer = ask(&daemon, &session, "POST", "/v1/sessions?degraded", &child).await;
    assert_eq!((answer.0, refusal(&answer).as_str()), (403, "in-session"));
    let path = session.path("/resume?degraded");
    let answer = ask(&daemon, &session, "POST", &path, &Value::Null).await;
    assert_eq!((answer.0, refusal(&answer).as_str()), (403, "in-session"));
}

#[tokio::test]
async fn agentctl_offers_the_degraded_launch_and_makes_it() {
    let daemon = Daemon::start().await;
    script(&daemon, "config/env-setup.sh", "exit 3\n");
    let agent = ["--agent", "scripted"];
    let said = ctl(&daemon, &[&["run"][..], &agent, &["--name", "one", "say hello"]].concat()).await;
    assert_eq!(said.status, Some(1), "{said:?}");
    assert!(said.err.contains("agentctl resume one --degraded"), "{}", said.err);
    let shown = ctl(&daemon, &["show", "one"]).await.out;
    assert!(shown.contains("remedy:") && shown.contains("agentctl resume one --degraded"), "{shown}");
    let said = ctl(&daemon, &["resume", "one"]).await;
    assert!(said.status == Some(1) && said.err.contains("agentctl resume one --degraded"), "{said:?}");
    assert_eq!(ctl(&daemon, &["resume", "one", "--degraded"]).await.status, Some(0));
    let said = ctl(&daemon, &[&["run", "--degraded"][..], &agent, &["say hello"]].concat()).await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), "hello\n"), "{}", said.err);
    assert!(said.err.contains("without: script "), "{}", said.err);
    let said = ctl(&daemon, &[&["new", "--degraded", "--ready", "30s"][..], &agent].concat()).await;
    assert_eq!(said.status, Some(0), "{said:?}");
}

#[tokio::test]
async fn a_setup_that_fails_offers_the_hint_of_the_session() {
    let daemon = prerequisites::with(&[("vpn", prerequisites::ALL)]).await;
    let (session, _) = failing(&daemon, &daemon.scripted(&[])).await;
    let hint = json!({ "hint": "load the module tools/5" });
    assert_eq!(daemon.client.call("PUT", &session.path("/hint"), hint.to_string()).await.status, 200);
    let problem = resume(&daemon, &session, "").await.problem();
    assert!(problem.hint.is_some_and(|hint| hint.ends_with("the session's hint: load the module tools/5")));
    let said = ctl(&daemon, &["resume", session.id.as_str()]).await;
    assert!(said.err.contains("load the module tools/5") && said.err.contains("--degraded"), "{}", said.err);

    prerequisites::world(&daemon, "vpn", "pass");
    script(&daemon, "config/env-setup.sh", "exit 3\n");
    within("the script fails the launch", async {
        while resume(&daemon, &session, "").await.status != 202 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let message = view.status.message.unwrap();
    assert!(message.ends_with("; the session's hint: load the module tools/5"), "{message}");
    let shown = ctl(&daemon, &["show", session.id.as_str()]).await.out;
    assert!(shown.contains("load the module tools/5") && shown.contains("--degraded"), "{shown}");
}
