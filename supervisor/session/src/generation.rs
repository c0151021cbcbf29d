//! One configuration in force, with its plugins, its pipeline and its prerequisites.
//!
//! A [`Generation`] never changes. A reload creates the next generation and swaps both in one step
//! ([`Generations`]). Work of several steps keeps its generation to the end. [`Daemon`] has the parts that outlive
//! a reload.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::environment::{Refresh, RunnerNames, SnapshotSource};
use agentd_api::prerequisite::OnFailure;
use agentd_api::session::{RestartPolicy, ResumeNote, SessionSpec, SessionView};
use agentd_api::{Code, Problem, SessionId};
use async_recursion::async_recursion as boxed;
use tokio::sync::{OnceCell, Semaphore, watch};

use crate::daemon::{Daemon, Programs};
use crate::launch::KeeperLimits;
use crate::place::{self, SessionPlace};

use crate::configuration_mistakes;

use agentd_config::{self as config, Agent, Config, Loaded, Origins};
use agentd_config::{NoSuchPlace, Scope};
use agentd_decide::options;
use agentd_environment::{
    Capture, Environments, Pipeline, Scopes, Secrets, SnapshotOptions, SnapshotPlace, SnapshotRequest, SnapshotTimes,
    Snapshots,
};

use agentd_host::directories::{Directories, DirectoryError};
use agentd_note::Template;
use agentd_place::Place;

use agentd_plugin_set::{ManagedPlugin, NoHost, Plugins};
use agentd_prerequisite::{self as prerequisite, CheckResources, Prerequisites, SessionTraits};

/// One configuration with everything that is created from it. Shared, immutable, numbered.
#[derive(Debug)]
pub struct Generation {
    /// Number of the generation: 1 at the start of the daemon, and one more after each reload.
    pub number: u64,
    /// The parts that live as long as the process.
    pub daemon: Arc<Daemon>,
    pub config: Config,
    /// The files that the configuration was read from, with the places of its values.
    pub read: Arc<Origins>,
    pub environments: Arc<Environments>,
    pub secrets: Arc<Secrets>,
    pub snapshots: Arc<Snapshots>,
    /// Permits for launches that run side by side.
    pub launches: Arc<Semaphore>,
    /// Template of the notes to agents.
    pub template: Arc<Template>,
    /// The configured places by name.
    places: BTreeMap<String, Arc<SessionPlace>>,
    capture: Capture,
    loaded: OnceCell<Loadable>,
}

/// The plugins of a generation, with the pipeline and the prerequisites that use them.
#[derive(Debug)]
struct Loadable {
    plugins: Plugins,
    pipeline: Pipeline,
    prerequisites: Arc<Prerequisites>,
}

/// The generation in force, and the only place that replaces it.
#[derive(Debug)]
pub struct Generations {
    current: watch::Sender<Arc<Generation>>,
}

impl Generations {
    pub fn new(first: Generation) -> Self {
        Self { current: watch::Sender::new(Arc::new(first)) }
    }

    /// Returns the generation in force. A caller that holds it for long keeps its plugins loaded.
    pub fn now(&self) -> Arc<Generation> {
        Arc::clone(&self.current.borrow())
    }

    /// Returns a receiver that is notified of each further generation.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Generation>> {
        self.current.subscribe()
    }

    /// Notifies every receiver without a new generation, because something other than the configuration changed.
    pub fn touch(&self) {
        self.current.send_modify(|_| {});
    }

    /// Puts the next generation in force.
    pub fn replace(&self, next: Generation) {
        next.snapshots.take_effect();
        next.keep_spare();
        self.current.send_replace(Arc::new(next));
    }
}

impl Generation {
    /// Creates the first generation at the start of the daemon.
    ///
    /// # Errors
    ///
    /// A directory for snapshots cannot be created.
    pub fn first(config: Config, daemon: Arc<Daemon>) -> Result<Self, DirectoryError> {
        let capture = capture(&config, &daemon.programs);
        let environments = Environments::new(&daemon.directories, &config.environment.encryption, credentials());
        let options = snapshot_options(&config, &daemon.directories);
        let snapshots = Snapshots::new(options, Arc::new(capture.clone()), environments.vault())?;
        Ok(Self {
            number: 1,
            snapshots: Arc::new(snapshots),
            template: template(&config),
            capture,
            environments: Arc::new(environments),
            secrets: Arc::new(Secrets::new(&config, daemon.programs.keeper.clone())),
            launches: Arc::new(Semaphore::new(config.limits.launches)),
            places: places(&config, &daemon),
            config,
            read: Arc::clone(&daemon.at_start),
            daemon,
            loaded: OnceCell::new(),
        })
    }

