//! The outside of a session, for its driver: the work before an agent is started, and keepers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_api::facts::SessionFacts;
use agentd_api::workflow::WorkflowSpec;
use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use crate::bringup::{self, Progress};
use crate::facts;
use crate::generation::Generation;
use crate::launch::{Connection, KeeperLimits, LaunchError, Link, LinkError, Reservation};
use crate::launch_plan::LaunchPlan;
use crate::repositories;
use crate::workflow::{self, Examined};
use agentd_decide::repositories::RepositoryWork;

/// The parts of the system that a driver acts on. [`Processes`] starts real processes; a test starts none.
#[async_trait]
pub(crate) trait Outside: fmt::Debug + Send + Sync {
    /// Begins a bring-up in a task of its own.
    fn bring_up(&self, plan: Arc<LaunchPlan>, report: mpsc::Sender<Progress>) -> JoinHandle<()>;

    /// Begins the work on a repository in a task of its own.
    fn repository(&self, plan: Arc<LaunchPlan>, work: RepositoryWork, report: mpsc::Sender<Progress>)
    -> JoinHandle<()>;

    /// Begins the examination of a workflow in a task of its own. It ends with an outcome that is new.
    fn workflow(&self, plan: Arc<LaunchPlan>, wanted: WorkflowSpec, say: oneshot::Sender<Examined>) -> JoinHandle<()>;

    /// Reads the facts about a session's directory.
    async fn facts(&self, generation: Arc<Generation>, directory: PathBuf) -> SessionFacts;

    /// Starts a keeper and connects to it.
    async fn start(&self, plan: &LaunchPlan, reserved: Option<Reservation>)
    -> Result<Box<dyn Connection>, LaunchError>;

    /// Connects to a keeper, like [`Link::connect`].
    async fn connect(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError>;

    /// Connects without a time limit, like [`Link::introduced`].
    async fn introduced(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError>;
}

/// Bring-ups in tasks, and keepers as processes of the machine.
#[derive(Debug)]
pub(crate) struct Processes;

#[async_trait]
impl Outside for Processes {
    fn bring_up(&self, plan: Arc<LaunchPlan>, report: mpsc::Sender<Progress>) -> JoinHandle<()> {
        tokio::spawn(bringup::run(plan, report).in_current_span())
    }

    fn repository(
        &self,
        plan: Arc<LaunchPlan>,
        work: RepositoryWork,
        report: mpsc::Sender<Progress>,
    ) -> JoinHandle<()> {
        let working = async move { repositories::of_running(&plan, &work, &report).await };
        tokio::spawn(working.in_current_span())
    }

    fn workflow(&self, plan: Arc<LaunchPlan>, wanted: WorkflowSpec, say: oneshot::Sender<Examined>) -> JoinHandle<()> {
        let examining = async move {
            let examined = workflow::until_news(&plan, &wanted, plan.workflow_failure.as_ref()).await;
            // The driver may have dropped the examination.
            let _ = say.send(examined);
        };
        tokio::spawn(examining.in_current_span())
    }

    async fn facts(&self, generation: Arc<Generation>, directory: PathBuf) -> SessionFacts {
        facts::after_work(generation, directory).await
    }

    async fn start(
        &self,
        plan: &LaunchPlan,
        reserved: Option<Reservation>,
    ) -> Result<Box<dyn Connection>, LaunchError> {
        let LaunchPlan { id, keeper, unit, keeper_limits, .. } = plan;
        let link = plan.daemon.launcher.start(id, keeper, unit, keeper_limits, reserved).await?;
        Ok(Box::new(link))
    }

    async fn connect(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError> {
        Ok(Box::new(Link::connect(socket, patience).await?))
    }

    async fn introduced(&self, socket: &Path, patience: &KeeperLimits) -> Result<Box<dyn Connection>, LinkError> {
        Ok(Box::new(Link::introduced(socket, patience).await?))
    }
}
