//! Mode, model and other options of the agent. A session or an agent's configuration wants them, a change takes effect
//! at once, and a new process of the agent gets them again.

use std::collections::BTreeMap;

use agentd_api::options::OptionsView;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec, SessionView};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::harness::{Daemon, Session, process};

/// Returns what the agent has.
async fn set(session: &Session) -> BTreeMap<String, String> {
    serde_json::from_str(&session.turn("options").await.text).unwrap()
}

fn owned<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn applied(view: &SessionView) -> Option<(ConditionStatus, &str)> {
    let found = view.status.conditions.iter().find(|one| one.kind == ConditionType::OptionsApplied)?;
    Some((found.status, &found.message))
}

async fn change(daemon: &Daemon, session: &Session, patch: Value) {
    daemon.client.patch(&session.path(""), &patch, None).await.expect::<Value>(200);
}

async fn are(session: &Session, mode: Option<&str>, model: &str) {
    let is_it = |view: &SessionView| (view.status.mode.as_deref(), view.status.model.as_deref()) == (mode, Some(model));
    session.wait_for("the mode and the model", is_it).await;
}

fn scripted(daemon: &Daemon, flags: &[&str], fields: &Value) -> SessionSpec {
    let mut spec = serde_json::to_value(daemon.scripted(flags)).unwrap();
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

#[tokio::test]
async fn a_session_begins_with_its_mode_and_model_and_a_change_is_set_at_once() {
    let daemon = Daemon::start().await;
    let session =
        daemon.session(&scripted(&daemon, &["--modes"], &json!({ "mode": "The plan", "model": "large" }))).await;
    assert_eq!(set(&session).await, owned([("mode", "plan"), ("model", "large")]));
    are(&session, Some("plan"), "large").await;
    assert_eq!(applied(&session.view().await), Some((ConditionStatus::True, "model is large, mode is plan")));
    change(&daemon, &session, json!({ "mode": "code" })).await;
    are(&session, Some("code"), "large").await;
    let view: OptionsView = daemon.client.get(&session.path("/options")).await.expect(200);
    let modes: Vec<&str> = view.options[0].values.iter().map(|value| value.value.as_str()).collect();
    assert_eq!((view.options[0].id.as_str(), modes), ("mode", vec!["ask", "plan", "code"]));
    // A condition names the missing value, and the session continues.
    change(&daemon, &session, json!({ "model": "huge" })).await;
    let refused = "model: the agent does not offer \"huge\" for model, but small, large";
    session.wait_for("a warning", |view| applied(view) == Some((ConditionStatus::False, refused))).await;
    assert_eq!(set(&session).await["mode"], "code");
}

#[tokio::test]
async fn what_was_changed_in_the_conversation_is_set_again_in_another_process_of_the_agent() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| {
        config.replace("restart = \"never\"", "restart = \"on-failure\"\nrestart_first = \"10ms\"")
    });
    daemon.run().await;
    let session = daemon.session(&scripted(&daemon, &["--modes"], &json!({ "mode": "plan" }))).await;
    // The agent leaves the plan by itself, and agentd does not put it back.
    session.turn("mode code").await;
    are(&session, Some("code"), "small").await;
    change(&daemon, &session, json!({ "model": "large" })).await;
    are(&session, Some("code"), "large").await;
    let launches = session.view().await.status.launches;
    kill(process::pid(session.view().await.status.agent_pid.unwrap()), Signal::SIGKILL).unwrap();
    session.wait_for("another agent", |view| view.status.launches > launches && view.status.phase.is_settled()).await;
    assert_eq!(set(&session).await, owned([("mode", "code"), ("model", "large")]));
    // A stopped session shows them, and gets them also under another daemon.
    session.stop().await;
    are(&session, Some("code"), "large").await;
    daemon.kill9();
    daemon.run().await;
    // A wish that was changed at rest replaces what was remembered.
    change(&daemon, &session, json!({ "mode": "ask" })).await;
    session.resume().await;
    are(&session, Some("ask"), "large").await;
    // A new conversation begins with the wishes alone.
    session.stop().await;
    session.post("/resume", &json!({ "new_conversation": true })).await.expect::<Value>(202);
    session.wait_for("the agent", |view| view.status.phase.is_settled()).await;
    assert_eq!(set(&session).await, owned([("model", "large")]));
}

#[tokio::test]
async fn an_agents_configuration_names_options_and_a_session_overrides_them() {
    let mut daemon = Daemon::prepare();
    let command = serde_json::to_string(&daemon.scripted(&["--options"]).command).unwrap();
    let table =
        format!("\n[agents.s]\ncommand = {command}\nmodel = \"large\"\noptions = {{ temperature = \"0.2\" }}\n");
    daemon.configure(|config| config + &table);
    daemon.run().await;
    let spec = |fields: Value| {
        let mut spec = json!({ "directory": daemon.work(), "agent": "s" });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value::<SessionSpec>(spec).unwrap()
    };
    let session = daemon.session(&spec(json!({ "options": { "quiet": "true" } }))).await;
    assert_eq!(set(&session).await, owned([("llm", "large-2"), ("quiet", "true")]));
    are(&session, None, "large-2").await;
    // Changes of the agent's options reach the status.
    session.turn("choose llm small-1").await;
    are(&session, None, "small-1").await;
    let own = daemon.session(&spec(json!({ "model": "small" }))).await;
    assert_eq!(set(&own).await, BTreeMap::new());
    let refused = daemon.client.post("/v1/sessions", &spec(json!({ "mode": "a\nb" }))).await.problem();
    assert_eq!((refused.status, &*refused.detail), (400, "`mode` has a control character"));
}

#[tokio::test]
async fn an_agent_that_never_answers_about_an_option_holds_up_no_turn() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config + "\n[limits]\nopen_conversation = \"2s\"\n");
    daemon.run().await;
    let session = daemon.session(&scripted(&daemon, &["--options"], &json!({}))).await;
    change(&daemon, &session, json!({ "model": "deaf" })).await;
    assert_eq!(session.turn("say on").await.text, "on");
    let silent = "model: the agent did not take \"deaf\": it did not answer in time";
    session.wait_for("a warning", |view| applied(view) == Some((ConditionStatus::False, silent))).await;
    // Another wish is set.
    change(&daemon, &session, json!({ "model": "large" })).await;
    are(&session, None, "large-2").await;
}
