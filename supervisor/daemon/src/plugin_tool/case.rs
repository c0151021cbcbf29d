//! A case of a plugin, as its author writes it: a session, an environment and settings, the answers of the host, and what is
//! expected of the plugin.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agentd_api::ByteString;
use agentd_plugins::{Failure, Grant, SessionFacts};
use serde::Deserialize;

use super::expectation::Expectation;

/// Why a file is no case.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaseError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path:?} is no case of a plugin: {}", source.to_string().trim_end())]
    Parse { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{path:?} is no case of a plugin: {what}")]
    Wrong { path: PathBuf, what: String },
    #[error("cannot write {path:?}")]
    Write { path: PathBuf, source: std::io::Error },
}

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) session: Session,
    /// The environment so far.
    pub(crate) environment: BTreeMap<String, ByteString>,
    /// As in the configuration.
    pub(crate) settings: toml::Table,
    /// What is granted; without it, all that the plugin wants.
    pub(crate) grant: Option<Grant>,
    pub(crate) answers: Answers,
    pub(crate) expect: Option<Expectation>,
}

/// The session that the plugin is called for.
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

/// What the host answers. A call that none of them is for fails the case.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Answers {
    pub(crate) login: Option<Login>,
    pub(crate) script: Vec<Script>,
    pub(crate) command: Vec<Command>,
    pub(crate) file: Vec<File>,
    pub(crate) network: Vec<Network>,
    pub(crate) facts: Facts,
    pub(crate) mount: Vec<Mount>,
    pub(crate) process: Vec<Process>,
    pub(crate) secret: Vec<Secret>,
}

/// Of the login shell.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, ByteString>,
    pub(crate) failure: Option<Failure>,
}

/// A script that is there. What it sets comes on top of what it is given; what it takes away is in `unset`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    pub(crate) path: String,
    /// Its path with everything resolved, where it is another.
    pub(crate) resolved: Option<String>,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, ByteString>,
    #[serde(default)]
    pub(crate) unset: Vec<String>,
    pub(crate) failure: Option<Failure>,
}

/// A program that is run. The arguments are patterns, in the grammar of a grant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    pub(crate) program: String,
    /// Its path with everything resolved, where it is another.
    pub(crate) resolved: Option<String>,
    #[serde(default)]
    pub(crate) arguments: Vec<String>,
    #[serde(default)]
    pub(crate) output: ByteString,
    #[serde(default)]
    pub(crate) errors: ByteString,
    #[serde(default)]
    pub(crate) status: u8,
    pub(crate) signal: Option<u8>,
    pub(crate) failure: Option<Failure>,
}

/// A file with its content, a directory with its entries, or something else that has a kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) path: String,
    /// Its path with everything resolved, where it is another.
    pub(crate) resolved: Option<String>,
    pub(crate) content: Option<ByteString>,
    pub(crate) entries: Option<Vec<String>>,
    /// Milliseconds since 1970.
    #[serde(default)]
    pub(crate) modified: u64,
    pub(crate) failure: Option<Failure>,
}

/// A host of the network: what its name comes to, and, at a port, what it says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Network {
    pub(crate) host: String,
    /// Any, where none is given.
    pub(crate) port: Option<u16>,
    #[serde(default)]
    pub(crate) addresses: Vec<String>,
    /// Milliseconds until it is connected.
    #[serde(default)]
    pub(crate) connected: u64,
    /// What comes, step by step.
    #[serde(default)]
    pub(crate) received: Vec<ByteString>,
    #[serde(default)]
    pub(crate) ending: ExchangeEnding,
    pub(crate) problem: Option<NetworkProblem>,
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

