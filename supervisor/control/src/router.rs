//! Dispatches a request to its call, by method and path.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agentd_api::prerequisite::Requester;
use agentd_api::route::{self, Scope, Within};
use agentd_api::{Call, Code, Problem, Route};
use agentd_caller::{Caller, CallerClass};
use hyper::body::Body as _;
use hyper::header::{ALLOW, CONTENT_LENGTH, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, info_span};

use super::audit::Audited;
use super::grant::Grant;
use super::handlers::Answer;
use super::named::Named;
use super::operations::Operations;
use super::room::{ConnectionPermit, NoRoom, StreamPermit};
use super::stream::Window;
use super::tcp::Gate;
use super::{
    Body, access, acp, agents, audit, bulk, description, directories, doctor, drain, environment, feed, handlers,
    hooks, list, metrics, note, places, plugins, prerequisites, problem, prune, readiness, repositories, schedules,
    scripts, secrets, session_context, session_spec, snapshots, stream, validation,
};
use crate::audit_log::Audit;
use crate::read_only::ReadOnlyEndpoint;
use crate::request_body::RequestBody;
use crate::tcp_listener::TcpEndpoint;
use agentd_feed::Feed;
use agentd_host::exhausted;
use agentd_metrics::NO_ROUTE;
use agentd_session::Sessions;
use agentd_session::generation::Generation;
use agentd_session::schedules::Schedules;
use agentd_traces::TARGET;

/// Everything that a handler needs to answer a request.
#[derive(Debug)]
pub(crate) struct Context {
    /// The generation in force when the request arrived.
    pub generation: Arc<Generation>,
    pub sessions: Arc<Sessions>,
    pub schedules: Arc<Schedules>,
    /// The daemon that contains the endpoint.
    pub operations: Arc<dyn Operations>,
    /// The TCP listener and its tokens.
    pub tcp: Arc<TcpEndpoint>,
    pub read_only: Arc<ReadOnlyEndpoint>,
    pub audit: Arc<Audit>,
    /// The events of all sessions and of the daemon.
    pub feed: Arc<Feed>,
    pub acp: Arc<acp::Hub>,
    pub lists: Arc<list::Lists>,
    /// Cancelled when the endpoint closes. Waiting requests are then answered with the present state, and streams
    /// end.
    pub closing: CancellationToken,
    /// Right that the connection or the token gives.
    pub grant: Grant,
    pub caller: Arc<Caller>,
    /// Permit of the connection. `None` while the endpoint closes and while no file descriptor is left.
    pub(super) permit: Option<Arc<ConnectionPermit>>,
}

impl Context {
    /// Counts the connection as a stream while the returned value lives. Refuses when there are too many streams.
    pub(super) fn stream(&self) -> Result<Option<StreamPermit>, Problem> {
        let Some(permit) = &self.permit else { return Ok(None) };
        let counted =
            permit.stream().map_err(NoRoom::problem)?.counted(self.generation.daemon.metrics.streams.hold([]));
        Ok(Some(counted))
    }
}

impl Context {
    /// Returns the caller as a requester, for records.
    pub(super) fn requester(&self) -> Requester {
        let session = match &self.caller.who {
            CallerClass::Guest(session) => Some(session.clone()),
            CallerClass::Owner | CallerClass::Stranger(_) => None,
        };
        let Caller { uid, pid, program, .. } = self.caller.as_ref();
        Requester { uid: *uid, pid: *pid, program: program.clone(), session, token: self.grant.token().cloned() }
    }

    /// Reports whether the owner calls, with a grant of this scope.
    pub(super) fn is_owner(&self, scope: Scope) -> bool {
        self.caller.who == CallerClass::Owner && self.grant.scope >= scope
    }
}

/// Condition on a request, in addition to the access of its caller.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    /// No condition: the kernel identifies the caller.
    Everything,
    /// The request must carry a token.
    Bearer(Arc<Gate>),
    /// The read-only socket: the group of its file decides who connects, and all callers have this grant.
    ReadOnly(Grant),
}

