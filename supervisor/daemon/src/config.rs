//! The configuration: read as a whole or not at all, from `/etc/agentd/agentd.toml`, `/etc/agentd/conf.d/*.toml` in the order of
//! their names, and the user's own `agentd.toml`; a later file's keys take the place of an earlier one's.
//!
//! Every struct refuses unknown keys: a misspelled limit must not be a limit that is not there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::AgentName;
use agentd_api::environment::{Refresh, SnapshotSource};
use agentd_api::session::{RestartPolicy, ResumeNote};
use agentd_plugins::Grant;
use jiff::SignedDuration;
use serde::Deserialize;

use crate::env::{DeclaredSecret, named_secrets};
use crate::session::Rule;

/// The configuration in force.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The agent of a session that names none.
    pub(crate) default_agent: AgentName,
    pub(crate) agents: BTreeMap<AgentName, Agent>,
    pub(crate) environment: Environment,
    /// Secrets by name: where each is taken from at every launch, and who gets it.
    pub(crate) secrets: BTreeMap<String, DeclaredSecret>,
    pub(crate) limits: Limits,
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
    /// The program (a path, or a name that is looked up in the PATH of the *session's* environment) and its arguments.
    pub(crate) command: Vec<String>,
    /// What its sessions' later launches do with the environment of the one before; without it, as `environment.refresh` says.
    #[serde(default)]
    pub(crate) refresh: Option<Refresh>,
}

/// Where the environment comes from.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Environment {
    /// The home directory that login shells are given; without it, that of the user database.
    pub(crate) home: Option<PathBuf>,
    /// The login shell; without it, that of the user database.
    pub(crate) shell: Option<PathBuf>,
    /// How long a login shell or a script may take.
    pub(crate) deadline: Span,
    /// What sessions begin with that do not say.
    pub(crate) source: SnapshotSource,
    /// What launches after the first do with the environment of the one before.
    pub(crate) refresh: Refresh,
    /// Whether the sessions of one directory share a terminal's environment.
    pub(crate) share: bool,
    /// How long a login shell's environment is used before it is taken again though no file has changed.
    pub(crate) snapshot_ttl: Span,
    /// How what is kept of environments lies on the disk.
    pub(crate) encryption: Encryption,
    /// The providers, in order.
    pub(crate) providers: Vec<Provider>,
    /// What becomes of processes that a login shell or a script started in the background.
    pub(crate) children: Children,
    /// Who is given exported bash functions, of the login shell and of scripts.
    pub(crate) functions: Functions,
}

/// See [`Environment::children`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Children {
    #[default]
    Kill,
    /// They live on; at a deadline they are killed all the same.
    Leave,
}

/// See [`Environment::functions`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Functions {
    /// Environment scripts, which is where `module` is wanted.
    #[default]
    Scripts,
    /// Those and the agent.
    Agent,
    /// Nobody.
    Drop,
}

/// Encryption of what is kept of environments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Encryption {
    /// Whether files are sealed when they are next written. Sealed ones are read in any case.
    pub(crate) enabled: bool,
    /// The key that is sealed with.
    pub(crate) key: KeySource,
    /// Keys that were used before and that files may still need.
    pub(crate) previous: Vec<KeySource>,
}

/// Where a key is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KeySource {
    /// In the state directory, where agentd makes it.
    #[default]
    Generated,
    /// A credential of the service, by its name.
    Credential(String),
    File(PathBuf),
}

/// One provider of the pipeline.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Provider {
    /// A built-in component by its name, or the path of a `.wasm` file.
    pub(crate) plugin: String,
    /// The name it goes by in provenance and messages; without it, the plugin's.
    pub(crate) name: Option<String>,
    /// Of a `.wasm` file: its SHA-256, hex. A file without one is not loaded.
    pub(crate) sha256: Option<String>,
    pub(crate) settings: toml::Table,
    pub(crate) grant: Option<Grant>,
}