    /// Starts or ends the keeper that waits for the next launch, as the configuration says.
    pub fn keep_spare(&self) {
        self.daemon.launcher.keep_spare(self.config.launch.spare_keeper);
    }

    /// Creates the next generation from another configuration. [`Generations::replace`] puts it in force.
    #[must_use]
    pub fn next(&self, loaded: Loaded) -> Self {
        let Loaded { config, read } = loaded;
        let daemon = Arc::clone(&self.daemon);
        let capture = capture(&config, &daemon.programs);
        let options = snapshot_options(&config, &daemon.directories);
        let environments = self.environments.reconfigured(&config.environment.encryption);
        let is_same_limit = config.limits.launches == self.config.limits.launches;
        let launches = is_same_limit.then(|| Arc::clone(&self.launches));
        Self {
            number: self.number + 1,
            snapshots: Arc::new(self.snapshots.reconfigured(options, Arc::new(capture.clone()), environments.vault())),
            template: template(&config),
            capture,
            environments: Arc::new(environments),
            secrets: Arc::new(Secrets::new(&config, daemon.programs.keeper.clone())),
            // Running launches hold permits of their own generation.
            launches: launches.unwrap_or_else(|| Arc::new(Semaphore::new(config.limits.launches))),
            places: places(&config, &daemon),
            config,
            read: Arc::new(read),
            daemon,
            loaded: OnceCell::new(),
        }
    }

    /// Returns the time limit for answers of a keeper, with the daemon's shutdown token.
    pub fn keeper_patience(&self) -> KeeperLimits {
        KeeperLimits { answer: self.config.launch.keeper_answer.0, shutdown: self.daemon.shutdown.clone() }
    }

    /// Returns the refusal of a launch when the configuration allows none.
    pub fn launchable(&self) -> Result<(), Problem> {
        if self.read.refuses() { Err(configuration_mistakes::refusal(&self.read.mistakes)) } else { Ok(()) }
    }

    /// Returns the pipeline of providers, and begins to load the plugins at the first call. A provider that cannot
    /// be loaded fails the launch that needs it.
    pub async fn pipeline(&self) -> Result<&Pipeline, NoHost> {
        self.loaded().await.map(|loadable| &loadable.pipeline)
    }

    /// Returns all plugins, also those in no pipeline, after each is loaded or has failed.
    pub async fn plugins(&self) -> Result<&Plugins, NoHost> {
        let plugins = self.plugins_begun().await?;
        plugins.settled().await;
        Ok(plugins)
    }

    /// Returns all plugins after each is settled, or after `time`.
    pub async fn plugins_within(&self, time: Duration) -> Result<&Plugins, NoHost> {
        let plugins = self.plugins_begun().await?;
        let _ = tokio::time::timeout(time, plugins.settled()).await; // each plugin reports its own stage
        Ok(plugins)
    }

    /// Returns all plugins without waiting for their loading.
    async fn plugins_begun(&self) -> Result<&Plugins, NoHost> {
        self.loaded().await.map(|loadable| &loadable.plugins)
    }

    /// Returns the pipeline of providers, if the loading of plugins has begun. Loads nothing.
    pub fn pipeline_so_far(&self) -> Option<&Pipeline> {
        self.loaded.get().map(|loadable| &loadable.pipeline)
    }

    /// Returns the plugins, if their loading has begun. Loads nothing.
    pub fn plugins_so_far(&self) -> Option<&Plugins> {
        self.loaded.get().map(|loadable| &loadable.plugins)
    }

    /// Returns the prerequisites with their last reports. Waits for no plugin: see [`Prerequisites::is_settled`].
    pub async fn prerequisites(&self) -> Result<&Arc<Prerequisites>, NoHost> {
        self.loaded().await.map(|loadable| &loadable.prerequisites)
    }

    /// Returns the prerequisites after the plugins that check `names` are loaded or have failed.
    pub async fn prerequisites_for(
        &self,
        names: impl IntoIterator<Item = &String>,
    ) -> Result<&Arc<Prerequisites>, NoHost> {
        let prerequisites = self.prerequisites().await?;
        for name in names {
            prerequisites.settled(name).await;
        }
        Ok(prerequisites)
    }

