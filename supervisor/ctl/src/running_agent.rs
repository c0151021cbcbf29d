//! An agent that this process starts itself, outside of a session: for a login, or to delete a conversation.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use agentd_api::login::AgentStart;
use agentd_screen::terminal::Screen;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::error::Error;

/// Time for the answer to `initialize`.
const INITIALIZE: Duration = Duration::from_mins(1);
/// Time for the end of an agent whose standard input is closed.
const END: Duration = Duration::from_secs(5);

/// Returns the error of a program that cannot be started.
pub(crate) fn not_started(program: &Path, source: &std::io::Error) -> Error {
    failed(format!("cannot start {}: {source}", program.display()))
}

fn failed(detail: String) -> Error {
    let hint = "check the agent's command with `agentctl agents`, and its installation".to_owned();
    Error::Usage { detail, hint }
}

/// Returns the command of the agent's program, without arguments.
pub(crate) fn of_agent(start: &AgentStart, directory: &Path) -> Command {
    plain(Path::new(start.command.first().map_or("", String::as_str)), start, directory)
}

/// Returns the command of a program in the agent's environment, without arguments.
pub(crate) fn plain(program: &Path, start: &AgentStart, directory: &Path) -> Command {
    let mut command = Command::new(program);
    let variables = start.environment.iter();
    let variables =
        variables.map(|variable| (OsStr::new(&variable.name), OsString::from_vec(variable.value.as_bytes().to_vec())));
    command.env_clear().envs(variables).current_dir(directory).kill_on_drop(true);
    command
}

/// An agent that this process has started.
pub(crate) struct RunningAgent {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    requests: u64,
}

impl RunningAgent {
    /// Starts the agent. During a login its standard error is this terminal's, since agents print addresses there.
    pub(crate) fn start(start: &AgentStart, directory: &Path, stderr: Stdio) -> Result<Self, Error> {
        let mut command = of_agent(start, directory);
        command.args(start.command.iter().skip(1)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let program = PathBuf::from(command.as_std().get_program());
        let mut child = command.spawn().map_err(|source| not_started(&program, &source))?;
        let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        let lines = lines.ok_or_else(|| Error::Setup(std::io::Error::other("the agent has no standard output")))?;
        Ok(Self { stdin: child.stdin.take(), child, lines, requests: 0 })
    }

    async fn send(&mut self, message: &Value) {
        let Some(stdin) = &mut self.stdin else { return };
        // An agent that has ended is noticed when its answer is read.
        let _ = stdin.write_all(format!("{message}\n").as_bytes()).await;
        let _ = stdin.flush().await;
    }

    /// Makes a request and returns the result. The error describes what went wrong, in the agent's own words if it has
    /// any.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> Result<Value, String> {
        self.requests += 1;
        let id = self.requests;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        loop {
            let line = match self.lines.next_line().await {
                Ok(Some(line)) => line,
                Ok(None) => return Err(format!("the agent ended before it answered {method}")),
                Err(error) => return Err(format!("the answer to {method} cannot be read: {error}")),
            };
            let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
            if message["id"] == id && message.get("method").is_none() {
                return match message.get("error") {
                    None => Ok(message["result"].clone()),
                    Some(error) => {
                        let words = error["message"].as_str().unwrap_or("an error without a message");
                        let details = error["data"]["details"].as_str().map(|text| format!(": {text}"));
                        let words = Screen::stderr().line(&format!("{words}{}", details.unwrap_or_default()));
                        Err(format!("the agent answered {method} with an error: {words}"))
                    }
                };
            }
            if message.get("method").is_some() && !message["id"].is_null() {
                let error = json!({ "code": -32601, "message": "agentctl offers no methods here" });
                self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })).await;
            }
        }
    }

    /// Introduces this client, and returns the agent's introduction. `logs_in` tells whether this client runs logins at
    /// its terminal.
    pub(crate) async fn introduce(&mut self, logs_in: bool) -> Result<Value, Error> {
        let capabilities = json!({ "auth": { "terminal": true }, "_meta": { "terminal-auth": true } });
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": if logs_in { capabilities } else { json!({}) },
            "clientInfo": { "name": "agentd", "version": env!("CARGO_PKG_VERSION") },
        });
        let silent = |_| failed(format!("the agent did not answer initialize within {} s", INITIALIZE.as_secs()));
        timeout(INITIALIZE, self.request("initialize", params)).await.map_err(silent)?.map_err(failed)
    }

    /// Ends the agent: closes its standard input, and kills it if that does not help.
    pub(crate) async fn end(&mut self) {
        self.stdin = None;
        if timeout(END, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}
