//! Tests that every real agent must pass. `opencode.rs` and `gemini.rs` contain the specifics of each agent.
//!
//! The agents talk to the stand-in model server on loopback, which obeys the user's last message. The tests need no
//! network and no account.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::event::{AnsweredBy, Body, OpenedBy, SyntheticCause};
use agentd_api::isolation::Isolation;
use agentd_api::session::{PermissionPolicy, Phase, SessionSpec};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::harness::ctl::ctl;
use crate::harness::model_server::{Asked, ModelServer, Reply};
use crate::harness::quote::quoted;
use crate::harness::session::{ends, said};
use crate::harness::{Daemon, Session, process, session, until};

/// A model that obeys: `run: COMMAND` calls the agent's shell, `call: TOOL ARGUMENTS` any tool of the agent, and `take
/// your time` waits for the gate. The answer to
/// any other message is the list of the user's messages so far.
pub(crate) struct Model {
    pub(crate) server: ModelServer,
    gate: Arc<Semaphore>,
}

impl Model {
    /// `tool` is the agent's name for its shell.
    pub(crate) async fn start(tool: &'static str) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&gate);
        let server = ModelServer::start(move |asked: &Asked| {
            let user = asked.texts("user");
            let last = user.last().map_or("", String::as_str);
            match (asked.last_role(), last.split_once("run: ")) {
                _ if !asked.has_tools => Reply::Text("a title".to_owned()),
                ("tool", _) => Reply::Text("the tool ran".to_owned()),
                (_, Some((_, command))) => Reply::Tool {
                    name: tool.to_owned(),
                    // Codex asks before a command only if the model requests to leave the sandbox.
                    arguments: match tool {
                        "exec_command" => json!({
                            "cmd": command, "sandbox_permissions": "require_escalated", "justification": "told so",
                        }),
                        _ => json!({ "command": command, "description": "does as it was told" }),
                    },
                },
                _ if last.contains("call: ") => called(last),
                _ if last.contains("take your time") => Reply::Held(Arc::clone(&held), "that took a while".to_owned()),
                _ => Reply::Text(format!("you said: {}", user.join(" | "))),
            }
        })
        .await;
        Self { server, gate }
    }

    /// Lets one waiting turn end.
    pub(crate) fn release(&self) {
        self.gate.add_permits(1);
    }

    /// Waits until the model gets this message, which means that the turn runs.
    pub(crate) async fn heard(&self, prompt: &str) {
        let heard =
            |asked: &Asked| asked.has_tools && asked.texts("user").last().is_some_and(|last| last.contains(prompt));
        until("the model is asked", || self.server.asked().iter().any(heard)).await;
    }
}

/// Returns the call of the tool that a message names, as `call: TOOL ARGUMENTS`.
fn called(message: &str) -> Reply {
    let (_, call) = message.split_once("call: ").expect("the message has a call");
    let (name, arguments) = call.split_once(' ').expect("the tool's arguments follow its name");
    // An agent may add text of its own after the prompt.
    let mut values = serde_json::Deserializer::from_str(arguments).into_iter();
    let arguments = values.next().and_then(Result::ok).expect("the arguments are JSON");
    Reply::Tool { name: name.to_owned(), arguments }
}

