//! What is known of sessions' environments: as they were, as one would be now, how two differ; and the key they are sealed with.

use std::sync::Arc;

use agentd_api::environment::{ChangeView, DifferenceView, EnvironmentView, Moment};
use agentd_api::keep::KeepRequest;
use agentd_api::{Code, Problem};
use hyper::body::Incoming;
use hyper::{Request, StatusCode};

use super::handlers::{Answer, flag, query, read, to_the_end};
use super::router::Context;
use super::{access, json};
use crate::env::{drift, without_secrets};
use crate::session::{Session, build_now, kept};

pub(super) async fn show(context: &Context, id: &str, request: &Request<Incoming>) -> Answer {
    let values = flag(request, "values")?;
    let at = moment(request, "at", Moment::Last)?;
    builds_now(context, &[at])?;
    let session = context.sessions.find(id).await?;
    let mut view = without_secrets(environment(context, &session, at).await?);
    if !values {
        let dropped = view.dropped.iter_mut().flat_map(|dropped| &mut dropped.history);
        for variable in view.variables.iter_mut().chain(&mut view.missing) {
            variable.value = None;
            variable.history.iter_mut().for_each(|step| step.value = None);
        }
        dropped.for_each(|step| step.value = None);
    }
    Ok(json(StatusCode::OK, &view))
}

pub(super) async fn difference(context: &Context, id: &str, request: &Request<Incoming>) -> Answer {
    let values = flag(request, "values")?;
    let (from, to) = (moment(request, "from", Moment::Last)?, moment(request, "to", Moment::Now)?);
    builds_now(context, &[from, to])?;
    let session = context.sessions.find(id).await?;
    let old = environment(context, &session, from).await?;
    let new = environment(context, &session, to).await?;
    let drift = drift(&old, &new);
    let shown = |list: Vec<ChangeView>| list.into_iter().map(|change| shown(change, values)).collect();
    let view = DifferenceView {
        from,
        to,
        added: shown(drift.added),
        changed: shown(drift.changed),
        removed: shown(drift.removed),
        not_compared: drift.not_compared,
    };
    Ok(json(StatusCode::OK, &view))
}

pub(super) async fn rotate(context: &Context) -> Answer {
    let environments = Arc::clone(&context.world.environments);
    let rotated = tokio::task::spawn_blocking(move || environments.rotate()).await;
    let rotated = rotated.map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    Ok(json(StatusCode::OK, &rotated.map_err(|error| error.problem())?))
}

/// Writes what the whitelist is to keep into the user's configuration, and reads the configuration again.
pub(super) async fn keep(context: &Context, request: Request<Incoming>) -> Answer {
    let wish: KeepRequest = read(context, request).await?;
    let reload = Arc::clone(&context.reload);
    let kept = async move { reload.keep(&wish).await };
    Ok(json(StatusCode::OK, &to_the_end(kept).await?))
}

/// Refuses a guest an environment that is built for the answer: scripts run for it, outside of the session.
fn builds_now(context: &Context, moments: &[Moment]) -> Result<(), Problem> {
    if moments.contains(&Moment::Now) {
        access::owner_only(context, "an environment as it would be now takes scripts to be run")?;
    }
    Ok(())
}

/// A change without what must not be shown of it, and without what was not asked for.
fn shown(mut change: ChangeView, values: bool) -> ChangeView {
    for step in change.before.iter_mut().chain(&mut change.after) {
        if change.secret {
            (step.value, step.digest) = (None, None);
        }
        if !values {
            step.value = None;
        }
    }
    change
}

/// With secrets where they are known: they are for comparing, and not for showing.
async fn environment(context: &Context, session: &Session, at: Moment) -> Result<EnvironmentView, Problem> {
    let world = &context.world;
    if at == Moment::Now {
        let view = session.view();
        return build_now(world, session.id(), &view.spec, view.status.launches + 1).await;
    }
    let kept = kept(world, session.id()).await?.ok_or_else(|| {
        Problem::new(Code::WrongPhase, "the session has no environment yet")
            .hint("it gets one when it is launched; `agentctl show` says how far that is")
    })?;
    Ok(if at == Moment::Created { kept.created } else { kept.last })
}

fn moment(request: &Request<Incoming>, name: &str, default: Moment) -> Result<Moment, Problem> {
    match query(request, name) {
        None => Ok(default),
        Some(text) => text.parse().map_err(|error: agentd_api::environment::InvalidMoment| {
            Problem::new(Code::InvalidRequest, format!("{name}: {error}"))
        }),
    }
}