    /// Returns the plugins that a launch of this session needs: the providers of its environment, and the plugins
    /// that check its prerequisites.
    #[boxed]
    pub async fn plugins_of(&self, spec: &SessionSpec) -> Result<Vec<Arc<ManagedPlugin>>, NoHost> {
        let plugins = self.plugins_begun().await?;
        let checks = self.needed(spec).into_iter().filter_map(|name| self.config.prerequisites.get(&name));
        let checks = checks.filter_map(|prerequisite| plugins.named(&prerequisite.plugin));
        let mut needed: Vec<Arc<ManagedPlugin>> = checks.cloned().collect();
        needed.extend(plugins.steps.iter().map(|used| Arc::clone(&used.plugin)));
        needed.sort_by(|one, other| one.name.cmp(&other.name));
        needed.dedup_by(|one, other| one.name == other.name);
        Ok(needed)
    }

    /// Returns the names of the session's prerequisites.
    pub fn needed(&self, spec: &SessionSpec) -> BTreeSet<String> {
        let (agent, SessionSpec { directory, tags, requires, .. }) = (self.agent_label(spec), spec);
        prerequisite::needed(&self.config.prerequisites, SessionTraits { agent: &agent, directory, tags, requires })
    }

    /// Returns the names of the prerequisites of a session and of its workflow.
    pub fn needed_by(&self, view: &SessionView) -> BTreeSet<String> {
        let mut names = self.needed(&view.spec);
        names.extend(view.active_workflow().into_iter().flat_map(|active| active.description.requires.clone()));
        names
    }

    /// Returns the session's prerequisites, each with the consequence of its failure for a launch.
    pub fn needs(&self, spec: &SessionSpec) -> BTreeMap<String, OnFailure> {
        let of = |name: &String| self.config.prerequisites.get(name).map_or(OnFailure::Fail, |one| one.on_failure);
        self.needed(spec).into_iter().map(|name| (name.clone(), of(&name))).collect()
    }

    async fn loaded(&self) -> Result<&Loadable, NoHost> {
        let load = || async {
            let plugins =
                Plugins::begin(&self.daemon.host, &self.config, &self.daemon.directories, self.launchable().err())
                    .await?;
            let metrics = &self.daemon.metrics;
            let (steps, captures) = (plugins.steps.clone(), (self.capture.clone(), &self.capture));
            let pipeline = Pipeline::new(&self.config, steps, captures, Arc::clone(metrics));
            let prerequisites = Arc::new(Prerequisites::new(&self.config, &plugins, self.resources()).await);
            Ok(Loadable { plugins, pipeline, prerequisites })
        };
        self.loaded.get_or_try_init(load).await
    }

    /// Returns the services for checks on this machine.
    fn resources(&self) -> CheckResources {
        CheckResources {
            machine: self.daemon.machine.clone(),
            secrets: Arc::clone(&self.secrets),
            config: self.daemon.directories.config.clone(),
            metrics: Arc::clone(&self.daemon.metrics),
        }
    }

