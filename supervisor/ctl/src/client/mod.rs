//! Calls of the daemon's HTTP interface. Each call has its own connection: connections are local and cheap.
//!
//! A failed call is not repeated: prompting twice is worse than an error. Only two cases are safe to repeat:
//! the event stream (`stream.rs`), and a request refused for lack of capacity, which had no effect.

mod agents;
pub(crate) mod list;
mod repositories;
mod schedules;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::audit::AuditList;
use agentd_api::context::{ContextChange, ContextView, HintRequest, TitleRequest};
use agentd_api::doctor::DoctorView;
use agentd_api::drain::DrainView;
use agentd_api::environment::{DifferenceView, EnvironmentView, Moment, RotationView};
use agentd_api::keep::{KeepRequest, KeepView};
use agentd_api::note::NoteView;
use agentd_api::plugin::{PluginList, PluginView, ReloadView};
use agentd_api::prerequisite::{CheckReport, CheckRequest, PrerequisiteList};
use agentd_api::prune::{PruneRequest, PruneView};
use agentd_api::route::{PrerequisiteWait, Wait, Within};
use agentd_api::scripts::{ScriptDecision, ScriptList};
use agentd_api::secret::SecretList;
use agentd_api::session::{PermissionAnswer, PromptAccepted, PromptRequest, SessionSpec, SessionView};
use agentd_api::snapshot::{SnapshotList, TerminalSnapshot, TerminalSnapshotView};
use agentd_api::spec::{SpecChangeView, SpecPatch};
use agentd_api::status::VersionView;
use agentd_api::validation::ValidationView;
use agentd_api::{Call, Code, PermissionId, Problem, SessionId, TurnId};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, IF_MATCH, IF_NONE_MATCH};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::args::Range;
use crate::error::Error;
use crate::machine::Machine;
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
    /// The generation of a session's specification for which calls are made: the header `If-Match`.
    generation: Option<u64>,
    /// The header `Idempotency-Key`.
    key: Option<String>,
    /// The tag of a known answer: the header `If-None-Match`.
    tag: Option<String>,
    /// Time limit of an answer, in addition to the wait that the request asks for.
    patience: Duration,
}

/// Answer of the daemon: the parsed value, and the document unchanged for `--json`.
#[derive(Debug)]
pub(crate) struct Document<T> {
    pub(crate) value: T,
    pub(crate) raw: Bytes,
}

/// Behaviour of a launch if a prerequisite is missing or a part of the session cannot be provided.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// Time limit of the wait for missing prerequisites.
    pub(crate) wait: Option<Duration>,
    pub(crate) force: bool,
    /// Whether the launch leaves out failed parts.
    pub(crate) degraded: bool,
}

/// Start of a stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamStart {
    /// After this sequence number; `0` starts at the first record.
    After(u64),
    /// This number of records before the end.
    Last(u64),
}

impl Terms {
    fn wait_for_prerequisites(self) -> Option<PrerequisiteWait> {
        self.wait.map(Within)
    }

    fn force(self) -> Option<bool> {
        self.force.then_some(true)
    }

    /// The key is left out otherwise, so that a daemon of an older release takes the call.
    fn degraded(self) -> Option<bool> {
        self.degraded.then_some(true)
    }
}

