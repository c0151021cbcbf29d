//! Protocol between the daemon and a keeper over the keeper's unix socket.
//!
//! A frame is a length (u32, little endian, at most [`MAX_FRAME`]) and as many bytes of JSON. The keeper sends the
//! first frame, [`FromKeeper::Hello`]. A daemon that does not support the protocol version closes the connection and
//! reports the version.
//!
//! A released version only ever gains frames and fields. A reader ignores unknown fields and answers an unknown
//! request with [`FromKeeper::Refused`]. The next release of the daemon can therefore adopt a keeper of the previous
//! release.
//!
//! One daemon is connected at a time. A new connection replaces the old one, which the keeper closes.
//!
//! **Ordering.** The keeper answers requests in their order. [`FromKeeper::Grown`] can come between answers and says
//! how far the journal reaches. The keeper sends `Grown` only after it wrote the records. `Grown` frames are
//! coalesced: a slow daemon gets only the newest.

mod place;
mod run;

use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::ByteString;
use agentd_api::isolation::IsolationMissing;
use agentd_journal::Options;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use zeroize::Zeroize as _;

use crate::output::OutputRun;

pub use place::{
    KeeperFile, Masks, PlaceLine, PlaceOrder, PlaceReport, PlaceRun, PlacedProgram, Resident, StreamCursor,
};
pub use run::{
    Attributes, CopiedFile, ExpectedFile, Limit, RunOutcome, RunRequest, RunResult, Sourced, Terminal, Trace, Typed,
};

/// Version of this protocol.
pub const PROTOCOL: u32 = 1;

/// Maximum length of a frame that either side accepts, in bytes.
pub const MAX_FRAME: u32 = 64 << 20;
/// Environment variable of an agent that has the session id. It identifies the session that a process belongs to.
pub const SESSION_VARIABLE: &str = "AGENTD_SESSION";

/// First frame from a daemon to a keeper in standby. The keeper answers with [`FromKeeper::Hello`] on the same
/// connection, or with [`FromKeeper::Refused`] and the code `not-held`. Then it exits, or the connection continues like
/// every other.
///
/// With `warm` there is no session yet. The keeper starts the agent, and answers with [`FromKeeper::Launched`] and, at
/// the agent's first output, with [`FromKeeper::Warm`]. Then it waits for a second frame with equal arguments, and
/// without `warm`, which begins the session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begin {
    /// Arguments that would start the keeper of the session ([`HoldArgs::arguments`]). They become its command line.
    pub arguments: Vec<ByteString>,
    /// Parameters of an agent that is started before its session begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<Box<LaunchRecord>>,
}

/// Request from a daemon to a keeper.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToKeeper {
    /// Starts the agent, once in a keeper's life. Answered with [`FromKeeper::Launched`] or [`FromKeeper::Refused`].
    Launch(Box<LaunchRecord>),
    /// Writes records with one write(2), then sends their lines to the agent. Answered with [`FromKeeper::Appended`].
    Append(Append),
    /// Masks more values from now on. The agent must not get these values before the answer, [`FromKeeper::Hidden`].
    Hide(Hide),
    /// Ends the agent in order: close stdin, wait, send SIGTERM, wait, kill the whole tree. Answered with
    /// [`FromKeeper::Stopping`]. `agent.exited` follows in the journal, and then the keeper exits.
    Stop(StopTimes),
}

