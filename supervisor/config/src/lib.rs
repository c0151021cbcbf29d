//! Reads the configuration: the system directory's `agentd.toml`, its `conf.d/*.toml` sorted by name, and the user's
//! `agentd.toml`. Keys of a later file replace keys of an earlier file.
//!
//! Every table refuses unknown keys, so a misspelled limit is an error and not a missing limit. The system directory
//! belongs to the administrator. A user's file cannot change the plugins and prerequisites that are declared there.
//! `assemble` decides the consequence of each mistake.

mod agents;
mod assemble;
mod control;
mod declared_secret;
mod edits;
mod effects;
mod environment;
mod files;
mod hidden;
mod hooks;
mod limits;
mod mcp;
mod parsed;
mod places;
mod plugins;
mod prerequisites;
mod reload;
mod repositories;
#[cfg(feature = "schema")]
mod schema;
mod scope;
pub mod secret;
mod staleness;
mod start;
mod template;
#[cfg(test)]
mod tests;
mod traces;
mod values;
mod variables;
mod workflow;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use agentd_api::editor::EditorTool;
use agentd_api::environment::Refresh;
use agentd_api::isolation::Isolation;
use agentd_api::quantity::Time;
use agentd_api::{AgentName, PlaceName};
use agentd_catalogue::KnownAgent;
use serde::Deserialize;

pub use agentd_place::{Place, PlaceKind};
pub use assemble::{KeyOwner, Loaded, Origins, load, load_with};
pub use control::{Control, GroupName, Guests, NamedToken, ReadOnly, TokenSource};
pub use declared_secret::{DeclaredSecret, NamedSecret, SecretOrigin};
pub use edits::{AgentPlan, EditError, FileEdit, KeepPlan, plan_to_add_agent, plan_to_keep};
pub use effects::Effects;
pub use environment::{Children, Encryption, Environment, Functions, KeySource, LoginSource, Provider};
pub use files::{Sources, drop_ins};
pub use hooks::{Hook, HookAddress, HookFormat, HookGrant};
pub use limits::{IsolationBus, Journal, Launch, Limits, Manager, Resume};
pub use mcp::{AgentMcp, ConfiguredServer, Mcp};
pub use places::{ConfiguredPlace, Kind, NoSuchPlace};
#[cfg(test)]
use plugins::Sha256Pin;
pub use plugins::{Origin, Plugin, PluginLimits, Policy, SNAPSHOT, WHITELIST};
pub use prerequisites::Prerequisite;
pub use reload::reload;
pub use repositories::{AtRemoval, Repositories, Workspaces};
#[cfg(feature = "schema")]
pub use schema::schema;
pub use scope::{Directory, missing_directories};
pub use staleness::Staleness;
pub use start::StartSettings;
pub use template::NoteTemplate;
pub use traces::Traces;
pub use variables::{ALLOW, DROP, Scope, ScopeError, is_step as is_scope_step};
pub use workflow::{WORKFLOW_FILES, parse_workflow};

use agentd_permission::Rule;

