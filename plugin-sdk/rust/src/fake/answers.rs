//! The answers that a test gives, capability by capability.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use super::Host;
use crate::command::{Completed, Ending, Invocation};
use crate::file::Kind;
use crate::mount::{Liveness, Mounted};
use crate::network::{self, Exchanged, NameService, NetworkInterface, Problem, Route, Step, Way};
use crate::{Failure, Variable};

/// What is in a file, or in a secret; or why it cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content(pub(super) Result<Vec<u8>, Failure>);

macro_rules! content {
    ($($from:ty)*) => {$(
        impl From<$from> for Content {
            fn from(bytes: $from) -> Self {
                Self(Ok(bytes.to_vec()))
            }
        }
    )*};
}
content!(&[u8] Vec<u8>);

impl<const N: usize> From<&[u8; N]> for Content {
    fn from(bytes: &[u8; N]) -> Self {
        Self(Ok(bytes.to_vec()))
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self(Ok(text.as_bytes().to_vec()))
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self(Ok(text.into_bytes()))
    }
}

impl From<Failure> for Content {
    fn from(failure: Failure) -> Self {
        Self(Err(failure))
    }
}

/// A program that ended with this status, and what it printed.
pub fn completed(status: u8, output: impl Into<Vec<u8>>, errors: impl Into<Vec<u8>>) -> Completed {
    Completed { ending: Ending::Exited(status), output: output.into(), errors: errors.into() }
}

/// An exchange that was made as a whole, and what came in each of its steps.
pub fn exchanged<B: Into<Vec<u8>>>(address: &str, received: impl IntoIterator<Item = B>) -> Exchanged {
    Exchanged {
        address: address.to_owned(),
        connected: 1,
        received: received.into_iter().map(Into::into).collect(),
        ending: network::Ending::Complete,
    }
}

/// An environment by name, as a script of a test sees and changes it.
pub(super) type Environment = BTreeMap<String, Vec<u8>>;
type Script = Box<dyn FnMut(&mut Environment) -> Result<(), Failure>>;
type Program = Box<dyn FnMut(&Invocation) -> Result<Completed, Failure>>;
type Listener = Box<dyn FnMut(&[Step]) -> Result<Exchanged, Problem>>;

/// A file or a directory.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) modified: u64,
    pub(super) content: Result<Vec<u8>, Failure>,
    pub(super) names: Vec<String>,
}

#[derive(Default)]
pub(super) struct Answers {
    pub(super) login: Option<Result<Vec<Variable>, Failure>>,
    pub(super) scripts: BTreeMap<String, Script>,
    /// Patterns of paths where there is nothing.
    pub(super) nothing: Vec<String>,
    pub(super) programs: Vec<(String, Program)>,
    pub(super) files: BTreeMap<String, Entry>,
    pub(super) hosts: BTreeMap<String, Result<Vec<String>, Problem>>,
    pub(super) listeners: BTreeMap<(String, u16), Listener>,
    pub(super) interfaces: Option<Vec<NetworkInterface>>,
    pub(super) routes: Option<Vec<Route>>,
    pub(super) ways: BTreeMap<String, Option<Way>>,
    pub(super) name_service: Option<NameService>,
    pub(super) mounts: Option<Vec<Mounted>>,
    pub(super) probes: BTreeMap<String, Result<Liveness, Failure>>,
    pub(super) processes: BTreeMap<String, u32>,
    pub(super) secrets: BTreeMap<String, Content>,
}

impl Host {
    /// What the login shell gives.
    #[must_use]
    pub fn login<N: Into<String>, V: Into<Vec<u8>>>(self, environment: impl IntoIterator<Item = (N, V)>) -> Self {
        let variables = environment.into_iter().map(|(name, value)| Variable::new(name, value)).collect();
        self.answer(|answers| answers.login = Some(Ok(variables)))
    }

    /// Why the login shell gave nothing.
    #[must_use]
    pub fn login_fails(self, failure: Failure) -> Self {
        self.answer(|answers| answers.login = Some(Err(failure)))
    }

    /// A script, as what it does to the environment that it is given.
    #[must_use]
    pub fn script(self, path: &str, mut script: impl FnMut(&mut BTreeMap<String, Vec<u8>>) + 'static) -> Self {
        self.answer_at(path, |answers, path| {
            let script = move |environment: &mut Environment| {
                script(environment);
                Ok(())
            };
            answers.scripts.insert(path, Box::new(script));
        })
    }

    /// A script that is there, and that the host does not source, or that fails.
    #[must_use]
    pub fn script_fails(self, path: &str, failure: Failure) -> Self {
        self.answer_at(path, |answers, path| answers.scripts.insert(path, Box::new(move |_| Err(failure.clone()))))
    }

