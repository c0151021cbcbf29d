//! Calls of the daemon's HTTP interface. Each call has its own connection: connections are local and cheap.
//!
//! A failed call is not repeated: prompting twice is worse than an error. Only two cases are safe to repeat:
//! the event stream (`stream.rs`), and a request refused for lack of capacity, which had no effect.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::audit::AuditList;
use agentd_api::doctor::DoctorView;
use agentd_api::drain::DrainView;
use agentd_api::environment::{DifferenceView, EnvironmentView, Moment, RotationView};
use agentd_api::keep::{KeepRequest, KeepView};
use agentd_api::plugin::{PluginList, PluginView, ReloadView};
use agentd_api::prerequisite::{CheckReport, CheckRequest, PrerequisiteList};
use agentd_api::scripts::{ScriptDecision, ScriptList};
use agentd_api::secret::SecretList;
use agentd_api::session::{PermissionAnswer, PromptAccepted, PromptRequest, SessionList, SessionSpec, SessionView};
use agentd_api::snapshot::{SnapshotList, TerminalSnapshot, TerminalSnapshotView};
use agentd_api::validation::ValidationView;
use agentd_api::{Code, PermissionId, Problem, SessionId, SessionName, TurnId};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use crate::args::Range;
use crate::error::Error;
use crate::way::Way;

/// Time limit of an answer, in addition to the wait that the request asks for.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit of repeated attempts while the daemon has no capacity for a further connection.
const CROWDED: Duration = Duration::from_secs(15);
/// Additional time limit of a request that builds an environment, with a login shell and scripts.
const BUILDING: Duration = Duration::from_mins(2);
/// Additional time limit of a reload, which compiles plugins.
const COMPILING: Duration = Duration::from_mins(10);

/// Client of the daemon at one address.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    way: Way,
}

/// Answer of the daemon: the parsed value, and the document unchanged for `--json`.
#[derive(Debug)]
pub(crate) struct Document<T> {
    pub(crate) value: T,
    pub(crate) raw: Bytes,
}

/// Behaviour of a launch if a prerequisite of the session is missing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// Time limit of the wait for missing prerequisites.
    pub(crate) wait: Option<Duration>,
    pub(crate) force: bool,
}

impl Terms {
    /// Returns the parameters to append to a query that is not empty.
    fn query(self) -> String {
        let wait = self.wait.map(|wait| format!("&wait_for_prerequisites={}", wait.as_secs_f64())).unwrap_or_default();
        if self.force { format!("{wait}&force=true") } else { wait }
    }
}

/// Answer to `GET /v1/agents`.
#[derive(Debug, Deserialize)]
pub(crate) struct AgentList {
    pub(crate) agents: Vec<AgentView>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct AgentView {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) command: Vec<String>,
    #[serde(default)]
    pub(crate) default: bool,
}

/// Answer to `GET /v1/version`.
#[derive(Debug, Deserialize)]
pub(crate) struct VersionView {
    pub(crate) version: String,
    pub(crate) pid: u32,
    #[serde(default)]
    pub(crate) draining: bool,
    pub(crate) runtime_directory: PathBuf,
    pub(crate) state_directory: PathBuf,
    /// Path of the daemon's program, as the system shows it to the daemon.
    #[serde(default)]
    pub(crate) program: Option<PathBuf>,
    pub(crate) compatibility: agentd_api::compatibility::Compatibility,
}

