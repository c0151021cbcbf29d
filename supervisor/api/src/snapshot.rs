//! Snapshots: the environments that sessions start with, and how agentd captured them. These types hold no
//! values.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::bytes::ByteString;

/// The response of `GET /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SnapshotList {
    /// Snapshots of login shells.
    pub login_shells: Vec<LoginSnapshotView>,
    /// Snapshots of terminals.
    pub terminals: Vec<TerminalSnapshotView>,
}

/// The snapshot of a login shell, and the history of its captures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LoginSnapshotView {
    /// Path of the login shell.
    pub shell: PathBuf,
    /// Home directory that the shell ran with.
    pub home: PathBuf,
    /// The directory that the shell changed to after its first prompt. Absent for the user's snapshot, which is
    /// taken in the home directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// State of the snapshot.
    pub state: SnapshotState,
    /// Why the snapshot is not fresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time of the capture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub captured: Option<Timestamp>,
    /// Whether the snapshot equals the environment of a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<SnapshotQuality>,
    /// Age of the snapshot in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<u64>,
    /// Time at which the snapshot is captured again even if no file has changed. Earlier if `complete` is
    /// false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Number of variables.
    pub variables: usize,
    /// Number of exported bash functions.
    pub functions: usize,
    /// Number of variables and functions that are stored on disk: those that agents got, without secrets.
    #[serde(default)]
    pub stored: usize,
    /// Names of secrets that were lost when the daemon restarted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Entries of the last accepted PATH that are missing in this snapshot's PATH.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path_lost: Vec<String>,
    /// Resource limits and the nice value that the shell sets and that agentd may not pass to agents. For
    /// people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
    /// Watched files, including files that do not exist yet. A path with `*` means the names in a directory.
    pub files: Vec<PathBuf>,
    /// Whether `files` includes all files that start-up files source. If false, a change in other files is
    /// noticed only when the snapshot expires.
    pub complete: bool,
    /// Files that the shell writes on each run and that are therefore not watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unwatched: Vec<PathBuf>,
    /// Files on a file server that does not respond. agentd treats them as unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<PathBuf>,
    /// Number of processes that the shell's last run left in the background.
    #[serde(default)]
    pub left: u32,
    /// Number of times the snapshot was used without running the shell.
    pub hits: u64,
    /// Number of captures that were started.
    pub captures: u64,
    /// Number of captures that failed.
    pub failures: u64,
    /// Duration of the last capture in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_duration_ms: Option<u64>,
}

/// State of a login shell's snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotState {
    /// The snapshot was never captured.
    Empty,
    /// The next session uses the snapshot.
    Fresh,
    /// The next session captures the snapshot again.
    Outdated,
    /// The last capture failed. Sessions use the last good snapshot.
    Stale,
    /// The login shell gave less than a terminal has. Sessions use the last good snapshot, or this one if no
    /// good snapshot exists.
    Degraded,
    /// The snapshot is being captured.
    Capturing,
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

/// Whether a login shell's snapshot equals the environment of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotQuality {
    /// The shell gave its full environment.
    Good,
    /// A fallback method captured the snapshot, which may lack variables.
    Degraded,
    /// A quality newer than this reader.
    #[serde(other)]
    Unknown,
}

/// A terminal's environment that agentd keeps for sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TerminalSnapshotView {
    /// Id of the snapshot, for [`crate::environment::EnvironmentSpec::snapshot`].
    pub id: String,
    /// Time of the capture.
    pub captured: Timestamp,
    /// Number of variables.
    pub variables: usize,
    /// Number of exported bash functions.
    pub functions: usize,
    /// Time at which the snapshot is deleted, unless a session refers to it then.
    pub expires: Timestamp,
}

/// The body of `POST /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TerminalSnapshot {
    /// The terminal's environment variables.
    pub variables: Vec<TerminalVariable>,
}

/// One environment variable of a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TerminalVariable {
    /// Name of the variable.
    pub name: String,
    /// Value of the variable.
    pub value: ByteString,
}
