//! A launch after the first: its use of the previous launch's environment, and its notes to the agent.

use std::fs;

use agentd_api::environment::Refresh;
use agentd_api::event::{Body, EnvironmentBuilt};
use agentd_api::session::{Condition, ConditionStatus, ConditionType, ResumeNote, SessionView};

use crate::harness::quote::quoted;
use crate::harness::{Daemon, Session, until};

fn script(daemon: &Daemon, text: &str) {
    fs::write(daemon.root().join("config/env-setup.sh"), text).expect("the script is written");
}

async fn agents(session: &Session, name: &str) -> Option<String> {
    let text = session.turn("env").await.text;
    let variables: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    variables[name].as_str().map(str::to_owned)
}

fn condition(view: &SessionView, kind: ConditionType) -> Option<&Condition> {
    view.status.conditions.iter().find(|condition| condition.kind == kind)
}

/// Returns the record of each environment that was built, in order of the launches.
fn built(session: &Session) -> Vec<EnvironmentBuilt> {
    let bodies = session.journal().into_iter().map(|event| event.body);
    bodies.filter_map(|body| if let Body::EnvironmentBuilt(built) = body { Some(built) } else { None }).collect()
}

/// Returns the note of each turn, in order. Asserts that the daemon sent each note to the agent before the prompt.
fn notes(session: &Session) -> Vec<Option<String>> {
    let (mut notes, mut prompts) = (Vec::new(), Vec::new());
    for event in session.journal() {
        match event.body {
            Body::TurnStarted(turn) => notes.push(turn.note),
            Body::AgentIn(line) => {
                let line: serde_json::Value = serde_json::from_str(line.get()).unwrap();
                if line["method"] == "session/prompt" {
                    let blocks = line["params"]["prompt"].as_array().unwrap().clone();
                    prompts.push((blocks.len() == 2).then(|| blocks[0]["text"].as_str().unwrap().to_owned()));
                }
            }
            _ => {}
        }
    }
    assert_eq!(notes, prompts, "what is told of a turn is not what was sent");
    notes
}

#[tokio::test]
async fn a_resume_says_what_changed_and_which_provider_did_it() {
    let daemon = Daemon::start().await;
    script(&daemon, "export EDITOR=vi ONCE=1 SOME_TOKEN=planted-one-1\n");
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say hello").await;
    session.stop().await;
    script(&daemon, "export EDITOR=needle-value NEW=1 SOME_TOKEN=planted-two-2\nunset LANG\n");
    session.resume().await;
    session.turn("say again").await;
    session.turn("say and again").await;

    let built = built(&session);
    assert!(built[0].changes.is_empty(), "{built:#?}");
    let changes: Vec<String> = built[1]
        .changes
        .iter()
        .map(|change| format!("{:?} {} {:?} {:?}", change.kind, change.name, change.before, change.after))
        .collect();
    let script = "Some(\"env-script\")";
    assert_eq!(
        changes,
        [
            format!("Changed EDITOR {script} {script}"),
            format!("Removed LANG Some(\"snapshot\") {script}"),
            format!("Added NEW None {script}"),
            format!("Removed ONCE {script} None"),
            format!("Changed SOME_TOKEN {script} {script}"),
        ]
    );
    let notes = notes(&session);
    assert!(notes[0].is_none() && notes[2].is_none(), "{notes:#?}");
    let note = notes[1].as_deref().expect("the first prompt after the resume has a note");
    for word in
        ["Shell state", "EDITOR changed by env-script", "LANG removed by env-script", "NEW added", "ONCE removed"]
    {
        assert!(note.contains(word), "{word}: {note}");
    }
    assert!(note.contains(&daemon.work().display().to_string()) && !note.contains("needle-value"), "{note}");
}