impl Admission {
    /// Returns what the request is permitted by its connection or its token.
    fn check<T>(&self, request: &Request<T>) -> Result<Grant, Problem> {
        match self {
            Self::Everything => Ok(Grant::of_kernel()),
            Self::Bearer(gate) => gate.check(request),
            Self::ReadOnly(grant) => Ok(grant.clone()),
        }
    }

    /// Returns a token that is cancelled when the connection must end.
    pub(crate) fn revoked(&self) -> CancellationToken {
        match self {
            Self::ReadOnly(grant) => grant.revoked.clone(),
            // Each request has a token of its own.
            Self::Everything | Self::Bearer(_) => CancellationToken::new(),
        }
    }

    /// Returns the label of the listener in the metrics.
    pub(crate) fn listener(&self) -> &'static str {
        match self {
            Self::Everything => "socket",
            Self::Bearer(_) => "tcp",
            Self::ReadOnly(_) => "read-only",
        }
    }
}

/// Returns the answer to `HEAD`: the headers of the answer to `GET` (RFC 9110 section 9.3.2).
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    // A stream and an answer without content have no length.
    if let Some(length) = body.size_hint().exact().filter(|_| head.status != StatusCode::NOT_MODIFIED) {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(head, super::full(""))
}

/// Opens the span of a request for a trace (OpenTelemetry's semantic conventions for HTTP servers). Requests that watch
/// the daemon get no span, and neither do those for an unknown path.
fn trace(route: Option<Route>, method: &Method, named: Option<&Named>, headers: &HeaderMap) -> Span {
    let Some(route) = route.filter(|route| !matches!(route, Route::Health | Route::Readiness | Route::Metrics)) else {
        return Span::none();
    };
    let span = info_span!(
        target: TARGET,
        "request",
        otel.name = %route,
        otel.kind = "server",
        http.request.method = %method,
        http.route = %route,
        agentd.session = named.map(Named::text),
        http.response.status_code = Empty,
        otel.status_code = Empty,
    );
    if let Some(parent) = agentd_traces::traceparent(headers) {
        agentd_traces::continue_from(&span, parent);
    }
    span
}

static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// Answers one request. An error becomes a problem document.
pub(crate) async fn answer(
    mut context: Context,
    admission: Admission,
    request: Request<RequestBody>,
) -> Result<Response<Body>, Infallible> {
    let begun = Instant::now();
    let id = format!("{}-{}", std::process::id(), REQUESTS.fetch_add(1, Ordering::Relaxed));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (route, named) = (route::find(method.as_str(), &path), Named::of(&path));
    let mut refusal = None;
    let traced = trace(route, &method, named.as_ref(), request.headers());
    // The log has these fields in each line about the request.
    let span = || tracing::error_span!("request", agentd.request = %id, http.method = %method, http.path = %path);
    let admitted = admission.check(&request).map(|grant| context.grant = grant);
    let answered = match admit(&context, admitted, route, named.as_ref()).await {
        Ok(route) => {
            if let Some(kept) = list::kept(&context, route, request.uri(), request.headers()) {
                Ok(kept)
            } else {
                // A launch continues the innermost span.
                let answering = dispatch(&context, route, named.as_ref(), request).instrument(traced.clone());
                answering.instrument(span()).await
            }
        }
        Err(refused) => Err(refused.unwrap_or_else(|| not_offered(&method, &path))),
    };
    let mut response = match answered {
        Ok(response) => context.grant.limit(response),
        Err(refused) => {
            let mut refused = exhausted::judge(refused);
            refused.request_id = Some(id.clone());
            refused.particulars.trace_id = agentd_traces::trace_id(&traced);
            span().in_scope(|| {
                tracing::debug!(code = %refused.code.as_str(), detail = %refused.detail, "refused the request");
            });
            refusal = Some(refused.code);
            let unauthorized = refused.code == Code::Unauthorized;
            let allow = (refused.code == Code::MethodNotAllowed).then(|| route::allowed(&path)).flatten();
            let mut response = problem(&refused);
            if let Some(allow) = allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
                response.headers_mut().insert(ALLOW, allow);
            }
            if unauthorized {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"agentd\""));
            }
            response
        }
    };
    traced.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        traced.record("otel.status_code", "error");
    }
    drop(traced);
    if method == Method::HEAD {
        response = without_body(response);
    }
    if audit::is_recorded(&method, route, refusal) {
        let audited = Audited { method: &method, path: &path, named: named.as_ref() };
        audited.record(&context, &id, &response, refusal);
    }
    let (metrics, route) = (&context.generation.daemon.metrics, route.map(|route| route.to_string()));
    let route = route.as_deref().unwrap_or(NO_ROUTE);
    metrics.requests.count([route, response.status().as_str()]);
    metrics.request_duration.observe([route], begun.elapsed());
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), id);
    }
    Ok(response)
}

