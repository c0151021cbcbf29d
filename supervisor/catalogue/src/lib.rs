//! The known agents, as data: one file for each in `agents/`, in the form of the public registry of the Agent Client
//! Protocol (`agent.json`, github.com/agentclientprotocol/registry, FORMAT.md). The key `agentd` has what that form
//! lacks: how an agent is recognised, its variables, its logins and its quirks.
//!
//! The crate knows no session and no configuration. `plugins/whitelist/src/table.rs` is generated from the same files.

mod registry;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

pub use registry::{Archive, Distribution, Entry, ImportError, Launch, Package, platform};

/// A known agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownAgent {
    /// The agent in the form of the public registry.
    #[serde(flatten)]
    pub entry: Entry,
    /// Further facts of agentd.
    pub agentd: Knowledge,
}

/// Facts of an agent besides its entry in the registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knowledge {
    /// Ids under which the public registry has the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registry: Vec<String>,
    /// Program and arguments that speak the protocol, with the program looked up in `PATH`.
    pub command: Vec<String>,
    /// Command that installs the agent, or the page that describes it.
    pub install: String,
    /// Names of the agent's programs and packages, by which a command is recognised.
    pub programs: Vec<String>,
    /// Variables that the agent reads for its login, its model and its home, by exact name. Other agents do not get
    /// the keys among them.
    pub variables: Vec<String>,
    /// Variables for clouds, which the agent gets only if a switch turns the cloud on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clouds: Vec<Cloud>,
    /// Variables that an entry `like` this agent sets: they keep the agent from updating and restarting itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Variables that name the directory with the agent's conversations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversations: Vec<ConversationVariable>,
    /// Whether one process can begin its first session long after `initialize`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begins_late: bool,
    /// Signs of a login, and ways to log in.
    #[serde(default)]
    pub login: Login,
    /// Unusual behaviour, with the version in which it was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quirks: Vec<Quirk>,
    /// Sources of these facts.
    pub sources: Vec<String>,
}

/// Variables that the agent gets if the switch is set to a value other than empty, `0` or `false`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cloud {
    /// Name of the variable that turns the cloud on.
    pub switch: String,
    /// Names of the variables.
    pub variables: Vec<String>,
}

/// A variable that names a directory with conversations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConversationVariable {
    /// Name of the variable.
    pub variable: String,
    /// Directory without the variable. `~` at its start is the home directory.
    pub default: String,
}

/// The logins of an agent, as far as they can be seen without it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// Variables of which each contains a key.
    pub keys: Vec<String>,
    /// Files that exist after a login. `{NAME}` is a variable of `conversations`, or its default; `~` is the home
    /// directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Login methods that use a key of the environment, in the order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<KeyMethod>,
    /// Command that logs in at a terminal, for an agent that offers no method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Whether the agent also works without a login.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A login method that uses a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyMethod {
    /// Name of the variable with the key.
    pub key: String,
    /// The agent's id of the method (ACP, `authMethods`).
    pub method: String,
}

/// Unusual behaviour of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quirk {
    /// Version in which it was seen.
    pub seen: String,
    /// Description of the behaviour.
    pub text: String,
}

/// Sign of an agent's login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginSign {
    /// A variable contains a key.
    Key(String),
    /// A login has left this file.
    File(PathBuf),
    /// Nothing was found, and the agent works without a login.
    NotNeeded,
    /// Nothing was found, though a login would leave a file.
    Missing,
    /// No key was found. A login of this agent leaves no file that is known.
    Unknown,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../agents/", $name, ".json")))),*]
    };
}

/// The names of the known agents, with their files.
const FILES: &[(&str, &str)] =
    files!["auggie", "claude", "codex", "copilot", "cursor", "gemini", "goose", "kiro", "opencode", "qwen"];

static AGENTS: LazyLock<Vec<KnownAgent>> = LazyLock::new(|| {
    let agent = |(name, file): &(&str, &str)| {
        serde_json::from_str(file).unwrap_or_else(|error| panic!("the catalogue's {name}.json: {error}"))
    };
    FILES.iter().map(agent).collect()
});

/// Returns the known agents, sorted by name.
pub fn all() -> &'static [KnownAgent] {
    &AGENTS
}

/// Returns the known agent with this name.
pub fn by_name(name: &str) -> Option<&'static KnownAgent> {
    all().iter().find(|agent| agent.name() == name)
}

/// Returns the known agent with this program or package.
pub fn by_program(program: &str) -> Option<&'static KnownAgent> {
    all().iter().find(|agent| agent.agentd.programs.iter().any(|known| known == program))
}

/// Returns the known agent that the public registry has under this id.
pub fn by_registry(id: &str) -> Option<&'static KnownAgent> {
    all().iter().find(|agent| agent.agentd.registry.iter().any(|known| known == id))
}

impl KnownAgent {
    /// Returns the agent's name, by which a configuration refers to it.
    #[expect(clippy::misnamed_getters, reason = "the registry calls it the id, and the entry's `name` is for people")]
    pub fn name(&self) -> &str {
        &self.entry.id
    }

    /// Returns the sign of the agent's login, without a start of the agent. `value` returns a variable of the
    /// agent's environment.
    pub fn login_sign(&self, home: &Path, value: impl Fn(&str) -> Option<String>) -> LoginSign {
        let login = &self.agentd.login;
        let set = |name: &String| value(name).is_some_and(|value| !value.is_empty());
        if let Some(key) = login.keys.iter().find(|name| set(name)) {
            return LoginSign::Key(key.clone());
        }
        let files = login.files.iter().map(|file| self.resolve(file, home, &value));
        if let Some(file) = files.into_iter().find(|file| file.is_file()) {
            return LoginSign::File(file);
        }
        match (login.optional, login.files.is_empty()) {
            (true, _) => LoginSign::NotNeeded,
            (false, false) => LoginSign::Missing,
            (false, true) => LoginSign::Unknown,
        }
    }

    fn resolve(&self, path: &str, home: &Path, value: &impl Fn(&str) -> Option<String>) -> PathBuf {
        let (base, rest) = match path.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((name, rest)) => {
                let default = self.agentd.conversations.iter().find(|one| one.variable == name);
                let default = || default.map_or("~", |one| one.default.as_str()).to_owned();
                (value(name).filter(|value| !value.is_empty()).unwrap_or_else(default), rest)
            }
            None => (path.to_owned(), ""),
        };
        let base = match base.strip_prefix('~') {
            Some(below) => home.join(below.trim_start_matches('/')),
            None => PathBuf::from(base),
        };
        match rest.trim_start_matches('/') {
            "" => base,
            rest => base.join(rest),
        }
    }
}

/// Returns the directory in which the known agents with this variable keep their conversations. `value` is the value of
/// the variable.
pub fn conversation_directory(variable: &str, value: Option<&str>, home: &Path) -> Option<PathBuf> {
    let has = |known: &&KnownAgent| known.agentd.conversations.iter().any(|one| one.variable == variable);
    let known = all().iter().find(has)?;
    Some(known.resolve(&format!("{{{variable}}}"), home, &|_| value.map(str::to_owned)))
}

#[cfg(test)]
mod tests;
