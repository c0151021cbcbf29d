//! The plugins of the running configuration, and the result of a reload.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::configuration::{Change, Mistake};

/// The response of `GET /v1/plugins`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginList {
    /// The plugins, sorted by name.
    pub plugins: Vec<PluginView>,
}

/// State of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PluginState {
    /// The plugin is ready to be called.
    Loaded,
    /// The plugin is being compiled or loaded. A launch that needs the plugin waits.
    Compiling,
    /// The plugin could not be loaded; `problem` says why. The next launch tries again if the cause was
    /// temporary or if the file has changed.
    Failed,
    /// The plugin failed too often in a row. agentd does not call it until a pause has passed or the
    /// configuration is reloaded.
    Suspended,
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

/// Action of a launch if a provider fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "PluginOnFailure"))]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The launch fails.
    #[default]
    Fail,
    /// The launch continues without the provider.
    Skip,
}

/// A plugin that the configuration declares, or a built-in plugin that it uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginView {
    /// Name of the plugin in the configuration.
    pub name: String,
    /// Current state.
    pub state: PluginState,
    /// Why the plugin is failed or suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<PluginProblem>,
    /// `built-in`, or the path of the component's file.
    pub source: String,
    /// SHA-256 of the loaded component in hexadecimal. The pinned digest if the component is not loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The configuration file that declares the plugin. Absent for a built-in plugin that is not declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_in: Option<PathBuf>,
    /// The component's description of itself. Absent if the component could not be loaded.
    #[serde(flatten)]
    pub description: Option<PluginDescription>,
    /// The granted capabilities with their patterns. The list is empty for a capability without patterns.
    pub grant: BTreeMap<String, Vec<String>>,
    /// Action of a launch if this plugin fails as a provider.
    pub on_failure: OnFailure,
    /// Names of the pipeline steps that this plugin runs, or of the prerequisites that it checks.
    pub used_by: Vec<String>,
    /// Settings of the plugin's declaration, nested keys joined by dots. Settings of a single pipeline step or
    /// prerequisite are not included.
    pub settings: BTreeMap<String, Vec<String>>,
    /// Number of calls of all sessions since the plugin was loaded.
    pub calls: u64,
    /// Number of calls that failed for any reason.
    pub failures: u64,
    /// Number of the latest calls in a row that failed through the plugin's own fault.
    pub consecutive_failures: u64,
    /// The last call that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<PluginFailure>,
}

/// A component's description of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginDescription {
    /// The component's own name, which may differ from its name in the configuration.
    pub component: String,
    /// Version of the component.
    pub version: String,
    /// Purpose of the component in one line.
    pub summary: String,
    /// The component's WIT world: `provider` or `prerequisite`.
    pub world: String,
    /// Capabilities that the component imports.
    pub imports: Vec<String>,
    /// The patterns that the component says it needs from each capability.
    pub wants: Vec<PluginWant>,
    /// The wanted patterns that no grant covers.
    #[serde(default)]
    pub narrowed: Vec<PluginNarrowed>,
}

/// A capability that a plugin needs, and the patterns that it needs from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginWant {
    /// Name of the capability.
    pub capability: String,
    /// Patterns that the plugin needs.
    pub patterns: Vec<String>,
    /// Why the plugin needs the capability.
    pub reason: String,
}

/// A pattern that a plugin wants and that no grant covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginNarrowed {
    /// Name of the capability.
    pub capability: String,
    /// The pattern.
    pub pattern: String,
    /// Why the plugin needs the capability.
    pub reason: String,
    /// Whether the administrator denies a pattern that is otherwise granted.
    pub denied: bool,
}

/// Why a plugin cannot be called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginProblem {
    /// Stable code for programs.
    pub code: String,
    /// Description for people.
    pub detail: String,
    /// Instructions that fix the problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The last call of a plugin that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginFailure {
    /// Time of the failure.
    pub at: Timestamp,
    /// Description of the failure.
    pub message: String,
}

/// The result of reading the configuration again: `POST /v1/reload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReloadView {
    /// The configuration files that were read, in the order of reading.
    pub files: Vec<PathBuf>,
    /// Dotted paths of the keys that were changed, added or removed.
    pub changed: Vec<String>,
    /// The changed keys that take effect only when the daemon restarts.
    pub restart: Vec<String>,
    /// Number of plugins that are loaded now.
    pub plugins: usize,
    /// Names of plugins that are still being compiled. A launch that needs such a plugin waits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compiling: Vec<String>,
    /// When each key of `changed` takes effect, in the order of `changed`.
    #[serde(default)]
    pub changes: Vec<Change>,
    /// Mistakes in the files, and what agentd does about each.
    #[serde(default)]
    pub mistakes: Vec<Mistake>,
    /// Whether the reload was a dry run. A dry run changes nothing and reports what a reload would do.
    #[serde(default)]
    pub dry_run: bool,
}
