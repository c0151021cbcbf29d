//! Directory of an agent that stays on its place: `agentd/places/NAME` in the user's state directory there.
//!
//! The directory has the socket of the agent's parent, a lock that the parent holds, and the stored output. A state
//! directory can be common to several machines, so the file `host` names the machine of the agent.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use agentd_directory::{Link, make_private};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{Mode, umask};

use super::{PlaceError, host, setup};
use crate::os;

/// Time for which other processes may hold the lock while they look, and the pause between two attempts.
const LOOKS: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);
const PREPARE: &str = "create the directory of the agent on the place";

/// Directory of an agent, with the lock of its parent.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) path: PathBuf,
    /// Held by this process and its children.
    _lock: Flock<File>,
}

/// State of an agent's parent, as its directory shows it.
#[derive(Debug)]
pub(super) enum Found {
    /// It listens, and this is a connection.
    Here(UnixStream),
    /// It begins or ends, or runs on the machine of this name.
    Elsewhere(String),
    /// There is no such process.
    Absent,
}

/// Returns the directory of all agents.
pub(super) fn root() -> Result<PathBuf, PlaceError> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).and_then(absolute);
    let state = state.or_else(|| host::facts().home.and_then(absolute).map(|home| home.join(".local/state")));
    state.map(|state| state.join("agentd/places")).ok_or(PlaceError::NoHome)
}

/// Returns the directory of an agent.
pub(super) fn directory(name: &str) -> Result<PathBuf, PlaceError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(PlaceError::Name(name.to_owned()));
    }
    let directory = root()?.join(name);
    let socket = directory.join("socket");
    if socket.as_os_str().len() > os::SOCKET_PATH_MAX {
        return Err(PlaceError::LongPath(socket));
    }
    Ok(directory)
}

impl Room {
    /// Creates the directory. Returns `None` if another process holds it.
    pub(super) fn claim(name: &str) -> Result<Option<Self>, PlaceError> {
        let path = directory(name)?;
        make_private(&root()?, Link::Accept).map_err(|error| setup(PREPARE)(io::Error::other(error)))?;
        let claimed = || -> io::Result<Option<Self>> {
            agentd_directory::create(&path)?;
            let mut file =
                File::options().write(true).create(true).truncate(false).mode(0o600).open(path.join("lock"))?;
            let until = Instant::now() + LOOKS;
            // A process that looks for this one holds the lock for a moment.
            let lock = loop {
                match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                    Ok(lock) => break lock,
                    Err((_, Errno::EWOULDBLOCK)) if Instant::now() > until => return Ok(None),
                    Err((same, Errno::EWOULDBLOCK)) => {
                        file = same;
                        thread::sleep(PAUSE);
                    }
                    Err((_, errno)) => return Err(errno.into()),
                }
            };
            // Files of an earlier process are of no use: its agent has ended too.
            for entry in fs::read_dir(&path)? {
                let file = entry?.path();
                if file.file_name().is_some_and(|name| name != "lock") {
                    fs::remove_file(file)?;
                }
            }
            let mut own = File::options().write(true).create_new(true).mode(0o600).open(path.join("host"))?;
            own.write_all(host::facts().host.as_bytes())?;
            Ok(Some(Self { path: path.clone(), _lock: lock }))
        };
        claimed().map_err(setup(PREPARE))
    }

    pub(super) fn listen(&self) -> Result<UnixListener, PlaceError> {
        let path = self.path.join("socket");
        let before = umask(Mode::from_bits_truncate(0o177));
        let listener = UnixListener::bind(&path);
        umask(before);
        let listening = listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        listening.map_err(setup("listen on its socket"))
    }

    /// Writes the process id of this process for [`parent`].
    pub(super) fn name_parent(&self) -> Result<(), PlaceError> {
        let write = || -> io::Result<()> {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(self.path.join("pid.new"))?;
            file.write_all(std::process::id().to_string().as_bytes())?;
            fs::rename(self.path.join("pid.new"), self.path.join("pid"))
        };
        write().map_err(setup("write its process id"))
    }

    /// Removes the directory.
    pub(super) fn remove(self) {
        // The next process removes a directory that stays.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Connects with the parent of an agent.
pub(super) fn find(directory: &Path) -> io::Result<Found> {
    match UnixStream::connect(directory.join("socket")) {
        Ok(stream) => return Ok(Found::Here(stream)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) => return Err(error),
    }
    Ok(if lives(directory)? { Found::Elsewhere(host_of(directory)) } else { Found::Absent })
}

/// Reports whether the parent of an agent lives, here or on another machine. It is not disturbed: a connection would
/// replace that of its near side.
pub(super) fn lives(directory: &Path) -> io::Result<bool> {
    let file = match File::options().write(true).open(directory.join("lock")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// Returns the process id of the parent of an agent, as that process has written it.
pub(super) fn parent(directory: &Path) -> Option<i32> {
    read(&directory.join("pid")).parse().ok().filter(|pid| *pid > 1)
}

/// Reads a short file. A missing one is empty.
fn read(path: &Path) -> String {
    let mut text = String::new();
    let _ = File::open(path).and_then(|file| file.take(1 << 10).read_to_string(&mut text));
    text
}

/// Returns the name of the machine on which the parent of an agent runs. It is empty for a moment after the start.
pub(super) fn host_of(directory: &Path) -> String {
    read(&directory.join("host"))
}

/// Removes the directories that parents on this machine left when they were killed.
fn tidy(directory: &Path) -> io::Result<()> {
    if host_of(directory) != host::facts().host {
        return Ok(());
    }
    let lock = File::options().write(true).open(directory.join("lock"))?;
    // A process that holds the lock lives.
    let Ok(_lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else { return Ok(()) };
    fs::remove_dir_all(directory)
}

/// Returns the names of all agents whose parents live, and removes what others left.
pub(super) fn names() -> Result<Vec<String>, PlaceError> {
    let root = root()?;
    let listed = || -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if let Ok(false) = lives(&entry.path()) {
                // A later list removes a directory that stays.
                let _ = tidy(&entry.path());
            } else {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    };
    listed().map_err(setup("list the agents of the place"))
}
