//! The frames between the daemon and a keeper, over the keeper's unix socket.
//!
//! A frame is a length (u32, little endian, at most [`MAX_FRAME`]) and that many bytes of JSON. The keeper speaks first
//! ([`FromKeeper::Hello`]); a daemon that does not know the protocol's version closes, and says so. Frames of a version are
//! only ever added to: a reader ignores fields it does not know and answers a request it does not know with
//! [`FromKeeper::Refused`], so that a keeper of the release before is adopted by the next daemon.
//!
//! One daemon is connected at a time: a new connection takes the place of the old, which is closed.
//!
//! **Ordering.** Requests are answered in order. [`FromKeeper::Grown`] may come between; it says how far the journal
//! reaches, is written only after the records are, and is coalesced: a slow daemon gets the newest and not a queue.

use std::path::PathBuf;
use std::time::Duration;

use agentd_api::ByteString;
use agentd_api::isolation::IsolationMissing;
use agentd_journal::Options;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use zeroize::Zeroize as _;

use crate::attributes::Inherited;

/// The version of this protocol.
pub const PROTOCOL: u32 = 1;

/// The longest frame either side accepts, bytes.
pub const MAX_FRAME: u32 = 64 << 20;
/// The variable of an agent's environment that has the session's id, and so says of a process whose it is.
pub const SESSION_VARIABLE: &str = "AGENTD_SESSION";

/// What a daemon says to a keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToKeeper {
    /// Start the agent. Once in a keeper's life; answered with [`FromKeeper::Launched`] or [`FromKeeper::Refused`].
    Launch(Box<LaunchRecord>),
    /// Write records, in one piece, and then send what is to be sent. Answered with [`FromKeeper::Appended`].
    Append(Append),
    /// Mask these values too, from now on: the agent can come by them only after the answer, [`FromKeeper::Hidden`].
    Hide(Hide),
    /// End the agent in an orderly way: close stdin, wait, SIGTERM, wait, kill the whole tree. Answered with
    /// [`FromKeeper::Stopping`]; `agent.exited` follows in the journal, and then the keeper ends.
    Stop(StopTimes),
}

/// What an agent is started with. It never touches a disk: it holds the environment's values.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct LaunchRecord {
    pub launch: u64,
    /// An absolute path.
    pub program: ByteString,
    /// `argv[1..]`.
    pub args: Vec<ByteString>,
    /// The whole environment; nothing is added to it.
    pub environment: Vec<Variable>,
    /// Absolute; the keeper changes to it in the agent's process only.
    pub directory: ByteString,
    /// Values that are masked as `‹secret›` wherever the agent prints them, before they reach the journal; those shorter
    /// than [`crate::mask::SHORTEST`] are not.
    #[serde(default)]
    pub secrets: Vec<ByteString>,
    /// The longest line kept whole; of a longer one the first so many bytes are kept, as noise.
    pub max_line: u64,
    /// How fast the agent's stdout is read. An agent that says more is slowed down by its pipe; nothing of it is lost.
    #[serde(default)]
    pub output_rate: Option<Rate>,
    /// How much of stderr is kept; [`STDERR_RATE`] where it is not said. stderr is always read, so that nothing that an agent prints
    /// there slows it down: of a flood the whole lines that are too much are left out, and one `agent.stderr` without text says by
    /// its `cut` how many bytes those were.
    #[serde(default)]
    pub stderr_rate: Option<Rate>,
    /// For an agent that has no cgroup of its own.
    #[serde(default)]
    pub limits: Limits,
    /// The keeper is a unit of systemd's: it has a cgroup of its own, which says of what its agent ended, and tells journald what the agent
    /// prints to stderr.
    #[serde(default)]
    pub is_unit: bool,
    /// What the agent is kept from; nothing where a daemon of an older release does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enclosure: Option<Enclosure>,
    /// What the agent inherits that is not as the keeper has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
}

/// The walls of the level `guard`. Every path is absolute. One that is not there is left out, unless it can be made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enclosure {
    pub missing: IsolationMissing,
    /// Directories that are empty inside and cannot be written.
    pub directories: Vec<PathBuf>,
    /// Files that are empty inside and cannot be written.
    pub files: Vec<PathBuf>,
    /// Directories that are there inside although they lie below a hidden one. The agent's own directory is one always.
    pub shown: Vec<Shown>,
}

/// A directory that is there inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    pub path: PathBuf,
    /// Nothing can be made, removed or renamed in it from inside.
    pub read_only: bool,
}

