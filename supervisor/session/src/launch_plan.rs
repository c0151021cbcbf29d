//! The plan of one launch: every value that its bring-up needs, computed once at the start of the bring-up.
//!
//! A bring-up reads its plan and no configuration, so a reload during the bring-up cannot change the launch. A
//! setting that is a field of [`LaunchPlan`] takes effect at the next launch. Values that
//! depend on the built environment are not in the plan, for example the path of the agent's program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentd_api::context::Context;
use agentd_api::environment::{Refresh, RunnerNames};
use agentd_api::event::LaunchReason;
use agentd_api::mcp::{McpOrigin, McpServer};
use agentd_api::prerequisite::Requester;
use agentd_api::session::SessionSpec;
use agentd_api::workflow::{ActiveWorkflow, WorkflowFailed};
use agentd_api::{ByteString, Code, Problem, SessionId, chain};
use agentd_catalogue::KnownAgent;
use agentd_config::{Agent, Config, NoSuchPlace};
use agentd_environment::{
    Environments, Pipeline, Scopes, ScriptDirectories, Secrets, SessionSnapshot, SnapshotRequest, Snapshots, Target,
};
use agentd_host::capability::Machine;
use agentd_host::workspace;
use agentd_keeper::protocol::{Enclosure, HoldArgs, Limits, Rate};
use agentd_plugin_set::{ManagedPlugin, NoHost};
use agentd_prerequisite::Prerequisites;
use jiff::Timestamp;
use tokio::sync::Semaphore;

use crate::contract;
use crate::daemon::Daemon;
use crate::document::Document;
use crate::environment;
use crate::generation::Generation;
use crate::isolation;
use crate::launch::{KeeperLimits, Unit};
use crate::mcp;
use crate::place::SessionPlace;
use agentd_decide::repositories::Repositories;
use agentd_decide::state::{Run, State};

/// Values that one bring-up needs. Immutable.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may stand beside any")]
pub(crate) struct LaunchPlan {
    pub id: SessionId,
    pub spec: Arc<SessionSpec>,
    /// Whether the specification was changed since the creation.
    pub is_changed: bool,
    /// Number of the launch.
    pub launch: u64,
    /// Why the launch began.
    pub reason: LaunchReason,
    /// The session's context sets.
    pub context: Context,
    /// Time until which the launch waits for missing prerequisites.
    pub wait_until: Option<Timestamp>,
    /// Requester that forced the launch despite missing prerequisites.
    pub forced_by: Option<Requester>,
    /// Requester that allowed the launch to leave out failed parts.
    pub degraded_by: Option<Requester>,
    /// First expiry of the present environment's variables, and the time of their renewal.
    pub schedule: Option<(Timestamp, Timestamp)>,
    /// Names of the session's prerequisites.
    pub needed: BTreeSet<String>,
    /// The known repositories of the session.
    pub repositories: Repositories,
    /// Whether the session has never had an agent. Its repositories are then brought to their branches.
    pub is_new: bool,
    /// Whether an agent was kept warm for this launch. No other keeper is reserved then.
    pub has_warm_agent: bool,
    /// Whether the session waits for further prompts.
    pub is_interactive: bool,
    /// The conversation that the agent continues.
    pub conversation: Option<String>,
    /// The workflow in force.
    pub workflow: Option<ActiveWorkflow>,
    /// Why the requested workflow is not in force.
    pub workflow_failure: Option<WorkflowFailed>,
    /// The runner under whose names for variables the agent finds its session too.
    pub compatibility: RunnerNames,
    /// Settings for the repositories.
    pub repository_settings: agentd_config::Repositories,
    /// The session's own workspace.
    pub workspace: Option<PathBuf>,

