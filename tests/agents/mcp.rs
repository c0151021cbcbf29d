//! A client of the MCP servers that an agent is given: starts a server on stdio, and calls its tools.
//!
//! The server gets the variables of its entry and `PATH` alone, because real agents pass little else.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A running server.
pub(crate) struct McpClient {
    child: Child,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
    requests: u64,
}

impl McpClient {
    /// Starts the server of an entry of `mcpServers`. The variables of `changed` replace those of the entry.
    pub(crate) fn start(entry: &Value, changed: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut command = Command::new(text(&entry["command"]));
        command.args(entry["args"].as_array().into_iter().flatten().map(text)).env_clear();
        command.env("PATH", "/usr/bin:/bin");
        for variable in entry["env"].as_array().into_iter().flatten() {
            command.env(text(&variable["name"]), text(&variable["value"]));
        }
        for (name, value) in changed.as_object().into_iter().flatten() {
            command.env(name, text(value));
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the server can be started");
        let stdin = child.stdin.take().expect("stdin is a pipe");
        let lines = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let mut client = Self { child, stdin, lines, requests: 0 };
        let about = json!({ "name": "scripted", "version": "1" });
        client.request(
            "initialize",
            &json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about }),
        );
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        client
    }

    /// Sends a request, and returns its result or its error.
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        loop {
            let mut line = String::new();
            self.lines.read_line(&mut line).expect("the server's stdout is UTF-8");
            if line.is_empty() {
                return json!({ "ended": true });
            }
            let message: Value = serde_json::from_str(&line).expect("the server prints JSON");
            if message["id"] == id {
                return if message["error"].is_null() { message["result"].clone() } else { message["error"].clone() };
            }
        }
    }

    /// Calls a tool. Returns the text of its result, and whether the result is an error.
    pub(crate) fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let result = self.request("tools/call", &json!({ "name": tool, "arguments": arguments }));
        json!({ "text": result["content"][0]["text"], "error": result["isError"] == true })
    }

    /// Ends the server by the end of its stdin, and returns its exit status.
    pub(crate) fn end(self) -> Option<i32> {
        let Self { mut child, stdin, .. } = self;
        drop(stdin);
        child.wait().ok().and_then(|status| status.code())
    }

    fn send(&mut self, message: &Value) {
        // The server may have ended. Then the answer is missing, and the test sees that.
        let _ = writeln!(self.stdin, "{message}").and_then(|()| self.stdin.flush());
    }
}
