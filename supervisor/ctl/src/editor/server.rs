//! Answers the editor's requests, or hands them to the session that they name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1::{
    AgentCapabilities, Implementation, InitializeResponse, McpCapabilities, SessionAdditionalDirectoriesCapabilities,
    SessionCapabilities, SessionCloseCapabilities, SessionDeleteCapabilities, SessionListCapabilities,
    SessionResumeCapabilities,
};
use agentd_api::Code;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::command::{Command, Kind};
use super::host::{Host, is_same_directory, tell};
use super::lines::Line;
use super::permission::Shows;
use super::requests::Offers;
use super::session::{Session, Subject};
use super::wire::{
    INVALID_PARAMS, INVALID_REQUEST, Id, Incoming, METHOD_NOT_FOUND, NOT_FOUND, Refusal, params, parse, raw,
};
use super::{content, directories, list, refusal, seen, servers};
use crate::error::Error;
use crate::forget::Forgetting;
use crate::spec;

/// Time for which requests that are being answered may go on after the end of standard input.
const LAST: Duration = Duration::from_secs(2);
/// Number of requests that wait for one session.
const QUEUE: usize = 64;

/// A new session has an id.
struct Opened {
    session: String,
    commands: mpsc::Sender<Command>,
}

pub(super) struct Server {
    host: Host,
    sessions: HashMap<String, mpsc::Sender<Command>>,
    opened: (mpsc::Sender<Opened>, mpsc::Receiver<Opened>),
    /// Tasks of sessions, which end with their commands.
    attached: JoinSet<()>,
    /// Requests that are answered without a session.
    answering: JoinSet<()>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Open {
    #[serde(default)]
    session_id: Option<String>,
    cwd: PathBuf,
    #[serde(default)]
    additional_directories: Option<Vec<PathBuf>>,
    #[serde(default)]
    mcp_servers: Option<Vec<Value>>,
    /// Entries of agentd: `agentd.after` is the last record that the editor has.
    #[serde(default, rename = "_meta")]
    meta: Value,
}

impl Open {
    fn further(&self) -> &[PathBuf] {
        self.additional_directories.as_deref().unwrap_or_default()
    }

    fn servers(&self) -> &[Value] {
        self.mcp_servers.as_deref().unwrap_or_default()
    }

