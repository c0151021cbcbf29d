//! What all sessions share: the configuration, the directories, the plugins, the launcher.
//!
//! A world is one configuration with what was made of it, and never changes. When the configuration is read again, another
//! world takes its place ([`Worlds`]): whoever does something of several steps keeps the one that it began in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::environment::{Refresh, SnapshotSource};
use agentd_api::prerequisite::OnFailure;
use agentd_api::session::{RestartPolicy, ResumeNote, SessionSpec};
use agentd_api::{Code, Problem, SessionId};
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::capability::Machine;
use crate::config::{self, Config, Loaded, Read};
use crate::directories::{Directories, DirectoryError};
use crate::doctor::Clocks;
use crate::drain::Drain;
use crate::env::{
    Capture, Chosen, Environments, Pipeline, Place, Scope, Scopes, Secrets, Seed, SnapshotOptions, SnapshotTimes,
    Snapshots, Trust, Wanted,
};
use crate::guest::Guests;
use crate::launch::{Launcher, Patience};
use crate::plugins::{HostOnce, Managed, NoHost, Plugins};
use crate::prerequisite::{self, Prerequisites, Surroundings, Who};
use crate::pulse::Pulses;
use crate::standing::{self, Standing};
use crate::tcp::Listening;

/// One daemon's world. Shared, never changed.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) read: Arc<Read>,
    /// What the daemon started with: some keys stay so until its end.
    pub(crate) at_start: Arc<Read>,
    pub(crate) directories: Directories,
    pub(crate) trust: Arc<Trust>,
    pub(crate) environments: Arc<Environments>,
    pub(crate) secrets: Arc<Secrets>,
    /// What is done on the machine for plugins.
    pub(crate) machine: Machine,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) launches: Arc<Semaphore>,
    /// Ends every driver, and no session.
    pub(crate) shutdown: CancellationToken,
    /// Whether sessions are stopped and none launched.
    pub(crate) drain: Arc<Drain>,
    /// What was found when the configuration was last read.
    pub(crate) standing: Arc<Standing>,
    /// Where the agents of guarded sessions come in.
    pub(crate) guests: Arc<Guests>,
    /// Where requests come in besides the socket.
    pub(crate) tcp: Arc<Listening>,
    /// Whether drivers get on.
    pub(crate) pulses: Arc<Pulses>,
    pub(crate) programs: Programs,
    /// As they stood when the daemon started.
    pub(crate) clocks: Clocks,
    host: Arc<HostOnce>,
    capture: Capture,
    loaded: OnceCell<Made>,
}

/// What is made of the plugins.
#[derive(Debug)]
struct Made {
    plugins: Plugins,
    pipeline: Pipeline,
    prerequisites: Arc<Prerequisites>,
}

/// The programs that lie beside the daemon's own.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    pub(crate) daemon: PathBuf,
    pub(crate) keeper: PathBuf,
    pub(crate) ctl: PathBuf,
}

/// The world in force, and the one place where another takes its place.
#[derive(Debug)]
pub(crate) struct Worlds {
    current: watch::Sender<Arc<World>>,
}

impl Worlds {
    pub(crate) fn new(first: World) -> Self {
        Self { current: watch::Sender::new(Arc::new(first)) }
    }

    /// The one in force. Whoever holds it longer than for what it does at the moment holds up what it is made of.
    pub(crate) fn now(&self) -> Arc<World> {
        Arc::clone(&self.current.borrow())
    }

    /// Told of each further one.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<World>> {
        self.current.subscribe()
    }

    /// Has everybody look again, though it is the same.
    pub(crate) fn touch(&self) {
        self.current.send_modify(|_| {});
    }

    pub(crate) fn replace(&self, next: World) {
        next.snapshots.take_effect();
        self.current.send_replace(Arc::new(next));
    }
}

impl World {
    /// The first one, of a daemon that starts.
    pub(crate) fn new(
        loaded: Loaded,
        directories: Directories,
        trust: Trust,
        programs: Programs,
    ) -> Result<Self, DirectoryError> {
        let Loaded { config, read } = loaded;
        let read = Arc::new(read);
        let capture = capture(&config, &programs);
        let environments = Environments::new(&directories, &config.environment.encryption, credentials());
        let options = snapshot_options(&config, &directories);
        let snapshots = Snapshots::new(options, Arc::new(capture.clone()), environments.vault())?;
        Ok(Self {
            snapshots: Arc::new(snapshots),
            capture,
            launcher: Arc::new(Launcher::new(config.launch.manager, programs.keeper.clone())),
            environments: Arc::new(environments),
            secrets: Arc::new(Secrets::new(&config, programs.keeper.clone())),
            machine: Machine::new(programs.keeper.clone()),
            launches: Arc::new(Semaphore::new(config.limits.launches)),
            host: Arc::new(HostOnce::new(directories.compiled_plugins(), programs.daemon.clone())),
            config,
            at_start: Arc::clone(&read),
            read,
            directories,
            trust: Arc::new(trust),
            shutdown: CancellationToken::new(),
            drain: Arc::default(),
            standing: Arc::default(),
            guests: Arc::default(),
            tcp: Arc::default(),
            pulses: Arc::default(),
            programs,
            clocks: Clocks::now(),
            loaded: OnceCell::new(),
        })
    }