impl Client {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { way: Way::Socket(socket) }
    }

    pub(crate) fn by(way: Way) -> Self {
        Self { way }
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Succeeds if a daemon answers.
    pub(crate) async fn health(&self) -> Result<(), Error> {
        self.call(Method::GET, "/healthz", None, Duration::ZERO).await.map(drop)
    }

    pub(crate) async fn create(&self, spec: &SessionSpec, terms: Terms) -> Result<Document<SessionView>, Error> {
        self.post(&format!("/v1/sessions?wait=0{}", terms.query()), Some(spec), None).await
    }

    pub(crate) async fn list(&self) -> Result<Document<SessionList>, Error> {
        self.get("/v1/sessions").await
    }

    /// Finds a session by its id, its name, or an unambiguous prefix of its id. A complete id or name takes
    /// precedence.
    pub(crate) async fn find(&self, given: &str) -> Result<Document<SessionView>, Error> {
        if given.parse::<SessionId>().is_err()
            && let Err(error) = given.parse::<SessionName>()
        {
            let detail = format!("there is no session {given:?}: {error}");
            return Err(Error::Session { detail, hint: Some("agentctl ls lists the sessions".to_owned()) });
        }
        let found = self.get(&format!("/v1/sessions/{}", escape(given))).await;
        // An agent does not learn whether another session exists.
        let is_unknown = |error: &Error| matches!(error.code(), Some(Code::NoSuchSession | Code::InSession));
        if !found.as_ref().is_err_and(is_unknown) {
            return found;
        }
        let list = self.list().await?.value;
        let beginning = |view: &&SessionView| view.id.as_str().starts_with(given);
        let mut candidates: Vec<&SessionView> = list.sessions.iter().filter(beginning).collect();
        match candidates.as_slice() {
            [] => found,
            [one] => self.session(one.id.as_str()).await,
            _ => {
                candidates.sort_by_key(|view| view.created);
                let candidates = candidates.into_iter().map(|view| match &view.spec.name {
                    Some(name) => format!("{} ({name})", view.id),
                    None => view.id.to_string(),
                });
                Err(Error::Ambiguous { given: given.into(), candidates: candidates.collect() })
            }
        }
    }

    pub(crate) async fn session(&self, id: &str) -> Result<Document<SessionView>, Error> {
        self.get(&format!("/v1/sessions/{id}")).await
    }

    pub(crate) async fn delete(&self, id: &str, force: bool) -> Result<(), Error> {
        let force = if force { "?force=true" } else { "" };
        // With force it stops the session first, which takes its time.
        self.call(Method::DELETE, &format!("/v1/sessions/{}{force}", escape(id)), None, PATIENCE).await.map(drop)
    }

    pub(crate) async fn prompt(&self, id: &str, prompt: &str) -> Result<Document<PromptAccepted>, Error> {
        let body = PromptRequest { prompt: prompt.to_owned() };
        self.post(&format!("/v1/sessions/{id}/prompt"), Some(&body), None).await
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<Document<SessionView>, Error> {
        self.post(&format!("/v1/sessions/{id}/cancel"), None::<&()>, None).await
    }

    /// Drops a queued turn, or cancels the running turn.
    pub(crate) async fn cancel_turn(&self, id: &str, turn: &TurnId) -> Result<(), Error> {
        self.call(Method::DELETE, &format!("/v1/sessions/{id}/turns/{turn}"), None, Duration::ZERO).await.map(drop)
    }

    pub(crate) async fn stop(&self, id: &str, wait: Option<Duration>) -> Result<Document<SessionView>, Error> {
        self.post(&format!("/v1/sessions/{id}/stop{}", waiting(wait)), None::<&()>, wait).await
    }

    /// Ends the agent of a session whose stored state is unreadable. Such a session has no view.
    pub(crate) async fn stop_set_aside(&self, id: &str) -> Result<(), Error> {
        self.call(Method::POST, &format!("/v1/sessions/{}/stop", escape(id)), None, PATIENCE).await.map(drop)
    }

    /// Resumes a session. `fresh` begins a new conversation instead of continuing the old one.
    pub(crate) async fn resume(
        &self,
        id: &str,
        wait: Option<Duration>,
        fresh: bool,
        terms: Terms,
    ) -> Result<Document<SessionView>, Error> {
        let (seconds, terms) = (wait.unwrap_or_default().as_secs(), terms.query());
        let path = format!("/v1/sessions/{id}/resume?wait={seconds}&new_conversation={fresh}{terms}");
        self.post(&path, None::<&()>, wait).await
    }

    pub(crate) async fn answer(
        &self,
        id: &str,
        permission: &PermissionId,
        answer: &PermissionAnswer,
    ) -> Result<Document<SessionView>, Error> {
        self.post(&format!("/v1/sessions/{id}/permissions/{permission}"), Some(answer), None).await
    }

    pub(crate) async fn environment(
        &self,
        id: &str,
        at: Moment,
        values: bool,
    ) -> Result<Document<EnvironmentView>, Error> {
        let path = format!("/v1/sessions/{id}/environment?at={}&values={values}", at.as_str());
        self.get_slowly(&path, BUILDING).await
    }

    pub(crate) async fn environment_difference(
        &self,
        id: &str,
        range: Range,
        values: bool,
    ) -> Result<Document<DifferenceView>, Error> {
        let (from, to) = (range.from.as_str(), range.to.as_str());
        let path = format!("/v1/sessions/{id}/environment/diff?from={from}&to={to}&values={values}");
        self.get_slowly(&path, BUILDING).await
    }

    pub(crate) async fn rotate_key(&self) -> Result<Document<RotationView>, Error> {
        self.post("/v1/environment/rotate-key", None::<&()>, Some(BUILDING)).await
    }

    /// Adds names to the variables that the whitelist keeps.
    pub(crate) async fn keep(&self, wish: &KeepRequest) -> Result<Document<KeepView>, Error> {
        self.post("/v1/environment/keep", Some(wish), Some(BUILDING)).await
    }

    pub(crate) async fn snapshots(&self) -> Result<Document<SnapshotList>, Error> {
        self.get("/v1/snapshots").await
    }

    /// Sends a terminal's environment, with which sessions can begin.
    pub(crate) async fn add_snapshot(&self, snapshot: &TerminalSnapshot) -> Result<TerminalSnapshotView, Error> {
        Ok(self.post("/v1/snapshots", Some(snapshot), None).await?.value)
    }

    pub(crate) async fn refresh_snapshots(&self, wait: Duration) -> Result<Document<SnapshotList>, Error> {
        self.post("/v1/snapshots/refresh", None::<&()>, Some(wait)).await
    }

    pub(crate) async fn invalidate_snapshots(&self) -> Result<Document<SnapshotList>, Error> {
        self.post("/v1/snapshots/invalidate", None::<&()>, None).await
    }

    pub(crate) async fn agents(&self) -> Result<Document<AgentList>, Error> {
        self.get("/v1/agents").await
    }

    /// Lists the scripts that a session in `directory` sources. `diff` adds their contents or changes.
    pub(crate) async fn scripts(&self, directory: &Path, diff: bool) -> Result<Document<ScriptList>, Error> {
        self.get(&format!("/v1/scripts?directory={}&diff={diff}", escape(&directory.to_string_lossy()))).await
    }

    pub(crate) async fn decide_scripts(
        &self,
        allow: bool,
        decision: &ScriptDecision,
    ) -> Result<Document<ScriptList>, Error> {
        let path = if allow { "/v1/scripts/allow" } else { "/v1/scripts/deny" };
        self.post(path, Some(decision), None).await
    }

    pub(crate) async fn plugins(&self) -> Result<Document<PluginList>, Error> {
        self.get("/v1/plugins").await
    }

    pub(crate) async fn plugin(&self, name: &str) -> Result<Document<PluginView>, Error> {
        self.get(&format!("/v1/plugins/{}", escape(name))).await
    }

    /// Returns the state of all prerequisites, or of those of one session.
    pub(crate) async fn prerequisites(&self, session: Option<&SessionId>) -> Result<PrerequisiteList, Error> {
        let of = session.map(|id| format!("?session={id}")).unwrap_or_default();
        Ok(self.get(&format!("/v1/prerequisites{of}")).await?.value)
    }

    /// Runs a check; the time limit covers the longest check.
    pub(crate) async fn check(&self, name: &str, session: Option<SessionId>) -> Result<CheckReport, Error> {
        let path = format!("/v1/prerequisites/{}/check", escape(name));
        let request = CheckRequest { session };
        Ok(self.post(&path, Some(&request), Some(Duration::from_mins(2))).await?.value)
    }

    /// Reloads the configuration; the time limit covers the compilation of changed plugins.
    pub(crate) async fn reload(&self) -> Result<Document<ReloadView>, Error> {
        self.post("/v1/reload", None::<&()>, Some(COMPILING)).await
    }

    /// Returns the changes that a reload would make. A daemon without this feature refuses the request and
    /// changes nothing.
    pub(crate) async fn foresee_reload(&self) -> Result<Document<ReloadView>, Error> {
        self.get_slowly("/v1/reload", COMPILING).await
    }

    /// Begins a drain: every session is stopped and none launched. Does not wait.
    pub(crate) async fn drain(&self) -> Result<Document<DrainView>, Error> {
        self.post("/v1/drain", None::<&()>, None).await
    }

    /// Returns the progress of the drain when every session is stopped, or after `wait`.
    pub(crate) async fn drain_progress(&self, wait: Duration) -> Result<Document<DrainView>, Error> {
        self.get_slowly(&format!("/v1/drain{}", waiting(Some(wait))), wait).await
    }

    pub(crate) async fn undo_drain(&self) -> Result<Document<DrainView>, Error> {
        let (status, raw) = self.call(Method::DELETE, "/v1/drain", None, Duration::ZERO).await?;
        document("DELETE /v1/drain".to_owned(), status, raw)
    }

    /// Returns the records of the audit log, oldest first.
    pub(crate) async fn audit(
        &self,
        session: Option<&str>,
        since: Option<&str>,
        limit: u32,
    ) -> Result<Document<AuditList>, Error> {
        let parameter = |name: &str, value: Option<&str>| {
            value.map_or_else(String::new, |value| format!("&{name}={}", escape(value)))
        };
        let (session, since) = (parameter("session", session), parameter("since", since));
        self.get(&format!("/v1/audit?limit={limit}{session}{since}")).await
    }

    pub(crate) async fn secrets(&self) -> Result<Document<SecretList>, Error> {
        self.get("/v1/secrets").await
    }

    /// Fetches every secret; the time limit covers the slowest source.
    pub(crate) async fn check_secrets(&self) -> Result<Document<SecretList>, Error> {
        self.post("/v1/secrets/check", None::<&()>, Some(Duration::from_mins(2))).await
    }

    pub(crate) async fn validation(&self, id: &str) -> Result<Document<ValidationView>, Error> {
        self.get(&format!("/v1/sessions/{id}/validation")).await
    }

    /// Returns the daemon's own checks. The time limit covers agents that print their versions slowly.
    pub(crate) async fn doctor(&self) -> Result<DoctorView, Error> {
        Ok(self.get_slowly("/v1/doctor", BUILDING).await?.value)
    }

    pub(crate) async fn version(&self) -> Result<Document<VersionView>, Error> {
        self.get("/v1/version").await
    }

    /// Opens an event stream and returns its body, as NDJSON.
    pub(crate) async fn events(&self, id: &str, query: &str) -> Result<Incoming, Error> {
        let (path, since) = (format!("/v1/sessions/{id}/events{query}"), Instant::now());
        loop {
            let response = self.send(&Method::GET, &path, None, PATIENCE).await?;
            if response.status().is_success() {
                return Ok(response.into_body());
            }
            let (call, status) = (format!("GET {path}"), response.status().as_u16());
            wait_for_room(refusal(call.clone(), status, collect(call, response).await?), since).await?;
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Document<T>, Error> {
        self.get_slowly(path, Duration::ZERO).await
    }

    /// Sends a GET request with an additional time limit.
    async fn get_slowly<T: DeserializeOwned>(&self, path: &str, wait: Duration) -> Result<Document<T>, Error> {
        let (status, raw) = self.call(Method::GET, path, None, wait).await?;
        document(format!("GET {path}"), status, raw)
    }

    async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: Option<&B>,
        wait: Option<Duration>,
    ) -> Result<Document<T>, Error> {
        let body = body.map(serde_json::to_vec).transpose().map_err(Error::Request)?;
        let (status, raw) = self.call(Method::POST, path, body, wait.unwrap_or_default()).await?;
        document(format!("POST {path}"), status, raw)
    }

    /// Sends a request, and repeats it while the daemon has no capacity. An unsuccessful answer is an error.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        wait: Duration,
    ) -> Result<(u16, Bytes), Error> {
        let since = Instant::now();
        loop {
            match self.call_once(&method, path, body.clone(), wait).await {
                Ok(answer) => return Ok(answer),
                Err(error) => wait_for_room(error, since).await?,
            }
        }
    }

    async fn call_once(
        &self,
        method: &Method,
        path: &str,
        body: Option<Vec<u8>>,
        wait: Duration,
    ) -> Result<(u16, Bytes), Error> {
        let call = format!("{method} {path}");
        let limit = PATIENCE + wait;
        let answer = async {
            let response = self.send(method, path, body, limit).await?;
            let status = response.status();
            Ok::<_, Error>((status, collect(call.clone(), response).await?))
        };
        let (status, raw) = timeout(limit, answer).await.map_err(|_| self.silent(&call, limit))??;
        if status.is_success() { Ok((status.as_u16(), raw)) } else { Err(refusal(call, status.as_u16(), raw)) }
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        body: Option<Vec<u8>>,
        limit: Duration,
    ) -> Result<Response<Incoming>, Error> {
        let call = format!("{method} {path}");
        let broken = |source| Error::Broken { call: call.clone(), source };
        let unreachable = |source| Error::Unreachable { place: self.way.to_string(), source };
        let stream = self.way.connect().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // The task ends with the response's body. Reading the body reports errors of the connection.
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.way.host());
        request = request.header(ACCEPT, "application/json, application/x-ndjson");
        if let Some(authorization) = self.way.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| unreachable(io::Error::other(error)))?;
        timeout(limit, sender.send_request(request)).await.map_err(|_| self.silent(&call, limit))?.map_err(broken)
    }

    fn silent(&self, call: &str, limit: Duration) -> Error {
        Error::Silent { place: self.way.to_string(), call: call.to_owned(), seconds: limit.as_secs() }
    }
}

