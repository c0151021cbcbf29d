//! `[plugins.NAME]` and `[plugin_policy]`: the files and grants of plugins, and the administrator's rules for users'
//! plugins.
//!
//! This module does not check whether a plugin's file exists and has the expected digest. That happens when the
//! plugin is loaded.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use agentd_api::plugin::OnFailure;
use agentd_api::quantity::{Time, some_size};
use agentd_plugin_host::{BuiltIn, Grant, World};
use serde::Deserialize;

use super::is_scope_step;
use super::{Flaws, Provider, flaw};

/// A plugin.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Plugin {
    /// File of the plugin's component, as an absolute path. Default: `NAME.wasm` in the administrator's plugin
    /// directory, then in the user's. A built-in plugin has no file.
    pub file: Option<PathBuf>,
    /// SHA-256 of the file, as 64 hexadecimal digits. Required, except for a built-in plugin, which cannot have one.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Pin>"))]
    pub sha256: Option<Sha256Pin>,
    /// Capabilities of the plugin. Default: none for a plugin from a file, and the capabilities it needs for a
    /// built-in plugin.
    pub grant: Option<Grant>,
    /// Settings for every use of the plugin. Settings of a use override them key by key. Default: none.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Settings"))]
    pub settings: toml::Table,
    /// Action of a launch if the plugin fails: `fail` or `skip`. Default: `fail`. The built-in `whitelist` cannot be
    /// skipped.
    pub on_failure: OnFailure,
    /// Limits of one call of the plugin.
    pub limits: PluginLimits,
    /// Declaration of the plugin. It is not a key of the configuration.
    #[serde(skip)]
    pub origin: Origin,
    /// Mistake in the user's declaration. The plugin is then listed and cannot be loaded. It is not a key of the
    /// configuration.
    #[serde(skip)]
    pub mistake: Option<String>,
}

/// The file that declares a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// Last file that declares the plugin. `None` for a built-in plugin that is only used.
    pub file: Option<PathBuf>,
    /// Whether the file is the user's, so that the policy applies to the plugin.
    pub of_user: bool,
}

/// Limits of one call of a plugin. A limit that is left out has its general value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(default, deny_unknown_fields)]
pub struct PluginLimits {
    /// Time limit of a call, including host calls. Default: four times `environment.deadline`. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub time: Option<Time>,
    /// Memory limit in bytes. Default: the value of `limits.plugin_memory`. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Size>"))]
    #[serde(deserialize_with = "some_size")]
    pub memory: Option<usize>,
    /// Maximum size in bytes of data that the plugin passes to the host at once. Default: 4 MiB. 0 is refused.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Size>"))]
    #[serde(deserialize_with = "some_size")]
    pub output: Option<usize>,
    /// Maximum number of log messages. Further messages are counted and dropped. Default: 200.
    pub log: Option<u32>,
}

/// Rules of the administrator for the plugins that users declare.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Whether a user's file may declare plugins. Default: `true`.
    pub user_plugins: bool,
    /// Capabilities that users' plugins never have, whatever their grants contain. Default: none.
    pub deny: Grant,
}

impl Default for Policy {
    fn default() -> Self {
        Self { user_plugins: true, deny: Grant::default() }
    }
}

/// A SHA-256 digest, written as 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Sha256Pin(pub [u8; 32]);

impl fmt::Display for Sha256Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&agentd_api::hex(&self.0))
    }
}

impl TryFrom<String> for Sha256Pin {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const WRONG: &str = "a SHA-256 is 64 hexadecimal digits, as `sha256sum` prints them";
        let mut pin = [0_u8; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(WRONG);
        }
        for (n, byte) in pin.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).map_err(|_| WRONG)?;
        }
        Ok(Self(pin))
    }
}

/// Name of the built-in provider that drops variables which agents must not receive.
pub const WHITELIST: &str = "whitelist";
/// Name of the built-in provider that gives the environment of the login shell or of a terminal.
pub const SNAPSHOT: &str = "snapshot";

/// Returns the names of the built-in plugins of a world.
pub(super) fn of_world<'a>(world: World) -> impl Iterator<Item = &'a str> {
    let of_it = agentd_plugin_host::builtin().iter().filter(move |builtin| builtin.world == world);
    of_it.map(|builtin| builtin.name)
}

fn is_built_in(name: &str) -> bool {
    agentd_plugin_host::builtin().iter().any(|builtin| builtin.name == name)
}

