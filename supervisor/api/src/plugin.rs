//! The plugins of a configuration as the daemon has them, and what came of reading the configuration again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::configuration::{Change, Mistake};

/// All plugins, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PluginList {
    pub plugins: Vec<PluginView>,
}

/// How a plugin stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PluginState {
    /// It can be called.
    Loaded,
    /// It is being loaded, and compiled where that has not been done before. A launch that needs it waits.
    Compiling,
    /// It could not be loaded: `problem` says why. A launch tries again after a reason of the moment, or if the file has changed.
    Failed,
    /// It failed too often in a row, and is not called until a while is over, or until a reload.
    Suspended,
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

/// What a launch does when a provider fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    #[default]
    Fail,
    Skip,
}

/// One plugin of the configuration, or a built-in one that is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PluginView {
    /// Its name in the configuration.
    pub name: String,
    pub state: PluginState,
    /// Why it is failed or suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<PluginProblem>,
    /// `built-in`, or the file's path.
    pub source: String,
    /// Of what is loaded; of what is not, what is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The configuration file that declares it; none of a built-in one that is only used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_in: Option<PathBuf>,
    /// What it says of itself; nothing of one that could not be loaded.
    #[serde(flatten)]
    pub description: Option<PluginDescription>,
    /// Capability by capability, the patterns; of one without patterns, none.
    pub grant: BTreeMap<String, Vec<String>>,
    pub on_failure: OnFailure,
    /// The names of the pipeline's steps that it is, or of the prerequisites that it checks.
    pub used_by: Vec<String>,
    /// As the configuration has them, nested keys joined by dots; those of a use are not in here.
    pub settings: BTreeMap<String, Vec<String>>,
    /// Calls since it was loaded, of all sessions.
    pub calls: u64,
    /// Those that gave nothing, for whatever reason.
    pub failures: u64,
    /// Those in a row, up to now, that were the plugin's own.
    pub consecutive_failures: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<PluginFailure>,
}

/// What a component says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PluginDescription {
    /// Its own name, which need not be the configuration's.
    pub component: String,
    pub version: String,
    pub summary: String,
    /// `provider` or `prerequisite`.
    pub world: String,
    /// The capabilities that it imports.
    pub imports: Vec<String>,
    /// What it says that it uses of them.
    pub wants: Vec<PluginWant>,
    /// What it has to do without of that.
    #[serde(default)]
    pub narrowed: Vec<PluginNarrowed>,
}

/// A capability that a plugin uses, and how far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginWant {
    pub capability: String,
    pub patterns: Vec<String>,
    /// What for.
    pub reason: String,
}

/// A pattern that a plugin wants and no grant covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginNarrowed {
    pub capability: String,
    pub pattern: String,
    pub reason: String,
    /// Whether it would be granted, and the administrator denies it.
    pub denied: bool,
}

/// Why a plugin is not called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginProblem {
    /// A stable word.
    pub code: String,
    pub detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The last call that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginFailure {
    pub at: Timestamp,
    pub message: String,
}

/// What came of reading the configuration again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadView {
    /// What was read, first to last.
    pub files: Vec<PathBuf>,
    /// The keys, dotted, that say something else than before, or are new or gone.
    pub changed: Vec<String>,
    /// Those of them that take effect only when agentd is started again.
    pub restart: Vec<String>,
    /// How many plugins are loaded now.
    pub plugins: usize,
    /// The names of plugins that are still being compiled. A launch that needs one waits for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compiling: Vec<String>,
    /// When each key of `changed` takes effect, in the order of `changed`.
    #[serde(default)]
    pub changes: Vec<Change>,
    /// What is not in force as the files say it, and what agentd does about each.
    #[serde(default)]
    pub mistakes: Vec<Mistake>,
    /// Whether nothing was changed: the answer says what a reload would do.
    #[serde(default)]
    pub dry_run: bool,
}
