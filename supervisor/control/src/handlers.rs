//! Handlers of calls on sessions. Each reads the request, asks the session, and returns the result.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::{Cause, StopRequested};
use agentd_api::route::{PrerequisiteWait, Wait, Within};
use agentd_api::session::{PermissionAnswer, Phase, PromptAccepted, PromptRequest, SessionView, StopView};
use agentd_api::status::{AgentList, AgentView, Health, HealthView, VersionView};
use agentd_api::{Call, Code, Problem};
use agentd_caller::CallerClass;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::header::{HeaderValue, LOCATION};
use hyper::{Request, Response};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::router::Context;
use super::{Body, access, children, full, json};
use crate::request_body::RequestBody;
use agentd_session::answer::check_schema;
use agentd_session::content;
use agentd_session::{Command, LaunchTerms, Session};

pub(super) type Answer = Result<Response<Body>, Problem>;
/// The query keys `wait_for_prerequisites`, `force` and `degraded`.
pub(super) type TermsKeys = (Option<PrerequisiteWait>, Option<bool>, Option<bool>);

/// Maximum time that a removal waits for the end of the session.
const LONGEST_END: Duration = Duration::from_mins(10);

pub(super) fn health() -> Answer {
    json(&HealthView { status: Health::Ok })
}

pub(super) fn version(context: &Context) -> Answer {
    let directories = &context.generation.daemon.directories;
    json(&VersionView {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        program: std::env::current_exe().ok(),
        runtime_directory: directories.runtime.clone(),
        state_directory: directories.state.clone(),
        tcp: context.tcp.address(),
        read_only_socket: context.read_only.path(),
        draining: context.generation.daemon.drain.is_on(),
        sessions_run_as: context.generation.daemon.launcher.describe().to_owned(),
        compatibility: agentd_session::compatibility(),
    })
}

/// Shows the options that the session's agent offers.
pub(super) async fn options(session: &Session) -> Answer {
    json(&session.options().await?)
}

pub(super) fn agents(context: &Context) -> Answer {
    let default = context.generation.config.default_agent.as_str();
    let agents = context.generation.agents().into_iter();
    let agents = agents.map(|(name, command)| AgentView { default: name == default, name, command }).collect();
    json(&AgentList { agents })
}

