//! Finds the configuration's declaration of a plugin file.

use std::path::{Path, PathBuf};

use agentd_plugin_host::{Grant, Setting};

use super::ToolError;
use agentd_config as config;
use agentd_host::directories::{Directories, DirectoryOptions};
use agentd_plugin_set::combined;

/// Declaration of a plugin. Contains only the name if the configuration does not declare the plugin.
#[derive(Debug, Default)]
pub(super) struct Declared {
    pub(super) name: String,
    /// The file that declares the plugin.
    pub(super) file: Option<PathBuf>,
    /// SHA-256 of the component in hexadecimal digits.
    pub(super) pin: Option<String>,
    pub(super) grant: Grant,
    /// Patterns that the administrator denies to this plugin.
    pub(super) deny: Option<Grant>,
    /// Settings of each use of the plugin.
    pub(super) settings: Vec<Vec<Setting>>,
}

impl Declared {
    /// Finds the declaration by `name` if given, otherwise by the file, otherwise by `own`, the component's own name.
    pub(super) fn of(file: &Path, name: Option<&str>, own: &str, places: &DirectoryOptions) -> Result<Self, ToolError> {
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
            // A declaration left out because of a mistake may be the requested declaration.
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
