//! Messages of `agentd-keeper run`: one program with a deadline, and its result.

use agentd_api::ByteString;
use serde::{Deserialize, Serialize};

use super::Variable;

/// Request that `agentd-keeper run` reads from its stdin as one frame.
///
/// The program runs in its own process session, with stdin from `/dev/null` and without a terminal unless requested.
/// At the deadline its whole tree is killed. The requester keeps the keeper's stdin open, because its end cancels the
/// run.
#[derive(Clone, Default, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may stand beside any")]
pub struct RunRequest {
    /// Path of the program.
    pub program: ByteString,
    /// Arguments, `argv[1..]`.
    pub args: Vec<ByteString>,
    /// Complete environment of the program.
    pub environment: Vec<Variable>,
    /// Working directory of the program.
    pub directory: ByteString,
    /// Time limit of the run in milliseconds.
    pub deadline_ms: u64,
    /// Number, at least 10, of the program's file descriptor for the pipe whose data becomes [`RunResult::captured`].
    #[serde(default)]
    pub capture_fd: Option<i32>,
    /// Whether the capture is a FIFO that exists during the run, for shells that close unknown file descriptors.
    /// The keeper replaces `{capture}` in [`RunRequest::stdin`] with its path.
    #[serde(default)]
    pub capture_fifo: bool,
    /// Data for the program's stdin, which is then closed. Absent means `/dev/null`.
    #[serde(default)]
    pub stdin: Option<ByteString>,
    /// Trace format that the program writes, for [`RunResult::sourced`].
    #[serde(default)]
    pub trace: Option<Trace>,
    /// Number, at least 10, of the program's file descriptor for the trace pipe. [`Trace::Zsh`] uses none.
    #[serde(default)]
    pub trace_fd: Option<i32>,
    /// Whether background processes survive when the program exits by itself. They are then only counted. At the
    /// deadline all processes are killed in any case.
    #[serde(default)]
    pub leave: bool,
    /// Maximum number of bytes kept of stdout, of stderr and of the capture. A longer capture ends the run.
    pub max_output: u64,
    /// Whether longer stdout ends the run too.
    #[serde(default)]
    pub whole_stdout: bool,
    /// Number of bytes to keep from the start of stderr, in place of the last `max_output` bytes. Not with a trace.
    #[serde(default)]
    pub first_of_stderr: Option<u64>,
    /// `argv[0]` of the program, if it differs from its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg0: Option<ByteString>,
    /// File that the program reads, with its expected digest.
    ///
    /// A program whose file has another digest is not started. If the file changes during the run, there is no
    /// result. The program reads the bytes with this digest, also if the file is replaced before the open. If the
    /// system cannot ensure that, the program is not started ([`RunOutcome::NotSealed`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<ExpectedFile>,
    /// Terminal for the program, on which commands are typed. The capture is then a FIFO, and stdin and the output
    /// are the terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// File mode mask of the program, if it differs from the keeper's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// Process attributes of the program, including the mask, in place of the keeper's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Whether the keeper replaces `{keeper}` in the arguments and in stdin with its own path, and `{copy}` with the
    /// path of [`RunRequest::copy`]. For requesters on another machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fill: bool,
    /// File that exists during the run in a private directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopiedFile>,
}

/// A file of the requester. Results of the run name its own directory, and not that of the copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// Directory of the file on the requester's machine.
    pub directory: ByteString,
    /// Name of the file. A name with special characters is replaced.
    pub name: ByteString,
    /// Content of the file.
    pub content: ByteString,
}

/// Pseudo-terminal that becomes the program's controlling terminal, and the lines to type on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub columns: u16,
    /// Lines to type at the prompts of each program. The first matching entry applies.
    pub typed: Vec<Typed>,
    /// Environment variables whose value becomes a private directory of this run. The directory is removed
    /// afterwards.
    #[serde(default)]
    pub private: Vec<String>,
}

/// Lines to type for one kind of shell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Typed {
    /// File names of the programs that these lines are for. An empty list matches every program.
    pub programs: Vec<String>,
    /// One line for each prompt, without line ends. The keeper replaces `{keeper}` and `{capture}` with two paths
    /// that need no quotes. Each line except the last must dump with the label `step`.
    pub lines: Vec<String>,
}

