//! Implements `GET /v1/sessions/{id}/note`: the note that the agent would get with the next prompt.

use agentd_api::route::Scope;

use super::handlers::Answer;
use super::json;
use super::router::Context;
use agentd_session::{Session, preview_note};

/// Shows the note. For a guest no environment is built, since its scripts would run outside of the session. The same
/// holds for a token of a smaller scope than `own`.
pub(super) async fn preview(context: &Context, session: &Session) -> Answer {
    let may_build = context.is_owner(Scope::Own);
    json(&preview_note(&context.generation, session, may_build).await?)
}