    /// The same daemon's under another configuration. Nobody sees it before it takes this one's place.
    pub(crate) fn again(&self, loaded: Loaded) -> Self {
        let Loaded { config, read } = loaded;
        let capture = capture(&config, &self.programs);
        let options = snapshot_options(&config, &self.directories);
        let environments = self.environments.again(&config.environment.encryption);
        let is_as_many = config.limits.launches == self.config.limits.launches;
        let launches = is_as_many.then(|| Arc::clone(&self.launches));
        Self {
            snapshots: Arc::new(self.snapshots.again(options, Arc::new(capture.clone()), environments.vault())),
            capture,
            launcher: Arc::clone(&self.launcher),
            environments: Arc::new(environments),
            secrets: Arc::new(Secrets::new(&config, self.programs.keeper.clone())),
            machine: self.machine.clone(),
            // Launches under way count among those of the world that they began in.
            launches: launches.unwrap_or_else(|| Arc::new(Semaphore::new(config.limits.launches))),
            host: Arc::clone(&self.host),
            config,
            read: Arc::new(read),
            at_start: Arc::clone(&self.at_start),
            directories: self.directories.clone(),
            trust: Arc::clone(&self.trust),
            shutdown: self.shutdown.clone(),
            drain: Arc::clone(&self.drain),
            standing: Arc::clone(&self.standing),
            guests: Arc::clone(&self.guests),
            tcp: Arc::clone(&self.tcp),
            pulses: Arc::clone(&self.pulses),
            programs: self.programs.clone(),
            clocks: self.clocks,
            loaded: OnceCell::new(),
        }
    }

    /// How long a keeper is waited for.
    pub(crate) fn keeper_patience(&self) -> Patience {
        Patience { answer: self.config.launch.keeper_answer.0, shutdown: self.shutdown.clone() }
    }

    /// Whether the configuration allows launches; if not, what it is refused with.
    pub(crate) fn launchable(&self) -> Result<(), Problem> {
        if self.read.refuses() { Err(standing::refusal(&self.read.mistakes)) } else { Ok(()) }
    }

    /// The providers; whoever needs them first begins to load them. One that cannot be loaded fails the launch that needs it.
    pub(crate) async fn pipeline(&self) -> Result<&Pipeline, NoHost> {
        self.loaded().await.map(|made| &made.pipeline)
    }

    /// All plugins, those too that are in no pipeline, when each is loaded or cannot be.
    pub(crate) async fn plugins(&self) -> Result<&Plugins, NoHost> {
        let plugins = self.plugins_begun().await?;
        plugins.settled().await;
        Ok(plugins)
    }

    /// The same, without those that are still being compiled after so long.
    pub(crate) async fn plugins_within(&self, time: Duration) -> Result<&Plugins, NoHost> {
        let plugins = self.plugins_begun().await?;
        let _ = tokio::time::timeout(time, plugins.settled()).await; // what is not settled says so
        Ok(plugins)
    }

    /// The same without waiting for any of them.
    async fn plugins_begun(&self) -> Result<&Plugins, NoHost> {
        self.loaded().await.map(|made| &made.plugins)
    }

    /// The providers, where they are loaded by now.
    pub(crate) fn pipeline_so_far(&self) -> Option<&Pipeline> {
        self.loaded.get().map(|made| &made.pipeline)
    }

    /// The same, where they are loaded by now.
    pub(crate) fn plugins_so_far(&self) -> Option<&Plugins> {
        self.loaded.get().map(|made| &made.plugins)
    }

    /// What sessions need, with what was found of it. Waits for no plugin: see [`Prerequisites::is_settled`].
    pub(crate) async fn prerequisites(&self) -> Result<&Arc<Prerequisites>, NoHost> {
        self.loaded().await.map(|made| &made.prerequisites)
    }

