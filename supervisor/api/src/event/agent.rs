//! Records about the agent's process and its output, and about the keeper that runs it.

use serde::{Deserialize, Serialize};

use crate::bytes::ByteString;
use crate::isolation::Isolated;

/// Data of the record `keeper.started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeeperStarted {
    /// Process id of the keeper.
    pub pid: u32,
    /// Start time of the process, from an unspecified epoch (Linux: clock ticks since boot, proc(5) field 22).
    /// Together with the pid it identifies one process.
    pub start_time: u64,
    /// Version of the keeper's build.
    pub version: String,
    /// Version of the frame protocol that the keeper speaks.
    pub protocol: u32,
    /// Whether the keeper puts the contents of files into prompts for the agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fills_contents: bool,
    /// Number of the launch, counted from 1.
    pub launch: u64,
}

/// Data of the record `agent.started`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentStarted {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// Process id that was started. The agent may be a descendant.
    pub pid: u32,
    /// Start time of the process, in the units of [`KeeperStarted::start_time`].
    pub start_time: u64,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The isolation that the agent was started with.
    #[serde(default, skip_serializing_if = "Isolated::is_none")]
    pub isolation: Isolated,
    /// Whether the agent was kept warm: it was started, and received `initialize`, before the session was created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// Name of the place on which the agent runs. The process is then the client of the place, and the record
    /// `place.changed` tells when the agent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Whether the agent stays on its place when the connection is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resident: bool,
}

/// Data of the record `agent.resumed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentResumed {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// Process id of the new process that connects to the place.
    pub pid: u32,
    /// Start time of the process, in the units of [`KeeperStarted::start_time`].
    pub start_time: u64,
}

/// Data of the records `agent.noise` and `agent.stderr`: a line, which may be truncated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Text {
    /// The line without its newline.
    pub text: ByteString,
    /// Number of bytes that were removed from the line's end. `0` if the line is complete.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cut: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Data of the record `agent.replayed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentReplayed {
    /// Number of lines that were left out.
    pub lines: u64,
    /// Number of bytes that were left out.
    pub bytes: u64,
}

/// Data of the record `agent.dropped`: notifications, noise or stderr that were left out. Requests and
/// responses are never left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentDropped {
    /// Number of lines that were left out.
    pub lines: u64,
    /// Number of bytes that were left out.
    pub bytes: u64,
    /// Why they were left out, for people: the disk was full, or the journal reached its size limit.
    pub reason: String,
}

/// Data of the record `agent.unusable`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentUnusable {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// One CamelCase word for programs, for example `ConversationGone`.
    pub reason: String,
    /// Description of the failure for people.
    pub message: String,
}

/// Data of the record `agent.exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AgentExited {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// Exit status, if the process exited normally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// Signal number, if a signal terminated the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Error of execve(2), if the program could not be executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec_error: Option<String>,
    /// Number of other processes of the agent's process tree that were killed.
    #[serde(default)]
    pub killed: u32,
    /// Whether the stop was requested.
    #[serde(default)]
    pub requested: bool,
    /// Why the agent was ended without a request: no daemon came back, or a limit was exceeded. For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The limit that the agent exceeded. `reason` has the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exceeded: Option<Exceeded>,
}

/// The resource whose limit an agent exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Exceeded {
    /// Memory, in bytes.
    Memory,
    /// Number of processes and threads.
    Tasks,
    /// A resource newer than this reader.
    #[serde(other)]
    Unknown,
}
