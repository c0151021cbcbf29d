//! Handlers of calls on sessions. Each reads the request, asks the session, and returns the result.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::{Cause, StopRequested};
use agentd_api::quantity::Time;
use agentd_api::session::{PermissionAnswer, PromptAccepted, PromptRequest, SessionList, SessionView};
use agentd_api::{Code, Problem};
use agentd_keeper::caller::CallerClass;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{HeaderValue, LOCATION};
use hyper::{Request, Response, StatusCode};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::router::Context;
use super::{Body, access, children, full, json};
use agentd_session::{Command, LaunchTerms, Session};

pub(super) type Answer = Result<Response<Body>, Problem>;

/// Maximum of `?wait=`.
const LONGEST_WAIT: Duration = Duration::from_mins(10);

pub(super) fn health() -> Response<Body> {
    json(StatusCode::OK, &json!({ "status": "ok" }))
}

pub(super) fn version(context: &Context) -> Response<Body> {
    let directories = &context.generation.daemon.directories;
    let document = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "program": std::env::current_exe().ok(),
        "runtime_directory": directories.runtime,
        "state_directory": directories.state,
        "tcp": context.tcp.address(),
        "draining": context.generation.daemon.drain.is_on(),
        "sessions_run_as": context.generation.daemon.launcher.describe(),
        "compatibility": agentd_session::compatibility(),
    });
    json(StatusCode::OK, &document)
}

pub(super) fn agents(context: &Context) -> Response<Body> {
    let default = context.generation.config.default_agent.as_str();
    let agents: Vec<_> = context
        .generation
        .agents()
        .into_iter()
        .map(|(name, command)| json!({ "default": name == default, "name": name, "command": command }))
        .collect();
    json(StatusCode::OK, &json!({ "agents": agents }))
}

pub(super) async fn list(context: &Context) -> Response<Body> {
    let mut list = SessionList { sessions: context.sessions.list().await, unreadable: context.sessions.unreadable() };
    if context.caller.who != CallerClass::Owner {
        list.sessions.retain(|view| access::sees(&context.caller, view));
        list.unreadable.clear();
    }
    json(StatusCode::OK, &list)
}

pub(super) async fn show(context: &Context, id: &str) -> Answer {
    Ok(json(StatusCode::OK, &context.sessions.find(id).await?.view()))
}

pub(super) async fn create(context: &Context, request: Request<Incoming>) -> Answer {
    let wait = wait(&request)?;
    let (key, terms) = (idempotency_key(&request)?, terms(context, &request)?);
    if terms.forced_by.is_some() {
        access::owner_only(context, "a launch is forced by the owner alone")?;
    }
    let (spec, parent) = children::confined(context, read(context, request).await?).await?;
    let sessions = Arc::clone(&context.sessions);
    let session = to_the_end(async move { sessions.create(spec, key, terms, parent).await }).await?;
    settled(context, &session, wait).await;
    let mut response = json(StatusCode::ACCEPTED, &session.view());
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/sessions/{}", session.id())) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

pub(super) async fn resume(context: &Context, id: &str, request: &Request<Incoming>) -> Answer {
    let wait = wait(request)?;
    let fresh = flag(request, "new_conversation")?;
    let terms = terms(context, request)?;
    let session = context.sessions.find(id).await?;
    context.sessions.resume(&session, fresh, terms).await?;
    settled(context, &session, wait).await;
    Ok(json(StatusCode::ACCEPTED, &session.view()))
}

pub(super) async fn stop(context: &Context, id: &str, request: &Request<Incoming>) -> Answer {
    let wait = wait(request)?;
    let (reason, cause) = ("requested by a client".to_owned(), cause(context));
    let session = match context.sessions.find(id).await {
        Err(problem) if problem.code == Code::SessionUnreadable => {
            let (sessions, id) = (Arc::clone(&context.sessions), id.to_owned());
            let stopped =
                to_the_end(async move { sessions.stop_set_aside(&id, StopRequested { reason, cause }).await }).await?;
            return Ok(json(StatusCode::ACCEPTED, &stopped));
        }
        session => session?,
    };
    session.ask(Command::Stop { reason, cause }).await?;
    if let Some(wait) = wait {
        ended(&context.closing, &session, wait).await;
    }
    Ok(json(StatusCode::ACCEPTED, &session.view()))
}

pub(super) async fn remove(context: &Context, id: &str, request: &Request<Incoming>) -> Answer {
    let force = flag(request, "force")?;
    let sessions = Arc::clone(&context.sessions);
    let session = context.sessions.find(id).await;
    let (closing, id, cause) = (context.closing.clone(), id.to_owned(), cause(context));
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
            ended(&closing, &session, LONGEST_WAIT).await;
        }
        sessions.remove(&session).await
    })
    .await?;
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

