//! What the host does for a plugin during a call, in types that know nothing of WebAssembly; the daemon implements it.
//!
//! What is asked here was compared with the plugin's grant before, as far as a name can tell. Where the machine has a say in what a
//! name means (a symbolic link, a directory's real place), the service asks the [`Allowed`] that it is given.

use std::time::{Duration, Instant};

use crate::call::{Failure, Level};

/// Environment variables: names, and values that are bytes.
pub type Variables = Vec<(String, Vec<u8>)>;

/// Whether the resolved path is within the grant.
pub type Allowed<'a> = &'a (dyn Fn(&str) -> bool + Send + Sync);

/// A script that was sourced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sourced {
    /// The file, with placeholders and symbolic links resolved.
    pub path: String,
    /// The whole environment after the script.
    pub environment: Variables,
}

/// Where a program that a plugin runs finds others, unless the plugin was granted to say something else.
pub const COMMAND_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// A program to be run.
#[derive(Clone, PartialEq, Eq)]
pub struct Invocation {
    /// An absolute path, or a name without a slash.
    pub program: String,
    pub arguments: Vec<String>,
    /// All of its environment.
    pub environment: Variables,
    /// `{cwd}`, `{session}`, `{config}`, or none for `/`.
    pub directory: Option<String>,
    pub input: Vec<u8>,
}

impl std::fmt::Debug for Invocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments, input and values may be secrets.
        f.debug_struct("Invocation").field("program", &self.program).finish_non_exhaustive()
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Exited(u8),
    Signalled(u8),
}

/// A program that ran to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    pub ending: Ending,
    pub output: Vec<u8>,
    /// The beginning of its standard error.
    pub errors: Vec<u8>,
}

/// The most bytes of a program's standard output, and of a file; more is [`Failure::TooLarge`].
pub const CONTENT: usize = 1 << 20;
/// The most bytes of a program's standard error; what is more is left out.
pub const ERRORS: usize = 64 << 10;
/// The most names of a directory; more is [`Failure::TooLarge`].
pub const ENTRIES: usize = 10_000;
/// The most bytes that one step of an exchange waits for.
pub const RECEIVE: u32 = 64 << 10;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Other,
}

/// What can be said of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// With everything resolved.
    pub path: String,
    pub kind: FileKind,
    /// Bytes; of a directory 0.
    pub size: u64,
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub modified: u64,
}

/// Why nothing came over the network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkProblem {
    #[error("{0}")]
    NoSuchHost(String),
    #[error("{0}")]
    NotResolved(String),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    TimedOut(String),
    #[error(transparent)]
    Other(#[from] Failure),
}

/// One thing that is said to a peer, and what is waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    pub send: Vec<u8>,
    /// Bytes, at most [`RECEIVE`]; 0 to wait for none.
    pub receive: u32,
    /// Fewer are enough once these came; empty for none.
    pub until: Vec<u8>,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeEnding {
    Complete,
    Closed,
    TimedOut,
}

/// An exchange, as far as it got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchanged {
    /// The address that was connected to.
    pub address: String,
    /// Until it was connected.
    pub connected: Duration,
    /// What came, step by step.
    pub received: Vec<Vec<u8>>,
    pub ending: ExchangeEnding,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub up: bool,
    /// Whether it has a carrier.
    pub running: bool,
    pub loopback: bool,
    /// With their prefix.
    pub addresses: Vec<String>,
}

/// An entry of the main routing table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// With its prefix.
    pub destination: String,
    pub gateway: Option<String>,
    /// The interface's name.
    pub via: String,
    pub metric: u32,
}

/// Which way packets to an address go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// The interface's name, where it can be told.
    pub via: Option<String>,
    pub source: String,
}

/// Where names are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameService {
    pub servers: Vec<String>,
    pub search: Vec<String>,
}

/// An entry of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub path: String,
    pub source: String,
    pub kind: String,
    /// Those of the mount before those of the file system.
    pub options: Vec<String>,
    /// `major:minor`.
    pub device: String,
}

/// What came of a look at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// The `major:minor` of its device.
    Answers(String),
    Hangs,
    Error(String),
}

fn not_here<T>(what: &str) -> Result<T, Failure> {
    Err(Failure::Unavailable(format!("there is no {what} here")))
}

