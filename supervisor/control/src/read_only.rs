//! The read-only socket: a second unix socket, by which the members of a group may make the calls of the scope `read`.
//!
//! ```text
//!   [control.read_only]           ──► created here with the group and mode 0660, changed or removed by a reload
//!   FileDescriptorName=read-only  ──► handed over by systemd, served as long as the daemon runs
//! ```
//!
//! The kernel decides who connects: by the mode and group of the file, and by the directories above (unix(7)). It
//! counts the supplementary groups that the process has now, which no lookup by user id would find. The endpoint still
//! identifies each caller: a process inside a session keeps the rights of a guest.
//!
//! The socket's file can disappear as the control socket's can. A thread looks every second and creates it again.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::os::unix::net as blocking;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

use agentd_api::configuration::{Consequence, Mistake};
use agentd_api::route::Scope;
use agentd_config::{Config, GroupName, Origins, ReadOnly};
use agentd_host::platform::ActivatedSockets;
use agentd_keeper::hold::identity;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::unistd::{Gid, Group, geteuid};
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::grant::{Grant, GrantSource};
use super::socket::{EndpointError, Identity, clear};

/// Mode of the socket: its owner and its group may connect.
const MODE: u32 = 0o660;
/// Number of connections that wait to be accepted.
const QUEUE: i32 = 128;
/// Time limit for opening the socket: the group may come from a server that does not respond.
const ANSWER: Duration = Duration::from_secs(10);
/// Interval between two checks of the path.
const LOOK: Duration = Duration::from_secs(1);

/// Reason why the read-only socket is not open as configured.
#[derive(Debug, thiserror::Error)]
pub enum ReadOnlyError {
    #[error("there is no group \"{group}\" on this machine; `getent group` lists the groups")]
    NoSuchGroup { group: GroupName },
    #[error("cannot look up the group \"{group}\": {source}")]
    Lookup { group: GroupName, source: Errno },
    #[error(
        "cannot give the socket to the group \"{group}\": user {uid} is not a member; as root run \
         `usermod -aG {group} USER` and start agentd again, or let systemd create the socket \
         (FileDescriptorName=read-only)"
    )]
    NotAMember { group: GroupName, uid: u32 },
    #[error("the directory {} cannot be examined: {source}; create it: `install -d -m 0755 {0}`", path.display())]
    NoDirectory { path: PathBuf, source: io::Error },
    #[error(
        "user {owner} owns the directory {}, and could replace the socket; use a directory of user {uid} or root",
        path.display()
    )]
    DirectoryOwner { path: PathBuf, owner: u32, uid: u32 },
    #[error(
        "other users can write to the directory {0} (mode {mode:04o}), and could replace the socket; \
         run `chmod go-w {0}` or use another directory",
        path.display()
    )]
    DirectoryMode { path: PathBuf, mode: u32 },
    #[error(
        "the group \"{group}\" cannot enter the directory {0} (mode {mode:04o}, group {owner}), so no member reaches \
         the socket; run `chmod o+x {0}`, or use a directory such as /run/agentd-readers that the group can enter",
        path.display()
    )]
    NotEntered { path: PathBuf, mode: u32, owner: u32, group: GroupName },
    #[error("the path {} is that of the control socket; use another one", path.display())]
    ControlSocket { path: PathBuf },
    #[error("user {owner} owns the file {}, which is not replaced; remove it or use another path", path.display())]
    Foreign { path: PathBuf, owner: u32 },
    #[error("{}", agentd_api::chain(.0))]
    Endpoint(#[from] EndpointError),
    #[error("cannot create the socket {}: {source}", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error(
        "the socket could not be opened within {} s; the group or the directory may be on a server",
        ANSWER.as_secs()
    )]
    Silent,
    #[error("internal error: the task that opens the socket failed (please report, with agentd.log)")]
    Defect,
}

