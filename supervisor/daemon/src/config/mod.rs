//! The configuration: read from the system directory's `agentd.toml`, its `conf.d/*.toml` in the order of their names, and the user's own
//! `agentd.toml`; a later file's keys take the place of an earlier one's.
//!
//! Every struct refuses unknown keys: a misspelled limit must not be a limit that is not there. The system directory is the
//! administrator's: what is declared there of plugins and prerequisites no file of the user's can change. What becomes of a mistake is
//! decided in [`assemble`].

mod again;
mod assemble;
mod control;
mod effects;
mod environment;
mod files;
mod hidden;
mod keep;
mod limits;
mod plugins;
mod prerequisites;
mod scope;
#[cfg(test)]
mod tests;
mod values;
mod written;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use agentd_api::AgentName;
use agentd_api::environment::Refresh;
use agentd_api::isolation::Isolation;
use agentd_api::quantity::Time;
use serde::Deserialize;

pub(crate) use again::load_again;
pub(crate) use assemble::{Loaded, Read, load, load_with};
pub(crate) use control::{Control, Guests, TokenSource};
pub(crate) use effects::Effects;
pub(crate) use environment::{Children, Encryption, Environment, Functions, KeySource, Provider};
pub(crate) use files::{Sources, drop_ins};
pub(crate) use keep::{KeepError, Plan as KeepPlan, plan as plan_to_keep};
pub(crate) use limits::{IsolationBus, Journal, Launch, Limits, Manager, Resume};
#[cfg(test)]
use plugins::Pin;
pub(crate) use plugins::{Origin, Plugin, PluginLimits, Policy};
pub(crate) use prerequisites::Prerequisite;
pub(crate) use scope::{Directory, missing_directories};

use crate::env::{DeclaredSecret, NamedSecret};
use crate::session::Rule;

/// The configuration in force.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The agent of a session that names none.
    pub(crate) default_agent: AgentName,
    pub(crate) agents: BTreeMap<AgentName, Agent>,
    /// What holds for sessions in a directory, by its path; `~/` in front is the home directory.
    pub(crate) directories: BTreeMap<String, Directory>,
    pub(crate) environment: Environment,
    /// Plugins by name: which file each is, and what it may do.
    pub(crate) plugins: BTreeMap<String, Plugin>,
    /// What the administrator says of users' plugins.
    pub(crate) plugin_policy: Policy,
    /// What sessions need of the world, by name.
    pub(crate) prerequisites: BTreeMap<String, Prerequisite>,
    /// Secrets by name: where each is taken from at every launch, and who gets it.
    pub(crate) secrets: BTreeMap<String, DeclaredSecret>,
    pub(crate) limits: Limits,
    pub(crate) control: Control,
    pub(crate) launch: Launch,
    pub(crate) resume: Resume,
    pub(crate) journal: Journal,
    /// Who answers permission requests; the first that fits.
    pub(crate) permissions: Vec<Rule>,
}

/// How an agent is started.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Agent {
    /// The program (a path, or a name that is looked up in the PATH of the *session's* environment) and its arguments. `~/` in front of the
    /// program is the user's home; the arguments are given as they are written, since no shell reads them. Only the demo agent needs none.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// What its sessions' later launches do with the environment of the one before; without it, as `environment.refresh` says.
    #[serde(default)]
    pub(crate) refresh: Option<Refresh>,
    /// What its sessions are kept from at least.
    #[serde(default)]
    pub(crate) isolation: Isolation,
    /// Names and patterns of variables that the whitelist keeps besides.
    #[serde(default)]
    pub(crate) allow: Vec<String>,
    /// Names and patterns of variables that are dropped.
    #[serde(default)]
    pub(crate) drop: Vec<String>,
    /// Variables that are given, behind what all providers gave.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
}

impl Agent {
    /// Whether the program is given by its place in the home directory.
    pub(crate) fn is_in_home(&self) -> bool {
        self.command.first().is_some_and(|program| program.starts_with("~/"))
    }

