//! New sessions with a workflow: what is approved, what the agent gets, and what hinders the launch.

use std::fs;

use agentd_api::session::{ConditionStatus, Phase, RestartPolicy, SessionSpec, SessionView};
use agentd_api::workflow::WorkflowSpec;
use agentd_api::{Body, Code, reason};
use serde_json::{Value, json};

use super::{approve, approved, at, condition, flow, opened, prompts, refused, remembered, settled, switch};
use crate::harness::ctl::ctl;
use crate::harness::{Daemon, process};
use crate::prerequisites;
use crate::repositories::Remote;

#[tokio::test]
async fn a_new_session_fails_until_its_workflow_is_approved() {
    let daemon = Daemon::start().await;
    let directory = flow(&daemon, "triage", "name = \"triage\"\nstartup_prompt = \"say triage begins\"\n");
    let spec = SessionSpec {
        workflow: Some(at(&directory)),
        initial_prompt: Some("say first".to_owned()),
        ..daemon.scripted(&[])
    };
    let session = daemon.create(&spec).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert_eq!(condition(&view).unwrap().reason, reason::WORKFLOW_NOT_APPROVED);
    let failure = view.status.workflow.as_ref().unwrap().failure.as_ref().unwrap();
    assert_eq!(failure.to_approve, [directory.join("workflow.toml")]);
    // Without a terminal nothing is approved; the text is shown.
    let id = session.id.as_str();
    let (status, out, err) = ctl(&daemon, &["workflow", "allow", id]).await.parts();
    assert_ne!(status, Some(0));
    assert!(
        out.contains("startup_prompt = \"say triage begins\"") && err.contains("nothing was approved"),
        "{out}{err}"
    );
    let (status, out, err) = ctl(&daemon, &["workflow", "allow", id, "--yes"]).await.parts();
    assert_eq!(status, Some(0), "{out}{err}");
    assert!(err.contains("agentctl resume"), "{err}");
    session.resume().await;
    let view = settled(&session, Some(&at(&directory))).await;
    assert_eq!(condition(&view).unwrap().status, ConditionStatus::True);
    assert_eq!(prompts(&session), ["say triage begins", "say first"], "the startup prompt comes first");
    // Each is sent once in the session's life.
    session.stop().await;
    session.resume().await;
    assert_eq!(prompts(&session).len(), 2);
    let (_, out, _) = ctl(&daemon, &["workflow", "show", id]).await.parts();
    assert!(out.contains("in force:       triage") && out.contains("startup prompt: say triage begins"), "{out}");
}

#[tokio::test]
async fn the_agent_gets_the_directory_the_instructions_and_the_script() {
    let daemon = Daemon::start().await;
    let directory = flow(
        &daemon,
        "lab",
        "name = \"lab\"\nsystem_prompt = \"Use the lab.\"\npaths = [\"docs\", \"/srv\"]\n\
         environment_script = \"env.sh\"\n",
    );
    fs::write(directory.join("env.sh"), "export LAB=\"in $PWD\"\n").unwrap();
    approve(&daemon, &directory.join("workflow.toml")).await;
    let spec = SessionSpec { workflow: Some(at(&directory)), ..daemon.scripted(&["--directories"]) };
    let session = daemon.create(&spec).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    let failure = view.status.workflow.as_ref().unwrap().failure.as_ref().unwrap();
    assert_eq!(failure.to_approve, [directory.join("env.sh")], "the script needs its own approval");
    approve(&daemon, &directory.join("env.sh")).await;
    session.resume().await;
    let (place, further) = opened(&session).await;
    assert_eq!(place, directory);
    assert_eq!(further, [daemon.work(), "/srv".into()], "what lies below its directory is left out");
    assert_eq!(session.turn("cwd").await.text, directory.display().to_string());
    let environment: Value = serde_json::from_str(&session.turn("env").await.text).unwrap();
    let place = directory.display().to_string();
    assert_eq!(environment["LAB"], format!("in {place}"));
    assert_eq!(
        (&environment["AGENTD_WORKFLOW"], &environment["AGENTD_WORKFLOW_DIRECTORY"]),
        (&json!("lab"), &json!(place))
    );
    // The instructions came with the first prompt, and with no other one.
    let instructions: Vec<Option<String>> = session
        .journal()
        .iter()
        .filter_map(
            |event| if let Body::TurnStarted(one) = &event.body { Some(one.instructions.clone()) } else { None },
        )
        .collect();
    assert!(instructions[0].as_ref().unwrap().ends_with("Use the lab."), "{instructions:?}");
    assert!(instructions[1..].iter().all(Option::is_none), "{instructions:?}");
    // A changed script fails the next launch, as the scripts of a directory do.
    fs::write(directory.join("env.sh"), "export LAB=other\n").unwrap();
    session.stop().await;
    session.post("/resume", &json!({})).await.expect::<SessionView>(202);
    session.wait_for_phase(Phase::Failed).await;
}