/// Time that a request waits until sessions are taken over from the previous daemon. A keeper that does not answer
/// takes longer; its session is then shown in its stored state.
const TAKEOVER: Duration = Duration::from_secs(5);

/// Waits until the sessions of the call are shown in their present state instead of the stored one.
async fn wait_for_takeover(context: &Context, route: Route, named: Option<&Named>) {
    let current = async {
        if matches!(route, Route::Sessions | Route::CreateSession | Route::Feed) || is_bulk(route) {
            context.sessions.are_current().await;
        } else if let Some(named) = named
            && let Ok(session) = named.session(&context.sessions).await
        {
            session.is_current().await;
        }
    };
    let _ = tokio::time::timeout(TAKEOVER, current).await;
}

/// Reports whether the call selects among all sessions.
fn is_bulk(route: Route) -> bool {
    matches!(route, Route::BulkStop | Route::BulkResume | Route::BulkRemove | Route::BulkAnswer)
}

/// Reports whether the caller wants the call to wait for its result.
fn waits(call: &Call) -> bool {
    let wait = match call {
        Call::CreateSession { wait, .. }
        | Call::Resume { wait, .. }
        | Call::Stop { wait, .. }
        | Call::CheckPlace { wait, .. }
        | Call::Drain { wait }
        | Call::BeginDrain { wait }
        | Call::UndoDrain { wait }
        | Call::AddRepository { wait, .. }
        | Call::RemoveRepository { wait, .. } => *wait,
        _ => None,
    };
    wait.is_some_and(|Within(wait)| !wait.is_zero())
}

/// Decides whether the caller may use the route. Without a route, the error is `None` for a caller that may learn so.
async fn admit(
    context: &Context,
    admitted: Result<(), Problem>,
    route: Option<Route>,
    named: Option<&Named>,
) -> Result<Route, Option<Problem>> {
    admitted?;
    if let Some(permit) = &context.permit {
        permit.prove();
    }
    if let Some(route) = route {
        context.grant.check_route(route)?;
    }
    access::check(context, route, named).await?;
    route.ok_or(None)
}

/// Answers a call of a caller that may use the route.
async fn dispatch(
    context: &Context,
    route: Route,
    named: Option<&Named>,
    request: Request<RequestBody>,
) -> Result<Response<Body>, Problem> {
    let uri = request.uri().clone();
    let call = Call::parse(route, uri.path(), uri.query().unwrap_or_default())?;
    context.grant.check_call(&call)?;
    // A call that waits counts as a stream until it is answered.
    let waits = waits(&call);
    let _stream = if waits { context.stream()? } else { None };
    wait_for_takeover(context, route, named).await;
    // Boxed: else the future of the largest handler would be a part of the future of every request.
    let answering = Box::pin(answer_call(context, call, named, request));
    // A call that waits ends with its token. Others are answered soon, also the reload that removes its own token.
    let mut response = if waits { context.grant.within(answering).await? } else { answering.await? };
    // A call with several answers sets their status itself.
    if response.status() == StatusCode::OK {
        *response.status_mut() = StatusCode::from_u16(route.status()).unwrap_or_default();
    }
    Ok(response)
}

