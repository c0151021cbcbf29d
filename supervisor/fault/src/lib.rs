//! Named points, before and after each durable or visible step, at which a test can make a program stop, wait or fail.
//!
//! Without the feature `fault-points` a point is nothing. With it, a program that was [`arm`]ed looks for a file of the point's name
//! in a directory: `pause`, `delay MILLISECONDS` or `fail`, and optionally `at N` for the N-th time the point is passed. The file is renamed
//! to `NAME.hit` when it takes effect, once, and then has the pid of the process that passed the point. A pause lasts until that file is
//! removed. What is killed in the pause is the test's choice. `refuse ERRNO` fails each pass with that error of the system, for as long
//! as the file is there.

macro_rules! points {
    ($($(#[$doc:meta])* $point:ident = $name:literal,)*) => {
        /// Every point there is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Point {
            $($(#[$doc])* $point,)*
        }

        impl Point {
            pub const ALL: &'static [Self] = &[$(Self::$point,)*];

            /// `program.step.moment`, also the name of the file that sets it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }
        }
    };
}

points! {
    /// Whoever writes the journal is about to write records.
    JournalAppendBefore = "journal.append.before",
    /// They are in the file, and nobody knows it yet.
    JournalAppendAfter = "journal.append.after",
    JournalSyncBefore = "journal.sync.before",
    /// A segment is full and about to be put aside.
    JournalRotateBefore = "journal.rotate.before",
    /// It has its new name, and the next segment is not there yet.
    JournalRotateRenamed = "journal.rotate.renamed",
    /// The keeper holds the journal and does not listen yet.
    KeeperStartLocked = "keeper.start.locked",
    KeeperStartListening = "keeper.start.listening",
    KeeperLaunchBefore = "keeper.launch.before",
    /// The agent runs, and its record is not written.
    KeeperLaunchSpawned = "keeper.launch.spawned",
    /// Records of the daemon are in the journal, and their lines not on their way to the agent.
    KeeperAppendJournalled = "keeper.append.journalled",
    /// The lines are on their way, and the daemon has no answer.
    KeeperAppendSent = "keeper.append.sent",
    /// The agent said something that is not in the journal yet.
    KeeperOutputRead = "keeper.output.read",
    KeeperStopBefore = "keeper.stop.before",
    /// The tree is gone, and the journal does not say so yet.
    KeeperEndKilled = "keeper.end.killed",
    /// The journal says how the agent ended; the keeper has not ended.
    KeeperEndRecorded = "keeper.end.recorded",
    /// A new session has its directory and nothing in it.
    DaemonCreateDirectory = "daemon.create.directory",
    /// It has its document and no journal.
    DaemonCreateDocument = "daemon.create.document",
    /// It has its journal, and no driver.
    DaemonCreateJournalled = "daemon.create.journalled",
    DaemonBringUpEnvironment = "daemon.bring-up.environment",
    /// The keeper listens, and has no launch record.
    DaemonLaunchLinked = "daemon.launch.linked",
    /// The keeper has the launch record; the driver has not read what came of it.
    DaemonLaunchDone = "daemon.launch.done",
    /// The driver has decided on records and not handed them over.
    DaemonAppendBefore = "daemon.append.before",
    /// They are written, and not applied.
    DaemonAppendAfter = "daemon.append.after",
    /// The state is what the journal says, and clients do not see it yet.
    DaemonApplyAfter = "daemon.apply.after",
    DaemonStopBefore = "daemon.stop.before",
    /// A file's new content is on the disk under another name.
    DaemonFileBeforeRename = "daemon.file.before-rename",
    DaemonFileAfterRename = "daemon.file.after-rename",
    /// A session is to be removed, and is there still.
    DaemonRemoveBefore = "daemon.remove.before",
    /// It is out of sight, and its files are there.
    DaemonRemoveRenamed = "daemon.remove.renamed",
    /// The daemon has found a keeper, and not taken its session over.
    DaemonTakeOverConnected = "daemon.take-over.connected",
}

/// Where the points are set from now on, in this process. Nothing without the feature.
#[cfg(not(feature = "fault-points"))]
pub fn arm(_directory: &std::path::Path) {}

/// Passes a point; an error where a test wants the step after it to fail.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
#[allow(clippy::inline_always, reason = "a point that is not compiled in must cost nothing")]
pub fn at(_point: Point) -> std::io::Result<()> {
    Ok(())
}

/// Whether points are compiled in.
pub const COMPILED_IN: bool = cfg!(feature = "fault-points");

#[cfg(feature = "fault-points")]
pub use armed::{arm, at};

#[cfg(feature = "fault-points")]
mod armed {
    use std::collections::HashMap;
    use std::io::{self, Write as _};
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, OnceLock, PoisonError};
    use std::time::Duration;

    use super::Point;

    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    static PASSED: Mutex<Option<HashMap<Point, u64>>> = Mutex::new(None);

    /// Where the points are set from now on, in this process, if the directory is there.
    pub fn arm(directory: &Path) {
        // A program that no test wants anything of must not look for a file at every point.
        if !directory.is_dir() {
            return;
        }
        // Armed twice is armed once: a process has one directory.
        let _ = DIRECTORY.set(directory.to_owned());
    }

    /// Passes a point; an error where a test wants the step after it to fail.
    pub fn at(point: Point) -> io::Result<()> {
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
        // Of two processes that pass the point, the one that can rename the file is the one that is meant.
        if std::fs::rename(&file, &hit).is_err() {
            return Ok(());
        }
        // Never made anew: a test that has removed it already would find a pause that nobody ends.
        let named = std::fs::OpenOptions::new().write(true).truncate(true).open(&hit);
        let _ = named.and_then(|mut file| file.write_all(std::process::id().to_string().as_bytes()));
        match action.split_once(' ') {
            Some(("delay", milliseconds)) => {
                std::thread::sleep(Duration::from_millis(milliseconds.parse().unwrap_or_default()));
                Ok(())
            }
            _ if action == "pause" => {
                while hit.exists() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Ok(())
            }
            _ => Err(io::Error::other(format!("{} was made to fail", point.name()))),
        }
    }
}

#[cfg(all(test, feature = "fault-points"))]
mod tests {
    use super::*;

    #[test]
    fn a_point_takes_effect_once_at_the_pass_that_was_named() {
        let directory = tempfile::tempdir().unwrap();
        arm(directory.path());
        let file = directory.path().join(Point::JournalSyncBefore.name());
        std::fs::write(&file, "fail at 3").unwrap();
        let results: Vec<bool> = (0..5).map(|_| at(Point::JournalSyncBefore).is_ok()).collect();
        assert_eq!(results, [true, true, false, true, true]);
        assert!(!file.exists());
        let hit = std::fs::read_to_string(directory.path().join("journal.sync.before.hit")).unwrap();
        assert_eq!(hit, std::process::id().to_string());
        assert!(at(Point::JournalAppendBefore).is_ok());
    }
}
