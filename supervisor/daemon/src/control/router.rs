//! From a request's method and path to the one call it stands for.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentd_api::prerequisite::Requester;
use agentd_api::{Code, Problem};
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response};
use tokio_util::sync::CancellationToken;

use super::tcp::Gate;
use super::{
    Body, doctor, drain, environment, handlers, plugins, prerequisites, problem, readiness, scripts, secrets, snapshots,
};
use crate::platform;
use crate::reload::Reload;
use crate::scarce;
use crate::session::Sessions;
use crate::world::World;

/// What a request is answered from.
#[derive(Debug)]
pub(crate) struct Context {
    /// As it was when the request came.
    pub(crate) world: Arc<World>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) reload: Arc<Reload>,
    /// Cancelled when the endpoint ends: what is waited for is answered as it is, and streams end.
    pub(crate) closing: CancellationToken,
    pub(crate) admission: Admission,
    pub(crate) peer: Peer,
}

/// Which of a connection's requests are answered.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    /// The kernel says that it is the daemon's own user, or root.
    Everything,
    /// It is somebody else.
    Nothing,
    /// Those that carry the token.
    Bearer(Arc<Gate>),
}

impl Admission {
    fn check<T>(&self, request: &Request<T>) -> Result<(), Problem> {
        match self {
            Self::Everything => Ok(()),
            Self::Nothing => Err(Problem::new(Code::Forbidden, "this agentd belongs to another user")),
            Self::Bearer(gate) => gate.check(request),
        }
    }
}

/// Who is at the other end, by the kernel's word; over TCP the daemon's owner, in no session, by the token's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) pid: Option<u32>,
}

impl Peer {
    /// The daemon's own user.
    pub(super) fn owner() -> Self {
        Self { uid: nix::unistd::getuid().as_raw(), pid: None }
    }

    /// The same, with the session that it is in, for what is to be known afterwards. A process that has ended is in none.
    pub(super) fn requester(self) -> Requester {
        let session = self.pid.and_then(platform::session_of).and_then(|session| session.parse().ok());
        Requester { uid: self.uid, pid: self.pid, session }
    }
}

/// A path's parts after the percent-decoding that ids and names never need: one that has a `%` is none of ours.
type Parts<'a> = &'a [&'a str];

static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// Answers one request. Never fails: what goes wrong is a problem document.
pub(crate) async fn answer(context: Context, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let id = format!("{}-{}", std::process::id(), REQUESTS.fetch_add(1, Ordering::Relaxed));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match dispatch(&context, request).await {
        Ok(response) => response,
        Err(refused) => {
            let mut refused = scarce::judge(refused);
            refused.request_id = Some(id.clone());
            tracing::debug!(request = %id, %method, %path, code = %refused.code.as_str(), detail = %refused.detail, "refused");
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
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), id);
    }
    Ok(response)
}

/// The methods that each path answers to; a path that is not here is not there.
#[allow(clippy::match_same_arms, reason = "a table with a row for each kind of path")]
fn methods(parts: Parts<'_>) -> &'static [Method] {
    const GET: &[Method] = &[Method::GET];
    const POST: &[Method] = &[Method::POST];
    const DELETE: &[Method] = &[Method::DELETE];
    const COLLECTION: &[Method] = &[Method::GET, Method::POST];
    const SWITCH: &[Method] = &[Method::GET, Method::POST, Method::DELETE];
    const ITEM: &[Method] = &[Method::GET, Method::DELETE];
    match parts {
        ["healthz" | "readyz"]
        | ["v1", "version" | "agents" | "doctor" | "plugins" | "prerequisites" | "scripts" | "secrets"] => GET,
        ["v1", "plugins", _] => GET,
        ["v1", "reload"] => COLLECTION,
        ["v1", "drain"] => SWITCH,
        ["v1", "prerequisites", _, "check"] => POST,
        ["v1", "snapshots"] => COLLECTION,
        ["v1", "snapshots", "refresh" | "invalidate"] => POST,
        ["v1", "scripts", "allow" | "deny"] => POST,
        ["v1", "secrets", "check"] => POST,
        ["v1", "sessions"] => COLLECTION,
        ["v1", "sessions", _] => ITEM,
        ["v1", "sessions", _, "events" | "environment" | "validation"] => GET,
        ["v1", "sessions", _, "environment", "diff"] => GET,
        ["v1", "environment", "rotate-key"] => POST,
        ["v1", "sessions", _, "prompt" | "cancel" | "stop" | "resume"] => POST,
        ["v1", "sessions", _, "permissions", _] => POST,
        ["v1", "sessions", _, "turns", _] => DELETE,
        _ => &[],
    }
}

fn allowed_methods(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let methods = methods(&parts);
    (!methods.is_empty()).then(|| methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", "))
}

