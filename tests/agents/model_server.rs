//! A stand-in for a model: implements enough of four APIs for a real agent's conversation with a script. Listens on
//! loopback, on a port that the kernel chooses.
//!
//! - `OpenAI`'s: `POST /v1/chat/completions`, streamed and not, and `POST /v1/responses`, streamed.
//! - Anthropic's: `POST /v1/messages`, streamed.
//! - Gemini's: `POST /v1beta/models/MODEL:streamGenerateContent?alt=sse`, `:generateContent` and `:countTokens`.
//!
//! The script is a function from a request to a [`Reply`]. It sees requests of all APIs in one form, [`Asked`].
//! Every request is kept. Additional requests of an agent (titles, choosing a model) reach the script too.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
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
    /// Whether a message has an image.
    pub(crate) has_image: bool,
}

/// Returns whether a JSON text of a request has an image of one of the APIs.
fn has_image(body: &Value) -> bool {
    let text = body.to_string();
    [r#""type":"image""#, r#""type":"image_url""#, r#""type":"input_image""#, r#""inlineData":"#]
        .iter()
        .any(|mark| text.contains(mark))
}

/// Returns the text of a content that is a string or a list of parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
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
        let message =
            |message: &Value| (message["role"].as_str().unwrap_or_default().to_owned(), text_of(&message["content"]));
        Self::new(body, body["messages"].as_array().into_iter().flatten().map(message).collect(), &body["messages"])
    }

    fn new(body: &Value, messages: Vec<(String, String)>, sent: &Value) -> Self {
        let has_tools = body["tools"].as_array().is_some_and(|tools| !tools.is_empty());
        Self { has_tools, messages, has_image: has_image(sent) }
    }

    /// Parses a request of Anthropic's API. Each part of a content counts as a message. Claude Code adds reminders of
    /// its own, which are left out.
    fn anthropic(body: &Value) -> Self {
        let mut messages = Vec::new();
        for message in body["messages"].as_array().into_iter().flatten() {
            let role = message["role"].as_str().unwrap_or_default();
            if let Some(text) = message["content"].as_str() {
                messages.push((role.to_owned(), text.to_owned()));
            }
            for part in message["content"].as_array().into_iter().flatten() {
                match part["type"].as_str() {
                    Some("text") => messages.push((role.to_owned(), text_of(&part["text"]))),
                    Some("tool_result") => messages.push(("tool".to_owned(), text_of(&part["content"]))),
                    _ => {}
                }
            }
        }
        messages.retain(|(role, text)| role != "system" && !text.starts_with("<system-reminder>"));
        Self::new(body, messages, &body["messages"])
    }

    /// Parses a request of `OpenAI`'s API for responses. A title that Codex asks for offers no tools.
    fn responses(body: &Value) -> Self {
        let mut messages = Vec::new();
        for item in body["input"].as_array().into_iter().flatten() {
            if let Some(role) = item["role"].as_str() {
                messages.push((role.to_owned(), text_of(&item["content"])));
            } else if item["type"] == "function_call_output" {
                messages.push(("tool".to_owned(), text_of(&item["output"])));
            }
        }
        Self::new(body, messages, &body["input"])
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
        Self::new(body, messages, &body["contents"])
    }
}

type Script = dyn Fn(&Asked) -> Reply + Send + Sync;

struct Shared {
    script: Box<Script>,
    asked: Mutex<Vec<Asked>>,
    /// Key that each request must have. Without it, every request is accepted.
    key: Mutex<Option<String>>,
}

impl Shared {
    /// Reports whether the request has the key, in the header of one of the APIs.
    fn accepts(&self, request: &Request<Incoming>) -> bool {
        let Some(key) = self.key.lock().expect("no holder panics").clone() else { return true };
        ["authorization", "x-api-key", "x-goog-api-key"].iter().any(|name| {
            let value = request.headers().get(*name).and_then(|value| value.to_str().ok());
            value.is_some_and(|value| value.strip_prefix("Bearer ").unwrap_or(value) == key)
        })
    }

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
        let shared = Arc::new(Shared { script: Box::new(script), asked: Mutex::default(), key: Mutex::default() });
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

