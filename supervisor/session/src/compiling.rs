//! Waits for the plugins of a launch, and reports in a condition which plugins are still being compiled.
//!
//! A plugin that could not be loaded is loaded again when a retry may help. The step that needs the plugin reports
//! its error.

use std::sync::Arc;
use std::time::Duration;

use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::bringup::{Failure, Progress};
use crate::launch_plan::LaunchPlan;
use agentd_api::chain;
use agentd_plugin_set::{ManagedPlugin, Stage};

/// Time that plugins may take before the launch reports a wait. Most plugins load within milliseconds.
const QUIET: Duration = Duration::from_millis(300);

/// Waits until each plugin of the session is loaded or has failed to load.
pub(super) async fn wait(plan: &LaunchPlan, report: &mpsc::Sender<Progress>) -> Result<(), Failure> {
    let kind = ConditionType::EnvironmentReady;
    let failed = |error| Failure { kind, reason: reason::PLUGINS_UNUSABLE, message: chain(&error) };
    let plugins = plan.plugins().await.map_err(failed)?;
    for plugin in &plugins {
        plugin.try_again().await;
    }
    if tokio::time::timeout(QUIET, settled(&plugins)).await.is_ok() {
        return Ok(());
    }
    let mut said = String::new();
    loop {
        // Subscribe before the stages are read, so that no change is missed.
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

async fn settled(plugins: &[Arc<ManagedPlugin>]) {
    for plugin in plugins {
        plugin.settled().await;
    }
}

/// Returns the text of the condition; it is empty when every plugin is settled.
fn message(plugins: &[Arc<ManagedPlugin>]) -> String {
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

/// Returns a future that ends when the stage of one of the plugins changes after this call.
fn changed(plugins: &[Arc<ManagedPlugin>]) -> impl Future<Output = ()> + use<> {
    let mut waiting = JoinSet::new();
    for mut stage in plugins.iter().map(|plugin| plugin.stage()) {
        waiting.spawn(async move { stage.changed().await });
    }
    async move {
        let _ = waiting.join_next().await; // dropping the set ends the other tasks
    }
}