    /// There is no file and no script at such a path (a pattern, as in a grant) unless the test gave one.
    #[must_use]
    pub fn nothing_at(self, pattern: &str) -> Self {
        self.answer_at(pattern, |answers, pattern| answers.nothing.push(pattern))
    }

    /// A program, for invocations that match this pattern (as in a grant). Of several, the first that matches is asked.
    #[must_use]
    pub fn command(
        self,
        pattern: &str,
        program: impl FnMut(&Invocation) -> Result<Completed, Failure> + 'static,
    ) -> Self {
        self.answer(|answers| answers.programs.push((pattern.to_owned(), Box::new(program))))
    }

    /// A program that prints this and ends with status 0.
    #[must_use]
    pub fn output(self, pattern: &str, output: impl Into<Vec<u8>>) -> Self {
        let output = output.into();
        self.command(pattern, move |_| Ok(completed(0, output.clone(), "")))
    }

    /// A file, last changed at the host's time of day; or why it cannot be read.
    #[must_use]
    pub fn file(self, path: &str, content: impl Into<Content>) -> Self {
        let Content(content) = content.into();
        self.entry(path, Kind::File, content, Vec::new())
    }

    /// A directory, and the names in it.
    #[must_use]
    pub fn directory<N: Into<String>>(self, path: &str, names: impl IntoIterator<Item = N>) -> Self {
        let mut names: Vec<String> = names.into_iter().map(Into::into).collect();
        names.sort();
        self.entry(path, Kind::Directory, Ok(Vec::new()), names)
    }

    /// The addresses of a host's name, or why there are none.
    #[must_use]
    pub fn resolves(self, host: &str, addresses: Result<Vec<String>, Problem>) -> Self {
        self.answer(|answers| answers.hosts.insert(host.to_ascii_lowercase(), addresses))
    }

    /// Who answers at a port; see [`exchanged`].
    #[must_use]
    pub fn listens(
        self,
        host: &str,
        port: u16,
        listener: impl FnMut(&[Step]) -> Result<Exchanged, Problem> + 'static,
    ) -> Self {
        self.answer(|answers| answers.listeners.insert((host.to_ascii_lowercase(), port), Box::new(listener)))
    }

    /// The machine's network interfaces.
    #[must_use]
    pub fn interfaces(self, interfaces: Vec<NetworkInterface>) -> Self {
        self.answer(|answers| answers.interfaces = Some(interfaces))
    }

    /// The main routing table.
    #[must_use]
    pub fn routes(self, routes: Vec<Route>) -> Self {
        self.answer(|answers| answers.routes = Some(routes))
    }

    /// Which way packets to an address go.
    #[must_use]
    pub fn way_to(self, address: &str, way: Option<Way>) -> Self {
        self.answer(|answers| answers.ways.insert(address.to_owned(), way))
    }

    /// Name servers and search domains.
    #[must_use]
    pub fn name_service(self, facts: NameService) -> Self {
        self.answer(|answers| answers.name_service = Some(facts))
    }

    /// The mount table. A plugin gets of it what it wants and was granted.
    #[must_use]
    pub fn mounts(self, mounts: Vec<Mounted>) -> Self {
        self.answer(|answers| answers.mounts = Some(mounts))
    }

    /// What comes of a look at a path.
    #[must_use]
    pub fn probe(self, path: &str, liveness: Result<Liveness, Failure>) -> Self {
        self.answer_at(path, |answers, path| answers.probes.insert(path, liveness))
    }

    /// How many processes of this name run.
    #[must_use]
    pub fn running(self, name: &str, count: u32) -> Self {
        self.answer(|answers| answers.processes.insert(name.to_owned(), count))
    }

    /// A secret's value; or why it cannot be had.
    #[must_use]
    pub fn secret(self, name: &str, value: impl Into<Content>) -> Self {
        let value = value.into();
        self.answer(|answers| answers.secrets.insert(name.to_owned(), value))
    }

    fn entry(self, path: &str, kind: Kind, content: Result<Vec<u8>, Failure>, names: Vec<String>) -> Self {
        let modified = self.state.borrow().wall;
        self.answer_at(path, |answers, path| {
            answers.files.insert(path, Entry { kind, modified, content, names });
        })
    }

    /// With the path as the host sees it.
    fn answer_at<T>(self, path: &str, give: impl FnOnce(&mut Answers, String) -> T) -> Self {
        let path = self.state.borrow().places.resolve(path);
        self.answer(|answers| give(answers, path))
    }

    /// An answer takes the place of one that was given before.
    fn answer<T>(self, give: impl FnOnce(&mut Answers) -> T) -> Self {
        let _ = give(&mut self.state.borrow_mut().answers);
        self
    }
}

impl Debug for Answers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Answers").finish_non_exhaustive()
    }
}
