//! Implements the calls on prerequisites: their last reports, and one check now.

use std::sync::Arc;

use agentd_api::prerequisite::{CheckRequest, PrerequisiteList};
use agentd_api::route::Scope;
use hyper::Request;

use super::handlers::{Answer, read, to_the_end};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;
use agentd_caller::CallerClass;
use agentd_session::Session;

/// Lists all prerequisites, or those of one session. Only the owner sees the settings of the checks.
pub(super) async fn list(context: &Context, session: Option<String>) -> Answer {
    let session = match session {
        Some(id) => Some(context.sessions.find(&id).await?),
        None => None,
    };
    let mut prerequisites = context.sessions.prerequisites(session.as_ref()).await?;
    if !context.is_owner(Scope::Own) {
        for view in &mut prerequisites {
            view.settings.clear();
        }
    }
    json(&PrerequisiteList { prerequisites })
}

/// Checks all prerequisites of a session. A process inside the session learns the results, but neither the settings of
/// the checks nor other sessions.
pub(super) async fn check_all(context: &Context, session: &Session) -> Answer {
    let (sessions, of) = (Arc::clone(&context.sessions), session.clone());
    let mut prerequisites = to_the_end(async move { sessions.check_all(&of).await }).await?;
    if !context.is_owner(Scope::Own) {
        for view in &mut prerequisites {
            view.settings.clear();
        }
    }
    if context.caller.who != CallerClass::Owner {
        for view in &mut prerequisites {
            view.used_by.retain(|id| id == session.id());
        }
    }
    json(&PrerequisiteList { prerequisites })
}

pub(super) async fn check(context: &Context, name: &str, request: Request<RequestBody>) -> Answer {
    let CheckRequest { session } = read(context, request).await?;
    let session = match session {
        Some(id) => Some(context.sessions.find(id.as_str()).await?),
        None => None,
    };
    let (sessions, name) = (Arc::clone(&context.sessions), name.to_owned());
    let report = to_the_end(async move { sessions.check_now(&name, session.as_ref()).await }).await?;
    json(&report)
}
