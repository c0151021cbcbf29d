//! The control socket: the one that a manager handed over, else one of our own in the runtime directory.
//!
//! A socket's file can be taken away while the socket lives: a runtime directory is cleared, or goes with a logout. Then nobody can connect
//! any more, and so it is looked each second whether the path still leads here ([`Guard`]). Where it does not, another socket is made at the
//! path, beside the first: whoever has connected to that is still let in. Where another daemon that lives has the path by now, it is left to it.

use std::io;
use std::os::fd::AsRawFd as _;
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

use crate::directories::{DirectoryError, make_private};
use crate::env::chain;
use crate::platform;

/// How often it is looked whether the path leads to the socket.
const LOOK: Duration = Duration::from_secs(1);

/// How often the socket is tried at the start whose directory is removed at the same moment, and how long after one another.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// A file, by device and inode.
type Identity = (u64, u64);

/// The listening socket.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    /// The one before, whose file is gone: somebody may have connected to it.
    before: Option<UnixListener>,
    anew: mpsc::Receiver<UnixListener>,
    guard: Arc<Mutex<Guard>>,
}

/// What is known of the socket's file.
#[derive(Debug)]
struct Guard {
    path: PathBuf,
    /// The file that leads to the socket, where there is one.
    file: Option<Identity>,
    /// We made it, and so take it away.
    is_own: bool,
    /// A manager listens on a socket that no path leads to any more.
    is_lost: bool,
    trouble: Option<String>,
}

/// What is wrong with the control socket, for people; nothing where it is well.
#[derive(Debug, Clone)]
pub(crate) struct SocketState(Arc<Mutex<Guard>>);

impl SocketState {
    pub(crate) fn trouble(&self) -> Option<String> {
        let guard = lock(&self.0);
        let lost = || {
            guard.is_lost.then(|| {
                format!(
                    "the control socket was lost and made anew; the manager does not start agentd by it until `{}`",
                    remedy()
                )
            })
        };
        guard.trouble.clone().or_else(lost)
    }
}

/// What has a manager listen on the path again.
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
    #[error("{path:?} is in the way of the control socket and is not a socket")]
    NotASocket { path: PathBuf },
    #[error(
        "the control socket's path {path:?} has {length} bytes; a socket's path has at most {} (unix(7)). Set XDG_RUNTIME_DIR or --runtime-dir to a shorter one",
        platform::SOCKET_PATH_MAX
    )]
    TooLong { path: PathBuf, length: usize },
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot listen on {path:?}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("the socket handed over by the service manager cannot be used")]
    HandedOver(#[source] io::Error),
}

