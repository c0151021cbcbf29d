//! The calls on snapshots: how they stand, taking a login shell's anew, and a terminal's that agentctl sends.

use std::sync::Arc;
use std::time::Instant;

use agentd_api::snapshot::TerminalSnapshot;
use agentd_api::{Code, Problem};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use jiff::Timestamp;

use super::handlers::{Answer, read, to_the_end};
use super::router::Context;
use super::{Body, json};
use crate::env::{SnapshotError, TerminalError, chain};

pub(super) async fn list(context: &Context) -> Response<Body> {
    json(StatusCode::OK, &context.world.snapshots.list().await)
}

pub(super) async fn add(context: &Context, request: Request<Incoming>) -> Answer {
    let TerminalSnapshot { variables } = read(context, request).await?;
    let variables = variables.into_iter().map(|variable| (variable.name, variable.value.0)).collect();
    let (terminals, named) = (&context.world.snapshots.terminals, context.sessions.terminals().await);
    let view = terminals.add(variables, &named, Timestamp::now()).map_err(|error| {
        let problem = |code| Problem::new(code, error.to_string());
        match error {
            TerminalError::Name { .. } | TerminalError::Value { .. } => problem(Code::InvalidRequest),
            TerminalError::Full { .. } => problem(Code::TooBusy).hint("remove sessions that began with one"),
        }
    })?;
    Ok(json(StatusCode::CREATED, &view))
}

/// Twice the time of one run: a capture that is under way may have to end first.
pub(super) async fn refresh(context: &Context) -> Answer {
    let time = context.world.config.environment.deadline.0.saturating_mul(2);
    let snapshots = Arc::clone(&context.world.snapshots);
    let refreshed = async move { snapshots.refresh(Instant::now() + time).await.map_err(|error| failed(&error)) };
    to_the_end(refreshed).await?;
    Ok(list(context).await)
}

pub(super) async fn invalidate(context: &Context) -> Answer {
    let snapshots = Arc::clone(&context.world.snapshots);
    let forgotten = snapshots.invalidate().await;
    if let Some(pipeline) = context.world.pipeline_so_far() {
        pipeline.forget_results();
    }
    forgotten.map_err(|error| {
        Problem::new(Code::Internal, format!("cannot remove what is kept of the login shell's environment: {error}"))
    })?;
    Ok(list(context).await)
}

fn failed(error: &SnapshotError) -> Problem {
    Problem::new(Code::SnapshotFailed, chain(error)).hint("`agentctl snapshot status` says what is there")
}