    /// Home directory of sessions.
    pub home: Option<PathBuf>,
    /// Label of the agent, for plugins and prerequisites.
    pub agent: String,
    /// Values that the configuration wants for options of the agent.
    pub options: BTreeMap<String, String>,
    /// MCP servers that the session wants, besides agentd's own.
    pub mcp: Vec<(String, McpOrigin, McpServer)>,
    /// Login method that agentd requests from the agent.
    pub login: Option<String>,
    /// The known agent that the configuration names.
    pub known: Option<&'static KnownAgent>,
    /// Variables that name where the conversation is, with their values at its beginning.
    pub conversation_places: BTreeMap<String, Option<ByteString>>,
    /// Program and arguments of the agent. A problem fails the launch when the agent is to be started.
    pub command: Result<Vec<String>, Problem>,
    /// Treatment of the environment of the launch before.
    pub refresh: Refresh,
    /// Time limit of each script, plugin and login shell.
    pub deadline: Duration,
    pub scopes: Scopes,
    /// Values of the placeholders in paths of the session.
    pub places: ScriptDirectories,
    /// Directory of the session's files.
    pub files: PathBuf,
    /// Control socket of a guarded session.
    pub guest_socket: Option<PathBuf>,
    pub snapshot: SnapshotRequest,

    /// Paths that are hidden from a guarded agent.
    pub enclosure: Option<Enclosure>,
    /// Maximum length of a line of the agent in bytes.
    pub max_line: u64,
    /// Maximum rate at which the agent's output is read.
    pub output_rate: Option<Rate>,
    /// Limits that the keeper enforces. None in a unit, whose cgroup enforces them.
    pub limits: Limits,
    /// Whether the session has its own cgroup.
    pub is_unit: bool,
    /// Properties of the session's unit.
    pub unit: Unit,
    /// Arguments of the keeper.
    pub keeper: HoldArgs,
    pub keeper_limits: KeeperLimits,

    /// The place on which the agent runs. `None` means this machine.
    pub place: Option<Arc<SessionPlace>>,
    /// The requested place that is not configured.
    pub no_place: Option<NoSuchPlace>,

    pub daemon: Arc<Daemon>,
    pub environments: Arc<Environments>,
    pub secrets: Arc<Secrets>,
    pub snapshots: Arc<Snapshots>,
    /// Permits for launches that run side by side.
    pub permits: Arc<Semaphore>,
    /// The generation whose plugins the launch uses. Private, so that no step reads its configuration.
    generation: Arc<Generation>,
}

impl LaunchPlan {
    /// Reports whether the facts of this launch are those of the creation, which are compared with none.
    pub(crate) fn is_first(&self) -> bool {
        self.launch == 1 && self.workspace.is_none()
    }

    /// Plans a launch of a session under the generation in force.
    pub(crate) fn of(generation: &Arc<Generation>, document: &Document, state: &State, launch: u64) -> Self {
        let (wait_until, reason, is_fresh) = match &state.run {
            Run::Preparing(preparing) => (preparing.wait_until, preparing.reason, preparing.fresh),
            Run::Running(running) => (None, LaunchReason::Unknown, running.fresh),
            Run::Ended(_) => (None, LaunchReason::Unknown, false),
        };
        let (forced_by, degraded_by) = (state.forced_by.clone(), state.degraded_by.clone());
        let schedule = state.expires.zip(state.renews);
        let context = state.context.clone();
        let active = state.workflow.active();
        let mut plan = Self {
            is_changed: document.generation > 1,
            workflow_failure: state.workflow.failure().cloned(),
            repositories: state.repositories.clone(),
            conversation: state.conversation.clone().filter(|_| !is_fresh),
            conversation_places: if is_fresh { BTreeMap::new() } else { state.conversation_places.clone() },
            is_interactive: !state.awaits_completion(),
            is_new: state.times.started.is_none() && state.conversation.is_none(),
            reason,
            context,
            wait_until,
            forced_by,
            degraded_by,
            schedule,
            ..Self::following(generation, &document.id, (&state.workflow.in_force(&document.spec), active), launch)
        };
        if state.workflow.has_another_environment() {
            plan.refresh = Refresh::Fresh;
        }
        plan
    }

    /// Plans a launch like [`Self::new`], under a workflow. The specification has what the workflow needs.
    pub(crate) fn following(
        generation: &Arc<Generation>,
        id: &SessionId,
        (spec, workflow): (&Arc<SessionSpec>, Option<&ActiveWorkflow>),
        launch: u64,
    ) -> Self {
        let mut plan = Self::new(generation, id, spec, launch);
        plan.places.workflow = workflow.and_then(environment::script_of);
        plan.workflow = workflow.cloned();
        plan
    }