    /// Returns the last record that the editor has. The replay begins after it.
    fn after(&self) -> u64 {
        self.meta["agentd"]["after"].as_u64().unwrap_or_default()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Of {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prompt {
    session_id: String,
    prompt: Vec<Value>,
}

impl Server {
    pub(super) fn new(host: Host) -> Self {
        Self {
            host,
            sessions: HashMap::new(),
            opened: mpsc::channel(QUEUE),
            attached: JoinSet::new(),
            answering: JoinSet::new(),
        }
    }

    /// Serves until the input ends or the output is closed. Every session continues.
    pub(super) async fn run(mut self, mut lines: mpsc::Receiver<Line>) {
        loop {
            tokio::select! {
                biased;
                () = self.host.out.closed() => break,
                Some(opened) = self.opened.1.recv() => drop(self.sessions.insert(opened.session, opened.commands)),
                Some(_) = self.attached.join_next(), if !self.attached.is_empty() => {}
                Some(_) = self.answering.join_next(), if !self.answering.is_empty() => {}
                line = lines.recv() => match line {
                    Some(line) => self.line(line).await,
                    None => break,
                },
            }
        }
        let _ = timeout(LAST, async { while self.answering.join_next().await.is_some() {} }).await;
        self.sessions.clear();
        drop(self.opened);
        let _ = timeout(LAST, async { while self.attached.join_next().await.is_some() {} }).await;
    }

    async fn line(&mut self, line: Line) {
        let parsed = match line {
            Line::Complete(line) => parse(&line),
            Line::TooLong => {
                let refusal = Refusal::new(INVALID_REQUEST, "the line is too long, and was skipped");
                Err((RawValue::NULL.to_owned(), refusal))
            }
        };
        match parsed {
            Ok(Incoming::Request { id, method, params }) => {
                if let Err(refusal) = self.request(&id, &method, &params).await {
                    self.host.out.answer(&id, Err(refusal)).await;
                }
            }
            Ok(Incoming::Notification { method, params }) => self.notification(&method, &params).await,
            Ok(Incoming::Response { id: Some(id), outcome }) => {
                let answered = || Command::Answered { id, outcome: outcome.clone() };
                self.tell_all(answered).await;
            }
            Ok(Incoming::Response { id: None, .. }) => {}
            Err((id, refusal)) => self.host.out.answer(&id, Err(refusal)).await,
        }
    }

    /// Sends a command to every session. Only the session that it concerns acts.
    async fn tell_all(&mut self, command: impl Fn() -> Command) {
        for session in self.sessions.values() {
            let _ = session.send(command()).await;
        }
    }

    async fn notification(&mut self, method: &str, given: &RawValue) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Withdrawn {
            request_id: Box<RawValue>,
        }
        match method {
            "session/cancel" => {
                if let Ok(Of { session_id }) = params(given) {
                    let _ = self.command(&session_id, Command::Cancel).await;
                }
            }
            "$/cancel_request" => {
                if let Ok(Withdrawn { request_id }) = params(given) {
                    self.tell_all(|| Command::Withdrawn(request_id.get().to_owned())).await;
                }
            }
            _ => {}
        }
    }

    /// Hands a command to an open session.
    async fn command(&mut self, session: &str, command: Command) -> Result<(), Refusal> {
        let sent = match self.sessions.get(session) {
            Some(commands) => commands.send(command).await.is_ok(),
            None => false,
        };
        if sent {
            return Ok(());
        }
        self.sessions.remove(session);
        let text = format!("session {session:?} is not open here; open it with session/load or session/resume");
        Err(Refusal::new(NOT_FOUND, text))
    }

    /// Answers a request, now or later. The error is the answer.
    async fn request(&mut self, id: &Id, method: &str, given: &RawValue) -> Result<(), Refusal> {
        match method {
            "initialize" => {
                let answer = self.initialize(given)?;
                self.host.out.answer(id, Ok(raw(&answer))).await;
            }
            "session/new" => {
                let open = opening(given)?;
                self.attached.spawn_local(create(self.host.clone(), id.clone(), open, self.opened.0.clone()));
            }
            "session/load" => self.reopen(id, Kind::Load, given).await?,
            "session/resume" => self.reopen(id, Kind::Resume, given).await?,
            "session/list" => {
                let asked = if given.get() == "null" { list::Asked::default() } else { params(given)? };
                if asked.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) {
                    return Err(Refusal::new(INVALID_PARAMS, "\"cwd\" is not an absolute path"));
                }
                let (host, id) = (self.host.clone(), id.clone());
                self.answering.spawn_local(async move {
                    let listed = listed(&host, &asked).await;
                    host.out.answer(&id, listed).await;
                });
            }
            "session/delete" => {
                let Of { session_id } = params(given)?;
                self.leave(&session_id).await;
                let (host, id) = (self.host.clone(), id.clone());
                self.answering.spawn_local(async move {
                    let deleted = deleted(&host, &session_id).await;
                    host.out.answer(&id, deleted.map_err(|error| refusal::of(&error))).await;
                });
            }
            "session/prompt" => {
                let Prompt { session_id, prompt } = params(given)?;
                self.command(&session_id, Command::Prompt { id: id.clone(), blocks: prompt }).await?;
            }
            "session/close" => {
                let Of { session_id } = params(given)?;
                self.command(&session_id, Command::Close(Some(id.clone()))).await?;
                self.sessions.remove(&session_id);
            }
            "session/set_mode" | "session/set_model" | "session/set_config_option" => {
                let Of { session_id } = params(given)?;
                let change = Command::Change { id: id.clone(), method: method.to_owned(), params: given.to_owned() };
                self.command(&session_id, change).await?;
            }
            _ => return Err(Refusal::new(METHOD_NOT_FOUND, format!("agentd has no method {method:?}"))),
        }
        Ok(())
    }

    fn initialize(&mut self, given: &RawValue) -> Result<InitializeResponse, Refusal> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Hello {
            protocol_version: u16,
            #[serde(default)]
            client_info: Value,
            #[serde(default)]
            client_capabilities: Value,
        }
        let Hello { protocol_version, client_info, client_capabilities } = params(given)?;
        self.host.shows = Shows::of(&client_capabilities);
        self.host.offers = Offers::of(&client_capabilities);
        if protocol_version != 1 {
            // The editor decides whether the version of the answer is enough.
            tell(
                "(none)",
                &format!("the editor speaks version {protocol_version} of the protocol, and agentd version 1"),
            );
        }
        self.host.seen = seen::directory(client_info["name"].as_str().unwrap_or_default());
        let sessions = SessionCapabilities::new()
            .additional_directories(SessionAdditionalDirectoriesCapabilities::new())
            .list(SessionListCapabilities::new())
            .resume(SessionResumeCapabilities::new())
            .close(SessionCloseCapabilities::new())
            .delete(SessionDeleteCapabilities::new());
        let capabilities = AgentCapabilities::new()
            .load_session(true)
            .mcp_capabilities(McpCapabilities::new().http(true).sse(true))
            .prompt_capabilities(content::capabilities())
            .session_capabilities(sessions);
        let about = Implementation::new("agentd", env!("CARGO_PKG_VERSION")).title("agentd".to_owned());
        Ok(InitializeResponse::new(ProtocolVersion::V1).agent_capabilities(capabilities).agent_info(about))
    }

