//! `agentctl acp`: an editor drives it over pipes, with nothing but `HOME` in its environment.

mod clients;
mod hostile;
mod kills;
mod life;
mod notifications;
mod options;
mod permissions;
mod remote;
mod replay;
mod requests;
mod surroundings;

use std::process::Stdio;
use std::time::Duration;

use agentd_api::Code;
use agentd_api::session::SessionView;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use crate::harness::{Daemon, Session, paths, within};

/// A client that starts `agentctl acp`, as an editor does.
pub(super) struct Editor {
    child: Option<Child>,
    input: Option<Input>,
    messages: mpsc::UnboundedReceiver<Value>,
    /// Messages that arrived while the test waited for another.
    pub(super) past: Vec<Value>,
    next: u64,
}

/// Way of the client's messages.
enum Input {
    Pipe(ChildStdin),
    /// A task sends them over HTTP or WebSocket.
    Remote(mpsc::UnboundedSender<Vec<u8>>),
}

impl Editor {
    /// Starts the command for the scripted agent, and initializes it.
    pub(super) async fn start(daemon: &Daemon) -> Self {
        Self::named(daemon, "test", &[]).await
    }

    /// Starts the command with further options. The editor introduces itself by this name.
    pub(super) async fn named(daemon: &Daemon, name: &str, options: &[&str]) -> Self {
        let mut editor = Self::bare(daemon, options);
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": {}, "clientInfo": { "name": name } });
        let answer = editor.ask("initialize", hello).await;
        assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
        editor
    }

    /// Starts the command for the scripted agent with these flags, and initializes it.
    pub(super) async fn with_agent(daemon: &Daemon, flags: &[&str]) -> Self {
        let mut editor = Self::bare_of(daemon, flags);
        editor.ask("initialize", json!({ "protocolVersion": 1 })).await;
        editor
    }