    /// Plans a launch that neither waits nor is forced nor degraded.
    pub(crate) fn new(generation: &Arc<Generation>, id: &SessionId, spec: &Arc<SessionSpec>, launch: u64) -> Self {
        let Generation { daemon, config, .. } = &**generation;
        let directories = &daemon.directories;
        let is_unit = daemon.launcher.has_cgroups();
        let (place, no_place) = match generation.place_of(spec) {
            Ok(place) => (place.cloned(), None),
            Err(error) => (None, Some(error)),
        };
        let snapshot = generation.snapshot_request(id, spec);
        Self {
            id: id.clone(),
            spec: Arc::clone(spec),
            is_changed: false,
            launch,
            reason: LaunchReason::Unknown,
            context: Context::default(),
            wait_until: None,
            forced_by: None,
            degraded_by: None,
            schedule: None,
            needed: needed(generation, spec, place.as_deref()),
            repositories: Repositories::default(),
            is_new: false,
            has_warm_agent: false,
            is_interactive: spec.interactive,
            conversation: None,
            workflow: None,
            workflow_failure: None,
            compatibility: generation.compatibility(spec),
            repository_settings: config.repositories.clone(),
            workspace: spec.workspace.as_ref().map(|workspace| directories.workspace(workspace.owner(id))),

            home: config.environment.home_directory(),
            agent: generation.agent_label(spec),
            options: generation.agent_options(spec),
            mcp: mcp::wanted(config, &generation.agent_label(spec), spec),
            login: generation.agent(spec).and_then(|agent| agent.login.clone()),
            known: generation.agent(spec).and_then(Agent::known),
            conversation_places: BTreeMap::new(),
            command: generation.agent_command(spec),
            refresh: generation.refresh_policy(spec),
            deadline: config.environment.deadline.0,
            scopes: generation.scopes(spec),
            places: environment::places(directories, id, spec),
            files: directories.session_files(id),
            guest_socket: isolation::is_guarded(generation, spec).then(|| directories.guest_socket(id)),
            snapshot: if place.is_some() { SessionPlace::snapshot_request(snapshot) } else { snapshot },

            enclosure: isolation::enclosure(generation, id, spec),
            max_line: config.limits.line,
            output_rate: output_rate(spec, config),
            // The limits of a cgroup are more exact than those of a keeper, which measures once a second.
            // On a place, the engine limits the agent.
            limits: if is_unit || place.is_some() { Limits::default() } else { limits(spec, config) },
            is_unit,
            unit: Unit::of(id, spec, config),
            keeper: HoldArgs {
                session: id.to_string(),
                launch,
                state: directories.session(id),
                socket: directories.keeper_socket(id),
                journal: config.journal.options(),
                keep: config.journal.keep_session.0,
                orphan_ttl: config.limits.orphan.map(|span| span.0),
                core: None,
            },
            keeper_limits: generation.keeper_patience(),

            place,
            no_place,
            daemon: Arc::clone(daemon),
            environments: Arc::clone(&generation.environments),
            secrets: Arc::clone(&generation.secrets),
            snapshots: Arc::clone(&generation.snapshots),
            permits: Arc::clone(&generation.launches),
            generation: Arc::clone(generation),
        }
    }

    /// Returns the directory in which the agent works.
    pub(crate) fn directory(&self) -> &Path {
        self.workflow.as_ref().map_or(&self.spec.directory, |active| &active.directory)
    }

    /// Reports whether the configuration declares a prerequisite of this name.
    pub(crate) fn is_prerequisite(&self, name: &str) -> bool {
        self.generation.config.prerequisites.contains_key(name)
    }

    /// Returns the directory below which the repositories are.
    pub(crate) fn root(&self) -> &Path {
        self.workspace.as_deref().unwrap_or(&self.spec.directory)
    }

    /// Returns the requester that let the launch ignore unmet prerequisites.
    pub(crate) fn forced(&self) -> Option<&Requester> {
        self.forced_by.as_ref().or(self.degraded_by.as_ref())
    }

