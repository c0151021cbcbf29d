//! The control socket: the one that a manager handed over, else one of our own in the runtime directory.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net as blocking;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::platform;

/// The listening socket.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    /// The socket's file, where this daemon made it and so takes it away.
    own: Option<Own>,
}

/// A socket's file, by its name and by what cannot be given to another.
#[derive(Debug)]
struct Own {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

/// Device and inode of the file at a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("another agentd answers on {path:?}; `agentctl version` shows it")]
    Taken { path: PathBuf },
    #[error("{path:?} is in the way of the control socket and is not a socket")]
    NotASocket { path: PathBuf },
    #[error(
        "the control socket's path {path:?} has {length} bytes; a socket's path has at most {} (unix(7)). Set XDG_RUNTIME_DIR or --runtime-dir to a shorter one",
        platform::SOCKET_PATH_MAX
    )]
    TooLong { path: PathBuf, length: usize },
    #[error("cannot listen on {path:?}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("the socket handed over by the service manager cannot be used")]
    HandedOver(#[source] io::Error),
}

impl Socket {
    /// The socket that systemd or launchd handed over, else our own at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, EndpointError> {
        let listening = |listener: blocking::UnixListener| {
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        if let Some(descriptor) = platform::activated_socket().map_err(EndpointError::HandedOver)? {
            let listener = listening(descriptor.into()).map_err(EndpointError::HandedOver)?;
            return Ok(Self { listener, own: None });
        }
        let listener = listening(listen(path)?);
        let listener = listener.map_err(|source| EndpointError::Listen { path: path.to_owned(), source })?;
        Ok(Self { listener, own: Some(Own { path: path.to_owned(), identity: identity(path) }) })
    }

    /// Ends the listening. Where no next daemon has the socket, whoever has connected by now is let in.
    pub(super) fn close(self, mut let_in: impl FnMut(UnixStream)) {
        let Some(own) = &self.own else { return };
        // A service manager may have put its own socket in the place of this one.
        if identity(&own.path) == own.identity {
            let _ = std::fs::remove_file(&own.path);
        }
        let Ok(listener) = self.listener.into_std() else { return };
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok()
                && let Ok(stream) = UnixStream::from_std(stream)
            {
                let_in(stream);
            }
        }
    }
}

/// Listens at `path`.
pub(crate) fn listen(path: &Path) -> Result<blocking::UnixListener, EndpointError> {
    let length = path.as_os_str().len();
    if length > platform::SOCKET_PATH_MAX {
        return Err(EndpointError::TooLong { path: path.to_owned(), length });
    }
    let failed = |source| EndpointError::Listen { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(EndpointError::NotASocket { path: path.to_owned() });
        }
        Ok(_) if blocking::UnixStream::connect(path).is_ok() => {
            return Err(EndpointError::Taken { path: path.to_owned() });
        }
        // Left by a daemon that was killed. Whether another is starting at this moment is the state directory's lock's business.
        Ok(_) => std::fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    let listener = blocking::UnixListener::bind(path).map_err(failed)?;
    // The directory is 0700 already; this is for who looks at the socket alone.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}
