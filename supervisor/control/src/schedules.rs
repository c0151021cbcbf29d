//! Handlers of the calls on schedules.

use std::sync::Arc;

use agentd_api::Problem;
use agentd_api::schedule::{ScheduleRuns, ScheduleSpec, ScheduleView};
use hyper::header::{ETAG, HeaderValue, LOCATION};
use hyper::{Request, Response};

use super::handlers::{Answer, idempotency_key, read, to_the_end};
use super::router::Context;
use super::session_spec::expected;
use super::{Body, full, json};
use crate::request_body::RequestBody;
use agentd_api::Call;

/// Answers the calls that read schedules.
pub(super) fn answer(context: &Context, call: &Call) -> Answer {
    match call {
        Call::Schedule { schedule } => tagged(&context.schedules.show(schedule)?),
        _ => json(&context.schedules.list()),
    }
}

pub(super) async fn add(context: &Context, request: Request<RequestBody>) -> Answer {
    let spec: ScheduleSpec = read(context, request).await?;
    let schedules = Arc::clone(&context.schedules);
    let view = to_the_end(async move { schedules.add(spec).await }).await?;
    let mut response = tagged(&view)?;
    let call = Call::Schedule { schedule: view.spec.name.to_string() };
    if let Ok(location) = HeaderValue::from_str(&call.address()) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

pub(super) async fn set(context: &Context, name: String, request: Request<RequestBody>) -> Answer {
    let expected = expected(request.headers())?;
    let spec: ScheduleSpec = read(context, request).await?;
    let schedules = Arc::clone(&context.schedules);
    tagged(&to_the_end(async move { schedules.set(&name, spec, expected).await }).await?)
}

pub(super) async fn remove(context: &Context, name: String) -> Answer {
    let schedules = Arc::clone(&context.schedules);
    to_the_end(async move { schedules.remove(&name).await }).await?;
    Ok(Response::new(full("")))
}

/// Runs a schedule: what is due, or one run now.
pub(super) async fn run(context: &Context, name: String, due: bool, request: Request<RequestBody>) -> Answer {
    let key = idempotency_key(&request)?;
    let schedules = Arc::clone(&context.schedules);
    let begun = async move { if due { schedules.run_due(&name).await } else { schedules.run(&name, key).await } };
    json(&ScheduleRuns { runs: to_the_end(begun).await? })
}

/// Answers with a schedule. Its `ETag` is the number of its specification.
fn tagged(view: &ScheduleView) -> Result<Response<Body>, Problem> {
    let mut response = json(view)?;
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", view.generation)) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}
