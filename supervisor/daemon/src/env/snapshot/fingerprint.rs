//! Whether files are as they were: by a stat(2) at each look, and by their content where that alone cannot tell.
//!
//! A stat cannot tell in two cases. One that is the same says nothing of a file that was written moments before it was taken: a
//! second write may bear the same time. One that is another may be of the same content: `touch`, and editors that write anew. So
//! each print has a digest beside its stat, and a file is read again only in these cases.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

/// The prints of a set of files and directories, those that were not there among them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fingerprints {
    prints: BTreeMap<PathBuf, Print>,
}

/// One file as it was. A directory's content is the names in it.
#[derive(Debug, Clone)]
struct Print {
    /// `None`: it was not there.
    stat: Option<Stat>,
    /// `None`: it cannot be read, or is too large to.
    digest: Option<[u8; 32]>,
    /// Whether a later write is sure to bear another time.
    settled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Of the inode: `touch -d` sets the other time back, and not this one.
    changed: (i64, i64),
}

/// The coarsest times that a file system in use has (FAT's).
const GRANULARITY: Duration = Duration::from_secs(2);
/// A larger file is told by its stat alone.
const LARGEST: u64 = 8 << 20;
/// What lies here is no file: `source <(...)` reads `/dev/fd/63`.
const NO_FILES: [&str; 2] = ["/dev", "/proc"];

impl Fingerprints {
    pub(crate) fn take(paths: impl IntoIterator<Item = PathBuf>, now: SystemTime) -> Self {
        let files = paths.into_iter().filter(|path| !NO_FILES.iter().any(|place| path.starts_with(place)));
        Self { prints: files.map(|path| (path.clone(), Print::take(&path, now))).collect() }
    }

    /// The first file that is not as it was. What is found to be the same content under another stat is remembered.
    pub(crate) fn changed(&mut self, now: SystemTime) -> Option<&Path> {
        self.prints.iter_mut().find_map(|(path, print)| (!print.is_same(path, now)).then_some(path.as_path()))
    }

    /// Those of `self`'s files that are other than they were `before`; of one that is not in `before`, whether it was written
    /// after `start`.
    pub(crate) fn changed_since(&self, before: &Self, start: SystemTime) -> Vec<PathBuf> {
        let start = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let start = (i64::try_from(start.as_secs()).unwrap_or(i64::MAX), i64::from(start.subsec_nanos()));
        let differs = |(path, print): &(&PathBuf, &Print)| match before.prints.get(*path) {
            Some(old) => !old.is_as(print),
            None => print.stat.is_some_and(|stat| stat.changed > start),
        };
        self.prints.iter().filter(differs).map(|(path, _)| path.clone()).collect()
    }

    pub(crate) fn forget(&mut self, paths: &[PathBuf]) {
        self.prints.retain(|path, _| !paths.contains(path));
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.prints.keys()
    }
}

impl Print {
    fn take(path: &Path, now: SystemTime) -> Self {
        let Ok(metadata) = std::fs::metadata(path) else { return Self { stat: None, digest: None, settled: true } };
        // The stat is the older of the two: a write between them shows at the next look.
        let stat = Stat::of(&metadata);
        Self { stat: Some(stat), digest: digest(path, &metadata), settled: stat.is_settled(now) }
    }

    fn is_same(&mut self, path: &Path, now: SystemTime) -> bool {
        let stat = std::fs::metadata(path).ok().map(|metadata| Stat::of(&metadata));
        if stat == self.stat && (self.settled || self.digest.is_none()) {
            return true;
        }
        let found = Self::take(path, now);
        if !self.is_as(&found) {
            return false;
        }
        *self = found;
        true
    }

    fn is_as(&self, other: &Self) -> bool {
        match (&self.digest, &other.digest) {
            (Some(mine), Some(others)) => mine == others,
            _ => self.stat == other.stat,
        }
    }
}

impl Stat {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let last = u64::try_from(self.changed.0.max(self.modified.0)).unwrap_or_default();
        let last = SystemTime::UNIX_EPOCH + Duration::from_secs(last.saturating_add(1));
        now.duration_since(last).is_ok_and(|age| age >= GRANULARITY)
    }
}

