//! Implements `GET /v1/sessions/{id}/validation`: warnings about a session's environment.

use agentd_api::{Code, Problem};

use super::handlers::Answer;
use super::json;
use super::router::Context;
use agentd_api::chain;
use agentd_session::{Session, kept, validate};

pub(super) async fn validation(context: &Context, session: &Session) -> Answer {
    let last = kept(&context.generation, session.id()).await?;
    let found = validate(&context.generation, &session.view(), last.as_ref()).await;
    json(&found.map_err(|error| Problem::new(Code::Internal, chain(&error)))?)
}