/// Parameters of an agent's start. They are never written to a disk, because they contain the environment's values.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct LaunchRecord {
    /// Number of this launch of the session's agent.
    pub launch: u64,
    /// Absolute path of the program.
    pub program: ByteString,
    /// Arguments, `argv[1..]`.
    pub args: Vec<ByteString>,
    /// Complete environment. The keeper adds no variables.
    pub environment: Vec<Variable>,
    /// Absolute path of the agent's working directory. Only the agent's process changes to it.
    pub directory: ByteString,
    /// Rule for a replay that an agent of another keeper has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mute: Option<Mute>,
    /// Values that the keeper replaces with `‹secret›` in the agent's output before it reaches the journal. Values
    /// shorter than [`crate::mask::SHORTEST`] are not masked.
    #[serde(default)]
    pub secrets: Vec<ByteString>,
    /// Texts that the keeper puts in place of placeholders, in records with [`NewRecord::fill`]. The journal has the
    /// placeholders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fills: Vec<Fill>,
    /// Maximum length of a line in bytes. A longer line is cut to this length and recorded as noise.
    pub max_line: u64,
    /// Maximum rate at which the keeper reads stdout. A faster agent is slowed down by its full pipe, and no output
    /// is lost.
    #[serde(default)]
    pub output_rate: Option<Rate>,
    /// Maximum rate of stderr that is kept; [`STDERR_RATE`] if absent.
    ///
    /// The keeper always reads stderr, so that printing there never slows the agent down. It drops the whole lines
    /// above the rate. One `agent.stderr` without text then gives the number of dropped bytes in `cut`.
    #[serde(default)]
    pub stderr_rate: Option<Rate>,
    /// Limits for an agent without its own cgroup.
    #[serde(default)]
    pub limits: Limits,
    /// Whether the keeper runs as a systemd unit. It then has its own cgroup, which tells why its agent ended. It
    /// also sends the agent's stderr to journald.
    #[serde(default)]
    pub is_unit: bool,
    /// Isolation of the agent. Absent if a daemon of an older release sends no isolation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enclosure: Option<Enclosure>,
    /// Process attributes that the agent gets in place of the keeper's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// The first request to the agent, `initialize`. An agent that is kept warm has received it before the session
    /// began. Absent in a launch that must start its own agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialize: Option<Box<RawValue>>,
    /// The way to the place on which the agent runs. Absent for an agent of this machine. On a place, a program without
    /// `/` is looked up in the `PATH` of `environment`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Box<PlaceLine>>,
}

/// Isolation at level `guard`. Every path is absolute. Missing paths are skipped, unless they can be created.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enclosure {
    /// Action to take if the system cannot isolate the agent.
    pub missing: IsolationMissing,
    /// Directories that the agent sees as empty and read-only.
    pub directories: Vec<PathBuf>,
    /// Files that the agent sees as empty and read-only.
    pub files: Vec<PathBuf>,
    /// Directories below a hidden directory that the agent still sees. The agent's own directory is always visible.
    pub shown: Vec<VisibleDirectory>,
}

/// Directory that stays visible to an isolated agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisibleDirectory {
    /// Absolute path of the directory.
    pub path: PathBuf,
    /// Whether the agent can neither create, remove nor rename files in it.
    pub read_only: bool,
}

impl LaunchRecord {
    /// Reports whether both records start equal processes and send them an equal first request. The values that only
    /// the keeper uses may differ, for example limits and masked secrets. No agent is kept warm on a place.
    pub fn starts_like(&self, other: &Self) -> bool {
        let process = |of: &Self| (of.program.clone(), of.args.clone(), of.directory.clone(), of.is_unit);
        let request = |of: &Self| of.initialize.as_ref().map(|line| line.get().to_owned());
        process(self) == process(other)
            && self.environment == other.environment
            && self.attributes == other.attributes
            && self.enclosure == other.enclosure
            && self.place.is_none()
            && other.place.is_none()
            && request(self) == request(other)
    }

    /// Overwrites the environment's values and the secrets with zeros when they are no longer needed.
    pub fn zeroize(&mut self) {
        let way = self.place.as_mut().map(|way| &mut way.environment).into_iter().flatten();
        let values = self.environment.iter_mut().chain(way).map(|variable| &mut variable.value);
        values.chain(&mut self.secrets).for_each(|value| value.0.zeroize());
    }
}

/// Default rate of kept stderr. It exceeds the stderr of an ordinary turn many times, and allows at most 1.4 GB a
/// day.
pub const STDERR_RATE: Rate = Rate { bytes_per_second: 16 << 10, burst: 256 << 10 };

/// Rate limit: a sustained rate in bytes per second, and a burst in bytes after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Sustained rate in bytes per second.
    pub bytes_per_second: u64,
    /// Number of bytes allowed at once after a pause.
    pub burst: u64,
}