impl Client {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self::by(Way::Socket(socket))
    }

    pub(crate) fn by(way: Way) -> Self {
        Self { way, generation: None, key: None, tag: None, patience: PATIENCE }
    }

    /// Sets the time limit of an answer.
    pub(crate) fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Returns the machine of the daemon.
    pub(crate) fn machine(&self) -> Machine {
        self.way.machine()
    }

    /// Succeeds if a daemon answers.
    pub(crate) async fn health(&self) -> Result<(), Error> {
        self.call(&Call::Health {}, None, Duration::ZERO).await.map(drop)
    }

    pub(crate) async fn create(&self, spec: &SessionSpec, terms: Terms) -> Result<Document<SessionView>, Error> {
        let call = Call::CreateSession {
            wait: waiting(Some(Duration::ZERO)),
            wait_for_prerequisites: terms.wait_for_prerequisites(),
            force: terms.force(),
            degraded: terms.degraded(),
        };
        self.submit(&call, spec, Duration::ZERO).await
    }

    pub(crate) async fn session(&self, id: &str) -> Result<Document<SessionView>, Error> {
        self.fetch(&Call::Session { session: id.to_owned() }, Duration::ZERO).await
    }

    pub(crate) async fn delete(&self, id: &str, force: bool) -> Result<(), Error> {
        let call = Call::RemoveSession { session: id.to_owned(), force: force.then_some(true) };
        // With force it stops the session first, which takes its time.
        self.call(&call, None, PATIENCE).await.map(drop)
    }

    pub(crate) async fn prompt(&self, id: &str, request: &PromptRequest) -> Result<Document<PromptAccepted>, Error> {
        self.submit(&Call::Prompt { session: id.to_owned() }, request, Duration::ZERO).await
    }

    /// Sends a prompt that may be repeated: the daemon takes a key only once.
    pub(crate) async fn prompt_once(
        &self,
        id: &str,
        request: &PromptRequest,
        key: &str,
    ) -> Result<Document<PromptAccepted>, Error> {
        let client = Self { key: Some(key.to_owned()), ..self.clone() };
        client.prompt(id, request).await
    }

    pub(crate) async fn context(&self, id: &str) -> Result<Document<ContextView>, Error> {
        self.fetch(&Call::Context { session: id.to_owned() }, Duration::ZERO).await
    }

    pub(crate) async fn change_context(
        &self,
        id: &str,
        change: &ContextChange,
    ) -> Result<Document<ContextView>, Error> {
        self.submit(&Call::ChangeContext { session: id.to_owned() }, change, Duration::ZERO).await
    }

    pub(crate) async fn set_hint(&self, id: &str, hint: Option<String>) -> Result<Document<SessionView>, Error> {
        self.submit(&Call::SetHint { session: id.to_owned() }, &HintRequest { hint }, Duration::ZERO).await
    }

    pub(crate) async fn set_title(&self, id: &str, title: Option<String>) -> Result<Document<SessionView>, Error> {
        self.submit(&Call::SetTitle { session: id.to_owned() }, &TitleRequest { title }, Duration::ZERO).await
    }

    /// Changes the specification. With a generation, only if the specification still has that generation.
    pub(crate) async fn change_spec(
        &self,
        id: &str,
        patch: &SpecPatch,
        generation: Option<u64>,
    ) -> Result<Document<SpecChangeView>, Error> {
        let client = Self { generation, ..self.clone() };
        client.submit(&Call::ChangeSpec { session: id.to_owned() }, patch, Duration::ZERO).await
    }

    /// Records that a person looks at the session. A daemon without this call, and a caller inside a session, are no
    /// reason to show nothing.
    pub(crate) async fn observed(&self, id: &str) {
        let call = Call::Observe { session: id.to_owned() };
        let _ = self.call(&call, None, Duration::ZERO).await;
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<Document<SessionView>, Error> {
        self.fetch(&Call::Cancel { session: id.to_owned() }, Duration::ZERO).await
    }

    /// Drops a queued turn, or cancels the running turn.
    pub(crate) async fn cancel_turn(&self, id: &str, turn: &TurnId) -> Result<(), Error> {
        let call = Call::CancelTurn { session: id.to_owned(), turn: turn.to_string() };
        self.call(&call, None, Duration::ZERO).await.map(drop)
    }

    pub(crate) async fn stop(&self, id: &str, wait: Option<Duration>) -> Result<Document<SessionView>, Error> {
        let call = Call::Stop { session: id.to_owned(), wait: waiting(wait) };
        self.fetch(&call, wait.unwrap_or_default()).await
    }

    /// Ends the agent of a session whose stored state is unreadable. Such a session has no view.
    pub(crate) async fn stop_set_aside(&self, id: &str) -> Result<(), Error> {
        self.call(&Call::Stop { session: id.to_owned(), wait: None }, None, PATIENCE).await.map(drop)
    }

    /// Resumes a session. `fresh` begins a new conversation instead of continuing the old one.
    pub(crate) async fn resume(
        &self,
        id: &str,
        wait: Option<Duration>,
        fresh: bool,
        terms: Terms,
    ) -> Result<Document<SessionView>, Error> {
        let wait = wait.unwrap_or_default();
        let call = Call::Resume {
            session: id.to_owned(),
            wait: waiting(Some(wait)),
            new_conversation: Some(fresh),
            wait_for_prerequisites: terms.wait_for_prerequisites(),
            force: terms.force(),
            degraded: terms.degraded(),
        };
        self.fetch(&call, wait).await
    }

    pub(crate) async fn answer(
        &self,
        id: &str,
        permission: &PermissionId,
        answer: &PermissionAnswer,
    ) -> Result<Document<SessionView>, Error> {
        let call = Call::Permit { session: id.to_owned(), permission: permission.to_string() };
        self.submit(&call, answer, Duration::ZERO).await
    }

    pub(crate) async fn environment(
        &self,
        id: &str,
        at: Moment,
        values: bool,
    ) -> Result<Document<EnvironmentView>, Error> {
        let call = Call::Environment { session: id.to_owned(), at: Some(at), values: Some(values) };
        self.fetch(&call, BUILDING).await
    }

    pub(crate) async fn environment_difference(
        &self,
        id: &str,
        range: Range,
        values: bool,
    ) -> Result<Document<DifferenceView>, Error> {
        let (from, to, values) = (Some(range.from), Some(range.to), Some(values));
        let call = Call::EnvironmentDifference { session: id.to_owned(), from, to, values };
        self.fetch(&call, BUILDING).await
    }

    /// Removes sessions, or lists them in a dry run. The time limit covers many large sessions.
    pub(crate) async fn prune(&self, request: &PruneRequest) -> Result<Document<PruneView>, Error> {
        self.submit(&Call::Prune {}, request, BUILDING).await
    }

    pub(crate) async fn rotate_key(&self) -> Result<Document<RotationView>, Error> {
        self.fetch(&Call::RotateKey {}, BUILDING).await
    }

    /// Adds names to the variables that the whitelist keeps.
    pub(crate) async fn keep(&self, wish: &KeepRequest) -> Result<Document<KeepView>, Error> {
        self.submit(&Call::Keep {}, wish, BUILDING).await
    }

    pub(crate) async fn snapshots(&self) -> Result<Document<SnapshotList>, Error> {
        self.fetch(&Call::Snapshots {}, Duration::ZERO).await
    }

    /// Sends a terminal's environment, with which sessions can begin.
    pub(crate) async fn add_snapshot(&self, snapshot: &TerminalSnapshot) -> Result<TerminalSnapshotView, Error> {
        Ok(self.submit(&Call::AddSnapshot {}, snapshot, Duration::ZERO).await?.value)
    }

    pub(crate) async fn refresh_snapshots(&self, wait: Duration) -> Result<Document<SnapshotList>, Error> {
        self.fetch(&Call::RefreshSnapshots {}, wait).await
    }

    pub(crate) async fn invalidate_snapshots(&self) -> Result<Document<SnapshotList>, Error> {
        self.fetch(&Call::InvalidateSnapshots {}, Duration::ZERO).await
    }

    /// Lists the scripts that a session in `directory` sources. `diff` adds their contents or changes.
    pub(crate) async fn scripts(&self, directory: &Path, diff: bool) -> Result<Document<ScriptList>, Error> {
        let directory = directory.to_string_lossy().into_owned();
        let call = Call::Scripts { directory: Some(directory), diff: Some(diff) };
        self.fetch(&call, Duration::ZERO).await
    }

    pub(crate) async fn decide_scripts(
        &self,
        allow: bool,
        decision: &ScriptDecision,
    ) -> Result<Document<ScriptList>, Error> {
        let call = if allow { Call::AllowScripts {} } else { Call::DenyScripts {} };
        self.submit(&call, decision, Duration::ZERO).await
    }

    pub(crate) async fn plugins(&self) -> Result<Document<PluginList>, Error> {
        self.fetch(&Call::Plugins {}, Duration::ZERO).await
    }

    pub(crate) async fn plugin(&self, name: &str) -> Result<Document<PluginView>, Error> {
        self.fetch(&Call::Plugin { name: name.to_owned() }, Duration::ZERO).await
    }

    /// Returns the state of all prerequisites, or of those of one session.
    pub(crate) async fn prerequisites(&self, session: Option<&SessionId>) -> Result<PrerequisiteList, Error> {
        let call = Call::Prerequisites { session: session.map(ToString::to_string) };
        Ok(self.fetch(&call, Duration::ZERO).await?.value)
    }

    /// Runs a check; the time limit covers the longest check.
    pub(crate) async fn check(&self, name: &str, session: Option<SessionId>) -> Result<CheckReport, Error> {
        let call = Call::CheckPrerequisite { name: name.to_owned() };
        Ok(self.submit(&call, &CheckRequest { session }, Duration::from_mins(2)).await?.value)
    }

    /// Reloads the configuration; the time limit covers the compilation of changed plugins.
    pub(crate) async fn reload(&self) -> Result<Document<ReloadView>, Error> {
        self.fetch(&Call::Reload { dry_run: None }, COMPILING).await
    }

    /// Returns the changes that a reload would make. A daemon without this feature refuses the request and
    /// changes nothing.
    pub(crate) async fn foresee_reload(&self) -> Result<Document<ReloadView>, Error> {
        self.fetch(&Call::ForeseeReload {}, COMPILING).await
    }

    /// Begins a drain: every session is stopped and none launched. Does not wait.
    pub(crate) async fn drain(&self) -> Result<Document<DrainView>, Error> {
        self.fetch(&Call::BeginDrain { wait: None }, Duration::ZERO).await
    }

    /// Returns the progress of the drain when every session is stopped, or after `wait`.
    pub(crate) async fn drain_progress(&self, wait: Duration) -> Result<Document<DrainView>, Error> {
        self.fetch(&Call::Drain { wait: waiting(Some(wait)) }, wait).await
    }

    pub(crate) async fn undo_drain(&self) -> Result<Document<DrainView>, Error> {
        self.fetch(&Call::UndoDrain { wait: None }, Duration::ZERO).await
    }

    /// Returns the records of the audit log, oldest first.
    pub(crate) async fn audit(
        &self,
        session: Option<&str>,
        since: Option<&str>,
        limit: u32,
    ) -> Result<Document<AuditList>, Error> {
        let call = Call::Audit {
            session: session.map(str::to_owned),
            since: since.map(str::to_owned),
            limit: Some(limit.into()),
        };
        self.fetch(&call, Duration::ZERO).await
    }

    pub(crate) async fn secrets(&self) -> Result<Document<SecretList>, Error> {
        self.fetch(&Call::Secrets {}, Duration::ZERO).await
    }

    /// Fetches every secret; the time limit covers the slowest source.
    pub(crate) async fn check_secrets(&self) -> Result<Document<SecretList>, Error> {
        self.fetch(&Call::CheckSecrets {}, Duration::from_mins(2)).await
    }

    pub(crate) async fn validation(&self, id: &str) -> Result<Document<ValidationView>, Error> {
        self.fetch(&Call::Validation { session: id.to_owned() }, Duration::ZERO).await
    }

    /// Returns the note of the next prompt. The time limit covers the build of an environment.
    pub(crate) async fn note(&self, id: &str) -> Result<Document<NoteView>, Error> {
        self.fetch(&Call::Note { session: id.to_owned() }, BUILDING).await
    }

    /// Returns the daemon's own checks. The time limit covers agents that print their versions slowly.
    pub(crate) async fn doctor(&self) -> Result<DoctorView, Error> {
        Ok(self.fetch(&Call::Doctor {}, BUILDING).await?.value)
    }

    pub(crate) async fn version(&self) -> Result<Document<VersionView>, Error> {
        self.fetch(&Call::Version {}, Duration::ZERO).await
    }

    /// Opens an event stream and returns its body, as NDJSON.
    pub(crate) async fn events(&self, id: &str, from: StreamStart, follow: bool) -> Result<Incoming, Error> {
        let (after, last) = match from {
            StreamStart::After(seq) => (Some(seq), None),
            StreamStart::Last(count) => (None, Some(count)),
        };
        let follow = Some(follow);
        self.stream(&Call::Events { session: id.to_owned(), after, last, follow, before: None, limit: None }).await
    }

    /// Opens a stream and returns its body, as NDJSON.
    pub(crate) async fn stream(&self, call: &Call) -> Result<Incoming, Error> {
        let since = Instant::now();
        loop {
            let opened = timeout(self.patience, self.send(call, None, self.patience)).await;
            let response = opened.map_err(|_| self.silent(call, self.patience))??;
            if response.status().is_success() {
                return Ok(response.into_body());
            }
            let (call, status) = (call.to_string(), response.status().as_u16());
            wait_for_room(refusal(call.clone(), status, collect(call, response).await?), since).await?;
        }
    }

    /// Makes a call without a body. `wait` extends the time limit.
    pub(crate) async fn fetch<T: DeserializeOwned>(&self, call: &Call, wait: Duration) -> Result<Document<T>, Error> {
        let (status, raw) = self.call(call, None, wait).await?;
        document(call.to_string(), status, raw)
    }

    /// Makes a call with a body. `wait` extends the time limit.
    pub(crate) async fn submit<B: Serialize, T: DeserializeOwned>(
        &self,
        call: &Call,
        body: &B,
        wait: Duration,
    ) -> Result<Document<T>, Error> {
        let body = serde_json::to_vec(body).map_err(Error::Request)?;
        let (status, raw) = self.call(call, Some(body), wait).await?;
        document(call.to_string(), status, raw)
    }

    /// Sends a request, and repeats it while the daemon has no capacity. An unsuccessful answer is an error.
    async fn call(&self, call: &Call, body: Option<Vec<u8>>, wait: Duration) -> Result<(u16, Bytes), Error> {
        let since = Instant::now();
        loop {
            match self.call_once(call, body.clone(), wait).await {
                Ok(answer) => return Ok(answer),
                Err(error) => wait_for_room(error, since).await?,
            }
        }
    }

    async fn call_once(&self, call: &Call, body: Option<Vec<u8>>, wait: Duration) -> Result<(u16, Bytes), Error> {
        let limit = self.patience + wait;
        let answer = async {
            let response = self.send(call, body, limit).await?;
            let status = response.status();
            Ok::<_, Error>((status, collect(call.to_string(), response).await?))
        };
        let (status, raw) = timeout(limit, answer).await.map_err(|_| self.silent(call, limit))??;
        let code = status.as_u16();
        if status.is_success() { Ok((code, raw)) } else { Err(refusal(call.to_string(), code, raw)) }
    }

    async fn send(&self, call: &Call, body: Option<Vec<u8>>, limit: Duration) -> Result<Response<Incoming>, Error> {
        let broken = |source| Error::Broken { call: call.to_string(), source };
        let unreachable = |source| Error::Unreachable { place: self.way.to_string(), source };
        let stream = self.way.connect().await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // The task ends with the response's body. Reading the body reports errors of the connection.
        tokio::spawn(connection);
        let mut request = Request::builder().method(call.route().method().as_str()).uri(call.address());
        request = request.header(HOST, self.way.host());
        request = request.header(ACCEPT, "application/json, application/x-ndjson");
        if let Some(authorization) = self.way.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(generation) = self.generation {
            request = request.header(IF_MATCH, format!("\"{generation}\""));
        }
        if let Some(key) = &self.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(tag) = &self.tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|error| unreachable(io::Error::other(error)))?;
        timeout(limit, sender.send_request(request)).await.map_err(|_| self.silent(call, limit))?.map_err(broken)
    }

    fn silent(&self, call: &Call, limit: Duration) -> Error {
        Error::Silent { place: self.way.to_string(), call: call.to_string(), seconds: limit.as_secs() }
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

/// Returns the wait of a request, in whole seconds.
fn waiting(wait: Option<Duration>) -> Option<Wait> {
    wait.map(|wait| Within(Duration::from_secs(wait.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_document_with_what_this_version_does_not_know() {
        let raw = r#"{"status":409,"code":"name-taken","detail":"taken","holder":"k3m"}"#;
        let error = refusal(Call::Health {}.to_string(), 409, Bytes::from(raw));
        let Error::Problem { problem, raw: kept } = &error else { panic!("{error:?}") };
        assert_eq!((problem.code, kept.as_ref()), (Code::NameTaken, raw.as_bytes()));
    }
}
