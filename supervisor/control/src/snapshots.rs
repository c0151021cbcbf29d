//! Implements the calls on snapshots: their state, a new capture of the login shell, and a terminal's snapshot
//! from agentctl.

use std::sync::Arc;
use std::time::Instant;

use agentd_api::hint;
use agentd_api::snapshot::TerminalSnapshot;
use agentd_api::{Call, Code, Problem};
use hyper::Request;
use jiff::Timestamp;

use super::handlers::{Answer, read, to_the_end};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;
use agentd_api::chain;
use agentd_environment::{SnapshotError, TerminalError};

/// Makes a call on the snapshots.
pub(super) async fn answer(context: &Context, call: &Call, request: Request<RequestBody>) -> Answer {
    match call {
        Call::AddSnapshot {} => add(context, request).await,
        Call::RefreshSnapshots {} => refresh(context).await,
        Call::InvalidateSnapshots {} => invalidate(context).await,
        _ => list(context).await,
    }
}

async fn list(context: &Context) -> Answer {
    json(&context.generation.snapshots.list().await)
}

async fn add(context: &Context, request: Request<RequestBody>) -> Answer {
    let TerminalSnapshot { variables } = read(context, request).await?;
    let variables = variables.into_iter().map(|variable| (variable.name, variable.value.0)).collect();
    let (terminals, named) = (&context.generation.snapshots.terminals, context.sessions.terminals().await);
    let view = terminals.add(variables, &named, Timestamp::now()).map_err(|error| {
        let problem = |code| Problem::new(code, error.to_string());
        match error {
            TerminalError::Name { .. } | TerminalError::Value { .. } => problem(Code::InvalidRequest),
            TerminalError::Full { .. } => problem(Code::TooBusy).hint("remove sessions that use a terminal snapshot"),
        }
    })?;
    json(&view)
}

/// The time limit is twice that of one capture, since a running capture may have to end first.
async fn refresh(context: &Context) -> Answer {
    let time = context.generation.config.environment.deadline.0.saturating_mul(2);
    let snapshots = Arc::clone(&context.generation.snapshots);
    let refreshed = async move { snapshots.recapture(Instant::now() + time).await.map_err(|error| failed(&error)) };
    to_the_end(refreshed).await?;
    list(context).await
}

async fn invalidate(context: &Context) -> Answer {
    let snapshots = Arc::clone(&context.generation.snapshots);
    let forgotten = snapshots.invalidate().await;
    if let Some(pipeline) = context.generation.pipeline_so_far() {
        pipeline.forget_results();
    }
    forgotten.map_err(|error| {
        Problem::new(Code::Internal, format!("cannot remove the stored environment of the login shell: {error}"))
    })?;
    list(context).await
}

fn failed(error: &SnapshotError) -> Problem {
    Problem::new(Code::SnapshotFailed, chain(error)).hint(hint::LIST_SNAPSHOTS)
}