/// The specifics of one agent.
pub(crate) struct RealAgent {
    /// Entry of the configuration that has the command. Without it, the session has `command`.
    pub(crate) entry: Option<&'static str>,
    /// Mode of the agent's sessions, if it is not the agent's own.
    pub(crate) mode: Option<&'static str>,
    pub(crate) command: Vec<String>,
    /// Variables that the script of the agent's session exports. agentd has no other way to give an agent a variable.
    pub(crate) settings: Vec<(&'static str, String)>,
    /// Method that opens a conversation again.
    pub(crate) reopened_by: OpenedBy,
    /// Isolation of the agent's sessions.
    pub(crate) isolation: Isolation,
}

impl RealAgent {
    pub(crate) fn spec(&self, daemon: &Daemon) -> SessionSpec {
        let mut spec = session::spec(daemon.work(), self.command.clone());
        // The variables are in a separate file, because agentd stores the text of a session's script and may not store
        // keys.
        let exports: Vec<String> =
            self.settings.iter().map(|(name, value)| format!("export {name}='{value}'\n")).collect();
        let file = daemon.root().join("settings.sh");
        std::fs::write(&file, exports.concat()).expect("the directory is writable");
        spec.env_setup = Some(format!(". {}\n", quoted(&file)));
        if let Some(entry) = self.entry {
            (spec.agent, spec.command) = (Some(entry.parse().expect("entries have valid names")), None);
        }
        spec.mode = self.mode.map(str::to_owned);
        spec.permissions = PermissionPolicy::Allow;
        spec.isolation = Some(self.isolation);
        spec
    }
}

/// Returns the path of a program as an argument.
pub(crate) fn argument(program: &Path) -> String {
    program.to_str().expect("the tests' programs have names in UTF-8").to_owned()
}

/// Runs the agent through a whole session: turns, stops, restarts and the end of its processes.
pub(crate) async fn whole_life(daemon: &mut Daemon, agent: &RealAgent, model: &Model) {
    let session = daemon.session(&agent.spec(daemon)).await;

    assert_eq!(session.turn("run: echo ran > ran").await.text, "the tool ran");
    assert_eq!(std::fs::read_to_string(daemon.work().join("ran")).unwrap(), "ran\n");
    assert_eq!(permissions(&session), ["execute"], "it asked before it ran the command");

    detached_and_reattached_in_mid_turn(&session, model).await;

    let accepted = session.prompt("once more, take your time").await;
    model.heard("once more").await;
    daemon.kill9();
    model.release();
    daemon.run().await;
    assert_eq!(session.end_of(&accepted).await.text, "that took a while");

    let accepted = session.prompt("run: touch first; exec sleep 1000").await;
    tool_runs(daemon, "first").await;
    process::kill9(session.view().await.status.agent_pid.unwrap());
    let cut = session.end_of(&accepted).await.ended;
    assert_eq!(cut.synthetic.map(|synthetic| synthetic.cause), Some(SyntheticCause::AgentExited));
    session.wait_for_phase(Phase::Failed).await;
    // The daemon reads the facts after the turn.
    until("nothing is left of the agent", || process::of(daemon.root()) == [daemon.pid()]).await;

    // A launch of gemini may wait for the next minute, which is the harness's time limit. So the test waits in two
    // steps.
    session.post("/resume?wait=50", &serde_json::json!({})).await;
    session.wait_for_phase(Phase::Idle).await;
    assert_eq!(opened(&session), [OpenedBy::New, agent.reopened_by]);
    let text = session.turn("what is my favourite colour?").await.text;
    assert!(text.contains("teal") && text.contains("once more"), "it does not remember: {text}");
    let said_so = session.journal().iter().filter_map(said).filter(|text| text == "that took a while").count();
    assert_eq!(said_so, 2, "what the agent replayed is in the journal as if it had been said again");

    session.prompt("run: touch second; exec sleep 1000").await;
    tool_runs(daemon, "second").await;
    session.stop().await;
    process::assert_only(&[daemon.pid()], daemon.root(), "the stop left something");
    session.journal();
}

/// Asserts that the README's rule holds for the agent's own name of its tool, and that a person sees the command.
pub(crate) async fn is_held_by_rules(daemon: &Daemon, agent: &RealAgent) {
    let mut spec = agent.spec(daemon);
    let session = daemon.session(&spec).await;
    session.turn("run: touch made; git push nowhere-at-all || touch pushed").await;
    assert!(!daemon.work().join("made").exists(), "a part of it was denied, so nothing of it ran");
    let denied = session.journal().into_iter().find_map(|event| match event.body {
        Body::PermissionResolved(resolved) => Some(resolved),
        _ => None,
    });
    assert_eq!(denied.map(|resolved| resolved.by), Some(AnsweredBy::Policy));
    session.stop().await;

    spec.permissions = PermissionPolicy::Ask;
    let session = daemon.session(&spec).await;
    let accepted = session.prompt("run: touch made").await;
    let view = session.wait_for("a permission request", |view| !view.status.permissions.is_empty()).await;
    let request = &view.status.permissions[0];
    assert_eq!(request.details.command.as_deref(), Some("touch made"), "{request:?}");
    let (_, shown, _) = ctl(daemon, &["show", session.id.as_str()]).await.parts();
    assert!(shown.contains("    $ touch made\n"), "{shown}");
    session.post(&format!("/permissions/{}", request.id), &json!("allow")).await;
    session.end_of(&accepted).await;
    assert!(daemon.work().join("made").exists(), "what was approved ran");
    session.stop().await;
}

/// A client reads the beginning of a turn and leaves; another comes back with its cursor and reads the rest.
async fn detached_and_reattached_in_mid_turn(session: &Session, model: &Model) {
    let accepted = session.prompt("my favourite colour is teal; take your time").await;
    let mut events = session.events(&format!("after={}", accepted.after_seq)).await;
    let begins =
        |event: &agentd_api::Event| matches!(&event.body, Body::TurnStarted(turn) if turn.turn == accepted.turn);
    let mut seen = events.until("the turn begins", begins).await;
    drop(events);
    model.heard("teal").await;
    model.release();
    let mut events = session.events(&format!("after={}", seen.last().unwrap().seq)).await;
    seen.extend(events.until("the turn ends", |event| ends(event, &accepted.turn)).await);
    let journal = session.journal();
    let first = usize::try_from(accepted.after_seq).unwrap();
    let lines = |events: &[agentd_api::Event]| {
        events.iter().map(|event| (event.seq, event.body.to_data().get().to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(
        lines(&seen),
        lines(&journal[first..first + seen.len()]),
        "the two clients together missed or doubled something"
    );
}

/// Waits until the agent's tool has made the file `name`, which it does before it sleeps.
async fn tool_runs(daemon: &Daemon, name: &str) {
    let file: PathBuf = daemon.work().join(name);
    until(&format!("the tool that makes {name} runs"), || file.exists()).await;
}

fn permissions(session: &Session) -> Vec<String> {
    let events = session.journal().into_iter();
    let kinds = events.filter_map(|event| match event.body {
        Body::PermissionRequested(asked) => asked.request.tool_kind,
        _ => None,
    });
    kinds.collect()
}

/// Returns the method that opened the conversation, for each launch.
fn opened(session: &Session) -> Vec<OpenedBy> {
    let events = session.journal().into_iter();
    let opened = events.filter_map(|event| match &event.body {
        Body::ConversationOpened(opened) => Some(opened.by),
        _ => None,
    });
    opened.collect()
}
