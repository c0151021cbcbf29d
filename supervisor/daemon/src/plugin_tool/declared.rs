//! What the configuration says of a file that somebody takes for a plugin.

use std::path::{Path, PathBuf};

use agentd_plugins::{Grant, Setting};

use super::ToolError;
use crate::config;
use crate::directories::{Directories, Places};
use crate::plugins::combined;

/// A plugin of the configuration; but for its name nothing, where none is meant.
#[derive(Debug, Default)]
pub(super) struct Declared {
    pub(super) name: String,
    /// The file that declares it.
    pub(super) file: Option<PathBuf>,
    /// In hexadecimal digits.
    pub(super) pin: Option<String>,
    pub(super) grant: Grant,
    /// What the administrator denies it.
    pub(super) deny: Option<Grant>,
    /// Of each of its uses.
    pub(super) settings: Vec<Vec<Setting>>,
}

impl Declared {
    /// The plugin of this name, else the one that has this file, else the one that is called as the component calls itself.
    pub(super) fn of(file: &Path, name: Option<&str>, own: &str, places: &Places) -> Result<Self, ToolError> {
        let directories = Directories::find(places)?;
        let config::Loaded { config, read } = config::load(&directories.sources(None));
        let mistaken = || {
            let mistakes: Vec<String> = read.mistakes.iter().map(ToString::to_string).collect();
            ToolError::Config(mistakes.join("; "))
        };
        if read.refuses() {
            return Err(mistaken());
        }
        let same = |path: &Path| match (path.canonicalize(), file.canonicalize()) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        };
        let has_file = |name: &String, plugin: &config::Plugin| {
            let found = |directory: &Path| directory.join("plugins").join(format!("{name}.wasm"));
            match &plugin.file {
                Some(file) => same(file),
                None => same(&found(&directories.system_config)) || same(&found(&directories.config)),
            }
        };
        let found =
            || config.plugins.iter().find(|(name, plugin)| has_file(name, plugin)).map(|(name, _)| name.clone());
        let name = name.map(str::to_owned).or_else(found).unwrap_or_else(|| own.to_owned());
        let Some(plugin) = config.plugins.get(&name) else {
            // A declaration that was left out for a mistake may be the one that is meant.
            return if read.mistakes.is_empty() { Ok(Self { name, ..Self::default() }) } else { Err(mistaken()) };
        };
        if let Some(mistake) = &plugin.mistake {
            return Err(ToolError::Config(mistake.clone()));
        }
        let uses = config.environment.providers.iter().filter(|used| used.plugin == name);
        let settings = uses
            .map(|used| combined(&plugin.settings, &used.settings))
            .collect::<Result<_, _>>()
            .map_err(|source| ToolError::Setting { plugin: name.clone(), source })?;
        Ok(Self {
            file: plugin.origin.file.clone(),
            pin: plugin.sha256.map(|pin| pin.to_string()),
            grant: plugin.grant.clone().unwrap_or_default(),
            deny: plugin.origin.of_user.then(|| config.plugin_policy.deny.clone()),
            settings,
            name,
        })
    }
}
