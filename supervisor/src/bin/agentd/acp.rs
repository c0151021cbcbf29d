//! Connects the endpoint's `/acp` with the server of `agentctl acp`. Neither crate depends on the other.

use std::io;

use agentd_api::acp::AcpOptions;
use agentd_daemon::{AcpPipe, AcpService, Dial};

/// The server of `agentctl acp`.
#[derive(Debug)]
pub(crate) struct Acp;

impl AcpService for Acp {
    fn serve(&self, options: AcpOptions, dial: Dial) -> io::Result<AcpPipe> {
        let (lines, messages) = agentctl::serve_inside(options, dial, agentd_daemon::remark)?;
        Ok(AcpPipe { lines, messages })
    }
}