impl LaunchRecord {
    pub(crate) fn inherits(&self) -> Inherited {
        self.attributes.as_ref().map(|attributes| Inherited::of(attributes).0).unwrap_or_default()
    }

    /// Overwrites the values that it holds, when they are not needed any more.
    pub fn forget(&mut self) {
        let values = self.environment.iter_mut().map(|variable| &mut variable.value);
        values.chain(&mut self.secrets).for_each(|value| value.0.zeroize());
    }
}

/// How much of stderr is kept where nobody said so: what agents say there in a turn, many times over, and at most 1.4 GB a day.
pub const STDERR_RATE: Rate = Rate { bytes_per_second: 16 << 10, burst: 256 << 10 };

/// So many bytes a second in the long run, and so many at once after a silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub bytes_per_second: u64,
    pub burst: u64,
}

/// Bounds of an agent's whole tree, watched by the keeper where the operating system has no better means; an agent that is above
/// one of them is killed with its tree, and the `reason` in its `agent.exited` says which.
///
/// No rlimit(2) stands for these: `RLIMIT_NPROC` counts all of a user's processes, and `RLIMIT_AS` and `RLIMIT_DATA` count one process each, and
/// what it reserved and not what it uses (an idle node reserves gigabytes). So the keeper looks once a second: between two looks a tree may be
/// above its bounds, which a cgroup's never is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Resident memory, where what several processes share is counted once (Linux: the sum of `Pss`).
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Processes, the agent's own among them.
    #[serde(default)]
    pub processes: Option<u64>,
}

/// Names only: a launch record is not for logs.
impl std::fmt::Debug for LaunchRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaunchRecord")
            .field("launch", &self.launch)
            .field("program", &self.program)
            .field("variables", &self.environment.len())
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// One variable of an environment.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    pub name: ByteString,
    pub value: ByteString,
}

/// The name only.
impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.name)
    }
}

/// Records for the journal, written with one write(2), then their lines sent to the agent in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Append {
    /// The daemon's number for this request; comes back in the answer.
    pub request: u64,
    pub records: Vec<NewRecord>,
    /// Whether to wait for the disk (fdatasync) before answering.
    #[serde(default)]
    pub durable: bool,
    /// Write them into the room that the journal keeps for a session's last records, ahead of what waits for the disk. For records of an
    /// end: of a turn, a launch, a question, an agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_reserve: bool,
    /// From the moment these records are sent: recognise a replay of history, and do not journal it again.
    #[serde(default)]
    pub mute: Option<Mute>,
}

/// A record without its seq and time, which the keeper gives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewRecord {
    pub kind: String,
    pub data: Box<RawValue>,
    /// Send `data` to the agent as one line, after it is in the journal.
    #[serde(default)]
    pub send: bool,
}

/// Values that the agent may print from now on, as those of [`LaunchRecord::secrets`]; what was masked stays so.
#[derive(Clone, Serialize, Deserialize)]
pub struct Hide {
    pub secrets: Vec<ByteString>,
}

/// How many: never what they are.
impl std::fmt::Debug for Hide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hide({} values)", self.secrets.len())
    }
}

/// Do not journal `session/update` notifications whose `params.update.sessionUpdate` is one of `updates`, until the response to
/// `response_to` has come and no such notification has come for `quiet_ms` after it. Then one `agent.replayed` says how many.
///
/// All other lines are journalled as ever. The response itself is journalled when the mute *ends* if it was a success, so
/// that who waits for it knows that the replay is over; an error is journalled at once and ends the mute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mute {
    pub response_to: u64,
    pub updates: Vec<String>,
    pub quiet_ms: u64,
}

/// How long each step of an orderly stop may take, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopTimes {
    /// From stdin closed to SIGTERM.
    pub close_ms: u64,
    /// From SIGTERM to the kill of the whole tree.
    pub term_ms: u64,
}

/// What a keeper says to the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromKeeper {
    /// The first frame of every connection.
    Hello(Hello),
    Launched {
        pid: u32,
    },
    Appended(Appended),
    Hidden,
    Stopping,
    Grown(Tail),
    /// The request was not carried out, and changed nothing. Codes: `unknown-request`, `already-launched`, `wrong-launch`, `bad-record`
    /// (data with a line break), `agent-not-reading` (too much waits for its stdin), `agent-ended` (there is nobody to send to), `journal-blocked` (try again when a
    /// [`Tail`] says that it is not), and `not-executed`: the program could not be executed, `agent.exited` follows in the
    /// journal, and then the keeper ends.
    Refused {
        code: String,
        message: String,
        /// Why the journal is blocked (errno), where the system said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        errno: Option<i32>,
    },
}

