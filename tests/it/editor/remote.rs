//! Clients of `/acp`, over HTTP and over WebSocket.

use std::fs;
use std::process::Output;
use std::sync::{Arc, Mutex};

use agentd_api::session::Phase;
use agentd_api::{Code, Problem};
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;

use super::{Editor, Input, chunks, daemon_with, exists, handle, numbers};
use crate::harness::events::{Lines, Sse};
use crate::harness::{Daemon, paths, require, within};

const STREAM: (&str, &str) = ("accept", "text/event-stream");
const JSON: (&str, &str) = ("content-type", "application/json");
const PATH: &str = "/acp?agent=mine";

/// Calls `/acp` with these headers.
async fn call(daemon: &Daemon, method: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Response<Incoming> {
    let stream = UnixStream::connect(daemon.client.socket()).await.expect("a daemon listens");
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP");
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(PATH).header("host", "agentd");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).expect("the test wrote a valid request");
    within("the answer's head", sender.send_request(request)).await.expect("an answer")
}

async fn refused(daemon: &Daemon, method: &str, headers: &[(&str, &str)], body: &str) -> Code {
    let answer = call(daemon, method, headers, body.into()).await;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    let problem: Problem = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{status} {error}: {body:?}"));
    assert_eq!(problem.status, status);
    assert!(problem.hint.is_some(), "{problem:?}");
    problem.code
}

/// A client over HTTP, whose messages an [`Editor`] reads.
struct Http {
    id: String,
    messages: mpsc::UnboundedSender<Value>,
    /// The last event of the connection's stream.
    last: Arc<Mutex<String>>,
    streams: Vec<JoinHandle<()>>,
}

impl Http {
    /// Sends `initialize`.
    async fn begin(daemon: &Arc<Daemon>) -> (Self, Editor) {
        let hello = json!({ "protocolVersion": 1, "clientInfo": { "name": "remote" } });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello });
        let answer = call(daemon, "POST", &[JSON], hello.to_string().into()).await;
        assert_eq!(answer.status(), 200);
        let id = answer.headers()["acp-connection-id"].to_str().unwrap().to_owned();
        let body: Value = serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!((&body["id"], &body["result"]["connectionId"]), (&json!(0), &json!(id)), "{body}");
        assert_eq!(body["result"]["agentCapabilities"]["loadSession"], true, "{body}");
        let (input, mut lines) = mpsc::unbounded_channel::<Vec<u8>>();
        let (messages, received) = mpsc::unbounded_channel();
        let (own, to) = (id.clone(), Arc::clone(daemon));
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                let message: Value = serde_json::from_slice(&line).unwrap();
                let session = message["params"]["sessionId"].as_str();
                let mut headers = vec![JSON, ("acp-connection-id", &own)];
                headers.extend(session.map(|session| ("acp-session-id", session)));
                let answer = call(&to, "POST", &headers, line.clone()).await;
                assert_eq!(answer.status(), 202, "{message}");
            }
        });
        let editor =
            Editor { child: None, input: Some(Input::Remote(input)), messages: received, past: vec![], next: 1 };
        (Self { id, messages, last: Arc::default(), streams: Vec::new() }, editor)
    }

    /// Opens a stream: of the connection, or of a session.
    async fn read(&mut self, daemon: &Daemon, session: Option<&str>, last: Option<&str>) {
        let mut headers = vec![STREAM, ("acp-connection-id", &*self.id)];
        headers.extend(session.map(|session| ("acp-session-id", session)));
        headers.extend(last.map(|last| ("last-event-id", last)));
        let answer = call(daemon, "GET", &headers, Vec::new()).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["content-type"]),
            (200, &"text/event-stream".parse().unwrap())
        );
        let (messages, last, is_main) = (self.messages.clone(), Arc::clone(&self.last), session.is_none());
        self.streams.push(tokio::spawn(async move {
            let mut events = Sse(Lines::new(answer.into_body()));
            while let Some(event) = events.next().await {
                assert_eq!(event.event, "message");
                if is_main {
                    last.lock().unwrap().clone_from(&event.id);
                }
                if messages.send(serde_json::from_str(&event.data).unwrap()).is_err() {
                    return;
                }
            }
        }));
    }

    /// Ends the streams as a network does, and returns the last event.
    fn cut(&mut self) -> String {
        self.streams.drain(..).for_each(|stream| stream.abort());
        self.last.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_client_over_http_prompts_answers_and_leaves_and_its_session_continues() {
    let daemon = Arc::new(daemon_with("", "").await);
    let (mut http, mut editor) = Http::begin(&daemon).await;
    http.read(&daemon, None, None).await;
    let id = editor.open(&daemon).await;
    assert_eq!(editor.turn(&id, "say hello\r").await["result"]["stopReason"], "end_turn");
    let prompt = editor.prompt(&id, "ask").await;
    let request = editor.message("a request", |message| message["method"] == "session/request_permission").await;
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "yes-and-watch" } });
    editor.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": outcome })).await;
    assert_eq!(editor.response(prompt).await["result"]["stopReason"], "end_turn");
    assert_eq!(editor.texts().concat(), "hello\rchosen yes-and-watch");

    let hanging = editor.prompt(&id, "hang").await;
    handle(&daemon, &id).wait_for_phase(Phase::Busy).await;
    let own = ("acp-connection-id", &*http.id);
    assert_eq!(call(&daemon, "DELETE", &[own], Vec::new()).await.status(), 202);
    let stream = http.streams.pop().unwrap();
    within("the stream ends", stream).await.unwrap();
    assert_eq!(refused(&daemon, "GET", &[STREAM, own], "").await, Code::NoSuchConnection);
    assert!(exists(&daemon, &id).await);
    assert_eq!(handle(&daemon, &id).view().await.status.phase, Phase::Busy, "the turn {hanging} goes on");
}

