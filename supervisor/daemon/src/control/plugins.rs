//! The calls on plugins: how they stand, and reading the configuration again.

use std::sync::Arc;

use agentd_api::plugin::PluginList;
use agentd_api::{Code, Problem};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::handlers::{Answer, flag, to_the_end};
use super::json;
use super::router::Context;
use crate::message::chain;
use crate::plugins::{Plugins, SETTLED};

pub(super) async fn list(context: &Context) -> Answer {
    Ok(json(StatusCode::OK, &PluginList { plugins: plugins(context).await?.views() }))
}

pub(super) async fn show(context: &Context, name: &str) -> Answer {
    let view = plugins(context).await?.view(name).ok_or_else(|| {
        Problem::new(Code::NoSuchPlugin, format!("there is no plugin {name:?}"))
            .hint("`agentctl plugin ls` lists those that the configuration declares or uses")
    })?;
    Ok(json(StatusCode::OK, &view))
}

/// `POST` reloads, and goes on when the client that asked for it leaves. `GET` and `?dry_run` change nothing, and answer what a reload
/// would change. An earlier daemon refuses the `GET`, where it would ignore the flag.
pub(super) async fn reload(context: &Context, request: &Request<Incoming>) -> Answer {
    let dry_run = request.method() == Method::GET || flag(request, "dry_run")?;
    let reload = Arc::clone(&context.reload);
    let view = to_the_end(async move { if dry_run { reload.dry_run().await } else { reload.reload().await } }).await?;
    Ok(json(StatusCode::OK, &view))
}

async fn plugins(context: &Context) -> Result<&Plugins, Problem> {
    context.world.plugins_within(SETTLED).await.map_err(|error| Problem::new(Code::Internal, chain(&error)))
}
