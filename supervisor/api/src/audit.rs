//! The audit log: one record for each control request that changes state or reveals secrets, with its caller
//! and outcome.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::prerequisite::Requester;
use crate::problem::Code;

/// One request on the control endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditRecord {
    /// Time at which the response was ready.
    pub time: Timestamp,
    /// The `X-Request-Id` header of the response.
    pub request: String,
    /// The HTTP method.
    pub method: String,
    /// The request's path without its query. At most [`LONGEST_PATH`] bytes. The query is left out because it
    /// may hold private data.
    pub path: String,
    /// Id of the session that the request concerns. If no session matched, the session word of the path as the
    /// caller wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The caller, as the kernel identifies it.
    pub requester: Requester,
    /// HTTP status of the response.
    pub status: u16,
    /// Code of the problem, if the request was refused or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Number of earlier requests from the caller's session that were not recorded, because the session sent
    /// too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unrecorded: u64,
}

/// Maximum length of [`AuditRecord::path`] in bytes.
pub const LONGEST_PATH: usize = 512;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The response of `GET /v1/audit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditList {
    /// The records, oldest first.
    pub records: Vec<AuditRecord>,
    /// Number of lines of the audit log that could not be parsed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreadable: u64,
}
