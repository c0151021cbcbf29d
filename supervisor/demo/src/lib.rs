//! Implements the built-in demo agent, which speaks the Agent Client Protocol (version 1) on stdin and stdout.
//! With it, a machine without an agent can run sessions, and a user sees the environment that an agent of a
//! session receives.
//!
//! The demo agent knows nothing of agentd, and is blocking on purpose. One thread owns all state and reads one
//! queue. A reader thread adds the client's lines, and another thread a command's output. A `session/cancel` is
//! therefore seen in the middle of a turn without a lock.
//!
//! **Ordering.** A prompt is in the conversation's file before the first word of the answer is written. The
//! answer is in the file before the response that ends the turn.

mod command;
mod rpc;
mod skills;
mod store;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::rpc::{INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, Refusal};
use self::store::{Entry, Store};

/// Facts of the process that the agent runs in.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Directory of the conversations, one file each.
    pub conversations: PathBuf,
    /// Working directory at the start.
    pub directory: PathBuf,
    /// Environment of the process.
    pub environment: Vec<(OsString, OsString)>,
}

impl Settings {
    /// Returns the settings of this process. Conversations are under `XDG_STATE_HOME`, else under `.local/state` of
    /// `home`.
    pub fn of_this_process(home: impl FnOnce() -> io::Result<PathBuf>) -> io::Result<Self> {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let state = match state {
            Some(path) => path,
            None => home()?.join(".local/state"),
        };
        Ok(Self {
            conversations: state.join("agentd-demo"),
            directory: std::env::current_dir()?,
            environment: std::env::vars_os().collect(),
        })
    }
}

/// Serves one client until `reader` ends. Returns an error if the client cannot be written to.
pub fn serve(reader: impl Read + Send + 'static, writer: impl Write, settings: Settings) -> io::Result<()> {
    let (sender, inbox) = sync_channel(64);
    let lines = sender.clone();
    thread::Builder::new().name("lines".into()).spawn(move || read_lines(reader, &lines))?;
    let store = Store::new(settings.conversations.clone());
    let mut agent =
        Agent { out: writer, inbox, sender, settings, store, open: HashMap::new(), turn: None, next_rpc: 1 };
    loop {
        match agent.inbox.recv() {
            Ok(Input::Line(line)) => agent.line(&line)?,
            Ok(Input::Output(..) | Input::OutputEnd(_)) => {} // from a child that a command left behind
            Ok(Input::End) | Err(_) => return Ok(()),
        }
        if agent.turn.as_ref().is_some_and(|turn| turn.gone) {
            return Ok(());
        }
    }
}

/// Item of the queue.
enum Input {
    /// Line of the client.
    Line(Vec<u8>),
    /// The client is gone.
    End,
    /// Output of the command with this number.
    Output(u64, Vec<u8>),
    /// The command with this number and its children closed their output.
    OutputEnd(u64),
}

fn read_lines(reader: impl Read, inbox: &SyncSender<Input>) {
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let input = match reader.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => Input::End,
            Ok(_) => Input::Line(line),
        };
        let end = matches!(input, Input::End);
        if inbox.send(input).is_err() || end {
            return;
        }
    }
}

/// Running turn.
struct Turn {
    session: String,
    cancelled: bool,
    gone: bool,
    /// Answer so far, for the conversation's file.
    said: String,
    /// Answers of the client to requests of this turn, by the request's id.
    answers: HashMap<u64, Value>,
}

/// Reason for the end of a wait inside a turn.
enum Woken {
    /// The time limit passed.
    Time,
    /// The turn is cancelled, or the client is gone.
    Cancelled,
    /// An event of the turn arrived.
    Something,
    Output(u64, Vec<u8>),
    OutputEnd(u64),
}

struct Agent<W> {
    out: W,
    inbox: Receiver<Input>,
    /// Sender for the threads that read a command's output.
    sender: SyncSender<Input>,
    settings: Settings,
    store: Store,
    /// Directories of the open conversations.
    open: HashMap<String, PathBuf>,
    turn: Option<Turn>,
    next_rpc: u64,
}