/// Makes the call.
#[expect(clippy::too_many_lines, reason = "each call has its arm")]
async fn answer_call(context: &Context, call: Call, named: Option<&Named>, request: Request<RequestBody>) -> Answer {
    let route = call.route();
    let session = async || match named {
        Some(named) => named.session(&context.sessions).await,
        None => Err(Problem::new(Code::Internal, format!("internal error: {route} names no session"))),
    };
    match call {
        Call::Health {} => handlers::health(),
        Call::Readiness {} => readiness::ready(context),
        Call::Metrics {} => Ok(metrics::page(context, &request)),
        Call::Version {} => handlers::version(context),
        Call::Description {} => Ok(description::show(request.headers())),
        Call::Agents {} => handlers::agents(context),
        Call::AddAgent {} => agents::add(context, request).await,
        Call::Catalogue { agent, versions } => agents::catalogue(context, agent, versions.unwrap_or(false)).await,
        Call::AgentStart { name } => environment::of_agent(context, &name, request).await,
        Call::Audit { session, since, limit } => audit::list(context, session, since, limit).await,
        Call::Doctor {} => doctor::doctor(context).await,
        Call::Plugins {} => plugins::list(context).await,
        Call::Plugin { name } => plugins::show(context, &name).await,
        Call::Prerequisites { session } => prerequisites::list(context, session).await,
        Call::CheckPrerequisite { name } => prerequisites::check(context, &name, request).await,
        Call::Places {} | Call::CheckPlace { .. } => places::answer(context, call).await,
        Call::ForeseeReload {} => plugins::reload(context, true).await,
        Call::Reload { dry_run } => plugins::reload(context, dry_run.unwrap_or(false)).await,
        Call::Drain { .. } | Call::BeginDrain { .. } | Call::UndoDrain { .. } => drain::answer(context, call).await,
        Call::Directories { path } => directories::directories(context, path).await,
        Call::Scripts { directory, diff } => scripts::scripts(context, directory, diff.unwrap_or(false)).await,
        Call::Hooks {} | Call::TestHook { .. } => hooks::answer(context, &call).await,
        Call::Secrets {} | Call::CheckSecrets {} => secrets::answer(context, &call).await,
        Call::Snapshots {} | Call::AddSnapshot {} | Call::RefreshSnapshots {} | Call::InvalidateSnapshots {} => {
            snapshots::answer(context, &call, request).await
        }
        Call::Prune {} => prune::prune(context, request).await,
        Call::RotateKey {} => environment::rotate(context).await,
        Call::Keep {} => environment::keep(context, request).await,
        Call::AllowScripts {} | Call::DenyScripts {} => {
            scripts::decide_scripts(context, route == Route::AllowScripts, request).await
        }
        Call::Schedules {} | Call::Schedule { .. } => schedules::answer(context, &call),
        Call::AddSchedule {} => schedules::add(context, request).await,
        Call::SetSchedule { schedule } => schedules::set(context, schedule, request).await,
        Call::RemoveSchedule { schedule } => schedules::remove(context, schedule).await,
        Call::RunSchedule { schedule, due } => schedules::run(context, schedule, due.unwrap_or(false), request).await,
        Call::Sessions { .. } => list::sessions(context, call, request.uri(), request.headers()).await,
        Call::CreateSession { wait, wait_for_prerequisites, force, degraded } => {
            handlers::create(context, wait, (wait_for_prerequisites, force, degraded), request).await
        }
        Call::Session { .. } => session_spec::show(&session().await?),
        Call::ChangeSpec { .. } => session_spec::change(context, session().await?, request).await,
        Call::Repositories { .. } => repositories::list(context, &session().await?).await,
        Call::AddRepository { now, wait, .. } => {
            repositories::add(context, session().await?, (now.unwrap_or(false), wait), request).await
        }
        Call::RemoveRepository { repository, force, now, wait, .. } => {
            let terms = (force.unwrap_or(false), now.unwrap_or(false), wait);
            repositories::remove(context, session().await?, repository, terms).await
        }
        Call::RemoveSession { session: id, force } => {
            handlers::remove(context, id, session().await, force.unwrap_or(false)).await
        }
        Call::Events { after, last, follow, before, limit, .. } => {
            let window = Window { after, last, follow, before, limit };
            stream::events(context, session().await?, window, &request).await
        }
        Call::Feed { .. } | Call::BulkStop {} | Call::BulkResume {} | Call::BulkRemove {} | Call::BulkAnswer {} => {
            answer_many(context, call, request).await
        }
        Call::Environment { at, values, .. } => {
            environment::show(context, &session().await?, at, values.unwrap_or(false)).await
        }
        Call::EnvironmentDifference { from, to, values, .. } => {
            environment::difference(context, &session().await?, (from, to), values.unwrap_or(false)).await
        }
        Call::Validation { .. } => validation::validation(context, &session().await?).await,
        Call::Options { .. } => handlers::options(&session().await?).await,
        Call::Note { .. } => note::preview(context, &session().await?).await,
        Call::Context { .. } => session_context::show(context, &session().await?).await,
        Call::ChangeContext { .. } => session_context::change(context, &session().await?, request).await,
        Call::SetHint { .. } => session_context::set_hint(context, &session().await?, request).await,
        Call::SetTitle { .. } => session_context::set_title(context, &session().await?, request).await,
        Call::ReportProgress { .. } => session_context::report_progress(context, &session().await?, request).await,
        Call::CheckSessionPrerequisites { .. } => prerequisites::check_all(context, &session().await?).await,
        Call::ScriptProposal { diff, .. } => scripts::proposal(context, &session().await?, diff.unwrap_or(false)).await,
        Call::ProposeScript { .. } => scripts::propose(context, &session().await?, request).await,
        Call::Observe { .. } => session_context::observe(context, &session().await?).await,
        Call::Prompt { .. } => handlers::prompt(context, &session().await?, request).await,
        Call::Cancel { .. } => handlers::cancel(context, &session().await?, None).await,
        Call::CancelTurn { turn, .. } => handlers::cancel(context, &session().await?, Some(&turn)).await,
        Call::Stop { session: id, wait } => handlers::stop(context, id, session().await, wait).await,
        Call::Resume { wait, new_conversation, wait_for_prerequisites, force, degraded, .. } => {
            let terms = (wait_for_prerequisites, force, degraded);
            handlers::resume(context, &session().await?, wait, new_conversation.unwrap_or(false), terms).await
        }
        Call::AcpSend { .. } | Call::AcpStream { .. } | Call::AcpEnd { .. } => {
            acp::answer(context, call, request).await
        }
        Call::AnswerRequest { .. } => handlers::answer_request(context, &session().await?, request).await,
        Call::Permit { permission, .. } => handlers::permit(context, &session().await?, &permission, request).await,
    }
}

