//! Implements the calls on plugins, and the reload of the configuration.

use std::sync::Arc;

use agentd_api::plugin::PluginList;
use agentd_api::{Code, Problem};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::handlers::{Answer, flag, to_the_end};
use super::json;
use super::router::Context;
use agentd_api::chain;
use agentd_plugin_set::{Plugins, SETTLED};

pub(super) async fn list(context: &Context) -> Answer {
    Ok(json(StatusCode::OK, &PluginList { plugins: plugins(context).await?.views() }))
}

pub(super) async fn show(context: &Context, name: &str) -> Answer {
    let view = plugins(context).await?.view(name).ok_or_else(|| {
        Problem::new(Code::NoSuchPlugin, format!("there is no plugin {name:?}"))
            .hint("`agentctl plugin ls` lists the plugins that the configuration declares or uses")
    })?;
    Ok(json(StatusCode::OK, &view))
}

/// `POST` reloads, and finishes even when the client disconnects. `GET` and `?dry_run` change nothing and return
/// the changes of a reload. Earlier daemons refuse the `GET` but ignore the flag.
pub(super) async fn reload(context: &Context, request: &Request<Incoming>) -> Answer {
    let dry_run = request.method() == Method::GET || flag(request, "dry_run")?;
    let operations = Arc::clone(&context.operations);
    let view =
        to_the_end(async move { if dry_run { operations.reload_dry_run().await } else { operations.reload().await } })
            .await?;
    Ok(json(StatusCode::OK, &view))
}

async fn plugins(context: &Context) -> Result<&Plugins, Problem> {
    context.generation.plugins_within(SETTLED).await.map_err(|error| Problem::new(Code::Internal, chain(&error)))
}
