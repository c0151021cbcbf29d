//! Implements the calls on environments: of the first launch, of the last launch, of a launch now, and their
//! differences. Also rotates the key that seals them.

use std::sync::Arc;

use agentd_api::environment::{ChangeView, DifferenceView, EnvironmentView, Moment};
use agentd_api::hint;
use agentd_api::keep::KeepRequest;
use agentd_api::login::AgentStartRequest;
use agentd_api::session::SessionSpec;
use agentd_api::{Code, Problem};
use hyper::Request;

use super::handlers::{Answer, read, to_the_end};
use super::router::Context;
use super::{access, json};
use crate::request_body::RequestBody;
use agentd_environment::{drift, without_secrets};
use agentd_session::{Session, agent_start, build_now, kept};

/// Builds the environment in which an agent would start. Only the owner may make this call, which is recorded.
pub(super) async fn of_agent(context: &Context, name: &str, request: Request<RequestBody>) -> Answer {
    let asked: AgentStartRequest = read(context, request).await?;
    if let Some(id) = asked.session {
        let session = context.sessions.find(id.as_str()).await?;
        let spec = SessionSpec::clone(&session.view().spec);
        return json(&agent_start(&context.generation, spec, Some(&session)).await?);
    }
    let no_agent = |_| Problem::new(Code::NoSuchAgent, format!("{name:?} is not the name of an agent"));
    let agent = name.parse().map_err(no_agent)?;
    let spec = SessionSpec { agent: Some(agent), ..SessionSpec::new(asked.directory) };
    json(&agent_start(&context.generation, spec, None).await?)
}

pub(super) async fn show(context: &Context, session: &Session, at: Option<Moment>, values: bool) -> Answer {
    let at = at.unwrap_or(Moment::Last);
    builds_now(context, &[at])?;
    let mut view = without_secrets(environment(context, session, at).await?);
    if !values {
        let dropped = view.dropped.iter_mut().flat_map(|dropped| &mut dropped.history);
        for variable in view.variables.iter_mut().chain(&mut view.missing) {
            variable.value = None;
            variable.history.iter_mut().for_each(|step| step.value = None);
        }
        dropped.for_each(|step| step.value = None);
    }
    json(&view)
}

pub(super) async fn difference(
    context: &Context,
    session: &Session,
    (from, to): (Option<Moment>, Option<Moment>),
    values: bool,
) -> Answer {
    let (from, to) = (from.unwrap_or(Moment::Last), to.unwrap_or(Moment::Now));
    builds_now(context, &[from, to])?;
    let old = environment(context, session, from).await?;
    let new = environment(context, session, to).await?;
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
    json(&view)
}

pub(super) async fn rotate(context: &Context) -> Answer {
    let environments = Arc::clone(&context.generation.environments);
    let rotated = agentd_host::work::blocking(move || environments.rotate()).await;
    let rotated = rotated.map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    json(&rotated.map_err(|error| error.problem())?)
}

/// Adds variables to the whitelist in the user's configuration, and reloads the configuration.
pub(super) async fn keep(context: &Context, request: Request<RequestBody>) -> Answer {
    let wish: KeepRequest = read(context, request).await?;
    let operations = Arc::clone(&context.operations);
    let kept = async move { operations.keep(&wish).await };
    json(&to_the_end(kept).await?)
}

/// Refuses a guest an environment that is built for the response: its scripts would run outside of the session.
fn builds_now(context: &Context, moments: &[Moment]) -> Result<(), Problem> {
    if moments.contains(&Moment::Now) {
        access::owner_only(context, "only the owner can build an environment, since that runs scripts")?;
    }
    Ok(())
}

/// Removes secrets from a change, and also values that the request did not include.
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

/// Returns the environment with the digests of known secrets, for comparisons. A response must not show the
/// secrets.
async fn environment(context: &Context, session: &Session, at: Moment) -> Result<EnvironmentView, Problem> {
    let generation = &context.generation;
    if at == Moment::Now {
        let view = session.view();
        return build_now(generation, session.id(), (&view.spec, view.active_workflow()), view.status.launches + 1)
            .await;
    }
    let kept = kept(generation, session.id())
        .await?
        .ok_or_else(|| Problem::new(Code::WrongPhase, "the session has no environment yet").hint(hint::SHOW_LAUNCH))?;
    Ok(if at == Moment::Created { kept.created } else { kept.last })
}