pub(super) async fn create(
    context: &Context,
    wait: Option<Wait>,
    keys: TermsKeys,
    request: Request<RequestBody>,
) -> Answer {
    let terms = terms(context, keys)?;
    let key = idempotency_key(&request)?;
    if terms.is_forced() {
        access::owner_only(context, "only the owner forces or degrades a launch")?;
    }
    let (spec, parent) = children::confined(context, read(context, request).await?).await?;
    let sessions = Arc::clone(&context.sessions);
    let session = to_the_end(async move { sessions.create(spec, key, terms, parent).await }).await?;
    settled(context, &session, wait).await;
    let mut response = json(&session.view())?;
    let call = Call::Session { session: session.id().to_string() };
    if let Ok(location) = HeaderValue::from_str(&call.address()) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

pub(super) async fn resume(
    context: &Context,
    session: &Session,
    wait: Option<Wait>,
    fresh: bool,
    keys: TermsKeys,
) -> Answer {
    let terms = terms(context, keys)?;
    context.sessions.resume(session, fresh, terms).await?;
    settled(context, session, wait).await;
    json(&session.view())
}

/// Stops a session. `id` is the id of a session that cannot be read.
pub(super) async fn stop(
    context: &Context,
    id: String,
    session: Result<Session, Problem>,
    wait: Option<Wait>,
) -> Answer {
    let (reason, cause) = ("requested by a client".to_owned(), cause(context));
    let session = match session {
        Err(problem) if problem.code == Code::SessionUnreadable => {
            let sessions = Arc::clone(&context.sessions);
            let stopped =
                to_the_end(async move { sessions.stop_set_aside(&id, StopRequested { reason, cause }).await }).await?;
            return json(&StopView::Unreadable(stopped));
        }
        session => session?,
    };
    session.ask(Command::Stop { reason, cause }).await?;
    if let Some(Within(wait)) = wait {
        ended(&context.closing, &session, wait).await;
    }
    json(&StopView::Session(Box::new(SessionView::clone(&session.view()))))
}

/// Removes a session. `id` is the id of a session that cannot be read.
pub(super) async fn remove(context: &Context, id: String, session: Result<Session, Problem>, force: bool) -> Answer {
    let sessions = Arc::clone(&context.sessions);
    let (closing, cause) = (context.closing.clone(), cause(context));
    to_the_end(async move {
        let session = match session {
            Err(problem) if force && problem.code == Code::SessionUnreadable => {
                return sessions.remove_set_aside(&id, cause).await;
            }
            session => session?,
        };
        if force && session.may_run() {
            // The session may end by itself in this moment; the refusal then has no meaning.
            let _ = session.ask(Command::Stop { reason: "the session is being removed".to_owned(), cause }).await;
            ended(&closing, &session, LONGEST_END).await;
        }
        sessions.remove(&session, None).await
    })
    .await?;
    Ok(Response::new(full("")))
}

pub(super) async fn prompt(context: &Context, session: &Session, request: Request<RequestBody>) -> Answer {
    let key = idempotency_key(&request)?;
    let PromptRequest { prompt, parts, schema } =
        read_up_to(context, request, context.generation.config.limits.prompt).await?;
    let parts = content::store(context.generation.daemon.directories.session(session.id()), parts).await?;
    if let Some(schema) = &schema {
        check_schema(&context.generation.daemon, schema).await?;
    }
    let requester = context.requester();
    let command = || Command::Prompt {
        text: prompt.clone(),
        parts: parts.clone(),
        schema: schema.clone(),
        key: key.clone(),
        requester: Some(requester.clone()),
    };
    let done = match session.ask(command()).await {
        // A prompt continues a session that has completed. A repeated request is answered above.
        Err(problem)
            if problem.code == Code::WrongPhase
                && session.view().status.phase == Phase::Completed
                && context.caller.who == CallerClass::Owner =>
        {
            let terms = LaunchTerms { requester: Some(requester.clone()), ..LaunchTerms::default() };
            context.sessions.resume(session, false, terms).await?;
            session.ask(command()).await?
        }
        asked => asked?,
    };
    let turn = done.turn.ok_or_else(|| {
        Problem::new(Code::Internal, "internal error: the prompt created no turn (please report, with agentd.log)")
    })?;
    json(&PromptAccepted { turn, after_seq: done.after_seq })
}

pub(super) async fn cancel(context: &Context, session: &Session, turn: Option<&str>) -> Answer {
    let turn = turn
        .map(|turn| {
            turn.parse().map_err(|error: agentd_api::id::InvalidId| Problem::new(Code::InvalidId, error.to_string()))
        })
        .transpose()?;
    session.ask(Command::Cancel { turn, cause: cause(context) }).await?;
    json(&session.view())
}

pub(super) async fn permit(
    context: &Context,
    session: &Session,
    permission: &str,
    request: Request<RequestBody>,
) -> Answer {
    let permission = permission
        .parse()
        .map_err(|error: agentd_api::id::InvalidId| Problem::new(Code::InvalidId, error.to_string()))?;
    let answer: PermissionAnswer = read(context, request).await?;
    session.ask(Command::Answer { permission, answer, cause: cause(context) }).await?;
    json(&session.view())
}

/// Passes an editor's answer on to the agent.
pub(super) async fn answer_request(context: &Context, session: &Session, request: Request<RequestBody>) -> Answer {
    session.ask(Command::AnswerRequest(read(context, request).await?)).await?;
    json(&session.view())
}

/// Returns the cause for records: the call and its caller.
fn cause(context: &Context) -> Cause {
    Cause::call(context.requester())
}

/// Runs work of several steps to its end, even when the client disconnects.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(work.in_current_span())
        .await
        .unwrap_or_else(|error| Err(Problem::new(Code::Internal, error.to_string())))
}

/// Waits, if requested, until a launch has succeeded or failed.
async fn settled(context: &Context, session: &Session, wait: Option<Wait>) {
    let Some(Within(wait)) = wait else { return };
    // After a launch fails with a running agent, the phase is `stopping` until the agent is gone, and then
    // `failed`.
    let launched = |view: &SessionView| view.status.launches > 0 && view.status.phase.is_settled();
    bounded(&context.closing, wait, session.wait_until(launched)).await;
}

pub(super) async fn ended(closing: &CancellationToken, session: &Session, wait: Duration) {
    bounded(closing, wait, session.wait_until(|view| view.status.phase.is_over())).await;
}

/// Waits for `until`, at most for `wait`, and at most until the endpoint closes.
pub(super) async fn bounded(closing: &CancellationToken, wait: Duration, until: impl Future<Output = ()>) {
    tokio::select! {
        () = closing.cancelled() => {}
        _ = tokio::time::timeout(wait, until) => {}
    }
}

