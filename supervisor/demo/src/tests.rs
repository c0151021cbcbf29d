//! Tests the demo agent through its protocol: lines in, lines out.

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Settings, serve};

/// Client with an agent at the other end of two pipes.
struct Client {
    to: Option<PipeWriter>,
    from: BufReader<PipeReader>,
    served: Option<JoinHandle<io::Result<()>>>,
    next: u64,
}

impl Client {
    fn new(state: &tempfile::TempDir) -> Self {
        let (agent_in, to) = io::pipe().unwrap();
        let (from, agent_out) = io::pipe().unwrap();
        let settings = Settings {
            conversations: state.path().join("conversations"),
            directory: state.path().into(),
            environment: (0..20).map(|n| (format!("V{n:02}").into(), format!("value {n}").into())).rev().collect(),
        };
        let served = thread::spawn(move || serve(agent_in, agent_out, settings));
        Self { to: Some(to), from: BufReader::new(from), served: Some(served), next: 1 }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    fn notify(&mut self, method: &str, params: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn request(&mut self, method: &str, params: &Value) -> u64 {
        let id = self.next;
        self.next += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the agent is gone");
        serde_json::from_str(&line).unwrap()
    }

    /// Returns the response to `id`, and the updates before it.
    fn response(&mut self, id: u64) -> (Value, Vec<Value>) {
        let mut updates = Vec::new();
        loop {
            let message = self.read();
            if message["id"] == id && message.get("method").is_none() {
                return (message, updates);
            }
            updates.push(message["params"]["update"].clone());
        }
    }

    fn call(&mut self, method: &str, params: &Value) -> (Value, Vec<Value>) {
        let id = self.request(method, params);
        self.response(id)
    }

    fn open(&mut self) -> String {
        let (response, _) = self.call("session/new", &json!({ "cwd": "/", "mcpServers": [] }));
        response["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    fn begin(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request("session/prompt", &json!({ "sessionId": session, "prompt": prompt }))
    }

    /// Sends a prompt. Returns the answer's text and the stop reason.
    fn prompt(&mut self, session: &str, text: &str) -> (String, String) {
        let id = self.begin(session, text);
        let (response, updates) = self.response(id);
        (said(&updates), response["result"]["stopReason"].as_str().unwrap_or_default().to_owned())
    }

    /// Answers the next permission request, which may follow updates.
    fn permit(&mut self, option: &str) {
        let request = loop {
            let message = self.read();
            if message["method"] == "session/request_permission" {
                break message;
            }
        };
        let kinds: Vec<_> = request["params"]["options"].as_array().unwrap().iter().map(|o| &o["kind"]).collect();
        assert_eq!(kinds, ["allow_once", "reject_once"]);
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        self.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": outcome }));
    }

    fn close(mut self) {
        drop(self.to.take());
        self.served.take().unwrap().join().unwrap().unwrap();
    }
}

fn said(updates: &[Value]) -> String {
    let chunks = updates.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    chunks.map(|update| update["content"]["text"].as_str().unwrap()).collect()
}

#[test]
fn it_introduces_itself_in_the_forms_of_the_protocol() {
    use agent_client_protocol_schema::v1::{InitializeResponse, NewSessionResponse};
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let (response, _) = client.call("initialize", &json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    let parsed: InitializeResponse = serde_json::from_value(response["result"].clone()).unwrap();
    assert!(parsed.agent_capabilities.load_session);
    assert!(parsed.agent_capabilities.session_capabilities.resume.is_some());
    assert_eq!(parsed.agent_info.unwrap().name, "agentd-demo");
    let (response, _) = client.call("session/new", &json!({ "cwd": "/", "mcpServers": [] }));
    serde_json::from_value::<NewSessionResponse>(response["result"].clone()).unwrap();
    client.close();
}

#[test]
fn every_update_it_sends_is_one_of_the_protocol() {
    use agent_client_protocol_schema::v1::SessionNotification;
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    for prompt in ["think", "count to 2", "run echo hello"] {
        let id = client.begin(&session, prompt);
        loop {
            let message = client.read();
            if message["id"] == id && message.get("method").is_none() {
                break;
            }
            if message["method"] == "session/request_permission" {
                serde_json::from_value::<agent_client_protocol_schema::v1::RequestPermissionRequest>(
                    message["params"].clone(),
                )
                .unwrap();
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "allow-once" } });
                client.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome }));
                continue;
            }
            serde_json::from_value::<SessionNotification>(message["params"].clone()).unwrap();
        }
    }
    client.close();
}

#[test]
fn it_shows_its_directory_and_every_variable_sorted_in_several_chunks() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    let id = client.begin(&session, "Show your environment");
    let (_, updates) = client.response(id);
    assert!(updates.len() >= 3, "{updates:?}");
    let text = said(&updates);
    let variables: Vec<&str> = text.lines().skip(2).collect();
    let expected: Vec<String> = (0..20).map(|n| format!("V{n:02}=value {n}")).collect();
    assert_eq!(variables, expected);
    assert!(text.starts_with(&format!("directory: {}\n", state.path().display())), "{text}");
    client.close();
}

