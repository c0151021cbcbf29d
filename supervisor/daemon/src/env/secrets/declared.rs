//! Named secrets as the configuration declares them: where each is taken from, as which variable, and who gets it.

use std::path::{Path, PathBuf};

use agentd_api::secret::{SecretSource, SecretView};
use agentd_plugins::glob;
use serde::Deserialize;

/// One `[secrets.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Declared {
    /// A file: absolute, or `~/` and the rest.
    file: Option<PathBuf>,
    /// A file of systemd's `$CREDENTIALS_DIRECTORY`.
    credential: Option<String>,
    /// A program that prints it, with its arguments.
    command: Option<Vec<String>>,
    /// A variable that the login shell sets, whatever the providers make of it.
    snapshot: Option<String>,
    /// The variable it becomes; without it, the secret's own name.
    variable: Option<String>,
    /// The agents whose sessions get it; without any, all.
    agents: Vec<String>,
    /// Patterns of the working directories whose sessions get it; without any, all.
    directories: Vec<String>,
    /// Whether a session is not launched without it.
    required: bool,
}

impl Default for Declared {
    fn default() -> Self {
        let (agents, directories) = (Vec::new(), Vec::new());
        let (file, credential, command, snapshot, variable) = (None, None, None, None, None);
        // As systemd's LoadCredential= and Kubernetes' secretKeyRef: what was declared is needed unless it is said not to be.
        Self { file, credential, command, snapshot, variable, agents, directories, required: true }
    }
}

/// Where a secret is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    File(PathBuf),
    Credential(String),
    Command(Vec<String>),
    Snapshot(String),
}

/// A declared secret that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) variable: String,
    pub(crate) source: Source,
    pub(crate) required: bool,
    agents: Vec<String>,
    directories: Vec<String>,
}

impl Named {
    /// What the configuration says, or what is wrong with it.
    pub(crate) fn of(name: &str, declared: &Declared) -> Result<Self, String> {
        let Declared { file, credential, command, snapshot, variable, agents, directories, required } = declared;
        let sources = [
            file.clone().map(Source::File),
            credential.clone().map(Source::Credential),
            command.clone().map(Source::Command),
            snapshot.clone().map(Source::Snapshot),
        ];
        let mut sources = sources.into_iter().flatten();
        let (Some(source), None) = (sources.next(), sources.next()) else {
            return Err("has not exactly one of file, credential, command and snapshot".to_owned());
        };
        let variable = variable.clone().unwrap_or_else(|| name.to_owned());
        if !is_variable(&variable) {
            return Err(format!("would become the variable {variable:?}, which no shell can name; set variable"));
        }
        match &source {
            Source::File(path) if !path.is_absolute() && !path.starts_with("~") => {
                return Err(format!("has the file {}, which is neither absolute nor begins with ~/", path.display()));
            }
            Source::Credential(credential) if credential.is_empty() || credential.contains('/') => {
                return Err(format!("has the credential {credential:?}, which is no file name"));
            }
            Source::Command(command)
                if command
                    .first()
                    .is_none_or(|program| program.is_empty() || program.contains('=') || program.starts_with('-')) =>
            {
                return Err("has a command that names no program".to_owned());
            }
            Source::Snapshot(variable) if variable.is_empty() => {
                return Err("has an empty snapshot; name the variable of the login shell".to_owned());
            }
            _ => {}
        }
        let (name, agents, directories) = (name.to_owned(), agents.clone(), directories.clone());
        Ok(Self { name, variable, source, required: *required, agents, directories })
    }

    /// Whether a session of this agent in this directory gets it.
    pub(crate) fn is_for(&self, agent: &str, directory: Option<&Path>) -> bool {
        let directory = directory.map(Path::to_string_lossy);
        let is_below = |pattern: &String| directory.as_ref().is_some_and(|directory| glob(pattern, directory));
        (self.agents.is_empty() || self.agents.iter().any(|allowed| allowed == agent))
            && (self.directories.is_empty() || self.directories.iter().any(is_below))
    }

    /// What the outside is told of it; whether it can be had is not looked at.
    pub(crate) fn view(&self) -> SecretView {
        let (kind, place) = match &self.source {
            Source::File(path) => ("file", path.display().to_string()),
            Source::Credential(name) => ("credential", name.clone()),
            Source::Command(command) => ("command", command.join(" ")),
            Source::Snapshot(variable) => ("snapshot", variable.clone()),
        };
        SecretView {
            name: self.name.clone(),
            variable: self.variable.clone(),
            source: SecretSource { kind: kind.to_owned(), place },
            agents: self.agents.clone(),
            directories: self.directories.clone(),
            required: self.required,
            available: None,
            reason: None,
        }
    }
}

/// For messages and provenance: where from, never what.
impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file {}", path.display()),
            Self::Credential(name) => write!(f, "the credential {name}"),
            // The arguments are the configuration's, and are shown by `agentctl secret ls`.
            Self::Command(command) => write!(f, "the command {}", command.first().map_or("", String::as_str)),
            Self::Snapshot(variable) => write!(f, "the login shell's {variable}"),
        }
    }
}

fn is_variable(name: &str) -> bool {
    // `AGENTD_SESSION` tells whose process one is (see `session/cleanup.rs`), and nobody else may set it.
    name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && !name.starts_with("AGENTD_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, text: &str) -> Result<Named, String> {
        Named::of(name, &toml::from_str(text).unwrap())
    }

    #[test]
    fn a_secret_has_exactly_one_source_and_a_variable_that_can_be_named() {
        for (name, text, wrong) in [
            ("A", "", "not exactly one"),
            ("A", "file = \"/a\"\ncredential = \"a\"", "not exactly one"),
            ("A", "file = \"a\"", "neither absolute"),
            ("A", "credential = \"../a\"", "no file name"),
            ("A", "command = []", "names no program"),
            ("A", "snapshot = \"\"", "empty snapshot"),
            ("a-b", "file = \"/a\"", "no shell can name"),
            ("A", "file = \"/a\"\nvariable = \"1A\"", "no shell can name"),
            ("AGENTD_SESSION", "file = \"/a\"", "no shell can name"),
        ] {
            let error = named(name, text).unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
        let secret = named("a-b", "file = \"~/a\"\nvariable = \"A\"").unwrap();
        assert_eq!((secret.variable.as_str(), secret.required), ("A", true));
        assert_eq!(named("A", "snapshot = \"B\"").unwrap().variable, "A");
        assert!(toml::from_str::<Declared>("files = \"/a\"").is_err(), "a misspelled key must not be none");
    }

    #[test]
    fn who_gets_a_secret_is_said_by_agent_and_by_directory() {
        let gets = |secret: &Named, agent: &str, directory: &str| secret.is_for(agent, Some(Path::new(directory)));
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