/// Bounds. Each is there because something without it has been seen to take a machine down.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Sessions with an agent, at once.
    pub(crate) active_sessions: usize,
    /// Launches under way, at once; further ones wait.
    pub(crate) launches: usize,
    /// Turns that wait in one session.
    pub(crate) queued_turns: usize,
    /// Connections to the control endpoint, at once; further ones wait to be accepted.
    pub(crate) connections: usize,
    /// Bytes of a request's body.
    pub(crate) body: usize,
    /// Bytes of one line of an agent that are kept whole.
    pub(crate) line: u64,
    /// Bytes of memory of one plugin call.
    pub(crate) plugin_memory: usize,
    /// From the agent's start to its answer to `initialize`.
    pub(crate) initialize: Span,
    /// For opening a conversation, replay included.
    pub(crate) open_conversation: Span,
    /// For a turn; at its end the turn is cancelled.
    pub(crate) turn: Span,
    /// For the end of a turn that was cancelled; an agent that takes longer is ended.
    pub(crate) cancel: Span,
    /// For anything at all from an agent in a turn; then a `turn.silent` record says so.
    pub(crate) silence: Span,
    /// Without a turn; then the session is stopped. Without this, never.
    pub(crate) idle: Option<Span>,
    /// For somebody's answer to a permission request; then it is rejected. Without this, for ever.
    pub(crate) permission: Option<Span>,
    /// A keeper that no daemon comes back to for so long ends its agent. Without this, never.
    pub(crate) orphan: Option<Span>,
    /// Bytes of memory of a session's agent and everything it starts.
    pub(crate) memory: Option<u64>,
    /// Processes and threads of the same.
    pub(crate) tasks: Option<u64>,
    /// Bytes a second of an agent's output; a quicker one is held back.
    pub(crate) output_rate: Option<u64>,
}

/// How sessions are launched and ended.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Launch {
    pub(crate) manager: Manager,
    /// At a stop: from stdin closed to SIGTERM.
    pub(crate) stop_close: Span,
    /// At a stop: from SIGTERM to the kill of the whole tree.
    pub(crate) stop_term: Span,
    /// How long no history may come before a loaded conversation counts as replayed.
    pub(crate) replay_quiet: Span,
    /// What becomes of a session whose agent crashed.
    pub(crate) restart: RestartPolicy,
    /// The pause before the first restart; each further one is twice as long, up to the longest.
    pub(crate) restart_first: Span,
    pub(crate) restart_longest: Span,
}

/// What agents are told after a resume.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Resume {
    pub(crate) note: ResumeNote,
}

/// How journals are kept.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Journal {
    /// Bytes after which a new segment is begun.
    pub(crate) rotate: u64,
    /// What is on the disk before anybody is told of it.
    pub(crate) durability: Durability,
    /// Bytes kept of one session; older segments are removed. Without this, all of it.
    pub(crate) keep_session: Option<u64>,
    /// Bytes kept of all sessions together; the oldest segments of all are removed. Without this, all of it.
    pub(crate) keep_all: Option<u64>,
}

/// What a power cut may cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Durability {
    /// Nothing at all: every record is on the disk before it is shown.
    Record,
    /// What was said since the last turn's end.
    #[default]
    Turn,
    /// What the operating system had not written yet.
    None,
}

/// Who holds the sessions' processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Manager {
    /// systemd where agentd itself is one of its services, else detached.
    #[default]
    Auto,
    Systemd,
    Detached,
}

/// A length of time as people write it: `"20s"`, `"1m 30s"`, `"2h"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SignedDuration")]
pub(crate) struct Span(pub(crate) Duration);

impl TryFrom<SignedDuration> for Span {
    type Error = String;

    fn try_from(span: SignedDuration) -> Result<Self, String> {
        Duration::try_from(span).map(Self).map_err(|_| "a length of time cannot be negative".to_owned())
    }
}

const fn seconds(n: u64) -> Span {
    Span(Duration::from_secs(n))
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
            environment: Environment::default(),
            secrets: BTreeMap::new(),
            limits: Limits::default(),
            launch: Launch::default(),
            resume: Resume::default(),
            journal: Journal::default(),
            permissions: Vec::new(),
        }
    }
}