    /// The command with `~` in front of its program as the home directory.
    pub(crate) fn command_in(&self, home: Option<&Path>) -> Vec<String> {
        let mut command = self.command.clone();
        if let (Some(program), Some(home)) = (command.first_mut().filter(|_| self.is_in_home()), home) {
            *program = home.join(&program[2..]).display().to_string();
        }
        command
    }
}

const fn seconds(n: u64) -> Time {
    Time(Duration::from_secs(n))
}

/// The built-in demo agent's name.
pub(crate) const DEMO: &str = "demo";

/// The built-in provider that sources scripts, and those that it looks for by default.
pub(crate) const ENV_SCRIPT: &str = "env-script";
pub(crate) const SCRIPTS: [&str; 3] = ["{config}/env-setup.sh", "{cwd}/.agentd-env.sh", "{session}/env-setup.sh"];

impl Default for Config {
    fn default() -> Self {
        Self {
            default_agent: DEMO.parse().expect("the demo agent's name is a name"),
            agents: BTreeMap::new(),
            directories: BTreeMap::new(),
            environment: Environment::default(),
            plugins: BTreeMap::new(),
            plugin_policy: Policy::default(),
            prerequisites: BTreeMap::new(),
            secrets: BTreeMap::new(),
            limits: Limits::default(),
            control: Control::default(),
            launch: Launch::default(),
            resume: Resume::default(),
            journal: Journal::default(),
            permissions: Vec::new(),
        }
    }
}

/// Mistakes of the merged configuration, each with its key.
type Flaws = Vec<(Vec<String>, String)>;

/// A flaw in the key with these parts.
fn flaw(key: &[&str], message: impl Into<String>) -> (Vec<String>, String) {
    (key.iter().map(|&part| part.to_owned()).collect(), message.into())
}

/// Validates what no file can be wrong in alone.
fn check(config: &Config) -> Flaws {
    let mut flaws = Flaws::new();
    for (name, agent) in &config.agents {
        let is_built_in = name.as_str() == DEMO && agent.command.is_empty();
        if !is_built_in && agent.command.first().is_none_or(String::is_empty) {
            let message = format!(
                "agents.{name} has no command, and only the agent \"{DEMO}\" is built in; \
                 add command = [\"PROGRAM\", \"ARGUMENT\"] to [agents.{name}]"
            );
            flaws.push(flaw(&["agents", name.as_str(), "command"], message));
        }
    }
    let default = &config.default_agent;
    if default.as_str() != DEMO && !config.agents.contains_key(default) {
        let message = format!("default_agent is \"{default}\", and there is no [agents.{default}]");
        flaws.push(flaw(&["default_agent"], message));
    }
    flaws.extend(scope::check(config));
    for (name, declared) in &config.secrets {
        if let Err(wrong) = NamedSecret::of(name, declared) {
            flaws.push(flaw(&["secrets", name], format!("secrets.{name} {wrong}")));
        }
    }
    flaws.extend(plugins::check(&config.plugins, &config.plugin_policy, &config.environment.providers));
    flaws.extend(prerequisites::check(&config.prerequisites, &config.plugins));
    flaws.extend(control::check(&config.control));
    let is_agent = |agent: &&AgentName| agent.as_str() == DEMO || config.agents.contains_key(*agent);
    if let Some(agent) = config.control.guest_agents.iter().find(|agent| !is_agent(agent)) {
        let message = format!("control.guest_agents has \"{agent}\", and there is no [agents.{agent}]");
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
                format!("environment.encryption.{key}: {name:?} is no name of a credential")
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
        ("line", usize::try_from(config.limits.line).unwrap_or(usize::MAX)),
    ] {
        if limit == 0 {
            let message = format!("limits.{name} is 0, which would let nothing through");
            flaws.push(flaw(&["limits", name], message));
        }
    }
    flaws
}
