//! Locations of agentd's files (docs/internals/files.md), and the checks that other users cannot change them.

use std::io;
use std::path::{Path, PathBuf};

use agentd_api::SessionId;

use agentd_config::Sources;
use agentd_directory::{Link, PrivateError};

/// The directories of a daemon.
#[derive(Debug, Clone)]
pub struct Directories {
    /// Directory of sockets and files that exist while a daemon or a session runs.
    pub runtime: PathBuf,
    /// Directory of persistent state: sessions, keys and the log.
    pub state: PathBuf,
    /// Directory of files that can be created again: compiled plugins and snapshots.
    pub cache: PathBuf,
    /// Configuration directory of the user.
    pub config: PathBuf,
    /// Configuration directory of the administrator.
    pub system_config: PathBuf,
}

/// Directories that the command line sets. `None` selects the default.
#[derive(Debug, Clone, Default)]
pub struct DirectoryOptions {
    /// Runtime directory.
    pub runtime: Option<PathBuf>,
    /// State directory.
    pub state: Option<PathBuf>,
    /// Cache directory.
    pub cache: Option<PathBuf>,
    /// Configuration directory of the user.
    pub config: Option<PathBuf>,
    /// Configuration directory of the administrator.
    pub system_config: Option<PathBuf>,
}

/// Default configuration directory of the administrator.
const SYSTEM_CONFIG: &str = "/etc/agentd";

/// Reason why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The directory cannot be created, or its metadata cannot be read or changed.
    #[error("cannot create the directory {path:?}")]
    Make { path: PathBuf, source: io::Error },
    /// The directory belongs to another user.
    #[error(
        "the directory {path:?} belongs to user {owner}, not to you (user {uid}); remove it or choose another directory"
    )]
    Owner { path: PathBuf, owner: u32, uid: u32 },
    /// Neither `HOME` nor the user database names the home directory.
    #[error("cannot find your home directory; set HOME, or the directory in the user database")]
    NoHome,
}