/// How long a request waits for sessions to be taken over from the daemon before; a keeper that does not answer takes longer, and its
/// session is then shown as it was remembered.
const TAKEOVER: Duration = Duration::from_secs(5);

/// A session is shown as it is, and not as an earlier daemon remembered it.
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
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let method = request.method().clone();
    let known = methods(&parts);
    if known.is_empty() {
        return Err(Problem::new(Code::NoSuchPath, format!("there is no {path:?}"))
            .hint("the paths begin with /v1/sessions; the README lists them"));
    }
    if !known.contains(&method) {
        let allowed = allowed_methods(&path).unwrap_or_default();
        return Err(Problem::new(Code::MethodNotAllowed, format!("{method} {path} is not offered"))
            .hint(format!("the path answers to {allowed}")));
    }
    wait_for_takeover(context, &parts).await;
    match parts.as_slice() {
        ["healthz"] => Ok(handlers::health()),
        ["readyz"] => readiness::ready(context),
        ["v1", "version"] => Ok(handlers::version(context)),
        ["v1", "agents"] => Ok(handlers::agents(context)),
        ["v1", "doctor"] => Ok(doctor::doctor(context).await),
        ["v1", "plugins"] => plugins::list(context).await,
        ["v1", "plugins", name] => plugins::show(context, name).await,
        ["v1", "prerequisites"] => prerequisites::list(context, &request).await,
        ["v1", "prerequisites", name, "check"] => prerequisites::check(context, name, request).await,
        ["v1", "reload"] => plugins::reload(context, &request).await,
        ["v1", "drain"] => drain::drain(context, &request).await,
        ["v1", "scripts"] => scripts::scripts(context, &request).await,
        ["v1", "scripts", decision] => scripts::decide_scripts(context, *decision == "allow", request).await,
        ["v1", "secrets"] => Ok(secrets::list(context)),
        ["v1", "secrets", "check"] => Ok(secrets::check(context).await),
        ["v1", "snapshots"] if method == Method::POST => snapshots::add(context, request).await,
        ["v1", "snapshots"] => Ok(snapshots::list(context).await),
        ["v1", "snapshots", "refresh"] => snapshots::refresh(context).await,
        ["v1", "snapshots", _] => snapshots::invalidate(context).await,
        ["v1", "sessions"] if method == Method::POST => handlers::create(context, request).await,
        ["v1", "sessions"] => Ok(handlers::list(context).await),
        ["v1", "sessions", id] if method == Method::DELETE => handlers::remove(context, id, &request).await,
        ["v1", "sessions", id] => handlers::show(context, id).await,
        ["v1", "sessions", id, "events"] => super::stream::events(context, id, &request).await,
        ["v1", "sessions", id, "environment"] => environment::show(context, id, &request).await,
        ["v1", "sessions", id, "environment", "diff"] => environment::difference(context, id, &request).await,
        ["v1", "environment", "rotate-key"] => environment::rotate(context).await,
        ["v1", "sessions", id, "validation"] => super::validation::validation(context, id).await,
        ["v1", "sessions", id, "prompt"] => handlers::prompt(context, id, request).await,
        ["v1", "sessions", id, "cancel"] => handlers::cancel(context, id, None).await,
        ["v1", "sessions", id, "stop"] => handlers::stop(context, id, &request).await,
        ["v1", "sessions", id, "resume"] => handlers::resume(context, id, &request).await,
        ["v1", "sessions", id, "permissions", permission] => handlers::permit(context, id, permission, request).await,
        ["v1", "sessions", id, "turns", turn] => handlers::cancel(context, id, Some(turn)).await,
        _ => Err(Problem::new(Code::NoSuchPath, format!("there is no {path:?}"))),
    }
}