#[tokio::test]
async fn a_workflow_comes_from_a_branch_and_a_path_of_a_repository() {
    let daemon = Daemon::start().await;
    let remote = Remote::new(&daemon, "flows");
    let ambient = r#"{"name": "Bugs", "startupPrompt": "say bugs"}"#;
    remote.push("next", "bugs/.ambient/ambient.json", ambient);
    let wanted = WorkflowSpec {
        url: Some(remote.url()),
        branch: Some("next".to_owned()),
        path: Some("bugs".into()),
        ..WorkflowSpec::default()
    };
    let spec = SessionSpec { workflow: Some(wanted.clone()), ..daemon.scripted(&[]) };
    let session = daemon.create(&spec).await;
    session.wait_for_phase(Phase::Failed).await;
    let place = daemon.work().join("workflows/flows-next/bugs");
    approve(&daemon, &place.join(".ambient/ambient.json")).await;
    session.resume().await;
    let view = settled(&session, Some(&wanted)).await;
    assert_eq!(opened(&session).await.0, place);
    assert_eq!(view.status.repos[0].name, "workflow-flows-next");
    assert_eq!(prompts(&session)[0], "say bugs");
    // A removed session takes its clone along.
    session.stop().await;
    assert_eq!(daemon.client.call("DELETE", &session.path(""), "").await.status.as_u16(), 204);
    assert!(!daemon.work().join("workflows/flows-next").exists());
}

#[tokio::test]
async fn each_mistake_in_a_workflow_has_a_reason_and_a_place() {
    let daemon = Daemon::start().await;
    let cases = [
        ("none", None, reason::NO_WORKFLOW, "neither"),
        ("odd", Some("nam = 1"), reason::WORKFLOW_INVALID, "workflow.toml"),
        ("needs", Some("name = \"x\"\nrequires = [\"vpn\"]"), reason::WORKFLOW_INVALID, "\"vpn\""),
        (
            "script",
            Some("name = \"x\"\nenvironment_script = \"a.sh\""),
            reason::WORKFLOW_INVALID,
            "a.sh does not exist",
        ),
        ("open", Some("name = \"x\""), reason::WORKFLOW_NOT_APPROVED, "agentctl workflow allow"),
    ];
    for (name, text, reason, message) in cases {
        let directory = daemon.root().join("flows").join(name);
        fs::create_dir_all(&directory).unwrap();
        if let Some(text) = text {
            fs::write(directory.join("workflow.toml"), text).unwrap();
        }
        let session = daemon.create(&SessionSpec { workflow: Some(at(&directory)), ..daemon.scripted(&[]) }).await;
        let view = session.wait_for_phase(Phase::Failed).await;
        let found = condition(&view).unwrap();
        assert_eq!(found.reason, reason, "{name}: {found:?}");
        assert!(found.message.contains(message), "{name}: {found:?}");
        // A degraded launch leaves it out.
        session.post("/resume?degraded=true", &json!({})).await.expect::<SessionView>(202);
        let view = session.wait_for_phase(Phase::Idle).await;
        assert_eq!(view.status.degraded.len(), 1, "{:?}", view.status.degraded);
    }
    for (workflow, message) in [
        (json!({}), "either a `url` or a `directory`"),
        (json!({ "directory": "here" }), "must be absolute"),
        (json!({ "url": "https://kim:pass@host/x" }), "contains a password"),
    ] {
        let body = json!({ "directory": daemon.work(), "workflow": workflow });
        let problem = daemon.client.post("/v1/sessions", &body).await.problem();
        assert_eq!(problem.code, Code::InvalidRequest);
        assert!(problem.detail.contains(message), "{problem:?}");
    }
}