/// The configuration in force.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Agent of a session whose request names no agent: a name from `agents`, or `demo`. Default: `demo`.
    #[cfg_attr(feature = "schema", schemars(with = "schema::Name"))]
    pub default_agent: AgentName,
    /// Agents by name: `[agents.NAME]`.
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, Agent>"))]
    pub agents: BTreeMap<AgentName, Agent>,
    /// Settings for the sessions in a directory and below it: `[directories."PATH"]`. The path is absolute or begins
    /// with `~/`, the home directory.
    pub directories: BTreeMap<String, Directory>,
    /// Places on which agents run, by name: `[places.NAME]`. A name has 1 to 63 of the characters `a-z`, `0-9` and `-`.
    /// `here` is this machine and cannot be declared.
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, ConfiguredPlace>"))]
    pub places: BTreeMap<PlaceName, ConfiguredPlace>,
    /// Source and processing of the sessions' environments.
    pub environment: Environment,
    /// Plugins by name, with their files and grants: `[plugins.NAME]`. A name has 1 to 64 of the characters `a-z`,
    /// `0-9` and `-`. A user's file cannot change a plugin that the administrator declares.
    pub plugins: BTreeMap<String, Plugin>,
    /// Rules of the administrator for the plugins that users declare. Only files of the system directory may contain
    /// this table.
    pub plugin_policy: Policy,
    /// Prerequisites of sessions by name: `[prerequisites.NAME]`. A name has 1 to 64 of the characters `a-z`, `0-9`
    /// and `-`. A user's file cannot change a prerequisite that the administrator declares.
    pub prerequisites: BTreeMap<String, Prerequisite>,
    /// Named secrets: `[secrets.NAME]`. agentd takes each secret from its source at every launch and passes it to the
    /// selected sessions.
    pub secrets: BTreeMap<String, DeclaredSecret>,
    /// Limits of sessions, requests and connections.
    pub limits: Limits,
    /// Control endpoint over TCP, its read-only socket, and the rights of agents at the control endpoint.
    pub control: Control,
    /// Start, stop and restart of agents.
    pub launch: Launch,
    /// Continuation of a conversation after a resume.
    pub resume: Resume,
    /// Reaction of a launch to changes since the agent last worked.
    pub staleness: Staleness,
    /// Git repositories of sessions.
    pub repositories: Repositories,
    /// Directories of the sessions' own.
    pub workspaces: Workspaces,
    /// agentd's own MCP server, by which an agent reports to its session.
    pub mcp: Mcp,
    /// Size and durability of the sessions' journals.
    pub journal: Journal,
    /// Traces of requests and launches for a collector of OpenTelemetry.
    pub traces: Traces,
    /// Rules that answer permission requests of agents: `[[permissions]]`. The first rule that fits decides. Default:
    /// no rules, and the session's own policy decides.
    pub permissions: Vec<Rule>,
    /// Hooks: events that agentd tells to a program, to an address or to the desktop: `[[hooks]]`. Default: none.
    pub hooks: Vec<Hook>,
}

/// An agent and how agentd starts it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Known agent that this is, by its name in `agentctl agent ls`. It gives the command, the variables that the agent
    /// may have, those that keep it from updating itself, and its logins. Default: the agent that the command shows,
    /// which gives the variables that it may have.
    #[serde(default)]
    pub like: Option<String>,
    /// Program and its arguments. The program is a path, or a name that is looked up in the `PATH` of the session's
    /// environment. `~/` at the start of the program means the home directory. No shell reads the arguments, and they
    /// are passed unchanged. Default: the command of the agent in `like`. Required for an agent without `like`, except
    /// for `demo`, which is built in.
    #[serde(default)]
    pub command: Vec<String>,
    /// Arguments after those of the command. Default: none.
    #[serde(default)]
    pub args: Vec<String>,
    /// How later launches of the agent's sessions treat the environment of the previous launch: `stored`, `fresh` or
    /// `warn`. Default: the value of `environment.refresh`.
    #[serde(default)]
    pub refresh: Option<Refresh>,
    /// Minimum isolation of the agent's sessions: `none` or `guard`. Default: `none`. A session can request a
    /// stricter level.
    #[serde(default)]
    pub isolation: Isolation,
    /// Place of the agent's sessions: a name from `places`, or `here` for this machine. A place of the directory, and
    /// one of the session, take precedence. Default: `here`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<schema::Name>"))]
    pub place: Option<PlaceName>,
    /// MCP servers of the agent's sessions: `true` for all, `false` for none, or a list of names. In a list, `agentd`
    /// is agentd's own server. Default: all that the configuration has for the agent, and agentd's own as in
    /// `mcp.enabled`.
    #[serde(default)]
    pub mcp: Option<AgentMcp>,
    /// Mode in which the agent's sessions work: one that the agent offers, or a part of its name that no other mode
    /// has. Default: the agent's own.
    #[serde(default)]
    pub mode: Option<String>,
    /// Model of the agent's sessions, in the same way. Default: the agent's own.
    #[serde(default)]
    pub model: Option<String>,
    /// Values of other options of the agent, by the option's id. Default: none.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Login method that agentd requests from the agent (ACP `authenticate`) before it opens a conversation, by the
    /// agent's id of the method. For agents that do not look for their key by themselves. Default: none.
    #[serde(default)]
    pub login: Option<String>,
    /// Number of agent processes that are kept ready for later sessions, from 0 to 4. Each is started and initialised
    /// after a launch, for a session like the launched one. Only for a known agent that can begin a session late, and
    /// only for sessions outside of systemd units. Default: 0.
    #[serde(default)]
    pub warm: usize,
    /// Time after which such a process is ended if no session needed it. Default: 10 min.
    #[serde(default = "agents::warm_idle")]
    #[cfg_attr(feature = "schema", schemars(with = "schema::Time"))]
    pub warm_idle: Time,
    /// Requests that the agent may make to a connected editor: `fs` to read and write text files, and `terminal` to run
    /// commands in its terminals. The editor carries them out, outside of the agent's isolation. Default: none.
    #[serde(default)]
    pub editor: Vec<EditorTool>,
    /// Names and patterns of variables that pass the whitelist in addition to its own list. Default: none.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Names and patterns of variables that are removed from the environment. Default: none. An exact name in `allow`
    /// takes precedence.
    #[serde(default)]
    pub drop: Vec<String>,
    /// Variables that are set after all providers have run. Default: none. Secrets and names that begin with
    /// `AGENTD_` are refused.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

