//! `[secrets.NAME]`: named secrets with their sources, their variables and the sessions that receive them.

use std::path::{Path, PathBuf};

use agentd_api::secret::{SecretSource, SecretView};
use agentd_plugin_host::glob;
use serde::Deserialize;

/// A named secret. It needs exactly one source: `file`, `credential`, `command` or `snapshot`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DeclaredSecret {
    /// File that contains the secret. The path is absolute or begins with `~/`.
    file: Option<PathBuf>,
    /// Name of a file in systemd's `$CREDENTIALS_DIRECTORY`.
    credential: Option<String>,
    /// Program that prints the secret, and its arguments.
    command: Option<Vec<String>>,
    /// Name of a variable of the login shell. Providers do not affect its value.
    snapshot: Option<String>,
    /// Variable that receives the secret. Default: the name of the secret.
    variable: Option<String>,
    /// Whether sessions receive the secret as a variable. With `false`, only what names the secret gets it: an MCP
    /// server, a repository or a plugin. Default: `true`.
    environment: bool,
    /// Agents whose sessions receive the secret. Default: all agents.
    agents: Vec<String>,
    /// Patterns of the working directories whose sessions receive the secret. `*` matches any text, also `/`.
    /// Default: all directories.
    directories: Vec<String>,
    /// Whether a launch fails if the secret is not available. Default: `true`.
    required: bool,
}

impl Default for DeclaredSecret {
    fn default() -> Self {
        let (agents, directories) = (Vec::new(), Vec::new());
        let (file, credential, command, snapshot, variable) = (None, None, None, None, None);
        // A declared secret is required by default, as in systemd's `LoadCredential=` and the `secretKeyRef` of
        // Kubernetes.
        Self { file, credential, command, snapshot, variable, environment: true, agents, directories, required: true }
    }
}

/// Reports whether lists of agents and of patterns of directories fit a session. An empty list fits each session.
/// Without `directory`, only an empty list of patterns fits.
pub(crate) fn is_for(agents: &[String], directories: &[String], agent: &str, directory: Option<&Path>) -> bool {
    let directory = directory.map(Path::to_string_lossy);
    let is_below = |pattern: &String| directory.as_ref().is_some_and(|directory| glob(pattern, directory));
    (agents.is_empty() || agents.iter().any(|allowed| allowed == agent))
        && (directories.is_empty() || directories.iter().any(is_below))
}

/// Source of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretOrigin {
    /// A file.
    File(PathBuf),
    /// A file in systemd's `$CREDENTIALS_DIRECTORY`.
    Credential(String),
    /// A program that prints the secret, and its arguments.
    Command(Vec<String>),
    /// A variable of the login shell.
    Snapshot(String),
}

/// A validated [`DeclaredSecret`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSecret {
    /// Name of the secret in the configuration.
    pub name: String,
    /// Variable that receives the secret.
    pub variable: String,
    /// Source of the secret.
    pub source: SecretOrigin,
    /// Whether sessions receive the secret as a variable.
    pub in_environment: bool,
    /// Whether a launch fails if the secret is not available.
    pub required: bool,
    agents: Vec<String>,
    directories: Vec<String>,
}

impl NamedSecret {
    /// Validates a declared secret. An error describes the mistake and follows the secret's name in a message.
    pub fn of(name: &str, declared: &DeclaredSecret) -> Result<Self, String> {
        let DeclaredSecret {
            file,
            credential,
            command,
            snapshot,
            variable,
            environment,
            agents,
            directories,
            required,
        } = declared;
        let sources = [
            file.clone().map(SecretOrigin::File),
            credential.clone().map(SecretOrigin::Credential),
            command.clone().map(SecretOrigin::Command),
            snapshot.clone().map(SecretOrigin::Snapshot),
        ];
        let mut sources = sources.into_iter().flatten();
        let (Some(source), None) = (sources.next(), sources.next()) else {
            return Err("must have exactly one of file, credential, command and snapshot".to_owned());
        };
        let variable = variable.clone().unwrap_or_else(|| name.to_owned());
        if !is_variable(&variable) {
            return Err(format!(
                "would set the variable {variable:?}, which is invalid or reserved; set `variable` to another name"
            ));
        }
        match &source {
            SecretOrigin::File(path) if !path.is_absolute() && !path.starts_with("~") => {
                return Err(format!("has the file {}, which must be absolute or begin with ~/", path.display()));
            }
            SecretOrigin::Credential(credential) if credential.is_empty() || credential.contains('/') => {
                return Err(format!("has the credential {credential:?}, which is not a file name"));
            }
            SecretOrigin::Command(command)
                if command
                    .first()
                    .is_none_or(|program| program.is_empty() || program.contains('=') || program.starts_with('-')) =>
            {
                return Err("has a command without a program".to_owned());
            }
            SecretOrigin::Snapshot(variable) if variable.is_empty() => {
                return Err("has an empty snapshot; name the variable of the login shell".to_owned());
            }
            _ => {}
        }
        let (name, agents, directories) = (name.to_owned(), agents.clone(), directories.clone());
        Ok(Self { name, variable, source, in_environment: *environment, required: *required, agents, directories })
    }

