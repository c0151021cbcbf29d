//! `[plugins.NAME]` and `[plugin_policy]`: which file a plugin is, what it may do, and what the administrator lets users declare.
//!
//! Whether a file is there and is the one that was pinned is seen when it is loaded, not here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use agentd_api::plugin::OnFailure;
use agentd_api::quantity::{Time, some_size};
use agentd_plugins::{BuiltIn, Grant, World};
use serde::Deserialize;

use super::{Flaws, Provider, flaw};
use crate::env::is_scope_step;

/// One plugin.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Plugin {
    /// Its component. Without it, `NAME.wasm` among the administrator's plugins, then among the user's; a built-in one has none.
    pub(crate) file: Option<PathBuf>,
    /// Its file's SHA-256. A file without one is not loaded.
    pub(crate) sha256: Option<Pin>,
    /// What it may do; without it a file may do nothing, and a built-in one what it is built for.
    pub(crate) grant: Option<Grant>,
    /// For every use of it.
    pub(crate) settings: toml::Table,
    /// What becomes of a launch when it fails.
    pub(crate) on_failure: OnFailure,
    pub(crate) limits: PluginLimits,
    #[serde(skip)]
    pub(crate) origin: Origin,
    /// Why what a user's file says of it is left out; it is there to be named, and cannot be loaded.
    #[serde(skip)]
    pub(crate) mistake: Option<String>,
}

/// Where a plugin is declared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The last file that says something of it; none of a built-in one that is only used.
    pub(crate) file: Option<PathBuf>,
    /// Whether that is the user's own, so that the policy holds for it.
    pub(crate) of_user: bool,
}

/// Bounds of one call; what is left out is as for all plugins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PluginLimits {
    /// In all, host calls included.
    pub(crate) time: Option<Time>,
    /// Bytes of memory.
    #[serde(deserialize_with = "some_size")]
    pub(crate) memory: Option<usize>,
    /// Bytes that it may hand over at once.
    #[serde(deserialize_with = "some_size")]
    pub(crate) output: Option<usize>,
    /// Messages to the log.
    pub(crate) log: Option<u32>,
}

/// What the administrator says of the plugins that users declare.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Policy {
    /// Whether a user's file may declare any.
    pub(crate) user_plugins: bool,
    /// What they may not do, whatever they are granted.
    pub(crate) deny: Grant,
}

impl Default for Policy {
    fn default() -> Self {
        Self { user_plugins: true, deny: Grant::default() }
    }
}

/// A SHA-256, as 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Pin(pub(crate) [u8; 32]);

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl TryFrom<String> for Pin {
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

/// The built-in provider that keeps from agents what they must not have.
pub(super) const WHITELIST: &str = "whitelist";

/// The built-in plugins of a world.
pub(super) fn of_world<'a>(world: World) -> impl Iterator<Item = &'a str> {
    let of_it = agentd_plugins::builtin().iter().filter(move |builtin| builtin.world == world);
    of_it.map(|builtin| builtin.name)
}

fn is_built_in(name: &str) -> bool {
    agentd_plugins::builtin().iter().any(|builtin| builtin.name == name)
}

/// What can be said against the plugins and their uses without looking at a file.
pub(super) fn check(plugins: &BTreeMap<String, Plugin>, policy: &Policy, providers: &[Provider]) -> Flaws {
    let mut flaws = Flaws::new();
    if let Err(error) = policy.deny.check() {
        flaws.push(flaw(&["plugin_policy", "deny"], format!("plugin_policy.deny: {error}")));
    }
    if let Some(command) = policy.deny.command.iter().find(|command| !command.variables.is_empty()) {
        let message =
            format!("plugin_policy.deny.command {:?} has variables; a command is denied with any", command.run);
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
            "environment.providers names the file {plugin:?}; a file is declared as [plugins.NAME] file = {plugin:?}, \
             and used by that name"
        ));
    }
    let is_prerequisite = |builtin: &BuiltIn| builtin.name == plugin.as_str() && builtin.world == World::Prerequisite;
    if agentd_plugins::builtin().iter().any(is_prerequisite) {
        return Err(format!(
            "environment.providers names {plugin:?}, which is a prerequisite and gives no environment; it is used as \
             [prerequisites.NAME] plugin = {plugin:?}; of the world `provider` there are {}, and your own",
            of_world(World::Provider).collect::<Vec<_>>().join(", ")
        ));
    }
    if !plugins.contains_key(plugin) && !is_built_in(plugin) {
        let known: Vec<&str> = of_world(World::Provider).chain(plugins.keys().map(String::as_str)).collect();
        return Err(format!(
            "environment.providers names {plugin:?}, and there is no [plugins.{plugin}]; there are {}",
            known.join(", ")
        ));
    }
    if is_scope_step(provider.step()) {
        return Err(format!(
            "an entry of environment.providers has the name {:?}, as agentd's own steps have; give it another",
            provider.step()
        ));
    }
    if provider.step().is_empty() {
        return Err(format!("an entry of environment.providers, of the plugin {plugin:?}, has an empty name"));
    }
    Ok(())
}

/// The key below the plugin, and what is wrong there.
type Wrong = (&'static [&'static str], String);

fn check_plugin(name: &str, plugin: &Plugin) -> Result<(), Wrong> {
    if plugin.mistake.is_some() {
        return Ok(());
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err((&[], format!("plugins.{name:?} is no name of a plugin; a name is of a-z, 0-9 and -, at most 64")));
    }
    if is_built_in(name) {
        if plugin.file.is_some() || plugin.sha256.is_some() {
            let message =
                format!("plugins.{name} has a file or a sha256, and is part of agentd; give yours another name");
            return Err((&[], message));
        }
    } else if plugin.sha256.is_none() {
        return Err((&[], format!("plugins.{name} has no sha256; a file is loaded only with its pin")));
    }
    if let Some(file) = plugin.file.as_ref().filter(|file| !file.is_absolute()) {
        return Err((&["file"], format!("plugins.{name}: the file {} is not absolute", file.display())));
    }
    if let Some(grant) = &plugin.grant {
        grant.check().map_err(|error| (&["grant"][..], format!("plugins.{name}.grant: {error}")))?;
    }
    if name == WHITELIST && plugin.on_failure == OnFailure::Skip {
        let message =
            format!("plugins.{name}.on_failure is \"skip\": a launch without it would give agents everything");
        return Err((&["on_failure"], message));
    }
    let PluginLimits { time, memory, output, log: _ } = plugin.limits;
    for (key, is_zero) in [
        (&["limits", "time"], time.is_some_and(|time| time.0.is_zero())),
        (&["limits", "memory"], memory == Some(0)),
        (&["limits", "output"], output == Some(0)),
    ] {
        if is_zero {
            return Err((key, format!("plugins.{name}.{} is 0, which would let nothing through", key.join("."))));
        }
    }
    Ok(())
}