fn digest(path: &Path, metadata: &Metadata) -> Option<[u8; 32]> {
    let mut hash = Sha256::new();
    if metadata.is_dir() {
        let mut names: Vec<_> = std::fs::read_dir(path).ok()?.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            hash.update(name.as_bytes());
            hash.update([0]);
        }
    } else if metadata.is_file() && metadata.len() <= LARGEST {
        let mut content = Vec::new();
        std::fs::File::open(path).ok()?.take(LARGEST).read_to_end(&mut content).ok()?;
        hash.update(&content);
    } else {
        return None;
    }
    Some(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::*;

    fn later() -> SystemTime {
        SystemTime::now() + Duration::from_mins(1)
    }

    #[test]
    fn a_file_that_changes_appears_or_goes_is_noticed_and_one_that_is_only_touched_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("rc"), "export A=1").unwrap();
        fs::create_dir(path("conf.d")).unwrap();
        let all = [path("rc"), path("absent"), path("conf.d")];
        let mut prints = Fingerprints::take(all.clone(), later());
        assert_eq!(prints.changed(later()), None);

        // The same content in a file that is another, as editors write it.
        fs::write(path("new"), "export A=1").unwrap();
        fs::rename(path("new"), path("rc")).unwrap();
        assert_eq!(prints.changed(later()), None, "the content is the same");

        fs::write(path("rc"), "export A=2").unwrap();
        assert_eq!(prints.changed(later()), Some(path("rc").as_path()));
        let mut prints = Fingerprints::take(all.clone(), later());
        fs::write(path("absent"), "").unwrap();
        assert_eq!(prints.changed(later()), Some(path("absent").as_path()));
        let mut prints = Fingerprints::take(all.clone(), later());
        fs::write(path("conf.d/x.fish"), "").unwrap();
        assert_eq!(prints.changed(later()), Some(path("conf.d").as_path()));
        let mut prints = Fingerprints::take(all, later());
        fs::remove_file(path("rc")).unwrap();
        assert_eq!(prints.changed(later()), Some(path("rc").as_path()));
    }

    #[test]
    fn a_second_write_with_the_same_time_and_size_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let rc = directory.path().join("rc");
        fs::write(&rc, "A=1").unwrap();
        let mut prints = Fingerprints::take([rc.clone()], SystemTime::now());
        fs::write(&rc, "A=2").unwrap();
        // As a file system with coarse times would have it.
        let print = prints.prints.get_mut(&rc).unwrap();
        print.stat = fs::metadata(&rc).ok().map(|metadata| Stat::of(&metadata));
        assert_eq!(prints.changed(SystemTime::now()), Some(rc.as_path()));
    }

    #[test]
    fn what_changed_while_it_was_read_is_told_from_what_did_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("known"), "1").unwrap();
        fs::write(path("old"), "1").unwrap();
        let before = Fingerprints::take([path("known")], later());
        // A file of `before` is told by its content; one that is new by its time.
        let start = SystemTime::now() + Duration::from_secs(30);
        fs::write(path("known"), "2").unwrap();
        let after = Fingerprints::take([path("known"), path("old")], later());
        assert_eq!(after.changed_since(&before, start), [path("known")]);
        assert_eq!(after.changed_since(&after, SystemTime::UNIX_EPOCH), Vec::<PathBuf>::new());
        assert_eq!(after.changed_since(&before, SystemTime::UNIX_EPOCH), [path("known"), path("old")]);
    }

    #[test]
    fn what_is_no_file_is_not_watched() {
        let prints = Fingerprints::take(["/dev/fd/63".into(), "/proc/self/status".into()], later());
        assert_eq!(prints.paths().count(), 0);
    }

    #[test]
    fn looking_at_twenty_files_takes_next_to_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..20).map(|n| directory.path().join(format!("{n}"))).collect();
        for path in &paths {
            fs::write(path, vec![b'x'; 10_000]).unwrap();
        }
        let mut prints = Fingerprints::take(paths, later());
        let mut times: Vec<Duration> = (0..200)
            .map(|_| {
                let start = Instant::now();
                assert_eq!(prints.changed(later()), None);
                start.elapsed()
            })
            .collect();
        times.sort();
        assert!(times[100] < Duration::from_millis(1), "{:?}", times[100]);
    }
}
