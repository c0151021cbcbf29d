//! Snapshots: the environments that sessions begin with, and how agentd came to them. Never a value of one.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::ByteString;

/// What `GET /v1/snapshots` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotList {
    pub login_shells: Vec<LoginSnapshotView>,
    pub terminals: Vec<TerminalSnapshotView>,
}

/// What a login shell gave, and what was done to get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoginSnapshotView {
    pub shell: PathBuf,
    pub home: PathBuf,
    /// Where the shell went after its first prompt: the snapshot is of that directory. Without it, it is the user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    pub state: SnapshotState,
    /// Why it is not fresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured: Option<Timestamp>,
    /// Whether what sessions begin with is what a terminal has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<SnapshotQuality>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// When it is taken again though no file has changed; sooner where `complete` does not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    pub variables: usize,
    /// Exported bash functions.
    pub functions: usize,
    /// Variables and functions that are on the disk: those that agents were given, without secrets.
    #[serde(default)]
    pub stored: usize,
    /// Secrets that a restart of the daemon lost, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Entries that the last accepted PATH had and this one has not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_lost: Vec<String>,
    /// Limits and the nice value that the shell sets and that agentd may not give to agents, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// The files that are watched, those that are not there among them. One with a `*` stands for the names in a directory.
    pub files: Vec<PathBuf>,
    /// Whether `files` has those that start-up files sourced too; else a change in one of those shows only when it expires.
    pub complete: bool,
    /// Files that are written whenever the shell is run, and so are not watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unwatched: Vec<PathBuf>,
    /// Files whose file server is silent: they count as unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<PathBuf>,
    /// Processes that the shell left in the background at its last run.
    #[serde(default)]
    pub left: u32,
    /// How often it was used without a run of the shell.
    pub hits: u64,
    pub captures: u64,
    pub failures: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_duration_ms: Option<u64>,
}

/// How a login shell's snapshot stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotState {
    /// There is none yet.
    Empty,
    /// The next session begins with it.
    Fresh,
    /// The next session has it taken again.
    Outdated,
    /// It could not be taken again, and is the last good one.
    Stale,
    /// The login shell gave less than a terminal has. Sessions have the last good one; where there is none, what there is.
    Degraded,
    /// It is being taken.
    Capturing,
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

/// Whether a login shell's environment is what a terminal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotQuality {
    Good,
    /// A weaker attempt gave it.
    Degraded,
    /// A quality newer than this reader.
    #[serde(other)]
    Unknown,
}

/// A terminal's environment that is held for sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSnapshotView {
    pub id: String,
    pub captured: Timestamp,
    pub variables: usize,
    pub functions: usize,
    /// When it is dropped if no session refers to it then.
    pub expires: Timestamp,
}

/// The body of `POST /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TerminalSnapshot {
    pub variables: Vec<TerminalVariable>,
}

/// One variable of a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TerminalVariable {
    pub name: String,
    pub value: ByteString,
}
