//! `[places.NAME]`: places on which agents run, and the choice of a session's place.
//!
//! This module validates. The crate `agentd-place` builds the command lines.

mod build;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agentd_api::PlaceName;
use agentd_api::isolation::Isolation;
use agentd_api::place::HERE;
use agentd_api::quantity::{Time, some_size};
use agentd_place::Place;
use serde::Deserialize;

use super::scope::DIRECTORIES;
use super::{Agent, Config, Flaws, flaw};
use build::Wrong;

/// A place on which agents run. Each kind has its own keys beside those of all places.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ConfiguredPlace {
    /// Engine of the place: `slurm`, `ssh`, `container`, `kubernetes` or `command`. Required.
    pub kind: Option<Kind>,
    /// Path of `agentd-keeper` on the place, or a name that is looked up there. For `ssh`, `~/` at its start is the
    /// home directory there. Default: `agentd-keeper`, or `/agentd-keeper` in a container with `keeper_file`.
    pub keeper: Option<String>,
    /// Static `agentd-keeper` on this machine that is taken to the place. Slurm copies it to the node for each launch,
    /// and a container mounts it at `keeper`. Over ssh it is sent once to `~/.cache/agentd/keepers` of the host. The
    /// place checks its SHA-256 before it starts a program. Default: none, and the place has its own. For `slurm`,
    /// `ssh` and `container`.
    pub keeper_file: Option<PathBuf>,
    /// SHA-256 of `agentd-keeper` on the place, in hexadecimal digits. Another one starts no program. Default: that of
    /// `keeper_file`; without both, each `agentd-keeper` of agentd's version is accepted.
    pub keeper_sha256: Option<String>,
    /// Whether the agent is `connected`, and ends when its connection is lost, or `resident`, and stays on the place
    /// until agentd is connected again. Default: `connected`.
    pub level: Option<Level>,
    /// Time after which an agent without a connection is ended. Default: 7 days. For the level `resident`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub unattended: Option<Time>,
    /// Time for which the end of an agent waits to be read. Default: 1 day. For the level `resident`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub linger: Option<Time>,
    /// Time for which an agent continues after its connection is lost. For the level `connected`. Default: 0, and the
    /// agent is ended at once.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub grace: Option<Time>,
    /// Time after which a silent connection counts as lost, at least 1 s. Default: 30 s.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub silence: Option<Time>,
    /// Time between two queries of the engine's states, at least 100 ms. One query serves all sessions of the place.
    /// Default: 5 s. For all kinds, and for `ssh` at the level `resident` only.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub poll: Option<Time>,
    /// Names of prerequisites that the engine ensures, for example by `licenses`. They are not checked for sessions on
    /// the place. Default: none.
    pub ensures: Vec<String>,
    /// Names of variables that the client gets from agentd's own environment, beside `HOME`, `PATH`, `USER`, `LOGNAME`
    /// and `LANG`. Default: `SSH_AUTH_SOCK` for `ssh`, `SLURM_CONF` for `slurm`, `XDG_RUNTIME_DIR` for `container`,
    /// `KUBECONFIG` for `kubernetes`.
    pub pass: Option<Vec<String>>,
    /// Variables that are set for the client. They do not reach the agent. Default: none. Secrets and names that begin
    /// with `AGENTD_` are refused.
    pub env: BTreeMap<String, String>,
    /// Further arguments of the client's program: `srun`, `ssh`, `run` of the container engine, or `kubectl run`. At
    /// the level `resident`, those of Slurm are for `sbatch`. Default: none. For all kinds except `command`.
    pub options: Vec<String>,
    /// Memory limit in bytes. Default: that of the engine. For `slurm`, `container` and `kubernetes`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Size>"))]
    #[serde(deserialize_with = "some_size")]
    pub memory: Option<u64>,
    /// Number of processor cores. Default: that of the engine. For `slurm`, `container` and `kubernetes`.
    pub cores: Option<u32>,
    /// Partition of the jobs. Default: that of the cluster. For `slurm`.
    pub partition: Option<String>,
    /// Time limit of the jobs. Default: that of the partition. For `slurm`.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Time>"))]
    pub time: Option<Time>,
    /// Number of GPUs. Default: none. For `slurm`.
    pub gpus: Option<u32>,
    /// Licences of Slurm, each as `NAME` or `NAME:COUNT`. Default: none. For `slurm`.
    pub licenses: Vec<String>,
    /// Account that the jobs are charged to. Default: that of the user. For `slurm`.
    pub account: Option<String>,
    /// Quality of service of the jobs. Default: that of the user. For `slurm`.
    pub qos: Option<String>,
    /// Reservation that the jobs use. Default: none. For `slurm`.
    pub reservation: Option<String>,
    /// Features that the nodes must have, as `srun --constraint` takes them. Default: none. For `slurm`.
    pub constraint: Option<String>,
    /// Whether an agent is started again after its node failed or its job was preempted. Default: `false`. For `slurm`.
    pub requeue: Option<bool>,
    /// Directory with the programs `srun`, `squeue`, `scancel` and `scontrol`. Default: they are looked up in the
    /// `PATH` of agentd. For `slurm`.
    pub bin: Option<PathBuf>,
    /// Host, or a name in the configuration of ssh. Required for `ssh`.
    pub host: Option<String>,
    /// User on the host or in the container. Default: that of ssh's configuration or of the image. For `ssh` and
    /// `container`.
    pub user: Option<String>,
    /// TCP port of the host. Default: that of ssh's configuration. For `ssh`.
    pub port: Option<u16>,
    /// Configuration file of ssh in place of the user's own. Default: none. For `ssh`.
    pub config: Option<PathBuf>,
    /// Image of the container. Required for `container`, and for `kubernetes` without `template`.
    pub image: Option<String>,
    /// Program of the container engine: `podman`, `docker` or an absolute path. Default: `podman`. For `container`.
    pub engine: Option<String>,
    /// Directories and files of this machine in the container, each as `SOURCE:TARGET` or `SOURCE:TARGET:ro` with
    /// absolute paths. Default: none. For `container`.
    pub mounts: Vec<String>,
    /// Network of the container. Default: that of the engine. For `container`.
    pub network: Option<String>,
    /// Arguments of the container engine before `run`. Default: none. For `container`.
    pub engine_options: Vec<String>,
    /// Namespace of the pods. Default: that of the context. For `kubernetes`.
    pub namespace: Option<String>,
    /// Context in kubectl's configuration. Default: the current context. For `kubernetes`.
    pub context: Option<String>,
    /// File with the manifest of a pod in YAML or JSON, in place of `image`. Its first container runs the agent.
    /// Default: none. For `kubernetes`.
    pub template: Option<PathBuf>,
    /// Client and its arguments. Its stdin and stdout lead to `agentd-keeper enter`. The words `{name}`, `{session}`,
    /// `{launch}`, `{directory}` and `{keeper}` are replaced. Required for `command`.
    pub client: Vec<String>,
    /// Program and its arguments that print a line `NAME STATE [JOB [MESSAGE]]` for each launch. Without it, no
    /// launch is queued. Default: none. For `command`.
    pub status: Vec<String>,
    /// Program and its arguments that end a launch. The words in braces are replaced as in `client`. Without it,
    /// the end of the client ends the launch. Default: none. For `command`.
    pub cancel: Vec<String>,
    /// Program and its arguments that end and remove all that a launch left behind, also if nothing is left. The words
    /// in braces are replaced as in `client`. Without it, `cancel` is used. Default: none. For `command`.
    pub sweep: Vec<String>,
    /// Program and its arguments that give `agentd-keeper enter stay {name}` to an engine, once in a launch. The first
    /// word of its output replaces `{job}` in `client`, which leads to `agentd-keeper enter attach {name}`. Default:
    /// none, and `client` leads to `agentd-keeper enter attach {name} start`. For `command` with the level `resident`.
    pub submit: Vec<String>,
}

