//! Parses a plugin author's case file: a session, an environment, settings, the host's answers, and the expected
//! result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agentd_api::ByteString;
use agentd_plugin_host::{Failure, Grant, SessionFacts};
use serde::Deserialize;

use super::expectation::Expectation;

/// Reason why a file is not a valid case.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaseError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path:?} is not a plugin case: {}", source.to_string().trim_end())]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path:?} is not a plugin case: {reason}")]
    Wrong { path: PathBuf, reason: String },
    #[error("cannot write {path:?}")]
    Write { path: PathBuf, source: std::io::Error },
}

/// Content of a case file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Case {
    pub session: Session,
    /// The environment at the time of the call.
    pub environment: BTreeMap<String, ByteString>,
    /// Settings, as in the configuration.
    pub settings: toml::Table,
    /// The plugin's grant. Without it, everything that the plugin requests is granted.
    pub grant: Option<Grant>,
    pub answers: Answers,
    pub expect: Option<Expectation>,
}

/// The session of the call.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Session {
    id: String,
    name: Option<String>,
    agent: String,
    directory: String,
    launch: u64,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            id: "s1".to_owned(),
            name: None,
            agent: "demo".to_owned(),
            directory: "/home/user/project".to_owned(),
            launch: 1,
        }
    }
}

impl Session {
    pub(crate) fn facts(&self) -> SessionFacts {
        SessionFacts {
            id: self.id.clone(),
            name: self.name.clone(),
            agent: self.agent.clone(),
            directory: self.directory.clone(),
            launch: self.launch,
        }
    }
}

/// The host's answers. A call without a matching answer fails the case.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Answers {
    pub login: Option<Login>,
    pub script: Vec<Script>,
    pub command: Vec<Command>,
    pub file: Vec<File>,
    pub network: Vec<Network>,
    pub facts: Facts,
    pub mount: Vec<Mount>,
    pub process: Vec<Process>,
    pub secret: Vec<Secret>,
}

/// Answer of the login shell.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    #[serde(default)]
    pub environment: BTreeMap<String, ByteString>,
    pub failure: Option<Failure>,
}

/// An existing script. Its variables are added to the given environment; `unset` lists the variables that it removes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    pub path: String,
    /// Path after resolving symbolic links, if different.
    pub resolved: Option<String>,
    #[serde(default)]
    pub environment: BTreeMap<String, ByteString>,
    #[serde(default)]
    pub unset: Vec<String>,
    pub failure: Option<Failure>,
}

/// An executable program. The arguments are patterns in the grammar of a grant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    pub program: String,
    /// Path after resolving symbolic links, if different.
    pub resolved: Option<String>,
    #[serde(default)]
    pub arguments: Vec<String>,
    #[serde(default)]
    pub output: ByteString,
    #[serde(default)]
    pub errors: ByteString,
    #[serde(default)]
    pub status: u8,
    pub signal: Option<u8>,
    pub failure: Option<Failure>,
}

/// A file with its content, a directory with its entries, or a failure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub path: String,
    /// Path after resolving symbolic links, if different.
    pub resolved: Option<String>,
    pub content: Option<ByteString>,
    pub entries: Option<Vec<String>>,
    /// Milliseconds since 1970.
    #[serde(default)]
    pub modified: u64,
    pub failure: Option<Failure>,
}

