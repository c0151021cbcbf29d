//! A launch and the plugins that it needs: it waits for those that are compiled, and says so.
//!
//! A plugin that could not be loaded is tried again where that may help; what is wrong with it after that is said by the step that needs it.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::bringup::{Failure, Progress};
use crate::env::chain;
use crate::plugins::{Managed, Stage};
use crate::world::World;

/// How long a plugin may take before a launch says that it waits: most are loaded in milliseconds.
const QUIET: Duration = Duration::from_millis(300);

/// Waits until each plugin that the session needs is loaded, or cannot be.
pub(super) async fn wait(world: &World, spec: &SessionSpec, report: &mpsc::Sender<Progress>) -> Result<(), Failure> {
    let kind = ConditionType::EnvironmentReady;
    let failed = |error| Failure { kind, reason: "PluginsUnusable", message: chain(&error) };
    let plugins = world.plugins_of(spec).await.map_err(failed)?;
    for plugin in &plugins {
        plugin.try_again().await;
    }
    if tokio::time::timeout(QUIET, settled(&plugins)).await.is_ok() {
        return Ok(());
    }
    let mut said = String::new();
    loop {
        // Before it is looked at, so that no change is missed.
        let changed = changed(&plugins);
        let message = message(&plugins);
        if message.is_empty() {
            return Ok(());
        }
        if message != said {
            let (status, reason) = (ConditionStatus::False, agentd_api::reason::COMPILING_PLUGIN.to_owned());
            let _ = report.send(Progress::Condition { kind, status, reason, message: message.clone() }).await;
            said = message;
        }
        changed.await;
    }
}

async fn settled(plugins: &[Arc<Managed>]) {
    for plugin in plugins {
        plugin.settled().await;
    }
}

/// What is waited for; nothing if nothing is.
fn message(plugins: &[Arc<Managed>]) -> String {
    let of = |wanted: Stage| {
        let names =
            plugins.iter().filter(|plugin| *plugin.stage().borrow() == wanted).map(|plugin| plugin.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let (compiling, loading) = (of(Stage::Compiling), of(Stage::Loading));
    match (compiling.is_empty(), loading.is_empty()) {
        (true, true) => String::new(),
        (false, true) => format!("compiling {compiling}"),
        (true, false) => format!("loading {loading}"),
        (false, false) => format!("compiling {compiling}; then {loading}"),
    }
}

/// Ends when how one of them stands has changed since this was called.
fn changed(plugins: &[Arc<Managed>]) -> impl Future<Output = ()> + use<> {
    let mut waiting = JoinSet::new();
    for mut stage in plugins.iter().map(|plugin| plugin.stage()) {
        waiting.spawn(async move { stage.changed().await });
    }
    async move {
        let _ = waiting.join_next().await; // the others end with the set
    }
}
