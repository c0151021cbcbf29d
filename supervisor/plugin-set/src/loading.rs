//! Loads one plugin: finds its file and detects mistakes that the configuration alone does not show.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use agentd_api::hint;
use agentd_api::plugin::PluginProblem;
use agentd_plugin_host::{BuiltIn, Grant, Host, LoadError, LoadTerms, OnCompile, Plugin, Source, World};

use super::settings::{SettingError, combined};
use agentd_api::chain;
use agentd_config::{self as config, Provider};

/// Directories of plugins whose file the configuration does not name.
#[derive(Debug, Clone)]
pub(super) struct Folders {
    pub(super) system: PathBuf,
    pub(super) user: PathBuf,
}

/// Parameters for loading one plugin.
#[derive(Debug)]
pub(super) struct LoadRequest {
    pub(super) name: String,
    pub(super) declared: config::Plugin,
    pub(super) uses: Vec<Provider>,
    /// Prerequisites that the plugin checks, with their settings.
    pub(super) checks: Vec<(String, toml::Table)>,
    /// Capabilities that the administrator denies to plugins of users.
    pub(super) deny: Grant,
    /// Mistake of the configuration that prevents loading.
    pub(super) mistake: Option<String>,
    pub(super) folders: Folders,
    pub(super) host: Host,
}

/// Result of an attempt to load a plugin.
pub(super) struct LoadResult {
    /// `built-in`, or the path of the first candidate file.
    pub(super) source: String,
    pub(super) plugin: Result<Plugin, Unloadable>,
    /// State of the candidate files before the attempt.
    pub(super) stamp: Stamp,
}

/// State of the candidate files of a plugin, for detecting changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp(Vec<Option<Inode>>);

/// Device, inode number, size, and time of the last change in seconds and nanoseconds.
type Inode = (u64, u64, u64, i64, i64);

/// Reason why a plugin is not loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unloadable {
    #[error("the configuration has a mistake: {0}")]
    Mistake(String),
    #[error("neither {first:?} nor {second:?} exists")]
    NoFile { first: PathBuf, second: PathBuf },
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Loading the plugin panicked.
    #[error("internal error: loading the plugin panicked; report this with agentd's log")]
    Panicked,
    #[error("{plugin:?} is a {world}, but environment.providers needs a provider")]
    NotAProvider { plugin: String, world: World },
    #[error("{plugin:?} is a {world}, but prerequisites.{name} needs a prerequisite plugin")]
    NotACheck { plugin: String, name: String, world: World },
    #[error(transparent)]
    Setting(#[from] SettingError),
}

impl Unloadable {
    /// Reports whether another attempt may succeed although nothing has changed.
    pub(super) fn is_of_the_moment(&self) -> bool {
        match self {
            Self::Load(error) => error.is_temporary(),
            Self::Panicked => true,
            _ => false,
        }
    }

    pub(super) fn problem(&self) -> PluginProblem {
        let (code, hint) = match self {
            Self::Mistake(_) => ("configuration-invalid", Some(hint::RELOAD.to_owned())),
            Self::NoFile { .. } => {
                ("plugin-unreadable", Some("install the file, or set its path: file = \"/PATH\"".to_owned()))
            }
            Self::Load(error) => (error.code(), error.hint()),
            Self::Panicked => ("internal", Some(hint::RELOAD_OR_LAUNCH.to_owned())),
            Self::NotAProvider { .. } | Self::NotACheck { .. } => ("plugin-wrong-world", None),
            Self::Setting(_) => ("plugin-settings", None),
        };
        PluginProblem { code: code.to_owned(), detail: chain(self), hint }
    }
}

impl LoadRequest {
    /// Returns the plugin's grant: the grant of the configuration, else the capabilities that a built-in plugin
    /// needs.
    pub(super) fn grant(&self) -> Grant {
        self.declared.grant.clone().or_else(|| self.builtin().map(BuiltIn::grant)).unwrap_or_default()
    }

