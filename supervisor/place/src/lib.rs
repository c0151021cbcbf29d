//! Places on which agents run: a job of Slurm, another machine over ssh, a container, a pod, or any other client.
//!
//! A client is a program whose stdin and stdout lead to `agentd-keeper enter` on the place. This crate builds the
//! command lines of the client and of the engine's tools, and parses the states that the tools print. Pure: it runs no
//! program, and it reads no file and no clock.
//!
//! ```text
//! client   starts the launch and carries its stdio          all kinds
//! cancel   ends the launch, also while it is queued         all kinds except ssh
//! sweep    ends and removes all that a crash left behind    all kinds except ssh
//! status   prints the states of all launches of the place   all kinds except ssh
//! ended    prints the reason of the end of one launch       slurm, container, kubernetes
//! ```
//!
//! The engine's name of a launch is `agentd-SESSION-LAUNCH` ([`LaunchNames::name`]). A launch over ssh has no name
//! there: `agentd-keeper enter` ends the agent by itself when its connection is lost. An agent that stays on its place
//! has a name, a list and an end over ssh too ([`Place::resident_lines`]).

mod command;
mod container;
mod kubernetes;
mod launch;
mod place;
mod resident;
mod slurm;
mod ssh;
mod state;

pub use command::{CommandPlace, WORDS};
pub use container::{Container, Mount, is_mount};
pub use kubernetes::{Kubernetes, Pod};
pub use launch::{ClientError, KeeperCopy, LaunchNames, PREFIX, session_and_launch};
pub use place::{Place, PlaceKind};
pub use resident::{ResidentLines, ResidentTimes};
pub use slurm::Slurm;
pub use ssh::{Ssh, is_safe_remotely};
pub use state::EngineState;

/// Role of agentd-keeper on a place.
const ENTER: &str = "enter";

/// Makes words from texts.
fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