    /// Refuses requests without this key from now on, in the way of each API's vendor.
    pub(crate) fn accept_only(&self, key: &str) {
        *self.shared.key.lock().expect("no holder panics") = Some(key.to_owned());
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
    if !shared.accepts(&request) {
        return Ok(refusal(&path));
    }
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let Ok(body) = serde_json::from_slice(&body) else {
        return Ok(response(400, "application/json", json!({ "error": "not JSON" }).to_string()));
    };
    let gemini = path.strip_prefix("/v1beta/models/").and_then(|rest| rest.split_once(':'));
    Ok(match (path.as_str(), gemini) {
        ("/v1/chat/completions", _) => open_ai(&shared, &body).await,
        ("/v1/messages", _) => anthropic(&shared, &body).await,
        ("/v1/responses", _) => responses(&shared, &body).await,
        (_, Some((model, method @ ("streamGenerateContent" | "generateContent")))) => {
            let answer = shared.reply(Asked::gemini(&body)).await;
            gemini_answer(model, answer, method == "streamGenerateContent")
        }
        (_, Some((_, "countTokens"))) => response(200, "application/json", json!({ "totalTokens": 1 }).to_string()),
        _ => response(404, "application/json", json!({ "error": format!("no {path}") }).to_string()),
    })
}

/// Returns the answer to a request without a valid key, in the form of the API of this path.
fn refusal(path: &str) -> Response<Full<Bytes>> {
    let error = match path {
        "/v1/messages" => json!({
            "type": "error", "error": { "type": "authentication_error", "message": "invalid x-api-key" },
        }),
        _ if path.starts_with("/v1beta/") => json!({ "error": {
            "code": 401, "status": "UNAUTHENTICATED",
            "message": "Request had invalid authentication credentials.",
        } }),
        _ => json!({ "error": {
            "message": "Incorrect API key provided.", "type": "invalid_request_error", "param": null,
            "code": "invalid_api_key",
        } }),
    };
    let mut refusal = response(401, "application/json", error.to_string());
    // Without this header of the vendor, Claude Code tries again for minutes.
    refusal.headers_mut().insert("x-should-retry", HeaderValue::from_static("false"));
    refusal
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

/// Returns a stream of events whose data has the event's name as `type`.
fn typed_events<const N: usize>(events: [(&str, Value); N]) -> Response<Full<Bytes>> {
    let lines = events.map(|(name, mut data)| {
        data["type"] = name.into();
        format!("event: {name}\ndata: {data}\n\n")
    });
    response(200, "text/event-stream", lines.concat())
}

async fn anthropic(shared: &Shared, body: &Value) -> Response<Full<Bytes>> {
    let answer = shared.reply(Asked::anthropic(body)).await;
    // Claude Code joins messages with the same id.
    let number = shared.asked.lock().expect("no holder panics").len();
    let (block, delta, reason) = match answer {
        Answer::Text(text) => {
            (json!({ "type": "text", "text": "" }), json!({ "type": "text_delta", "text": text }), "end_turn")
        }
        Answer::Tool(name, arguments) => (
            json!({ "type": "tool_use", "id": format!("toolu_{number}"), "name": name, "input": {} }),
            json!({ "type": "input_json_delta", "partial_json": arguments.to_string() }),
            "tool_use",
        ),
    };
    let message = json!({
        "id": format!("msg_{number}"), "type": "message", "role": "assistant", "model": body["model"], "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": { "input_tokens": 1, "output_tokens": 1 },
    });
    typed_events([
        ("message_start", json!({ "message": message })),
        ("content_block_start", json!({ "index": 0, "content_block": block })),
        ("content_block_delta", json!({ "index": 0, "delta": delta })),
        ("content_block_stop", json!({ "index": 0 })),
        (
            "message_delta",
            json!({ "delta": { "stop_reason": reason, "stop_sequence": null }, "usage": { "output_tokens": 1 } }),
        ),
        ("message_stop", json!({})),
    ])
}

/// Answers a request for a response. The name of a tool of an MCP server, `mcp__SERVER__TOOL`, becomes a namespace and
/// a name.
async fn responses(shared: &Shared, body: &Value) -> Response<Full<Bytes>> {
    let answer = shared.reply(Asked::responses(body)).await;
    let number = shared.asked.lock().expect("no holder panics").len();
    let item = match answer {
        Answer::Text(text) => json!({
            "type": "message", "id": format!("msg_{number}"), "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": text, "annotations": [] }],
        }),
        Answer::Tool(name, arguments) => {
            let mut call = json!({
                "type": "function_call", "id": format!("fc_{number}"), "call_id": format!("call_{number}"),
                "name": name, "arguments": arguments.to_string(), "status": "completed",
            });
            if let Some((namespace, tool)) = name.rsplit_once("__") {
                call["namespace"] = namespace.into();
                call["name"] = tool.into();
            }
            call
        }
    };
    let usage = json!({
        "input_tokens": 1, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": 1,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 2,
    });
    let whole = |status: &str, output: Value| {
        json!({ "response": {
            "id": format!("resp_{number}"), "object": "response", "created_at": 0, "status": status,
            "model": body["model"], "output": output, "usage": usage,
        } })
    };
    typed_events([
        ("response.created", whole("in_progress", json!([]))),
        ("response.output_item.added", json!({ "output_index": 0, "item": item })),
        ("response.output_item.done", json!({ "output_index": 0, "item": item })),
        ("response.completed", whole("completed", json!([item]))),
    ])
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
