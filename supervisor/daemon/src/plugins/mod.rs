//! The plugins of one configuration: each loaded on its own, counted, and suspended when it keeps failing.
//!
//! A set is made with its configuration and goes with it: what is loaded for a launch is what that launch has until its end, whatever is
//! read again meanwhile. One that cannot be loaded is in the set all the same, with its problem, and stands in no other's way. A launch
//! waits for the plugins that it needs, and has those loaded again that failed for a reason of the moment or whose file has changed.
//!
//! Not its job: what a call is for and what it is answered with (`env`), and the box (`agentd_plugins`).

mod health;
mod loading;
mod managed;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::Problem;
use agentd_api::plugin::{PluginProblem, PluginView};
use agentd_plugins::{Host, HostError, HostOptions, Limits, Setting};
use tokio::sync::OnceCell;

pub(crate) use health::{Broke, Outcome};
pub(crate) use managed::{Managed, NotCalled, Stage};

use crate::config::{Config, Prerequisite};
use crate::directories::Directories;
use loading::{Asked, Folders};
pub(crate) use settings::{SettingError, combined};

/// The folder of plugins in a configuration directory.
const PLUGINS: &str = "plugins";

/// The plugins of one configuration.
#[derive(Debug, Default)]
pub(crate) struct Plugins {
    known: BTreeMap<String, Arc<Managed>>,
    /// One for each entry of `environment.providers`, in its order.
    pub(crate) uses: Vec<Use>,
}

/// A plugin as one step of the pipeline.
#[derive(Debug, Clone)]
pub(crate) struct Use {
    pub(crate) name: String,
    pub(crate) plugin: Arc<Managed>,
    pub(crate) settings: Vec<Setting>,
}

/// The host of all plugins; it is made when it is first needed, and tried again by the next who needs it if that failed.
#[derive(Debug)]
pub(crate) struct HostOnce {
    host: OnceCell<Host>,
    cache: PathBuf,
    compiler: PathBuf,
}

/// There is no plugin without it.
#[derive(Debug, thiserror::Error)]
#[error("the plugin host could not be started")]
pub(crate) struct NoHost(#[source] HostError);

/// How long an answer about all plugins waits for those that are being compiled.
pub(crate) const SETTLED: Duration = Duration::from_secs(10);

impl HostOnce {
    /// `compiler`: the program that compiles a component when it is run as `PROGRAM compile`.
    pub(crate) fn new(cache: PathBuf, compiler: PathBuf) -> Self {
        Self { host: OnceCell::new(), cache, compiler }
    }

    async fn get(&self) -> Result<&Host, NoHost> {
        let make = || async { Host::new(HostOptions::new(self.cache.clone(), self.compiler.clone())) };
        self.host.get_or_try_init(make).await.map_err(NoHost)
    }
}

impl Plugins {
    /// Begins to load every plugin that the configuration declares or uses, compiling what is not in the cache. Does not wait for that.
    /// None is loaded where the configuration is refused: what is read of it may lack what it denies.
    pub(crate) async fn begin(
        host: &HostOnce,
        config: &Config,
        directories: &Directories,
        refused: Option<Problem>,
    ) -> Result<Self, NoHost> {
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
            let asked = Asked {
                name: name.clone(),
                declared,
                uses,
                checks,
                deny: config.plugin_policy.deny.clone(),
                mistake,
                folders: folders.clone(),
                host: host.clone(),
            };
            let managed = Arc::new(Managed::new(asked, limits(config)));
            managed.begin();
            known.insert(name.clone(), managed);
        }
        let uses = config.environment.providers.iter().filter_map(|used| {
            let plugin = known.get(&used.plugin)?;
            // What is wrong with them is the plugin's problem.
            let settings = combined(plugin.settings(), &used.settings).unwrap_or_default();
            Some(Use { name: used.step().to_owned(), plugin: Arc::clone(plugin), settings })
        });
        let uses = uses.collect();
        Ok(Self { known, uses })
    }

    /// Waits until each plugin is loaded, or cannot be.
    pub(crate) async fn settled(&self) {
        for plugin in self.known.values() {
            plugin.settled().await;
        }
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Managed>> {
        self.known.get(name)
    }

    pub(crate) fn views(&self) -> Vec<PluginView> {
        let now = Instant::now();
        self.known.values().map(|plugin| plugin.view(now)).collect()
    }

    pub(crate) fn view(&self, name: &str) -> Option<PluginView> {
        self.known.get(name).map(|plugin| plugin.view(Instant::now()))
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// The names of those that are neither loaded nor known to be impossible to load.
    pub(crate) fn compiling(&self) -> Vec<String> {
        let known = self.known.values().filter(|plugin| !plugin.is_settled());
        known.map(|plugin| plugin.name.clone()).collect()
    }

    /// Those that could not be loaded, with their problems.
    pub(crate) fn failed(&self) -> impl Iterator<Item = (&str, PluginProblem)> {
        let settled = self.known.values().filter(|plugin| plugin.is_settled());
        settled.filter_map(|plugin| Some((plugin.name.as_str(), plugin.problem()?)))
    }
}

/// Of a call of a plugin that says nothing else.
fn limits(config: &Config) -> Limits {
    Limits {
        // Several scripts may each take the whole deadline; the plugin itself needs next to nothing.
        time: config.environment.deadline.0.saturating_mul(4),
        memory: config.limits.plugin_memory,
        ..Limits::default()
    }
}
