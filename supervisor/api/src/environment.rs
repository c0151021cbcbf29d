//! A session's environment: what a client requests (spec) and what the agent got (view), with the source of
//! each variable.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::ByteString;
use crate::degraded::MissingPart;
use crate::id::SessionId;

/// The requested environment of a session. A field that is left out has its configured value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct EnvironmentSpec {
    /// The source of the first environment in the pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SnapshotSource>,
    /// Id of a terminal's snapshot, as `POST /v1/snapshots` returned it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// How a later launch treats the environment of the previous launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<Refresh>,
    /// Whether the session shares a terminal's environment with the other sessions of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// Whether the agent finds its session under the names of another runner too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compatibility: Option<RunnerNames>,
    /// Names and patterns of variables that the whitelist keeps in addition. A secret must be named exactly; a
    /// pattern does not keep it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Names and patterns of variables to drop.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<String>,
    /// Variables to set after all providers have run. A secret value is refused, because the spec is stored in
    /// clear text.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl EnvironmentSpec {
    /// Reports whether the request leaves everything as configured.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Another runner of agents, under whose names for variables an agent finds its session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RunnerNames {
    /// Only agentd's own names.
    #[default]
    None,
    /// The names of the runner of the Ambient Code platform for Kubernetes.
    Ambient,
}

/// The source of a session's initial environment, before any provider runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotSource {
    /// The environment that the user's login shell gives to a program, taken at each launch.
    #[default]
    LoginShell,
    /// The environment of the terminal in which the session was created.
    Terminal,
    /// The environment that the login shell gave when the session was created.
    Stored,
}

/// The directory in which the login shell's environment is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotScope {
    /// The user's home directory. One snapshot serves all sessions.
    User,
    /// The session's directory, after the shell showed its prompt there. Hooks such as those of direnv and mise
    /// run as they do for the user.
    Directory,
}

/// How a launch after the first treats the environment of the previous launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Refresh {
    /// Reuses the stored environment as a whole. Secrets are fetched again.
    Stored,
    /// Builds the environment again.
    #[default]
    Fresh,
    /// Reuses the stored environment, and reports how a fresh one would differ.
    Warn,
}

/// The environment of a session's last launch: `environment.json` and `GET /v1/sessions/{id}/environment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentView {
    /// Time at which the environment was built.
    pub captured: Timestamp,
    /// Number of the launch that the environment was built for, from 1.
    pub launch: u64,
    /// SHA-256 in hexadecimal over all names and all values that are not secret.
    pub digest: String,
    /// Time to build the environment, in microseconds. Present only if it was built for this request
    /// (`at=now`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// The variables, sorted by name.
    pub variables: Vec<VariableView>,
    /// The variables that a provider removed, sorted by name.
    #[serde(default)]
    pub dropped: Vec<DroppedView>,
    /// Secrets that the previous launch had and that could not be fetched again. The agent runs without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<VariableView>,
    /// The scripts that were sourced, in the order of execution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<ScriptRun>,
    /// Providers, scripts and required secrets that a degraded launch left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<MissingPart>,
}

/// A script that was sourced for an environment, with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScriptRun {
    /// Path of the script, with the symlinks of its directory resolved.
    pub path: PathBuf,
    /// Working directory of the script: the session's directory, or the script's own directory if that is above
    /// the session's directory.
    pub directory: PathBuf,
    /// Name of the provider that sourced the script.
    pub provider: String,
    /// Exit status of the script's last command. Absent if a cached result was used and the script did not run
    /// (`# agentd-depends:`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// The last lines that the script printed on stderr, with secrets masked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    /// Effects that the script probably did not have. The condition `EnvironmentValid` reports them too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// One environment variable and its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VariableView {
    /// Name of the variable.
    pub name: String,
    /// The value. Absent unless the request asks for values, and always absent for a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<ByteString>,
    /// SHA-256 of the value in hexadecimal. Absent for a secret, because a short secret could be guessed from
    /// its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Name of the provider that set the variable last.
    pub provider: String,
    /// Position of that provider in the pipeline, counted from 1.
    pub step: u32,
    /// The script or file that the value came from, if the provider knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PathBuf>,
    /// Whether the value is a secret. A secret is never shown, and is stored only in an encrypted file.
    #[serde(default)]
    pub secret: bool,
    /// Name of the configured secret that a plugin requested for this variable. Its value is fetched at each
    /// launch and never stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_secret: Option<String>,
    /// The file at the path in the value, if a plugin created that file for the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileView>,
    /// Time until which the value is valid, if the plugin gave one. agentd calls the plugin again before then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Every step that set or removed the variable, in order. Absent if only one step touched the variable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StepView>,
}