    /// The same when the plugins that check these are loaded or cannot be.
    pub(crate) async fn prerequisites_for(
        &self,
        names: impl IntoIterator<Item = &String>,
    ) -> Result<&Arc<Prerequisites>, NoHost> {
        let prerequisites = self.prerequisites().await?;
        for name in names {
            prerequisites.settled(name).await;
        }
        Ok(prerequisites)
    }

    /// The plugins that a launch of this session needs: its environment's providers, and those that check what it needs.
    pub(crate) async fn plugins_of(&self, spec: &SessionSpec) -> Result<Vec<Arc<Managed>>, NoHost> {
        let plugins = self.plugins_begun().await?;
        let checks = self.needed(spec).into_iter().filter_map(|name| self.config.prerequisites.get(&name));
        let checks = checks.filter_map(|prerequisite| plugins.named(&prerequisite.plugin));
        let mut needed: Vec<Arc<Managed>> = checks.cloned().collect();
        needed.extend(plugins.uses.iter().map(|used| Arc::clone(&used.plugin)));
        needed.sort_by(|one, other| one.name.cmp(&other.name));
        needed.dedup_by(|one, other| one.name == other.name);
        Ok(needed)
    }

    /// The names of what this session needs.
    pub(crate) fn needed(&self, spec: &SessionSpec) -> BTreeSet<String> {
        let (agent, SessionSpec { directory, tags, requires, .. }) = (self.agent_label(spec), spec);
        prerequisite::needed(&self.config.prerequisites, Who { agent: &agent, directory, tags, requires })
    }

    /// The same with what becomes of a launch without each.
    pub(crate) fn needs(&self, spec: &SessionSpec) -> BTreeMap<String, OnFailure> {
        let of = |name: &String| self.config.prerequisites.get(name).map_or(OnFailure::Fail, |one| one.on_failure);
        self.needed(spec).into_iter().map(|name| (name.clone(), of(&name))).collect()
    }

    async fn loaded(&self) -> Result<&Made, NoHost> {
        let load = || async {
            let plugins = Plugins::begin(&self.host, &self.config, &self.directories, self.launchable().err()).await?;
            let pipeline = Pipeline::new(&self.config, plugins.uses.clone(), self.capture.clone());
            let surroundings = Surroundings {
                machine: self.machine.clone(),
                secrets: Arc::clone(&self.secrets),
                config: self.directories.config.clone(),
            };
            let prerequisites = Arc::new(Prerequisites::new(&self.config, &plugins, surroundings).await);
            Ok(Made { plugins, pipeline, prerequisites })
        };
        self.loaded.get_or_try_init(load).await
    }

