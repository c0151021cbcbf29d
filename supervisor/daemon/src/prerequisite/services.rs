//! What the host does for a check during its call: the machine, its log, secrets. No login shell and no script: a check looks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_plugins::{
    Allowed, Completed, Exchanged, Failure, Interface, Invocation, Level, Liveness, Metadata, Mounted, NameService,
    NetworkProblem, Places, Route, Services, Step, Way,
};

use crate::capability::Machine;
use crate::env::{Hidden, Secrets};

/// When a host call ends that has no time of its own, and may not answer: half of what the check has left is for saying what it found
/// elsewhere.
fn half(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

/// One call's services.
#[derive(Debug)]
pub(super) struct CheckServices {
    pub(super) prerequisite: String,
    /// Empty where it is for everybody.
    pub(super) session: String,
    pub(super) agent: String,
    /// The session's, its links resolved, where it answers.
    pub(super) directory: Option<PathBuf>,
    pub(super) machine: Machine,
    pub(super) secrets: Arc<Secrets>,
    pub(super) places: Places,
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

    async fn run_command(
        &self,
        invocation: Invocation,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<Completed, Failure> {
        self.machine.run(invocation, &self.places, allowed, deadline).await
    }

    async fn inspect_file(&self, path: &str, allowed: Allowed<'_>, deadline: Instant) -> Result<Metadata, Failure> {
        self.machine.inspect(path, &self.places, allowed, half(deadline)).await
    }

    async fn read_file(&self, path: &str, allowed: Allowed<'_>, deadline: Instant) -> Result<Vec<u8>, Failure> {
        self.machine.read(path, &self.places, allowed, half(deadline)).await
    }

    async fn list_directory(
        &self,
        path: &str,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<Vec<String>, Failure> {
        self.machine.entries(path, &self.places, allowed, half(deadline)).await
    }

    async fn resolve_host(&self, host: &str, deadline: Instant) -> Result<Vec<String>, NetworkProblem> {
        self.machine.resolve(host, half(deadline)).await
    }

    async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: Vec<Step>,
        deadline: Instant,
    ) -> Result<Exchanged, NetworkProblem> {
        self.machine.exchange(host, port, &steps, deadline).await
    }

    async fn interfaces(&self, deadline: Instant) -> Result<Vec<Interface>, Failure> {
        self.machine.interfaces(deadline).await
    }

    async fn routes(&self, deadline: Instant) -> Result<Vec<Route>, Failure> {
        self.machine.routes(deadline).await
    }

    async fn way_to(&self, address: &str, deadline: Instant) -> Result<Option<Way>, Failure> {
        self.machine.way_to(address, deadline).await
    }

    async fn name_service(&self, deadline: Instant) -> Result<NameService, Failure> {
        self.machine.name_service(half(deadline)).await
    }

    async fn mounts(&self, deadline: Instant) -> Result<Vec<Mounted>, Failure> {
        self.machine.mounts(deadline).await
    }

    async fn probe_mount(&self, path: &str, time: Duration, deadline: Instant) -> Result<Liveness, Failure> {
        self.machine.probe(path, &self.places, time, deadline).await
    }

    async fn processes(&self, name: &str, deadline: Instant) -> Result<u32, Failure> {
        self.machine.processes(name, deadline).await
    }

    async fn read_secret(&self, name: &str, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let login = std::future::ready(Err("a check runs no login shell".to_owned()));
        let reading = self.secrets.read(name, &self.agent, self.directory.as_deref(), login);
        let late = |_| Failure::TimedOut(format!("the secret {name:?} could not be had in time"));
        match tokio::time::timeout_at(half(deadline).into(), reading).await.map_err(late)? {
            None => Err(Failure::NotFound(format!("the configuration has no secret {name:?} for this check"))),
            Some(Ok(given)) => {
                self.hidden.value(&given.value);
                Ok(given.value)
            }
            Some(Err(missing)) => Err(Failure::Unavailable(self.hidden.text(&missing.to_string()))),
        }
    }
}