/// Who the keeper is and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    pub version: String,
    pub session: String,
    pub launch: u64,
    pub pid: u32,
    /// As in the `keeper.started` record.
    pub start_time: u64,
    /// Absent before the launch and after the agent's end.
    pub agent_pid: Option<u32>,
    pub tail: Tail,
}

/// How far the journal reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// Of the last record.
    pub seq: u64,
    /// Set when the keeper could not write (disk full, I/O error) and has stopped reading the agent until it can.
    #[serde(default)]
    pub blocked: bool,
    /// Why it is blocked (errno), where the system said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// The agent and its tree have ended, and `agent.exited` could not be written yet.
    #[serde(default)]
    pub ended: bool,
}

/// The answer to [`Append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    pub request: u64,
    /// Of the last of the records.
    pub seq: u64,
}

/// How many bytes of a journal are kept: its oldest segments are removed above that. Absent: all of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep(pub Option<u64>);

impl Default for Keep {
    fn default() -> Self {
        Self(Some(256 << 20))
    }
}

/// How a keeper is started: `agentd-keeper` with [`HoldArgs::arguments`], and nothing of its environment read. It closes its stdout
/// and stderr when it listens; before that it may end with a message on stderr (status 3: the journal is held).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldArgs {
    pub session: String,
    pub launch: u64,
    /// The session's directory, which holds the journal.
    pub state: PathBuf,
    /// Where to listen.
    pub socket: PathBuf,
    /// How long a segment of the journal may be, and when the disk must have what was written.
    pub journal: Options,
    /// How much of the journal is kept. Two segments above that the keeper leaves out what is not essential.
    pub keep: Keep,
    /// How long the agent goes on with no daemon connected before it is ended; for ever where this is absent. Time in which the
    /// machine sleeps does not count.
    pub orphan_ttl: Option<Duration>,
    /// The soft limit of core files that the agent is to have, where it is not the keeper's own.
    pub core: Option<u64>,
}

/// What `agentd-keeper run` reads from its stdin as one frame: one program, run in a process session of its own, with null stdin,
/// no terminal unless it asks for one, and a deadline at which its whole tree is killed. The frame's writer keeps stdin open: its end cancels the run.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct RunRequest {
    pub program: ByteString,
    pub args: Vec<ByteString>,
    pub environment: Vec<Variable>,
    pub directory: ByteString,
    pub deadline_ms: u64,
    /// The descriptor's number under which the program finds a pipe whose other end becomes [`RunResult::captured`]. At least 10.
    #[serde(default)]
    pub capture_fd: Option<i32>,
    /// The capture is a FIFO instead, which exists for as long as the run: for shells that close every descriptor they do not know.
    /// `{capture}` in [`RunRequest::stdin`] stands for its path.
    #[serde(default)]
    pub capture_fifo: bool,
    /// What the program reads on stdin, and then the end. Null where this is absent.
    #[serde(default)]
    pub stdin: Option<ByteString>,
    /// The form in which the program tells what it does, for [`RunResult::sourced`].
    #[serde(default)]
    pub trace: Option<Trace>,
    /// The descriptor's number under which it finds a pipe to tell it to; [`Trace::Zsh`] has none. At least 10.
    #[serde(default)]
    pub trace_fd: Option<i32>,
    /// What the program left in the background when it ended by itself is left alone and only counted. At the deadline everything is
    /// killed all the same.
    #[serde(default)]
    pub leave: bool,
    /// Of each of stdout, stderr and the capture, at most so many bytes are kept; more of the capture ends the run.
    pub max_output: u64,
    /// More of stdout ends the run too.
    #[serde(default)]
    pub whole_stdout: bool,
    /// Of stderr the first so many bytes are kept, and not the last `max_output`. Not with a trace.
    #[serde(default)]
    pub first_of_stderr: Option<u64>,
    /// The program's `argv[0]`, where it is not its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg0: Option<ByteString>,
    /// A file that the program reads: if it is another one, the program is not started, and if it becomes another one while the
    /// program runs, there is no result. What the program reads under the file's name are the bytes of this digest, whatever lies there
    /// when it opens it; where that cannot be done it is not started ([`RunOutcome::NotSealed`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<ExpectedFile>,
    /// A terminal for the program, on which a command is typed. The capture is a FIFO then, and stdin and the output are the terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
    /// The file mode mask that the program begins with, where it is not this process's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
    /// What else the program inherits that is not as this process has it, the mask among it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
}

