//! The environment contract: variables by which an agent learns about its session.

use std::collections::{BTreeMap, BTreeSet};

use agentd_api::contract;
use agentd_api::doc::Named;
use agentd_api::environment::{Refresh, RunnerNames};
use agentd_api::repository::RepositorySpec;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::spec::Workspace;

use crate::harness::{Daemon, Session};
use crate::repositories::Remote;

const INTERACTIVE: (&str, &str) = ("AGENTD_INTERACTIVE", "true");

/// Returns the variables of the contract that the agent has.
async fn given(session: &Session) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = serde_json::from_str(&session.turn("env").await.text).unwrap();
    let known: BTreeSet<&str> = names(contract::VARIABLES).chain(names(contract::AMBIENT)).collect();
    all.retain(|name, _| known.contains(name.as_str()));
    all
}

fn names(table: &'static [Named]) -> impl Iterator<Item = &'static str> {
    table.iter().map(|variable| variable.name)
}

fn owned<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

#[tokio::test]
async fn an_agent_learns_about_its_session_by_variables() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&["--fork"]);
    spec.environment.env.insert("AGENTD_PARENT".to_owned(), "forged".to_owned());
    assert_eq!(daemon.client.post("/v1/sessions", &spec).await.status.as_u16(), 400, "these names are agentd's own");
    spec.environment.env.clear();
    let plain = daemon.session(&spec).await;
    let id = plain.id.as_str();
    assert_eq!(given(&plain).await, owned([("AGENTD_SESSION", id), ("AGENTD_CONTINUATION", "false"), INTERACTIVE]));
    plain.stop().await;
    plain.resume().await;
    assert_eq!(given(&plain).await, owned([("AGENTD_SESSION", id), ("AGENTD_CONTINUATION", "true"), INTERACTIVE]));
    let spec = SessionSpec { parent: Some(id.parse().unwrap()), directory: "".into(), command: None, ..spec };
    let child = daemon.session(&SessionSpec { name: Some("second".parse().unwrap()), ..spec }).await;
    let expected = owned([
        ("AGENTD_SESSION", child.id.as_str()),
        ("AGENTD_SESSION_NAME", "second"),
        ("AGENTD_CONTINUATION", "true"),
        INTERACTIVE,
        ("AGENTD_PARENT", id),
    ]);
    assert_eq!(given(&child).await, expected);
}

#[tokio::test]
async fn a_value_that_differs_by_its_launch_is_no_change_of_the_environment() {
    let daemon = Daemon::start().await;
    for refresh in [Refresh::Fresh, Refresh::Stored, Refresh::Warn] {
        let mut spec = SessionSpec { name: Some("before".parse().unwrap()), ..daemon.scripted(&[]) };
        spec.environment.refresh = Some(refresh);
        let session = daemon.session(&spec).await;
        assert_eq!(given(&session).await["AGENTD_CONTINUATION"], "false");
        let renamed = daemon.client.patch(&session.path(""), &serde_json::json!({ "name": null }), None).await;
        assert_eq!(renamed.status.as_u16(), 200);
        session.stop().await;
        let view = session.resume().await;
        let condition = |kind| view.status.conditions.iter().find(|condition| condition.kind == kind);
        for kind in [ConditionType::EnvironmentUnchanged, ConditionType::EnvironmentDrifted] {
            let wanted = kind == ConditionType::EnvironmentUnchanged;
            let is_wanted = |status| (status == ConditionStatus::True) == wanted;
            assert!(condition(kind).is_none_or(|it| is_wanted(it.status)), "{refresh:?}: {:?}", condition(kind));
        }
        let given = given(&session).await;
        assert_eq!(given["AGENTD_CONTINUATION"], "true", "{refresh:?}");
        assert_eq!(given.get("AGENTD_SESSION_NAME"), None, "{refresh:?}: the session has no name any more");
        session.stop().await;
    }
}