    /// Returns the pipeline of providers of the machine on which the agent runs; see [`Generation::pipeline`].
    pub(crate) async fn pipeline(&self) -> Result<&Pipeline, NoHost> {
        match &self.place {
            None => self.generation.pipeline().await,
            Some(place) => self.generation.loaded_at(place).await.map(|loaded| &loaded.pipeline),
        }
    }

    /// Checks that the session's directory can be entered, or waits until the place of the session has told its host.
    pub(crate) async fn reach(&self) -> Result<(), Problem> {
        if let Some(error) = &self.no_place {
            return Err(Problem::new(Code::EnvironmentNotBuilt, error.to_string()));
        }
        match &self.place {
            None => workspace::check(&self.daemon.machine, self.directory()).await.map_err(|error| error.problem()),
            Some(place) => {
                let reached = place.host(&self.environments).await;
                reached.map(drop).map_err(|error| Problem::new(Code::EnvironmentNotBuilt, chain(&error)))
            }
        }
    }

    /// Returns the machine on which the agent runs.
    pub(crate) fn machine(&self) -> &Machine {
        self.place.as_ref().map_or(&self.daemon.machine, |place| &place.machine)
    }

    /// Returns the snapshots of the machine on which the agent runs. The host of a place must be known.
    pub(crate) fn snapshots(&self) -> &Arc<Snapshots> {
        self.place.as_ref().and_then(|place| place.snapshots()).unwrap_or(&self.snapshots)
    }

    /// Returns the plugins that the launch needs; see [`Generation::plugins_of`].
    pub(crate) async fn plugins(&self) -> Result<Vec<Arc<ManagedPlugin>>, NoHost> {
        self.generation.plugins_of(&self.spec).await
    }

    /// Returns the prerequisites after the plugins that the launch needs for them are settled.
    pub(crate) async fn prerequisites(&self) -> Result<&Arc<Prerequisites>, NoHost> {
        let Some(place) = &self.place else { return self.generation.prerequisites_for(&self.needed).await };
        let prerequisites = &self.generation.loaded_at(place).await?.prerequisites;
        for name in &self.needed {
            prerequisites.settled(name).await;
        }
        Ok(prerequisites)
    }

    /// Describes the launch to the pipeline. Each target chooses a snapshot of its own.
    pub(crate) fn target(&self) -> Target {
        Target {
            id: self.id.clone(),
            name: self.spec.name.as_ref().map(ToString::to_string),
            agent: self.agent.clone(),
            command: self.command.as_ref().cloned().unwrap_or_default(),
            known: self.known,
            pinned: self.conversation_places.clone(),
            scopes: self.scopes.clone(),
            launch: self.launch,
            is_degraded: self.degraded_by.is_some(),
            places: self.places.clone(),
            files: self.files.clone(),
            socket: self.guest_socket.clone(),
            contract: contract::variables(self),
            chosen: Arc::new(SessionSnapshot::new(Arc::clone(self.snapshots()), self.snapshot.clone())),
            machine: self.machine().clone(),
            secrets: Arc::clone(&self.secrets),
        }
    }
}

/// Returns the names of the prerequisites that are checked for a launch.
fn needed(generation: &Generation, spec: &SessionSpec, place: Option<&SessionPlace>) -> BTreeSet<String> {
    let mut needed = generation.needed(spec);
    if let Some(place) = place {
        needed.retain(|name| !place.place.ensures.contains(name));
    }
    needed
}

/// Returns the limits of the agent. The session's own limits override the configured ones.
fn limits(SessionSpec { limits, .. }: &SessionSpec, config: &Config) -> Limits {
    Limits { memory_bytes: limits.memory.or(config.limits.memory), processes: limits.tasks.or(config.limits.tasks) }
}

/// Returns the maximum rate of the agent's output, with a burst of ten seconds.
fn output_rate(spec: &SessionSpec, config: &Config) -> Option<Rate> {
    let bytes_per_second = spec.limits.output_rate.or(config.limits.output_rate)?;
    Some(Rate { bytes_per_second, burst: bytes_per_second.saturating_mul(10) })
}