/// Life of an agent whose connection is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The agent ends.
    Connected,
    /// The agent stays on its place.
    Resident,
}

/// Engine of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A job of Slurm.
    Slurm,
    /// Another machine over ssh.
    Ssh,
    /// A container of podman or Docker.
    Container,
    /// A pod of Kubernetes.
    Kubernetes,
    /// A client of the user's own.
    Command,
}

/// A place that a session requests and that is not configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no place {name:?} in the configuration{}", listed(.known))]
pub struct NoSuchPlace {
    /// Requested name.
    pub name: String,
    /// Names of the configured places.
    pub known: Vec<String>,
}

fn listed(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!("; it has {}", known.join(", ")) }
}

impl Config {
    /// Returns a configured place.
    pub fn place(&self, name: &str) -> Option<Place> {
        let (name, place) = self.places.iter().find(|(known, _)| known.as_str() == name)?;
        let home = place.needs_home().then(|| self.environment.home_directory()).flatten();
        place.place(name, home.as_deref()).ok()
    }

    /// Chooses the place of a session: the requested one, that of the nearest configured directory, or that of the
    /// agent. Returns `None` for this machine.
    ///
    /// # Errors
    ///
    /// The requested place is not configured.
    pub fn place_of(
        &self,
        requested: Option<&str>,
        agent: &str,
        directory: &Path,
    ) -> Result<Option<Place>, NoSuchPlace> {
        let of_agent = || self.agent(agent)?.place.as_ref();
        let configured = || self.place_of_directory(directory).or_else(of_agent).map(PlaceName::as_str);
        match requested.or_else(configured) {
            None | Some(HERE) => Ok(None),
            Some(name) => self.place(name).map(Some).ok_or_else(|| NoSuchPlace {
                name: name.to_owned(),
                known: self.places.keys().map(ToString::to_string).collect(),
            }),
        }
    }
}