impl Agent {
    /// Returns the known agent that `like` names.
    pub fn known(&self) -> Option<&'static KnownAgent> {
        agentd_catalogue::by_name(self.like.as_ref()?)
    }

    /// Reports whether the entry has a command. Without a command, it configures the built-in agent.
    pub fn has_command(&self) -> bool {
        !self.command.is_empty() || self.known().is_some()
    }

    /// Reports whether the program's path begins with `~/`.
    pub fn is_in_home(&self) -> bool {
        self.command.first().is_some_and(|program| program.starts_with("~/"))
    }

    /// Returns the program and all arguments, with `~/` at the start of the program replaced by the home directory.
    pub fn command_in(&self, home: Option<&Path>) -> Vec<String> {
        let mut command = match self.known() {
            Some(known) if self.command.is_empty() => known.agentd.command.clone(),
            _ => self.command.clone(),
        };
        command.extend(self.args.iter().cloned());
        if let (Some(program), Some(home)) = (command.first_mut().filter(|_| self.is_in_home()), home) {
            *program = home.join(&program[2..]).display().to_string();
        }
        command
    }
}

const fn seconds(n: u64) -> Time {
    Time(Duration::from_secs(n))
}

/// Name of the built-in demo agent.
pub const DEMO: &str = "demo";

/// Name of the built-in provider that sources scripts.
pub const ENV_SCRIPT: &str = "env-script";
/// Scripts that [`ENV_SCRIPT`] looks for by default.
pub const SCRIPTS: [&str; 3] = ["{config}/env-setup.sh", "{cwd}/.agentd-env.sh", "{session}/env-setup.sh"];

impl Default for Config {
    fn default() -> Self {
        Self {
            default_agent: DEMO.parse().expect("the demo agent's name is a name"),
            agents: BTreeMap::new(),
            directories: BTreeMap::new(),
            places: BTreeMap::new(),
            environment: Environment::default(),
            plugins: BTreeMap::new(),
            plugin_policy: Policy::default(),
            prerequisites: BTreeMap::new(),
            secrets: BTreeMap::new(),
            limits: Limits::default(),
            control: Control::default(),
            launch: Launch::default(),
            resume: Resume::default(),
            staleness: Staleness::default(),
            repositories: Repositories::default(),
            workspaces: Workspaces::default(),
            mcp: Mcp::default(),
            journal: Journal::default(),
            traces: Traces::default(),
            permissions: Vec::new(),
            hooks: Vec::new(),
        }
    }
}

/// Mistakes of the merged configuration, each with its key.
type Flaws = Vec<(Vec<String>, String)>;

/// Builds the flaw for the key with these parts.
fn flaw(key: &[&str], message: impl Into<String>) -> (Vec<String>, String) {
    (key.iter().map(|&part| part.to_owned()).collect(), message.into())
}