/// Limits of an agent's process tree, enforced by the keeper on systems without a better way.
///
/// The keeper kills an agent that exceeds a limit, with its tree. `reason` in its `agent.exited` names the limit.
///
/// The resource limits of setrlimit(2) are no substitute. `RLIMIT_NPROC` counts all processes of a user. `RLIMIT_AS`
/// and `RLIMIT_DATA` apply to a single process and count reserved memory (an idle node reserves gigabytes). The
/// keeper therefore checks once a second. Unlike in a cgroup, a tree can exceed its limits between two checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum resident memory in bytes, with shared memory counted once (Linux: the sum of `Pss`).
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Maximum number of processes, including the agent's own.
    #[serde(default)]
    pub processes: Option<u64>,
}

/// Prints no values and no arguments, because logs must not contain them.
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

/// Environment variable.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Name of the variable.
    pub name: ByteString,
    /// Value of the variable.
    pub value: ByteString,
}

/// Prints only the name.
impl std::fmt::Debug for Variable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.name)
    }
}

/// Request to write records to the journal with one write(2), then to send their lines to the agent in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Append {
    /// Number that the daemon gives this request; the answer repeats it.
    pub request: u64,
    /// Records to write.
    pub records: Vec<NewRecord>,
    /// Whether to sync the records to the disk (fdatasync) before the answer.
    #[serde(default)]
    pub durable: bool,
    /// Whether to write into the journal's reserve, ahead of records that wait for disk space. For records of the end
    /// of a turn, a launch, a question or an agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_reserve: bool,
    /// Rule to recognise a replay of history from the moment these records are sent, and not to journal it again.
    #[serde(default)]
    pub mute: Option<Mute>,
}

/// Record to append. The keeper adds its `seq` and its time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewRecord {
    /// Kind of the record, such as `turn.started`.
    pub kind: String,
    /// JSON data of the record, without line breaks.
    pub data: Box<RawValue>,
    /// Whether to send `data` to the agent as one line after it is in the journal.
    #[serde(default)]
    pub send: bool,
    /// Whether to replace placeholders in the line that is sent ([`LaunchRecord::fills`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fill: bool,
    /// Whether to put the contents of the session's files into the line that is sent ([`contents`]). A prompt gets no
    /// secrets, because its text comes from a client.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub contents: bool,
}

/// Returns the directory of the contents of a session's prompts. Each file has the SHA-256 of its text as its name.
pub fn contents(session: &Path) -> PathBuf {
    session.join("contents")
}

/// A placeholder in lines for the agent, and the text in its place.
#[derive(Clone, Serialize, Deserialize)]
pub struct Fill {
    /// The placeholder in a JSON string.
    pub placeholder: String,
    /// The text, which can be a secret.
    pub text: String,
}

/// Prints the placeholder and never the text.
impl std::fmt::Debug for Fill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fill({})", self.placeholder)
    }
}

/// Additional values to mask in the agent's output, like [`LaunchRecord::secrets`]. Earlier values stay masked.
#[derive(Clone, Serialize, Deserialize)]
pub struct Hide {
    /// Values to mask.
    pub secrets: Vec<ByteString>,
}

/// Prints the number of values and never the values.
impl std::fmt::Debug for Hide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hide({} values)", self.secrets.len())
    }
}

/// Rule for a replay of history that must not be journalled again.
///
/// The keeper drops `session/update` notifications whose `params.update.sessionUpdate` is one of `updates`. The mute
/// ends when the response to `response_to` has come and no such notification follows for `quiet_ms`. One
/// `agent.replayed` record then gives their number.
///
/// All other lines are journalled as usual. A successful response is journalled when the mute *ends*, so that its
/// reader knows that the replay is over. An error response is journalled at once and ends the mute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mute {
    /// JSON-RPC id of the request that causes the replay.
    pub response_to: u64,
    /// Values of `sessionUpdate` that belong to a replay.
    pub updates: Vec<String>,
    /// Quiet time after the response, in milliseconds.
    pub quiet_ms: u64,
}

/// Time limits for the steps of an orderly stop, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopTimes {
    /// Time from the close of stdin to SIGTERM.
    pub close_ms: u64,
    /// Time from SIGTERM to the kill of the whole tree.
    pub term_ms: u64,
}