    pub(super) fn builtin(&self) -> Option<&'static BuiltIn> {
        agentd_plugin_host::builtin().iter().find(|builtin| builtin.name == self.name)
    }

    /// Returns the names of the pipeline steps and prerequisites that use the plugin.
    pub(super) fn used_by(&self) -> Vec<String> {
        let checks = self.checks.iter().map(|(name, _)| name.clone());
        self.uses.iter().map(|used| used.step().to_owned()).chain(checks).collect()
    }

    pub(super) async fn load(&self, on_compile: OnCompile) -> LoadResult {
        let stamp = self.stamp().await;
        let source = match (self.builtin(), &self.mistake) {
            (_, Some(mistake)) => Err(Unloadable::Mistake(mistake.clone())),
            (Some(builtin), None) => Ok(Source::BuiltIn { name: builtin.name, bytes: builtin.bytes }),
            (None, None) => self.file().await,
        };
        let shown = match &source {
            Ok(Source::File { path, .. }) => path.display().to_string(),
            Ok(Source::BuiltIn { .. }) => "built-in".to_owned(),
            Err(Unloadable::NoFile { first, .. }) => first.display().to_string(),
            Err(_) => String::new(),
        };
        let plugin = match source {
            Ok(source) => self.linked(source, on_compile).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &plugin {
            tracing::error!(agentd.plugin = self.name, error = %chain(error), "cannot load the plugin");
        }
        LoadResult { source: shown, plugin, stamp }
    }

    /// Returns the current state of the candidate files.
    pub(super) async fn stamp(&self) -> Stamp {
        let mut stamp = Vec::new();
        for path in self.places() {
            let file = tokio::fs::metadata(path).await.ok();
            stamp.push(file.map(|file| (file.dev(), file.ino(), file.len(), file.ctime(), file.ctime_nsec())));
        }
        Stamp(stamp)
    }

    /// Returns the paths of the candidate files. A built-in plugin has no candidates.
    fn places(&self) -> Vec<PathBuf> {
        let name = format!("{}.wasm", self.name);
        match (&self.declared.file, self.builtin()) {
            (_, Some(_)) => Vec::new(),
            (Some(path), None) => vec![path.clone()],
            (None, None) => vec![self.folders.system.join(&name), self.folders.user.join(&name)],
        }
    }

    /// Returns the result of an attempt that panicked.
    pub(super) async fn panicked(&self) -> LoadResult {
        let first = self.places().first().map(|path| path.display().to_string());
        let source = first.unwrap_or_else(|| "built-in".to_owned());
        LoadResult { source, plugin: Err(Unloadable::Panicked), stamp: self.stamp().await }
    }

    async fn linked(&self, source: Source, on_compile: OnCompile) -> Result<Plugin, Unloadable> {
        let used = self.uses.iter().map(|used| &used.settings).chain(self.checks.iter().map(|(_, settings)| settings));
        let settings = used.map(|of_use| combined(&self.declared.settings, of_use));
        let terms = LoadTerms {
            name: Some(self.name.clone()),
            grant: self.grant(),
            deny: self.declared.origin.of_user.then(|| self.deny.clone()),
            settings: settings.collect::<Result<_, _>>()?,
            any_variable: false,
            on_compile: Some(on_compile),
        };
        let plugin = self.host.load_with(source, terms).await?;
        if !self.uses.is_empty() && plugin.world() != World::Provider {
            return Err(Unloadable::NotAProvider { plugin: self.name.clone(), world: plugin.world() });
        }
        if let Some((name, _)) = self.checks.first().filter(|_| plugin.world() != World::Prerequisite) {
            let (plugin, world) = (self.name.clone(), plugin.world());
            return Err(Unloadable::NotACheck { plugin, name: name.clone(), world });
        }
        Ok(plugin)
    }

    /// Returns the configured file, else the first existing candidate: the administrator's before the user's.
    async fn file(&self) -> Result<Source, Unloadable> {
        let sha256 = self.declared.sha256.map(|pin| pin.0);
        if let Some(path) = self.declared.file.clone() {
            return Ok(Source::File { path, sha256 });
        }
        let name = format!("{}.wasm", self.name);
        let (first, second) = (self.folders.system.join(&name), self.folders.user.join(&name));
        for path in [&first, &second] {
            if tokio::fs::try_exists(path).await.unwrap_or(true) {
                return Ok(Source::File { path: path.clone(), sha256 });
            }
        }
        Err(Unloadable::NoFile { first, second })
    }
}
