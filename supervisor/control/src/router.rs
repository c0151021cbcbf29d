//! Dispatches a request to its call, by method and path.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentd_api::prerequisite::Requester;
use agentd_api::{Code, Problem};
use agentd_keeper::caller::{Caller, CallerClass};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, Response};
use tokio_util::sync::CancellationToken;

use super::operations::Operations;
use super::room::{ConnectionPermit, NoRoom, StreamPermit};
use super::routes::{self, Call, Parts};
use super::tcp::Gate;
use super::{
    Body, access, audit, doctor, drain, environment, handlers, plugins, prerequisites, problem, readiness, scripts,
    secrets, snapshots,
};
use crate::audit_log::Audit;
use crate::tcp_listener::TcpEndpoint;
use agentd_host::exhausted;
use agentd_session::Sessions;
use agentd_session::generation::Generation;

/// Everything that a handler needs to answer a request.
#[derive(Debug)]
pub(crate) struct Context {
    /// The generation in force when the request arrived.
    pub generation: Arc<Generation>,
    pub sessions: Arc<Sessions>,
    /// The daemon that contains the endpoint.
    pub operations: Arc<dyn Operations>,
    /// The TCP listener and its token.
    pub tcp: Arc<TcpEndpoint>,
    pub audit: Arc<Audit>,
    /// Cancelled when the endpoint closes. Waiting requests are then answered with the present state, and streams
    /// end.
    pub closing: CancellationToken,
    pub admission: Admission,
    pub caller: Arc<Caller>,
    /// Permit of the connection. `None` while the endpoint closes and while no file descriptor is left.
    pub(super) permit: Option<Arc<ConnectionPermit>>,
}

impl Context {
    /// Counts the connection as a stream while the returned value lives. Refuses when there are too many streams.
    pub(super) fn stream(&self) -> Result<Option<StreamPermit>, Problem> {
        self.permit.as_ref().map(|permit| permit.stream().map_err(NoRoom::problem)).transpose()
    }
}

impl Context {
    /// Returns the caller as a requester, for records.
    pub(super) fn requester(&self) -> Requester {
        let session = match &self.caller.who {
            CallerClass::Guest(session) => Some(session.clone()),
            CallerClass::Owner | CallerClass::Stranger(_) => None,
        };
        Requester { uid: self.caller.uid, pid: self.caller.pid, program: self.caller.program.clone(), session }
    }
}

/// Condition on a request, in addition to the access of its caller.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    /// No condition: the kernel identifies the caller.
    Everything,
    /// The request must carry the token.
    Bearer(Arc<Gate>),
}

impl Admission {
    fn check<T>(&self, request: &Request<T>) -> Result<(), Problem> {
        match self {
            Self::Everything => Ok(()),
            Self::Bearer(gate) => gate.check(request),
        }
    }
}

static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// Answers one request. An error becomes a problem document.
pub(crate) async fn answer(context: Context, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let id = format!("{}-{}", std::process::id(), REQUESTS.fetch_add(1, Ordering::Relaxed));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let audited = audit::Audited::begin(&context, &method, &path);
    let mut refusal = None;
    let mut response = match dispatch(&context, request).await {
        Ok(response) => response,
        Err(refused) => {
            let mut refused = exhausted::judge(refused);
            refused.request_id = Some(id.clone());
            tracing::debug!(
                request = %id, %method, %path, code = %refused.code.as_str(), detail = %refused.detail,
                "refused"
            );
            refusal = Some(refused.code);
            let unauthorized = refused.code == Code::Unauthorized;
            let allow = (refused.code == Code::MethodNotAllowed).then(|| allowed_methods(&path)).flatten();
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
    if let Some(audited) = audited {
        audited.end(&context, &id, &response, refusal);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), id);
    }
    Ok(response)
}

fn allowed_methods(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    routes::methods(&parts)
}

/// Time that a request waits until sessions are taken over from the previous daemon. A keeper that does not answer
/// takes longer; its session is then shown in its stored state.
const TAKEOVER: Duration = Duration::from_secs(5);