/// Frame from a keeper to the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromKeeper {
    /// First frame of every connection.
    Hello(Hello),
    Launched {
        pid: u32,
    },
    Appended(Appended),
    Hidden,
    /// The agent that is kept warm has written its first output.
    Warm,
    Stopping,
    Grown(Tail),
    /// The request was refused and changed nothing. The codes are:
    ///
    /// - `unknown-request`, `already-launched`, `wrong-launch`.
    /// - `not-held`: a keeper in standby cannot hold the session, and exits.
    /// - `bad-record`: the data of a record contains a line break.
    /// - `agent-not-reading`: too many bytes wait for the agent's stdin.
    /// - `agent-ended`: the agent cannot receive the records.
    /// - `journal-blocked`: retry after a [`Tail`] that is not blocked.
    /// - `not-executed`: the program could not be executed. `agent.exited` follows in the journal, and then the
    ///   keeper exits.
    Refused {
        code: String,
        message: String,
        /// Value of `errno` of the failed journal write, if the system returned one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        errno: Option<i32>,
    },
}

/// Identity of the keeper and state of its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Protocol version of the keeper.
    pub protocol: u32,
    /// Release of the keeper.
    pub version: String,
    /// Session id.
    pub session: String,
    /// Number of the launch that the keeper is for.
    pub launch: u64,
    /// Process id of the keeper.
    pub pid: u32,
    /// Start time of the keeper, as in the `keeper.started` record.
    pub start_time: u64,
    /// Process id of the agent; absent before the launch and after the agent's end.
    pub agent_pid: Option<u32>,
    /// End of the journal.
    pub tail: Tail,
}

/// End of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// `seq` of the last record.
    pub seq: u64,
    /// Whether a journal write failed (disk full, I/O error). The keeper does not read the agent until a write
    /// succeeds.
    #[serde(default)]
    pub blocked: bool,
    /// Value of `errno` of the failed write, if the system returned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Whether the agent and its tree have ended while `agent.exited` could not be written yet.
    #[serde(default)]
    pub ended: bool,
    /// The last records, if they are agent output that no rule of the session inspects. The daemon need not read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputRun>,
}

/// Answer to [`Append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// Number of the request that this answers.
    pub request: u64,
    /// `seq` of the last appended record.
    pub seq: u64,
}

/// Size in bytes to which a journal is shortened by removing its oldest segments. Absent: the journal is never
/// shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSizeLimit(pub Option<u64>);

impl Default for JournalSizeLimit {
    fn default() -> Self {
        Self(Some(256 << 20))
    }
}

/// Start parameters of a keeper: `agentd-keeper` with [`HoldArgs::arguments`].
///
/// The keeper reads no environment variables. It closes its stdout and stderr when its socket listens. Before that it
/// can exit with a message on stderr; exit status 3 means that another process holds the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HoldArgs {
    /// Session id.
    pub session: String,
    /// Number of the launch that the keeper is for.
    pub launch: u64,
    /// The session's directory, which holds the journal.
    pub state: PathBuf,
    /// Path of the unix socket to listen on.
    pub socket: PathBuf,
    /// Segment size and sync policy of the journal.
    pub journal: Options,
    /// Target size of the journal. At two segments above it, the keeper drops records that are not essential.
    pub keep: JournalSizeLimit,
    /// Time after which the keeper ends an agent without a connected daemon; absent means never. Time in
    /// which the machine sleeps does not count.
    pub orphan_ttl: Option<Duration>,
    /// Soft limit of core files for the agent, if it differs from the keeper's own.
    pub core: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_launch_on_a_place_takes_over_a_warm_agent() {
        let local = LaunchRecord { program: "/bin/agent".into(), ..LaunchRecord::default() };
        let placed = LaunchRecord { place: Some(Box::default()), ..local.clone() };
        assert!(local.starts_like(&local));
        assert!(!local.starts_like(&placed) && !placed.starts_like(&local) && !placed.starts_like(&placed));
    }

    #[test]
    fn the_environment_of_a_client_is_overwritten_with_that_of_the_agent() {
        let environment = vec![Variable { name: "TOKEN".into(), value: "hunter2".into() }];
        let place = PlaceLine { environment: environment.clone(), ..PlaceLine::default() };
        let mut record = LaunchRecord { environment, place: Some(Box::new(place)), ..LaunchRecord::default() };
        record.zeroize();
        assert_ne!(record.environment[0].value, "hunter2".into());
        assert_ne!(record.place.unwrap().environment[0].value, "hunter2".into());
    }
}