/// Waits until a request refused for lack of capacity may be repeated. Returns every other error, and this
/// error after the limit.
async fn wait_for_room(error: Error, since: Instant) -> Result<(), Error> {
    match error.code().and_then(Code::retry_after) {
        Some(seconds) if since.elapsed() < CROWDED => {
            sleep(Duration::from_secs(seconds.into())).await;
            Ok(())
        }
        _ => Err(error),
    }
}

/// Reports whether an error of the connection means that no process listens.
pub(crate) fn nobody_listens(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

async fn collect(call: String, response: Response<Incoming>) -> Result<Bytes, Error> {
    Ok(response.into_body().collect().await.map_err(|source| Error::Broken { call, source })?.to_bytes())
}

fn document<T: DeserializeOwned>(call: String, status: u16, raw: Bytes) -> Result<Document<T>, Error> {
    match serde_json::from_slice(&raw) {
        Ok(value) => Ok(Document { value, raw }),
        Err(error) => Err(Error::Answer { call, status, source: Some(error) }),
    }
}

fn refusal(call: String, status: u16, raw: Bytes) -> Error {
    match serde_json::from_slice::<Problem>(&raw) {
        Ok(problem) => Error::Problem { problem: Box::new(problem), raw },
        Err(error) => Error::Answer { call, status, source: Some(error) },
    }
}

fn waiting(wait: Option<Duration>) -> String {
    wait.map(|wait| format!("?wait={}", wait.as_secs())).unwrap_or_default()
}

/// Percent-encodes a path segment or a query value: all but the unreserved characters of RFC 3986.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let digit = |digit: u8| char::from(b"0123456789ABCDEF"[usize::from(digit)]);
            escaped.extend(['%', digit(byte >> 4), digit(byte & 0xf)]);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_document_with_what_this_version_does_not_know() {
        let raw = r#"{"status":409,"code":"name-taken","detail":"taken","holder":"k3m"}"#;
        let error = refusal("POST /v1/sessions".into(), 409, Bytes::from(raw));
        let Error::Problem { problem, raw: kept } = &error else { panic!("{error:?}") };
        assert_eq!((problem.code, kept.as_ref()), (Code::NameTaken, raw.as_bytes()));
    }

    #[test]
    fn what_is_not_plain_is_escaped_so_that_it_stays_one_segment() {
        assert_eq!(escape("a-b.c_d~9"), "a-b.c_d~9");
        assert_eq!(escape("../x?y z\u{e9}"), "..%2Fx%3Fy%20z%C3%A9");
    }
}
