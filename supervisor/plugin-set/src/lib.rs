//! The plugins of one configuration: each is loaded separately, its calls are counted, and it is suspended if it
//! fails repeatedly.
//!
//! A set belongs to its configuration. A launch keeps its plugins until it ends, even if the configuration is
//! reloaded meanwhile. A plugin that cannot be loaded stays in the set with its problem and does not affect other
//! plugins. A launch waits for the plugins that it needs. It loads a plugin again if the failure was temporary or the
//! plugin's file has changed.
//!
//! The caller decides the purpose of a call and answers its host calls (`agentd_environment`, `agentd_prerequisite`).
//! `agentd_plugin_host` runs the plugins.

mod health;
mod loading;
mod managed;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::Problem;
use agentd_api::feed::Notice;
use agentd_api::plugin::{PluginProblem, PluginView};
use agentd_plugin_host::{Host, HostError, HostOptions, Limits, Setting};
use async_recursion::async_recursion as boxed;
use tokio::sync::OnceCell;

pub use health::{CallOutcome, PluginFault};
pub use managed::{ManagedPlugin, Stage, Unusable};

use agentd_config::{Config, Prerequisite};
use agentd_host::directories::Directories;
use agentd_metrics::Metrics;
use loading::{Folders, LoadRequest};
pub use settings::{SettingError, combined};

/// Subdirectory of a configuration directory that contains plugins.
const PLUGINS: &str = "plugins";

/// The plugins of one configuration.
#[derive(Debug, Default)]
pub struct Plugins {
    known: BTreeMap<String, Arc<ManagedPlugin>>,
    /// The steps of the pipeline, one for each entry of `environment.providers` in its order.
    pub steps: Vec<PipelineStep>,
}

/// A step of the pipeline and its plugin.
#[derive(Debug, Clone)]
pub struct PipelineStep {
    /// Name of the step.
    pub name: String,
    /// Plugin of the step.
    pub plugin: Arc<ManagedPlugin>,
    /// Settings of the plugin, combined with those of the step.
    pub settings: Vec<Setting>,
}

/// The host of all plugins. It is created at its first use, and a failed creation is repeated at the next use.
#[derive(Debug)]
pub struct HostOnce {
    host: OnceCell<Host>,
    cache: PathBuf,
    compiler: PathBuf,
    observer: Observer,
}

/// Receivers of what happens to plugins.
#[derive(Clone)]
pub struct Observer {
    pub metrics: Arc<Metrics>,
    /// Takes events for the feed. It does not block.
    pub note: Arc<dyn Fn(Notice) + Send + Sync>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Observer").finish_non_exhaustive()
    }
}

/// Error of creating the plugin host. No plugin is available without the host.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the plugin host")]
pub struct NoHost(#[source] HostError);

/// Time for which a request about all plugins waits for compilations.
pub const SETTLED: Duration = Duration::from_secs(10);

impl HostOnce {
    /// Creates an unset host. `compiler` is the program that compiles a component when it is run as
    /// `PROGRAM compile`.
    pub fn new(cache: PathBuf, compiler: PathBuf, observer: Observer) -> Self {
        Self { host: OnceCell::new(), cache, compiler, observer }
    }

    async fn get(&self) -> Result<&Host, NoHost> {
        let make = || async { Host::new(HostOptions::new(self.cache.clone(), self.compiler.clone())) };
        self.host.get_or_try_init(make).await.map_err(NoHost)
    }
}

impl Plugins {
    /// Starts to load every plugin that the configuration declares or uses, and compiles plugins that are not cached.
    /// Returns without waiting for that. If the configuration is refused, no plugin is loaded, because the invalid
    /// part may contain denied capabilities.
    #[boxed]
    pub async fn begin(
        host: &HostOnce,
        config: &Config,
        directories: &Directories,
        refused: Option<Problem>,
    ) -> Result<Self, NoHost> {
        let observer = host.observer.clone();
        let host = host.get().await?;
        let folders =
            Folders { system: directories.system_config.join(PLUGINS), user: directories.config.join(PLUGINS) };
        let checks = config.prerequisites.values().map(|prerequisite| &prerequisite.plugin);
        let providers = config.environment.providers.iter().map(|used| &used.plugin);
        let names: BTreeSet<&String> = config.plugins.keys().chain(providers).chain(checks).collect();
        let mut known = BTreeMap::new();
        for name in names {
            let declared = config.plugins.get(name).cloned().unwrap_or_default();
            let uses = config.environment.providers.iter().filter(|used| used.plugin == *name).cloned().collect();
            let of_it = |(_, prerequisite): &(&String, &Prerequisite)| prerequisite.plugin == *name;
            let checks = config.prerequisites.iter().filter(of_it);
            let checks = checks.map(|(name, prerequisite)| (name.clone(), prerequisite.settings.clone())).collect();
            let mistake = refused.as_ref().map(|problem| problem.detail.clone()).or_else(|| declared.mistake.clone());
            let asked = LoadRequest {
                name: name.clone(),
                declared,
                uses,
                checks,
                deny: config.plugin_policy.deny.clone(),
                mistake,
                folders: folders.clone(),
                host: host.clone(),
            };
            let managed = Arc::new(ManagedPlugin::new(asked, limits(config), observer.clone()));
            managed.begin();
            known.insert(name.clone(), managed);
        }
        let uses = config.environment.providers.iter().filter_map(|used| {
            let plugin = known.get(&used.plugin)?;
            // Invalid settings are reported as a problem of the plugin.
            let settings = combined(plugin.settings(), &used.settings).unwrap_or_default();
            Some(PipelineStep { name: used.step().to_owned(), plugin: Arc::clone(plugin), settings })
        });
        let uses = uses.collect();
        Ok(Self { known, steps: uses })
    }

    /// Waits until each plugin is loaded or has failed to load.
    #[boxed]
    pub async fn settled(&self) {
        for plugin in self.known.values() {
            plugin.settled().await;
        }
    }

    /// Returns the plugin with this name.
    pub fn named(&self, name: &str) -> Option<&Arc<ManagedPlugin>> {
        self.known.get(name)
    }

    /// Returns the views of all plugins, sorted by name.
    pub fn views(&self) -> Vec<PluginView> {
        let now = Instant::now();
        self.known.values().map(|plugin| plugin.view(now)).collect()
    }

    /// Returns the view of the plugin with this name.
    pub fn view(&self, name: &str) -> Option<PluginView> {
        self.known.get(name).map(|plugin| plugin.view(Instant::now()))
    }

    /// Returns the number of plugins.
    pub fn count(&self) -> usize {
        self.known.len()
    }

    /// Returns the names of the plugins that are still being loaded or compiled.
    pub fn compiling(&self) -> Vec<String> {
        let known = self.known.values().filter(|plugin| !plugin.is_settled());
        known.map(|plugin| plugin.name.clone()).collect()
    }

    /// Returns the plugins that could not be loaded, with their problems.
    pub fn failed(&self) -> impl Iterator<Item = (&str, PluginProblem)> {
        let settled = self.known.values().filter(|plugin| plugin.is_settled());
        settled.filter_map(|plugin| Some((plugin.name.as_str(), plugin.problem()?)))
    }
}

/// Returns the default limits of a plugin's call.
fn limits(config: &Config) -> Limits {
    Limits {
        // Several scripts may each take the whole deadline, and the plugin itself needs little time.
        time: config.environment.deadline.0.saturating_mul(4),
        memory: config.limits.plugin_memory,
        ..Limits::default()
    }
}