#[tokio::test]
async fn a_note_is_told_once_even_if_the_daemon_is_killed_before_and_after() {
    let mut daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say hello").await;
    session.stop().await;
    script(&daemon, "export NEW=1\n");
    session.resume().await;
    daemon.kill9();
    daemon.run().await;
    let accepted = session.prompt("count 200 5").await;
    until("the turn runs", || notes(&session).len() == 2).await;
    daemon.kill9();
    daemon.run().await;
    session.end_of(&accepted).await;
    session.turn("say the last").await;
    let notes = notes(&session);
    assert!(notes[1].as_ref().is_some_and(|note| note.contains("NEW added by env-script")), "{notes:#?}");
    assert_eq!((&notes[0], &notes[2]), (&None, &None));
}

#[tokio::test]
async fn a_restart_after_a_crash_has_a_note_with_what_changed_and_a_session_can_go_without() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        config.replace("restart = \"never\"", "restart = \"on-failure\"\nrestart_first = \"10ms\"")
    });
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say hello").await;
    session.turn("exit 1").await;
    session
        .wait_for("the agent was started again", |view| {
            view.status.launches == 2 && view.status.phase == agentd_api::session::Phase::Idle
        })
        .await;
    session.turn("say here again").await;
    script(&daemon, "export NEW=1\n");
    session.turn("exit 1").await;
    session
        .wait_for("the agent was started again", |view| {
            view.status.launches == 3 && view.status.phase == agentd_api::session::Phase::Idle
        })
        .await;
    session.turn("say and again").await;
    let told = notes(&session);
    assert_eq!([&told[0], &told[1], &told[3]], [&None; 3], "{told:#?}");
    assert!(told[2].as_ref().is_some_and(|note| note.contains("started again") && !note.contains("NEW")), "{told:#?}");
    assert!(told[4].as_ref().is_some_and(|note| note.contains("started again") && note.contains("NEW")), "{told:#?}");

    let mut spec = daemon.scripted(&[]);
    spec.resume_note = Some(ResumeNote::Off);
    let quiet = daemon.session(&spec).await;
    quiet.turn("say hello").await;
    quiet.stop().await;
    script(&daemon, "export OTHER=1\n");
    quiet.resume().await;
    quiet.turn("say again").await;
    assert_eq!(notes(&quiet), [None, None]);
}

#[tokio::test]
async fn a_stored_environment_is_given_again_and_runs_no_provider() {
    let mut daemon = Daemon::start().await;
    let ran = daemon.root().join("ran");
    let text =
        |value: &str| format!("echo x >> {}\nexport EDITOR={value} SOME_TOKEN=planted-{value}-token\n", quoted(&ran));
    script(&daemon, &text("vi"));
    let mut spec = daemon.scripted(&[]);
    spec.environment.refresh = Some(Refresh::Stored);
    let session = daemon.session(&spec).await;
    script(&daemon, &text("emacs"));
    session.stop().await;
    let view = session.resume().await;
    assert_eq!(fs::read_to_string(&ran).unwrap().lines().count(), 1, "a script was run");
    assert_eq!(agents(&session, "EDITOR").await.as_deref(), Some("vi"));
    assert!(condition(&view, ConditionType::SecretsAvailable).is_none(), "it was in memory: {view:#?}");
    let given = condition(&view, ConditionType::EnvironmentReady).unwrap();
    assert_eq!(given.reason, "GivenAgain");
    assert!(built(&session)[1].changes.is_empty());

    // The next daemon has the variable neither in memory nor in a file, and the login shell does not set it.
    session.stop().await;
    for _ in 0..2 {
        daemon.terminate().await;
        daemon.run().await;
        let view = session.resume().await;
        let lacking = condition(&view, ConditionType::SecretsAvailable).unwrap_or_else(|| panic!("{view:#?}"));
        assert_eq!(lacking.status, ConditionStatus::False);
        assert!(lacking.message.contains("SOME_TOKEN"), "{lacking:?}");
        assert_eq!(agents(&session, "SOME_TOKEN").await, None);
        session.stop().await;
    }
}