/// Returns the mistakes of the places, and of the agents and directories that name a place.
pub(super) fn check(config: &Config) -> Flaws {
    let mut flaws = Flaws::new();
    for (name, place) in &config.places {
        if let Err((key, message)) = place.place(name, None) {
            let space = if message.starts_with(['.', ' ']) { "" } else { " " };
            flaws.push(flaw(&["places", name.as_str(), key], format!("places.{name}{space}{message}")));
        }
    }
    for (name, place) in &config.places {
        for ensured in place.ensures.iter().filter(|ensured| !config.prerequisites.contains_key(*ensured)) {
            let message = format!("places.{name}.ensures names {ensured:?}, but there is no [prerequisites.{ensured}]");
            flaws.push(flaw(&["places", name.as_str(), "ensures"], message));
        }
    }
    let is_known = |place: &PlaceName| place.as_str() == HERE || config.places.contains_key(place);
    for (name, agent) in &config.agents {
        let Some(place) = &agent.place else { continue };
        if !is_known(place) {
            let message = format!("agents.{name}.place is \"{place}\", but there is no [places.{place}]");
            flaws.push(flaw(&["agents", name.as_str(), "place"], message));
        } else if place.as_str() != HERE {
            flaws.extend(
                conflict(agent)
                    .map(|(key, text)| flaw(&["agents", name.as_str(), key], format!("agents.{name}.{text}"))),
            );
        }
    }
    for (key, directory) in &config.directories {
        if let Some(place) = directory.place.as_ref().filter(|place| !is_known(place)) {
            let message = format!("{DIRECTORIES}.{key:?}.place is \"{place}\", but there is no [places.{place}]");
            flaws.push(flaw(&[DIRECTORIES, key, "place"], message));
        }
    }
    flaws
}

/// Returns the key of an agent that excludes a place, with the rest of the message.
fn conflict(agent: &Agent) -> Option<Wrong> {
    if agent.warm > 0 {
        let text = format!("warm is {}, but no agent is kept warm on a place; remove warm or place", agent.warm);
        return Some(("warm", text));
    }
    let is_guarded = agent.isolation == Isolation::Guard;
    let text = "isolation is \"guard\", which exists on this machine alone; remove isolation or place";
    is_guarded.then(|| ("isolation", text.to_owned()))
}
