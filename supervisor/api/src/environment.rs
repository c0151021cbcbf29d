//! What is asked of a session's environment, and the environment its agent was started in, with who put each variable there.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::ByteString;
use crate::id::SessionId;

/// What is asked of a session's environment; what is left out is as configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnvironmentSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SnapshotSource>,
    /// The terminal's environment, by the id that `POST /v1/snapshots` gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refresh: Option<Refresh>,
    /// Whether the session shares a terminal's environment with the others of its directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// Names and patterns of variables that the whitelist keeps besides; a secret only by its exact name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Names and patterns of variables that are dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop: Vec<String>,
    /// Variables that are given, behind what all providers gave. A secret is refused: it would be stored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl EnvironmentSpec {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What the environment's first step begins with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotSource {
    /// What the user's login shell gives to a program, as it is at each launch.
    #[default]
    LoginShell,
    /// What the terminal had in which the session was created.
    Terminal,
    /// What the login shell gave when the session was created.
    Stored,
}

/// Where the login shell is asked for its environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotScope {
    /// In the user's home: one snapshot serves all sessions.
    User,
    /// In the session's directory, after its prompt was shown there: hooks of direnv, mise and the like do what they do for the user.
    Directory,
}

/// What a launch after the first does with the environment of the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refresh {
    /// It is given again as a whole; secrets are taken fresh.
    Stored,
    /// It is built again.
    #[default]
    Fresh,
    /// It is given again, and what a fresh one would have otherwise is said.
    Warn,
}

/// The environment of a session's last launch; `environment.json`, and `GET /v1/sessions/{id}/environment`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentView {
    pub captured: Timestamp,
    /// The launch it was built for.
    pub launch: u64,
    /// SHA-256 over every name and every value that is no secret, hex.
    pub digest: String,
    /// Microseconds that building it took; only of one that was built for the question (`at=now`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// By name.
    pub variables: Vec<VariableView>,
    /// What a provider took away, by name.
    #[serde(default)]
    pub dropped: Vec<DroppedView>,
    /// Secrets that the launch before had and that could not be had again: the agent does without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<VariableView>,
    /// The scripts that were sourced for it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<ScriptRun>,
}

/// A script that was sourced for an environment, and what it said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptRun {
    /// Where it was found, with the symlinks of its directory resolved.
    pub path: PathBuf,
    /// Where it ran: in the session's directory, or where it lies above that.
    pub directory: PathBuf,
    /// The provider that had it sourced.
    pub provider: String,
    /// The status of its last command; absent where its result was known and it was not run (`# agentd-depends:`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// The last lines that it printed on stderr, with secrets masked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stderr: Vec<String>,
    /// What it probably did not do. The condition `EnvironmentValid` has it too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// One variable and where it came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableView {
    pub name: String,
    /// Left out unless asked for, and always for a secret one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<ByteString>,
    /// SHA-256 of the value, hex; of a secret one it is left out, since a short secret could be guessed from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The provider that set it last.
    pub provider: String,
    /// The provider's place in the pipeline, from 1.
    pub step: u32,
    /// The script or file it came from, where the provider knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PathBuf>,
    /// Whether its value is a secret: never shown, and stored only where the file is encrypted.
    #[serde(default)]
    pub secret: bool,
    /// The secret of the configuration that its value is, because a plugin asked for that; taken anew at each launch and stored nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named_secret: Option<String>,
    /// The file that its value is the path of, where a plugin gave the session one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileView>,
    /// Until when it holds, where the plugin said so. Then the plugin is asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Every step that set or took it away, the first one first; the last is what it is. Left out where only one step touched it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StepView>,
}

impl VariableView {
    /// The step that made it what it is.
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

/// A file that a plugin gave the session. Its content is in no answer, and in no file of agentd's but itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileView {
    /// Bytes.
    pub size: u64,
    /// SHA-256 of the content, hex.
    pub digest: String,
}

/// What one step of the pipeline made of a variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepView {
    pub provider: String,
    /// The provider's place in the pipeline, from 1.
    pub step: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PathBuf>,
    /// It was taken away here, and not set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// Why it was taken away, in the provider's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// As of a variable; also left out where the variable was taken away in the end: what nobody gets is kept nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<ByteString>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// As of a variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileView>,
    /// As of a variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// A variable that a provider took away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedView {
    pub name: String,
    pub provider: String,
    pub step: u32,
    /// The rule that dropped it, in the provider's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The script that removed it, where the provider knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<PathBuf>,
    /// As of a variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// As of a variable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StepView>,
}

impl DroppedView {
    /// The step that took it away.
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

/// One of the environments that a session has or would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// The session's first.
    Created,
    /// Of the last launch.
    Last,
    /// What a launch would build now.
    Now,
}

impl Moment {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Last => "last",
            Self::Now => "now",
        }
    }
}

/// A word that is no moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidMoment(pub String);

impl std::fmt::Display for InvalidMoment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} is none of created, last and now", self.0)
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

/// What `GET /v1/sessions/{id}/environment/diff` answers. Each list is by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferenceView {
    pub from: Moment,
    pub to: Moment,
    pub added: Vec<ChangeView>,
    pub changed: Vec<ChangeView>,
    pub removed: Vec<ChangeView>,
    /// Secrets that both have and whose values are not stored: whether they changed cannot be told.
    #[serde(default)]
    pub not_compared: Vec<String>,
}

/// One variable that differs, with what each side has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeView {
    pub name: String,
    #[serde(default)]
    pub secret: bool,
    /// Absent where that side knows nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<StepView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<StepView>,
}

/// What `POST /v1/environment/rotate-key` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationView {
    /// The id of the key that everything is sealed with from now on.
    pub key: String,
    /// Sessions whose file was written anew.
    pub rewritten: Vec<SessionId>,
    /// Sessions whose file could not be, with the reason; what opens them is kept.
    pub failed: Vec<RotationFailure>,
    /// The ids of former keys that are still needed.
    pub kept_keys: Vec<String>,
}

/// A session whose file stays under its old key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotationFailure {
    pub session: SessionId,
    pub reason: String,
}
