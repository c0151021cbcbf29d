//! The scripted agent: an ACP agent on stdin and stdout that does exactly what a test requests.
//!
//! Flags set the overall behaviour ([`Flags`]); the prompt sets the actions of a turn. Each line with a command is
//! obeyed in order ([`Agent::obey`]), and every other line is ignored. A prompt without a command is repeated. The
//! agent reads no environment variables, because tests examine its environment. It uses no code of agentd, because
//! tests examine that code.
//!
//! One thread reads stdin; the main thread acts. Messages that arrive during a turn (a cancel, an answer, the end of
//! stdin) are seen only while the turn waits.

mod account;
#[cfg(target_os = "linux")]
mod attempts;
mod calls;
mod conversations;
mod flags;
mod login;
mod mcp;
mod permissions;
mod processes;
mod tools;
mod transcript;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead as _, Write as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{self, Signal};
use nix::unistd::{getpid, pause};
use serde_json::{Value, json};

use account::Account;
use flags::{Flags, usage};
use mcp::McpClient;
use processes::{await_strays, block_sigterm, myself, note_pid, spawn_stray, stray, tool};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["stray", pidfile] => stray(Path::new(pidfile)),
        ["stray-parent", pidfile] => drop(spawn_stray(Path::new(pidfile))),
        ["tool", command] => tool(command),
        ["tools"] => tools::serve(),
        ["transcript", file] => transcript::repeat(Path::new(file)),
        ["ask", socket, method, path, body] => calls::ask_once(socket, method, path, body),
        ["neighbour", socket] => calls::neighbour(socket),
        ["attack", table, directory, rounds] => calls::attack(table, directory, rounds),
        ["call", table, directory, round, kind] => calls::call(table, directory, round, kind),
        #[cfg(target_os = "linux")]
        ["attempt", file, ref name @ ..] => attempts::attempts(Path::new(file), name.first().copied()),
        _ => serve(Flags::parse(args.into_iter())),
    }
}

fn serve(flags: Flags) {
    if flags.launcher {
        let args = std::env::args().skip(1).filter(|arg| arg != "--launcher");
        drop(myself().args(args).spawn().expect("the agent proper can be started"));
        return;
    }
    if flags.ignore_sigterm {
        block_sigterm();
    }
    if let Some(pidfile) = &flags.pidfile {
        note_pid(pidfile, "agent", std::process::id());
    }
    if let Some(text) = &flags.complain {
        eprintln!("{text}");
    }
    if let Some(status) = flags.exit {
        std::process::exit(status);
    }
    if flags.banner {
        print_raw(b"Welcome to the scripted agent!\n\x1b[1mdebug\x1b[0m: 3 things loaded\n");
    }
    let account = flags.account.as_deref().map(Account::open);
    let (sender, inbox) = mpsc::channel();
    let lines = sender.clone();
    thread::spawn(move || read_stdin(&lines));
    let is_locked = flags.locked;
    let agent = Agent {
        flags,
        inbox,
        sender,
        pending: VecDeque::new(),
        conversation: None,
        lost: false,
        cancelled: false,
        requests: 0,
        strays: 0,
        said: String::new(),
        next: None,
        reason: None,
        tokens: None,
        account,
        servers: Value::Null,
        opened: Value::Null,
        options: BTreeMap::new(),
        takes_switches: false,
        is_locked,
        blocks: Value::Null,
        parts: json!([]),
        mcp: None,
    };
    agent.run();
}

fn read_stdin(lines: &Sender<Input>) {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(message) => lines.send(Input::Message(message)),
            // Half an emoji is valid JSON, but serde_json's `Value` cannot represent it.
            Err(_) if line.contains("\\ud") || line.contains("\\uD") => lines.send(Input::Text(line)),
            Err(error) => usage(&format!("was sent a line that is not JSON: {error}: {line}")),
        }
        .ok();
    }
    lines.send(Input::Eof).ok();
}

enum Input {
    Message(Value),
    Text(String),
    Eof,
    /// The shell command of a `tool` ended with this output.
    ToolDone(String),
}