/// Makes a call on many sessions.
async fn answer_many(context: &Context, call: Call, request: Request<RequestBody>) -> Answer {
    match call {
        Call::Feed { after, last, follow, before, limit, kind, session, label } => {
            let window = Window { after, last, follow, before, limit };
            feed::events(context, feed::Query { window, kind, session, label }, &request).await
        }
        Call::BulkStop {} => bulk::stop(context, request).await,
        Call::BulkResume {} => bulk::resume(context, request).await,
        Call::BulkRemove {} => bulk::remove(context, request).await,
        Call::BulkAnswer {} => bulk::answer(context, request).await,
        other => Err(Problem::new(Code::Internal, format!("internal error: {other} is no call on many sessions"))),
    }
}

fn not_offered(method: &Method, path: &str) -> Problem {
    match route::allowed(path) {
        None => Problem::new(Code::NoSuchPath, format!("there is no {path:?}"))
            .hint("docs/reference/routes.md lists the paths"),
        Some(allowed) => Problem::new(Code::MethodNotAllowed, format!("{method} {path} is not offered"))
            .hint(format!("use one of these methods: {allowed}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_with_the_key_wait_waits() {
        for route in Route::ALL {
            let takes_wait = route.keys().iter().any(|key| key.name == "wait");
            let call = |query| Call::parse(*route, route.path(), query).unwrap();
            assert!(!waits(&call("")), "{route}");
            if takes_wait {
                assert!(waits(&call("wait=1s")) && !waits(&call("wait=0")), "{route}");
            }
        }
    }
}
