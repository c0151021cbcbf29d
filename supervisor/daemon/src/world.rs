//! What all sessions share: the configuration, the directories, the plugins, the launcher.

use std::path::PathBuf;
use std::sync::Arc;

use agentd_api::session::SessionSpec;
use agentd_api::{Code, Problem};
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::config::{self, Config};
use crate::directories::Directories;
use crate::env::{Pipeline, PipelineError, Secrets, Trust};
use crate::launch::Launcher;

/// One daemon's world. Shared, never changed.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) directories: Directories,
    pub(crate) trust: Arc<Trust>,
    pub(crate) secrets: Secrets,
    pub(crate) launcher: Launcher,
    pub(crate) launches: Semaphore,
    /// Ends every driver, and no session.
    pub(crate) shutdown: CancellationToken,
    pub(crate) programs: Programs,
    pipeline: OnceCell<Pipeline>,
}

/// The programs that lie beside the daemon's own.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) daemon: PathBuf,
    pub(crate) keeper: PathBuf,
    pub(crate) ctl: PathBuf,
}

impl World {
    pub(crate) fn new(config: Config, directories: Directories, trust: Trust, programs: Programs) -> Self {
        Self {
            launcher: Launcher::new(config.launch.manager, programs.keeper.clone()),
            secrets: Secrets::new(&config, programs.keeper.clone()),
            launches: Semaphore::new(config.limits.launches),
            config,
            directories,
            trust: Arc::new(trust),
            shutdown: CancellationToken::new(),
            programs,
            pipeline: OnceCell::new(),
        }
    }

    /// The providers; loaded by whoever needs them first, and tried again by the next if that failed.
    pub(crate) async fn pipeline(&self) -> Result<&Pipeline, Box<PipelineError>> {
        let load = || async {
            Pipeline::load(
                &self.config,
                self.directories.compiled_plugins(),
                self.programs.daemon.clone(),
                self.programs.keeper.clone(),
            )
            .await
            .map_err(Box::new)
        };
        self.pipeline.get_or_try_init(load).await
    }

    /// The agents that a session can name, with their commands; the demo agent first, unless the configuration has its own.
    pub(crate) fn agents(&self) -> Vec<(String, Vec<String>)> {
        let configured = self.config.agents.iter().map(|(name, agent)| (name.to_string(), agent.command.clone()));
        let demo = (config::DEMO.to_owned(), vec![self.programs.ctl.display().to_string(), "demo-agent".to_owned()]);
        let own = self.config.agents.keys().any(|name| name.as_str() == config::DEMO);
        (!own).then_some(demo).into_iter().chain(configured).collect()
    }

    /// The command that speaks ACP for this session.
    pub(crate) fn agent_command(&self, spec: &SessionSpec) -> Result<Vec<String>, Problem> {
        if let Some(command) = &spec.command {
            return Ok(command.clone());
        }
        let wanted = self.agent_label(spec);
        let agents = self.agents();
        if let Some((_, command)) = agents.iter().find(|(name, _)| *name == wanted) {
            return Ok(command.clone());
        }
        let known: Vec<&str> = agents.iter().map(|(name, _)| name.as_str()).collect();
        Err(Problem::new(Code::NoSuchAgent, format!("there is no agent {wanted:?} in the configuration"))
            .hint(format!("there are {}; add it as [agents.{wanted}] or give a command", known.join(", "))))
    }

    /// What the session's agent is called: its name, or its program's.
    pub(crate) fn agent_label(&self, spec: &SessionSpec) -> String {
        match (&spec.agent, &spec.command) {
            (Some(agent), _) => agent.to_string(),
            (None, Some(command)) => command.first().cloned().unwrap_or_default(),
            (None, None) => self.config.default_agent.to_string(),
        }
    }
}