impl Socket {
    /// The socket that systemd or launchd handed over, else our own at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, EndpointError> {
        let handed_over = platform::activated_socket().map_err(EndpointError::HandedOver)?;
        let (announce, anew) = mpsc::channel(1);
        let new = |listener, before, guard| {
            let guard = Arc::new(Mutex::new(guard));
            let (watched, runtime) = (Arc::clone(&guard), tokio::runtime::Handle::current());
            let watching = std::thread::Builder::new().name("agentd-socket".to_owned());
            if let Err(error) = watching.spawn(move || watch(&watched, &announce, &runtime)) {
                tracing::error!(%error, "nobody looks after the control socket's file: there is no thread for it");
            }
            Self { listener, before, anew, guard }
        };
        let Some(descriptor) = handed_over else {
            let (listener, file) = own_at_start(path)?;
            let guard = Guard { path: path.to_owned(), file: Some(file), is_own: true, is_lost: false, trouble: None };
            return Ok(new(listener, None, guard));
        };
        let given = blocking::UnixListener::from(descriptor);
        let path = given.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
        // A socket without a path cannot lose it; it is looked at where it should be all the same by whoever handed it over.
        let file = path.as_deref().map(|path| leads_to(path, &given));
        let listener = listening(given).map_err(EndpointError::HandedOver)?;
        let mut guard =
            Guard { path: path.unwrap_or_default(), file: None, is_own: false, is_lost: false, trouble: None };
        match file {
            Some(None) => {
                // Another daemon starts at this socket's queue no more; this one is to be reached at once.
                let made = own(&guard.path);
                Ok(match guard.note_made(made) {
                    Some(again) => new(again, Some(listener), guard),
                    None => new(listener, None, guard),
                })
            }
            file => {
                guard.file = file.flatten();
                Ok(new(listener, None, guard))
            }
        }
    }

    pub(super) fn state(&self) -> SocketState {
        SocketState(Arc::clone(&self.guard))
    }

    /// The next connection.
    pub(super) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            let before = async {
                match &self.before {
                    Some(before) => before.accept().await,
                    None => std::future::pending().await,
                }
            };
            let accepted = tokio::select! {
                Some(listener) = self.anew.recv() => {
                    self.before = Some(std::mem::replace(&mut self.listener, listener));
                    continue;
                }
                accepted = self.listener.accept() => accepted,
                accepted = before => accepted,
            };
            return accepted.map(|(stream, _)| stream);
        }
    }

    /// Ends the listening. Where no next daemon has the socket, whoever has connected by now is let in.
    pub(super) fn close(self, mut let_in: impl FnMut(UnixStream)) {
        let is_own = {
            let mut guard = lock(&self.guard);
            // Only ours: another daemon may have the path by now.
            if guard.is_own && identity(&guard.path) == guard.file {
                let _ = std::fs::remove_file(&guard.path);
            }
            // It is not looked after any more.
            guard.file = None;
            std::mem::take(&mut guard.path);
            guard.is_own
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

impl Guard {
    /// Notes what came of making the socket anew: gives the new listener, or nothing where it could not be made, which is said once.
    fn note_made(&mut self, made: Result<(UnixListener, Identity), EndpointError>) -> Option<UnixListener> {
        match made.map_err(|error| chain(&error)) {
            Ok((listener, file)) => {
                self.is_lost |= !self.is_own;
                (self.file, self.is_own, self.trouble) = (Some(file), true, None);
                tracing::warn!(path = %self.path.display(), "the control socket's file was gone, and is made anew");
                if self.is_lost {
                    tracing::warn!("the manager starts agentd by its socket again after `{}`", remedy());
                }
                Some(listener)
            }
            Err(error) => {
                let trouble = format!("the control socket is gone and cannot be made anew: {error}");
                if self.trouble.as_ref() != Some(&trouble) {
                    tracing::error!("{trouble}; it is tried again each second");
                }
                self.trouble = Some(trouble);
                None
            }
        }
    }
}

/// Looks after the socket's file until nobody listens any more. It has a thread of its own: the file system may be slow, and whoever has
/// the path now too. A task that borrowed a thread of the pool each second would keep all idle ones of the pool alive.
fn watch(guard: &Mutex<Guard>, anew: &mpsc::Sender<UnixListener>, runtime: &tokio::runtime::Handle) {
    while !anew.is_closed() {
        std::thread::sleep(LOOK);
        // Nothing of this is done under the lock: the file system may be slow, and requests wait for the lock.
        let (path, file) = {
            let guard = lock(guard);
            (guard.path.clone(), guard.file)
        };
        if path.as_os_str().is_empty() || (file.is_some() && identity(&path) == file) {
            continue;
        }
        let made = {
            let _entered = runtime.enter();
            own(&path)
        };
        let mut guard = lock(guard);
        if guard.path.as_os_str().is_empty() {
            // The listening was ended meanwhile.
            if let Ok((_, file)) = made
                && identity(&path) == Some(file)
            {
                let _ = std::fs::remove_file(&path);
            }
            return;
        }
        let made = guard.note_made(made);
        drop(guard);
        if made.is_some_and(|listener| anew.blocking_send(listener).is_err()) {
            return;
        }
    }
}

fn lock(guard: &Mutex<Guard>) -> std::sync::MutexGuard<'_, Guard> {
    // Nothing that is done under this lock can leave it half done.
    guard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file at the path, if it leads to this listener: whoever answers there is the process that made the listener listen.
///
/// Where the queue of connections is full, a connection would wait for this process itself: then the file is taken for this listener's.
fn leads_to(path: &Path, listener: &blocking::UnixListener) -> Option<Identity> {
    let file = identity(path)?;
    match connect_at_once(path) {
        Ok(there) => platform::is_answered_by(&there, listener).then_some(file),
        Err(Errno::EAGAIN) => Some(file),
        Err(_) => None,
    }
}

/// Connects without waiting: EAGAIN where the queue is full (unix(7)).
fn connect_at_once(path: &Path) -> Result<blocking::UnixStream, Errno> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket.into())
}

