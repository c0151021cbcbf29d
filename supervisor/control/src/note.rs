//! Implements `GET /v1/sessions/{id}/note`: the note that the agent would get with the next prompt.

use agentd_keeper::caller::CallerClass;

use super::handlers::Answer;
use super::json;
use super::router::Context;
use agentd_session::{Session, preview_note};

/// Shows the note. For a guest no environment is built, since its scripts would run outside of the session.
pub(super) async fn preview(context: &Context, session: &Session) -> Answer {
    let may_build = context.caller.who == CallerClass::Owner;
    json(&preview_note(&context.generation, session, may_build).await?)
}
