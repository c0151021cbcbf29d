//! `agentctl run --batch`: exit statuses, the result as JSON, Ctrl-C, and a client that is gone.

use std::fs;
use std::time::Duration;

use agentd_api::session::{Phase, SessionSpec, WholeList};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use super::result;
use crate::harness::ctl::{agentctl, ctl, ctl_with, end_of};
use crate::harness::{Daemon, Session, process, scripted_agent, until, within};

/// Runs a prompt as a batch session, with further arguments.
async fn batch(daemon: &Daemon, prompt: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let words = [&["run", "--batch", "--agent", "scripted", "--prompt", prompt], more].concat();
    ctl(daemon, &words).await.parts()
}

#[tokio::test]
async fn the_exit_status_is_that_of_the_outcome() {
    let daemon = Daemon::start().await;
    let schema = daemon.root().join("schema.json");
    fs::write(&schema, r#"{"type":"object"}"#).unwrap();
    let schema = schema.to_str().unwrap();
    assert_eq!(batch(&daemon, "say I look\ndo true\nsay 7", &[]).await, (Some(0), "7\n".to_owned(), String::new()));
    for (prompt, more, status, text) in [
        ("exit 3", &[][..], 1, "the agent exited with status 3"),
        ("hang", &["--turn-limit", "1s"], 5, "limits.turn"),
        ("hang", &["--session-limit", "1s"], 5, "limits.session_seconds"),
        ("cost 2 USD\nhang", &["--cost-limit", "1USD"], 5, "its limit is 1 USD"),
        ("say no", &["--schema", schema], 6, "is not JSON"),
    ] {
        let (got, out, err) = batch(&daemon, prompt, more).await;
        assert_eq!(got, Some(status), "{prompt}: {out} {err}");
        assert!(err.contains("error: ") && err.contains(text) && err.contains("hint: "), "{prompt}: {err}");
    }
    let (status, _, err) = ctl(&daemon, &["run", "--batch", "--agent", "scripted"]).await.parts();
    assert!(status == Some(2) && err.contains("needs a prompt"), "{err}");
}

#[tokio::test]
async fn the_result_is_one_json_document() {
    let daemon = Daemon::start().await;
    let schema = daemon.root().join("schema.json");
    fs::write(&schema, r#"{"type":"object"}"#).unwrap();
    let more = ["-o", "json", "--schema", schema.to_str().unwrap(), "--workspace", "--name", "job"];
    let prompt = "do printf a > artifacts/a\ncost 0.5 USD\nsay {\"ok\":true}";
    let (status, out, err) = batch(&daemon, prompt, &more).await;
    let done: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out} {err}"));
    assert_eq!((status, &done["outcome"], &done["exit_status"]), (Some(0), &json!("completed"), &json!(0)));
    assert_eq!((&done["name"], &done["structured"]), (&json!("job"), &json!({ "ok": true })));
    assert_eq!((&done["cost"]["amount"], &done["artifacts"][0]["path"]), (&json!(0.5), &json!("a")));
    let (_, shown, _) = ctl(&daemon, &["show", "job"]).await.parts();
    for line in
        ["completion:", "completed: the prompts are done", "exit status:   0", "0.5 USD", "artifact:      a (1 bytes"]
    {
        assert!(shown.contains(line), "{line:?} is not in\n{shown}");
    }
    // With --rm nothing stays.
    assert_eq!(batch(&daemon, "say gone", &["--rm"]).await.0, Some(0));
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    assert_eq!(list.sessions.len(), 1);
}

async fn only(daemon: &Daemon) -> Session {
    let view = within("a session that works", async {
        loop {
            let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
            if let Some(view) = list.sessions.into_iter().find(|view| view.status.phase == Phase::Busy) {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    Session::new(view.id, daemon.client.clone(), daemon.state())
}

#[tokio::test]
async fn ctrl_c_stops_the_session_and_a_client_that_is_gone_does_not() {
    let daemon = Daemon::start().await;
    let words = ["run", "--batch", "--agent", "scripted", "--prompt"];
    let child = agentctl(&daemon, &[&words[..], &["hang"]].concat()).spawn().unwrap();
    let session = only(&daemon).await;
    let pid = process::pid(child.id());
    kill(pid, Signal::SIGINT).unwrap();
    let said = end_of(child).await;
    assert_eq!(said.status, Some(130), "{said:?}");
    assert_eq!(result(&session).await.0.status.phase, Phase::Stopped);
    let mut child = agentctl(&daemon, &[&words[..], &["count 50 5\nsay end"]].concat()).spawn().unwrap();
    let session = only(&daemon).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(result(&session).await.1.exit_status, 0);
}

#[tokio::test]
async fn a_prompt_with_a_schema_has_an_exit_status_of_its_own() {
    let daemon = Daemon::start().await;
    let spec = SessionSpec { name: Some("talk".parse().unwrap()), ..daemon.scripted(&[]) };
    daemon.session(&spec).await;
    let schema = daemon.root().join("schema.json");
    fs::write(&schema, r#"{"type":"object"}"#).unwrap();
    let schema = schema.to_str().unwrap();
    assert_eq!(ctl(&daemon, &["prompt", "talk", "--schema", schema, "say", "{}"]).await.status, Some(0));
    let said = ctl(&daemon, &["prompt", "talk", "--schema", schema, "say", "no"]).await;
    assert_eq!(said.status, Some(6), "{said:?}");
    assert!(said.err.contains("asked once more"), "{said:?}");
    fs::write(schema, "{").unwrap();
    assert_eq!(ctl(&daemon, &["prompt", "talk", "--schema", schema, "say", "no"]).await.status, Some(2));
    fs::write(schema, r#"{"type":"colour"}"#).unwrap();
    let said = ctl(&daemon, &["prompt", "talk", "--schema", schema, "say", "no"]).await;
    assert!(said.status == Some(1) && said.err.contains("at /type"), "{said:?}");
}

#[tokio::test]
async fn files_and_changes_know_the_fields() {
    let daemon = Daemon::start().await;
    let file = format!(
        "name: job\ndirectory: {}\ncommand: [{}]\ninteractive: false\ninitial_prompt: say done\n\
         answer_schema: {{ type: string }}\nlimits: {{ cost: 2 USD, session_seconds: 1h }}\n",
        daemon.work().display(),
        scripted_agent().display(),
    );
    let said = ctl_with(&daemon, &["apply", "-f", "-"], &file).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    let view = daemon.client.view("job").await;
    assert!(!view.spec.interactive);
    assert_eq!(view.spec.limits.cost.map(|limit| limit.to_string()).as_deref(), Some("2 USD"));
    let session = Session::new(view.id, daemon.client.clone(), daemon.state());
    result(&session).await;
    let said = ctl_with(&daemon, &["diff", "-f", "-"], &file).await;
    assert_eq!((said.status, said.out.as_str()), (Some(0), ""), "a completed session is as the file has it");
    let said = ctl(&daemon, &["set", "job", "interactive=true", "limits.cost=3EUR"]).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    until("the keeper is gone", || process::running(daemon.root(), "agentd-keeper", Some("hold")).is_empty()).await;
}
