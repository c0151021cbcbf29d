//! Host services for a check during its call: the machine, the log and secrets. A check cannot run login shells or
//! scripts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use agentd_plugin_host::{Failure, LogLevel, MachineServices, Services};

use agentd_environment::{HiddenValues, Secrets};
use agentd_host::capability::CallMachine;

/// Services of one call.
#[derive(Debug)]
pub(super) struct CheckServices {
    pub(super) prerequisite: String,
    /// Id of the session. Empty for a check that belongs to no session.
    pub(super) session: String,
    pub(super) agent: String,
    /// Working directory of the session with its links resolved, if it answers.
    pub(super) directory: Option<PathBuf>,
    pub(super) machine: CallMachine,
    pub(super) secrets: Arc<Secrets>,
    /// Values that are masked in messages.
    pub(super) hidden: HiddenValues,
}

#[async_trait::async_trait]
impl Services for CheckServices {
    fn log(&self, level: LogLevel, message: &str) {
        let (plugin, session) = (self.prerequisite.as_str(), self.session.as_str());
        let hidden = || self.hidden.text(message);
        match level {
            LogLevel::Error => tracing::error!(agentd.prerequisite = plugin, agentd.session = session, "{}", hidden()),
            LogLevel::Warn => tracing::warn!(agentd.prerequisite = plugin, agentd.session = session, "{}", hidden()),
            LogLevel::Info => tracing::info!(agentd.prerequisite = plugin, agentd.session = session, "{}", hidden()),
            LogLevel::Debug => tracing::debug!(agentd.prerequisite = plugin, agentd.session = session, "{}", hidden()),
        }
    }

    fn machine(&self) -> &dyn MachineServices {
        &self.machine
    }

    async fn read_secret(&self, name: &str, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let login = std::future::ready(Err("a check cannot run a login shell".to_owned()));
        let reading = self.secrets.read(name, &self.agent, self.directory.as_deref(), login);
        let late = |_| Failure::TimedOut(format!("cannot read the secret {name:?} within the time limit"));
        match tokio::time::timeout_at(self.machine.own(deadline).into(), reading).await.map_err(late)? {
            None => Err(Failure::NotFound(format!("the configuration has no secret {name:?} for this check"))),
            Some(Ok(given)) => {
                self.hidden.value(&given.value);
                Ok(given.value.to_vec())
            }
            Some(Err(missing)) => Err(Failure::Unavailable(self.hidden.text(&missing.to_string()))),
        }
    }
}
