//! The outside of a session, for its driver: the work before an agent is started, and keepers.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use agentd_api::SessionId;
use agentd_keeper::protocol::HoldArgs;
use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::bringup::{self, Job, Progress};
use crate::generation::Generation;
use crate::launch::{Connection, KeeperLimits, LaunchError, Link, LinkError, Unit};

/// The world outside of a session. [`World`] has processes; a test runs without processes.
#[async_trait]
pub(crate) trait Outside: fmt::Debug + Send + Sync {
    /// Begins a bring-up in a task of its own.
    fn bring_up(&self, generation: Arc<Generation>, job: Job, report: mpsc::Sender<Progress>) -> JoinHandle<()>;

    /// Starts a keeper and connects to it.
    async fn start(
        &self,
        generation: &Generation,
        id: &SessionId,
        args: &HoldArgs,
        unit: &Unit,
    ) -> Result<Box<dyn Connection>, LaunchError>;

    /// Connects to a keeper, like [`Link::connect`].
    async fn connect(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError>;

    /// Connects without a time limit, like [`Link::introduced`].
    async fn introduced(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError>;
}

/// The machine's own processes.
#[derive(Debug)]
pub(crate) struct World;

#[async_trait]
impl Outside for World {
    fn bring_up(&self, generation: Arc<Generation>, job: Job, report: mpsc::Sender<Progress>) -> JoinHandle<()> {
        tokio::spawn(bringup::run(generation, job, report))
    }

    async fn start(
        &self,
        generation: &Generation,
        id: &SessionId,
        args: &HoldArgs,
        unit: &Unit,
    ) -> Result<Box<dyn Connection>, LaunchError> {
        let link = generation.daemon.launcher.start(id, args, unit, &generation.keeper_patience()).await?;
        Ok(Box::new(link))
    }

    async fn connect(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError> {
        Ok(Box::new(Link::connect(socket, patience).await?))
    }

    async fn introduced(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError> {
        Ok(Box::new(Link::introduced(socket, patience).await?))
    }
}