/// What is known of the network.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Facts {
    pub(crate) interfaces: Option<Vec<Interface>>,
    pub(crate) routes: Option<Vec<Route>>,
    pub(crate) ways: Vec<Way>,
    pub(crate) name_service: Option<NameService>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Interface {
    pub(crate) name: String,
    #[serde(default = "yes")]
    pub(crate) up: bool,
    #[serde(default = "yes")]
    pub(crate) running: bool,
    #[serde(default)]
    pub(crate) loopback: bool,
    #[serde(default)]
    pub(crate) addresses: Vec<String>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Route {
    pub(crate) destination: String,
    pub(crate) gateway: Option<String>,
    pub(crate) via: String,
    #[serde(default)]
    pub(crate) metric: u32,
}

/// The way to an address; without a source there is none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Way {
    pub(crate) address: String,
    pub(crate) via: Option<String>,
    pub(crate) source: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameService {
    #[serde(default)]
    pub(crate) servers: Vec<String>,
    #[serde(default)]
    pub(crate) search: Vec<String>,
}

/// A file system that is mounted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mount {
    pub(crate) path: String,
    pub(crate) source: String,
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) options: Vec<String>,
    #[serde(default)]
    pub(crate) device: String,
    /// What a look at it comes to; where it is not said, it answers.
    #[serde(default)]
    pub(crate) liveness: Liveness,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Liveness {
    #[default]
    Answers,
    Hangs,
    Error(String),
}

/// How many processes of a name run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) name: String,
    pub(crate) running: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Secret {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) value: ByteString,
    pub(crate) failure: Option<Failure>,
}

impl Case {
    /// Reads a case, and its text.
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
        let wrong = |what| CaseError::Wrong { path: path.clone(), what };
        for name in case.environment.keys() {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(wrong(format!("{name:?} is no name of a variable")));
            }
        }
        if !case.session.directory.starts_with('/') {
            return Err(wrong("session.directory must be an absolute path".to_owned()));
        }
        for file in &case.answers.file {
            let says = [file.content.is_some(), file.entries.is_some(), file.failure.is_some()];
            if says.into_iter().filter(|said| *said).count() != 1 {
                let path = &file.path;
                return Err(wrong(format!(
                    "the answer for the file {path:?} has not one of content, entries, failure"
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
    fn an_empty_case_is_one_and_has_a_session() {
        let case = parse("").unwrap();
        assert_eq!(case.session.facts().agent, "demo");
        assert!(case.expect.is_none() && case.grant.is_none());
    }

    #[test]
    fn what_is_not_text_is_base64() {
        let case = parse("[environment]\nA = \"é\"\nB = { base64 = \"/w==\" }\n").unwrap();
        assert_eq!((case.environment["A"].as_bytes(), case.environment["B"].as_bytes()), ("é".as_bytes(), &[0xff][..]));
    }

    #[test]
    fn a_mistake_is_told_with_its_place_and_what_there_is() {
        for (text, words) in [
            ("[sesion]\nid = \"a\"", "unknown field `sesion`"),
            ("[[answers.comand]]\nprogram = \"a\"", "unknown field `comand`"),
            ("[[answers.file]]\npath = \"/a\"", "not one of content, entries, failure"),
            ("[[answers.file]]\npath = \"/a\"\nfailure = { gone = \"x\" }", "not-found"),
            ("[environment]\n\"A=B\" = \"x\"", "is no name of a variable"),
            ("[session]\ndirectory = \"x\"", "must be an absolute path"),
            ("[[expect.changes]]\nset = \"A\"", "\"A\" has no value"),
            ("[[expect.changes]]\nvalue = \"A\"", "has not one of set, unset"),
            (
                "[[expect.changes]]\nset = \"A\"\nvalue = \"b\"\nentry = \"c\"",
                "has an entry, which does not go with set",
            ),
            ("[expect]\nchanges = []\nfailure = { failed = \"x\" }", "expects not one of changes, failure, report"),
            ("[expect.report]\noutcome = \"good\"\nsummary = \"\"", "no outcome \"good\"; there are pass, warn"),
            ("x", "line 1"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("case.toml"), "{text}: {error}");
        }
    }
}