impl VariableView {
    /// Returns the step that gave the variable its final value.
    pub fn last_step(&self) -> StepView {
        StepView {
            provider: self.provider.clone(),
            step: self.step,
            origin: self.origin.clone(),
            removed: false,
            reason: None,
            value: self.value.clone(),
            digest: self.digest.clone(),
            file: self.file.clone(),
            expires_at: self.expires_at,
        }
    }
}

/// A file that a plugin created for the session. Responses never contain its content, and agentd stores no
/// other copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileView {
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the content in hexadecimal.
    pub digest: String,
}

/// The effect of one pipeline step on a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepView {
    /// Name of the provider.
    pub provider: String,
    /// Position of the provider in the pipeline, counted from 1.
    pub step: u32,
    /// The script or file that the value came from, if the provider knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PathBuf>,
    /// Whether the step removed the variable. Otherwise the step set it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// Why the variable was removed, in the provider's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The value, under the rules of [`VariableView::value`]. Also absent if a later step removed the variable,
    /// because agentd keeps no value that no agent gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<ByteString>,
    /// SHA-256 of the value in hexadecimal, under the rules of [`VariableView::digest`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The file at the path in the value, if a plugin created that file for the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileView>,
    /// Time until which the value is valid, if the plugin gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A variable that a provider removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DroppedView {
    /// Name of the variable.
    pub name: String,
    /// Name of the provider that removed the variable.
    pub provider: String,
    /// Position of that provider in the pipeline, counted from 1.
    pub step: u32,
    /// The rule that removed the variable, in the provider's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The script that removed the variable, if the provider knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PathBuf>,
    /// Time until which the removal is valid, if the plugin gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Every step that set or removed the variable, in order. Absent if only one step touched the variable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StepView>,
}

impl DroppedView {
    /// Returns the step that removed the variable.
    pub fn last_step(&self) -> StepView {
        StepView {
            provider: self.provider.clone(),
            step: self.step,
            origin: self.origin.clone(),
            removed: true,
            reason: self.reason.clone(),
            value: None,
            digest: None,
            file: None,
            expires_at: self.expires_at,
        }
    }
}

/// Selects one of a session's environments, for example in `?at=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "EnvironmentMoment"))]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// The environment of the session's first launch.
    Created,
    /// The environment of the last launch.
    Last,
    /// The environment that a launch would build now.
    Now,
}

impl Moment {
    /// Returns the name that requests use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Last => "last",
            Self::Now => "now",
        }
    }
}

/// Error for a word that names no [`Moment`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidMoment(pub String);

impl std::fmt::Display for InvalidMoment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown moment {:?}: use created, last or now", self.0)
    }
}

impl std::error::Error for InvalidMoment {}

impl std::str::FromStr for Moment {
    type Err = InvalidMoment;

    fn from_str(text: &str) -> Result<Self, InvalidMoment> {
        [Self::Created, Self::Last, Self::Now]
            .into_iter()
            .find(|moment| moment.as_str() == text)
            .ok_or_else(|| InvalidMoment(text.to_owned()))
    }
}

/// The response of `GET /v1/sessions/{id}/environment/diff`. Each list is sorted by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DifferenceView {
    /// The environment on the left side.
    pub from: Moment,
    /// The environment on the right side.
    pub to: Moment,
    /// Variables that only the right side has.
    pub added: Vec<ChangeView>,
    /// Variables whose values differ.
    pub changed: Vec<ChangeView>,
    /// Variables that only the left side has.
    pub removed: Vec<ChangeView>,
    /// Secrets that both sides have and whose values are not stored. agentd cannot tell whether they differ.
    #[serde(default)]
    pub not_compared: Vec<String>,
}

/// One variable that differs between two environments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangeView {
    /// Name of the variable.
    pub name: String,
    /// Whether the value is a secret.
    #[serde(default)]
    pub secret: bool,
    /// The last step on the left side. Absent if that side has no record of the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<StepView>,
    /// The last step on the right side. Absent if that side has no record of the variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<StepView>,
}

/// The response of `POST /v1/environment/rotate-key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RotationView {
    /// Id of the new key. agentd encrypts everything with this key from now on.
    pub key: String,
    /// Sessions whose stored environment was encrypted again with the new key.
    pub rewritten: Vec<SessionId>,
    /// Sessions whose stored environment could not be encrypted again. The keys that decrypt them are kept.
    pub failed: Vec<RotationFailure>,
    /// Ids of former keys that are still needed.
    pub kept_keys: Vec<String>,
}

/// A session whose stored environment stays encrypted with its old key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RotationFailure {
    /// Id of the session.
    pub session: SessionId,
    /// Why the file was not rewritten, for people.
    pub reason: String,
}
