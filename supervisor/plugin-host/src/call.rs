//! What goes into a call of a plugin and what comes out of it, in types that know nothing of WebAssembly.

use std::sync::Arc;
use std::time::Instant;

use crate::limits::Limits;

/// One call of a plugin.
#[derive(Clone)]
pub struct Call {
    pub session: SessionFacts,
    /// The environment so far.
    pub environment: Vec<(String, Vec<u8>)>,
    pub settings: Vec<Setting>,
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
pub enum Change {
    Set {
        name: String,
        value: Vec<u8>,
        /// The file it came from, where the plugin knows one.
        origin: Option<String>,
    },
    /// The variable goes. For a name that is not in the environment so far it says that the plugin left the variable out
    /// of what it captured, and why.
    Unset {
        name: String,
        reason: Option<String>,
        /// The file that removed it, where the plugin knows one.
        origin: Option<String>,
    },
    /// An entry at the front of a colon-separated list; one that is there already is moved.
    Prepend { name: String, entry: Vec<u8> },
    /// The same at the end.
    Append { name: String, entry: Vec<u8> },
}

impl Change {
    /// The variable that is changed.
    pub fn name(&self) -> &str {
        match self {
            Self::Set { name, .. }
            | Self::Unset { name, .. }
            | Self::Prepend { name, .. }
            | Self::Append { name, .. } => name,
        }
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
}

/// A setting that a plugin knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingDescription {
    pub key: String,
    /// What it does, its form, and its default.
    pub summary: String,
}

/// Why a plugin, or the host on its behalf, could not do its work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("its configuration is wrong: {0}")]
    Configuration(String),
    #[error("refused: {0}")]
    Refused(String),
    #[error("took too long: {0}")]
    TimedOut(String),
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

/// What came of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptOutcome {
    /// There is no such file.
    Absent,
    /// The whole environment after the script.
    Sourced {
        /// The file, with placeholders and symlinks resolved.
        path: String,
        environment: Vec<(String, Vec<u8>)>,
    },
}

/// What the host does for a plugin during a call; the daemon implements it.
///
/// A future that is still running at `deadline` is dropped, and whatever it started must end with it.
#[async_trait::async_trait]
pub trait Services: Send + Sync {
    /// A message of the plugin: already limited in number and length, and free of control characters.
    fn log(&self, level: Level, message: &str);

    /// The environment of the user's login shell.
    async fn login_environment(&self, deadline: Instant) -> Result<Vec<(String, Vec<u8>)>, Failure>;

    /// Sources the script at `path`, placeholders and all, with nothing but `environment`.
    async fn source_script(
        &self,
        path: &str,
        environment: Vec<(String, Vec<u8>)>,
        deadline: Instant,
    ) -> Result<ScriptOutcome, Failure>;
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

    async fn login_environment(&self, _: Instant) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        Err(Failure::Refused("there is no session yet".to_owned()))
    }

    async fn source_script(&self, _: &str, _: Vec<(String, Vec<u8>)>, _: Instant) -> Result<ScriptOutcome, Failure> {
        Err(Failure::Refused("there is no session yet".to_owned()))
    }
}
