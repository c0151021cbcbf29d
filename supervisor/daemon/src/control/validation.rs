//! What looks wrong in a session's environment: `GET /v1/sessions/{id}/validation`.

use agentd_api::{Code, Problem};
use hyper::StatusCode;

use super::handlers::Answer;
use super::json;
use super::router::Context;
use crate::env::chain;
use crate::session::{kept, validate};

pub(super) async fn validation(context: &Context, id: &str) -> Answer {
    let session = context.sessions.find(id).await?;
    let last = kept(&context.world, session.id()).await?;
    let found = validate(&context.world, session.id(), &session.view().spec, last.as_ref()).await;
    Ok(json(StatusCode::OK, &found.map_err(|error| Problem::new(Code::Internal, chain(&error)))?))
}
