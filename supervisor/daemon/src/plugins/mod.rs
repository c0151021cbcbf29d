//! The plugins of one configuration: each loaded on its own, counted, and suspended when it keeps failing.
//!
//! A set is made with its configuration and goes with it: what is loaded for a launch is what that launch has until its end, whatever is
//! read again meanwhile. One that cannot be loaded is in the set all the same, with its problem, and stands in no other's way.
//!
//! Not its job: what a call is for and what it is answered with (`env`), and the box (`agentd_plugins`).

mod health;
mod managed;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use agentd_api::Problem;
use agentd_api::plugin::{PluginProblem, PluginView};
use agentd_plugins::{
    BuiltIn, Grant, Host, HostError, HostOptions, Limits, LoadError, Plugin, Setting, Source, Terms, World,
};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;

pub(crate) use health::Outcome;
pub(crate) use managed::{Managed, NotCalled};

use crate::config::{self, Config, Prerequisite, Provider};
use crate::directories::Directories;
use crate::message::chain;
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

/// Plugins that are loaded at once: each that is not in the cache is compiled in a child, which takes a core.
const AT_ONCE: usize = 2;

/// Where plugins' files lie that the configuration gives no place of.
#[derive(Debug, Clone)]
struct Folders {
    system: PathBuf,
    user: PathBuf,
}

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
    /// Loads every plugin that the configuration declares or uses, compiling what is not in the cache. None is loaded where the
    /// configuration is refused: what is read of it may lack what it denies.
    pub(crate) async fn load(
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
        let (mut loading, turns) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
        for name in names {
            let declared = config.plugins.get(name).cloned().unwrap_or_default();
            let uses = config.environment.providers.iter().filter(|used| used.plugin == *name).cloned().collect();
            let of_it = |(_, prerequisite): &(&String, &Prerequisite)| prerequisite.plugin == *name;
            let checks = config.prerequisites.iter().filter(of_it);
            let checks = checks.map(|(name, prerequisite)| (name.clone(), prerequisite.settings.clone())).collect();
            let (name, deny) = (name.clone(), config.plugin_policy.deny.clone());
            let mistake = refused.as_ref().map(|problem| problem.detail.clone()).or_else(|| declared.mistake.clone());
            let asked = Asked { name, declared, uses, checks, deny, mistake };
            let (host, folders, turns, limits) = (host.clone(), folders.clone(), Arc::clone(&turns), limits(config));
            loading.spawn(async move {
                let _turn = turns.acquire_owned().await;
                asked.load(&host, &folders, limits).await
            });
        }
        let known: BTreeMap<String, Arc<Managed>> = loading
            .join_all()
            .await
            .into_iter()
            .map(|plugin: Managed| (plugin.name.clone(), Arc::new(plugin)))
            .collect();
        let uses = config.environment.providers.iter().filter_map(|used| {
            let plugin = known.get(&used.plugin)?;
            // What is wrong with them is the plugin's problem.
            let settings = combined(plugin.settings(), &used.settings).unwrap_or_default();
            Some(Use { name: used.step().to_owned(), plugin: Arc::clone(plugin), settings })
        });
        let uses = uses.collect();
        Ok(Self { known, uses })
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

    /// Those that could not be loaded, with their problems.
    pub(crate) fn failed(&self) -> impl Iterator<Item = (&str, &PluginProblem)> {
        self.known.values().filter_map(|plugin| Some((plugin.name.as_str(), plugin.problem()?)))
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

/// One plugin, to be loaded.
struct Asked {
    name: String,
    declared: config::Plugin,
    uses: Vec<Provider>,
    /// The prerequisites that it checks, with their settings.
    checks: Vec<(String, toml::Table)>,
    /// What the administrator denies to plugins that users declare.
    deny: Grant,
    /// Of the configuration, for which it is not loaded.
    mistake: Option<String>,
}

/// Why a plugin is not loaded.
#[derive(Debug, thiserror::Error)]
enum Unloadable {
    #[error("the configuration has a mistake: {0}")]
    Mistake(String),
    #[error("there is no {first:?}, and no {second:?}")]
    NoFile { first: PathBuf, second: PathBuf },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{plugin:?} is a {world}, and environment.providers takes providers")]
    NotAProvider { plugin: String, world: World },
    #[error("{plugin:?} is a {world}, and prerequisites.{name} takes one that checks")]
    NotACheck { plugin: String, name: String, world: World },
    #[error(transparent)]
    Setting(#[from] SettingError),
}

impl Unloadable {
    fn problem(&self) -> PluginProblem {
        let (code, hint) = match self {
            Self::Mistake(_) => {
                ("configuration-invalid", Some("correct the file, then run `agentctl reload`".to_owned()))
            }
            Self::NoFile { .. } => ("plugin-unreadable", Some("or say where it is: file = \"/PATH\"".to_owned())),
            Self::Load(error) => (error.code(), error.hint()),
            Self::NotAProvider { .. } | Self::NotACheck { .. } => ("plugin-wrong-world", None),
            Self::Setting(_) => ("plugin-settings", None),
        };
        PluginProblem { code: code.to_owned(), detail: chain(self), hint }
    }
}

impl Asked {
    async fn load(self, host: &Host, folders: &Folders, limits: Limits) -> Managed {
        let builtin = agentd_plugins::builtin().iter().find(|builtin| builtin.name == self.name);
        let grant = self.declared.grant.clone().or_else(|| builtin.map(BuiltIn::grant)).unwrap_or_default();
        let source = match (builtin, &self.mistake) {
            (_, Some(mistake)) => Err(Unloadable::Mistake(mistake.clone())),
            (Some(builtin), None) => Ok(Source::BuiltIn { name: builtin.name, bytes: builtin.bytes }),
            (None, None) => self.file(folders).await,
        };
        let shown = match &source {
            Ok(Source::File { path, .. }) => path.display().to_string(),
            Ok(Source::BuiltIn { .. }) => "built-in".to_owned(),
            Err(Unloadable::NoFile { first, .. }) => first.display().to_string(),
            Err(_) => String::new(),
        };
        let loaded = match source {
            Ok(source) => self.linked(host, source, &grant).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &loaded {
            tracing::error!(agentd.plugin = self.name, error = %chain(error), "the plugin cannot be loaded");
        }
        let loaded = loaded.map_err(|error| error.problem());
        let checks = self.checks.iter().map(|(name, _)| name.clone());
        let used_by = self.uses.iter().map(|used| used.step().to_owned()).chain(checks).collect();
        Managed::new(self.name, self.declared, loaded, managed::About { source: shown, grant, used_by }, limits)
    }

    async fn linked(&self, host: &Host, source: Source, grant: &Grant) -> Result<Plugin, Unloadable> {
        let used = self.uses.iter().map(|used| &used.settings).chain(self.checks.iter().map(|(_, settings)| settings));
        let settings = used.map(|of_use| combined(&self.declared.settings, of_use));
        let terms = Terms {
            name: Some(self.name.clone()),
            grant: grant.clone(),
            deny: self.declared.origin.of_user.then(|| self.deny.clone()),
            settings: settings.collect::<Result<_, _>>()?,
        };
        let plugin = host.load_on(source, terms).await?;
        if !self.uses.is_empty() && plugin.world() != World::Provider {
            return Err(Unloadable::NotAProvider { plugin: self.name.clone(), world: plugin.world() });
        }
        if let Some((name, _)) = self.checks.first().filter(|_| plugin.world() != World::Prerequisite) {
            let (plugin, world) = (self.name.clone(), plugin.world());
            return Err(Unloadable::NotACheck { plugin, name: name.clone(), world });
        }
        Ok(plugin)
    }

    /// The file that is named, else the first that is there: the administrator's before the user's.
    async fn file(&self, folders: &Folders) -> Result<Source, Unloadable> {
        let sha256 = self.declared.sha256.map(|pin| pin.0);
        if let Some(path) = self.declared.file.clone() {
            return Ok(Source::File { path, sha256 });
        }
        let name = format!("{}.wasm", self.name);
        let (first, second) = (folders.system.join(&name), folders.user.join(&name));
        for path in [&first, &second] {
            if tokio::fs::try_exists(path).await.unwrap_or(true) {
                return Ok(Source::File { path: path.clone(), sha256 });
            }
        }
        Err(Unloadable::NoFile { first, second })
    }
}