/// Attributes besides the environment that a process passes on to its children.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// File mode mask.
    pub umask: u32,
    /// Nice value, if it changed during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    /// Resource limits that changed during the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
}

/// Resource limit of setrlimit(2). `None` means unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Name as in `limits.conf(5)`: `nofile`, `stack`.
    pub name: String,
    /// Soft limit.
    pub soft: Option<u64>,
    /// Hard limit.
    pub hard: Option<u64>,
}

/// File with the digest that its content had when it was approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedFile {
    /// Path of the file.
    pub path: ByteString,
    /// SHA-256 digest of its content, in hex.
    pub sha256: String,
}

impl std::fmt::Debug for RunRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments can be secrets, like the environment's values.
        f.debug_struct("RunRequest").field("program", &self.program).finish_non_exhaustive()
    }
}

/// Result that `agentd-keeper run` writes to its stdout as one frame.
///
/// The run ends when the *program* exits, even if a background process holds its file descriptors. The keeper then
/// drains the pipes and kills the rest of the tree.
#[derive(Clone, Serialize, Deserialize)]
pub struct RunResult {
    /// How the run ended.
    pub outcome: RunOutcome,
    /// Bytes that the program wrote to the capture.
    pub captured: ByteString,
    /// First [`RunRequest::max_output`] bytes of stdout.
    pub stdout: ByteString,
    /// Last [`RunRequest::max_output`] bytes of stderr, or the [first](RunRequest::first_of_stderr), without the
    /// trace. Empty if the trace cannot be separated from the rest.
    pub stderr: ByteString,
    /// Number of processes that were killed at the end.
    pub killed: u32,
    /// Number of processes that survived because of [`RunRequest::leave`].
    #[serde(default)]
    pub left: u32,
    /// Sourced files, for a run with a trace.
    #[serde(default)]
    pub sourced: Option<Sourced>,
    /// Process attributes, for a capture that `dump-environment` wrote.
    #[serde(default)]
    pub attributes: Option<Attributes>,
    /// Duration of the run in milliseconds.
    pub duration_ms: u64,
}

impl std::fmt::Debug for RunResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunResult")
            .field("outcome", &self.outcome)
            .field("captured", &self.captured.0.len())
            .field("killed", &self.killed)
            .finish_non_exhaustive()
    }
}

/// Trace format of a shell. A trace contains values of variables and does not leave `agentd-keeper run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trace {
    /// `bash -x` with `BASH_XTRACEFD`.
    Bash,
    /// `zsh -o sourcetrace`, on stderr. The last traced command is `source /dev/null`.
    Zsh,
    /// `fish --profile-startup`.
    Fish,
    /// Plain file names, one a line, as from nushell's `view files`.
    Names,
}

/// Files that a shell sourced, in the order of their first use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sourced {
    /// File names as the shell gives them: absolute, relative to the working directory at that moment, or with `~`.
    pub files: Vec<ByteString>,
    /// Names of commands in command substitutions, as in `eval "$(tool init)"`. Shell functions are included.
    #[serde(default)]
    pub programs: Vec<ByteString>,
    /// Whether the trace shows no sign of further files.
    pub complete: bool,
}

/// Outcome of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    Exited(i32),
    Signalled(i32),
    /// The typed command wrote the whole capture, and the program was ended.
    Captured,
    /// The command was typed as often as allowed and wrote no capture.
    Unanswered,
    TimedOut,
    /// The keeper's stdin ended: the requester no longer waits for the result.
    Cancelled,
    /// The capture was longer than allowed, or stdout with [`RunRequest::whole_stdout`].
    TooMuchOutput,
    /// The program could not be executed.
    NotExecuted(String),
    /// The file of [`RunRequest::expect`] does not have the expected digest or changed during the run.
    Changed,
    /// The program was not started, because this system has no tracing or forbids it. The program cannot be given the
    /// bytes of [`RunRequest::expect`].
    NotSealed,
}