/// Reads a whole body of at most `limit` bytes. Fails after `time`, and after a pause of a third of `time`. A body
/// whose announced length is too large is refused before it is read.
pub(super) async fn whole<B>(body: B, limit: usize, time: Duration) -> Result<Vec<u8>, Problem>
where
    B: hyper::body::Body<Data = bytes::Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let too_large = || {
        Problem::new(Code::BodyTooLarge, format!("the request's body is larger than {limit} bytes"))
            .hint("send a smaller body, or raise limits.body")
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut body = std::pin::pin!(Limited::new(body, limit));
    let (mut whole, end) = (Vec::new(), Instant::now() + time);
    loop {
        let by = end.min(Instant::now() + time / 3);
        let frame = tokio::time::timeout_at(by, body.frame()).await.map_err(|_| {
            let detail = format!(
                "the request's body did not arrive within {} s, or paused for a third of that time",
                time.as_secs_f64()
            );
            Problem::new(Code::BodyTimeout, detail).hint("send the body without pauses, or raise limits.body_time")
        })?;
        let Some(frame) = frame else { return Ok(whole) };
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                too_large()
            } else {
                Problem::new(Code::MalformedRequest, format!("cannot read the request's body: {error}"))
            }
        })?;
        if let Ok(data) = frame.into_data() {
            whole.extend_from_slice(&data);
        }
    }
}

/// Reads and parses the body of a request.
pub(super) async fn read<T: DeserializeOwned>(context: &Context, request: Request<RequestBody>) -> Result<T, Problem> {
    read_up_to(context, request, context.generation.config.limits.body).await
}

/// Reads a body of at most this length in bytes.
async fn read_up_to<T: DeserializeOwned>(
    context: &Context,
    request: Request<RequestBody>,
    longest: usize,
) -> Result<T, Problem> {
    let time = context.generation.config.limits.body_time.0;
    let body = whole(request.into_body(), longest, time).await?;
    let invalid = |why: &dyn std::fmt::Display| {
        Problem::new(Code::MalformedRequest, format!("the request's body is not valid for this call: {why}"))
            .hint("the body is one JSON document; docs/reference/routes.md names the type of each route's body")
    };
    // serde would read the fields of an object from an array, by their positions.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(invalid(&"it is an array, and a map is expected"));
    }
    serde_json::from_slice(&body).map_err(|error| invalid(&error))
}

/// Returns the key that identifies repeated requests (draft-ietf-httpapi-idempotency-key-header).
pub(super) fn idempotency_key(request: &Request<RequestBody>) -> Result<Option<String>, Problem> {
    const LONGEST: usize = 255;
    let Some(value) = request.headers().get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= LONGEST => Ok(Some(key.to_owned())),
        _ => Err(Problem::new(Code::InvalidRequest, "the Idempotency-Key is empty, too long or not plain ASCII")
            .hint(format!("use a UUID, or another text of at most {LONGEST} characters"))),
    }
}

/// Returns how a launch treats missing prerequisites and parts that cannot be provided. A degraded launch may wait, and
/// `force` adds nothing to `degraded`.
pub(super) fn terms(context: &Context, (wait, force, degraded): TermsKeys) -> Result<LaunchTerms, Problem> {
    let (force, requester) = (force.unwrap_or(false), context.requester());
    let degraded_by = degraded.unwrap_or(false).then(|| requester.clone());
    let Some(Within(wait)) = wait else {
        let forced_by = force.then(|| requester.clone());
        return Ok(LaunchTerms { wait_until: None, forced_by, degraded_by, requester: Some(requester) });
    };
    if force {
        return Err(Problem::new(
            Code::InvalidRequest,
            "the request contains both `force` and `wait_for_prerequisites`",
        )
        .hint("use only one of the two parameters"));
    }
    let until = Timestamp::now().checked_add(wait).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    Ok(LaunchTerms { wait_until: Some(until), forced_by: None, degraded_by, requester: Some(requester) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agentd_api::Code;
    use bytes::Bytes;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio_stream::wrappers::ReceiverStream;

    use super::whole;

    #[tokio::test]
    async fn a_body_that_stops_or_trickles_times_out() {
        let time = Duration::from_millis(300);
        for (pause, pieces) in [(Duration::from_mins(10), 1), (Duration::from_millis(20), usize::MAX)] {
            let (sender, receiver) = tokio::sync::mpsc::channel(1);
            tokio::spawn(async move {
                for _ in 0..pieces {
                    let piece = Frame::data(Bytes::from_static(b"{"));
                    if sender.send(Ok::<_, std::io::Error>(piece)).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                }
                sender.closed().await;
            });
            let refused = whole(StreamBody::new(ReceiverStream::new(receiver)), 1 << 20, time).await.unwrap_err();
            assert_eq!((refused.code, refused.status), (Code::BodyTimeout, 408), "{pause:?}");
        }
        let done = whole(http_body_util::Full::new(Bytes::from_static(b"{}")), 2, time).await;
        assert_eq!(done.unwrap(), b"{}");
        let long = whole(http_body_util::Full::new(Bytes::from_static(b"{}")), 1, time).await;
        assert_eq!(long.unwrap_err().code, Code::BodyTooLarge);
    }
}
