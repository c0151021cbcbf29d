//! The network. Grant: `network = [patterns]` of `host:port`.

use std::time::Duration;

use super::{host, milliseconds};
use crate::Failure;

pub use crate::bindings::provider::agentd::plugin::network::{
    Ending, Exchanged, NameService, NetworkInterface, Problem, Route, Step, Way,
};

/// The addresses of a host name, as programs of this machine get them.
pub fn resolve(host: &str) -> Result<Vec<String>, Problem> {
    host::network::resolve(host)
}

/// Connects by TCP, makes the steps, closes. `time` is for all of it.
pub fn exchange(host: &str, port: u16, steps: &[Step], time: Duration) -> Result<Exchanged, Problem> {
    host::network::exchange(host, port, steps, milliseconds(time))
}

/// Whether somebody listens there: connects, and closes.
pub fn connect(host: &str, port: u16, time: Duration) -> Result<Exchanged, Problem> {
    exchange(host, port, &[], time)
}

/// This machine's network interfaces.
pub fn interfaces() -> Result<Vec<NetworkInterface>, Failure> {
    host::network::interfaces()
}

/// The main routing table.
pub fn routes() -> Result<Vec<Route>, Failure> {
    host::network::routes()
}

/// Which way packets to an address go; none where there is no route.
pub fn way_to(address: &str) -> Result<Option<Way>, Failure> {
    host::network::way_to(address)
}

/// The name servers, and the domains that are searched.
pub fn name_service() -> Result<NameService, Failure> {
    host::network::name_service_facts()
}

impl Step {
    /// What is sent; nothing is waited for.
    pub fn send(bytes: impl Into<Vec<u8>>) -> Self {
        Self { send: bytes.into(), receive: 0, until: Vec::new() }
    }

    /// How many bytes are waited for, at most 64 KiB.
    #[must_use]
    pub fn receive(mut self, bytes: u32) -> Self {
        self.receive = bytes;
        self
    }

    /// Fewer are enough once these came.
    #[must_use]
    pub fn until(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.until = bytes.into();
        self
    }
}

impl Problem {
    /// Its words, without its kind.
    pub fn message(&self) -> &str {
        match self {
            Self::NoSuchHost(text)
            | Self::NotResolved(text)
            | Self::Refused(text)
            | Self::Unreachable(text)
            | Self::TimedOut(text) => text,
            Self::Other(failure) => failure.message(),
        }
    }
}

/// For a plugin to which an exchange that does not come about is a failure like any other.
impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::NoSuchHost(text) => Self::NotFound(text),
            Problem::TimedOut(text) => Self::TimedOut(text),
            Problem::NotResolved(text) | Problem::Refused(text) | Problem::Unreachable(text) => Self::Unavailable(text),
            Problem::Other(failure) => failure,
        }
    }
}
