//! The program `agentd-keeper`, whose roles `run` and `look` do agentd's work: on this machine, or on a place.
//!
//! On a place, `agentd-keeper place` runs here and carries stdin and stdout of the role. This module does not know
//! engines: a [`PlaceLine`] has the client's whole command line.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use agentd_api::ByteString;
use agentd_keeper::protocol::{PlaceLine, PlaceRun, PlacedProgram};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, Command};

/// Maximum number of bytes of a message about a place.
const LONGEST: u64 = 4 << 10;

/// The program `agentd-keeper` for roles that a process of its own performs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct KeeperProgram {
    path: Arc<Path>,
    line: Option<Line>,
}

/// The way to a place. Each role has a line of its own, since an engine tells its programs apart by name.
#[derive(Clone)]
struct Line {
    place: Arc<str>,
    next: Arc<dyn Fn() -> io::Result<PlaceLine> + Send + Sync>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({})", self.place)
    }
}

/// A started role.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) child: Child,
    /// Bytes that precede the first message on its stdin.
    pub(crate) preamble: Vec<u8>,
}

impl KeeperProgram {
    /// Returns the program on this machine.
    pub fn here(path: PathBuf) -> Self {
        Self { path: path.into(), line: None }
    }

    /// Returns the program on a place. `path` is the program on this machine, which carries the role's messages, and
    /// `line` makes the line of one role.
    pub fn at(path: PathBuf, place: &str, line: impl Fn() -> io::Result<PlaceLine> + Send + Sync + 'static) -> Self {
        Self { path: path.into(), line: Some(Line { place: place.into(), next: Arc::new(line) }) }
    }

    /// Returns the path of the program on this machine.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the place, or `None` for this machine.
    pub fn place(&self) -> Option<&str> {
        self.line.as_ref().map(|line| &*line.place)
    }

    /// Starts a role, with pipes as its stdin and stdout.
    pub(crate) fn start(&self, role: &[&str]) -> io::Result<Role> {
        let mut command = Command::new(&*self.path);
        let preamble = match &self.line {
            None => {
                command.args(role).stderr(Stdio::null());
                Vec::new()
            }
            Some(line) => {
                command.arg("place").stderr(Stdio::piped());
                let program = PlacedProgram {
                    args: role.iter().map(|word| ByteString::from(*word)).collect(),
                    directory: "/".into(),
                    ..PlacedProgram::default()
                };
                let run = PlaceRun { line: (line.next)()?, program };
                agentd_keeper::frame::encode(&run).map_err(io::Error::other)?
            }
        };
        let child = command.env_clear().current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        Ok(Role { child, preamble })
    }

    /// Explains why a role has ended without its answer. On a place, the last message of the carrier is the reason.
    pub(crate) async fn explain(&self, stderr: Option<ChildStderr>, error: &str) -> io::Error {
        let mut text = Vec::new();
        if let Some(stderr) = stderr {
            let _ = stderr.take(LONGEST).read_to_end(&mut text).await;
        }
        let said = String::from_utf8_lossy(&text);
        let reason = said.lines().rev().map(str::trim).find(|line| !line.is_empty());
        io::Error::other(reason.unwrap_or(error).to_owned())
    }
}

impl fmt::Display for KeeperProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place() {
            None => write!(f, "{}", self.path.display()),
            Some(place) => write!(f, "agentd-keeper on place {place:?}"),
        }
    }
}

impl From<PathBuf> for KeeperProgram {
    fn from(path: PathBuf) -> Self {
        Self::here(path)
    }
}
