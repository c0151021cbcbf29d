//! Examines files that may not answer, with a short time limit and at most one waiting thread.
//!
//! A dead file server blocks the thread that examines its files in the kernel. Until the server answers, no second
//! thread examines them. Such files count as unchanged, and the snapshot's status lists them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use agentd_host::capability::{Mounts, is_served};
use agentd_host::platform;

/// Maximum time that a launch waits for file servers.
const PATIENCE: Duration = Duration::from_secs(2);

/// Permits one examination at a time of files that may not answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watcher {
    busy: Arc<AtomicBool>,
}

impl Watcher {
    /// Runs the work in its own thread. Returns `None` if the work exceeds the time limit or earlier work is still
    /// running.
    pub(crate) fn bounded<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        if self.busy.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let busy = BusyGuard(Arc::clone(&self.busy));
        let spawned = std::thread::Builder::new().name("watched-files".to_owned()).spawn(move || {
            let done = work();
            drop(busy);
            let _ = sender.send(done);
        });
        // If the thread could not be created, `busy` was dropped with the closure.
        spawned.ok()?;
        receiver.recv_timeout(PATIENCE).ok()
    }
}

/// Clears the busy flag when the work ends or panics.
struct BusyGuard(Arc<AtomicBool>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// File systems from servers, as currently mounted.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedFileSystems {
    places: BTreeSet<PathBuf>,
    devices: BTreeSet<u64>,
}

impl ServedFileSystems {
    /// Reads the mount table, which waits for no server.
    pub(crate) fn now(mounts: &Mounts) -> Self {
        let mut served = Self::default();
        let table = mounts.current().unwrap_or_default();
        for mounted in table.iter().filter(|one| is_served(&one.kind) || one.kind == "autofs") {
            let numbers = mounted.device.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            served.devices.extend(numbers.map(|(major, minor)| platform::device(major, minor)));
            served.places.insert(PathBuf::from(&mounted.path));
        }
        served
    }

    /// Reports whether a file is on one of these file systems, by its path or, behind a link, by its device.
    pub(crate) fn has(&self, path: &Path, device: Option<u64>) -> bool {
        device.is_some_and(|device| self.devices.contains(&device))
            || self.places.iter().any(|place| path.starts_with(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hanging_work_is_abandoned_and_blocks_only_one_thread() {
        let watcher = Watcher::default();
        assert_eq!(watcher.bounded(|| 1), Some(1));
        let (release, wait) = mpsc::channel::<()>();
        assert_eq!(watcher.bounded(move || wait.recv().is_err()), None);
        for _ in 0..100 {
            assert_eq!(watcher.bounded(|| panic!("it is not begun")), None::<()>);
        }
        drop(release);
        while watcher.busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert_eq!(watcher.bounded(|| 2), Some(2));
    }

    #[test]
    fn a_file_is_on_a_server_by_its_path_or_by_its_device() {
        let served = ServedFileSystems { places: BTreeSet::from(["/net".into()]), devices: BTreeSet::from([7]) };
        assert!(served.has(Path::new("/net/x"), None) && served.has(Path::new("/h/link"), Some(7)));
        assert!(!served.has(Path::new("/network"), Some(8)) && !served.has(Path::new("/h"), None));
    }
}