#[tokio::test]
async fn a_stream_continues_after_the_last_event_also_in_a_later_daemon() {
    let mut daemon = Arc::new(daemon_with("", "").await);
    let (mut http, mut editor) = Http::begin(&daemon).await;
    http.read(&daemon, None, None).await;
    let id = editor.open(&daemon).await;
    let turn = editor.prompt(&id, "count 150 20").await;
    let mut said = Vec::new();
    // On the same connection each number comes exactly once.
    for number in ["10\n", "25\n"] {
        editor.update("a number", |update| update["content"]["text"] == number).await;
        let last = http.cut();
        while let Ok(message) = editor.messages.try_recv() {
            editor.past.push(message);
        }
        http.read(&daemon, None, Some(&last)).await;
    }
    editor.update("a number", |update| update["content"]["text"] == "40\n").await;

    // Another daemon and another connection: the journal has what came between.
    let last = http.cut();
    while let Ok(message) = editor.messages.try_recv() {
        editor.past.push(message);
    }
    said.extend(editor.texts());
    drop(editor);
    within("the client lets go of its daemon", async {
        loop {
            if let Some(daemon) = Arc::get_mut(&mut daemon) {
                daemon.kill9();
                daemon.run().await;
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let old = [STREAM, ("acp-connection-id", &*http.id), ("last-event-id", &*last)];
    assert_eq!(refused(&daemon, "GET", &old, "").await, Code::NoSuchConnection);
    let (mut http, mut editor) = Http::begin(&daemon).await;
    http.read(&daemon, None, Some(&last)).await;
    editor.update("the last number", |update| update["content"]["text"] == "150\n").await;
    said.extend(editor.texts());
    assert_eq!(numbers(&said), (1..=150).collect::<Vec<u32>>(), "prompt {turn}");
    // The session is open, without a further request.
    handle(&daemon, &id).wait_for_phase(Phase::Idle).await;
    assert_eq!(editor.turn(&id, "say on").await["result"]["stopReason"], "end_turn");
    assert_eq!(editor.texts(), ["on"]);
    assert!(editor.past.iter().all(|message| message["id"].as_str().is_none()), "own requests stay inside");
}

#[tokio::test]
async fn a_session_can_have_a_stream_of_its_own_and_a_later_reader_takes_it() {
    let daemon = Arc::new(daemon_with("", "").await);
    let (mut http, mut editor) = Http::begin(&daemon).await;
    http.read(&daemon, None, None).await;
    let id = editor.open(&daemon).await;
    http.read(&daemon, Some(&id), None).await;
    let main = http.streams.remove(0);
    main.abort();
    assert_eq!(editor.turn(&id, "say alone").await["result"]["stopReason"], "end_turn", "by the session's stream");
    http.read(&daemon, Some(&id), None).await;
    let earlier = http.streams.remove(0);
    within("the earlier reader ends", earlier).await.unwrap();
    assert_eq!(editor.turn(&id, "say again").await["result"]["stopReason"], "end_turn");
    assert_eq!(editor.texts(), ["alone", "again"]);
}

#[tokio::test]
async fn wrong_requests_are_refused_with_a_code_and_a_remedy() {
    let daemon = Arc::new(daemon_with("", "").await);
    let (http, _editor) = Http::begin(&daemon).await;
    let own = ("acp-connection-id", &*http.id);
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}"#;
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"session/list","params":{}}"#;
    let prompt = r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"k","prompt":[]}}"#;
    let other = ("acp-connection-id", "0000");
    for (method, headers, body, code) in [
        ("POST", &[][..], hello, Code::UnsupportedMediaType),
        ("POST", &[("content-type", "text/plain")], hello, Code::UnsupportedMediaType),
        ("POST", &[JSON], "[]", Code::MalformedRequest),
        ("POST", &[JSON], "{", Code::MalformedRequest),
        ("POST", &[JSON], r#"{"method":"initialize"}"#, Code::MalformedRequest),
        ("POST", &[JSON], list, Code::InvalidRequest),
        ("POST", &[JSON, other], list, Code::NoSuchConnection),
        ("POST", &[JSON, own], hello, Code::InvalidRequest),
        ("POST", &[JSON, own], prompt, Code::InvalidRequest),
        ("POST", &[JSON, own, ("acp-session-id", "x")], prompt, Code::InvalidRequest),
        ("GET", &[own], "", Code::NotAcceptable),
        ("GET", &[STREAM], "", Code::InvalidRequest),
        ("GET", &[STREAM, other], "", Code::NoSuchConnection),
        ("GET", &[STREAM, own, ("last-event-id", "7")], "", Code::InvalidRequest),
        ("GET", &[("upgrade", "websocket"), ("connection", "upgrade")], "", Code::InvalidRequest),
        ("DELETE", &[], "", Code::InvalidRequest),
        ("DELETE", &[other], "", Code::NoSuchConnection),
    ] {
        assert_eq!(refused(&daemon, method, headers, body).await, code, "{method} {headers:?} {body}");
    }
    let answer = daemon.client.call("POST", "/acp?agent=-", hello).await;
    assert_eq!(answer.problem().code, Code::InvalidId);
}

#[tokio::test]
async fn a_client_over_websocket_loads_after_its_last_record_and_is_told_of_the_daemons_end() {
    let mut daemon = daemon_with("", "").await;
    let (mut editor, _) = websocket(&daemon).await;
    let id = editor.open(&daemon).await;
    editor.turn(&id, "say one").await;
    let (_, meta) = chunks(&editor.past, "agent_message_chunk").pop().unwrap();
    drop(editor);
    handle(&daemon, &id).turn("say two").await;

    let (mut editor, closed) = websocket(&daemon).await;
    let after = json!({ "agentd": { "after": meta["seq"] } });
    let load = json!({ "sessionId": id, "cwd": daemon.work(), "mcpServers": [], "_meta": after });
    assert!(editor.ask("session/load", load).await["result"].is_object());
    assert_eq!(editor.texts(), ["two"], "only what came after the record");
    editor.prompt(&id, "hang").await;
    handle(&daemon, &id).wait_for_phase(Phase::Busy).await;
    daemon.terminate().await;
    assert_eq!(within("the close frame", closed).await.unwrap(), 1001);
    daemon.run().await;
    assert_eq!(handle(&daemon, &id).view().await.status.phase, Phase::Busy, "the turn goes on");
}

/// Connects over WebSocket and initializes. The task ends with the code of the close frame.
async fn websocket(daemon: &Daemon) -> (Editor, JoinHandle<u16>) {
    let stream = UnixStream::connect(daemon.client.socket()).await.expect("a daemon listens");
    let (socket, answer) =
        tokio_tungstenite::client_async(format!("ws://agentd{PATH}"), stream).await.expect("an upgrade");
    assert!(answer.headers().contains_key("acp-connection-id"), "{answer:?}");
    let (mut sink, mut frames) = socket.split();
    let (input, mut lines) = mpsc::unbounded_channel::<Vec<u8>>();
    let (messages, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        // Binary frames carry no messages.
        sink.send(Message::Binary(vec![1].into())).await.unwrap();
        while let Some(line) = lines.recv().await {
            let text = String::from_utf8(line).unwrap();
            if sink.send(Message::text(text)).await.is_err() {
                return;
            }
        }
        let _ = sink.close().await;
    });
    let closed = tokio::spawn(async move {
        while let Some(Ok(frame)) = frames.next().await {
            match frame {
                Message::Text(text) => drop(messages.send(serde_json::from_str(&text).unwrap())),
                Message::Close(frame) => return frame.map_or(0, |frame| frame.code.into()),
                _ => {}
            }
        }
        0
    });
    let mut editor =
        Editor { child: None, input: Some(Input::Remote(input)), messages: received, past: vec![], next: 1 };
    let answer = editor.ask("initialize", json!({ "protocolVersion": 1 })).await;
    assert_eq!(answer["result"]["protocolVersion"], 1, "{answer}");
    (editor, closed)
}