impl RunRequest {
    pub(crate) fn inherits(&self) -> Inherited {
        let of = |attributes| Inherited::of(attributes).0;
        self.attributes.as_ref().map_or_else(|| Inherited::mask(self.umask), of)
    }
}

/// A pseudo-terminal that becomes the controlling terminal of the program, and what is typed on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub rows: u16,
    pub columns: u16,
    /// What is typed at the prompts, by the program that shows them. The first that fits counts.
    pub typed: Vec<Typed>,
    /// Variables that get a private directory of this run as their value, which is removed afterwards.
    #[serde(default)]
    pub private: Vec<String>,
}

/// Lines to type to one kind of shell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Typed {
    /// File names of the programs that these lines are for; without any they are for every program.
    pub programs: Vec<String>,
    /// One line for each prompt, without line ends. `{keeper}` and `{capture}` stand for two paths that need no quotes. Each line but the
    /// last has to dump with the label `step`.
    pub lines: Vec<String>,
}

/// What a process passes on to its children besides its environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    pub umask: u32,
    /// The nice value, where it is another one than the run began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    /// The resource limits that are other ones than the run began with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
}

/// One resource limit of setrlimit(2). `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// As in `limits.conf(5)`: `nofile`, `stack`.
    pub name: String,
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

/// A file as it was when somebody looked at it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedFile {
    pub path: ByteString,
    /// SHA-256 of its content, hex.
    pub sha256: String,
}

impl std::fmt::Debug for RunRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments may be secrets as values are.
        f.debug_struct("RunRequest").field("program", &self.program).finish_non_exhaustive()
    }
}

/// What `agentd-keeper run` writes to its stdout as one frame. The run ends when the *program* ends, even if a background
/// child holds its descriptors; what is there is drained, and the rest of the tree is killed.
#[derive(Clone, Serialize, Deserialize)]
pub struct RunResult {
    pub outcome: RunOutcome,
    pub captured: ByteString,
    /// The first [`RunRequest::max_output`] bytes.
    pub stdout: ByteString,
    /// The last [`RunRequest::max_output`] bytes, or the [first](RunRequest::first_of_stderr), without the trace; nothing where the trace cannot be told from the rest.
    pub stderr: ByteString,
    /// How many processes had to be killed at the end.
    pub killed: u32,
    /// How many were left, where [`RunRequest::leave`] says so.
    #[serde(default)]
    pub left: u32,
    /// Of a run with a trace.
    #[serde(default)]
    pub sourced: Option<Sourced>,
    /// Of a capture that `dump-environment` wrote.
    #[serde(default)]
    pub attributes: Option<Attributes>,
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

/// How shells tell what they do. What they tell has the values of variables in it and does not leave `agentd-keeper run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trace {
    /// `bash -x` with `BASH_XTRACEFD`.
    Bash,
    /// `zsh -o sourcetrace`, on stderr; `source /dev/null` is the last that it does.
    Zsh,
    /// `fish --profile-startup`.
    Fish,
    /// The names themselves, one a line: what nushell's `view files` gives.
    Names,
}

/// Files that a shell sourced, in the order in which it first did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sourced {
    /// As the shell names them: absolute, relative to the directory of that moment, or with `~`.
    pub files: Vec<ByteString>,
    /// Names of commands that it ran one level down, as in `eval "$(tool init)"`. Functions are among them.
    #[serde(default)]
    pub programs: Vec<ByteString>,
    /// Whether nothing hints at another file.
    pub complete: bool,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    Exited(i32),
    Signalled(i32),
    /// The command that was typed gave the whole capture, and the program was ended.
    Captured,
    /// The command was typed as often as it may be, and gave no capture.
    Unanswered,
    TimedOut,
    /// stdin ended: nobody waits for the result any more.
    Cancelled,
    /// The capture, or stdout where it is wanted whole, was longer than allowed.
    TooMuchOutput,
    /// The program could not be executed.
    NotExecuted(String),
    /// [`RunRequest::expect`] is not what it was.
    Changed,
    /// The program was not started, since it cannot be given the bytes of [`RunRequest::expect`] here: this system has no tracing, or forbids it.
    NotSealed,
}