impl ReadOnlyError {
    /// Returns the error as a mistake of the configuration. `open` is the path that stays open from the former
    /// configuration.
    pub fn mistake(&self, read: &Origins, open: Option<&Path>) -> Mistake {
        let consequence = if open.is_some() { Consequence::FormerInForce } else { Consequence::LeftOut };
        read.mistake(&["control", "read_only"], format!("control.read_only: {self}"), consequence)
    }
}

/// A socket that is served.
#[derive(Debug)]
pub(crate) struct ServedSocket {
    pub(crate) listener: Arc<UnixListener>,
    pub(crate) grant: Grant,
}

impl ServedSocket {
    fn new(listener: blocking::UnixListener, path: &Path) -> io::Result<Arc<Self>> {
        listener.set_nonblocking(true)?;
        Ok(Self::with(Arc::new(UnixListener::from_std(listener)?), path))
    }

    /// Makes a new grant for connections to the listener.
    fn with(listener: Arc<UnixListener>, path: &Path) -> Arc<Self> {
        let (source, revoked) = (GrantSource::ReadOnly(path.into()), CancellationToken::new());
        Arc::new(Self { listener, grant: Grant { scope: Scope::Read, source, revoked } })
    }
}

/// The socket of the configuration.
#[derive(Debug)]
struct OpenSocket {
    asked: ReadOnly,
    gid: Gid,
    file: Option<Identity>,
    served: Arc<ServedSocket>,
    /// The last failure to create the socket again.
    trouble: Option<String>,
}