/// The same as [`own`], tried again where the directory is removed at the same moment: a daemon that is running would only make the socket
/// anew.
fn own_at_start(path: &Path) -> Result<(UnixListener, Identity), EndpointError> {
    for _ in 1..TRIES {
        match own(path) {
            Err(EndpointError::Listen { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                std::thread::sleep(PAUSE);
            }
            made => return made,
        }
    }
    own(path)
}

/// A socket of our own at the path, whose directory is made where it is not there.
fn own(path: &Path) -> Result<(UnixListener, Identity), EndpointError> {
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
        Ok(metadata) => match blocking::UnixStream::connect(path) {
            // Left by a daemon that was killed. Whether another is starting at this moment is the state directory's lock's business.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                remove_stale(path, (metadata.dev(), metadata.ino())).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Whoever does not answer for another reason may live.
            Ok(_) | Err(_) => return Err(EndpointError::Taken { path: path.to_owned() }),
        },
        Err(_) => {}
    }
    let listener = blocking::UnixListener::bind(path).map_err(failed)?;
    // The directory is 0700 already; this is for who looks at the socket alone.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Removes the file of a socket that nobody listens on. Another daemon may take the path in this moment: its file is put back.
fn remove_stale(path: &Path, stale: Identity) -> io::Result<()> {
    let aside = path.with_extension(format!("stale-{}", std::process::id()));
    match std::fs::rename(path, &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        moved => moved?,
    }
    let is_stale = identity(&aside) == Some(stale);
    if !is_stale {
        // Unless there is a third by now.
        let _ = std::fs::hard_link(&aside, path);
    }
    std::fs::remove_file(&aside)?;
    if is_stale { Ok(()) } else { Err(io::ErrorKind::AddrInUse.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_whose_queue_is_full_is_looked_at_without_waiting_for_it() {
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
        // macOS refuses what the queue has no room for.
        assert!([Errno::EAGAIN, Errno::ECONNREFUSED].contains(&full), "{full}");
        assert_eq!(leads_to(&path, &listener), identity(&path).filter(|_| full == Errno::EAGAIN));
        for _ in &waiting {
            listener.accept().unwrap();
        }
        assert_eq!(leads_to(&path, &listener), identity(&path));
    }

    #[tokio::test]
    async fn a_socket_is_made_although_its_directory_is_removed_at_the_same_moment() {
        let root = tempfile::tempdir().unwrap();
        let (directory, (ended, is_ended)) = (root.path().join("run"), std::sync::mpsc::channel::<()>());
        let to_remove = directory.clone();
        let removing = std::thread::spawn(move || {
            let mut times = 0;
            while is_ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) && times < 50 {
                times += u32::from(std::fs::remove_dir_all(&to_remove).is_ok());
            }
        });
        // The first directory is not there at all; others go while the socket is made.
        for _ in 0..20 {
            Socket::open(&directory.join("control.sock")).unwrap().close(drop);
        }
        drop(ended);
        removing.join().unwrap();
    }

    #[test]
    fn a_stale_file_is_removed_and_that_of_a_living_daemon_never() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        drop(listen(&path).unwrap());
        let stale = identity(&path).unwrap();
        // While it was looked at, another daemon took the path.
        std::fs::remove_file(&path).unwrap();
        let other = blocking::UnixListener::bind(&path).unwrap();
        let file = identity(&path);
        if file == Some(stale) {
            // The file system gave the number again at once; then the two cannot be told apart.
            return;
        }
        assert_eq!(remove_stale(&path, stale).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(identity(&path), file, "its file is where it was");
        assert!(matches!(listen(&path), Err(EndpointError::Taken { .. })));
        drop(other);
        listen(&path).unwrap();
    }
}
