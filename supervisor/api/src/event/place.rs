//! Records of agents that run on a place: another machine, a job of a cluster or a container.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::doc::Named;

/// Data of the record `place.changed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceChanged {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// Name of the place in the configuration.
    pub place: String,
    /// State of the launch on the place.
    pub state: PlaceState,
    /// Reason of the engine in its own words, for example Slurm's `Resources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Description of the state for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Id that the engine gave the launch: the number of a job, or the id of a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Whether the agent is started again after the engine has ended the launch, as the place is configured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requeue: bool,
    /// The machine on which the agent runs. Present in the state `running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PlaceHost>,
}

/// Data of the record `place.read`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceRead {
    /// Number of the launch, counted from 1.
    pub launch: u64,
    /// Number of lines that were given to the agent.
    pub lines: u64,
    /// Number of bytes of the agent's stdout whose records precede this one.
    pub out: u64,
    /// Number of bytes of the agent's stderr whose records precede this one.
    pub err: u64,
}

/// Facts about the machine and the user under which an agent runs on a place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceHost {
    /// Name of the host (uname(2) `nodename`).
    pub host: String,
    /// Name of the user, or its number if the user has no name there.
    pub user: String,
    /// Number of the user.
    pub uid: u32,
    /// Home directory of the user in the host's user database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<PathBuf>,
    /// Login shell of the user in the host's user database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<PathBuf>,
    /// Architecture of the host (uname(2) `machine`).
    pub architecture: String,
    /// Name of the operating system (uname(2) `sysname`).
    pub system: String,
    /// Version of agentd-keeper on the host.
    pub version: String,
    /// Process id that the agent has there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_pid: Option<u32>,
}

macro_rules! states {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)*) => {
        /// State of a launch on its place.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        pub enum PlaceState {
            $($(#[doc = $doc])+ $name,)*
            /// A state newer than this reader.
            #[serde(other)]
            Unknown,
        }

        impl PlaceState {
            /// All states in the order of their declaration.
            pub const NAMES: &'static [Named] = &[$(Named { name: $text, doc: &[$($doc,)+] },)*];

            /// Returns the name in JSON, or `unknown` for a state newer than this reader.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown => "unknown",
                }
            }
        }
    };
}

states! {
    /// The client was started, and the engine has not answered yet.
    Submitted = "submitted",
    /// The engine has accepted the launch, and it waits for its turn.
    Queued = "queued",
    /// The engine starts the launch.
    Starting = "starting",
    /// The agent runs on the place.
    Running = "running",
    /// The engine has announced that it will end the launch, for example at the end of its time.
    Ending = "ending",
    /// The engine ended the launch. The reason has its words.
    Ended = "ended",
    /// The connection to the place is cut. The agent stays there, and may run.
    Away = "away",
    /// The connection to the place is lost.
    Lost = "lost",
}