    /// Returns the pipeline and the prerequisites of a place. Begins to load the plugins at the first call.
    pub(crate) async fn loaded_at<'a>(&self, place: &'a SessionPlace) -> Result<&'a place::Loaded, NoHost> {
        let plugins = self.plugins_begun().await?;
        Ok(place.loaded(&self.config, plugins, self.resources(), &self.capture).await)
    }

    /// Returns the configured places by name.
    pub(crate) fn places(&self) -> &BTreeMap<String, Arc<SessionPlace>> {
        &self.places
    }

    /// Returns the place on which the session's agent runs. `None` means this machine.
    ///
    /// # Errors
    ///
    /// The session requests a place that is not configured.
    pub(crate) fn place_of(&self, spec: &SessionSpec) -> Result<Option<&Arc<SessionPlace>>, NoSuchPlace> {
        let place = self.config.place_of(spec.place.as_deref(), &self.agent_label(spec), &spec.directory)?;
        Ok(place.and_then(|place| self.places.get(place.name.as_str())))
    }

    /// Reports whether the session's agent does not run on this machine.
    pub(crate) fn is_elsewhere(&self, spec: &SessionSpec) -> bool {
        !matches!(self.place_of(spec), Ok(None))
    }

    /// Returns the agents that a session can name, with their commands. The demo agent comes first, unless the
    /// configuration defines its own.
    pub fn agents(&self) -> Vec<(String, Vec<String>)> {
        let environment = &self.config.environment;
        let needs_home = self.config.agents.values().any(config::Agent::is_in_home);
        // In these commands `~` means the home directory of the sessions.
        let home = needs_home.then(|| environment.home_directory()).flatten();
        let home = home.as_deref();
        // An entry without a command configures the built-in agent and does not replace it.
        let with_command = self.config.agents.iter().filter(|(_, agent)| agent.has_command());
        let configured = with_command.map(|(name, agent)| (name.to_string(), agent.command_in(home)));
        let configured: Vec<_> = configured.collect();
        let demo =
            (config::DEMO.to_owned(), vec![self.daemon.programs.ctl.display().to_string(), "demo-agent".to_owned()]);
        let own = configured.iter().any(|(name, _)| name == config::DEMO);
        (!own).then_some(demo).into_iter().chain(configured).collect()
    }

    /// Returns the command that starts the session's agent, which speaks ACP.
    pub fn agent_command(&self, spec: &SessionSpec) -> Result<Vec<String>, Problem> {
        if let Some(command) = &spec.command {
            return Ok(command.clone());
        }
        let wanted = self.agent_label(spec);
        let agents = self.agents();
        if let Some((_, command)) = agents.iter().find(|(name, _)| *name == wanted) {
            return without_token(&wanted, command.clone());
        }
        let known: Vec<&str> = agents.iter().map(|(name, _)| name.as_str()).collect();
        Err(Problem::new(Code::NoSuchAgent, format!("there is no agent {wanted:?} in the configuration")).hint(
            format!("configured agents: {}; add [agents.{wanted}] to agentd.toml, or give a command", known.join(", ")),
        ))
    }

    /// Returns the configured agent of the session. `None` for a session with a command of its own, and for an agent
    /// without a table.
    pub fn agent(&self, spec: &SessionSpec) -> Option<&Agent> {
        let named = spec.agent.as_ref().or_else(|| spec.command.is_none().then_some(&self.config.default_agent));
        self.config.agents.get(named?)
    }

    /// Returns the values that the configuration wants for options of the session's agent.
    pub fn agent_options(&self, spec: &SessionSpec) -> BTreeMap<String, String> {
        let Some(agent) = self.agent(spec) else { return BTreeMap::new() };
        let named = |name: &str, value: &Option<String>| Some((name.to_owned(), value.clone()?));
        let others = agent.options.iter().map(|(id, value)| (format!("{}{id}", options::OTHER), value.clone()));
        others.chain(named(options::MODE, &agent.mode)).chain(named(options::MODEL, &agent.model)).collect()
    }

    /// Returns the source of the session's environment. A specification that names a snapshot implies a terminal.
    pub fn source(&self, spec: &SessionSpec) -> SnapshotSource {
        let named = spec.environment.snapshot.as_ref().map(|_| SnapshotSource::Terminal);
        spec.environment.source.or(named).unwrap_or(self.config.environment.source)
    }

    /// Reports whether the session shares its snapshot with other sessions of its directory.
    pub fn shares(&self, spec: &SessionSpec) -> bool {
        spec.environment.shared.unwrap_or(self.config.environment.share)
    }

    /// Returns the request for the snapshot with which a launch of the session starts.
    pub fn snapshot_request(&self, id: &SessionId, spec: &SessionSpec) -> SnapshotRequest {
        SnapshotRequest {
            source: self.source(spec),
            terminal: spec.environment.snapshot.clone(),
            shared: self.shares(spec).then(|| spec.directory.clone()),
            session: self.daemon.directories.session(id),
            place: SnapshotPlace {
                directory: spec.directory.clone(),
                scope: self.config.snapshot_scope(&spec.directory),
            },
        }
    }

    /// Refuses a specification whose environment source cannot be used.
    pub fn check_source(&self, spec: &SessionSpec) -> Result<(), Problem> {
        let (terminals, environment) = (&self.snapshots.terminals, &spec.environment);
        match (self.source(spec), &environment.snapshot) {
            (SnapshotSource::Terminal, Some(id)) if terminals.holds(id) => Ok(()),
            (SnapshotSource::Terminal, Some(id)) => {
                Err(Problem::new(Code::NoSuchSnapshot, format!("there is no terminal environment with the id {id:?}"))
                    .hint("send the environment with POST /v1/snapshots, and use the id of the response"))
            }
            (SnapshotSource::Terminal, None) if self.shares(spec) && terminals.holds_for(&spec.directory) => Ok(()),
            (SnapshotSource::Terminal, None) => {
                let detail = "the session's environment starts from a terminal snapshot, but the request names none";
                Err(Problem::new(Code::SnapshotNeeded, detail)
                    .hint("send it with POST /v1/snapshots and use the id of the response, or choose another source"))
            }
            (SnapshotSource::LoginShell | SnapshotSource::Stored, None) => Ok(()),
            (SnapshotSource::LoginShell | SnapshotSource::Stored, Some(_)) => {
                let detail = "the request names a terminal environment but chooses another source";
                Err(Problem::new(Code::InvalidRequest, detail).hint("remove one of the two"))
            }
        }
    }

    /// Returns how a launch treats the environment of the launch before. The session's setting overrides the
    /// agent's, which overrides the general setting.
    pub fn refresh_policy(&self, spec: &SessionSpec) -> Refresh {
        let of_agent = || spec.agent.as_ref().and_then(|agent| self.config.agents.get(agent))?.refresh;
        spec.environment.refresh.or_else(of_agent).unwrap_or(self.config.environment.refresh)
    }

    /// Returns the runner under whose names for variables the session's agent finds its session too.
    pub fn compatibility(&self, spec: &SessionSpec) -> RunnerNames {
        spec.environment.compatibility.unwrap_or(self.config.environment.compatibility)
    }

    /// Returns the restart policy after a crash of this session's agent.
    pub fn restart_policy(&self, spec: &SessionSpec) -> RestartPolicy {
        spec.restart.unwrap_or(self.config.launch.restart)
    }

    /// Returns the note that this session's agent receives after a resume.
    pub fn resume_note(&self, spec: &SessionSpec) -> ResumeNote {
        spec.resume_note.unwrap_or(self.config.resume.note)
    }

    /// Returns the environment settings of the configuration and of the session's specification.
    pub fn scopes(&self, spec: &SessionSpec) -> Scopes {
        Scopes {
            agent: spec.command.is_none().then(|| self.config.agent_scope(&self.agent_label(spec))).flatten(),
            directories: self.config.directory_scopes(),
            session: Some(Scope::of_session(&spec.environment)),
        }
    }

    /// Returns the label of the session's agent: the name of the agent, or the program of its command.
    pub fn agent_label(&self, spec: &SessionSpec) -> String {
        match (&spec.agent, &spec.command) {
            (Some(agent), _) => agent.to_string(),
            (None, Some(command)) => command.first().cloned().unwrap_or_default(),
            (None, None) => self.config.default_agent.to_string(),
        }
    }
}

