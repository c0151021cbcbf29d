//! Messages of `agentd-keeper place`, which runs a program on a place.
//!
//! ```text
//! daemon or keeper ── stdin, stdout ──► agentd-keeper place ── client (ssh, srun, podman) ──► agentd-keeper enter
//!                                                                                             └─ the program
//! ```
//!
//! The first frame on the stdin of `agentd-keeper place` is a [`PlaceRun`]. All further bytes are the program's stdin.

use agentd_api::ByteString;
use agentd_api::event::PlaceHost;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize as _;

use super::{Attributes, Fill, Variable};

/// A program on a place, and the way to the place.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlaceRun {
    /// The way to the place.
    pub line: PlaceLine,
    /// The program.
    pub program: PlacedProgram,
}

/// The way to a place: the client whose stdin and stdout lead to `agentd-keeper enter`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceLine {
    /// Name of the place in the configuration.
    pub place: String,
    /// Command line of the client, with the absolute path of its program.
    pub client: Vec<ByteString>,
    /// Complete environment of the client and of `cancel`.
    pub environment: Vec<Variable>,
    /// Command line that ends what the client has started. It is run if the client ends without an end of the program,
    /// and if the program is to end before it began. A program that has begun and has a grace is left to the grace.
    /// Absent if the end of the client ends the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Vec<ByteString>>,
    /// Time in milliseconds that the client has until `agentd-keeper enter` answers. Absent if the program may wait for
    /// an engine's queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enter_ms: Option<u64>,
    /// Time in milliseconds after which a silent connection counts as lost, on both sides.
    pub silence_ms: u64,
    /// Time in milliseconds for which the program continues after the connection is lost.
    #[serde(default)]
    pub grace_ms: u64,
    /// Times of the orderly end of the program after the connection is lost.
    pub close_ms: u64,
    /// Time from SIGTERM to the kill of the whole tree.
    pub term_ms: u64,
    /// Terms of an agent that stays on the place when the connection is lost. Absent: the loss ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<Box<Resident>>,
    /// SHA-256, in hexadecimal digits, of the `agentd-keeper` that may start the program there. Absent: each one of
    /// this version may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The file with this SHA-256, for a client that asks for it on behalf of the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<Box<KeeperFile>>,
}

/// A file with `agentd-keeper`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperFile {
    /// Path on this machine.
    pub path: ByteString,
    /// Size in bytes.
    pub bytes: u64,
}

/// Terms of an agent that stays on its place when the connection is lost.
///
/// `agentd-keeper enter stay NAME` is then the agent's parent, and `client` leads to it by way of `agentd-keeper enter
/// attach NAME`. A lost connection is followed by another client, as often as necessary.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resident {
    /// Command line that submits the agent's parent to an engine, once in a launch. The first word of its output is the
    /// engine's job, which replaces `{job}` in the words of `client`. Absent if the client starts the parent itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submit: Option<Vec<ByteString>>,
    /// The engine's job, if the agent's parent was submitted already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Position of the journal in the agent's streams, for an agent that runs already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<StreamCursor>,
    /// Texts that the place keeps for a keeper that continues with the agent.
    #[serde(default)]
    pub masks: Masks,
    /// Time in milliseconds after which an agent without a connection is ended.
    pub alone_ms: u64,
    /// Time in milliseconds for which the end of an agent waits to be read.
    pub linger_ms: u64,
}

/// Prints no command lines.
impl std::fmt::Debug for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resident").field("job", &self.job).field("resume", &self.resume).finish_non_exhaustive()
    }
}

/// Numbers of the first bytes of an agent's output that a reader does not have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamCursor {
    /// Byte of stdout.
    pub out: u64,
    /// Byte of stderr.
    pub err: u64,
}

/// Secrets of a launch that the keeper masks or fills in ([`super::LaunchRecord`]).
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Masks {
    /// Values to mask in the agent's output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<ByteString>,
    /// Texts in place of placeholders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fills: Vec<Fill>,
}

impl PartialEq for Masks {
    fn eq(&self, other: &Self) -> bool {
        let texts = |of: &Self| of.fills.iter().map(|fill| (fill.placeholder.clone(), fill.text.clone())).collect();
        let (own, others): (Vec<_>, Vec<_>) = (texts(self), texts(other));
        self.secrets == other.secrets && own == others
    }
}

