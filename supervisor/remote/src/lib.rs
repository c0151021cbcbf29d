//! Reaches the agentd of another machine through `ssh`, and names such machines in the user's configuration.
//!
//! Not responsible for the calls over such a connection, nor for the start of a daemon: `agentctl dial` on the machine
//! does that.

mod fleet;
mod hosts;
mod ssh;

use std::io;
use std::path::PathBuf;

pub use fleet::{SIDE_BY_SIDE, side_by_side};
pub use hosts::{Hosts, NamedHost, THIS};
pub use ssh::{GREETING, SshHost, SshStream};

/// Reason why a machine is not reached or not named.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("{given:?} is not the address of a machine")]
    Address { given: String },
    #[error("{name:?} is not a name for a machine")]
    Name { name: String },
    #[error("no machine has the name {name:?}")]
    Unknown { name: String },
    #[error("{} is not valid: {detail}", path.display())]
    File { path: PathBuf, detail: String },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The daemon of a machine cannot be reached. `last_lines` are the last messages of ssh and of the machine.
    #[error("cannot reach agentd at {host}: {what}")]
    Unreachable { host: String, what: String, last_lines: Vec<String>, hint: String },
    /// The machine gave no complete answer in time. `seconds` is the time limit.
    #[error("{host} did not answer within {seconds} s")]
    Late { host: String, destination: String, seconds: u64 },
}

impl RemoteError {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Address { .. } => "give [USER@]MACHINE or ssh://[USER@]MACHINE[:PORT]".to_owned(),
            Self::Name { .. } => {
                format!("use 1 to {} letters, digits, `.`, `_` and `-`; {THIS:?} is this machine", hosts::LONGEST_NAME)
            }
            Self::Unknown { .. } => {
                "agentctl host ls lists the machines; agentctl host add NAME ADDRESS adds one".to_owned()
            }
            Self::File { .. } => "correct the file, or give --host this".to_owned(),
            Self::Read { path, .. } | Self::Write { path, .. } => {
                format!("check the owner and the mode: ls -l {}", path.display())
            }
            Self::Unreachable { hint, .. } => hint.clone(),
            Self::Late { destination, .. } => {
                format!("--timeout sets the time limit; try ssh alone: ssh {destination} true")
            }
        }
    }
}