pub(super) async fn prompt(context: &Context, id: &str, request: Request<Incoming>) -> Answer {
    let session = context.sessions.find(id).await?;
    let key = idempotency_key(&request)?;
    let PromptRequest { prompt } = read(context, request).await?;
    let done = session.ask(Command::Prompt { text: prompt, key, requester: Some(context.requester()) }).await?;
    let turn = done.turn.ok_or_else(|| {
        Problem::new(Code::Internal, "internal error: the prompt created no turn (please report, with agentd.log)")
    })?;
    Ok(json(StatusCode::ACCEPTED, &PromptAccepted { turn, after_seq: done.after_seq }))
}

pub(super) async fn cancel(context: &Context, id: &str, turn: Option<&str>) -> Answer {
    let session = context.sessions.find(id).await?;
    let turn = turn
        .map(|turn| {
            turn.parse().map_err(|error: agentd_api::id::InvalidId| Problem::new(Code::InvalidId, error.to_string()))
        })
        .transpose()?;
    session.ask(Command::Cancel { turn, cause: cause(context) }).await?;
    Ok(json(StatusCode::ACCEPTED, &session.view()))
}

pub(super) async fn permit(context: &Context, id: &str, permission: &str, request: Request<Incoming>) -> Answer {
    let session = context.sessions.find(id).await?;
    let permission = permission
        .parse()
        .map_err(|error: agentd_api::id::InvalidId| Problem::new(Code::InvalidId, error.to_string()))?;
    let answer: PermissionAnswer = read(context, request).await?;
    session.ask(Command::Answer { permission, answer, cause: cause(context) }).await?;
    Ok(json(StatusCode::OK, &session.view()))
}

/// Returns the cause for records: the call and its caller.
fn cause(context: &Context) -> Cause {
    Cause::call(context.requester())
}

/// Runs work of several steps to its end, even when the client disconnects.
pub(super) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    tokio::spawn(work).await.unwrap_or_else(|error| Err(Problem::new(Code::Internal, error.to_string())))
}

/// Waits, if requested, until a launch has succeeded or failed.
async fn settled(context: &Context, session: &Session, wait: Option<Duration>) {
    let Some(wait) = wait else { return };
    // After a launch fails with a running agent, the phase is `stopping` until the agent is gone, and then
    // `failed`.
    let launched = |view: &SessionView| view.status.launches > 0 && view.status.phase.is_settled();
    bounded(&context.closing, wait, session.wait_until(launched)).await;
}

async fn ended(closing: &CancellationToken, session: &Session, wait: Duration) {
    bounded(closing, wait, session.wait_until(|view| view.status.phase.is_over())).await;
}

/// Waits for `until`, at most for `wait`, and at most until the endpoint closes.
pub(super) async fn bounded(closing: &CancellationToken, wait: Duration, until: impl Future<Output = ()>) {
    tokio::select! {
        () = closing.cancelled() => {}
        _ = tokio::time::timeout(wait, until) => {}
    }
}

/// Reads a whole body of at most `limit` bytes. Fails after `time`, and after a pause of a third of `time`.
async fn whole<B>(body: B, limit: usize, time: Duration) -> Result<Vec<u8>, Problem>
where
    B: hyper::body::Body<Data = bytes::Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
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
                Problem::new(Code::BodyTooLarge, format!("the request's body is larger than {limit} bytes"))
                    .hint("send a smaller body, or raise limits.body")
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
pub(super) async fn read<T: DeserializeOwned>(context: &Context, request: Request<Incoming>) -> Result<T, Problem> {
    let limits = &context.generation.config.limits;
    let body = whole(request.into_body(), limits.body, limits.body_time.0).await?;
    serde_json::from_slice(&body).map_err(|error| {
        Problem::new(Code::MalformedRequest, format!("the request's body is not valid for this call: {error}"))
            .hint("the body is one JSON document; docs/operations/control.md describes each call")
    })
}