/// One conversation, kept in a file: `[{"role":"user","text":"..."}, ...]`.
struct Conversation {
    id: String,
    turns: Vec<Value>,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may stand beside any")]
struct Agent {
    flags: Flags,
    inbox: Receiver<Input>,
    sender: Sender<Input>,
    /// Messages that arrived while the agent waited for a different one.
    pending: VecDeque<Value>,
    conversation: Option<Conversation>,
    /// Whether every prompt is answered like a prompt for an unknown conversation.
    lost: bool,
    cancelled: bool,
    requests: u64,
    strays: usize,
    /// The agent's text in this turn.
    said: String,
    /// Answer to the next prompt without a command.
    next: Option<String>,
    /// Stop reason of this turn instead of the usual one.
    reason: Option<String>,
    /// Tokens that the answer to the prompt reports.
    tokens: Option<usize>,
    account: Option<Account>,
    /// The MCP servers that the client named when it opened the conversation.
    servers: Value,
    /// The parameters of the last request to open a conversation.
    opened: Value,
    /// The options that were set.
    options: BTreeMap<String, String>,
    /// Whether a login is missing.
    is_locked: bool,
    /// Whether the client takes options that are on or off.
    takes_switches: bool,
    /// The texts of the last prompt, with those that the client added.
    blocks: Value,
    /// Parts of the last prompt besides its texts.
    parts: Value,
    /// Client of the first server, if it was started.
    mcp: Option<McpClient>,
}

impl Agent {
    fn run(mut self) {
        loop {
            let message = match self.pending.pop_front() {
                Some(message) => message,
                None => match self.inbox.recv().expect("the sender lives in this agent") {
                    Input::Message(message) => message,
                    Input::Eof => self.end_of_stdin(),
                    Input::Text(_) | Input::ToolDone(_) => continue,
                },
            };
            self.handle(&message);
        }
    }

    fn end_of_stdin(&self) -> ! {
        if self.flags.ignore_eof {
            loop {
                pause();
            }
        }
        std::process::exit(0);
    }

    fn handle(&mut self, message: &Value) {
        let Some(method) = message["method"].as_str() else { return };
        let (id, params) = (&message["id"], &message["params"]);
        if let Some((_, code, message)) = self.flags.refuse.as_ref().filter(|(refused, ..)| refused == method) {
            let error = json!({ "code": code, "message": message });
            return send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
        if !params["mcpServers"].is_null() {
            self.servers = params["mcpServers"].clone();
            self.opened = params.clone();
        }
        if self.is_locked && matches!(method, "session/new" | "session/load" | "session/resume" | "session/prompt") {
            return fail(id, -32000, "A login is missing");
        }
        match method {
            "authenticate" => self.authenticate(id, params),
            "initialize" => {
                thread::sleep(self.flags.slow_init);
                let session = &params["clientCapabilities"]["session"];
                self.takes_switches = session["configOptions"]["boolean"].is_object();
                self.answer(id, &self.introduction());
            }
            "session/new" => self.begin(id, Vec::new()),
            "session/fork" if self.flags.fork => self.copy(id, params["sessionId"].as_str().unwrap_or_default()),
            "session/delete" if self.flags.delete => self.delete(id, params["sessionId"].as_str().unwrap_or_default()),
            "session/list" if self.flags.list => self.list(id, params),
            "session/load" | "session/resume" => {
                self.load(id, method, params["sessionId"].as_str().unwrap_or_default());
            }
            "session/prompt" => self.prompt(id, params),
            "session/set_config_option" if self.flags.options => self.set_option(id, params),
            "session/set_mode" | "session/set_model" if self.flags.modes => self.set_option(id, params),
            "session/cancel" => {}
            _ if id.is_null() => {}
            other => send(&json!({
                "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": format!("no method {other}") }
            })),
        }
    }

    fn introduction(&self) -> Value {
        let mut session = json!({});
        for (name, is_offered) in [
            ("resume", self.flags.resume),
            ("fork", self.flags.fork),
            ("delete", self.flags.delete),
            ("list", self.flags.list),
            ("additionalDirectories", self.flags.directories),
        ] {
            if is_offered {
                session[name] = json!({});
            }
        }
        json!({
            "protocolVersion": self.flags.protocol.unwrap_or(1),
            "agentCapabilities": { "loadSession": !self.flags.no_load, "sessionCapabilities": session,
                "mcpCapabilities": { "http": self.flags.mcp, "sse": false },
                "promptCapabilities": { "image": self.flags.content, "audio": self.flags.content,
                    "embeddedContext": self.flags.content } },
            "agentInfo": {
                "name": "scripted", "title": "Scripted agent", "version": self.flags.version.as_deref().unwrap_or("1")
            },
            "authMethods": self.login_methods(),
        })
    }