/// A network host: its addresses, and the bytes received from a port.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Network {
    pub host: String,
    /// Without a port, the answer applies to all ports.
    pub port: Option<u16>,
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Milliseconds until the connection is open.
    #[serde(default)]
    pub connected: u64,
    /// Bytes received in each step.
    #[serde(default)]
    pub received: Vec<ByteString>,
    #[serde(default)]
    pub ending: ExchangeEnding,
    pub problem: Option<NetworkProblem>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ExchangeEnding {
    #[default]
    Complete,
    Closed,
    TimedOut,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NetworkProblem {
    NoSuchHost(String),
    NotResolved(String),
    Refused(String),
    Unreachable(String),
    TimedOut(String),
    Other(Failure),
}

/// Facts about the machine's network.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Facts {
    pub interfaces: Option<Vec<Interface>>,
    pub routes: Option<Vec<Route>>,
    pub ways: Vec<Way>,
    pub name_service: Option<NameService>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Interface {
    pub name: String,
    #[serde(default = "yes")]
    pub up: bool,
    #[serde(default = "yes")]
    pub running: bool,
    #[serde(default)]
    pub loopback: bool,
    #[serde(default)]
    pub addresses: Vec<String>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    pub destination: String,
    pub gateway: Option<String>,
    pub via: String,
    #[serde(default)]
    pub metric: u32,
}

/// The route to an address. Without a source, the address is unreachable.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Way {
    pub address: String,
    pub via: Option<String>,
    pub source: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameService {
    #[serde(default)]
    pub servers: Vec<String>,
    #[serde(default)]
    pub search: Vec<String>,
}

/// A mounted file system.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mount {
    pub path: String,
    pub source: String,
    pub kind: String,
    #[serde(default)]
    pub options: Vec<String>,
    #[serde(default)]
    pub device: String,
    /// Result of a probe of the mount.
    #[serde(default)]
    pub liveness: Liveness,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Liveness {
    #[default]
    Answers,
    Hangs,
    Error(String),
}

/// Number of running processes of a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub name: String,
    pub running: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Secret {
    pub name: String,
    #[serde(default)]
    pub value: ByteString,
    pub failure: Option<Failure>,
}

impl Case {
    /// Reads a case. Returns the case and its text.
    pub(crate) fn read(path: &Path) -> Result<(Self, String), CaseError> {
        let text = std::fs::read_to_string(path).map_err(|source| CaseError::Read { path: path.to_owned(), source })?;
        let case = Self::parse(path, &text)?;
        Ok((case, text))
    }

    fn parse(path: &Path, text: &str) -> Result<Self, CaseError> {
        let path = path.to_owned();
        let case: Self = match toml::from_str(text) {
            Ok(case) => case,
            Err(source) => return Err(CaseError::Parse { path, source: Box::new(source) }),
        };
        let wrong = |reason| CaseError::Wrong { path: path.clone(), reason };
        for name in case.environment.keys() {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(wrong(format!("{name:?} is not a variable name")));
            }
        }
        if !case.session.directory.starts_with('/') {
            return Err(wrong("session.directory must be an absolute path".to_owned()));
        }
        for file in &case.answers.file {
            let kinds = [file.content.is_some(), file.entries.is_some(), file.failure.is_some()];
            if kinds.into_iter().filter(|is_given| *is_given).count() != 1 {
                let path = &file.path;
                return Err(wrong(format!(
                    "the answer for the file {path:?} must have exactly one of content, entries, failure"
                )));
            }
        }
        case.expect.as_ref().map_or(Ok(()), Expectation::check).map_err(wrong)?;
        Ok(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Case, CaseError> {
        Case::parse(Path::new("case.toml"), text)
    }

    #[test]
    fn an_empty_case_is_valid_and_has_a_session() {
        let case = parse("").unwrap();
        assert_eq!(case.session.facts().agent, "demo");
        assert!(case.expect.is_none() && case.grant.is_none());
    }

    #[test]
    fn bytes_that_are_no_text_are_base64() {
        let case = parse("[environment]\nA = \"é\"\nB = { base64 = \"/w==\" }\n").unwrap();
        assert_eq!((case.environment["A"].as_bytes(), case.environment["B"].as_bytes()), ("é".as_bytes(), &[0xff][..]));
    }

    #[test]
    fn a_mistake_is_reported_with_its_place_and_the_valid_choices() {
        for (text, words) in [
            ("[sesion]\nid = \"a\"", "unknown field `sesion`"),
            ("[[answers.comand]]\nprogram = \"a\"", "unknown field `comand`"),
            ("[[answers.file]]\npath = \"/a\"", "exactly one of content, entries, failure"),
            ("[[answers.file]]\npath = \"/a\"\nfailure = { gone = \"x\" }", "not-found"),
            ("[environment]\n\"A=B\" = \"x\"", "is not a variable name"),
            ("[session]\ndirectory = \"x\"", "must be an absolute path"),
            ("[[expect.changes]]\nset = \"A\"", "\"A\" has no value"),
            ("[[expect.changes]]\nvalue = \"A\"", "exactly one of set, unset"),
            ("[[expect.changes]]\nset = \"A\"\nvalue = \"b\"\nentry = \"c\"", "has an entry, which set does not allow"),
            ("[expect]\nchanges = []\nfailure = { failed = \"x\" }", "exactly one of changes, failure, report"),
            ("[expect.report]\noutcome = \"good\"\nsummary = \"\"", "unknown outcome \"good\"; use one of pass, warn"),
            ("x", "line 1"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("case.toml"), "{text}: {error}");
        }
    }
}
