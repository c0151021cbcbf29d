//! Fault points: named points before and after each durable or visible step, at which a test can pause, delay
//! or fail a program.
//!
//! Without the feature `fault-points` a point does nothing. With the feature, an [`arm`]ed program looks for a
//! file with the point's name in a directory. The file has one of these texts:
//!
//! - `pause` waits until the `.hit` file (see below) is removed.
//! - `delay MILLISECONDS` sleeps.
//! - `fail` returns an error.
//! - `refuse ERRNO` returns this error of the system on each pass, as long as the file exists.
//!
//! `pause`, `delay` and `fail` take effect once: at the first pass, or at the N-th with `at N` appended. The
//! file is then renamed to `NAME.hit`, and receives the pid of the process that passed the point. A test may
//! kill the process during a pause.

macro_rules! points {
    ($($(#[$doc:meta])* $point:ident = $name:literal,)*) => {
        /// All fault points.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point {
            $($(#[$doc])* $point,)*
        }

        impl Point {
            /// All points in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$point,)*];

            /// Returns the point's name, `program.step.moment`. The file that activates the point has the same
            /// name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }
        }
    };
}

points! {
    /// A process is about to write records to the journal.
    JournalAppendBefore = "journal.append.before",
    /// The records are in the file, and no reader knows yet.
    JournalAppendAfter = "journal.append.after",
    /// A process is about to call fsync on the journal.
    JournalSyncBefore = "journal.sync.before",
    /// A segment is full and is about to be renamed.
    JournalRotateBefore = "journal.rotate.before",
    /// The full segment has its new name, and the next segment does not exist yet.
    JournalRotateRenamed = "journal.rotate.renamed",
    /// The keeper has locked the journal and does not listen yet.
    KeeperStartLocked = "keeper.start.locked",
    /// The keeper listens for the daemon.
    KeeperStartListening = "keeper.start.listening",
    /// The keeper is about to start the agent.
    KeeperLaunchBefore = "keeper.launch.before",
    /// The agent runs, and the keeper has not recorded the start.
    KeeperLaunchSpawned = "keeper.launch.spawned",
    /// The daemon's records are in the journal, and their lines have not been sent to the agent.
    KeeperAppendJournalled = "keeper.append.journalled",
    /// The lines were sent to the agent, and the daemon has no reply.
    KeeperAppendSent = "keeper.append.sent",
    /// The keeper has read output of the agent that is not in the journal yet.
    KeeperOutputRead = "keeper.output.read",
    /// The keeper is about to stop the agent.
    KeeperStopBefore = "keeper.stop.before",
    /// The agent's process tree is dead, and the journal has no record of its end yet.
    KeeperEndKilled = "keeper.end.killed",
    /// The journal says how the agent ended, and the keeper still runs.
    KeeperEndRecorded = "keeper.end.recorded",
    /// The directory of a new session exists and is empty.
    DaemonCreateDirectory = "daemon.create.directory",
    /// The new session has its document and no journal.
    DaemonCreateDocument = "daemon.create.document",
    /// The new session has its journal and no driver.
    DaemonCreateJournalled = "daemon.create.journalled",
    /// The journal has the begin of the work on a repository, and nothing is done yet.
    DaemonRepositoryBegun = "daemon.repository.begun",
    /// A clone or a worktree is complete under its temporary name.
    DaemonRepositoryMade = "daemon.repository.made",
    /// The work on a repository is done, and the journal does not have its end.
    DaemonRepositoryDone = "daemon.repository.done",
    /// A workflow was examined and may come into force, and the journal does not have it.
    DaemonWorkflowExamined = "daemon.workflow.examined",
    /// The journal says that the workflow is in force, and the agent of the workflow before still runs.
    DaemonWorkflowRecorded = "daemon.workflow.recorded",
    /// The bring-up is about to build the environment.
    DaemonBringUpEnvironment = "daemon.bring-up.environment",
    /// The keeper listens and has no launch record.
    DaemonLaunchLinked = "daemon.launch.linked",
    /// The keeper has the launch record, and the driver has not read the result.
    DaemonLaunchDone = "daemon.launch.done",
    /// The driver has decided on records and not sent them to be written.
    DaemonAppendBefore = "daemon.append.before",
    /// The records are written, and the driver has not applied them.
    DaemonAppendAfter = "daemon.append.after",
    /// The state matches the journal, and clients do not see it yet.
    DaemonApplyAfter = "daemon.apply.after",
    /// The daemon is about to stop an agent.
    DaemonStopBefore = "daemon.stop.before",
    /// The agent of a session that is not interactive has ended, and the session's result is about to be gathered.
    DaemonCompleteBefore = "daemon.complete.before",
    /// The result is gathered, and the journal does not have it.
    DaemonCompleteGathered = "daemon.complete.gathered",
    /// The new content of a file is on disk under a temporary name.
    DaemonFileBeforeRename = "daemon.file.before-rename",
    /// The file has its final name.
    DaemonFileAfterRename = "daemon.file.after-rename",
    /// The file of a schedule has the begin of a run, and nothing is started yet.
    DaemonScheduleBegun = "daemon.schedule.begun",
    /// The session of a run is created or prompted, and the file of the schedule does not have it.
    DaemonScheduleStarted = "daemon.schedule.started",
    /// The file of the schedule has the session of a run.
    DaemonScheduleRecorded = "daemon.schedule.recorded",
    /// The daemon is about to look at the file system of the state directory, as it does every few seconds.
    DaemonDiskBefore = "daemon.disk.before",
    /// The daemon is about to remove a session.
    DaemonRemoveBefore = "daemon.remove.before",
    /// The session's directory is renamed, and its files still exist.
    DaemonRemoveRenamed = "daemon.remove.renamed",
    /// The daemon has connected to a keeper and not taken over its session.
    DaemonTakeOverConnected = "daemon.take-over.connected",
}

/// Sets the directory of this process's fault points. Does nothing without the feature.
#[cfg(not(feature = "fault-points"))]
pub fn arm(_directory: &std::path::Path) {}

/// Passes a point. Returns an error if a test makes the next step fail.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
#[allow(clippy::inline_always, reason = "a point that is not compiled in must cost nothing")]
pub fn at(_point: Point) -> std::io::Result<()> {
    Ok(())
}

/// Lets the calling thread pass all points without an effect. Does nothing without the feature.
#[cfg(not(feature = "fault-points"))]
pub fn exempt_thread() {}

/// Whether fault points are compiled in.
pub const COMPILED_IN: bool = cfg!(feature = "fault-points");

#[cfg(feature = "fault-points")]
pub use armed::{arm, at, exempt_thread};

#[cfg(feature = "fault-points")]
mod armed {
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::io::{self, Write as _};
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, OnceLock, PoisonError};
    use std::time::Duration;

    use super::Point;

    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    thread_local! {
        static IS_EXEMPT: Cell<bool> = const { Cell::new(false) };
    }

    static PASSED: Mutex<Option<HashMap<Point, u64>>> = Mutex::new(None);

    /// Sets the directory of this process's fault points, if the directory exists.
    pub fn arm(directory: &Path) {
        // A program that no test controls must not look for a file at every point.
        if !directory.is_dir() {
            return;
        }
        // A process has one directory, so later calls have no effect.
        let _ = DIRECTORY.set(directory.to_owned());
    }

    /// Lets the calling thread pass all points without an effect. The points of a session's journal are then never
    /// spent on another journal of the same process.
    pub fn exempt_thread() {
        IS_EXEMPT.set(true);
    }

    /// Passes a point. Returns an error if a test makes the next step fail.
    pub fn at(point: Point) -> io::Result<()> {
        if IS_EXEMPT.get() {
            return Ok(());
        }
        let Some(directory) = DIRECTORY.get() else { return Ok(()) };
        let file = directory.join(point.name());
        let Ok(text) = std::fs::read_to_string(&file) else { return Ok(()) };
        if let Some(errno) = text.trim().strip_prefix("refuse ") {
            return Err(io::Error::from_raw_os_error(errno.parse().unwrap_or_default()));
        }
        let (action, number) = text.trim().split_once(" at ").unwrap_or((text.trim(), "1"));
        let passed = {
            let mut passed = PASSED.lock().unwrap_or_else(PoisonError::into_inner);
            let count = passed.get_or_insert_default().entry(point).or_default();
            *count += 1;
            *count
        };
        if number.parse() != Ok(passed) {
            return Ok(());
        }
        let hit = directory.join(format!("{}.hit", point.name()));
        // If two processes pass the point, the rename succeeds for only one, and the point takes effect there.
        if std::fs::rename(&file, &hit).is_err() {
            return Ok(());
        }
        // The file must not be created again. A test may have removed it already, and would not end the pause.
        let named = std::fs::OpenOptions::new().write(true).truncate(true).open(&hit);
        let _ = named.and_then(|mut file| file.write_all(std::process::id().to_string().as_bytes()));
        match action.split_once(' ') {
            Some(("delay", milliseconds)) => {
                let time = Duration::from_millis(milliseconds.parse().unwrap_or_default());
                hold_up(|| std::thread::sleep(time));
                Ok(())
            }
            _ if action == "pause" => {
                hold_up(|| {
                    while hit.exists() {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                });
                Ok(())
            }
            _ => Err(io::Error::other(format!("{} was made to fail", point.name()))),
        }
    }

    /// Blocks the caller, and no other task. A task that the caller woke just before waits for the caller's worker
    /// thread, and no other worker takes it over. Such a task may send an HTTP answer.
    fn hold_up(wait: impl FnOnce()) {
        use tokio::runtime::{Handle, RuntimeFlavor};
        match Handle::try_current() {
            Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(wait),
            _ => wait(),
        }
    }
}

#[cfg(all(test, feature = "fault-points"))]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::OnceLock;

    use super::*;

    /// Returns the directory of all tests: a process arms its points once.
    fn directory() -> &'static Path {
        static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
        DIRECTORY.get_or_init(|| {
            let directory = tempfile::tempdir().unwrap().keep();
            arm(&directory);
            directory
        })
    }

    #[test]
    fn a_point_takes_effect_once_at_the_pass_that_was_named() {
        let file = directory().join(Point::JournalSyncBefore.name());
        std::fs::write(&file, "fail at 3").unwrap();
        let results: Vec<bool> = (0..5).map(|_| at(Point::JournalSyncBefore).is_ok()).collect();
        assert_eq!(results, [true, true, false, true, true]);
        assert!(!file.exists());
        let hit = std::fs::read_to_string(directory().join("journal.sync.before.hit")).unwrap();
        assert_eq!(hit, std::process::id().to_string());
        assert!(at(Point::JournalAppendBefore).is_ok());
    }

    #[test]
    fn a_pause_does_not_hold_up_a_task_that_was_woken_just_before() {
        std::fs::write(directory().join(Point::DaemonStopBefore.name()), "pause").unwrap();
        let hit = directory().join(format!("{}.hit", Point::DaemonStopBefore.name()));
        // With one worker thread, no other thread could run the woken task.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (wake, woken) = tokio::sync::oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            woken.await.unwrap();
            tell.send(()).unwrap();
        });
        let paused = runtime.spawn(async move {
            wake.send(()).unwrap();
            at(Point::DaemonStopBefore).unwrap();
        });
        let heard = told.recv_timeout(std::time::Duration::from_secs(20));
        while std::fs::remove_file(&hit).is_err() {
            std::thread::yield_now();
        }
        runtime.block_on(paused).unwrap();
        heard.expect("the other task ran during the pause");
    }
}