#[tokio::test]
async fn the_official_sdk_speaks_http_and_websocket_over_tcp() {
    let Some(modules) = require::acp_clients() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (file, token) = (directory.path().join("token"), "0123456789abcdef0123456789abcdef");
    fs::write(&file, token).unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let control = format!("[control]\ntcp = \"127.0.0.1:0\"\ntoken = {{ file = \"{}\" }}", file.display());
    let daemon = daemon_with("", &control).await;
    let version: Value = daemon.client.get("/v1/version").await.expect(200);
    let address = version["tcp"].as_str().unwrap();
    let script = paths::checkout().join("tests/editors/remote.mjs");
    let mut node = Command::new("node");
    node.arg(script).arg(modules).arg(daemon.work()).arg(format!("{address}{PATH}")).arg(token);
    let Output { status, stdout, stderr } = within("the client ends", node.output()).await.expect("node starts");
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && out.contains("websocket: done") && out.contains("http: done"), "{out}{err}");
}

#[tokio::test]
async fn several_streams_and_requests_share_one_connection_of_http_2() {
    let daemon = daemon_with("", "").await;
    let stream = UnixStream::connect(daemon.client.socket()).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let ask = async |method: &str, headers: &[(&str, &str)], body: Value| {
        let mut request = Request::builder().method(method).uri(format!("http://agentd{PATH}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut sender = sender.clone();
        within("an answer", sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap())).await.unwrap()
    };
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": { "protocolVersion": 1 } });
    let answer = ask("POST", &[JSON], hello).await;
    assert_eq!((answer.status().as_u16(), answer.version()), (200, hyper::Version::HTTP_2));
    let id = answer.headers()["acp-connection-id"].to_str().unwrap().to_owned();
    let own = ("acp-connection-id", &*id);
    let mut events = Sse(Lines::new(ask("GET", &[STREAM, own], Value::Null).await.into_body()));
    for id in [1, 2] {
        let new = json!({ "cwd": daemon.work(), "mcpServers": [] });
        let new = json!({ "jsonrpc": "2.0", "id": id, "method": "session/new", "params": new });
        assert_eq!(ask("POST", &[JSON, own], new).await.status(), 202);
    }
    let mut opened = Vec::new();
    while opened.len() < 2 {
        let event: Value = serde_json::from_str(&events.next().await.expect("the stream goes on").data).unwrap();
        opened.extend(event["result"]["sessionId"].as_str().map(str::to_owned));
    }
    assert_ne!(opened[0], opened[1]);
    assert_eq!(ask("DELETE", &[own], Value::Null).await.status(), 202);
    assert!(events.next().await.is_none(), "the stream ends");
}
