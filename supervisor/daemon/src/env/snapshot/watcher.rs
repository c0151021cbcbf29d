//! Looks at files that may not answer, for at most a moment, and with one thread at most that waits for them.
//!
//! A dead file server keeps a thread that looks at its files in the kernel. The thread stays until the server answers, and until then
//! nothing else looks there: what is not looked at counts as unchanged, and the snapshot's status says so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::capability::is_served;
use crate::platform;

/// How long a launch waits for file servers.
const PATIENCE: Duration = Duration::from_secs(2);

/// Allows one look at a time at what may not answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watcher {
    busy: Arc<AtomicBool>,
}

impl Watcher {
    /// Does the work in a thread of its own. Nothing where it takes longer than a moment, or where work before it has not ended.
    pub(crate) fn bounded<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        if self.busy.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let busy = Busy(Arc::clone(&self.busy));
        let spawned = std::thread::Builder::new().name("watched-files".to_owned()).spawn(move || {
            let done = work();
            drop(busy);
            let _ = sender.send(done);
        });
        // Without a thread `busy` was dropped with the closure.
        spawned.ok()?;
        receiver.recv_timeout(PATIENCE).ok()
    }
}

/// Says that there is no look under way any more, however it ended.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The file systems that a server has, as they are mounted at the moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Served {
    places: BTreeSet<PathBuf>,
    devices: BTreeSet<u64>,
}

impl Served {
    /// Reads the mount table, which waits for no server.
    pub(crate) fn now() -> Self {
        let mut served = Self::default();
        for mounted in platform::mounts()
            .unwrap_or_default()
            .into_iter()
            .filter(|one| is_served(&one.kind) || one.kind == "autofs")
        {
            let numbers = mounted.device.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            served.devices.extend(numbers.map(|(major, minor)| platform::device(major, minor)));
            served.places.insert(PathBuf::from(mounted.path));
        }
        served
    }

    /// Whether a file lies on one of them: by its path, or by its device where a link leads there.
    pub(crate) fn has(&self, path: &Path, device: Option<u64>) -> bool {
        device.is_some_and(|device| self.devices.contains(&device))
            || self.places.iter().any(|place| path.starts_with(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_hangs_is_left_behind_and_keeps_one_thread_and_no_more() {
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
        let served = Served { places: BTreeSet::from(["/net".into()]), devices: BTreeSet::from([7]) };
        assert!(served.has(Path::new("/net/x"), None) && served.has(Path::new("/h/link"), Some(7)));
        assert!(!served.has(Path::new("/network"), Some(8)) && !served.has(Path::new("/h"), None));
    }
}
