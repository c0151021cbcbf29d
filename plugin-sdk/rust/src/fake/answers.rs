//! The answers that a test gives for each capability.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use super::Host;
use crate::command::{Completed, Ending, Invocation};
use crate::file::Kind;
use crate::mount::{Liveness, Mounted};
use crate::network::{self, Exchanged, NameService, NetworkInterface, Problem, Route, Step, Way};
use crate::{Failure, Variable};

/// Content of a file or secret, or the failure of reading it.
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

/// Makes the result of a program that ended with this status and output.
pub fn completed(status: u8, output: impl Into<Vec<u8>>, errors: impl Into<Vec<u8>>) -> Completed {
    Completed { ending: Ending::Exited(status), output: output.into(), errors: errors.into() }
}

/// Makes the result of a completed exchange, with the bytes that each step received.
pub fn exchanged<B: Into<Vec<u8>>>(address: &str, received: impl IntoIterator<Item = B>) -> Exchanged {
    Exchanged {
        address: address.to_owned(),
        connected: 1,
        received: received.into_iter().map(Into::into).collect(),
        ending: network::Ending::Complete,
    }
}

/// An environment by name, as a test's script sees and changes it.
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

/// All answers of a test.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) login: Option<Result<Vec<Variable>, Failure>>,
    pub(super) scripts: BTreeMap<String, Script>,
    /// Patterns of paths at which nothing exists.
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
    /// Sets the login shell's environment.
    #[must_use]
    pub fn login<N: Into<String>, V: Into<Vec<u8>>>(self, environment: impl IntoIterator<Item = (N, V)>) -> Self {
        let variables = environment.into_iter().map(|(name, value)| Variable::new(name, value)).collect();
        self.answer(|answers| answers.login = Some(Ok(variables)))
    }

    /// Makes the login shell fail.
    #[must_use]
    pub fn login_fails(self, failure: Failure) -> Self {
        self.answer(|answers| answers.login = Some(Err(failure)))
    }

    /// Adds a script, as a function that changes the environment it receives.
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

    /// Adds a script that exists and that fails or is not sourced by the host.
    #[must_use]
    pub fn script_fails(self, path: &str, failure: Failure) -> Self {
        self.answer_at(path, |answers, path| answers.scripts.insert(path, Box::new(move |_| Err(failure.clone()))))
    }

    /// Declares that no file and no script exists at paths that match a pattern (as in a grant), except those
    /// that the test adds.
    #[must_use]
    pub fn nothing_at(self, pattern: &str) -> Self {
        self.answer_at(pattern, |answers, pattern| answers.nothing.push(pattern))
    }

    /// Adds a program for invocations that match this pattern (as in a grant). If several match, the first one
    /// answers.
    #[must_use]
    pub fn command(
        self,
        pattern: &str,
        program: impl FnMut(&Invocation) -> Result<Completed, Failure> + 'static,
    ) -> Self {
        self.answer(|answers| answers.programs.push((pattern.to_owned(), Box::new(program))))
    }

    /// Adds a program that prints this output and exits with status 0.
    #[must_use]
    pub fn output(self, pattern: &str, output: impl Into<Vec<u8>>) -> Self {
        let output = output.into();
        self.command(pattern, move |_| Ok(completed(0, output.clone(), "")))
    }

    /// Adds a file that was modified at the host's current time, or a file that cannot be read.
    #[must_use]
    pub fn file(self, path: &str, content: impl Into<Content>) -> Self {
        let Content(content) = content.into();
        self.entry(path, Kind::File, content, Vec::new())
    }

    /// Adds a directory with these names.
    #[must_use]
    pub fn directory<N: Into<String>>(self, path: &str, names: impl IntoIterator<Item = N>) -> Self {
        let mut names: Vec<String> = names.into_iter().map(Into::into).collect();
        names.sort();
        self.entry(path, Kind::Directory, Ok(Vec::new()), names)
    }

    /// Sets the addresses of a host name, or the problem of resolving it.
    #[must_use]
    pub fn resolves(self, host: &str, addresses: Result<Vec<String>, Problem>) -> Self {
        self.answer(|answers| answers.hosts.insert(host.to_ascii_lowercase(), addresses))
    }

    /// Adds a server that listens on a port; see [`exchanged`].
    #[must_use]
    pub fn listens(
        self,
        host: &str,
        port: u16,
        listener: impl FnMut(&[Step]) -> Result<Exchanged, Problem> + 'static,
    ) -> Self {
        self.answer(|answers| answers.listeners.insert((host.to_ascii_lowercase(), port), Box::new(listener)))
    }

    /// Sets the machine's network interfaces.
    #[must_use]
    pub fn interfaces(self, interfaces: Vec<NetworkInterface>) -> Self {
        self.answer(|answers| answers.interfaces = Some(interfaces))
    }

    /// Sets the main routing table.
    #[must_use]
    pub fn routes(self, routes: Vec<Route>) -> Self {
        self.answer(|answers| answers.routes = Some(routes))
    }

    /// Sets the route to an address.
    #[must_use]
    pub fn way_to(self, address: &str, way: Option<Way>) -> Self {
        self.answer(|answers| answers.ways.insert(address.to_owned(), way))
    }

    /// Sets the name servers and search domains.
    #[must_use]
    pub fn name_service(self, facts: NameService) -> Self {
        self.answer(|answers| answers.name_service = Some(facts))
    }

    /// Sets the mount table. The plugin gets the entries that its wants and grants cover.
    #[must_use]
    pub fn mounts(self, mounts: Vec<Mounted>) -> Self {
        self.answer(|answers| answers.mounts = Some(mounts))
    }

    /// Sets the result of probing a path.
    #[must_use]
    pub fn probe(self, path: &str, liveness: Result<Liveness, Failure>) -> Self {
        self.answer_at(path, |answers, path| answers.probes.insert(path, liveness))
    }

    /// Sets the number of running processes with this name.
    #[must_use]
    pub fn running(self, name: &str, count: u32) -> Self {
        self.answer(|answers| answers.processes.insert(name.to_owned(), count))
    }

    /// Sets the value of a secret, or the failure of reading it.
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

    /// Adds an answer for a path, after replacing its placeholder.
    fn answer_at<T>(self, path: &str, give: impl FnOnce(&mut Answers, String) -> T) -> Self {
        let path = self.state.borrow().places.resolve(path);
        self.answer(|answers| give(answers, path))
    }

    /// Adds an answer. A later answer replaces an earlier one.
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