impl OpenSocket {
    /// Removes the socket's file.
    fn remove(&self) {
        let path = &self.asked.socket;
        // Another process may have the path already.
        if self.file.is_some() && identity(path) == self.file {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The read-only sockets in force. Shared.
#[derive(Debug)]
pub struct ReadOnlyEndpoint {
    /// The path that the configuration may not use.
    control: PathBuf,
    /// The socket that the service manager handed over.
    given: Option<Arc<ServedSocket>>,
    served: watch::Sender<Option<Arc<ServedSocket>>>,
    state: Mutex<Option<OpenSocket>>,
    /// The start of the thread that watches the socket's file. A daemon without a read-only socket has no such thread.
    watching: Once,
}

impl ReadOnlyEndpoint {
    /// Takes the socket that the service manager handed over.
    ///
    /// # Errors
    ///
    /// The handed-over descriptor cannot be used.
    pub fn new(control: PathBuf, sockets: &mut ActivatedSockets) -> Result<Arc<Self>, EndpointError> {
        let given = sockets.read_only.take().map(|descriptor| {
            let listener = blocking::UnixListener::from(descriptor);
            let path = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
            ServedSocket::new(listener, &path.unwrap_or_default())
        });
        let given = given.transpose().map_err(EndpointError::HandedOver)?;
        let (served, state, watching) = (watch::Sender::default(), Mutex::default(), Once::new());
        Ok(Arc::new(Self { control, given, served, state, watching }))
    }

    /// Starts the thread that watches the socket's file, unless the thread runs.
    fn begin_to_watch(self: &Arc<Self>, runtime: &Handle) {
        self.watching.call_once(|| {
            let (watched, runtime) = (Arc::downgrade(self), runtime.clone());
            let watching = std::thread::Builder::new().name("agentd-read-only".to_owned());
            if let Err(error) = watching.spawn(move || watch(&watched, &runtime)) {
                tracing::error!(%error, "cannot start the thread that watches the read-only socket's file");
            }
        });
    }

    /// Opens, moves or closes the socket as configured. After an error everything stays unchanged.
    ///
    /// Connections of a socket that is closed, moved or given to another group end before this returns.
    pub async fn apply(self: &Arc<Self>, config: &Config) -> Result<(), ReadOnlyError> {
        let (endpoint, asked) = (Arc::clone(self), config.control.read_only.clone());
        let runtime = Handle::current();
        aside(move || {
            let _entered = runtime.enter();
            endpoint.apply_now(asked)?;
            if endpoint.state().is_some() {
                endpoint.begin_to_watch(&runtime);
            }
            Ok(())
        })
        .await
    }

    /// Returns the error that [`Self::apply`] would return as far as it shows without a change.
    pub async fn check(self: &Arc<Self>, config: &Config) -> Result<(), ReadOnlyError> {
        let Some(asked) = config.control.read_only.clone() else { return Ok(()) };
        let control = self.control.clone();
        aside(move || examine(&asked, Some(&control)).map(drop)).await
    }

    /// Returns the path of the configuration's socket, or else of the handed-over socket.
    pub fn path(&self) -> Option<PathBuf> {
        let own = self.state().as_ref().map(|open| open.asked.socket.clone());
        own.or_else(|| self.given.as_ref().and_then(|given| path_of(given)))
    }

    /// Returns a text about the problem of the open socket, if there is one.
    pub fn trouble(&self) -> Option<String> {
        self.state().as_ref().and_then(|open| open.trouble.clone())
    }

    /// Removes the socket of the configuration. The service manager keeps a socket that it handed over.
    pub(crate) fn close(&self) {
        if let Some(open) = self.state().take() {
            open.served.grant.revoked.cancel();
            open.remove();
        }
        self.served.send_replace(None);
    }

    pub(crate) fn given(&self) -> Option<Arc<ServedSocket>> {
        self.given.clone()
    }

    /// Returns a receiver of the socket and of each later one.
    pub(crate) fn served(&self) -> watch::Receiver<Option<Arc<ServedSocket>>> {
        self.served.subscribe()
    }

    fn apply_now(&self, asked: Option<ReadOnly>) -> Result<(), ReadOnlyError> {
        let Some(asked) = asked else {
            self.close();
            return Ok(());
        };
        if self.given.as_ref().and_then(|given| path_of(given)).is_some_and(|path| path == asked.socket) {
            // The service manager listens there already.
            self.close();
            return Ok(());
        }
        let gid = examine(&asked, Some(&self.control))?;
        let mut state = self.state();
        let open = match state.as_ref().filter(|open| open.asked.socket == asked.socket) {
            Some(open) if identity(&asked.socket) == open.file => {
                if open.gid == gid {
                    return Ok(());
                }
                give(&asked, gid)?;
                let served = ServedSocket::with(Arc::clone(&open.served.listener), &asked.socket);
                OpenSocket { asked, gid, file: open.file, served, trouble: None }
            }
            _ => create(asked, gid)?,
        };
        self.served.send_replace(Some(Arc::clone(&open.served)));
        let (path, file) = (open.asked.socket.clone(), open.file);
        if let Some(former) = state.replace(open) {
            former.served.grant.revoked.cancel();
            if (&former.asked.socket, former.file) != (&path, file) {
                former.remove();
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, Option<OpenSocket>> {
        // No code under this lock can leave the value inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the socket again if its path no longer leads to it.
    fn look(&self) {
        let mut state = self.state();
        let Some(open) = state.as_mut().filter(|open| identity(&open.asked.socket) != open.file) else { return };
        let again = examine(&open.asked, Some(&self.control)).and_then(|gid| create(open.asked.clone(), gid));
        match again {
            Ok(again) => {
                tracing::warn!(path = %open.asked.socket.display(), "the read-only socket was gone; created it again");
                open.served.grant.revoked.cancel();
                self.served.send_replace(Some(Arc::clone(&again.served)));
                *open = again;
            }
            Err(error) => {
                let trouble = format!("the read-only socket is gone and cannot be created again: {error}");
                if open.trouble.as_ref() != Some(&trouble) {
                    tracing::error!("{trouble}; retrying every second");
                }
                open.trouble = Some(trouble);
            }
        }
    }
}

/// Tests the socket of the configuration without a daemon.
pub fn check_read_only(config: &Config) -> Result<(), ReadOnlyError> {
    config.control.read_only.as_ref().map_or(Ok(()), |asked| examine(asked, None).map(drop))
}

/// Runs work on a blocking thread and within [`ANSWER`].
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ReadOnlyError> + Send + 'static,
) -> Result<T, ReadOnlyError> {
    match tokio::time::timeout(ANSWER, agentd_host::work::blocking(work)).await {
        Ok(done) => done.unwrap_or(Err(ReadOnlyError::Defect)),
        Err(_) => Err(ReadOnlyError::Silent),
    }
}

/// Watches the socket's file as long as the endpoint exists. The thread is like the control socket's.
fn watch(endpoint: &Weak<ReadOnlyEndpoint>, runtime: &Handle) {
    loop {
        std::thread::sleep(LOOK);
        let Some(endpoint) = endpoint.upgrade() else { return };
        let _entered = runtime.enter();
        endpoint.look();
    }
}

fn path_of(served: &ServedSocket) -> Option<PathBuf> {
    match &served.grant.source {
        GrantSource::ReadOnly(path) if !path.as_os_str().is_empty() => Some(path.to_path_buf()),
        _ => None,
    }
}

/// Checks the group and the directories of a socket, and returns the group's number.
fn examine(asked: &ReadOnly, control: Option<&Path>) -> Result<Gid, ReadOnlyError> {
    let path = &asked.socket;
    if control == Some(path) {
        return Err(ReadOnlyError::ControlSocket { path: path.clone() });
    }
    let gid = group(&asked.group)?;
    let parent = path.parent().unwrap_or_else(|| Path::new("/"));
    let real = parent.canonicalize();
    let real = real.map_err(|source| ReadOnlyError::NoDirectory { path: parent.to_owned(), source })?;
    for directory in real.ancestors() {
        let failed = |source| ReadOnlyError::NoDirectory { path: directory.to_owned(), source };
        let metadata = std::fs::metadata(directory).map_err(failed)?;
        let facts = DirectoryFacts { owner: metadata.uid(), group: metadata.gid(), mode: metadata.mode() & 0o7777 };
        judge(directory, directory == real, facts, gid, &asked.group, geteuid().as_raw())?;
    }
    Ok(gid)
}

/// Owner, group and mode of a directory.
#[derive(Debug, Clone, Copy)]
struct DirectoryFacts {
    owner: u32,
    group: u32,
    mode: u32,
}

/// Judges a directory above the socket. Another user must not be able to replace the socket. So a shared directory such
/// as `/tmp` is accepted only further up, where its sticky bit protects the directory below.
fn judge(
    directory: &Path,
    is_parent: bool,
    DirectoryFacts { owner, group: of, mode }: DirectoryFacts,
    gid: Gid,
    group: &GroupName,
    uid: u32,
) -> Result<(), ReadOnlyError> {
    let path = directory.to_owned();
    if owner != uid && owner != 0 {
        return Err(ReadOnlyError::DirectoryOwner { path, owner, uid });
    }
    let is_sticky = mode & 0o1000 != 0;
    if mode & 0o022 != 0 && (is_parent || !is_sticky) {
        return Err(ReadOnlyError::DirectoryMode { path, mode });
    }
    let enters = mode & 0o001 != 0 || (of == gid.as_raw() && mode & 0o010 != 0);
    if enters { Ok(()) } else { Err(ReadOnlyError::NotEntered { path, mode, owner: of, group: group.clone() }) }
}

/// Looks up a group by name, or takes its number.
fn group(named: &GroupName) -> Result<Gid, ReadOnlyError> {
    let name = match named {
        GroupName::Id(id) => return Ok(Gid::from_raw(*id)),
        GroupName::Name(name) => name,
    };
    let found = Group::from_name(name);
    let found = found.map_err(|source| ReadOnlyError::Lookup { group: named.clone(), source })?;
    let number = || name.parse().ok().map(Gid::from_raw);
    found.map(|group| group.gid).or_else(number).ok_or_else(|| ReadOnlyError::NoSuchGroup { group: named.clone() })
}

/// Creates the socket. No process can connect before the socket has its group and mode, because it listens last.
fn create(asked: ReadOnly, gid: Gid) -> Result<OpenSocket, ReadOnlyError> {
    let path = asked.socket.clone();
    if let Ok(metadata) = std::fs::symlink_metadata(&path)
        && metadata.uid() != geteuid().as_raw()
    {
        return Err(ReadOnlyError::Foreign { path, owner: metadata.uid() });
    }
    clear(&path)?;
    let failed = |source: io::Error| ReadOnlyError::Create { path: path.clone(), source };
    let descriptor = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None);
    let descriptor = descriptor.map_err(|error| failed(error.into()))?;
    let prepare = || -> Result<(), Errno> {
        fcntl(&descriptor, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        bind(descriptor.as_raw_fd(), &UnixAddr::new(&path)?)
    };
    prepare().map_err(|error| failed(error.into()))?;
    let file = identity(&path);
    let open = || {
        give(&asked, gid)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(MODE)).map_err(failed)?;
        let queue = Backlog::new(QUEUE).map_err(|error| failed(error.into()))?;
        listen(&descriptor, queue).map_err(|error| failed(error.into()))
    };
    if let Err(error) = open() {
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    let served = ServedSocket::new(descriptor.into(), &path).map_err(failed)?;
    Ok(OpenSocket { asked, gid, file, served, trouble: None })
}

/// Gives the socket's file to the group.
fn give(asked: &ReadOnly, gid: Gid) -> Result<(), ReadOnlyError> {
    let path = &asked.socket;
    lchown(path, None, Some(gid.as_raw())).map_err(|source| match source.raw_os_error().map(Errno::from_raw) {
        // A group that the user namespace does not map is invalid.
        Some(Errno::EPERM | Errno::EINVAL) => {
            ReadOnlyError::NotAMember { group: asked.group.clone(), uid: geteuid().as_raw() }
        }
        _ => ReadOnlyError::Create { path: path.clone(), source },
    })
}

/// Formats the path, for the log.
impl fmt::Display for ReadOnlyEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(formatter, "{}", path.display()),
            None => formatter.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_must_be_entered_by_the_group_and_written_by_the_owner_alone() {
        let judge = |is_parent, owner, group, mode| {
            let facts = DirectoryFacts { owner, group, mode };
            judge(Path::new("/d"), is_parent, facts, Gid::from_raw(7), &GroupName::Id(7), 1000)
        };
        for (is_parent, owner, group, mode) in
            [(true, 1000, 1000, 0o755), (true, 1000, 7, 0o710), (true, 0, 0, 0o711), (false, 0, 0, 0o1777)]
        {
            assert!(judge(is_parent, owner, group, mode).is_ok(), "{is_parent} {owner} {group} {mode:o}");
        }
        assert!(matches!(judge(true, 1001, 7, 0o755), Err(ReadOnlyError::DirectoryOwner { owner: 1001, .. })));
        for (is_parent, mode) in [(true, 0o1777), (true, 0o775), (false, 0o777), (false, 0o775)] {
            assert!(matches!(judge(is_parent, 0, 7, mode), Err(ReadOnlyError::DirectoryMode { .. })), "{mode:o}");
        }
        for (group, mode) in [(1000, 0o700), (1000, 0o750), (7, 0o700), (7, 0o744)] {
            let refused = judge(true, 1000, group, mode).unwrap_err();
            assert!(matches!(refused, ReadOnlyError::NotEntered { .. }), "{group} {mode:o}: {refused}");
            assert!(refused.to_string().contains("chmod o+x /d"), "{refused}");
        }
    }

    #[test]
    fn a_group_is_found_by_name_or_number() {
        let of = |text: &str| group(&GroupName::Name(text.to_owned()));
        assert_eq!(of("4242").unwrap(), Gid::from_raw(4242));
        assert_eq!(group(&GroupName::Id(7)).unwrap(), Gid::from_raw(7));
        assert!(matches!(of("no-such-group-here"), Err(ReadOnlyError::NoSuchGroup { .. })));
    }
}
