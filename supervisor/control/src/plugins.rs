//! Implements the calls on plugins, and the reload of the configuration.

use std::sync::Arc;

use agentd_api::hint;
use agentd_api::plugin::PluginList;
use agentd_api::route::Scope;
use agentd_api::{Code, Problem};

use super::handlers::{Answer, to_the_end};
use super::json;
use super::router::Context;
use agentd_api::chain;
use agentd_plugin_set::{Plugins, SETTLED};

/// Lists the plugins. Only the owner sees their settings.
pub(super) async fn list(context: &Context) -> Answer {
    let mut views = plugins(context).await?.views();
    if !context.is_owner(Scope::Own) {
        for view in &mut views {
            view.settings.clear();
        }
    }
    json(&PluginList { plugins: views })
}

pub(super) async fn show(context: &Context, name: &str) -> Answer {
    let mut view = plugins(context).await?.view(name).ok_or_else(|| {
        Problem::new(Code::NoSuchPlugin, format!("there is no plugin {name:?}")).hint(hint::LIST_PLUGINS)
    })?;
    if !context.is_owner(Scope::Own) {
        view.settings.clear();
    }
    json(&view)
}

/// Reloads, and finishes even when the client disconnects. With `dry_run` changes nothing and returns the changes of
/// a reload. Earlier daemons refuse `GET /v1/reload` but ignore the flag of the `POST`.
pub(super) async fn reload(context: &Context, dry_run: bool) -> Answer {
    let operations = Arc::clone(&context.operations);
    let view =
        to_the_end(async move { if dry_run { operations.reload_dry_run().await } else { operations.reload().await } })
            .await?;
    json(&view)
}

async fn plugins(context: &Context) -> Result<&Plugins, Problem> {
    context.generation.plugins_within(SETTLED).await.map_err(|error| Problem::new(Code::Internal, chain(&error)))
}