#[tokio::test]
async fn a_secret_of_the_login_shell_is_taken_from_it_again() {
    let mut daemon = Daemon::prepare();
    let profile = daemon.home().join(".profile");
    fs::write(&profile, "export EDITOR=ed ANTHROPIC_API_KEY=planted-first-key\n").unwrap();
    daemon.configure(|config| {
        format!(
            "{config}\n[[environment.providers]]\nplugin = \"snapshot\"\n\
             [[environment.providers]]\nplugin = \"whitelist\"\n\
             settings = {{ allow = [\"ANTHROPIC_API_KEY\"] }}\n"
        )
    });
    daemon.run().await;
    let mut spec = daemon.scripted(&[]);
    spec.environment.refresh = Some(Refresh::Stored);
    let session = daemon.session(&spec).await;
    let before = agents(&session, "ANTHROPIC_API_KEY").await;
    assert!(before.is_some(), "the agent has the key");
    session.stop().await;
    daemon.terminate().await;
    fs::write(&profile, "export EDITOR=vi ANTHROPIC_API_KEY=planted-second-key\n").unwrap();
    daemon.run().await;
    let view = session.resume().await;
    assert!(condition(&view, ConditionType::SecretsAvailable).is_none(), "{view:#?}");
    // The daemon masks the stored key in the agent's output, as it masks a newly captured key.
    let key = agents(&session, "ANTHROPIC_API_KEY").await;
    assert!(key.as_ref().is_some_and(|key| !key.contains("planted")), "{key:?}");
    assert_eq!(agents(&session, "EDITOR").await.as_deref(), Some("ed"));
}

#[tokio::test]
async fn a_stored_environment_that_has_drifted_is_given_with_a_warning_that_names_no_value() {
    let daemon = Daemon::start().await;
    script(&daemon, "export EDITOR=vi ONCE=1\n");
    let mut spec = daemon.scripted(&[]);
    spec.environment.refresh = Some(Refresh::Warn);
    let session = daemon.session(&spec).await;
    session.stop().await;
    let view = session.resume().await;
    let same = condition(&view, ConditionType::EnvironmentDrifted).unwrap_or_else(|| panic!("{view:#?}"));
    assert_eq!(same.status, ConditionStatus::False, "{same:?}");

    script(&daemon, "export EDITOR=needle-value\n");
    session.stop().await;
    let view = session.resume().await;
    let drifted = condition(&view, ConditionType::EnvironmentDrifted).unwrap();
    assert_eq!(drifted.status, ConditionStatus::True, "{drifted:?}");
    assert!(drifted.message.contains("EDITOR changed by env-script, ONCE removed"), "{drifted:?}");
    assert!(!drifted.message.contains("needle-value"), "{drifted:?}");
    assert_eq!(agents(&session, "EDITOR").await.as_deref(), Some("vi"));

    script(&daemon, "exit 3\n");
    session.stop().await;
    let view = session.resume().await;
    let unknown = condition(&view, ConditionType::EnvironmentDrifted).unwrap();
    assert_eq!(unknown.status, ConditionStatus::Unknown, "{unknown:?}");
}

#[tokio::test]
async fn the_configuration_decides_for_agents_and_sessions_that_do_not() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        config
            .replace("[environment]\n", "[environment]\nrefresh = \"stored\"\n")
            .replace("[agents.scripted]\n", "[agents.scripted]\nrefresh = \"fresh\"\n")
    });
    daemon.run().await;
    script(&daemon, "export EDITOR=vi\n");
    let of_agent = agentd_api::session::SessionSpec {
        agent: Some("scripted".parse().unwrap()),
        ..agentd_api::session::SessionSpec::new(daemon.work())
    };
    let (agent, command) = (daemon.session(&of_agent).await, daemon.session(&daemon.scripted(&[])).await);
    agent.stop().await;
    command.stop().await;
    script(&daemon, "export EDITOR=emacs\n");
    daemon
        .client
        .call("POST", &agent.path("/resume?wait=60&new_conversation=true"), "")
        .await
        .expect::<SessionView>(202);
    command.resume().await;
    assert_eq!(agents(&agent, "EDITOR").await.as_deref(), Some("emacs"));
    assert_eq!(agents(&command, "EDITOR").await.as_deref(), Some("vi"));
}
