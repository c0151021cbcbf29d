//! The input and output of a plugin call, in types independent of WebAssembly.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::grant::{Places, Want};
use crate::limits::Limits;
use crate::services::Services;

/// One call of a plugin.
#[derive(Clone)]
pub struct Call {
    /// The session. `None` for a check without a session; a provider's call must have one.
    pub session: Option<SessionFacts>,
    /// The environment as previous pipeline steps left it.
    pub environment: Vec<(String, Vec<u8>)>,
    /// Names of variables in `environment` that another plugin set. Passing them to a program passes on values
    /// that the other plugin chose.
    pub foreign: Vec<String>,
    /// The plugin's settings.
    pub settings: Vec<Setting>,
    /// Directories that replace the placeholders of paths and patterns.
    pub places: Places,
    /// Operations that the host performs for the plugin during the call.
    pub services: Arc<dyn Services>,
    /// Limits of the call.
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

/// Facts about a session that a plugin receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFacts {
    /// Id of the session.
    pub id: String,
    /// Name of the session, if it has one.
    pub name: Option<String>,
    /// Name of the agent in the configuration, or the name of the program.
    pub agent: String,
    /// Working directory. Absolute.
    pub directory: String,
    /// Number of the launch in the session, counted from 1.
    pub launch: u64,
}

/// One entry of a plugin's settings. Keys of nested tables are joined by dots, and a scalar is a list of one
/// value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Dotted key.
    pub key: String,
    /// Values in order.
    pub values: Vec<String>,
}

/// One change that a provider makes to the environment. Changes apply in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Effect on the variable.
    pub effect: Effect,
    /// The file that the change came from, if the plugin knows it.
    pub origin: Option<String>,
    /// Validity of the change. At least one second.
    pub valid_for: Option<Duration>,
}

/// The effect of a change on a variable.
#[derive(Clone, PartialEq, Eq)]
pub enum Effect {
    /// Sets the variable.
    Set { name: String, value: Vec<u8> },
    /// Removes the variable. If the environment does not have the variable, the plugin left it out of its
    /// capture and gives the reason.
    Unset { name: String, reason: Option<String> },
    /// Puts an entry at the front of a colon-separated list. An existing equal entry is moved.
    Prepend { name: String, entry: Vec<u8> },
    /// Puts an entry at the end of a colon-separated list. An existing equal entry is moved.
    Append { name: String, entry: Vec<u8> },
    /// Sets the variable to a secret, named as in the configuration.
    Secret { name: String, secret: String },
    /// Writes a file for the session and sets the variable to its path.
    File { name: String, file_name: String, content: Vec<u8> },
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
    /// Returns the name of the variable.
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
    /// Makes a change that sets the variable.
    pub fn set(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Effect::Set { name: name.into(), value: value.into() }.into()
    }

    /// Makes a change that removes the variable, or says that the plugin left it out of its capture.
    pub fn unset(name: impl Into<String>, reason: Option<String>) -> Self {
        Effect::Unset { name: name.into(), reason }.into()
    }

    /// Sets the file that the change came from.
    #[must_use]
    pub fn from_file(self, origin: Option<String>) -> Self {
        Self { origin, ..self }
    }

    /// Returns the name of the variable.
    pub fn name(&self) -> &str {
        self.effect.name()
    }
}

/// The result of a prerequisite's check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Whether the prerequisite is met.
    pub outcome: CheckOutcome,
    /// The finding in one line.
    pub summary: String,
    /// Details as pairs of name and value.
    pub facts: Vec<(String, String)>,
    /// Instructions for the user about the finding.
    pub remedy: Option<String>,
    /// Time for which the result may be reused, if the plugin gives one.
    pub valid_for: Option<Duration>,
}

/// Outcome of a prerequisite's check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The prerequisite is met.
    Pass,
    /// The prerequisite is met, with a warning.
    Warn,
    /// The prerequisite is not met.
    Fail,
    /// The check could not decide.
    Unknown,
}

/// A plugin's description of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Name of `a-z 0-9 -`.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Purpose of the plugin in one line.
    pub summary: String,
    /// Settings that the plugin accepts.
    pub settings: Vec<SettingDescription>,
    /// Capabilities and patterns that the plugin wants. The host refuses everything else.
    pub wants: Vec<Want>,
    /// When a prerequisite is checked, unless the configuration says otherwise. `None` for a provider.
    pub moment: Option<CheckMoment>,
}

/// A setting that a plugin accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDescription {
    /// Dotted key.
    pub key: String,
    /// Effect, format and default of the setting.
    pub summary: String,
    /// Whether the setting has no default.
    pub required: bool,
}

/// When a prerequisite is checked during a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckMoment {
    /// Before the environment is built.
    BeforeEnvironment,
    /// After the environment is built. The check receives the environment.
    AfterEnvironment,
}

/// Why a plugin, or the host on its behalf, failed. Serialized with the names of the WIT interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// A setting has a wrong value.
    #[error("its setting {key:?} is wrong: {message}")]
    Configuration { key: String, message: String },
    /// The plugin's grant does not cover the request.
    #[error("not granted: {0}")]
    NotGranted(String),
    /// A script is not approved.
    #[error("not approved: {0}")]
    NotApproved(String),
    /// A file, program or other subject does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// A time limit was exceeded.
    #[error("took too long: {0}")]
    TimedOut(String),
    /// A size limit was exceeded.
    #[error("too large: {0}")]
    TooLarge(String),
    /// The subject exists but cannot be used now, or the host does not provide it.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

/// Severity of a plugin's log message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// Services for a component without a session, which describes itself or is instantiated in advance. Provides
/// only the log.
pub(crate) struct NoSession {
    pub(crate) plugin: String,
}

#[async_trait::async_trait]
impl Services for NoSession {
    fn log(&self, level: LogLevel, message: &str) {
        let plugin = &self.plugin;
        match level {
            LogLevel::Error => tracing::error!(plugin, "{message}"),
            LogLevel::Warn => tracing::warn!(plugin, "{message}"),
            LogLevel::Info => tracing::info!(plugin, "{message}"),
            LogLevel::Debug => tracing::debug!(plugin, "{message}"),
        }
    }
}
