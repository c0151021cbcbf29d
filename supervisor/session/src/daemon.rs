//! The parts of the daemon that live as long as the process, whatever configuration is in force.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use agentd_config::{Config, Origins, StartSettings};
use agentd_environment::Trust;
use agentd_host::capability::Machine;
use agentd_host::directories::Directories;
use agentd_host::disk::DiskWatch;
use agentd_host::guest::Guests;
use agentd_metrics::Metrics;
use agentd_plugin_set::{HostOnce, Observer};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::answer;
use crate::changes::Changes;
use crate::configuration_mistakes::ConfigurationMistakes;
use crate::draining::DrainState;
pub use crate::facts::FactsPermits;
use crate::launch::Launcher;
use crate::mcp;
use crate::place::looks::LookWords;
use crate::pulse::Pulses;
use crate::repositories::RepositoryPermits;
use crate::view_changes::ViewChanges;
use crate::warm::WarmAgents;

/// The parts of the daemon that outlive a reload. Shared by every [`crate::generation::Generation`].
#[derive(Debug)]
pub struct Daemon {
    /// Settings that stay in force until the daemon ends.
    pub start: StartSettings,
    /// The origins of the configuration at the start of the daemon, for the keys that wait for the next start.
    pub at_start: Arc<Origins>,
    pub directories: Directories,
    pub programs: Programs,
    /// Program of the MCP server that agents get, if it was there when the daemon started.
    pub mcp_program: Option<String>,
    /// The scripts that the user approved.
    pub trust: Arc<Trust>,
    /// Performs the machine operations that plugins are granted.
    pub machine: Machine,
    pub launcher: Arc<Launcher>,
    /// Ends every driver when cancelled. The sessions live on.
    pub shutdown: CancellationToken,
    /// Whether the daemon is drained: sessions are stopped and none is launched.
    pub drain: Arc<DrainState>,
    /// The mistakes that the last reading of the configuration found.
    pub standing: Arc<ConfigurationMistakes>,
    /// The control sockets of guarded sessions.
    pub guests: Arc<Guests>,
    /// Progress of each session's driver.
    pub pulses: Arc<Pulses>,
    /// Notes for the feed of events.
    pub changes: Arc<Changes>,
    /// Permits for readings of facts about sessions' directories.
    pub facts: FactsPermits,
    /// Permits for the work on repositories.
    pub(crate) repositories: RepositoryPermits,
    /// Permits for checks of answers.
    pub(crate) answers: Semaphore,
    /// Counter of the changes of published views.
    pub(crate) view_changes: Arc<ViewChanges>,
    /// Words in the names of looks on places.
    pub(crate) looks: Arc<LookWords>,
    /// The agents that are kept warm for later sessions.
    pub warm: Arc<WarmAgents>,
    /// The host of all plugins.
    pub host: Arc<HostOnce>,
    /// The metrics of this daemon.
    pub metrics: Arc<Metrics>,
    /// The watch of the state directory's file system, once the daemon serves.
    pub disk: OnceLock<DiskWatch>,
}

/// The absolute paths of agentd's three programs.
#[derive(Debug, Clone)]
pub struct Programs {
    pub daemon: PathBuf,
    pub keeper: PathBuf,
    pub ctl: PathBuf,
}

impl Daemon {
    /// Creates the parts that live as long as the process, from the first configuration.
    pub fn new(
        config: &Config,
        read: Origins,
        directories: Directories,
        trust: Trust,
        programs: Programs,
        metrics: Arc<Metrics>,
    ) -> Self {
        let start = StartSettings::of(config);
        let changes = Arc::<Changes>::default();
        let noting = Arc::clone(&changes);
        let observer = Observer { metrics: Arc::clone(&metrics), note: Arc::new(move |notice| noting.note(notice)) };
        Self {
            start,
            launcher: Arc::new(Launcher::new(start.manager, programs.keeper.clone())),
            machine: Machine::new(programs.keeper.clone()),
            host: Arc::new(HostOnce::new(directories.compiled_plugins(), programs.daemon.clone(), observer)),
            looks: Arc::new(LookWords::new(directories.looks())),
            metrics,
            disk: OnceLock::new(),
            at_start: Arc::new(read),
            directories,
            trust: Arc::new(trust),
            shutdown: CancellationToken::new(),
            drain: Arc::default(),
            standing: Arc::default(),
            guests: Arc::default(),
            pulses: Arc::default(),
            changes,
            mcp_program: mcp::program(&programs.ctl),
            facts: FactsPermits::default(),
            repositories: RepositoryPermits::default(),
            answers: Semaphore::new(answer::AT_ONCE),
            view_changes: Arc::default(),
            warm: Arc::default(),
            programs,
        }
    }
}
