//! A stand-in for a model: implements enough of two APIs for a real agent's conversation with a script. Listens on
//! loopback, on a port that the kernel chooses.
//!
//! - `OpenAI`'s: `POST /v1/chat/completions`, streamed and not.
//! - Gemini's: `POST /v1beta/models/MODEL:streamGenerateContent?alt=sse`, `:generateContent` and `:countTokens`.
//!
//! The script is a function from a request to a [`Reply`]. It sees requests of both APIs in one form, [`Asked`].
//! Every request is kept. Additional requests of an agent (titles, choosing a model) reach the script too.

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

/// The model's reply.
#[derive(Clone)]
pub(crate) enum Reply {
    Text(String),
    /// A call of the agent's tool `name`.
    Tool {
        name: String,
        arguments: Value,
    },
    /// The text, sent once the semaphore has a permit. The turn runs until then.
    Held(Arc<Semaphore>, String),
}

/// One request of the agent.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Whether tools are offered. An agent's side jobs, such as a title for the conversation, offer no tools.
    pub(crate) has_tools: bool,
    /// Role and text of each message. The roles are `OpenAI`'s: `user`, `assistant`, `tool` for a call's result,
    /// `system`.
    messages: Vec<(String, String)>,
}

impl Asked {
    /// Returns the role of the last message.
    pub(crate) fn last_role(&self) -> &str {
        self.messages.last().map(|(role, _)| role.as_str()).unwrap_or_default()
    }

    /// Returns the texts of the messages of a role, in order.
    pub(crate) fn texts(&self, role: &str) -> Vec<String> {
        self.messages.iter().filter(|(of, _)| of == role).map(|(_, text)| text.clone()).collect()
    }

    fn open_ai(body: &Value) -> Self {
        // A message's content is a string or a list of parts.
        let text = |content: &Value| match content {
            Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            other => other.as_str().unwrap_or_default().to_owned(),
        };
        let message =
            |message: &Value| (message["role"].as_str().unwrap_or_default().to_owned(), text(&message["content"]));
        Self {
            has_tools: body["tools"].as_array().is_some_and(|tools| !tools.is_empty()),
            messages: body["messages"].as_array().into_iter().flatten().map(message).collect(),
        }
    }

    /// Parses a Gemini request. Each part of a content counts as a message: gemini-cli puts its own instructions
    /// before the user's text.
    fn gemini(body: &Value) -> Self {
        let mut messages = Vec::new();
        for content in body["contents"].as_array().into_iter().flatten() {
            let role = if content["role"] == "model" { "assistant" } else { "user" };
            for part in content["parts"].as_array().into_iter().flatten() {
                if let Some(text) = part["text"].as_str() {
                    messages.push((role.to_owned(), text.to_owned()));
                } else if let Some(result) = part.get("functionResponse") {
                    let output = &result["response"]["output"];
                    let text = output.as_str().map_or_else(|| result["response"].to_string(), str::to_owned);
                    messages.push(("tool".to_owned(), text));
                }
            }
        }
        Self { has_tools: body["tools"].as_array().is_some_and(|tools| !tools.is_empty()), messages }
    }
}

type Script = dyn Fn(&Asked) -> Reply + Send + Sync;

struct Shared {
    script: Box<Script>,
    asked: Mutex<Vec<Asked>>,
}

impl Shared {
    /// Returns the reply to this request: the text, and the called tool with its arguments.
    async fn reply(&self, asked: Asked) -> Answer {
        let reply = (self.script)(&asked);
        self.asked.lock().expect("no holder panics").push(asked);
        match reply {
            Reply::Text(text) => Answer::Text(text),
            Reply::Tool { name, arguments } => Answer::Tool(name, arguments),
            Reply::Held(gate, text) => {
                gate.acquire().await.expect("the gate is never closed").forget();
                Answer::Text(text)
            }
        }
    }
}

enum Answer {
    Text(String),
    Tool(String, Value),
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

    /// Returns the server's address without a path: gemini appends `/v1beta/...`, and `OpenAI`'s clients need `/v1`
    /// in theirs.
    pub(crate) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all requests so far.
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
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let Ok(body) = serde_json::from_slice(&body) else {
        return Ok(response(400, "application/json", json!({ "error": "not JSON" }).to_string()));
    };
    let gemini = path.strip_prefix("/v1beta/models/").and_then(|rest| rest.split_once(':'));
    Ok(match (path.as_str(), gemini) {
        ("/v1/chat/completions", _) => open_ai(&shared, &body).await,
        (_, Some((model, method @ ("streamGenerateContent" | "generateContent")))) => {
            let answer = shared.reply(Asked::gemini(&body)).await;
            gemini_answer(model, answer, method == "streamGenerateContent")
        }
        (_, Some((_, "countTokens"))) => response(200, "application/json", json!({ "totalTokens": 1 }).to_string()),
        _ => response(404, "application/json", json!({ "error": format!("no {path}") }).to_string()),
    })
}

async fn open_ai(shared: &Shared, body: &Value) -> Response<Full<Bytes>> {
    let asked = Asked::open_ai(body);
    let number = asked.messages.len();
    let (message, reason) = match shared.reply(asked).await {
        Answer::Text(text) => (json!({ "role": "assistant", "content": text }), "stop"),
        Answer::Tool(name, arguments) => {
            let call = json!({ "index": 0, "id": format!("call_{number}"), "type": "function",
                "function": { "name": name, "arguments": arguments.to_string() } });
            (json!({ "role": "assistant", "tool_calls": [call] }), "tool_calls")
        }
    };
    let head = json!({ "id": "c1", "created": 0, "model": body["model"] });
    let usage = json!({ "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 });
    if body["stream"] == true {
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
        return response(200, "text/event-stream", stream.concat());
    }
    let mut whole = head;
    whole["object"] = "chat.completion".into();
    whole["choices"] = json!([{ "index": 0, "message": message, "finish_reason": reason }]);
    whole["usage"] = usage;
    response(200, "application/json", whole.to_string())
}

fn gemini_answer(model: &str, answer: Answer, streamed: bool) -> Response<Full<Bytes>> {
    let part = match answer {
        Answer::Text(text) => json!({ "text": text }),
        Answer::Tool(name, arguments) => json!({ "functionCall": { "name": name, "args": arguments } }),
    };
    let whole = json!({
        "candidates": [{ "index": 0, "content": { "role": "model", "parts": [part] }, "finishReason": "STOP" }],
        "usageMetadata": { "promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2 },
        "modelVersion": model,
        "responseId": "r1",
    });
    if streamed {
        return response(200, "text/event-stream", format!("data: {whole}\r\n\r\n"));
    }
    response(200, "application/json", whole.to_string())
}

fn response(status: u16, content_type: &str, body: String) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(Full::new(Bytes::from(body)))
        .expect("a constant head is valid")
}