    fn prompt(&mut self, id: &Value, params: &Value) {
        self.cancelled = false;
        self.said.clear();
        let blocks = params["prompt"].as_array().cloned().unwrap_or_default();
        // A client may add notes before the user's text, which is the last text.
        self.blocks = blocks.iter().map(|block| block["text"].clone()).collect();
        self.parts = blocks.iter().filter(|block| block["type"] != "text").map(measured).collect();
        let text = blocks.iter().filter_map(|block| block["text"].as_str()).next_back().unwrap_or_default().to_owned();
        if self.lost {
            return fail(id, -32002, "Session not found");
        }
        self.remember("user", &text);
        self.note("asked", &text);
        let mut obeyed = false;
        for line in text.lines() {
            match self.obey(line) {
                Obeyed::Not => {}
                Obeyed::Done => obeyed = true,
                Obeyed::Failed(error) => {
                    self.note("answered", "error");
                    return send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
                }
            }
            if self.cancelled {
                break;
            }
        }
        if !obeyed {
            let answer = self.next.take().unwrap_or(text);
            self.say(&answer);
        }
        let said = std::mem::take(&mut self.said);
        self.remember("agent", &said);
        let usual = if self.cancelled { "cancelled" } else { "end_turn" };
        let reason = self.reason.take().unwrap_or(usual.to_owned());
        let mut answer = json!({ "stopReason": reason });
        if let Some(tokens) = self.tokens.take() {
            answer["usage"] = json!({ "totalTokens": tokens, "inputTokens": 1, "outputTokens": 1 });
        }
        self.answer(id, &answer);
        self.note("answered", &reason);
    }

    fn note(&self, word: &str, text: &str) {
        if let Some(account) = &self.account {
            account.note(word, text);
        }
    }

    /// Adds a message to the conversation, on disk before the agent acts on it. A killed agent then still has the
    /// message.
    fn remember(&mut self, role: &str, text: &str) {
        if let Some(conversation) = &mut self.conversation {
            conversation.turns.push(json!({ "role": role, "text": text }));
            self.store();
        }
    }