    /// Starts the command for a configured agent, and initializes it with capabilities of the editor.
    pub(super) async fn of_agent(daemon: &Daemon, agent: &str, capabilities: Value) -> Self {
        let mut editor = Self::spawn(daemon, &["--agent", agent], None);
        editor.ask("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities })).await;
        editor
    }

    /// Starts the command and sends nothing.
    pub(super) fn bare(daemon: &Daemon, options: &[&str]) -> Self {
        Self::spawn(daemon, options, daemon.scripted(&[]).command)
    }

    /// Starts the command for the scripted agent with these flags, and sends nothing.
    pub(super) fn bare_of(daemon: &Daemon, flags: &[&str]) -> Self {
        Self::spawn(daemon, &[], daemon.scripted(flags).command)
    }

    fn spawn(daemon: &Daemon, options: &[&str], of: Option<Vec<String>>) -> Self {
        let mut command = Command::new(paths::agentctl());
        command.env_clear().env("HOME", daemon.home()).current_dir("/").kill_on_drop(true);
        command.arg("--socket").arg(daemon.client.socket()).arg("acp").args(options);
        if let Some(of) = of {
            command.arg("--").args(of);
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let output = child.stdout.take().expect("it is a pipe");
        let (sender, messages) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let message: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                assert_eq!(message["jsonrpc"], "2.0", "{line}");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take().map(Input::Pipe);
        Self { child: Some(child), input, messages, past: Vec::new(), next: 1 }
    }

    pub(super) async fn send(&mut self, message: &Value) {
        self.send_line(message.to_string().as_bytes()).await;
    }

    pub(super) async fn send_line(&mut self, line: &[u8]) {
        let input = match self.input.as_mut().expect("the input is open") {
            Input::Pipe(pipe) => pipe,
            Input::Remote(messages) => return messages.send(line.to_vec()).expect("the connection is open"),
        };
        input.write_all(line).await.expect("it reads");
        input.write_all(b"\n").await.expect("it reads");
        input.flush().await.expect("it reads");
    }

    /// Sends a request, and returns its id.
    pub(super) async fn request(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        id
    }

    pub(super) async fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    /// Sends a request, and returns its response.
    pub(super) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.request(method, params).await;
        self.response(id).await
    }

    pub(super) async fn response(&mut self, id: u64) -> Value {
        self.message(&format!("the response to {id}"), |message| message["id"] == id && message["method"].is_null())
            .await
    }

    /// Returns the next message that satisfies `wanted`, also if it has arrived already.
    pub(super) async fn message(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.past.iter().position(&wanted) {
            return self.past.remove(at);
        }
        loop {
            let message = within(what, self.messages.recv()).await;
            let message = message.unwrap_or_else(|| panic!("{what}: agentctl has ended; before: {:#?}", self.past));
            if wanted(&message) {
                return message;
            }
            self.past.push(message);
        }
    }

    /// Waits for an update that satisfies `wanted`, and keeps it.
    pub(super) async fn update(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) {
        let is_it = |message: &Value| message["method"] == "session/update" && wanted(&message["params"]["update"]);
        if !self.past.iter().any(is_it) {
            let message = self.message(what, is_it).await;
            self.past.push(message);
        }
    }

    /// Opens a new session, and returns its id.
    pub(super) async fn open(&mut self, daemon: &Daemon) -> String {
        let answer = self.ask("session/new", json!({ "cwd": daemon.work(), "mcpServers": [] })).await;
        answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Opens a session again by this method.
    pub(super) async fn reopen(&mut self, daemon: &Daemon, method: &str, session: &str) -> Value {
        self.ask(method, json!({ "sessionId": session, "cwd": daemon.work(), "mcpServers": [] })).await
    }

    pub(super) async fn prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request("session/prompt", json!({ "sessionId": session, "prompt": prompt })).await
    }

    /// Sends a prompt, and returns its response.
    pub(super) async fn turn(&mut self, session: &str, text: &str) -> Value {
        let id = self.prompt(session, text).await;
        self.response(id).await
    }

    /// Returns the agent's texts so far, in order, and forgets them.
    pub(super) fn texts(&mut self) -> Vec<String> {
        chunks(&std::mem::take(&mut self.past), "agent_message_chunk").into_iter().map(|(text, _)| text).collect()
    }

    /// Closes the input, and returns the exit status.
    pub(super) async fn leave(mut self) -> Option<i32> {
        drop(self.input.take());
        let mut child = self.child.take().expect("agentctl runs");
        within("agentctl ends", child.wait()).await.expect("it can be waited for").code()
    }

    pub(super) async fn kill9(mut self) {
        self.child.take().expect("agentctl runs").kill().await.expect("it can be killed");
    }
}

/// Starts a daemon whose agent `mine` is the scripted one, with further lines for that agent and for the configuration.
pub(super) async fn daemon_with(of_agent: &str, of_all: &str) -> Daemon {
    let mut daemon = Daemon::prepare();
    let command = daemon.scripted(&[]).command.unwrap();
    daemon.configure(|config| format!("{config}\n{of_all}\n[agents.mine]\ncommand = {command:?}\n{of_agent}\n"));
    daemon.run().await;
    daemon
}

/// Returns the texts of the chunks of this kind, with what `_meta` says about each.
pub(super) fn chunks(messages: &[Value], kind: &str) -> Vec<(String, Value)> {
    let updates = messages.iter().filter(|message| message["method"] == "session/update");
    updates
        .filter(|message| message["params"]["update"]["sessionUpdate"] == kind)
        .map(|message| {
            let text = message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
            (text.to_owned(), message["params"]["_meta"]["agentd"].clone())
        })
        .collect()
}

/// Returns the numbers that the agent's command `count` said.
pub(super) fn numbers(texts: &[String]) -> Vec<u32> {
    texts.iter().filter_map(|text| text.trim().parse().ok()).collect()
}

/// Returns the session for calls of the control endpoint.
pub(super) fn handle(daemon: &Daemon, id: &str) -> Session {
    Session::new(id.parse().expect("an id of agentd"), daemon.client.clone(), daemon.state())
}

/// Reports whether the session exists.
pub(super) async fn exists(daemon: &Daemon, id: &str) -> bool {
    let response = daemon.client.call("GET", &format!("/v1/sessions/{id}"), "").await;
    if response.status == 200 {
        drop(response.expect::<SessionView>(200));
        return true;
    }
    assert_eq!(response.problem().code, Code::NoSuchSession);
    false
}

/// Time in which a message that must not come would come.
pub(super) const QUIET: Duration = Duration::from_millis(300);