/// Waits until the sessions of the path are shown in their present state instead of the stored one.
async fn wait_for_takeover(context: &Context, parts: Parts<'_>) {
    let current = async {
        match parts {
            ["v1", "sessions"] => context.sessions.are_current().await,
            ["v1", "sessions", id, ..] => {
                if let Ok(session) = context.sessions.find(id).await {
                    session.is_current().await;
                }
            }
            _ => {}
        }
    };
    let _ = tokio::time::timeout(TAKEOVER, current).await;
}

async fn dispatch(context: &Context, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
    context.admission.check(&request)?;
    if let Some(permit) = &context.permit {
        permit.prove();
    }
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let method = request.method().clone();
    let Some(route) = routes::find(&method, &parts) else {
        access::check(context, (routes::Access::Guest, None), None).await?;
        return Err(not_offered(&method, &path));
    };
    access::check(context, (route.access, Some(route.call)), named(&parts)).await?;
    // A call that waits counts as a stream until it is answered.
    let waits = handlers::wait(&request).is_ok_and(|wait| wait.is_some_and(|wait| !wait.is_zero()));
    let _stream = if waits { context.stream()? } else { None };
    wait_for_takeover(context, &parts).await;
    let at = |index: usize| parts.get(index).copied().unwrap_or_default();
    let id = named(&parts).unwrap_or_default();
    match route.call {
        Call::Health => Ok(handlers::health()),
        Call::Readiness => readiness::ready(context),
        Call::Version => Ok(handlers::version(context)),
        Call::Agents => Ok(handlers::agents(context)),
        Call::Audit => audit::list(context, &request).await,
        Call::Doctor => Ok(doctor::doctor(context).await),
        Call::Plugins => plugins::list(context).await,
        Call::Plugin => plugins::show(context, at(2)).await,
        Call::Prerequisites => prerequisites::list(context, &request).await,
        Call::CheckPrerequisite => prerequisites::check(context, at(2), request).await,
        Call::Reload => plugins::reload(context, &request).await,
        Call::Drain => drain::drain(context, &request).await,
        Call::Scripts => scripts::scripts(context, &request).await,
        Call::AllowScripts => scripts::decide_scripts(context, true, request).await,
        Call::DenyScripts => scripts::decide_scripts(context, false, request).await,
        Call::Secrets => Ok(secrets::list(context)),
        Call::CheckSecrets => Ok(secrets::check(context).await),
        Call::Snapshots => Ok(snapshots::list(context).await),
        Call::AddSnapshot => snapshots::add(context, request).await,
        Call::RefreshSnapshots => snapshots::refresh(context).await,
        Call::InvalidateSnapshots => snapshots::invalidate(context).await,
        Call::Create => handlers::create(context, request).await,
        Call::List => Ok(handlers::list(context).await),
        Call::Show => handlers::show(context, id).await,
        Call::Remove => handlers::remove(context, id, &request).await,
        Call::Events => super::stream::events(context, id, &request).await,
        Call::Environment => environment::show(context, id, &request).await,
        Call::EnvironmentDifference => environment::difference(context, id, &request).await,
        Call::Validation => super::validation::validation(context, id).await,
        Call::RotateKey => environment::rotate(context).await,
        Call::Keep => environment::keep(context, request).await,
        Call::Prompt => handlers::prompt(context, id, request).await,
        Call::Cancel => handlers::cancel(context, id, None).await,
        Call::CancelTurn => handlers::cancel(context, id, Some(at(4))).await,
        Call::Stop => handlers::stop(context, id, &request).await,
        Call::Resume => handlers::resume(context, id, &request).await,
        Call::Permit => handlers::permit(context, id, at(4), request).await,
    }
}

/// Returns the session in a path.
fn named(parts: Parts<'_>) -> Option<&str> {
    parts.strip_prefix(&["v1", "sessions"]).and_then(<[&str]>::first).copied()
}

fn not_offered(method: &hyper::Method, path: &str) -> Problem {
    match allowed_methods(path) {
        None => Problem::new(Code::NoSuchPath, format!("there is no {path:?}"))
            .hint("docs/operations/control.md lists the paths"),
        Some(allowed) => Problem::new(Code::MethodNotAllowed, format!("{method} {path} is not offered"))
            .hint(format!("use one of these methods: {allowed}")),
    }
}
