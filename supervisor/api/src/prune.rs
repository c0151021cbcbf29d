//! Removal of sessions that are no longer used: `POST /v1/prune` and `agentctl prune`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::session::Phase;

/// The body of `POST /v1/prune`. A session must match every given criterion, and a request needs at least one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PruneRequest {
    /// Ids or names of sessions. All sessions by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Minimum time since the last activity of a session, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_than_seconds: Option<u64>,
    /// Phases of sessions at rest: `stopped`, `failed`, `completed` and `pending`. All by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// Whether only sessions with findings of staleness match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// Whether sessions that cannot be read match too. They have no phase and no findings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unreadable: bool,
    /// Whether nothing is removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// Sessions of an earlier dry run, by id, with their `last_seq`. If given, all other sessions stay, and so does a
    /// session with further events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<BTreeMap<String, u64>>,
}

/// The response of `POST /v1/prune`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PruneView {
    /// Whether nothing was removed.
    pub dry_run: bool,
    /// Sessions that were removed, or that would be removed.
    pub sessions: Vec<PrunedSession>,
    /// Sessions that match the request and stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptSession>,
    /// Number of bytes of the disk that the removal freed, or would free. Sessions of unknown size do not count.
    pub bytes: u64,
}

/// A session that was removed, or that would be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrunedSession {
    /// Id of the session: the name of its directory.
    pub id: String,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Phase of the session. Absent if the session cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Time of the last activity.
    pub last_activity: Timestamp,
    /// Time since the last activity, in seconds.
    pub age_seconds: u64,
    /// Sequence number of the last event. 0 if the session cannot be read.
    pub last_seq: u64,
    /// Size of the session's directory on the disk, as du(1) reports it. Absent if it was not measured in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Criteria of the request that the session matches, for people.
    pub reasons: Vec<String>,
}

/// A session that matches a request and stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptSession {
    /// Id of the session.
    pub id: String,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why the session stays, for people.
    pub reason: String,
}