    fn obey(&mut self, line: &str) -> Obeyed {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "say" => self.say(rest),
            // `speak "TEXT"`: says a text of several lines, given as a JSON string.
            "speak" => self.say(&serde_json::from_str::<String>(rest).expect("a JSON string")),
            // `next "TEXT"`: the answer to the next prompt without a command.
            "next" => self.next = Some(serde_json::from_str(rest).expect("a JSON string")),
            // `update {"sessionUpdate":...}`: sends any update of ACP.
            "update" => self.update(&serde_json::from_str(rest).expect("an update as JSON")),
            "stop-reason" => self.reason = Some(rest.to_owned()),
            "tokens" => self.tokens = Some(number(rest)),
            "cost" => {
                let (amount, currency) = rest.split_once(' ').unwrap_or((rest, "USD"));
                let amount: f64 = amount.parse().expect("an amount");
                let cost = json!({ "amount": amount, "currency": currency });
                self.update(&json!({ "sessionUpdate": "usage_update", "used": 10, "size": 100, "cost": cost }));
            }
            "count" => self.count(rest),
            "flood" => self.flood(rest),
            "flood-requests" => {
                let (requests, bytes) = rest.split_once(' ').unwrap_or((rest, "1000"));
                let text = "x".repeat(number(bytes));
                for i in 1..=number(requests) {
                    send(&json!({ "jsonrpc": "2.0", "id": format!("f{i}"), "method": "flood",
                            "params": { "text": text } }));
                }
            }
            "env" => self.say(&environment()),
            "unicode" => self.say_in_escapes(&environment()),
            "opened" => self.say(&json!([self.opened["cwd"], self.opened["additionalDirectories"]]).to_string()),
            // `mode ID`, `choose ID VALUE`: the agent changes its own mode or option.
            "mode" => {
                self.options.insert("mode".to_owned(), rest.to_owned());
                self.update(&json!({ "sessionUpdate": "current_mode_update", "modeId": rest }));
            }
            "choose" => {
                let (id, value) = rest.split_once(' ').expect("an option and a value");
                self.options.insert(id.to_owned(), value.to_owned());
                let mut update = self.offer();
                update["sessionUpdate"] = json!("config_option_update");
                self.update(&update);
            }
            // The login ends.
            "log-out" => self.is_locked = true,
            "servers" => self.say(&self.servers.to_string()),
            "options" => self.say(&json!(self.options).to_string()),
            "blocks" => self.say(&self.blocks.to_string()),
            // The parts of the prompt besides its texts; a content as its length and the sum of its bytes.
            "parts" => self.say(&self.parts.to_string()),
            "cwd" => self.say(&std::env::current_dir().unwrap_or_default().display().to_string()),
            "tool" => self.tool(rest),
            // Like an agent that asks for no permission.
            "do" => self.run_tool("unasked", rest),
            "ask" => self.ask_twice_allowed(),
            "ask-without-options" => {
                let answer = self.permission(&json!({ "toolCallId": "asked", "title": "do something" }), &json!([]));
                self.say(&format!("chosen {answer}"));
            }
            "ask-as" => self.ask_as(rest),
            "ask-for" => self.ask_for(rest),
            "elicit" => self.elicit(rest),
            "notify" => self.notify(rest),
            "mcp" => self.call_tools(rest),
            // The program behind an adapter dies. The adapter continues without any conversation.
            "lose" => self.lost = true,
            "setsid-child" => self.stray(|pidfile| drop(spawn_stray(pidfile))),
            "daemonize" => self.stray(|pidfile| {
                let mut parent = myself().arg("stray-parent").arg(pidfile).spawn().expect("a child can be started");
                parent.wait().expect("the child can be waited for");
            }),
            "noise" => print_raw(b"debug: not JSON\nbytes \xff\xfe that are not UTF-8\n{\"cut\": \n[]\n\n"),
            "bigline" => self.say(&"x".repeat(number(rest))),
            "stderr" => eprintln!("{rest}"),
            "unknown-request" => self.ask_client("craft/drainMidTurnQueue {}"),
            "request" => self.ask_client(rest),
            "hang" => {
                while !self.cancelled {
                    self.wait_for(None, |_| false);
                }
            }
            "remember" => self.say(&self.recollection()),
            "error" => return Obeyed::Failed(json!({ "code": -32000, "message": "as you asked: an error" })),
            "limit" => return self.limit(rest).map_or(Obeyed::Done, Obeyed::Failed),
            "exit" => std::process::exit(i32::try_from(number(rest)).unwrap_or(1)),
            "die" => {
                signal::kill(getpid(), Signal::SIGKILL).expect("a process may kill itself");
            }
            _ => return Obeyed::Not,
        }
        Obeyed::Done
    }

    /// `mcp {"calls":[[TOOL,ARGUMENTS],...]}`: calls tools of the first MCP server, and prints their results as JSON.
    /// The server keeps running, unless `env` replaces variables of its entry. `"end":true` ends the server and prints
    /// its exit status, and `"list":true` prints its tools.
    fn call_tools(&mut self, text: &str) {
        let Ok(wanted) = serde_json::from_str::<Value>(text) else { usage(&format!("{text:?} is not JSON")) };
        if self.servers[0].is_null() {
            return self.say("no server");
        }
        let is_own = wanted["env"].is_null();
        let started = || McpClient::start(&self.servers[0], &wanted["env"]);
        let mut client = self.mcp.take().filter(|_| is_own).unwrap_or_else(started);
        let mut results = Vec::new();
        if wanted["list"] == true {
            results.push(client.request("tools/list", &json!({})));
        }
        for call in wanted["calls"].as_array().into_iter().flatten() {
            results.push(client.call(call[0].as_str().unwrap_or_default(), &call[1]));
        }
        if wanted["end"] == true || !is_own {
            results.push(json!(client.end()));
        } else {
            self.mcp = Some(client);
        }
        self.say(&Value::Array(results).to_string());
    }

    /// `count N MS`: the numbers 1 to N, one message each, MS apart.
    fn count(&mut self, rest: &str) {
        let (n, ms) = rest.split_once(' ').unwrap_or((rest, "0"));
        for i in 1..=number(n) {
            self.say(&format!("{i}\n"));
            self.wait_for(Some(Duration::from_millis(number(ms) as u64)), |_| false);
            if self.cancelled {
                return;
            }
        }
    }

