//! Connects the client to another machine through ssh, and to the endpoint of the process in which this code runs.

use std::sync::Arc;

use agentd_client::{Connect, Connecting, Way};
use agentd_remote::SshHost;
use tokio::io::DuplexStream;

/// Makes a connection to the control endpoint in the same process. The endpoint takes its calls as the owner's.
pub type Dial = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// The daemon of another machine.
struct Ssh(SshHost);

impl Connect for Ssh {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async {
            let stream = self.0.connect().await?;
            Ok(Box::new(stream) as _)
        })
    }

    fn place(&self) -> String {
        self.0.to_string()
    }

    fn machine(&self) -> Option<&str> {
        Some(self.0.name())
    }
}

/// The daemon in whose process this code runs.
struct Inside(Dial);

impl Connect for Inside {
    fn connect(&self) -> Connecting<'_> {
        let stream = (self.0)();
        Box::pin(async { Ok(Box::new(stream) as _) })
    }

    fn place(&self) -> String {
        "agentd".to_owned()
    }
}

/// Returns the way to the daemon of another machine.
pub(crate) fn by_ssh(host: SshHost) -> Way {
    Way::By(Arc::new(Ssh(host)))
}

/// Returns the way to the daemon in whose process this code runs.
pub(crate) fn inside(dial: Dial) -> Way {
    Way::By(Arc::new(Inside(dial)))
}