#[test]
fn a_slow_count_is_cancelled_in_the_middle() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    let id = client.begin(&session, "count to 1000 slowly");
    for _ in 0..3 {
        client.read();
    }
    client.notify("session/cancel", &json!({ "sessionId": session }));
    let (response, updates) = client.response(id);
    assert_eq!(response["result"]["stopReason"], "cancelled");
    assert!(updates.len() < 20, "it went on counting: {}", updates.len());
    assert_eq!(client.prompt(&session, "count to 3"), ("1\n2\n3\n".to_owned(), "end_turn".to_owned()));
    client.close();
}

#[test]
fn a_command_runs_in_the_sessions_directory_and_its_output_is_streamed_before_it_ends() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    let gate = state.path().join("gate");
    let command = format!("run pwd; while ! [ -e '{}' ]; do sleep 0.01; done; echo last", gate.display());
    let id = client.begin(&session, &command);
    client.permit("allow-once");
    loop {
        let update = &client.read()["params"]["update"];
        if update["content"][0]["content"]["text"] == "/\n" {
            break;
        }
    }
    std::fs::write(&gate, "").unwrap();
    let (_, updates) = client.response(id);
    let end = updates.iter().rfind(|update| update["sessionUpdate"] == "tool_call_update").unwrap();
    assert_eq!((&end["status"], &end["content"][0]["content"]["text"]), (&json!("completed"), &json!("/\nlast\n")));
    client.close();
}

#[test]
fn a_refused_command_does_not_run() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    let mark = state.path().join("mark");
    let id = client.begin(&session, &format!("run touch '{}'", mark.display()));
    client.permit("reject-once");
    let (response, _) = client.response(id);
    assert_eq!(response["result"]["stopReason"], "end_turn");
    assert!(!mark.exists());
    client.close();
}

#[test]
fn cancelling_kills_the_command_and_the_children_it_waits_for() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    let id = client.begin(&session, "run sleep 1000 & echo $!; wait");
    client.permit("allow-once");
    let pid = loop {
        let message = client.read();
        if let Some(text) = message["params"]["update"]["content"][0]["content"]["text"].as_str() {
            break text.trim().to_owned();
        }
    };
    client.notify("session/cancel", &json!({ "sessionId": session }));
    let (response, _) = client.response(id);
    assert_eq!(response["result"]["stopReason"], "cancelled");
    let alive = |pid: &str| {
        // A zombie does not count as alive.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    let end = Instant::now() + Duration::from_secs(10);
    while alive(&pid) {
        assert!(Instant::now() < end, "{pid} lives");
        thread::yield_now();
    }
    client.close();
}

#[test]
fn another_process_that_loads_the_conversation_replays_it_and_one_that_resumes_it_does_not() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    client.prompt(&session, "count to 2");
    client.close();

    let params = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });
    for (method, replayed) in [("session/load", 2), ("session/resume", 0)] {
        let mut client = Client::new(&state);
        let (response, updates) = client.call(method, &params);
        assert_eq!(response["result"], json!({}));
        assert_eq!(updates.len(), replayed, "{method}: {updates:?}");
        let (answer, _) = client.prompt(&session, "What did I say?");
        assert!(answer.contains("1. count to 2\n"), "{answer}");
        client.close();
    }
}

#[test]
fn a_clients_note_in_front_of_the_prompt_is_not_taken_for_the_prompt() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    let prompt =
        json!([{ "type": "text", "text": "The shell's state is lost." }, { "type": "text", "text": "count to 1" }]);
    let (_, updates) = client.call("session/prompt", &json!({ "sessionId": session, "prompt": prompt }));
    assert_eq!(said(&updates), "1\n");
    client.close();
}

#[test]
fn what_it_does_not_know_is_refused_with_the_protocols_codes() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let unknown = json!({ "sessionId": "demo-0", "cwd": "/", "prompt": [] });
    for (method, code) in
        [("session/dream", -32601), ("session/load", -32002), ("session/resume", -32002), ("session/prompt", -32002)]
    {
        let (response, _) = client.call(method, &unknown);
        assert_eq!(response["error"]["code"], code, "{method}");
    }
    client.send(&json!("not a request"));
    let session = client.open();
    let first = client.begin(&session, "count to 1000 slowly");
    client.read();
    let second = client.begin(&session, "think");
    let (response, _) = client.response(second);
    assert_eq!(response["error"]["code"], -32600);
    client.notify("session/cancel", &json!({ "sessionId": session }));
    client.response(first);
    client.close();
}

#[test]
fn it_ends_when_its_client_does_in_the_middle_of_a_turn_too() {
    let state = tempfile::tempdir().unwrap();
    let mut client = Client::new(&state);
    let session = client.open();
    client.begin(&session, "count to 1000 slowly");
    client.read();
    client.close();
}
