//! Facts about a session's directory and its git repository, as agentd read them at one time.
//!
//! Names of branches and remotes are the repository's own texts. They are no text of agentd.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Data of the record `facts.observed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FactsObserved {
    /// Number of the launch, counted from 1. Launch 1 follows the creation at once.
    pub launch: u64,
    /// The moment at which the facts were read.
    pub moment: FactsMoment,
    /// The facts.
    pub facts: Arc<SessionFacts>,
    /// SHA-256 of each environment script that the launch would run, by path. Only readings of a launch have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scripts: Option<ScriptDigests>,
}

/// Digests of environment scripts by path. Bytes of a path that are not UTF-8 are replaced.
pub type ScriptDigests = BTreeMap<String, String>;

/// The moment at which agentd read the facts of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FactsMoment {
    /// During a launch, before the agent starts.
    Launch,
    /// After the end of a turn.
    TurnEnd,
    /// After the end of an agent that ended in a turn.
    AgentEnd,
    /// A moment newer than this reader.
    #[serde(other)]
    Unknown,
}

/// Facts about a session's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionFacts {
    /// Time at which the facts were read.
    pub read_at: Timestamp,
    /// Identity of the directory. Absent if the directory could not be examined, or if its file system gives files
    /// no lasting numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryIdentity>,
    /// The git repository that contains the directory.
    pub repository: Repository,
}

impl SessionFacts {
    /// Reports whether both have the same content. The time of reading does not count.
    pub fn equals(&self, other: &Self) -> bool {
        self.directory == other.directory && self.repository == other.repository
    }
}

/// Numbers that identify a directory, whatever its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DirectoryIdentity {
    /// Number of the device (stat(2), `st_dev`). It can change when the machine is restarted.
    pub device: u64,
    /// Number of the inode (stat(2), `st_ino`).
    pub inode: u64,
    /// Identifies the run of the machine in which the device has this number. Empty if the system does not tell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
}

impl DirectoryIdentity {
    /// Reports whether the numbers belong to another directory. Devices are compared only within one run of the
    /// machine.
    pub fn differs(&self, other: &Self) -> bool {
        self.inode != other.inode || (!self.boot.is_empty() && self.boot == other.boot && self.device != other.device)
    }
}

/// State of the git repository that contains a session's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Repository {
    /// The directory is in no repository with a working tree.
    None,
    /// git read the repository.
    Found(RepositoryFacts),
    /// git could not read the repository.
    Unread(RepositoryUnread),
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

impl Repository {
    /// Returns the facts of a repository that git could read.
    pub fn found(&self) -> Option<&RepositoryFacts> {
        if let Self::Found(facts) = self { Some(facts) } else { None }
    }
}

/// Reason why git could not read a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepositoryUnread {
    /// Description for people. It contains no text of the repository.
    pub message: String,
}

/// Facts of a git repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RepositoryFacts {
    /// Top directory of the working tree. Bytes that are not UTF-8 are replaced.
    pub root: PathBuf,
    /// Name of the branch without `refs/heads/`. Absent if the head is detached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Id of the commit of the head. Absent before the first commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// URLs of the remotes by name, without user names, passwords and tokens.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub remotes: BTreeMap<String, Vec<String>>,
    /// Whether tracked files have changes without a commit. Absent if git did not answer in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_counts_only_within_one_run_of_the_machine() {
        let identity = |device, inode, boot: &str| DirectoryIdentity { device, inode, boot: boot.to_owned() };
        assert!(!identity(1, 2, "a").differs(&identity(1, 2, "a")));
        assert!(identity(1, 2, "a").differs(&identity(3, 2, "a")));
        assert!(!identity(1, 2, "a").differs(&identity(3, 2, "b")));
        assert!(identity(1, 2, "a").differs(&identity(1, 3, "b")));
    }

    #[test]
    fn a_state_from_the_future_is_read() {
        let read: Repository = serde_json::from_str(r#"{"state":"moved","to":"/x"}"#).unwrap();
        assert_eq!(read, Repository::Unknown);
        let none = serde_json::to_string(&Repository::None).unwrap();
        assert_eq!(none, r#"{"state":"none"}"#);
    }
}