/// Returns the mistakes of plugins, policy and providers that show without reading a plugin's file.
pub(super) fn check(plugins: &BTreeMap<String, Plugin>, policy: &Policy, providers: &[Provider]) -> Flaws {
    let mut flaws = Flaws::new();
    if let Err(error) = policy.deny.check() {
        flaws.push(flaw(&["plugin_policy", "deny"], format!("plugin_policy.deny: {error}")));
    }
    if let Some(command) = policy.deny.command.iter().find(|command| !command.variables.is_empty()) {
        let message = format!(
            "plugin_policy.deny.command {:?} has variables; remove them, because the denial covers all variables",
            command.run
        );
        flaws.push(flaw(&["plugin_policy", "deny"], message));
    }
    for (name, plugin) in plugins {
        if let Err((key, message)) = check_plugin(name, plugin) {
            let key: Vec<&str> = ["plugins", name].into_iter().chain(key.iter().copied()).collect();
            flaws.push(flaw(&key, message));
        }
    }
    let wrong = providers.iter().find_map(|provider| check_provider(provider, plugins).err());
    flaws.extend(wrong.map(|message| flaw(&["environment", "providers"], message)));
    flaws
}

fn check_provider(provider: &Provider, plugins: &BTreeMap<String, Plugin>) -> Result<(), String> {
    let plugin = &provider.plugin;
    if plugin.contains('/') {
        return Err(format!(
            "environment.providers names the file {plugin:?}; declare it as [plugins.NAME] file = {plugin:?} \
             and use that name"
        ));
    }
    let is_prerequisite = |builtin: &BuiltIn| builtin.name == plugin.as_str() && builtin.world == World::Prerequisite;
    if agentd_plugin_host::builtin().iter().any(is_prerequisite) {
        return Err(format!(
            "environment.providers names {plugin:?}, which is a prerequisite; use it as \
             [prerequisites.NAME] plugin = {plugin:?}; plugins of the world `provider` are {}, and your own",
            of_world(World::Provider).collect::<Vec<_>>().join(", ")
        ));
    }
    if !plugins.contains_key(plugin) && !is_built_in(plugin) {
        let known: Vec<&str> = of_world(World::Provider).chain(plugins.keys().map(String::as_str)).collect();
        return Err(format!(
            "environment.providers names {plugin:?}, but there is no [plugins.{plugin}]; known plugins are {}",
            known.join(", ")
        ));
    }
    if is_scope_step(provider.step()) {
        return Err(format!(
            "an entry of environment.providers has the name {:?}, which is reserved for agentd's own steps; rename it",
            provider.step()
        ));
    }
    if provider.step().is_empty() {
        return Err(format!("an entry of environment.providers, of the plugin {plugin:?}, has an empty name"));
    }
    Ok(())
}

/// Key below the plugin, and the message about the mistake.
type PluginFlaw = (&'static [&'static str], String);

fn check_plugin(name: &str, plugin: &Plugin) -> Result<(), PluginFlaw> {
    if plugin.mistake.is_some() {
        return Ok(());
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err((&[], format!("plugins.{name:?} is not a valid plugin name; use 1 to 64 of a-z, 0-9 and -")));
    }
    if is_built_in(name) {
        if plugin.file.is_some() || plugin.sha256.is_some() {
            let message =
                format!("plugins.{name} has a file or a sha256, but is built in; give your plugin another name");
            return Err((&[], message));
        }
    } else if plugin.sha256.is_none() {
        return Err((&[], format!("plugins.{name} has no sha256; set it to the output of `sha256sum`")));
    }
    if let Some(file) = plugin.file.as_ref().filter(|file| !file.is_absolute()) {
        return Err((&["file"], format!("plugins.{name}: the file {} is not absolute", file.display())));
    }
    if let Some(grant) = &plugin.grant {
        grant.check().map_err(|error| (&["grant"][..], format!("plugins.{name}.grant: {error}")))?;
    }
    if name == WHITELIST && plugin.on_failure == OnFailure::Skip {
        let message =
            format!("plugins.{name}.on_failure is \"skip\", which would pass every variable to agents; use \"fail\"");
        return Err((&["on_failure"], message));
    }
    let PluginLimits { time, memory, output, log: _ } = plugin.limits;
    for (key, is_zero) in [
        (&["limits", "time"], time.is_some_and(|time| time.0.is_zero())),
        (&["limits", "memory"], memory == Some(0)),
        (&["limits", "output"], output == Some(0)),
    ] {
        if is_zero {
            return Err((key, format!("plugins.{name}.{} is 0; set a value above 0", key.join("."))));
        }
    }
    Ok(())
}
