//! Operations that the host performs for a plugin during a call. The daemon implements them. The types are
//! independent of WebAssembly.
//!
//! The plugin host has already compared the request with the grant, as far as names can tell. The meaning of a
//! name may depend on the machine (symbolic links, resolved directories). For these cases the service calls the
//! [`PathFilter`] function that it receives.

use std::time::{Duration, Instant};

use crate::call::{Failure, LogLevel};

/// Environment variables as pairs of name and value. Values are bytes.
pub type Variables = Vec<(String, Vec<u8>)>;

/// Reports whether the grant covers a resolved path.
pub type PathFilter<'a> = &'a (dyn Fn(&str) -> bool + Send + Sync);

/// Result of sourcing a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcedScript {
    /// Path of the script with placeholders and symbolic links resolved.
    pub path: String,
    /// The complete environment after the script.
    pub environment: Variables,
}

/// `PATH` of a program that a plugin runs, unless the plugin is granted another one.
pub const COMMAND_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// A program to run.
#[derive(Clone, PartialEq, Eq)]
pub struct Invocation {
    /// An absolute path, or a name without a slash.
    pub program: String,
    /// Arguments without the program's name.
    pub arguments: Vec<String>,
    /// The complete environment of the program.
    pub environment: Variables,
    /// Working directory: `{cwd}`, `{session}`, `{config}`, or `None` for `/`.
    pub directory: Option<String>,
    /// Standard input of the program.
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
pub enum ProgramEnding {
    /// The program exited with this status.
    Exited(u8),
    /// A signal with this number terminated the program.
    Signalled(u8),
}

/// Result of a program that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramResult {
    /// How the program ended.
    pub ending: ProgramEnding,
    /// Standard output.
    pub output: Vec<u8>,
    /// The beginning of standard error, at most [`ERRORS`] bytes.
    pub errors: Vec<u8>,
}

/// Maximum size of a program's standard output and of a file, in bytes. More is [`Failure::TooLarge`].
pub const CONTENT: usize = 1 << 20;
/// Maximum size of a program's standard error in bytes. The rest is dropped.
pub const ERRORS: usize = 64 << 10;
/// Maximum number of names in a directory. More is [`Failure::TooLarge`].
pub const ENTRIES: usize = 10_000;
/// Maximum number of bytes that one step of an exchange receives.
pub const RECEIVE: u32 = 64 << 10;

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Any other type.
    Other,
}

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Path with symbolic links resolved.
    pub path: String,
    /// Type of the file.
    pub kind: FileKind,
    /// Size in bytes. 0 for a directory.
    pub size: u64,
    /// Modification time in milliseconds since 1970-01-01T00:00:00Z.
    pub modified: u64,
}

/// Why a network operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkProblem {
    /// The name does not exist.
    #[error("{0}")]
    NoSuchHost(String),
    /// The name service gave no answer.
    #[error("{0}")]
    NotResolved(String),
    /// The peer refused the connection.
    #[error("{0}")]
    Refused(String),
    /// The peer cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// The operation took too long.
    #[error("{0}")]
    TimedOut(String),
    /// Any other failure.
    #[error(transparent)]
    Other(#[from] Failure),
}

/// One step of an exchange: bytes to send, and bytes to wait for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Bytes to send.
    pub send: Vec<u8>,
    /// Number of bytes to receive, at most [`RECEIVE`]. 0 to receive none.
    pub receive: u32,
    /// Ends the step early once these bytes have been received. Empty to disable.
    pub until: Vec<u8>,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeEnding {
    /// All steps were completed.
    Complete,
    /// The peer closed the connection.
    Closed,
    /// A step took too long.
    TimedOut,
}

/// Result of an exchange, as far as it got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangeResult {
    /// The address of the peer.
    pub address: String,
    /// Time until the connection was established.
    pub connected: Duration,
    /// Bytes received, one entry for each step.
    pub received: Vec<Vec<u8>>,
    /// How the exchange ended.
    pub ending: ExchangeEnding,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Whether the interface is administratively up.
    pub up: bool,
    /// Whether the interface has a carrier.
    pub running: bool,
    /// Whether this is the loopback interface.
    pub loopback: bool,
    /// Addresses with prefix lengths.
    pub addresses: Vec<String>,
}

/// An entry of the main routing table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination address with prefix length.
    pub destination: String,
    /// Address of the gateway, if there is one.
    pub gateway: Option<String>,
    /// Name of the interface.
    pub via: String,
    /// Priority of the route. Lower is preferred.
    pub metric: u32,
}

/// The route that packets to an address take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteTo {
    /// Name of the interface, if known.
    pub via: Option<String>,
    /// Source address.
    pub source: String,
}

/// Configuration of the name service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameService {
    /// Addresses of the name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub search: Vec<String>,
}

/// An entry of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Mount point.
    pub path: String,
    /// Source of the mount, for example a device or `server:/export`.
    pub source: String,
    /// Type of the file system.
    pub kind: String,
    /// Options of the mount, followed by options of the file system.
    pub options: Vec<String>,
    /// Device number as `major:minor`.
    pub device: String,
}

/// Result of probing a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Liveness {
    /// The path responds. Holds its device number as `major:minor`.
    Answers(String),
    /// The path did not respond in time.
    Hangs,
    /// The path responded with an error.
    Error(String),
}

