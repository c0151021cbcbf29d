//! Watches the file system of the state directory: its free space, and whether it answers.
//!
//! A thread of its own looks every few seconds. So a disk that hangs blocks this thread alone, and the last state can
//! be read at any time without a wait.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentd_fault::Point;
use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};

/// Interval between two looks.
const EVERY: Duration = Duration::from_secs(5);
/// Time after which a file system without an answer counts as unresponsive.
const ANSWERS: Duration = Duration::from_secs(10);
/// Free space below which a launch may fail for lack of room.
const LOW: u64 = 16 << 20;

/// Space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that a process without privileges may use.
    pub free: u64,
    /// Size in bytes.
    pub size: u64,
    /// Whether the file system is mounted read-only.
    pub is_read_only: bool,
}

/// A fault of a file system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskFault {
    /// Too little space is free.
    #[error("{free} bytes are free on the file system of {path:?}, and {LOW} are needed")]
    Low { path: PathBuf, free: u64 },
    /// The file system is read-only.
    #[error("the file system of {path:?} is read-only")]
    ReadOnly { path: PathBuf },
    /// A look has not ended in time.
    #[error("the file system of {path:?} has not answered for {} s", .since.as_secs())]
    Silent { path: PathBuf, since: Duration },
    /// A look failed.
    #[error("cannot look at the file system of {path:?}: {error}")]
    Failed { path: PathBuf, error: String },
}

/// The watch of one directory. Dropping it ends the thread.
#[derive(Debug)]
pub struct DiskWatch {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    _until: mpsc::Sender<()>,
}

#[derive(Debug)]
struct State {
    /// Begin of the look that is under way.
    looking: Option<Instant>,
    last: Option<Result<DiskSpace, Errno>>,
}

impl DiskWatch {
    /// Starts the thread, and waits for nothing.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State { looking: Some(Instant::now()), last: None }));
        let (until, ended) = mpsc::channel::<()>();
        let (watched, shared) = (path.to_owned(), Arc::clone(&state));
        let watching = move || {
            loop {
                locked(&shared).looking = Some(Instant::now());
                let last = look(&watched);
                *locked(&shared) = State { looking: None, last: Some(last) };
                if ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("agentd-disk".to_owned()).spawn(watching)?;
        Ok(Self { path: path.to_owned(), state, _until: until })
    }

    /// Returns the space that the last look found.
    pub fn space(&self) -> Option<DiskSpace> {
        locked(&self.state).last.and_then(Result::ok)
    }

    /// Returns the present fault, if any.
    pub fn fault(&self, now: Instant) -> Option<DiskFault> {
        judge(&self.path, &locked(&self.state), now)
    }
}

fn judge(path: &Path, state: &State, now: Instant) -> Option<DiskFault> {
    let path = path.to_owned();
    let since = state.looking.map(|began| now.saturating_duration_since(began)).unwrap_or_default();
    if since > ANSWERS {
        return Some(DiskFault::Silent { path, since });
    }
    match state.last? {
        Ok(DiskSpace { is_read_only: true, .. }) | Err(Errno::EROFS) => Some(DiskFault::ReadOnly { path }),
        Ok(DiskSpace { free, .. }) if free < LOW => Some(DiskFault::Low { path, free }),
        Ok(_) => None,
        Err(Errno::ENOSPC | Errno::EDQUOT) => Some(DiskFault::Low { path, free: 0 }),
        Err(errno) => Some(DiskFault::Failed { path, error: io::Error::from(errno).to_string() }),
    }
}

fn look(path: &Path) -> Result<DiskSpace, Errno> {
    agentd_fault::at(Point::DaemonDiskBefore)
        .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    let found = statvfs(path)?;
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "the types differ between systems")]
    let (unit, free, size) =
        (found.fragment_size() as u64, u64::from(found.blocks_available()), u64::from(found.blocks()));
    Ok(DiskSpace {
        free: free.saturating_mul(unit),
        size: size.saturating_mul(unit),
        is_read_only: found.flags().contains(FsFlags::ST_RDONLY),
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under this lock can leave the value inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_found_and_a_short_look_is_none() {
        let (path, now) = (PathBuf::from("/state"), Instant::now());
        let space = |free, is_read_only| Some(Ok(DiskSpace { free, size: 1 << 30, is_read_only }));
        let fault = |looking: Option<u64>, last| {
            let looking = looking.map(|seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap());
            judge(&path, &State { looking, last }, now)
        };
        assert_eq!(fault(None, space(LOW, false)), None);
        assert_eq!(fault(Some(9), space(LOW, false)), None);
        assert_eq!(fault(Some(1), None), None);
        let silent = DiskFault::Silent { path: path.clone(), since: Duration::from_secs(11) };
        assert_eq!(fault(Some(11), space(LOW, false)), Some(silent));
        let low = |free| Some(DiskFault::Low { path: path.clone(), free });
        assert_eq!(fault(None, space(LOW - 1, false)), low(LOW - 1));
        assert_eq!(fault(None, Some(Err(Errno::ENOSPC))), low(0));
        let read_only = Some(DiskFault::ReadOnly { path: path.clone() });
        assert_eq!(fault(None, space(LOW, true)), read_only);
        assert_eq!(fault(None, Some(Err(Errno::EROFS))), read_only);
        assert!(matches!(fault(None, Some(Err(Errno::EIO))), Some(DiskFault::Failed { .. })));
    }

    #[test]
    fn a_watch_finds_the_space_of_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let watch = DiskWatch::begin(directory.path()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while watch.space().is_none() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let space = watch.space().unwrap();
        assert!(space.size >= space.free && space.size > 0, "{space:?}");
    }
}
