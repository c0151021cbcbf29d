//! The control socket: handed over by a service manager, or else created in the runtime directory.
//!
//! The socket's file can disappear while the socket lives: a runtime directory is cleared, or removed at a logout.
//! New clients could then not connect. So a thread checks every second whether the path still leads to this socket
//! ([`SocketFile`]). If it does not, a second socket is created at the path; clients of the first are still
//! accepted. A path that leads to another living daemon is left alone.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net as blocking;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentd_keeper::hold::identity;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use agentd_api::chain;
use agentd_host::directories::{DirectoryError, make_private};
use agentd_host::platform;

/// Interval between two checks of the path.
const LOOK: Duration = Duration::from_secs(1);

/// Number of attempts to create the socket at the start, in case its directory is being removed. Below, the pause
/// between them.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Device and inode of a file.
pub(super) type Identity = (u64, u64);

/// The listening socket.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    /// The former socket without a file. Clients may have connected to it.
    before: Option<UnixListener>,
    replacement: mpsc::Receiver<UnixListener>,
    file_state: Arc<Mutex<SocketFile>>,
}

/// State of the socket's file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// The file that leads to the socket, if it exists.
    file: Option<Identity>,
    /// Whether agentd created the socket, and so removes its file.
    is_own: bool,
    /// Whether a service manager listens on a socket that no path leads to.
    is_lost: bool,
    trouble: Option<String>,
}

/// State of the control socket, for the status line.
#[derive(Debug, Clone)]
pub struct SocketState(Arc<Mutex<SocketFile>>);

impl SocketState {
    /// Returns a text about the problem of the socket, if there is one.
    pub fn trouble(&self) -> Option<String> {
        let file_state = lock(&self.0);
        let lost = || {
            file_state.is_lost.then(|| {
                format!(
                    "the control socket was lost and created again; the service manager cannot start agentd by \
                     it until `{}`",
                    remedy()
                )
            })
        };
        file_state.trouble.clone().or_else(lost)
    }
}

/// Returns the command after which the service manager listens on the path again.
fn remedy() -> String {
    let unit = platform::own_unit().unwrap_or_else(|| "agentd.service".to_owned());
    let name = unit.strip_suffix(".service").unwrap_or(&unit);
    let user = if std::env::var_os("MANAGERPID").is_some() { " --user" } else { "" };
    format!("systemctl{user} restart {name}.socket {name}.service")
}

#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("another agentd answers on {path:?}; `agentctl version` shows it")]
    Taken { path: PathBuf },
    #[error("cannot create the socket {path:?}: a file that is not a socket has this path")]
    NotASocket { path: PathBuf },
    #[error(
        "the path of the socket {path:?} has {length} bytes, but the limit is {} (unix(7)); set \
         XDG_RUNTIME_DIR or --runtime-dir to a shorter path",
        platform::SOCKET_PATH_MAX
    )]
    TooLong { path: PathBuf, length: usize },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot listen on {path:?}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot use the socket that the service manager handed over")]
    HandedOver(#[source] io::Error),
}

impl Socket {
    /// Opens the socket that systemd or launchd handed over, or else creates a socket at `path`.
    pub(super) fn open(path: &Path, handed_over: Option<OwnedFd>) -> Result<Self, EndpointError> {
        let (announce, replacement) = mpsc::channel(1);
        let new = |listener, before, file_state| {
            let file_state = Arc::new(Mutex::new(file_state));
            let (watched, runtime) = (Arc::clone(&file_state), tokio::runtime::Handle::current());
            let watching = std::thread::Builder::new().name("agentd-socket".to_owned());
            if let Err(error) = watching.spawn(move || watch(&watched, &announce, &runtime)) {
                tracing::error!(%error, "cannot start the thread that watches the control socket's file");
            }
            Self { listener, before, replacement, file_state }
        };
        let Some(descriptor) = handed_over else {
            let (listener, file) = create_at_start(path)?;
            let file_state =
                SocketFile { path: path.to_owned(), file: Some(file), is_own: true, is_lost: false, trouble: None };
            return Ok(new(listener, None, file_state));
        };
        let given = blocking::UnixListener::from(descriptor);
        let path = given.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
        // A socket without a path cannot lose it.
        let file = path.as_deref().map(|path| leads_to(path, &given));
        let listener = listening(given).map_err(EndpointError::HandedOver)?;
        let mut file_state =
            SocketFile { path: path.unwrap_or_default(), file: None, is_own: false, is_lost: false, trouble: None };
        match file {
            Some(None) => {
                // No other daemon is started by this socket any more, so clients must be able to reach this one at
                // once.
                let created = create(&file_state.path);
                Ok(match file_state.note_created(created) {
                    Some(again) => new(again, Some(listener), file_state),
                    None => new(listener, None, file_state),
                })
            }
            file => {
                file_state.file = file.flatten();
                Ok(new(listener, None, file_state))
            }
        }
    }