/// Returns the failure of a service that the host does not provide.
fn not_here<T>(what: &str) -> Result<T, Failure> {
    Err(Failure::Unavailable(format!("there is no {what} here")))
}

/// Operations that the host performs for a plugin during a call. The default methods fail with
/// [`Failure::Unavailable`].
///
/// A future that still runs at `deadline` is dropped. Everything that it started must end with it.
#[async_trait::async_trait]
pub trait Services: Send + Sync {
    /// Logs a message of the plugin. Its number and length are already limited, and it has no control
    /// characters.
    fn log(&self, level: LogLevel, message: &str);

    /// Returns the environment of the user's login shell.
    async fn login_environment(&self, deadline: Instant) -> Result<Variables, Failure> {
        let _ = deadline;
        not_here("login shell")
    }

    /// Returns the operations on the machine. By default, all of them fail.
    fn machine(&self) -> &dyn MachineServices {
        &NoMachine
    }

    /// Returns the resolved paths of these scripts in the same order, with `None` for each that does not exist.
    async fn locate_scripts(&self, paths: Vec<String>, deadline: Instant) -> Result<Vec<Option<String>>, Failure> {
        let _ = (paths, deadline);
        not_here("script")
    }

    /// Sources the script at `path`, which may contain placeholders, with exactly this environment.
    async fn source_script(
        &self,
        path: &str,
        environment: Variables,
        deadline: Instant,
    ) -> Result<SourcedScript, Failure> {
        let _ = (path, environment, deadline);
        not_here("script")
    }

    /// Returns the value of a secret that the configuration declares.
    async fn read_secret(&self, name: &str, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let _ = (name, deadline);
        not_here("secret")
    }
}

/// Operations on the machine that do not depend on a session.
///
/// The default methods fail with [`Failure::Unavailable`]. A future that still runs at `deadline` is dropped,
/// and everything that it started must end with it.
#[async_trait::async_trait]
pub trait MachineServices: Send + Sync {
    /// Runs a program to its end. `allowed` reports whether the resolved path may run with these arguments.
    async fn run_command(
        &self,
        invocation: Invocation,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<ProgramResult, Failure> {
        let _ = (invocation, allowed, deadline);
        not_here("program")
    }

    /// Returns the metadata of a file.
    async fn inspect_file(&self, path: &str, allowed: PathFilter<'_>, deadline: Instant) -> Result<Metadata, Failure> {
        let _ = (path, allowed, deadline);
        not_here("file")
    }

    /// Reads a file of at most [`CONTENT`] bytes.
    async fn read_file(&self, path: &str, allowed: PathFilter<'_>, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let _ = (path, allowed, deadline);
        not_here("file")
    }

    /// Returns the names in a directory, sorted, at most [`ENTRIES`].
    async fn list_directory(
        &self,
        path: &str,
        allowed: PathFilter<'_>,
        deadline: Instant,
    ) -> Result<Vec<String>, Failure> {
        let _ = (path, allowed, deadline);
        not_here("directory")
    }

    /// Resolves a host name to addresses.
    async fn resolve_host(&self, host: &str, deadline: Instant) -> Result<Vec<String>, NetworkProblem> {
        let _ = (host, deadline);
        Ok(not_here("network")?)
    }

    /// Connects to a peer, performs the steps in order and closes the connection.
    async fn exchange(
        &self,
        host: &str,
        port: u16,
        steps: Vec<Step>,
        deadline: Instant,
    ) -> Result<ExchangeResult, NetworkProblem> {
        let _ = (host, port, steps, deadline);
        Ok(not_here("network")?)
    }

    /// Returns the network interfaces.
    async fn interfaces(&self, deadline: Instant) -> Result<Vec<Interface>, Failure> {
        let _ = deadline;
        not_here("network")
    }

    /// Returns the main routing table.
    async fn routes(&self, deadline: Instant) -> Result<Vec<Route>, Failure> {
        let _ = deadline;
        not_here("network")
    }

    /// Returns the route to an address, or `None` if the address is unreachable.
    async fn way_to(&self, address: &str, deadline: Instant) -> Result<Option<RouteTo>, Failure> {
        let _ = (address, deadline);
        not_here("network")
    }

    /// Returns the configuration of the name service.
    async fn name_service(&self, deadline: Instant) -> Result<NameService, Failure> {
        let _ = deadline;
        not_here("network")
    }

    /// Returns the complete mount table. The caller removes entries that are not granted.
    async fn mounts(&self, deadline: Instant) -> Result<Vec<MountEntry>, Failure> {
        let _ = deadline;
        not_here("mount table")
    }

    /// Probes whether a path responds within `time`.
    async fn probe_mount(&self, path: &str, time: Duration, deadline: Instant) -> Result<Liveness, Failure> {
        let _ = (path, time, deadline);
        not_here("mount table")
    }

    /// Returns the number of running processes with this name.
    async fn processes(&self, name: &str, deadline: Instant) -> Result<u32, Failure> {
        let _ = (name, deadline);
        not_here("process table")
    }
}

/// A machine on which every operation fails.
struct NoMachine;

impl MachineServices for NoMachine {}