    /// `flood LINES BYTES`: sends LINES messages of BYTES each, as fast as the client reads them. Ignores all input
    /// meanwhile.
    fn flood(&self, rest: &str) {
        let (lines, bytes) = rest.split_once(' ').unwrap_or((rest, "1000"));
        let text = "x".repeat(number(bytes));
        for _ in 0..number(lines) {
            self.update(
                &json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } }),
            );
        }
    }

    fn stray(&mut self, start: impl FnOnce(&Path)) {
        let Some(pidfile) = self.flags.pidfile.clone() else { usage("a stray needs --pidfile") };
        self.strays += 1;
        start(&pidfile);
        await_strays(&pidfile, self.strays);
        self.say("started");
    }

    /// Sends a request and waits for its answer.
    fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = format!("scripted-{}", self.requests);
        self.requests += 1;
        send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let is_answer = |input: &Input| match input {
            Input::Message(message) => message["id"] == id.as_str() && message["method"].is_null(),
            _ => false,
        };
        loop {
            if let Some(Input::Message(answer)) = self.wait_for(None, is_answer) {
                return answer;
            }
        }
    }

    /// Waits for an input that `wanted` accepts. Returns `None` after a cancel, or when the time is over.
    fn wait_for(&mut self, time: Option<Duration>, wanted: impl Fn(&Input) -> bool) -> Option<Input> {
        let deadline = time.map(|time| Instant::now() + time);
        loop {
            let input = match deadline {
                None => self.inbox.recv().expect("the sender lives in this agent"),
                Some(deadline) => match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(input) => input,
                    Err(RecvTimeoutError::Timeout) => return None,
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the sender lives in this agent"),
                },
            };
            if wanted(&input) {
                return Some(input);
            }
            match input {
                Input::Message(message) if message["method"] == "session/cancel" => {
                    self.cancelled = true;
                    return None;
                }
                Input::Message(message) => self.pending.push_back(message),
                Input::Eof => self.end_of_stdin(),
                Input::Text(_) | Input::ToolDone(_) => {}
            }
        }
    }

    fn say(&mut self, text: &str) {
        self.said.push_str(text);
        self.update(&json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } }));
        self.note("said", text);
    }

    /// Prints the text like some JSON writers: every character as an escape.
    fn say_in_escapes(&self, text: &str) {
        let session = self.conversation.as_ref().map(|conversation| conversation.id.as_str()).unwrap_or_default();
        let escaped = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>().concat();
        let content =
            format!(r#"{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{escaped}"}}}}"#);
        let params = format!(r#"{{"sessionId":"{session}","update":{content}}}"#);
        print_raw(format!("{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{params}}}\n").as_bytes());
    }

    fn update(&self, update: &Value) {
        let session = self.conversation.as_ref().map(|conversation| &conversation.id);
        let params = json!({ "sessionId": session, "update": update });
        send(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }));
    }

    #[allow(clippy::unused_self, reason = "it reads as what the agent does")]
    fn answer(&self, id: &Value, result: &Value) {
        send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }
}

enum Obeyed {
    Not,
    Done,
    /// The agent answers the prompt with this error.
    Failed(Value),
}

fn number(text: &str) -> usize {
    match text.trim().parse() {
        Ok(n) => n,
        Err(_) => usage(&format!("{text:?} is not a number")),
    }
}

/// Returns the environment as a JSON object; bytes that are not UTF-8 are replaced.
fn environment() -> String {
    let variables: serde_json::Map<String, Value> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), json!(value.to_string_lossy())))
        .collect();
    Value::Object(variables).to_string()
}

fn fail(id: &Value, code: i64, message: &str) {
    send(&json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } }));
}

fn send(message: &Value) {
    print_raw(format!("{message}\n").as_bytes());
}

/// Writes to stdout. Ends the agent when stdout has no reader, like any agent.
fn print_raw(bytes: &[u8]) {
    let mut stdout = io::stdout().lock();
    if stdout.write_all(bytes).and_then(|()| stdout.flush()).is_err() {
        std::process::exit(1);
    }
}

/// Returns a block with its content as the length and the sum of the bytes.
fn measured(block: &Value) -> Value {
    let mut block = block.clone();
    let measure = |content: &mut Value| {
        if let Some(text) = content.as_str() {
            let sum: u64 = text.bytes().map(u64::from).sum();
            *content = json!(format!("{}:{sum}", text.len()));
        }
    };
    for pointer in ["/data", "/resource/text", "/resource/blob"] {
        block.pointer_mut(pointer).map(measure);
    }
    block
}
