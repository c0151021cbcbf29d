//! The control socket of a guarded session. It exists while the agent runs, also after a restart of the daemon.

use agentd_api::isolation::Isolation;

use super::driver::Driver;
use agentd_decide::state::Run;

impl Driver {
    /// Creates the socket before the agent is started.
    pub(super) fn open_to_guests(&mut self) -> std::io::Result<()> {
        let path = self.generation.daemon.directories.guest_socket(self.id());
        self.guest = Some(self.generation.daemon.guests.listen(self.id(), path)?);
        Ok(())
    }

    /// Creates a missing socket of a running guarded agent, and removes the socket of an ended one.
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
            tracing::warn!(agentd.session = %self.id(), %error, "cannot create the session's own control socket");
        }
    }
}
