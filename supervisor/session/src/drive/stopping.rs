//! Stops the agent through its keeper.

use std::time::Duration;

use agentd_fault::Point;
use agentd_keeper::protocol::ToKeeper;
use tokio::time::Instant;

use super::silent::ForcedStop;
use super::{Driver, DriverError};
use crate::journal_port::Port;
use crate::launch::LinkError;

/// A stop of the agent that is under way.
#[derive(Debug, Default)]
pub(super) struct Stop {
    /// Whether the keeper was asked to stop the agent.
    pub(super) sent: bool,
    /// A stop that ends, or will end, the keeper by force.
    pub(super) forced: Option<ForcedStop>,
}

impl Driver {
    /// Asks the keeper to stop the agent, once.
    pub(super) async fn stop_agent(&mut self) -> Result<(), DriverError> {
        if self.stop.sent {
            return Ok(());
        }
        let times = self.terms.stop_times();
        if agentd_fault::at(Point::DaemonStopBefore).is_err() {
            return self.line_lost().await;
        }
        let answer = self.terms.generation.keeper_patience().answer;
        let Port::Keeper(link) = &mut self.recorder.port else { return self.line_lost().await };
        match link.call(&ToKeeper::Stop(times)).await {
            Ok(_) => {
                self.stop.sent = true;
                let ends = Duration::from_millis(times.close_ms.saturating_add(times.term_ms));
                self.timers.stop_due = Instant::now().checked_add(ends.saturating_add(answer));
            }
            Err(LinkError::Silent { .. }) => {
                let reach = link.reach();
                self.go_silent(reach);
                self.settle_silent().await?;
            }
            Err(_) => self.line_lost().await?,
        }
        Ok(())
    }
}
