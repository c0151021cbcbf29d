//! The audit log: each call that changes or reveals something, with its caller and its outcome.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::prerequisite::Requester;
use crate::problem::Code;

/// One call on the control endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// When the answer was ready.
    pub time: Timestamp,
    /// The `X-Request-Id` of the answer.
    pub request: String,
    pub method: String,
    /// The path without its query, which may hold more than the call's name. At most [`LONGEST_PATH`] bytes.
    pub path: String,
    /// The id of the session that the call concerns; the word of the path where no session has that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub requester: Requester,
    /// The HTTP status of the answer.
    pub status: u16,
    /// The problem's code, where the call was refused or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Number of earlier calls from the requester's session that were not recorded, since there were too many of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded: u64,
}

/// The most bytes of [`AuditRecord::path`].
pub const LONGEST_PATH: usize = 512;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The answer of `GET /v1/audit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditList {
    /// Oldest first.
    pub records: Vec<AuditRecord>,
    /// Number of lines of the log that could not be read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreadable: u64,
}
