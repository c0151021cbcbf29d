//! Where everything lies (DESIGN.md section 9), and the checks that it is ours alone.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use agentd_api::SessionId;

use crate::config::Sources;

/// The directories of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Directories {
    pub(crate) runtime: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) cache: PathBuf,
    pub(crate) config: PathBuf,
    /// The administrator's.
    pub(crate) system_config: PathBuf,
}

/// Places asked for on the command line.
#[derive(Debug, Clone, Default)]
pub struct Places {
    pub runtime: Option<PathBuf>,
    pub state: Option<PathBuf>,
    pub cache: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub system_config: Option<PathBuf>,
}

/// Where the administrator's configuration is.
const SYSTEM_CONFIG: &str = "/etc/agentd";

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error("cannot make the directory {path:?}")]
    Make { path: PathBuf, source: io::Error },
    #[error(
        "the directory {path:?} belongs to user {owner}, not to you (user {uid}); remove it or choose another place"
    )]
    Owner { path: PathBuf, owner: u32, uid: u32 },
    #[error("cannot tell where your home directory is: neither HOME nor the user database says")]
    NoHome,
}

impl Directories {
    /// Finds them: what the command line says, else systemd's variables (systemd.exec(5)), else the XDG Base Directory
    /// Specification.
    pub(crate) fn find(places: &Places) -> Result<Self, DirectoryError> {
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

    /// Finds and makes them.
    pub(crate) fn prepare(places: &Places) -> Result<Self, DirectoryError> {
        let directories = Self::find(places)?;
        for path in [&directories.runtime, &directories.state, &directories.cache, &directories.sessions()] {
            make_private(path)?;
        }
        Ok(directories)
    }

    /// Where the configuration is read from; `named` is a file in the place of the user's own.
    pub(crate) fn sources(&self, named: Option<PathBuf>) -> Sources {
        Sources {
            system: self.system_config.clone(),
            named: named.is_some(),
            user: named.unwrap_or_else(|| self.config.join("agentd.toml")),
        }
    }

    pub(crate) fn sessions(&self) -> PathBuf {
        self.state.join("sessions")
    }

    /// What is kept of a session.
    pub(crate) fn session(&self, id: &SessionId) -> PathBuf {
        self.sessions().join(id.as_str())
    }

    /// What a session has while it runs.
    pub(crate) fn session_runtime(&self, id: &SessionId) -> PathBuf {
        self.runtime.join(id.as_str())
    }

    pub(crate) fn keeper_socket(&self, id: &SessionId) -> PathBuf {
        self.session_runtime(id).join("keeper.sock")
    }

    /// What plugins gave the session's agent to read.
    pub(crate) fn session_files(&self, id: &SessionId) -> PathBuf {
        self.session_runtime(id).join("files")
    }

    /// What is there of this directory inside a guarded session: the socket of its guests.
    pub(crate) fn session_guest(&self, id: &SessionId) -> PathBuf {
        self.session_runtime(id).join("guest")
    }

    /// Where a guarded session reaches the control endpoint.
    pub(crate) fn guest_socket(&self, id: &SessionId) -> PathBuf {
        self.session_guest(id).join(agentd_api::paths::CONTROL_SOCKET)
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        self.runtime.join(agentd_api::paths::CONTROL_SOCKET)
    }

    pub(crate) fn compiled_plugins(&self) -> PathBuf {
        self.cache.join("plugins")
    }

    /// What login shells gave.
    pub(crate) fn snapshots(&self) -> PathBuf {
        self.cache.join("snapshots")
    }

    /// What the sessions of one directory begin with in common.
    pub(crate) fn shared_snapshots(&self) -> PathBuf {
        self.state.join("snapshots")
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.state.join("agentd.log")
    }
}

/// How often a directory is made that somebody removes at the same moment.
const TRIES: u32 = 100;

/// A directory that only its owner can enter, and that is ours: `/tmp` lets anybody make one under the name we want.
pub(crate) fn make_private(path: &Path) -> Result<(), DirectoryError> {
    for _ in 1..TRIES {
        match make_once(path) {
            Err(DirectoryError::Make { source, .. }) if is_removed_meanwhile(&source) => std::thread::yield_now(),
            made => return made,
        }
    }
    make_once(path)
}

/// Whether the error may be another process's removal: what was there, or was just made, is not there any more.
fn is_removed_meanwhile(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists)
}

fn make_once(path: &Path) -> Result<(), DirectoryError> {
    let failed = |source| DirectoryError::Make { path: path.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let metadata = std::fs::symlink_metadata(path).map_err(failed)?;
    let uid = nix::unistd::getuid().as_raw();
    if metadata.uid() != uid {
        return Err(DirectoryError::Owner { path: path.to_owned(), owner: metadata.uid(), uid });
    }
    if metadata.mode() & 0o077 != 0 && metadata.is_dir() {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(())
}
