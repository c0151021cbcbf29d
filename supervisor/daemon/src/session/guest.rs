//! A guarded session's own control socket, as long as its agent runs: also after another daemon has taken it over.

use agentd_api::isolation::Isolation;

use super::driver::Driver;
use super::state::Run;

impl Driver {
    /// Makes the socket before the agent is started.
    pub(super) fn open_to_guests(&mut self) -> std::io::Result<()> {
        let path = self.world.directories.guest_socket(self.id());
        self.guest = Some(self.world.guests.listen(self.id(), path)?);
        Ok(())
    }

    /// Makes the socket of an agent that runs and has none, and removes that of one that has ended.
    pub(super) fn mind_guests(&mut self) {
        let is_guarded = match &self.state.run {
            Run::Preparing(_) => return,
            Run::Ended(_) => false,
            Run::Running(running) => running.isolation.level == Isolation::Guard,
        };
        if !is_guarded {
            if let Some(socket) = self.guest.take() {
                socket.remove();
            }
        } else if self.guest.is_none()
            && let Err(error) = self.open_to_guests()
        {
            tracing::warn!(agentd.session = %self.id(), %error, "the session's own control socket cannot be made");
        }
    }
}