impl<W: Write> Agent<W> {
    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            return self.send(&rpc::error(&Value::Null, &Refusal::new(rpc::PARSE_ERROR, "the line is not JSON")));
        };
        let id = message.get("id").cloned();
        match (message["method"].as_str(), id) {
            (Some("session/cancel"), _) => {
                let session = message["params"]["sessionId"].as_str().unwrap_or_default();
                if let Some(turn) = self.turn.as_mut().filter(|turn| turn.session == session) {
                    turn.cancelled = true;
                }
                Ok(())
            }
            (Some("session/prompt"), Some(id)) => self.prompt(&id, &message["params"]),
            (Some(method), Some(id)) => match self.request(method, &message["params"])? {
                Ok(result) => self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result })),
                Err(refusal) => self.send(&rpc::error(&id, &refusal)),
            },
            (None, Some(id)) => {
                if let (Some(turn), Some(id)) = (self.turn.as_mut(), id.as_u64()) {
                    turn.answers.insert(id, message);
                }
                Ok(())
            }
            (_, None) => Ok(()), // an unknown notification, or no method
        }
    }

    /// Answers requests that need no turn.
    fn request(&mut self, method: &str, params: &Value) -> io::Result<Result<Value, Refusal>> {
        let result = match method {
            "initialize" => Ok(json!({
                "protocolVersion": 1,
                "agentCapabilities": {
                    "loadSession": true,
                    "promptCapabilities": { "image": false, "audio": false, "embeddedContext": false },
                    "sessionCapabilities": { "resume": {} },
                },
                "agentInfo": { "name": "agentd-demo", "title": "Demo agent", "version": env!("CARGO_PKG_VERSION") },
                "authMethods": [],
            })),
            "session/new" => self.create(params),
            "session/load" => match self.reopen(params) {
                Ok((id, history)) => {
                    for entry in &history {
                        let kind = if entry.is_user() { "user_message_chunk" } else { "agent_message_chunk" };
                        self.update(&id, &text_update(kind, &entry.text))?;
                    }
                    Ok(json!({}))
                }
                Err(refusal) => Err(refusal),
            },
            "session/resume" => self.reopen(params).map(|_| json!({})),
            _ => Err(Refusal::new(METHOD_NOT_FOUND, format!("no method {method:?}"))),
        };
        Ok(result)
    }

    fn create(&mut self, params: &Value) -> Result<Value, Refusal> {
        let directory = directory_of(params)?;
        let id = self.store.create().map_err(|error| Refusal::new(INTERNAL_ERROR, self.store.trouble(&error)))?;
        self.open.insert(id.clone(), directory);
        Ok(json!({ "sessionId": id }))
    }

    fn reopen(&mut self, params: &Value) -> Result<(String, Vec<Entry>), Refusal> {
        let directory = directory_of(params)?;
        let id = params["sessionId"].as_str().unwrap_or_default();
        let history = self
            .store
            .read(id)
            .map_err(|error| Refusal::new(INTERNAL_ERROR, self.store.trouble(&error)))?
            .ok_or_else(|| Refusal::new(RESOURCE_NOT_FOUND, format!("no conversation {id:?}")))?;
        self.open.insert(id.to_owned(), directory);
        Ok((id.to_owned(), history))
    }

    fn prompt(&mut self, id: &Value, params: &Value) -> io::Result<()> {
        let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let refusal = if self.turn.is_some() {
            Some(Refusal::new(INVALID_REQUEST, "a turn is running; one prompt at a time"))
        } else if self.open.contains_key(&session) {
            None
        } else {
            Some(Refusal::new(RESOURCE_NOT_FOUND, format!("no open conversation {session:?}")))
        };
        if let Some(refusal) = refusal {
            return self.send(&rpc::error(id, &refusal));
        }
        // A client may put notes of its own first; the user's prompt is the last text.
        let texts = params["prompt"].as_array().into_iter().flatten();
        let text = texts.filter_map(|block| block["text"].as_str()).next_back().unwrap_or_default().to_owned();
        let earlier = self.store.read(&session).map(Option::unwrap_or_default);
        let stored = earlier.and_then(|earlier| self.store.append(&session, &Entry::user(&text)).map(|()| earlier));
        let earlier = match stored {
            Ok(earlier) => earlier,
            Err(error) => {
                let refusal = Refusal::new(INTERNAL_ERROR, self.store.trouble(&error));
                return self.send(&rpc::error(id, &refusal));
            }
        };

        self.turn = Some(Turn {
            session: session.clone(),
            cancelled: false,
            gone: false,
            said: String::new(),
            answers: HashMap::new(),
        });
        self.answer(&text, &earlier)?;
        let turn = self.turn.as_mut().expect("set above, and only taken below");
        let (said, stop) = (std::mem::take(&mut turn.said), if turn.cancelled { "cancelled" } else { "end_turn" });
        let gone = turn.gone;
        let stored = self.store.append(&session, &Entry::agent(&said));
        if gone {
            return Ok(()); // the turn stays set, which ends the loop
        }
        self.turn = None;
        if let Err(error) = stored {
            let refusal = Refusal::new(INTERNAL_ERROR, self.store.trouble(&error));
            return self.send(&rpc::error(id, &refusal));
        }
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": { "stopReason": stop } }))
    }

    /// Sends text of the answer. Returns `false` if the turn is cancelled.
    fn say(&mut self, text: &str) -> io::Result<bool> {
        let Some(turn) = self.turn.as_mut() else { return Ok(false) };
        turn.said.push_str(text);
        let session = turn.session.clone();
        self.update(&session, &text_update("agent_message_chunk", text))?;
        Ok(!matches!(self.wait_until(Instant::now())?, Woken::Cancelled))
    }

    /// Sends an update of the running turn.
    fn tell(&mut self, update: &Value) -> io::Result<()> {
        let session = self.turn.as_ref().map(|turn| turn.session.clone()).unwrap_or_default();
        self.update(&session, update)
    }

    fn update(&mut self, session: &str, update: &Value) -> io::Result<()> {
        self.send(&json!({
            "jsonrpc": "2.0",
            "method": "session/update",
            "params": { "sessionId": session, "update": update },
        }))
    }

    /// Handles items of the queue until one concerns the turn, or until `time`.
    fn wait_until(&mut self, time: Instant) -> io::Result<Woken> {
        let woken = match self.inbox.recv_timeout(time.saturating_duration_since(Instant::now())) {
            Ok(Input::Line(line)) => {
                self.line(&line)?;
                Woken::Something
            }
            Ok(Input::Output(command, bytes)) => Woken::Output(command, bytes),
            Ok(Input::OutputEnd(command)) => Woken::OutputEnd(command),
            Err(RecvTimeoutError::Timeout) => Woken::Time,
            Ok(Input::End) | Err(RecvTimeoutError::Disconnected) => {
                if let Some(turn) = self.turn.as_mut() {
                    turn.gone = true;
                }
                Woken::Cancelled
            }
        };
        let over = self.turn.as_ref().is_none_or(|turn| turn.cancelled || turn.gone);
        Ok(if over { Woken::Cancelled } else { woken })
    }

    /// Sends a request to the client and waits for its answer. Returns `None` if the turn is cancelled.
    fn ask(&mut self, method: &str, params: &Value) -> io::Result<Option<Value>> {
        let id = self.next_rpc;
        self.next_rpc += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            if let Some(answer) = self.turn.as_mut().and_then(|turn| turn.answers.remove(&id)) {
                return Ok(Some(answer));
            }
            let far = Instant::now() + Duration::from_hours(1);
            if matches!(self.wait_until(far)?, Woken::Cancelled) {
                return Ok(None);
            }
        }
    }

    fn send(&mut self, message: &Value) -> io::Result<()> {
        let mut line = message.to_string();
        line.push('\n');
        self.out.write_all(line.as_bytes())?;
        self.out.flush()
    }
}

fn text_update(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

fn directory_of(params: &Value) -> Result<PathBuf, Refusal> {
    params["cwd"]
        .as_str()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .ok_or_else(|| Refusal::new(INVALID_PARAMS, "\"cwd\" is not an absolute path"))
}

#[cfg(test)]
mod tests;
