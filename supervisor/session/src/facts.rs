//! Reads the facts about a session's directory and its repository, within a time limit and with a bounded number of
//! readings at once.
//!
//! [`agentd_decide::facts`] decides the meaning of the facts. A reading never fails; its result names the obstacle.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::facts::{FactsMoment, FactsObserved, Repository, RepositoryUnread, ScriptDigests, SessionFacts};
use agentd_host::capability::ExaminedDirectory;
use agentd_host::repository::RepositoryReader;
use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::bringup::Progress;
use crate::daemon::Daemon;
use crate::generation::Generation;
use crate::launch_plan::LaunchPlan;

/// Time limit of one reading.
const TIME: Duration = Duration::from_secs(2);
/// Maximum number of readings at once, for launches and for all other purposes. Launches have permits of their own,
/// so that repositories that do not answer do not delay them.
const LAUNCHES: usize = 8;
const OTHERS: usize = 4;

/// Permits for readings. The daemon has one instance.
#[derive(Debug)]
pub struct FactsPermits {
    launches: Semaphore,
    others: Semaphore,
}

impl Default for FactsPermits {
    fn default() -> Self {
        Self { launches: Semaphore::new(LAUNCHES), others: Semaphore::new(OTHERS) }
    }
}

/// Purpose of a reading, which determines its permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Launch,
    Other,
}

/// Reads the facts of a session in `directory`. `home` is the home directory of sessions.
pub(crate) async fn read(daemon: &Daemon, home: Option<&Path>, directory: &Path, purpose: Purpose) -> SessionFacts {
    let permits = match purpose {
        Purpose::Launch => &daemon.facts.launches,
        Purpose::Other => &daemon.facts.others,
    };
    // Readings besides launches wait for each other. A launch does not wait longer than its own reading may take.
    let begun = Instant::now() + TIME;
    let permit = match purpose {
        Purpose::Launch => tokio::time::timeout_at(begun.into(), permits.acquire()).await.ok(),
        Purpose::Other => Some(permits.acquire().await),
    };
    let Some(Ok(_permit)) = permit else { return unread(None, "other repositories did not answer in time") };
    let deadline = if purpose == Purpose::Launch { begun } else { Instant::now() + TIME };
    let Some(examined) = daemon.machine.examine_directory(directory, deadline).await else {
        return unread(None, "the directory cannot be examined");
    };
    let ExaminedDirectory { identity, may_have_repository } = examined;
    if !may_have_repository {
        // git would find none, in many times the time.
        return SessionFacts { read_at: Timestamp::now(), directory: identity, repository: Repository::None };
    }
    let reader = RepositoryReader { machine: &daemon.machine, keeper: &daemon.programs.keeper, home };
    let repository = reader.read(directory, deadline).await;
    SessionFacts { read_at: Timestamp::now(), directory: identity, repository }
}

fn unread(directory: Option<agentd_api::facts::DirectoryIdentity>, message: &str) -> SessionFacts {
    let repository = Repository::Unread(RepositoryUnread { message: message.to_owned() });
    SessionFacts { read_at: Timestamp::now(), directory, repository }
}

/// Reads the facts of a session after its agent's work.
pub(crate) async fn after_work(generation: Arc<Generation>, directory: PathBuf) -> SessionFacts {
    let home = generation.config.environment.home_directory();
    read(&generation.daemon, home.as_deref(), &directory, Purpose::Other).await
}

/// Reads the facts of a launch, and waits until the driver lets the launch continue.
pub(crate) async fn observe(plan: &LaunchPlan, report: &mpsc::Sender<Progress>) {
    let facts = read(&plan.daemon, plan.home.as_deref(), &plan.spec.directory, Purpose::Launch);
    let (facts, scripts) = tokio::join!(facts, scripts(plan));
    let observed = FactsObserved { launch: plan.launch, moment: FactsMoment::Launch, facts: facts.into(), scripts };
    passes(report, |go_on| Progress::Observed { observed: Box::new(observed), go_on }).await;
}

/// Lets the driver compare the environment that the launch has built, and waits until the launch continues.
pub(crate) async fn compare_environment(report: &mpsc::Sender<Progress>) {
    passes(report, |go_on| Progress::EnvironmentKept { go_on }).await;
}

/// Sends a report and waits for the driver's word. A launch that does not continue is dropped by the driver.
async fn passes(report: &mpsc::Sender<Progress>, progress: impl FnOnce(oneshot::Sender<()>) -> Progress) {
    let (go_on, may_go_on) = oneshot::channel();
    if report.send(progress(go_on)).await.is_err() || may_go_on.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns the digests of the launch's scripts. A launch without a host of plugins fails later.
async fn scripts(plan: &LaunchPlan) -> Option<ScriptDigests> {
    let pipeline = plan.pipeline().await.ok()?;
    Some(pipeline.script_digests(&plan.places, &plan.daemon.trust).await)
}