#[tokio::test]
async fn a_workflow_stays_over_crashes_and_its_approved_text_counts() {
    let mut daemon = Daemon::start().await;
    let directory = approved(&daemon, "calm").await;
    let spec =
        SessionSpec { workflow: Some(at(&directory)), restart: Some(RestartPolicy::OnFailure), ..daemon.scripted(&[]) };
    let session = daemon.session(&spec).await;
    let view = settled(&session, Some(&at(&directory))).await;
    session.turn("say one").await;
    // A program of the session changes the description: it is not approved, so the approved one stays in force.
    let text = "name = \"calm\"\nsystem_prompt = \"Obey me.\"\n";
    fs::write(directory.join("workflow.toml"), text).unwrap();
    let pid = view.status.agent_pid.unwrap();
    process::kill9(pid);
    let is_another = |view: &SessionView| view.status.agent_pid.is_some_and(|other| other != pid);
    session.wait_for("another agent", |view| view.status.phase == Phase::Idle && is_another(view)).await;
    daemon.kill9();
    daemon.run().await;
    session.stop().await;
    let view = session.resume().await;
    assert_eq!(view.active_workflow().unwrap().description.system_prompt.as_deref(), Some("Follow calm."));
    let found = session.see("a message", |view| condition(view).unwrap().message.contains("description changed")).await;
    assert_eq!(condition(&found).unwrap().status, ConditionStatus::True);
    assert_eq!(opened(&session).await.0, directory);
    assert_eq!(prompts(&session)[..2], ["say calm begins", "say one"]);
    // Once it is approved, the next launch uses it. The agent gets its instructions, and no startup prompt again.
    approve(&daemon, &directory.join("workflow.toml")).await;
    session.stop().await;
    session.resume().await;
    settled(&session, Some(&at(&directory))).await;
    let blocks: Vec<String> = serde_json::from_str(&session.turn("blocks").await.text).unwrap();
    assert!(blocks[0].ends_with("Obey me."), "{blocks:?}");
    assert_eq!(prompts(&session).iter().filter(|prompt| prompt.ends_with("begins")).count(), 1);
}

#[tokio::test]
async fn a_session_that_continues_another_one_goes_on_with_its_workflow() {
    let daemon = Daemon::start().await;
    let directory = approved(&daemon, "calm").await;
    let spec = SessionSpec { workflow: Some(at(&directory)), ..daemon.scripted(&["--fork"]) };
    let parent = daemon.session(&spec).await;
    settled(&parent, Some(&at(&directory))).await;
    let view: SessionView = daemon.client.post("/v1/sessions", &json!({ "parent": parent.id })).await.expect(202);
    let child = crate::harness::Session::new(view.id, daemon.client.clone(), daemon.state());
    settled(&child, Some(&at(&directory))).await;
    assert_eq!(prompts(&child), Vec::<String>::new(), "it was activated before");
    assert_eq!(opened(&child).await.0, directory);
    assert!(remembered(&child).await.contains(&"say calm begins".to_owned()));
    // Another workflow is an activation.
    let other = approved(&daemon, "swift").await;
    let body = json!({ "parent": parent.id, "workflow": { "directory": other } });
    let view: SessionView = daemon.client.post("/v1/sessions", &body).await.expect(202);
    let second = crate::harness::Session::new(view.id, daemon.client.clone(), daemon.state());
    settled(&second, Some(&at(&other))).await;
    assert_eq!(prompts(&second), ["say swift begins"]);
    let _: Value = daemon.client.get(&second.path("")).await.expect(200);
}

#[tokio::test]
async fn a_workflow_that_is_gone_leaves_a_usable_session() {
    let daemon = Daemon::start().await;
    let directory = approved(&daemon, "calm").await;
    let session = daemon.session(&SessionSpec { workflow: Some(at(&directory)), ..daemon.scripted(&[]) }).await;
    settled(&session, Some(&at(&directory))).await;
    session.stop().await;
    let kept = daemon.root().join("kept");
    fs::rename(&directory, &kept).unwrap();
    session.resume().await;
    refused(&session, reason::NO_WORKFLOW).await;
    assert_eq!(opened(&session).await.0, daemon.work());
    fs::rename(&kept, &directory).unwrap();
    settled(&session, Some(&at(&directory))).await;
    assert_eq!(opened(&session).await.0, directory);
    assert_eq!(prompts(&session).iter().filter(|prompt| prompt.ends_with("begins")).count(), 1);
}

#[tokio::test]
async fn a_workflow_needs_prerequisites() {
    let daemon = prerequisites::with(&[("vpn", "cache = \"1ms\"")]).await;
    let directory = flow(&daemon, "lab", "name = \"lab\"\nrequires = [\"vpn\"]\n");
    approve(&daemon, &directory.join("workflow.toml")).await;
    let session = daemon.create(&SessionSpec { workflow: Some(at(&directory)), ..daemon.scripted(&[]) }).await;
    let view = session.wait_for_phase(Phase::Failed).await;
    assert!(view.status.message.as_ref().unwrap().contains("vpn (fail)"), "{view:#?}");
    prerequisites::world(&daemon, "vpn", "pass");
    session.resume().await;
    settled(&session, Some(&at(&directory))).await;
    // Without the workflow, the session does not need it.
    prerequisites::world(&daemon, "vpn", "fail");
    switch(&daemon, &session, None).await;
    settled(&session, None).await;
    session.stop().await;
    session.resume().await;
}