#[tokio::test]
async fn the_names_of_the_kubernetes_runner_are_given_where_they_are_configured() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| config.replace("[environment]", "[environment]\ncompatibility = \"ambient\""));
    daemon.run().await;
    let remote = Remote::new(&daemon, "app");
    let mut spec = SessionSpec {
        workspace: Some(Workspace::New),
        directory: "".into(),
        repos: vec![RepositorySpec { branch: Some("next".to_owned()), ..remote.spec() }],
        initial_prompt: Some("say hello".to_owned()),
        ..daemon.scripted(&["--fork"])
    };
    spec.limits.turn_seconds = Some(90);
    let session = daemon.session(&spec).await;
    session.wait_for("the first turn has ended", |view| view.status.idle_since.is_some()).await;
    let id = session.id.as_str();
    let workspace = session.view().await.spec.directory.display().to_string();
    let repos: serde_json::Value = serde_json::from_str(&given(&session).await["REPOS_JSON"]).unwrap();
    let url = spec.repos[0].url.clone().unwrap();
    assert_eq!(repos, serde_json::json!([{ "name": "app", "url": url, "branch": "next" }]));
    let mut first = given(&session).await;
    first.remove("REPOS_JSON");
    let (artifacts, own) = (format!("{workspace}/artifacts"), "AGENTD_SESSION");
    let expected = owned([
        (own, id),
        ("AGENTD_CONTINUATION", "false"),
        INTERACTIVE,
        ("INTERACTIVE", "true"),
        ("AGENTD_WORKSPACE", &workspace),
        ("AGENTD_ARTIFACTS", &artifacts),
        ("SESSION_ID", id),
        ("AGENTIC_SESSION_NAME", id),
        ("WORKSPACE_PATH", &workspace),
        ("ARTIFACTS_DIR", &artifacts),
        ("INITIAL_PROMPT", "say hello"),
        ("TIMEOUT", "90"),
    ]);
    assert_eq!(first, expected);
    let patch = serde_json::json!({ "limits": { "session_seconds": 3600 } });
    assert_eq!(daemon.client.patch(&session.path(""), &patch, None).await.status.as_u16(), 200);
    session.stop().await;
    session.resume().await;
    assert_eq!(given(&session).await["TIMEOUT"], "3600", "the limit of the session");
    assert_eq!(given(&session).await["PARENT_SESSION_ID"], id, "a restart continues the session itself");
    let child = SessionSpec { parent: Some(id.parse().unwrap()), ..SessionSpec::new("") };
    let child = daemon.session(&child).await;
    assert_eq!(given(&child).await["PARENT_SESSION_ID"], id);
    let mut plain = daemon.scripted(&[]);
    plain.environment.compatibility = Some(RunnerNames::None);
    let plain = daemon.session(&plain).await;
    let ambient: BTreeSet<&str> = names(contract::AMBIENT).collect();
    assert!(given(&plain).await.keys().all(|name| !ambient.contains(name.as_str())));
    // A prompt that no variable can hold keeps no program from being started.
    let long = SessionSpec { initial_prompt: Some("x".repeat(200_000)), ..daemon.scripted(&[]) };
    let long = daemon.session(&long).await;
    assert_eq!(given(&long).await.get("INITIAL_PROMPT"), None);
}

/// Returns the options that the agent has, and the condition about them.
async fn options(session: &Session) -> (BTreeMap<String, String>, Option<(ConditionStatus, String)>) {
    let set = serde_json::from_str(&session.turn("options").await.text).unwrap();
    let view = session.view().await;
    let found = view.status.conditions.into_iter().find(|one| one.kind == ConditionType::OptionsApplied);
    (set, found.map(|one| (one.status, one.message)))
}

#[tokio::test]
async fn the_runners_variables_set_the_options_that_the_agent_offers() {
    let mut daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&["--options"]);
    spec.environment.env = owned([("LLM_MODEL", "large")]);
    // Without the runner's names, the variable is an ordinary one.
    assert_eq!(options(&daemon.session(&spec).await).await, (BTreeMap::new(), None));
    spec.environment.compatibility = Some(RunnerNames::Ambient);
    let session = daemon.session(&spec).await;
    let large = owned([("llm", "large-2")]);
    assert_eq!(options(&session).await, (large.clone(), Some((ConditionStatus::True, "llm is large-2".to_owned()))));
    // A process of the agent that was started again has forgotten it.
    session.stop().await;
    daemon.kill9();
    daemon.run().await;
    session.resume().await;
    assert_eq!(options(&session).await.0, large);
    // A value that the agent has already is not set again.
    spec.environment.env = owned([("LLM_MODEL", "small-1")]);
    let same = daemon.session(&spec).await;
    assert_eq!(options(&same).await, (BTreeMap::new(), Some((ConditionStatus::True, "llm is small-1".to_owned()))));
}

#[tokio::test]
async fn an_option_that_the_agent_does_not_take_is_named_and_stops_nothing() {
    let daemon = Daemon::start().await;
    let mut spec = daemon.scripted(&["--options"]);
    spec.environment.compatibility = Some(RunnerNames::Ambient);
    spec.environment.env = owned([("LLM_MODEL", "huge"), ("LLM_TEMPERATURE", "0.7"), ("LLM_MAX_TOKENS", "4000")]);
    let (set, said) = options(&daemon.session(&spec).await).await;
    let (status, message) = said.unwrap();
    assert_eq!((set, status), (BTreeMap::new(), ConditionStatus::False));
    for part in
        ["LLM_MODEL: the agent does not offer \"huge\" for llm, but small-1, large-2", "too hot", "LLM_MAX_TOKENS"]
    {
        assert!(message.contains(part), "{message}");
    }
    spec.command.as_mut().unwrap().retain(|word| word != "--options");
    let (_, said) = options(&daemon.session(&spec).await).await;
    assert_eq!(said.unwrap().1.matches("the agent offers no option for it").count(), 3);
}