/// Validates the merged configuration and returns its mistakes. Mistakes of a single file are found when the file is
/// parsed.
fn check(config: &Config) -> Flaws {
    let mut flaws = Flaws::new();
    for (name, agent) in &config.agents {
        flaws.extend(agents::check(name, agent));
        flaws.extend(agents::check_warm(name, agent, config.launch.manager));
        if let Some(AgentMcp::Named(names)) = &agent.mcp
            && let Some(unknown) =
                names.iter().find(|one| *one != agentd_api::mcp::OWN && !config.mcp.servers.contains_key(*one))
        {
            let message = format!("agents.{name}.mcp has \"{unknown}\", but there is no [mcp.{unknown}]");
            flaws.push(flaw(&["agents", name.as_str(), "mcp"], message));
        }
        let others = agent.options.iter().flat_map(|(id, value)| [("options", id), ("options", value)]);
        let own = agent.mode.iter().map(|mode| ("mode", mode)).chain(agent.model.iter().map(|model| ("model", model)));
        for (key, text) in own.chain(others) {
            if let Err(detail) = agentd_api::options::check(text) {
                flaws.push(flaw(&["agents", name.as_str(), key], format!("agents.{name}.{key} {detail}")));
            }
        }
    }
    for (name, declared) in &config.mcp.servers {
        let server = declared.server();
        if let Err(mistake) = server.check(name) {
            flaws.push(flaw(&["mcp", name], format!("mcp.{name} {mistake}")));
        } else if let Some(secret) = server.secrets().find(|secret| !config.secrets.contains_key(*secret)) {
            let message = format!("mcp.{name} needs the secret {secret:?}, but there is no [secrets.{secret}]");
            flaws.push(flaw(&["mcp", name], message));
        }
    }
    let default = &config.default_agent;
    if default.as_str() != DEMO && !config.agents.contains_key(default) {
        let message = format!("default_agent is \"{default}\", but there is no [agents.{default}]");
        flaws.push(flaw(&["default_agent"], message));
    }
    flaws.extend(scope::check(config));
    flaws.extend(places::check(config));
    for (name, declared) in &config.secrets {
        if let Err(wrong) = NamedSecret::of(name, declared) {
            flaws.push(flaw(&["secrets", name], format!("secrets.{name} {wrong}")));
        }
    }
    flaws.extend(plugins::check(&config.plugins, &config.plugin_policy, &config.environment.providers));
    flaws.extend(prerequisites::check(&config.prerequisites, &config.plugins));
    flaws.extend(control::check(&config.control));
    flaws.extend(traces::check(&config.traces));
    flaws.extend(hooks::check(&config.hooks));
    flaws.extend(template::check(config.resume.note_template.as_ref()));
    let is_agent = |agent: &&AgentName| agent.as_str() == DEMO || config.agents.contains_key(*agent);
    if let Some(agent) = config.control.guest_agents.iter().find(|agent| !is_agent(agent)) {
        let message = format!("control.guest_agents has \"{agent}\", but there is no [agents.{agent}]");
        flaws.push(flaw(&["control", "guest_agents"], message));
    }
    let encryption = &config.environment.encryption;
    let sources = std::iter::once(("key", &encryption.key));
    for (key, source) in sources.chain(encryption.previous.iter().map(|source| ("previous", source))) {
        let wrong = match source {
            KeySource::File(path) if !path.is_absolute() => {
                format!("environment.encryption.{key}: the file {} is not absolute", path.display())
            }
            KeySource::Credential(name) if name.is_empty() || name.contains('/') || name.starts_with('.') => {
                format!("environment.encryption.{key}: {name:?} is not a valid credential name")
            }
            _ => continue,
        };
        flaws.push(flaw(&["environment", "encryption", key], wrong));
    }
    for (name, limit) in [
        ("active_sessions", config.limits.active_sessions),
        ("launches", config.limits.launches),
        ("connections", config.limits.connections),
        ("connections_per_caller", config.limits.connections_per_caller),
        ("streams_per_caller", config.limits.streams_per_caller),
        ("body_time", usize::try_from(config.limits.body_time.0.as_millis()).unwrap_or(usize::MAX)),
        ("body", config.limits.body),
        ("prompt", config.limits.prompt),
        ("line", usize::try_from(config.limits.line).unwrap_or(usize::MAX)),
    ] {
        if limit == 0 {
            let message = format!("limits.{name} is 0; set a value above 0");
            flaws.push(flaw(&["limits", name], message));
        }
    }
    if config.journal.keep_feed < limits::SMALLEST_FEED {
        flaws.push(flaw(&["journal", "keep_feed"], "journal.keep_feed is less than 64 KiB; set a larger size"));
    }
    if config.repositories.deadline.0.is_zero() {
        flaws.push(flaw(&["repositories", "deadline"], "repositories.deadline is 0; set a value above 0"));
    }
    if config.staleness.unused_after.0.is_zero() {
        let message = "staleness.unused_after is 0; set a value above 0, or unused = \"ignore\"";
        flaws.push(flaw(&["staleness", "unused_after"], message));
    }
    flaws
}