    pub(super) fn state(&self) -> SocketState {
        SocketState(Arc::clone(&self.file_state))
    }

    /// Accepts the next connection, on the present or on the former socket.
    pub(super) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            let before = async {
                match &self.before {
                    Some(before) => before.accept().await,
                    None => std::future::pending().await,
                }
            };
            let accepted = tokio::select! {
                Some(listener) = self.replacement.recv() => {
                    self.before = Some(std::mem::replace(&mut self.listener, listener));
                    continue;
                }
                accepted = self.listener.accept() => accepted,
                accepted = before => accepted,
            };
            return accepted.map(|(stream, _)| stream);
        }
    }

    /// Stops listening. Unless the next daemon has the socket, waiting connections are passed to `let_in`.
    pub(super) fn close(self, mut let_in: impl FnMut(UnixStream)) {
        let is_own = {
            let mut file_state = lock(&self.file_state);
            // Remove only our own file: another daemon may have the path already.
            if file_state.is_own && identity(&file_state.path) == file_state.file {
                let _ = std::fs::remove_file(&file_state.path);
            }
            // The thread stops watching when the path is empty.
            file_state.file = None;
            std::mem::take(&mut file_state.path);
            file_state.is_own
        };
        if !is_own {
            return;
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

impl SocketFile {
    /// Notes the result of creating the socket again. Returns the new listener, or logs a new error.
    fn note_created(&mut self, created: Result<(UnixListener, Identity), EndpointError>) -> Option<UnixListener> {
        match created.map_err(|error| chain(&error)) {
            Ok((listener, file)) => {
                self.is_lost |= !self.is_own;
                (self.file, self.is_own, self.trouble) = (Some(file), true, None);
                tracing::warn!(path = %self.path.display(), "the control socket's file was gone; created it again");
                if self.is_lost {
                    tracing::warn!("the service manager can start agentd by its socket again after `{}`", remedy());
                }
                Some(listener)
            }
            Err(error) => {
                let trouble = format!("the control socket is gone and cannot be created again: {error}");
                if self.trouble.as_ref() != Some(&trouble) {
                    tracing::error!("{trouble}; retrying every second");
                }
                self.trouble = Some(trouble);
                None
            }
        }
    }
}

/// Watches the socket's file until the socket is closed. It has its own thread, since the file system and the process
/// behind the path may be slow. A task that used a pool thread every second would keep all idle pool threads alive.
fn watch(file_state: &Mutex<SocketFile>, replacement: &mpsc::Sender<UnixListener>, runtime: &tokio::runtime::Handle) {
    while !replacement.is_closed() {
        std::thread::sleep(LOOK);
        // The file system may be slow and requests wait for this lock, so do nothing else under it.
        let (path, file) = {
            let file_state = lock(file_state);
            (file_state.path.clone(), file_state.file)
        };
        if path.as_os_str().is_empty() || (file.is_some() && identity(&path) == file) {
            continue;
        }
        let created = {
            let _entered = runtime.enter();
            create(&path)
        };
        let mut file_state = lock(file_state);
        if file_state.path.as_os_str().is_empty() {
            // The socket was closed meanwhile.
            if let Ok((_, file)) = created
                && identity(&path) == Some(file)
            {
                let _ = std::fs::remove_file(&path);
            }
            return;
        }
        let created = file_state.note_created(created);
        drop(file_state);
        if created.is_some_and(|listener| replacement.blocking_send(listener).is_err()) {
            return;
        }
    }
}

fn lock(file_state: &Mutex<SocketFile>) -> std::sync::MutexGuard<'_, SocketFile> {
    // No code under this lock can leave the value inconsistent.
    file_state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the file at the path if it leads to this listener: the process that answers there must be the
/// process that called listen.
///
/// With a full queue, a connection would wait for this process itself. The file is then taken for this listener's.
fn leads_to(path: &Path, listener: &blocking::UnixListener) -> Option<Identity> {
    let file = identity(path)?;
    match connect_at_once(path) {
        Ok(there) => platform::is_answered_by(&there, listener).then_some(file),
        Err(Errno::EAGAIN) => Some(file),
        Err(_) => None,
    }
}

/// Connects without waiting: EAGAIN means that the queue is full (unix(7)).
fn connect_at_once(path: &Path) -> Result<blocking::UnixStream, Errno> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket.into())
}

