//! Why a plugin was not loaded, and why a call of it gave nothing. Each names the plugin.

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

/// Why a plugin was not loaded. Each names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("could not read plugin {plugin:?} from {path}")]
    Read { plugin: String, path: PathBuf, source: io::Error },
    #[error("plugin {plugin:?} is larger than {}", Bytes(*limit))]
    Size { plugin: String, limit: usize },
    #[error("plugin {plugin:?} is not the pinned one: its SHA-256 is {found}, pinned is {pinned}")]
    Pin { plugin: String, found: String, pinned: String },
    #[error("plugin {plugin:?} is {is}, not a WebAssembly component")]
    NotComponent { plugin: String, is: &'static str },
    #[error("plugin {plugin:?} could not be compiled")]
    Compile { plugin: String, source: CompiledError },
    /// What it asks for and what it is granted do not go together.
    #[error("plugin {plugin:?} {refusal}")]
    Refused { plugin: String, refusal: Refusal },
    #[error("plugin {plugin:?} does not fit the interface of its world")]
    Link { plugin: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("plugin {plugin:?} could not describe itself")]
    Describe { plugin: String, source: CallError },
    #[error("the settings of plugin {plugin:?} are wrong: {problem}")]
    Settings { plugin: String, problem: SettingsProblem },
}

impl LoadError {
    /// A stable word for programs.
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

    /// What the user can do, where it is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Pin { .. } => Some("pin the new SHA-256 if you meant to change the file".to_owned()),
            Self::NotComponent { is: "a core module", .. } => {
                Some("build it with wasm-component-ld as its linker".to_owned())
            }
            Self::Refused { refusal, .. } => refusal.hint(),
            Self::Settings { problem, .. } => Some(problem.hint()),
            _ if self.is_of_the_moment() => {
                Some("a later launch tries it again, and `agentctl reload` does at once".to_owned())
            }
            _ => None,
        }
    }

    /// Whether another attempt may succeed with the same file.
    pub fn is_of_the_moment(&self) -> bool {
        match self {
            Self::Compile { source, .. } => source.is_of_the_moment(),
            Self::Read { source, .. } => passing::is_of_the_moment(source),
            // By the wall clock, which a busy machine is slow by.
            Self::Describe { source: CallError::Time { .. }, .. } => true,
            _ => false,
        }
    }
}

/// Why a call of a plugin gave nothing. Each names the plugin, by the name it was loaded under.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("plugin {plugin:?} took longer than its {}", Seconds(*limit))]
    Time { plugin: String, limit: Duration },
    #[error("plugin {plugin:?} used more than its {} of memory", Bytes(*limit))]
    Memory { plugin: String, limit: usize },
    #[error("plugin {plugin:?} used more than its {limit} table entries")]
    TableEntries { plugin: String, limit: usize },
    #[error("plugin {plugin:?} used more than its {} of stack", Bytes(*limit))]
    Stack { plugin: String, limit: usize },
    #[error("plugin {plugin:?} handed over more than its {} of output", Bytes(*limit))]
    Output { plugin: String, limit: usize },
    /// `said` is the plugin's last error message: a panic's text, where it has one.
    #[error("plugin {plugin:?} crashed: {}", said.as_deref().unwrap_or(trap))]
    Crashed { plugin: String, trap: String, said: Option<String> },
    /// The plugin's own answer.
    #[error("plugin {plugin:?} failed: {failure}")]
    Failed { plugin: String, failure: Failure },
    #[error("plugin {plugin:?} answered with {what}")]
    Invalid { plugin: String, what: String },
    /// Its answer is one, and not within its grant.
    #[error("plugin {plugin:?} answered with {what}")]
    Outside { plugin: String, what: String },
    #[error("plugin {plugin:?} is a {is}, not a {wanted}")]
    World { plugin: String, is: World, wanted: World },
    #[error("plugin {plugin:?} contributes to the environment of a session, and there is none")]
    NoSession { plugin: String },
}

impl CallError {
    /// A stable word for programs.
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

    /// What the user can do, where it is something.
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