/// Returns the configured template of notes, or the built-in one.
fn template(config: &Config) -> Arc<Template> {
    let configured = config.resume.note_template.as_ref().and_then(|configured| configured.template.as_ref().ok());
    configured.map_or_else(|| Arc::new(Template::built_in()), Arc::clone)
}

fn places(config: &Config, daemon: &Daemon) -> BTreeMap<String, Arc<SessionPlace>> {
    let of = |place: Place| {
        let options = snapshot_options(config, &daemon.directories);
        (place.name.to_string(), Arc::new(SessionPlace::new(place, config, daemon, options)))
    };
    config.places.keys().filter_map(|name| config.place(name.as_str())).map(of).collect()
}

fn capture(config: &Config, programs: &Programs) -> Capture {
    Capture::new(programs.keeper.clone(), config.environment.deadline.0, config.environment.children)
        .with_term(config.environment.term.clone())
}

fn snapshot_options(config: &Config, directories: &Directories) -> SnapshotOptions {
    let environment = &config.environment;
    SnapshotOptions {
        user: None,
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

/// Returns the directory of the service's credentials from systemd (systemd.exec(5), "Credentials").
pub fn credentials() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Refuses a command that contains a token of a known form: every process of the machine can read a command line.
fn without_token(agent: &str, command: Vec<String>) -> Result<Vec<String>, Problem> {
    let Some((_, issuer)) = command.iter().find_map(|word| agentd_keeper::tokens::find(word.as_bytes()).next()) else {
        return Ok(command);
    };
    let detail = format!("the command of the agent {agent:?} contains a token of {issuer}");
    let hint = format!(
        "every process can read a command line: declare the token as [secrets.NAME] in agentd.toml, and remove it from \
         agents.{agent}.command"
    );
    Err(Problem::new(Code::InvalidRequest, detail).hint(hint))
}