/// Creates the socket like [`create`], and retries if its directory is removed at the same moment. A running
/// daemon would likewise create its socket again.
fn create_at_start(path: &Path) -> Result<(UnixListener, Identity), EndpointError> {
    for _ in 1..TRIES {
        match create(path) {
            Err(EndpointError::Listen { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
    create(path)
}

/// Creates a socket at the path, and its directory if necessary.
fn create(path: &Path) -> Result<(UnixListener, Identity), EndpointError> {
    make_private(path.parent().unwrap_or_else(|| Path::new("/")))?;
    let failed = |source| EndpointError::Listen { path: path.to_owned(), source };
    let listener = listen(path)?;
    let file = identity(path).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    Ok((listening(listener).map_err(failed)?, file))
}

fn listening(listener: blocking::UnixListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Binds and listens at `path`. Removes the file of a dead daemon's socket first.
pub fn listen(path: &Path) -> Result<blocking::UnixListener, EndpointError> {
    clear(path)?;
    let failed = |source| EndpointError::Listen { path: path.to_owned(), source };
    let listener = blocking::UnixListener::bind(path).map_err(failed)?;
    // The directory has mode 0700; the mode of the socket is for readers who look only at the socket.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Removes the file of a dead daemon's socket. Any other file at the path is an error.
pub(super) fn clear(path: &Path) -> Result<(), EndpointError> {
    let length = path.as_os_str().len();
    if length > platform::SOCKET_PATH_MAX {
        return Err(EndpointError::TooLong { path: path.to_owned(), length });
    }
    let failed = |source| EndpointError::Listen { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(EndpointError::NotASocket { path: path.to_owned() });
        }
        Ok(metadata) => match blocking::UnixStream::connect(path) {
            // A killed daemon left the file. The lock of the state directory excludes another daemon that is just
            // starting.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                remove_stale(path, (metadata.dev(), metadata.ino())).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // After any other error a daemon may be alive.
            Ok(_) | Err(_) => return Err(EndpointError::Taken { path: path.to_owned() }),
        },
        Err(_) => {}
    }
    Ok(())
}

/// Removes the file of a socket without a listener. If another daemon takes the path at that moment, its file is
/// put back.
fn remove_stale(path: &Path, stale: Identity) -> io::Result<()> {
    let aside = path.with_extension(format!("stale-{}", std::process::id()));
    match std::fs::rename(path, &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        moved => moved?,
    }
    let is_stale = identity(&aside) == Some(stale);
    if !is_stale {
        // This fails if a third daemon has the path already.
        let _ = std::fs::hard_link(&aside, path);
    }
    std::fs::remove_file(&aside)?;
    if is_stale { Ok(()) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_with_a_full_queue_is_checked_without_waiting() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("control.sock");
        let listener = blocking::UnixListener::bind(&path).unwrap();
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match connect_at_once(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        // macOS refuses a connection when the queue is full.
        assert!([Errno::EAGAIN, Errno::ECONNREFUSED].contains(&full), "{full}");
        assert_eq!(leads_to(&path, &listener), identity(&path).filter(|_| full == Errno::EAGAIN));
        for _ in &waiting {
            listener.accept().unwrap();
        }
        assert_eq!(leads_to(&path, &listener), identity(&path));
    }

    #[tokio::test]
    async fn a_socket_is_created_although_its_directory_is_removed_at_the_same_moment() {
        let root = tempfile::tempdir().unwrap();
        let (directory, (ended, is_ended)) = (root.path().join("run"), std::sync::mpsc::channel::<()>());
        let to_remove = directory.clone();
        let removing = std::thread::spawn(move || {
            let mut times = 0;
            while is_ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) && times < 50 {
                times += u32::from(std::fs::remove_dir_all(&to_remove).is_ok());
            }
        });
        // The first directory does not exist; later ones are removed while the socket is created.
        for _ in 0..20 {
            Socket::open(&directory.join("control.sock"), None).unwrap().close(drop);
        }
        drop(ended);
        removing.join().unwrap();
    }

    #[test]
    fn a_stale_file_is_removed_and_the_file_of_a_living_daemon_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        drop(listen(&path).unwrap());
        let stale = identity(&path).unwrap();
        // During the check, another daemon took the path.
        std::fs::remove_file(&path).unwrap();
        let other = blocking::UnixListener::bind(&path).unwrap();
        let file = identity(&path);
        if file == Some(stale) {
            // The file system reused the inode number at once, so the two files cannot be distinguished.
            return;
        }
        assert_eq!(remove_stale(&path, stale).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(identity(&path), file, "its file is unchanged");
        assert!(matches!(listen(&path), Err(EndpointError::Taken { .. })));
        drop(other);
        listen(&path).unwrap();
    }
}