impl Eq for Masks {}

impl Masks {
    /// Adds texts that are not among the present ones.
    pub(crate) fn add(&mut self, more: Self) {
        self.secrets
            .extend(more.secrets.into_iter().filter(|secret| !self.secrets.contains(secret)).collect::<Vec<_>>());
        self.fills.extend(more.fills);
    }

    /// Overwrites the texts with zeros when they are no longer needed.
    pub fn zeroize(&mut self) {
        self.secrets.iter_mut().for_each(|secret| secret.0.zeroize());
        self.fills.iter_mut().for_each(|fill| fill.text.zeroize());
    }
}

/// Prints the numbers of the texts and never the texts.
impl std::fmt::Debug for Masks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Masks({} secrets, {} fills)", self.secrets.len(), self.fills.len())
    }
}

/// Message of a keeper to `agentd-keeper place FD`, for an agent that stays on its place.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceOrder {
    /// The journal has all bytes before these.
    Kept(StreamCursor),
    /// The end of stdin that follows is meant for the agent. Without this message, the keeper is gone.
    Close,
    /// The place keeps more values to mask.
    Hide(Masks),
}

/// Program to run on a place. Nothing of it is on a command line or in an environment of the way.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct PlacedProgram {
    /// Path of the program. A name without `/` is looked up in the `PATH` of `environment`. Empty for
    /// `agentd-keeper` itself, which then has the arguments as its role.
    pub program: ByteString,
    /// Arguments, `argv[1..]`.
    pub args: Vec<ByteString>,
    /// Complete environment of the program.
    pub environment: Vec<Variable>,
    /// Absolute path of the working directory.
    pub directory: ByteString,
    /// Process attributes of the program in place of those of `agentd-keeper enter`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Session id of an agent. It identifies the processes of the session on the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

impl PlacedProgram {
    /// Overwrites the arguments and the environment's values with zeros when they are no longer needed.
    pub fn zeroize(&mut self) {
        let values = self.environment.iter_mut().map(|variable| &mut variable.value);
        values.chain(&mut self.args).for_each(|value| value.0.zeroize());
    }
}

/// Prints no values and no arguments, because logs must not contain them.
impl std::fmt::Debug for PlacedProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlacedProgram").field("program", &self.program).finish_non_exhaustive()
    }
}

/// Message of `agentd-keeper place FD` to its parent, as one frame on the file descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceReport {
    /// The engine has taken the agent's parent as this job.
    Submitted {
        /// Id that the engine gave the job.
        job: String,
    },
    /// The program runs, or is connected again.
    Running(PlaceHost),
    /// The facts about an agent that stays on its place. Follows `Running`.
    Attached {
        /// Number of complete lines of stdin that the place has received.
        lines: u64,
        /// Texts that the place kept.
        masks: Masks,
    },
    /// The connection is cut, and the agent may continue. Another client is started.
    Away {
        /// Description for people.
        message: String,
    },
    /// The place cannot store the output of an agent that stays there, so the agent waits.
    Stalled {
        /// Reason for people. Absent: the output is stored again.
        message: Option<String>,
    },
    /// The program was not started, or the place was not reached. The last message.
    Refused {
        /// Stable code: `client-failed`, `no-answer`, `version`, `directory`, `not-executed`, `digest`,
        /// `keeper-file`, `cancelled`.
        code: String,
        /// Description for people.
        message: String,
    },
    /// The connection was lost while the program ran. The launch is cancelled next. A second such message follows if
    /// the command that cancels it fails.
    Lost {
        /// Description for people.
        message: String,
    },
    /// The program has ended, and its whole tree. The last message.
    Ended {
        /// Exit status, if the program exited normally.
        status: Option<i32>,
        /// Signal number, if a signal terminated the program.
        signal: Option<i32>,
        /// Number of other processes of its tree that were killed.
        killed: u32,
    },
}

/// Prints no values of variables.
impl std::fmt::Debug for PlaceLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlaceLine").field("place", &self.place).field("client", &self.client).finish_non_exhaustive()
    }
}
