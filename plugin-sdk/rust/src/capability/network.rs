//! The capability `network`. Grant: `network = [patterns]` of `host:port`.

use std::time::Duration;

use super::{host, milliseconds};
use crate::Failure;

pub use crate::bindings::provider::agentd::plugin::network::{
    Ending, Exchanged, NameService, NetworkInterface, Problem, Route, Step, Way,
};

/// Resolves a host name to addresses, as programs of this machine do.
pub fn resolve(host: &str) -> Result<Vec<String>, Problem> {
    host::network::resolve(host)
}

/// Connects by TCP, performs the steps and closes the connection. `time` limits the whole exchange.
pub fn exchange(host: &str, port: u16, steps: &[Step], time: Duration) -> Result<Exchanged, Problem> {
    host::network::exchange(host, port, steps, milliseconds(time))
}

/// Connects by TCP and closes the connection, to check whether a server listens.
pub fn connect(host: &str, port: u16, time: Duration) -> Result<Exchanged, Problem> {
    exchange(host, port, &[], time)
}

/// Returns this machine's network interfaces.
pub fn interfaces() -> Result<Vec<NetworkInterface>, Failure> {
    host::network::interfaces()
}

/// Returns the main routing table.
pub fn routes() -> Result<Vec<Route>, Failure> {
    host::network::routes()
}

/// Returns the route to an address, or `None` if the address is unreachable.
pub fn way_to(address: &str) -> Result<Option<Way>, Failure> {
    host::network::way_to(address)
}

/// Returns the name servers and the search domains.
pub fn name_service() -> Result<NameService, Failure> {
    host::network::name_service_facts()
}

impl Step {
    /// Makes a step that sends bytes and receives nothing.
    pub fn send(bytes: impl Into<Vec<u8>>) -> Self {
        Self { send: bytes.into(), receive: 0, until: Vec::new() }
    }

    /// Sets the number of bytes to receive, at most 64 KiB.
    #[must_use]
    pub fn receive(mut self, bytes: u32) -> Self {
        self.receive = bytes;
        self
    }

    /// Ends the step early once these bytes have been received.
    #[must_use]
    pub fn until(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.until = bytes.into();
        self
    }
}

impl Problem {
    /// Returns the problem's text, without its kind.
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

/// Converts the problem into a failure, for plugins that do not distinguish network problems.
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
