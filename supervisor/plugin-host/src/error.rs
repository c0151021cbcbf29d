//! Errors of loading and calling plugins. Each error names the plugin.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::cache::CompiledError;
use crate::call::Failure;
use crate::grant::Refusal;
use crate::limits::{Bytes, Seconds};
use crate::passing;
use crate::plugin::World;
use crate::settings::SettingsProblem;

/// Why a plugin was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The component's file could not be read.
    #[error("could not read plugin {plugin:?} from {path}")]
    Read { plugin: String, path: PathBuf, source: io::Error },
    /// The component is larger than `limit` bytes.
    #[error("plugin {plugin:?} is larger than {}", Bytes(*limit))]
    Size { plugin: String, limit: usize },
    /// The component's SHA-256 is not the pinned one.
    #[error("plugin {plugin:?} is not the pinned one: its SHA-256 is {found}, pinned is {pinned}")]
    Pin { plugin: String, found: String, pinned: String },
    /// The file is not a WebAssembly component.
    #[error("plugin {plugin:?} is {is}, not a WebAssembly component")]
    NotComponent { plugin: String, is: &'static str },
    /// The component could not be compiled, or its compiled code could not be loaded.
    #[error("plugin {plugin:?} could not be compiled")]
    Compile { plugin: String, source: CompiledError },
    /// The grant does not cover the component's imports or wants, or one of its patterns is invalid.
    #[error("plugin {plugin:?} {refusal}")]
    Refused { plugin: String, refusal: Refusal },
    /// The component's types do not match the interface.
    #[error("plugin {plugin:?} does not fit the interface of its world")]
    Link { plugin: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// The component's `describe` function failed.
    #[error("plugin {plugin:?} could not describe itself")]
    Describe { plugin: String, source: CallError },
    /// The configured settings do not match those that the plugin accepts.
    #[error("the settings of plugin {plugin:?} are wrong: {problem}")]
    Settings { plugin: String, problem: SettingsProblem },
}

impl LoadError {
    /// Returns a stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "plugin-unreadable",
            Self::Size { .. } => "plugin-too-large",
            Self::Pin { .. } => "plugin-not-pinned",
            Self::NotComponent { .. } => "plugin-not-a-component",
            Self::Compile { .. } => "plugin-not-compiled",
            Self::Refused { refusal, .. } => refusal.code(),
            Self::Link { .. } => "plugin-misfit",
            Self::Describe { .. } => "plugin-not-described",
            Self::Settings { .. } => "plugin-settings",
        }
    }

    /// Returns what the user can do about the error, if anything.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Pin { .. } => Some("pin the new SHA-256 if you meant to change the file".to_owned()),
            Self::NotComponent { is: "a core module", .. } => {
                Some("build it with wasm-component-ld as its linker".to_owned())
            }
            Self::Refused { refusal, .. } => refusal.hint(),
            Self::Settings { problem, .. } => Some(problem.hint()),
            _ if self.is_temporary() => {
                Some("a later launch tries it again, and `agentctl reload` does at once".to_owned())
            }
            _ => None,
        }
    }

    /// Reports whether another attempt with the same file may succeed.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Compile { source, .. } => source.is_temporary(),
            Self::Read { source, .. } => passing::is_temporary(source),
            // The limit is wall-clock time, which a busy machine may exceed.
            Self::Describe { source: CallError::Time { .. }, .. } => true,
            _ => false,
        }
    }
}

/// Why a call of a plugin gave no result. `plugin` is the name that the plugin was loaded under.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The call took longer than its time limit.
    #[error("plugin {plugin:?} took longer than its {}", Seconds(*limit))]
    Time { plugin: String, limit: Duration },
    /// The plugin exceeded its memory limit in bytes.
    #[error("plugin {plugin:?} used more than its {} of memory", Bytes(*limit))]
    Memory { plugin: String, limit: usize },
    /// The plugin exceeded its limit of table entries.
    #[error("plugin {plugin:?} used more than its {limit} table entries")]
    TableEntries { plugin: String, limit: usize },
    /// The plugin exceeded its stack limit in bytes.
    #[error("plugin {plugin:?} used more than its {} of stack", Bytes(*limit))]
    Stack { plugin: String, limit: usize },
    /// The plugin passed more than `limit` bytes to the host at once.
    #[error("plugin {plugin:?} handed over more than its {} of output", Bytes(*limit))]
    Output { plugin: String, limit: usize },
    /// The plugin trapped. `said` is its last error message, which contains the text of a panic.
    #[error("plugin {plugin:?} crashed: {}", said.as_deref().unwrap_or(trap))]
    Crashed { plugin: String, trap: String, said: Option<String> },
    /// The plugin returned a failure.
    #[error("plugin {plugin:?} failed: {failure}")]
    Failed { plugin: String, failure: Failure },
    /// The plugin returned an invalid result.
    #[error("plugin {plugin:?} answered with {what}")]
    Invalid { plugin: String, what: String },
    /// The plugin returned a valid result that its grant does not cover.
    #[error("plugin {plugin:?} answered with {what}")]
    Outside { plugin: String, what: String },
    /// The call does not fit the plugin's kind.
    #[error("plugin {plugin:?} is a {is}, not a {wanted}")]
    World { plugin: String, is: World, wanted: World },
    /// A provider was called without a session.
    #[error("plugin {plugin:?} builds the environment of a session, and the call names no session")]
    NoSession { plugin: String },
}

impl CallError {
    /// Returns a stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Time { .. } => "plugin-time",
            Self::Memory { .. } => "plugin-memory",
            Self::TableEntries { .. } => "plugin-table-entries",
            Self::Stack { .. } => "plugin-stack",
            Self::Output { .. } => "plugin-output",
            Self::Crashed { .. } => "plugin-crashed",
            Self::Failed { .. } => "plugin-failed",
            Self::Invalid { .. } => "plugin-answer",
            Self::Outside { .. } => "plugin-not-granted",
            Self::World { .. } => "plugin-world",
            Self::NoSession { .. } => "plugin-no-session",
        }
    }

    /// Returns what the user can do about the error, if anything.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Time { .. } | Self::Memory { .. } | Self::Output { .. } => {
                Some("raise the plugin's limit in the configuration if it needs more")
            }
            Self::Failed { failure: Failure::Configuration { .. }, .. } => {
                Some("correct the plugin's settings in the configuration")
            }
            _ => None,
        }
    }
}
