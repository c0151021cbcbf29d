//! What the host does for a check during its call: the machine, its log, secrets. No login shell and no script: a check looks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use agentd_plugins::{Failure, Level, MachineServices, Services};

use crate::capability::OnMachine;
use crate::env::{Hidden, Secrets};

/// One call's services.
#[derive(Debug)]
pub(super) struct CheckServices {
    pub(super) prerequisite: String,
    /// Empty where it is for everybody.
    pub(super) session: String,
    pub(super) agent: String,
    /// The session's, its links resolved, where it answers.
    pub(super) directory: Option<PathBuf>,
    pub(super) machine: OnMachine,
    pub(super) secrets: Arc<Secrets>,
    /// What must not be in any message.
    pub(super) hidden: Hidden,
}

#[async_trait::async_trait]
impl Services for CheckServices {
    fn log(&self, level: Level, message: &str) {
        let (plugin, session) = (self.prerequisite.as_str(), self.session.as_str());
        let hidden = || self.hidden.text(message);
        match level {
            Level::Error => tracing::error!(agentd.prerequisite = plugin, agentd.session = session, "{}", hidden()),
            Level::Warn => tracing::warn!(agentd.prerequisite = plugin, agentd.session = session, "{}", hidden()),
            Level::Info => tracing::info!(agentd.prerequisite = plugin, agentd.session = session, "{}", hidden()),
            Level::Debug => tracing::debug!(agentd.prerequisite = plugin, agentd.session = session, "{}", hidden()),
        }
    }

    fn machine(&self) -> &dyn MachineServices {
        &self.machine
    }

    async fn read_secret(&self, name: &str, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let login = std::future::ready(Err("a check runs no login shell".to_owned()));
        let reading = self.secrets.read(name, &self.agent, self.directory.as_deref(), login);
        let late = |_| Failure::TimedOut(format!("the secret {name:?} could not be had in time"));
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
