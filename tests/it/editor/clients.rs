//! Clients of other projects: the official SDK, with the official schema, and acpx.

use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use agentd_api::session::{Phase, WholeList};
use tokio::process::Command;

use crate::harness::quote::quoted;
use crate::harness::{Daemon, paths, process, require, within};

/// Returns the words that start `agentctl acp` for the scripted agent.
fn words(daemon: &Daemon) -> Vec<String> {
    let socket = daemon.client.socket().display().to_string();
    let program = paths::agentctl();
    let mut words: Vec<String> = [program, "acp", "--socket", &socket, "--"].map(str::to_owned).into();
    words.extend(daemon.scripted(&[]).command.expect("it has a command"));
    words
}

#[tokio::test]
async fn the_official_sdk_drives_a_whole_life_and_the_official_schema_takes_every_message() {
    let Some(modules) = require::acp_clients() else { return };
    let daemon = Daemon::start().await;
    let script = paths::checkout().join("tests/editors/sdk.mjs");
    let mut node = Command::new("node");
    node.arg(script).arg(modules).arg(daemon.work()).args(words(&daemon)).env("HOME", daemon.home());
    let Output { status, stdout, stderr } = within("the client ends", node.output()).await.expect("node starts");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && out.contains("messages are valid"), "{out}{err}");
}

/// The client acpx with a home of its own.
struct Acpx<'a> {
    modules: PathBuf,
    daemon: &'a Daemon,
}

impl Acpx<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("node");
        command.arg(self.modules.join("acpx/dist/cli.js")).arg("--cwd").arg(self.daemon.work());
        command
            .arg("--agent")
            .arg(words(self.daemon).iter().map(quoted).collect::<Vec<_>>().join(" "))
            .args(["--ttl", "5", "--approve-all"])
            .args(arguments);
        command.env("HOME", self.daemon.home()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs a command to its end, and returns what it printed.
    async fn run(&self, arguments: &[&str]) -> String {
        let what = format!("acpx {arguments:?}");
        let Output { status, stdout, stderr } =
            within(&what, self.command(arguments).output()).await.expect("node starts");
        let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{what}: {status}: {out}{err}");
        out.into_owned()
    }

    /// Kills `agentctl acp`, and then acpx, which waits without end for an agent that was killed. Removes the locks
    /// that acpx leaves behind.
    fn kill_the_command(&self) {
        for (program, argument) in [("agentctl", Some("acp")), ("node", None)] {
            for pid in process::running(self.daemon.root(), program, argument) {
                process::kill9(pid);
            }
        }
        let own = self.daemon.home().join(".acpx");
        fs::remove_dir_all(own.join("queues")).expect("acpx has a queue");
        for entry in fs::read_dir(own.join("sessions")).expect("acpx has sessions").flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "lock") {
                fs::remove_file(entry.path()).expect("it can be removed");
            }
        }
    }
}

#[tokio::test]
async fn acpx_keeps_queues_cancels_and_finds_its_session_after_each_kill() {
    let Some(modules) = require::acp_clients() else { return };
    let mut daemon = Daemon::start().await;
    let acpx = Acpx { modules: modules.clone(), daemon: &daemon };
    acpx.run(&["sessions", "new"]).await;
    assert!(acpx.run(&["prompt", "say one"]).await.contains("one"));
    assert!(acpx.run(&["prompt", "tool echo from the tool"]).await.contains("from the tool"));
    assert!(acpx.run(&["exec", "say by exec"]).await.contains("by exec"));
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    let is_first = |text: &str| text.contains("say one");
    let own = list.sessions.iter().find(|view| view.status.title.as_deref().is_some_and(is_first)).expect("it is kept");
    let session = super::handle(&daemon, own.id.as_str());

    // A prompt that waits for another, and a cancel.
    let hanging = acpx.command(&["prompt", "hang"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    session.wait_for_phase(Phase::Busy).await;
    acpx.run(&["prompt", "--no-wait", "say queued"]).await;
    acpx.run(&["cancel"]).await;
    within("the cancelled prompt ends", hanging.wait_with_output()).await.unwrap();
    session
        .wait_for("the queue is done", |view| view.status.phase == Phase::Idle && view.status.queue.is_empty())
        .await;
    assert!(acpx.run(&["sessions", "history"]).await.contains("say one"));

    // Each process is killed once in the middle of a turn, and the next prompt finds the conversation.
    for victim in ["agentd", "agentctl", "agent"] {
        let acpx = Acpx { modules: modules.clone(), daemon: &daemon };
        let turn = acpx.command(&["prompt", "count 60 20"]).stdout(Stdio::piped()).spawn().unwrap();
        session.wait_for_phase(Phase::Busy).await;
        match victim {
            "agentctl" => acpx.kill_the_command(),
            "agent" => process::kill9(session.view().await.status.agent_pid.expect("it runs")),
            _ => {
                daemon.kill9();
                daemon.run().await;
            }
        }
        let output = within("the prompt ends", turn.wait_with_output()).await.unwrap();
        if victim == "agentd" {
            let out = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && out.contains("60"), "the client does not notice: {out}");
        }
        session.wait_for("the turn is over", |view| view.status.turn.is_none()).await;
        let acpx = Acpx { modules: modules.clone(), daemon: &daemon };
        let said = acpx.run(&["prompt", "remember"]).await;
        assert!(said.contains("say one") && said.contains("count 60 20"), "{victim}: {said}");
    }
    let acpx = Acpx { modules, daemon: &daemon };
    acpx.run(&["sessions", "close"]).await;
    assert!(super::exists(&daemon, session.id.as_str()).await, "agentd keeps what acpx has closed");
}
