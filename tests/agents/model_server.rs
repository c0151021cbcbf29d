//! A stand-in for a model: enough of the `OpenAI` API (`POST /v1/chat/completions`, streamed and not) for a real agent to hold
//! a conversation with a script. On loopback, on a port the kernel picks.
//!
//! The script is a function from a request to a [`Reply`]. Every request is kept. Not responsible for knowing which requests an
//! agent makes besides (titles, summaries): the script sees them all.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// What the model answers.
#[derive(Clone)]
pub(crate) enum Reply {
    Text(String),
    /// A call of the agent's tool `name`.
    Tool {
        name: String,
        arguments: Value,
    },
    /// The text, once the semaphore has a permit: until then the turn runs.
    Held(Arc<Semaphore>, String),
}

/// One request, as the agent made it.
#[derive(Debug, Clone)]
pub(crate) struct Asked(pub(crate) Value);

impl Asked {
    /// Whether tools are offered: an agent's side jobs (a title for the conversation) offer none.
    pub(crate) fn has_tools(&self) -> bool {
        self.0["tools"].as_array().is_some_and(|tools| !tools.is_empty())
    }

    pub(crate) fn messages(&self) -> &[Value] {
        self.0["messages"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    /// The role of the last message: `user`, or `tool` when a call's result came back.
    pub(crate) fn last_role(&self) -> &str {
        self.messages().last().and_then(|message| message["role"].as_str()).unwrap_or_default()
    }

    /// The texts of the messages of a role, in order.
    pub(crate) fn texts(&self, role: &str) -> Vec<String> {
        self.messages()
            .iter()
            .filter(|message| message["role"] == role)
            .map(|message| text(&message["content"]))
            .collect()
    }
}

/// A message's content is a string or a list of parts.
fn text(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

type Script = dyn Fn(&Asked) -> Reply + Send + Sync;

struct Shared {
    script: Box<Script>,
    asked: Mutex<Vec<Asked>>,
}

pub(crate) struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl ModelServer {
    pub(crate) async fn start(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { script: Box::new(script), asked: Mutex::default() });
        let served = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&served);
                let service = service_fn(move |request| answer(Arc::clone(&shared), request));
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, shared, accepting }
    }

    /// What an agent is to be given as its base URL.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Every request so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().expect("no holder panics").clone()
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    if path != "/v1/chat/completions" {
        return Ok(response(404, "application/json", json!({ "error": format!("no {path}") }).to_string()));
    }
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let Ok(body) = serde_json::from_slice(&body) else {
        return Ok(response(400, "application/json", json!({ "error": "not JSON" }).to_string()));
    };
    let asked = Asked(body);
    shared.asked.lock().expect("no holder panics").push(asked.clone());
    let message = match (shared.script)(&asked) {
        Reply::Text(text) => json!({ "role": "assistant", "content": text }),
        Reply::Tool { name, arguments } => {
            let call = json!({ "index": 0, "id": format!("call_{}", asked.messages().len()), "type": "function",
                "function": { "name": name, "arguments": arguments.to_string() } });
            json!({ "role": "assistant", "tool_calls": [call] })
        }
        Reply::Held(gate, text) => {
            gate.acquire().await.expect("the gate is never closed").forget();
            json!({ "role": "assistant", "content": text })
        }
    };
    let reason = if message["tool_calls"].is_null() { "stop" } else { "tool_calls" };
    let head = json!({ "id": "c1", "created": 0, "model": asked.0["model"] });
    let usage = json!({ "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 });
    if asked.0["stream"] == true {
        let chunk = |choice: Value, usage: Value| {
            let mut chunk = head.clone();
            chunk["object"] = "chat.completion.chunk".into();
            chunk["choices"] = json!([choice]);
            chunk["usage"] = usage;
            format!("data: {chunk}\n\n")
        };
        let stream = [
            chunk(json!({ "index": 0, "delta": message, "finish_reason": null }), Value::Null),
            chunk(json!({ "index": 0, "delta": {}, "finish_reason": reason }), usage),
            "data: [DONE]\n\n".to_owned(),
        ];
        return Ok(response(200, "text/event-stream", stream.concat()));
    }
    let mut whole = head;
    whole["object"] = "chat.completion".into();
    whole["choices"] = json!([{ "index": 0, "message": message, "finish_reason": reason }]);
    whole["usage"] = usage;
    Ok(response(200, "application/json", whole.to_string()))
}

fn response(status: u16, content_type: &str, body: String) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(Full::new(Bytes::from(body)))
        .expect("a constant head is valid")
}