/// What the host does for a plugin during a call. A host that does not do a thing says so.
///
/// A future that is still running at `deadline` is dropped, and whatever it started must end with it.
#[async_trait::async_trait]
pub trait Services: Send + Sync {
    /// A message of the plugin: already limited in number and length, and free of control characters.
    fn log(&self, level: Level, message: &str);

    /// The environment of the user's login shell.
    async fn login_environment(&self, deadline: Instant) -> Result<Variables, Failure> {
        let _ = deadline;
        not_here("login shell")
    }

    /// What it does on the machine; without it, nothing.
    fn machine(&self) -> &dyn MachineServices {
        &NoMachine
    }

    /// Where these scripts are, in the same order; none for what is not there.
    async fn locate_scripts(&self, paths: Vec<String>, deadline: Instant) -> Result<Vec<Option<String>>, Failure> {
        let _ = (paths, deadline);
        not_here("script")
    }

    /// Sources the script at `path`, placeholders and all, with nothing but `environment`.
    async fn source_script(&self, path: &str, environment: Variables, deadline: Instant) -> Result<Sourced, Failure> {
        let _ = (path, environment, deadline);
        not_here("script")
    }

    /// The value of a secret that the configuration names.
    async fn read_secret(&self, name: &str, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let _ = (name, deadline);
        not_here("secret")
    }
}

/// What the host does on the machine for a plugin, whoever the plugin is called for. As with [`Services`], what is not done says so, and a
/// future is dropped at `deadline`.
#[async_trait::async_trait]
pub trait MachineServices: Send + Sync {
    /// Runs a program to its end. `allowed` says whether its resolved path may be run with these arguments.
    async fn run_command(
        &self,
        invocation: Invocation,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<Completed, Failure> {
        let _ = (invocation, allowed, deadline);
        not_here("program")
    }

    async fn inspect_file(&self, path: &str, allowed: Allowed<'_>, deadline: Instant) -> Result<Metadata, Failure> {
        let _ = (path, allowed, deadline);
        not_here("file")
    }

    /// At most [`CONTENT`] bytes.
    async fn read_file(&self, path: &str, allowed: Allowed<'_>, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let _ = (path, allowed, deadline);
        not_here("file")
    }

    /// The names in a directory, sorted, at most [`ENTRIES`].
    async fn list_directory(
        &self,
        path: &str,
        allowed: Allowed<'_>,
        deadline: Instant,
    ) -> Result<Vec<String>, Failure> {
        let _ = (path, allowed, deadline);
        not_here("directory")
    }

    /// The addresses of a host.
    async fn resolve_host(&self, host: &str, deadline: Instant) -> Result<Vec<String>, NetworkProblem> {
        let _ = (host, deadline);
        Ok(not_here("network")?)
    }

    /// Connects, makes the steps, closes.
    async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: Vec<Step>,
        deadline: Instant,
    ) -> Result<Exchanged, NetworkProblem> {
        let _ = (host, port, steps, deadline);
        Ok(not_here("network")?)
    }

    async fn interfaces(&self, deadline: Instant) -> Result<Vec<Interface>, Failure> {
        let _ = deadline;
        not_here("network")
    }

    async fn routes(&self, deadline: Instant) -> Result<Vec<Route>, Failure> {
        let _ = deadline;
        not_here("network")
    }

    async fn way_to(&self, address: &str, deadline: Instant) -> Result<Option<Way>, Failure> {
        let _ = (address, deadline);
        not_here("network")
    }

    async fn name_service(&self, deadline: Instant) -> Result<NameService, Failure> {
        let _ = deadline;
        not_here("network")
    }

    /// The whole mount table; what is not granted is left out by who asks.
    async fn mounts(&self, deadline: Instant) -> Result<Vec<Mounted>, Failure> {
        let _ = deadline;
        not_here("mount table")
    }

    /// Looks at a path, for `time` at most.
    async fn probe_mount(&self, path: &str, time: Duration, deadline: Instant) -> Result<Liveness, Failure> {
        let _ = (path, time, deadline);
        not_here("mount table")
    }

    /// How many processes of the name run.
    async fn processes(&self, name: &str, deadline: Instant) -> Result<u32, Failure> {
        let _ = (name, deadline);
        not_here("process table")
    }
}

/// Of a host that does nothing there.
struct NoMachine;

impl MachineServices for NoMachine {}
