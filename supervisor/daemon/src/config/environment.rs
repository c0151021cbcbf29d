//! `[environment]`: where sessions' environments come from.

use std::fmt;
use std::path::PathBuf;

use agentd_api::environment::{Refresh, SnapshotScope, SnapshotSource};
use agentd_api::quantity::Time;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::seconds;
use crate::env::sources::Source;

/// Where the environment comes from.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Environment {
    /// The home directory that login shells are given; without it, that of the user database.
    pub(crate) home: Option<PathBuf>,
    /// The login shell; without it, that of the user database.
    pub(crate) shell: Option<PathBuf>,
    /// What kind of terminal login shells find in TERM; without it, `xterm-256color`.
    pub(crate) term: Option<String>,
    /// What a login has besides the shell: the files that are read before its first start-up file.
    pub(crate) sources: Vec<Source>,
    /// How long a login shell or a script may take.
    pub(crate) deadline: Time,
    /// What sessions begin with that do not say.
    pub(crate) source: SnapshotSource,
    /// What launches after the first do with the environment of the one before.
    pub(crate) refresh: Refresh,
    /// Whether the sessions of one directory share a terminal's environment.
    pub(crate) share: bool,
    /// How long a login shell's environment is used before it is taken again though no file has changed.
    pub(crate) snapshot_ttl: Time,
    /// The time to live where the shell does not say which files it read.
    pub(crate) snapshot_ttl_incomplete: Time,
    /// Whether the login shell's environment is that of the home or of the session's directory. Without it, it is the directory's
    /// where the hook of a tool (direnv, mise) is installed and finds a file there.
    pub(crate) snapshot_scope: Option<SnapshotScope>,
    /// How what is kept of environments lies on the disk.
    pub(crate) encryption: Encryption,
    /// The providers, in order.
    pub(crate) providers: Vec<Provider>,
    /// What becomes of processes that a login shell or a script started in the background.
    pub(crate) children: Children,
    /// Who is given exported bash functions, of the login shell and of scripts.
    pub(crate) functions: Functions,
}

/// See [`Environment::children`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Children {
    #[default]
    Kill,
    /// They live on; at a deadline they are killed all the same.
    Leave,
}

/// See [`Environment::functions`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Functions {
    /// Environment scripts, which is where `module` is wanted.
    #[default]
    Scripts,
    /// Those and the agent.
    Agent,
    /// Nobody.
    Drop,
}

/// Encryption of what is kept of environments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Encryption {
    /// Whether files are sealed when they are next written. Sealed ones are read in any case.
    pub(crate) enabled: bool,
    /// The key that is sealed with.
    pub(crate) key: KeySource,
    /// Keys that were used before and that files may still need.
    pub(crate) previous: Vec<KeySource>,
}

/// Where a key is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KeySource {
    /// In the state directory, where agentd makes it.
    #[default]
    Generated,
    /// A credential of the service, by its name.
    Credential(String),
    File(PathBuf),
}

/// One provider of the pipeline: a plugin's name, or a table with it and more.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Provider {
    /// One of `[plugins]`, or a built-in one.
    pub(crate) plugin: String,
    /// The name it goes by in provenance and messages; without it, the plugin's.
    pub(crate) name: Option<String>,
    /// For this use; key by key they take the place of the plugin's own.
    pub(crate) settings: toml::Table,
}

impl Provider {
    pub(crate) fn named(plugin: &str) -> Self {
        Self { plugin: plugin.to_owned(), ..Self::default() }
    }

    /// The name that this step of the pipeline goes by.
    pub(crate) fn step(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.plugin)
    }
}

impl<'de> Deserialize<'de> for Provider {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Entry)
    }
}

/// By hand, because an untagged enum cannot say which key is wrong.
struct Entry;

impl<'de> Visitor<'de> for Entry {
    type Value = Provider;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plugin's name, or a table with plugin, name and settings")
    }

    fn visit_str<E>(self, plugin: &str) -> Result<Provider, E> {
        Ok(Provider::named(plugin))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Provider, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            plugin: String,
            name: Option<String>,
            #[serde(default)]
            settings: toml::Table,
        }
        let Table { plugin, name, settings } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Provider { plugin, name, settings })
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            home: None,
            shell: None,
            term: None,
            sources: Source::DEFAULT.to_vec(),
            deadline: seconds(30),
            source: SnapshotSource::default(),
            refresh: Refresh::default(),
            share: false,
            snapshot_ttl: seconds(24 * 3600),
            snapshot_ttl_incomplete: seconds(10 * 60),
            snapshot_scope: None,
            encryption: Encryption::default(),
            providers: ["snapshot", "whitelist", "env-script"].map(Provider::named).to_vec(),
            children: Children::default(),
            functions: Functions::default(),
        }
    }
}