impl Default for Environment {
    fn default() -> Self {
        let builtin = |plugin: &str| Provider { plugin: plugin.to_owned(), ..Provider::default() };
        Self {
            home: None,
            shell: None,
            deadline: seconds(30),
            source: SnapshotSource::default(),
            refresh: Refresh::default(),
            share: false,
            snapshot_ttl: seconds(24 * 3600),
            encryption: Encryption::default(),
            providers: ["snapshot", "whitelist", "env-script"].map(builtin).to_vec(),
            children: Children::default(),
            functions: Functions::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            active_sessions: 64,
            launches: 8,
            queued_turns: 32,
            connections: 512,
            body: 4 << 20,
            line: 32 << 20,
            plugin_memory: 64 << 20,
            initialize: seconds(60),
            open_conversation: seconds(120),
            turn: seconds(4 * 3600),
            cancel: seconds(60),
            silence: seconds(600),
            idle: None,
            permission: None,
            orphan: None,
            memory: None,
            tasks: None,
            output_rate: None,
        }
    }
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            manager: Manager::Auto,
            // FIELD-NOTES: codex-acp needs 7 s after its stdin is closed.
            stop_close: seconds(8),
            stop_term: seconds(2),
            replay_quiet: Span(Duration::from_millis(300)),
            restart: RestartPolicy::OnFailure,
            restart_first: seconds(1),
            restart_longest: seconds(60),
        }
    }
}

impl Journal {
    /// What a writer has to know.
    pub(crate) fn options(&self) -> agentd_journal::Options {
        let sync = match self.durability {
            Durability::Record => agentd_journal::Sync::Always,
            Durability::Turn => agentd_journal::Sync::Asked,
            Durability::None => agentd_journal::Sync::Never,
        };
        agentd_journal::Options { rotate: self.rotate, sync }
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self { rotate: 64 << 20, durability: Durability::default(), keep_session: None, keep_all: None }
    }
}

/// Why the configuration is not used; the one in force stays.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path:?} is not TOML as agentd reads it:\n{source}")]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    /// The files can be read one by one, and do not fit together.
    #[error("the configuration of {files} is wrong: {source}")]
    Merged { files: String, source: Box<toml::de::Error> },
    #[error("the configuration is wrong: {0}")]
    Invalid(String),
}

