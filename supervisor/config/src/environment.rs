//! `[environment]`: sources and providers of the sessions' environments.

use std::fmt;
use std::path::PathBuf;

use agentd_api::environment::{Refresh, RunnerNames, SnapshotScope, SnapshotSource};
use agentd_api::quantity::Time;
use nix::unistd::{User, getuid};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::seconds;

/// Source and processing of the sessions' environments.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Environment {
    /// Home directory for login shells. Default: the home directory in the user database.
    pub home: Option<PathBuf>,
    /// Login shell, as an absolute path. Default: the login shell in the user database.
    pub shell: Option<PathBuf>,
    /// Terminal type that login shells find in `TERM`. Default: `xterm-256color`.
    pub term: Option<String>,
    /// Files of a login that are read before the shell's first start-up file: any of `login-defs`, `environment-d`,
    /// `pam-env`, `etc-environment`, `locale` and `pam-environment`. Default: all of them except `pam-environment`.
    pub sources: Vec<LoginSource>,
    /// Time limit of a login shell and of each script. Default: 30 s.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub deadline: Time,
    /// Initial environment of sessions whose request names none: `login-shell`, `terminal` or `stored`. Default:
    /// `login-shell`.
    pub source: SnapshotSource,
    /// How launches after the first treat the environment of the previous launch: `stored`, `fresh` or `warn`.
    /// Default: `fresh`.
    pub refresh: Refresh,
    /// Whether sessions of one directory share a terminal's or a stored environment. Default: `false`.
    pub share: bool,
    /// Time after which the login shell's environment is captured again, although no file has changed. Default: 24 h.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub snapshot_ttl: Time,
    /// Value of `snapshot_ttl` for shells that do not report which files they read. Default: 10 min.
    #[cfg_attr(feature = "schema", schemars(with = "super::schema::Time"))]
    pub snapshot_ttl_incomplete: Time,
    /// Directory in which the login shell's environment is captured: `user` for the home directory, `directory` for
    /// the session's directory. Default: `directory` if the hook of a tool such as direnv or mise is installed and
    /// finds a file there, otherwise `user`.
    pub snapshot_scope: Option<SnapshotScope>,
    /// Encryption of stored environments.
    pub encryption: Encryption,
    /// Providers in the order in which they run: names of plugins, or tables with `plugin`, `name` and `settings`.
    /// Default: `["snapshot", "whitelist", "env-script"]`.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<super::schema::Provider>"))]
    pub providers: Vec<Provider>,
    /// Action for background processes of a login shell or a script: `kill` or `leave`. Default: `kill`.
    pub children: Children,
    /// Recipients of exported bash functions of the login shell and of scripts: `scripts`, `agent` or `drop`.
    /// Default: `scripts`.
    pub functions: Functions,
    /// Runner of agents under whose names for variables agents find their session too: `none` or `ambient`. Default:
    /// `none`.
    pub compatibility: RunnerNames,
}

/// Action for the background processes of a login shell or a script.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Children {
    /// The processes are killed.
    #[default]
    Kill,
    /// The processes continue to run. They are killed all the same if the deadline ends the run.
    Leave,
}

/// Recipients of exported bash functions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Functions {
    /// Only environment scripts, which use functions such as `module`.
    #[default]
    Scripts,
    /// Environment scripts and the agent.
    Agent,
    /// No process. The functions are dropped.
    Drop,
}

/// Encryption of stored environments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(default, deny_unknown_fields)]
pub struct Encryption {
    /// Whether files are encrypted at their next write. Encrypted files are read in any case. Default: `false`.
    pub enabled: bool,
    /// Key for encryption: `"generated"`, `{ credential = "NAME" }` or `{ file = "/PATH" }`. Default: `"generated"`.
    pub key: KeySource,
    /// Former keys that existing files may still need, in the form of `key`. Default: none.
    pub previous: Vec<KeySource>,
}

/// Source of an encryption key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum KeySource {
    /// A file in the state directory, which agentd creates.
    #[default]
    Generated,
    /// A credential of the systemd service, by its name.
    Credential(String),
    /// A file, as an absolute path.
    File(PathBuf),
}

/// A provider of the pipeline: a plugin's name, or a table with more keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Provider {
    /// Name of the plugin: a `[plugins.NAME]` or a built-in one. Required.
    pub plugin: String,
    /// Name of this provider in provenance and messages. Default: the plugin's name.
    pub name: Option<String>,
    /// Settings for this use. They override the plugin's own settings key by key. Default: none.
    pub settings: toml::Table,
}

impl Provider {
    /// Returns a provider that has only a plugin's name.
    pub fn named(plugin: &str) -> Self {
        Self { plugin: plugin.to_owned(), ..Self::default() }
    }

    /// Returns the name of this step of the pipeline.
    pub fn step(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.plugin)
    }
}

/// Serializes a provider that has only a plugin's name, for the default value in the schema.
#[cfg(feature = "schema")]
impl serde::Serialize for Provider {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.plugin)
    }
}

impl<'de> Deserialize<'de> for Provider {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ProviderVisitor)
    }
}

/// Parses a [`Provider`]. A derived untagged enum could not report which key is wrong.
struct ProviderVisitor;

impl<'de> Visitor<'de> for ProviderVisitor {
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

impl Environment {
    /// Returns the home directory of the sessions: `home` of the configuration, else that of the user database
    /// (passwd(5)). agentd's own `HOME` may name another directory.
    pub fn home_directory(&self) -> Option<PathBuf> {
        let of_user = || User::from_uid(getuid()).ok().flatten().map(|user| user.dir);
        self.home.clone().or_else(of_user)
    }
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            home: None,
            shell: None,
            term: None,
            sources: LoginSource::DEFAULT.to_vec(),
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
            compatibility: RunnerNames::default(),
        }
    }
}

/// A source of variables at a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum LoginSource {
    /// `PATH` of `/etc/login.defs`: `ENV_SUPATH` for root, `ENV_PATH` for others.
    LoginDefs,
    /// Directories of environment.d(5), which the user manager of systemd reads.
    EnvironmentD,
    /// `/etc/security/pam_env.conf`.
    PamEnv,
    /// `/etc/environment`.
    EtcEnvironment,
    /// `/etc/default/locale` and `/etc/locale.conf`.
    Locale,
    /// `~/.pam_environment`, which current versions of PAM ignore.
    PamEnvironment,
}

impl LoginSource {
    /// Sources that are read by default.
    pub const DEFAULT: [Self; 5] =
        [Self::LoginDefs, Self::EnvironmentD, Self::PamEnv, Self::EtcEnvironment, Self::Locale];
}