impl Directories {
    /// Determines the directories from the command line, else from systemd's variables (systemd.exec(5)), else by the
    /// XDG Base Directory Specification.
    pub fn find(places: &DirectoryOptions) -> Result<Self, DirectoryError> {
        let uid = nix::unistd::getuid().as_raw();
        let variable = |name: &str| std::env::var_os(name);
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || {
            absolute("HOME")
                .or_else(|| nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.dir))
                .ok_or(DirectoryError::NoHome)
        };
        let place = |asked: &Option<PathBuf>, systemd: &str, xdg: &str, below_home: &str| match asked {
            Some(path) => Ok(path.clone()),
            None => match absolute(systemd) {
                Some(path) => Ok(path),
                None => Ok(match absolute(xdg) {
                    Some(path) => path,
                    None => home()?.join(below_home),
                }
                .join("agentd")),
            },
        };
        Ok(Self {
            runtime: match &places.runtime {
                Some(path) => path.clone(),
                None => agentd_api::paths::runtime_directory(variable, uid, Path::exists),
            },
            state: place(&places.state, "STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state")?,
            cache: place(&places.cache, "CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache")?,
            config: place(&places.config, "CONFIGURATION_DIRECTORY", "XDG_CONFIG_HOME", ".config")?,
            system_config: places.system_config.clone().unwrap_or_else(|| SYSTEM_CONFIG.into()),
        })
    }

    /// Determines the directories and creates them.
    pub fn find_and_create(places: &DirectoryOptions) -> Result<Self, DirectoryError> {
        let directories = Self::find(places)?;
        for path in [&directories.runtime, &directories.state, &directories.cache, &directories.sessions()] {
            make_private(path)?;
        }
        Ok(directories)
    }

    /// Returns the locations of the configuration. `named` replaces the user's file.
    pub fn sources(&self, named: Option<PathBuf>) -> Sources {
        Sources {
            system: self.system_config.clone(),
            named: named.is_some(),
            user: named.unwrap_or_else(|| self.config.join("agentd.toml")),
        }
    }

    /// Returns the directory that contains the sessions' directories.
    pub fn sessions(&self) -> PathBuf {
        self.state.join("sessions")
    }

    /// Returns the directory with the stored files of a session.
    pub fn session(&self, id: &SessionId) -> PathBuf {
        self.sessions().join(id.as_str())
    }

    /// Returns the directory with the files of a running session.
    pub fn session_runtime(&self, id: &SessionId) -> PathBuf {
        self.runtime.join(id.as_str())
    }

    /// Returns the directory that contains the workspaces of sessions.
    pub fn workspaces(&self) -> PathBuf {
        self.state.join("workspaces")
    }

    /// Returns the session's own workspace.
    pub fn workspace(&self, id: &SessionId) -> PathBuf {
        self.workspaces().join(id.as_str())
    }

    /// Returns the path of the socket of a session's keeper.
    pub fn keeper_socket(&self, id: &SessionId) -> PathBuf {
        self.session_runtime(id).join("keeper.sock")
    }

    /// Returns the directory with the files that plugins provide to the session's agent.
    pub fn session_files(&self, id: &SessionId) -> PathBuf {
        self.session_runtime(id).join("files")
    }

    /// Returns the directory that is visible inside a guarded session. It contains the socket of the session's
    /// guests.
    pub fn session_guest(&self, id: &SessionId) -> PathBuf {
        self.session_runtime(id).join("guest")
    }

    /// Returns the path of the control socket for a guarded session.
    pub fn guest_socket(&self, id: &SessionId) -> PathBuf {
        self.session_guest(id).join(agentd_api::paths::CONTROL_SOCKET)
    }

    /// Returns the path of the control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.runtime.join(agentd_api::paths::CONTROL_SOCKET)
    }

    /// Returns the directory of compiled plugins.
    pub fn compiled_plugins(&self) -> PathBuf {
        self.cache.join("plugins")
    }

    /// Returns the directory with the environments of login shells.
    pub fn snapshots(&self) -> PathBuf {
        self.cache.join("snapshots")
    }

    /// Returns the directory with the initial environments that sessions of one directory share.
    pub fn shared_snapshots(&self) -> PathBuf {
        self.state.join("snapshots")
    }

    /// Returns the directory of schedules.
    pub fn schedules(&self) -> PathBuf {
        self.state.join("schedules")
    }

    /// Returns the directory with the captured environments of schedules.
    pub fn schedule_environments(&self) -> PathBuf {
        self.schedules().join("environments")
    }

    /// Returns the directory with the positions of hooks.
    pub fn hooks(&self) -> PathBuf {
        self.state.join("hooks")
    }

    /// Returns the directory with the words in the names of looks on places.
    pub fn looks(&self) -> PathBuf {
        self.state.join("looks")
    }

    /// Returns the path of the log file.
    pub fn log_file(&self) -> PathBuf {
        self.state.join("agentd.log")
    }
}

/// Maximum number of attempts to create a directory that another process removes at the same time.
const TRIES: u32 = 100;

/// Creates a directory that only its owner can enter, and checks that it belongs to this user. In `/tmp` any user
/// could have created the directory.
pub fn make_private(path: &Path) -> Result<(), DirectoryError> {
    for _ in 1..TRIES {
        match make_once(path) {
            Err(DirectoryError::Make { source, .. }) if is_removed_meanwhile(&source) => std::thread::yield_now(),
            made => return made,
        }
    }
    make_once(path)
}

/// Reports whether the error can result from a removal by another process.
fn is_removed_meanwhile(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists)
}

fn make_once(path: &Path) -> Result<(), DirectoryError> {
    agentd_directory::make_private(path, Link::Accept).map_err(|error| match error {
        PrivateError::Io(source) => DirectoryError::Make { path: path.to_owned(), source },
        PrivateError::Owner { owner, uid } => DirectoryError::Owner { path: path.to_owned(), owner, uid },
    })
}