    /// The agents that a session can name, with their commands; the demo agent first, unless the configuration has its own.
    pub(crate) fn agents(&self) -> Vec<(String, Vec<String>)> {
        let environment = &self.config.environment;
        let needs_home = self.config.agents.values().any(config::Agent::is_in_home);
        // `~` is the home directory of the sessions. agentd's own HOME may name another one.
        let seed =
            needs_home.then(|| Seed::find(environment.home.as_deref(), environment.shell.as_deref()).ok()).flatten();
        let home = seed.as_ref().map(|seed| seed.home.as_path());
        // A section without a command says more of the built-in agent, and does not take its place.
        let with_command = self.config.agents.iter().filter(|(_, agent)| !agent.command.is_empty());
        let configured = with_command.map(|(name, agent)| (name.to_string(), agent.command_in(home)));
        let configured: Vec<_> = configured.collect();
        let demo = (config::DEMO.to_owned(), vec![self.programs.ctl.display().to_string(), "demo-agent".to_owned()]);
        let own = configured.iter().any(|(name, _)| name == config::DEMO);
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
            return without_token(&wanted, command.clone());
        }
        let known: Vec<&str> = agents.iter().map(|(name, _)| name.as_str()).collect();
        Err(Problem::new(Code::NoSuchAgent, format!("there is no agent {wanted:?} in the configuration"))
            .hint(format!("there are {}; add it as [agents.{wanted}] or give a command", known.join(", "))))
    }

    /// What the session's environment begins with. A snapshot that is named is a terminal's.
    pub(crate) fn source(&self, spec: &SessionSpec) -> SnapshotSource {
        let named = spec.environment.snapshot.as_ref().map(|_| SnapshotSource::Terminal);
        spec.environment.source.or(named).unwrap_or(self.config.environment.source)
    }

    /// Whether the session has its snapshot in common with others of its directory.
    pub(crate) fn shares(&self, spec: &SessionSpec) -> bool {
        spec.environment.shared.unwrap_or(self.config.environment.share)
    }

    /// The same, for one launch.
    pub(crate) fn chosen(&self, id: &SessionId, spec: &SessionSpec) -> Arc<Chosen> {
        let wanted = Wanted {
            source: self.source(spec),
            terminal: spec.environment.snapshot.clone(),
            shared: self.shares(spec).then(|| spec.directory.clone()),
            session: self.directories.session(id),
            place: Place { directory: spec.directory.clone(), scope: self.config.snapshot_scope(&spec.directory) },
        };
        Arc::new(Chosen::new(Arc::clone(&self.snapshots), wanted))
    }

    /// What can be said against what a session's environment is to begin with.
    pub(crate) fn check_source(&self, spec: &SessionSpec) -> Result<(), Problem> {
        let (terminals, environment) = (&self.snapshots.terminals, &spec.environment);
        match (self.source(spec), &environment.snapshot) {
            (SnapshotSource::Terminal, Some(id)) if terminals.holds(id) => Ok(()),
            (SnapshotSource::Terminal, Some(id)) => {
                Err(Problem::new(Code::NoSuchSnapshot, format!("no terminal's environment is held under {id:?}"))
                    .hint("send it with POST /v1/snapshots, and name the id that comes back"))
            }
            (SnapshotSource::Terminal, None) if self.shares(spec) && terminals.holds_for(&spec.directory) => Ok(()),
            (SnapshotSource::Terminal, None) => {
                let detail = "the session's environment begins with a terminal's, and the request names none";
                Err(Problem::new(Code::SnapshotNeeded, detail).hint(
                    "send it with POST /v1/snapshots, and name the id that comes back; or ask for another source",
                ))
            }
            (SnapshotSource::LoginShell | SnapshotSource::Stored, None) => Ok(()),
            (SnapshotSource::LoginShell | SnapshotSource::Stored, Some(_)) => {
                let detail = "the session names a terminal's environment, and asks for another source";
                Err(Problem::new(Code::InvalidRequest, detail).hint("leave out one of them"))
            }
        }
    }

    /// What a launch of this session does with the environment of the one before: as it says, else its agent, else everybody.
    pub(crate) fn refresh(&self, spec: &SessionSpec) -> Refresh {
        let of_agent = || spec.agent.as_ref().and_then(|agent| self.config.agents.get(agent))?.refresh;
        spec.environment.refresh.or_else(of_agent).unwrap_or(self.config.environment.refresh)
    }

    /// What becomes of this session when its agent crashes.
    pub(crate) fn restart(&self, spec: &SessionSpec) -> RestartPolicy {
        spec.restart.unwrap_or(self.config.launch.restart)
    }

    /// What this session's agent is told after a resume.
    pub(crate) fn resume_note(&self, spec: &SessionSpec) -> ResumeNote {
        spec.resume_note.unwrap_or(self.config.resume.note)
    }

    /// What the configuration and the specification say of the session's environment.
    pub(crate) fn scopes(&self, spec: &SessionSpec) -> Scopes {
        Scopes {
            agent: spec.command.is_none().then(|| self.config.agent_scope(&self.agent_label(spec))).flatten(),
            directories: self.config.directory_scopes(),
            session: Some(Scope::of_session(&spec.environment)),
        }
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

fn capture(config: &Config, programs: &Programs) -> Capture {
    Capture::new(programs.keeper.clone(), config.environment.deadline.0, config.environment.children)
        .with_term(config.environment.term.clone())
}

fn snapshot_options(config: &Config, directories: &Directories) -> SnapshotOptions {
    let environment = &config.environment;
    SnapshotOptions {
        home: environment.home.clone(),
        shell: environment.shell.clone(),
        sources: environment.sources.clone(),
        times: SnapshotTimes {
            complete: environment.snapshot_ttl.0,
            incomplete: environment.snapshot_ttl_incomplete.0,
        },
        longest: environment.deadline.0,
        cache: directories.snapshots(),
        shared: directories.shared_snapshots(),
    }
}

/// Where systemd put the service's credentials (systemd.exec(5), "Credentials").
pub(crate) fn credentials() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Refuses a command with a token of a known form in it: every process of the machine can read a command line.
fn without_token(agent: &str, command: Vec<String>) -> Result<Vec<String>, Problem> {
    let Some((_, issuer)) = command.iter().find_map(|word| agentd_keeper::tokens::find(word.as_bytes()).next()) else {
        return Ok(command);
    };
    let detail = format!("the command of the agent {agent:?} has a token of {issuer} in it");
    let hint = format!(
        "every process can read a command line: declare the token as [secrets.NAME] in agentd.toml, and take it out of \
         agents.{agent}.command"
    );
    Err(Problem::new(Code::InvalidRequest, detail).hint(hint))
}