/// Returns a parameter of the query, percent-decoded (RFC 3986 section 2.1), with `+` decoded as a space as in forms.
pub(super) fn query(request: &Request<Incoming>, name: &str) -> Option<String> {
    parameter(request.uri().query()?, name)
}

fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then_some(value)
    })?;
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Parses a flag: `?name`, `?name=true` or `?name=false`.
pub(super) fn flag(request: &Request<Incoming>, name: &str) -> Result<bool, Problem> {
    match query(request, name).as_deref() {
        None | Some("false") => Ok(false),
        Some("" | "true") => Ok(true),
        Some(other) => Err(Problem::new(Code::InvalidRequest, format!("{name}={other} is neither true nor false"))),
    }
}

/// Returns the key that identifies repeated requests (draft-ietf-httpapi-idempotency-key-header).
fn idempotency_key(request: &Request<Incoming>) -> Result<Option<String>, Problem> {
    const LONGEST: usize = 255;
    let Some(value) = request.headers().get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= LONGEST => Ok(Some(key.to_owned())),
        _ => Err(Problem::new(Code::InvalidRequest, "the Idempotency-Key is empty, too long or not plain ASCII")
            .hint(format!("use a UUID, or another text of at most {LONGEST} characters"))),
    }
}

/// Parses `?wait=TIME`: a number of seconds, or a time with units.
pub(super) fn wait(request: &Request<Incoming>) -> Result<Option<Duration>, Problem> {
    let Some(text) = query(request, "wait") else { return Ok(None) };
    match text.parse::<Time>() {
        Ok(Time(wait)) if wait <= LONGEST_WAIT => Ok(Some(wait)),
        _ => Err(not_a_wait("wait", &text, LONGEST_WAIT)),
    }
}

fn not_a_wait(parameter: &str, text: &str, longest: Duration) -> Problem {
    let detail = format!("{parameter}={text} is not a time from 0 to {} seconds", longest.as_secs());
    Problem::new(Code::InvalidRequest, detail).hint("write a number of seconds, or a time with units, as 30s or 1m30s")
}

/// Maximum time that a launch waits for its prerequisites.
const LONGEST_WAIT_FOR_NEEDS: Duration = Duration::from_hours(24 * 7);

/// Parses `?wait_for_prerequisites=TIME` or `?force`: how the launch treats missing prerequisites.
fn terms(context: &Context, request: &Request<Incoming>) -> Result<LaunchTerms, Problem> {
    let (force, requester) = (flag(request, "force")?, context.requester());
    let Some(text) = query(request, "wait_for_prerequisites") else {
        let forced_by = force.then(|| requester.clone());
        return Ok(LaunchTerms { wait_until: None, forced_by, requester: Some(requester) });
    };
    if force {
        return Err(Problem::new(
            Code::InvalidRequest,
            "the request contains both `force` and `wait_for_prerequisites`",
        )
        .hint("use only one of the two parameters"));
    }
    let wait = text.parse().ok().map(|Time(wait)| wait).filter(|wait| *wait <= LONGEST_WAIT_FOR_NEEDS);
    let until = wait.and_then(|wait| Timestamp::now().checked_add(wait).ok());
    let until = until.ok_or_else(|| not_a_wait("wait_for_prerequisites", &text, LONGEST_WAIT_FOR_NEEDS))?;
    Ok(LaunchTerms { wait_until: Some(until), forced_by: None, requester: Some(requester) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agentd_api::Code;
    use bytes::Bytes;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio_stream::wrappers::ReceiverStream;

    use super::{parameter, whole};

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

    #[test]
    fn a_parameter_is_found_by_its_whole_name_and_decoded() {
        assert_eq!(parameter("directory=%2Fa%20b+c&x=1", "directory").as_deref(), Some("/a b c"));
        assert_eq!(parameter("xx=1&x=2", "x").as_deref(), Some("2"));
        assert_eq!(parameter("force", "force").as_deref(), Some(""));
        for broken in ["x=%", "x=%4", "x=%zz", "x=%ff", "y=1"] {
            assert_eq!(parameter(broken, "x"), None, "{broken}");
        }
    }
}