    async fn reopen(&mut self, id: &Id, kind: Kind, given: &RawValue) -> Result<(), Refusal> {
        let open = opening(given)?;
        let missing = || Refusal::new(INVALID_PARAMS, "the parameter \"sessionId\" is missing");
        let session = open.session_id.clone().ok_or_else(missing)?;
        self.leave(&session).await;
        let (sender, commands) = mpsc::channel(QUEUE);
        self.sessions.insert(session.clone(), sender);
        self.attached.spawn_local(reopen(self.host.clone(), id.clone(), kind, session, open, commands));
        Ok(())
    }

    /// Leaves a session that is open already.
    async fn leave(&mut self, session: &str) {
        if let Some(commands) = self.sessions.remove(session) {
            let _ = commands.send(Command::Close(None)).await;
        }
    }
}

/// Checks the parameters of a request that opens a session.
fn opening(given: &RawValue) -> Result<Open, Refusal> {
    let open: Open = params(given)?;
    if !open.cwd.is_absolute() {
        return Err(Refusal::new(INVALID_PARAMS, "\"cwd\" is not an absolute path"));
    }
    directories::check(open.further())?;
    Ok(open)
}

async fn create(host: Host, id: Id, open: Open, opened: mpsc::Sender<Opened>) {
    let created = async {
        let client = host.reach().await?;
        let mut spec = host.options.spec.clone();
        spec.directory.clone_from(&open.cwd);
        spec.directories = open.further().to_vec();
        spec.mcp = servers::of("(new)", open.servers());
        let view = spec::create(&client, spec, host.options.terms).await?.value;
        Ok::<_, Error>((client, view))
    };
    let (client, view) = match created.await {
        Ok(created) => created,
        Err(error) => return host.out.answer(&id, Err(refusal::of(&error))).await,
    };
    let session = view.id.to_string();
    let (sender, commands) = mpsc::channel(QUEUE);
    // Without a receiver, standard input has ended, and the session continues alone.
    if opened.send(Opened { session: session.clone(), commands: sender }).await.is_err() {
        return;
    }
    drop(opened);
    client.observed(&session).await;
    let subject = Subject { id: session.clone(), name: session, directory: open.cwd, status: None, after: 0 };
    Session::new(host, client, subject, id, Kind::New).run(commands).await;
}

async fn reopen(host: Host, id: Id, kind: Kind, name: String, open: Open, commands: mpsc::Receiver<Command>) {
    let found = async {
        let client = host.reach().await.map_err(|error| refusal::of(&error))?;
        let view = client.session(&name).await.map_err(|error| refusal::of(&error.into()))?.value;
        if !is_same_directory(&open.cwd, &view.spec.directory).await {
            let (own, given) = (view.spec.directory.display(), open.cwd.display());
            let text = format!("session {name} works in {own}, and not in {given}; open it there");
            return Err(Refusal::new(INVALID_PARAMS, text));
        }
        directories::change(&client, &view, open.further()).await?;
        servers::change(&client, &view, open.servers()).await?;
        let view = host.woken(&client, view.id.as_str()).await.map_err(|error| refusal::of(&error))?;
        client.observed(view.id.as_str()).await;
        Ok((client, view))
    };
    let (client, view) = match found.await {
        Ok(found) => found,
        Err(refusal) => return host.out.answer(&id, Err(refusal)).await,
    };
    let directory = view.spec.directory.clone();
    let (own, status) = (view.id.to_string(), Some(Box::new(view.status)));
    let subject = Subject { id: own, name, directory, status, after: open.after() };
    Session::new(host, client, subject, id, kind).run(commands).await;
}

async fn listed(host: &Host, asked: &list::Asked) -> Result<Box<RawValue>, Refusal> {
    let listed = async { Ok::<_, Error>(host.reach().await?.list(None).await?) };
    let sessions = listed.await.map_err(|error| refusal::of(&error))?.value.sessions;
    let mut matching: Vec<PathBuf> = Vec::new();
    if let Some(cwd) = &asked.cwd {
        let mut directories: Vec<&Path> = sessions.iter().map(|view| view.spec.directory.as_path()).collect();
        directories.sort_unstable();
        directories.dedup();
        for directory in directories {
            if is_same_directory(cwd, directory).await {
                matching.push(directory.to_owned());
            }
        }
    }
    let is_in = |directory: &Path| asked.cwd.is_none() || matching.iter().any(|one| one == directory);
    list::page(sessions, asked, is_in).map(|page| raw(&page))
}

/// Deletes a session. A session that does not exist is deleted already.
async fn deleted(host: &Host, session: &str) -> Result<Box<RawValue>, Error> {
    let client = host.reach().await?;
    let view = match client.session(session).await {
        Err(error) if error.problem_code() == Some(Code::NoSuchSession) => return Ok(raw(&json!({}))),
        view => view?.value,
    };
    let forgetting = Forgetting::prepare(&client, &view, false).await;
    match client.delete(session, true).await {
        Err(error) if error.problem_code() != Some(Code::NoSuchSession) => Err(error.into()),
        _ => {
            if let Some(line) = forgetting.finish(&view).await {
                tell(session, &line);
            }
            seen::forget(host.seen.as_deref(), session);
            Ok(raw(&json!({})))
        }
    }
}