    /// Reports whether a session with this agent and directory receives the secret.
    pub fn is_for(&self, agent: &str, directory: Option<&Path>) -> bool {
        is_for(&self.agents, &self.directories, agent, directory)
    }

    /// Returns the description of the secret for API clients. It does not check whether the secret is available.
    pub fn view(&self) -> SecretView {
        let (kind, place) = match &self.source {
            SecretOrigin::File(path) => ("file", path.display().to_string()),
            SecretOrigin::Credential(name) => ("credential", name.clone()),
            SecretOrigin::Command(command) => ("command", command.join(" ")),
            SecretOrigin::Snapshot(variable) => ("snapshot", variable.clone()),
        };
        SecretView {
            name: self.name.clone(),
            variable: if self.in_environment { self.variable.clone() } else { String::new() },
            source: SecretSource { kind: kind.to_owned(), place },
            agents: self.agents.clone(),
            directories: self.directories.clone(),
            required: self.required,
            available: None,
            reason: None,
        }
    }
}

/// Describes the source in messages and provenance, without the secret's value.
impl std::fmt::Display for SecretOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file {}", path.display()),
            Self::Credential(name) => write!(f, "the credential {name}"),
            // `agentctl secret ls` shows the arguments.
            Self::Command(command) => write!(f, "the command {}", command.first().map_or("", String::as_str)),
            Self::Snapshot(variable) => write!(f, "the login shell's {variable}"),
        }
    }
}

fn is_variable(name: &str) -> bool {
    // `AGENTD_SESSION` identifies the session of a process (`session/cleanup.rs`), so only agentd may set it.
    name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && !name.starts_with("AGENTD_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, text: &str) -> Result<NamedSecret, String> {
        NamedSecret::of(name, &toml::from_str(text).unwrap())
    }

    #[test]
    fn a_secret_has_exactly_one_source_and_a_variable_that_can_be_named() {
        for (name, text, wrong) in [
            ("A", "", "must have exactly one"),
            ("A", "file = \"/a\"\ncredential = \"a\"", "must have exactly one"),
            ("A", "file = \"a\"", "must be absolute"),
            ("A", "credential = \"../a\"", "not a file name"),
            ("A", "command = []", "without a program"),
            ("A", "snapshot = \"\"", "empty snapshot"),
            ("a-b", "file = \"/a\"", "invalid or reserved"),
            ("A", "file = \"/a\"\nvariable = \"1A\"", "invalid or reserved"),
            ("AGENTD_SESSION", "file = \"/a\"", "invalid or reserved"),
        ] {
            let error = named(name, text).unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
        let secret = named("a-b", "file = \"~/a\"\nvariable = \"A\"").unwrap();
        assert_eq!((secret.variable.as_str(), secret.required), ("A", true));
        assert_eq!(named("A", "snapshot = \"B\"").unwrap().variable, "A");
        assert!(toml::from_str::<DeclaredSecret>("files = \"/a\"").is_err(), "a misspelled key must not be none");
    }

    #[test]
    fn who_gets_a_secret_is_said_by_agent_and_by_directory() {
        let gets =
            |secret: &NamedSecret, agent: &str, directory: &str| secret.is_for(agent, Some(Path::new(directory)));
        let all = named("A", "file = \"/a\"").unwrap();
        assert!(gets(&all, "claude", "/anywhere") && all.is_for("claude", None));
        let some =
            named("A", "file = \"/a\"\nagents = [\"claude\"]\ndirectories = [\"/work/*\", \"/home/x\"]").unwrap();
        assert!(gets(&some, "claude", "/work/a/b") && gets(&some, "claude", "/home/x"));
        assert!(
            !some.is_for("claude", None)
                && !gets(&some, "codex", "/work/a")
                && !gets(&some, "claude", "/home/x/y")
                && !gets(&some, "claude", "/work")
        );
    }
}