/// The files that make up the configuration, first to last; those that are not there are left out.
pub(crate) fn files(user_directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let system = Path::new("/etc/agentd");
    let mut files = vec![system.join("agentd.toml")];
    let drop_ins = system.join("conf.d");
    match std::fs::read_dir(&drop_ins) {
        Ok(entries) => {
            let mut found = Vec::new();
            for entry in entries {
                let path = entry.map_err(|source| ConfigError::Read { path: drop_ins.clone(), source })?.path();
                if path.extension().is_some_and(|extension| extension == "toml") {
                    found.push(path);
                }
            }
            found.sort();
            files.extend(found);
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(ConfigError::Read { path: drop_ins, source }),
    }
    files.push(user_directory.join("agentd.toml"));
    files.retain(|path| path.exists());
    Ok(files)
}

/// Reads and checks the configuration.
pub(crate) fn load(files: &[PathBuf]) -> Result<Config, ConfigError> {
    let mut merged = toml::Table::new();
    for path in files {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        // Once as what it is meant to be, so that a mistake is shown where it stands; once as a table, to be merged.
        let parse = |source: toml::de::Error| ConfigError::Parse { path: path.clone(), source: Box::new(source) };
        toml::from_str::<Config>(&text).map_err(parse)?;
        merge(&mut merged, toml::from_str(&text).map_err(parse)?);
    }
    let config: Config = merged.try_into().map_err(|source| ConfigError::Merged {
        files: files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        source: Box::new(source),
    })?;
    check(&config)?;
    Ok(config)
}

fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

fn check(config: &Config) -> Result<(), ConfigError> {
    let invalid = |message: String| Err(ConfigError::Invalid(message));
    for (name, agent) in &config.agents {
        if agent.command.is_empty() || agent.command[0].is_empty() {
            return invalid(format!("agents.{name}.command is empty; give the program and its arguments"));
        }
    }
    let default = &config.default_agent;
    if default.as_str() != DEMO && !config.agents.contains_key(default) {
        return invalid(format!("default_agent is \"{default}\", and there is no [agents.{default}]"));
    }
    named_secrets(&config.secrets).map_err(ConfigError::Invalid)?;
    let encryption = &config.environment.encryption;
    for source in std::iter::once(&encryption.key).chain(&encryption.previous) {
        match source {
            KeySource::File(path) if !path.is_absolute() => {
                return invalid(format!("environment.encryption: the key file {} is not absolute", path.display()));
            }
            KeySource::Credential(name) if name.is_empty() || name.contains('/') || name.starts_with('.') => {
                return invalid(format!("environment.encryption: {name:?} is no name of a credential"));
            }
            _ => {}
        }
    }
    for provider in &config.environment.providers {
        let plugin = &provider.plugin;
        if plugin.is_empty() {
            return invalid("an entry of environment.providers has no plugin".to_owned());
        }
        if plugin.contains('/') && provider.sha256.is_none() {
            return invalid(format!(
                "environment provider {plugin:?} has no sha256; a file is loaded only with its pin"
            ));
        }
    }
    for (name, limit) in [
        ("active_sessions", config.limits.active_sessions),
        ("launches", config.limits.launches),
        ("connections", config.limits.connections),
        ("body", config.limits.body),
        ("line", usize::try_from(config.limits.line).unwrap_or(usize::MAX)),
    ] {
        if limit == 0 {
            return invalid(format!("limits.{name} is 0, which would let nothing through"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_text(texts: &[&str]) -> Result<Config, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for (n, text) in texts.iter().enumerate() {
            let path = directory.path().join(format!("{n}.toml"));
            std::fs::write(&path, text).unwrap();
            files.push(path);
        }
        load(&files)
    }

    #[test]
    fn without_a_file_the_defaults_hold() {
        let config = load_text(&[]).unwrap();
        assert_eq!(config.default_agent.as_str(), DEMO);
        assert_eq!(config.environment.providers.len(), 3);
    }

    #[test]
    fn a_key_is_made_or_found_where_it_is_said_to_be() {
        let source = |text: &str| load_text(&[text]).unwrap().environment.encryption;
        assert_eq!(source(""), Encryption::default());
        let file =
            source("[environment.encryption]\nenabled = true\nkey = { file = \"/k\" }\nprevious = [\"generated\"]");
        assert_eq!(
            (file.enabled, file.key, file.previous),
            (true, KeySource::File("/k".into()), vec![KeySource::Generated])
        );
        let credential = source("[environment.encryption]\nkey = { credential = \"k\" }");
        assert_eq!(credential.key, KeySource::Credential("k".to_owned()));
    }

    #[test]
    fn a_later_file_overrides_key_by_key() {
        let config = load_text(&[
            "[limits]\nlaunches = 2\nqueued_turns = 3\n[agents.a]\ncommand = [\"a\"]",
            "default_agent = \"b\"\n[limits]\nlaunches = 5\n[agents.b]\ncommand = [\"b\"]",
        ]);
        // The second file names an agent that is in neither default nor itself alone wrong: it is checked merged.
        let config = config.unwrap();
        assert_eq!((config.limits.launches, config.limits.queued_turns), (5, 3));
        assert_eq!(config.agents.len(), 2);
    }

    #[test]
    fn every_configuration_that_the_readme_shows_is_one() {
        let readme = include_str!("../../../README.md");
        let blocks: Vec<&str> = readme.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(blocks.len() >= 3, "the README shows {} configurations", blocks.len());
        for block in blocks {
            load_text(&[block]).unwrap_or_else(|error| panic!("{error}\n{block}"));
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        let error = load_text(&["[limits]\nlaunchs = 2"]).unwrap_err().to_string();
        assert!(error.contains("launchs") && error.contains("line 2") && error.contains("0.toml"), "{error}");
        let error = load_text(&["[limits]\nturn = \"soon\""]).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, expected) in [
            ("[agents.a]\ncommand = []", "agents.a.command is empty"),
            ("default_agent = \"x\"", "there is no [agents.x]"),
            ("[limits]\nbody = 0", "limits.body is 0"),
            ("[[environment.providers]]\nplugin = \"/x.wasm\"", "has no sha256"),
            ("[limits]\nturn = \"-1s\"", "negative"),
            ("[environment]\nsource = \"shell\"", "login-shell"),
            ("[environment.encryption]\nkey = { file = \"key\" }", "not absolute"),
            ("[environment.encryption]\nkey = { credential = \"../key\" }", "no name of a credential"),
            ("[resume]\nnote = \"long\"", "brief"),
            ("[agents.a]\ncommand = [\"a\"]\nrefresh = \"often\"", "warn"),
            ("[secrets.A]\nrequired = false", "secrets.A has not exactly one of file, credential"),
        ] {
            let error = load_text(&[text]).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
