//! Handlers of the calls on a session's repositories.

use std::sync::Arc;

use agentd_api::repository::{RepositoryAction, RepositorySpec, RepositoryState};
use agentd_api::route::{Wait, Within};
use agentd_api::session::SessionView;
use agentd_session::Session;
use hyper::Request;

use super::handlers::{Answer, bounded, read, to_the_end};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;

pub(super) async fn list(context: &Context, session: &Session) -> Answer {
    json(&context.sessions.repositories(session).await)
}

pub(super) async fn add(
    context: &Context,
    session: Session,
    (now, wait): (bool, Option<Wait>),
    request: Request<RequestBody>,
) -> Answer {
    let repository: RepositorySpec = read(context, request).await?;
    let name = repository.name();
    let (sessions, requester, changed) = (Arc::clone(&context.sessions), context.requester(), session.clone());
    to_the_end(async move { sessions.add_repository(&changed, repository, now, requester).await }).await?;
    settled(context, &session, &name, wait).await;
    list(context, &session).await
}

pub(super) async fn remove(
    context: &Context,
    session: Session,
    name: String,
    (force, now, wait): (bool, bool, Option<Wait>),
) -> Answer {
    let (sessions, requester, changed) = (Arc::clone(&context.sessions), context.requester(), session.clone());
    let removed = name.clone();
    to_the_end(async move { sessions.remove_repository(&changed, &removed, (force, now), requester).await }).await?;
    settled(context, &session, &name, wait).await;
    list(context, &session).await
}

/// Waits, if requested, until the work on the repository has succeeded or failed, or the session has no agent.
async fn settled(context: &Context, session: &Session, name: &str, wait: Option<Wait>) {
    let Some(Within(wait)) = wait else { return };
    let is_settled = |view: &SessionView| {
        let known = view.status.repos.iter().find(|known| known.name == name);
        let is_wanted = view.spec.repository(name).is_some();
        view.status.phase.is_over()
            || known.map_or(!is_wanted, |known| {
                let is_removal = known.action == Some(RepositoryAction::Remove);
                let has_ended =
                    matches!(known.state, RepositoryState::Ready | RepositoryState::Failed | RepositoryState::Retained);
                has_ended && is_removal != is_wanted
            })
    };
    bounded(&context.closing, wait, session.wait_until(is_settled)).await;
}
