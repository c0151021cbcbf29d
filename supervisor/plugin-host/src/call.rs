//! What goes into a call of a plugin and what comes out of it, in types that know nothing of WebAssembly.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::grant::{Capability, Places};
use crate::limits::Limits;
use crate::services::Services;

/// One call of a plugin.
#[derive(Clone)]
pub struct Call {
    /// None for a check that is made for no session; a provider must have one.
    pub session: Option<SessionFacts>,
    /// The environment so far.
    pub environment: Vec<(String, Vec<u8>)>,
    /// Names in it whose values another plugin wrote: to pass those on is to pass on what that plugin chose.
    pub foreign: Vec<String>,
    pub settings: Vec<Setting>,
    /// Where the places are that paths and patterns begin with.
    pub places: Places,
    /// What the host does for the plugin while the call lasts.
    pub services: Arc<dyn Services>,
    pub limits: Limits,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values of variables and settings may be secrets.
        f.debug_struct("Call")
            .field("session", &self.session)
            .field("variables", &self.environment.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What a plugin is told of the session that a call is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFacts {
    pub id: String,
    pub name: Option<String>,
    /// The agent's name in the configuration, or the program's name.
    pub agent: String,
    /// The working directory, absolute.
    pub directory: String,
    /// From 1: which launch of the session this is.
    pub launch: u64,
}

/// One entry of a plugin's configuration: a nested table's keys joined by dots, a scalar as a list of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub key: String,
    pub values: Vec<String>,
}

/// One change that a provider makes to the environment; changes are applied in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub effect: Effect,
    /// The file it came from, where the plugin knows one.
    pub origin: Option<String>,
    /// How long it holds; at least a second.
    pub valid_for: Option<Duration>,
}

/// What a change does.
#[derive(Clone, PartialEq, Eq)]
pub enum Effect {
    Set {
        name: String,
        value: Vec<u8>,
    },
    /// The variable goes. For a name that is not in the environment so far it says that the plugin left the variable out
    /// of what it captured, and why.
    Unset {
        name: String,
        reason: Option<String>,
    },
    /// An entry at the front of a colon-separated list; one that is there already is moved.
    Prepend {
        name: String,
        entry: Vec<u8>,
    },
    /// The same at the end.
    Append {
        name: String,
        entry: Vec<u8>,
    },
    /// A secret of the configuration, by its name there.
    Secret {
        name: String,
        secret: String,
    },
    /// A file of the session, whose path the variable holds.
    File {
        name: String,
        file_name: String,
        content: Vec<u8>,
    },
}

impl std::fmt::Debug for Effect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values may be secrets.
        let kind = match self {
            Self::Set { .. } => "Set",
            Self::Unset { .. } => "Unset",
            Self::Prepend { .. } => "Prepend",
            Self::Append { .. } => "Append",
            Self::Secret { .. } => "Secret",
            Self::File { .. } => "File",
        };
        f.debug_tuple(kind).field(&self.name()).finish_non_exhaustive()
    }
}

impl Effect {
    /// The variable that is changed.
    pub fn name(&self) -> &str {
        match self {
            Self::Set { name, .. }
            | Self::Unset { name, .. }
            | Self::Prepend { name, .. }
            | Self::Append { name, .. }
            | Self::Secret { name, .. }
            | Self::File { name, .. } => name,
        }
    }
}

impl From<Effect> for Change {
    fn from(effect: Effect) -> Self {
        Self { effect, origin: None, valid_for: None }
    }
}

impl Change {
    /// The variable gets this value.
    pub fn set(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Effect::Set { name: name.into(), value: value.into() }.into()
    }

    /// The variable goes, or was left out of what the plugin captured.
    pub fn unset(name: impl Into<String>, reason: Option<String>) -> Self {
        Effect::Unset { name: name.into(), reason }.into()
    }

    /// The same change, from this file.
    #[must_use]
    pub fn from_file(self, origin: Option<String>) -> Self {
        Self { origin, ..self }
    }

    /// The variable that is changed.
    pub fn name(&self) -> &str {
        self.effect.name()
    }
}

/// What a prerequisite found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub outcome: Outcome,
    /// One line: what was found.
    pub summary: String,
    /// Name and value.
    pub facts: Vec<(String, String)>,
    /// What the user can do about it.
    pub remedy: Option<String>,
    /// For how long it may be used again, where the plugin says so.
    pub valid_for: Option<Duration>,
}

/// How a prerequisite stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Pass,
    Warn,
    Fail,
    /// It could not be told.
    Unknown,
}

/// What a plugin says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `a-z 0-9 -`.
    pub name: String,
    pub version: String,
    /// One line.
    pub summary: String,
    pub settings: Vec<SettingDescription>,
    /// What it uses, and how far; what is not in here is refused to it.
    pub wants: Vec<Want>,
    /// Of a prerequisite: when it can be checked, where the configuration does not say.
    pub moment: Option<Moment>,
}

/// A setting that a plugin knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDescription {
    pub key: String,
    /// What it does, its form, and its default.
    pub summary: String,
    /// Whether it has no default.
    pub required: bool,
}

/// A capability that a plugin uses, and how far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    pub capability: Capability,
    /// In the grammar of a grant.
    pub patterns: Vec<String>,
    /// What for.
    pub reason: String,
}

/// When a prerequisite can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    BeforeEnvironment,
    /// It looks at the environment.
    AfterEnvironment,
}

/// Why a plugin, or the host on its behalf, could not do its work; written as the interface names it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    #[error("its setting {key:?} is wrong: {message}")]
    Configuration { key: String, message: String },
    #[error("not granted: {0}")]
    NotGranted(String),
    #[error("not approved: {0}")]
    NotApproved(String),
    #[error("not found: {0}")]
    NotFound(String),
    #[error("took too long: {0}")]
    TimedOut(String),
    #[error("too large: {0}")]
    TooLarge(String),
    #[error("unavailable: {0}")]
    Unavailable(String),
    #[error("{0}")]
    Failed(String),
}

/// How much a message of a plugin matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// What a component gets while it has no session, because it describes itself or is made before it is wanted: nothing but the log.
pub(crate) struct NoSession {
    pub(crate) plugin: String,
}

#[async_trait::async_trait]
impl Services for NoSession {
    fn log(&self, level: Level, message: &str) {
        let plugin = &self.plugin;
        match level {
            Level::Error => tracing::error!(plugin, "{message}"),
            Level::Warn => tracing::warn!(plugin, "{message}"),
            Level::Info => tracing::info!(plugin, "{message}"),
            Level::Debug => tracing::debug!(plugin, "{message}"),
        }
    }
}
