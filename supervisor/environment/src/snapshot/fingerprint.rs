//! Detects changes of the files on which a login depends. Each check uses stat(2), and reads the content only if
//! the stat is inconclusive.
//!
//! A stat is inconclusive in two cases:
//!
//! - An equal stat proves nothing for a file that was written shortly before: a second write may have the same
//!   time.
//! - A different stat may belong to the same content, after `touch` or a rewrite by an editor.
//!
//! Each print therefore has a digest beside its stat.
//!
//! Files on a file server are examined in a separate thread, so that a silent server blocks no launch
//! ([`Watcher`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use super::watcher::{ServedFileSystems, Watcher};

/// One file-system fact on which a login depends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Watched {
    /// Content of a file, or names in a directory.
    Content(PathBuf),
    /// File of a program: a script by its content, a larger file by its stat alone.
    Program(PathBuf),
    /// Existence of a file that a start-up file only tested.
    Presence(PathBuf),
    /// Names in a directory that match a pattern, as in `for f in DIRECTORY/PATTERN`.
    Names(PathBuf, String),
}

/// Prints of a set of files and directories, including missing files.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fingerprints {
    prints: BTreeMap<Watched, Print>,
}

/// Result of a check of all prints.
#[derive(Debug, Default)]
pub(crate) struct CheckResult {
    /// First path that has changed.
    pub changed: Option<PathBuf>,
    /// New prints of files with another stat and the same content.
    again: Vec<(Watched, Print)>,
    /// Files whose file server did not answer. They count as unchanged.
    pub silent: Vec<PathBuf>,
}

/// State of one file at one time. The content of a directory is the names in it.
#[derive(Debug, Clone)]
struct Print {
    /// `None` if the file did not exist.
    stat: Option<Stat>,
    /// `None` if the file is unreadable or too large.
    digest: Option<[u8; 32]>,
    /// Whether a later write must have another time.
    settled: bool,
    /// Whether the file is on a file server.
    served: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Change time of the inode. `touch -d` can reset the modification time, but not this time.
    changed: (i64, i64),
}

/// Coarsest time resolution of a file system in use (FAT).
const GRANULARITY: Duration = Duration::from_secs(2);
/// Maximum size in bytes of a file that is compared by content. A larger file is compared by its stat.
const LARGEST: u64 = 8 << 20;
/// Maximum size in bytes of a program that is compared by content. The limit is lower, because there may be many
/// programs.
const LARGEST_SCRIPT: u64 = 64 << 10;
/// Directories without regular files: `source <(...)` reads `/dev/fd/63`.
const NO_FILES: [&str; 2] = ["/dev", "/proc"];
/// Suffixes of files that editors and package managers leave behind. No start-up file reads them.
const LEFT_BEHIND: [&str; 12] =
    ["~", ".swp", ".swo", ".swx", ".lock", ".tmp", ".bak", ".orig", ".rej", ".dpkg-new", ".dpkg-old", ".rpmnew"];

impl Watched {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Content(path) | Self::Program(path) | Self::Presence(path) | Self::Names(path, _) => path,
        }
    }

    /// Returns the path for display, with the pattern appended to its directory.
    pub(crate) fn shown(&self) -> PathBuf {
        match self {
            Self::Content(path) | Self::Program(path) | Self::Presence(path) => path.clone(),
            Self::Names(path, pattern) => path.join(pattern),
        }
    }
}

impl Fingerprints {
    pub(crate) fn take(
        watched: impl IntoIterator<Item = Watched>,
        now: SystemTime,
        served: &ServedFileSystems,
    ) -> Self {
        let all = watched.into_iter().filter(|one| !NO_FILES.iter().any(|place| one.path().starts_with(place)));
        let print = |one: Watched| {
            let print = Print::take(&one, now);
            let is_served = served.has(one.path(), print.stat.map(|stat| stat.device));
            (one, Print { served: is_served, ..print })
        };
        Self { prints: all.map(print).collect() }
    }

    /// Checks all prints: first those on this machine, then those on file servers within the limits of `watcher`.
    pub(crate) fn check(
        self: &Arc<Self>,
        now: SystemTime,
        watcher: &Watcher,
        served: &ServedFileSystems,
    ) -> CheckResult {
        let is_served = |one: &Watched, print: &Print| print.served || served.has(one.path(), None);
        let mut seen = self.check_some(now, |one, print| !is_served(one, print));
        let served: BTreeSet<Watched> =
            self.prints.iter().filter(|(one, print)| is_served(one, print)).map(|(one, _)| one.clone()).collect();
        if seen.changed.is_some() || served.is_empty() {
            return seen;
        }
        let (all, on_servers) = (Arc::clone(self), served.clone());
        match watcher.bounded(move || all.check_some(now, |one, _| on_servers.contains(one))) {
            Some(CheckResult { changed, again, .. }) => {
                seen.changed = changed;
                seen.again.extend(again);
            }
            None => seen.silent = served.iter().map(Watched::shown).collect(),
        }
        seen
    }

    fn check_some(&self, now: SystemTime, these: impl Fn(&Watched, &Print) -> bool) -> CheckResult {
        let mut seen = CheckResult::default();
        for (one, print) in self.prints.iter().filter(|(one, print)| these(one, print)) {
            match print.check(one, now) {
                PrintCheck::Same => {}
                PrintCheck::SameContent(print) => seen.again.push((one.clone(), print)),
                PrintCheck::Other => {
                    seen.changed = Some(one.path().to_owned());
                    break;
                }
            }
        }
        seen
    }

    /// Returns the prints updated with the new stats that a check found, or `None` if no stat changed.
    pub(crate) fn with(&self, seen: &mut CheckResult) -> Option<Self> {
        let again = std::mem::take(&mut seen.again);
        (!again.is_empty()).then(|| {
            let mut prints = self.prints.clone();
            prints.extend(again);
            Self { prints }
        })
    }

    /// Returns the paths whose print differs from `before`. A file that is missing in `before` counts if it was
    /// written after `start`.
    pub(crate) fn changed_since(&self, before: &Self, start: SystemTime) -> Vec<PathBuf> {
        let start = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let start = (i64::try_from(start.as_secs()).unwrap_or(i64::MAX), i64::from(start.subsec_nanos()));
        let differs = |(one, print): &(&Watched, &Print)| match (before.prints.get(*one), one) {
            (Some(old), _) => !old.is_as(print),
            (None, Watched::Content(_) | Watched::Program(_)) => print.stat.is_some_and(|stat| stat.changed > start),
            // The write time of a directory is unrelated to the names that match.
            (None, Watched::Presence(_) | Watched::Names(..)) => false,
        };
        self.prints.iter().filter(differs).map(|(one, _)| one.path().to_owned()).collect()
    }

    pub(crate) fn forget(&mut self, paths: &[PathBuf]) {
        self.prints.retain(|one, _| !paths.iter().any(|path| path == one.path()));
    }

    pub(crate) fn watched(&self) -> impl Iterator<Item = &Watched> {
        self.prints.keys()
    }

    /// Returns the files on file servers.
    pub(crate) fn served(&self) -> impl Iterator<Item = &Watched> {
        self.prints.iter().filter(|(_, print)| print.served).map(|(one, _)| one)
    }
}

/// Result of a check of one print.
enum PrintCheck {
    Same,
    SameContent(Print),
    Other,
}

impl Print {
    fn take(one: &Watched, now: SystemTime) -> Self {
        let path = one.path();
        let absent = Self { stat: None, digest: None, settled: true, served: false };
        let Ok(metadata) = std::fs::metadata(path) else { return absent };
        // The stat is older than the content. A write between the two is found by the next check.
        let stat = Stat::of(&metadata);
        let (digest, settled) = match one {
            Watched::Presence(_) => (Some(kind(&metadata)), false),
            Watched::Content(_) => (content(path, &metadata, LARGEST), stat.is_settled(now)),
            Watched::Program(_) => (program(path, &metadata), stat.is_settled(now)),
            Watched::Names(_, pattern) => (names(path, &metadata, Some(pattern)), stat.is_settled(now)),
        };
        Self { stat: Some(stat), digest, settled, served: false }
    }

    fn check(&self, one: &Watched, now: SystemTime) -> PrintCheck {
        if let Watched::Presence(path) = one {
            let there = std::fs::metadata(path).ok().map(|metadata| kind(&metadata));
            return if there == self.digest { PrintCheck::Same } else { PrintCheck::Other };
        }
        let stat = std::fs::metadata(one.path()).ok().map(|metadata| Stat::of(&metadata));
        if stat == self.stat && (self.settled || self.digest.is_none()) {
            return PrintCheck::Same;
        }
        let found = Self { served: self.served, ..Self::take(one, now) };
        if self.is_as(&found) { PrintCheck::SameContent(found) } else { PrintCheck::Other }
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

fn content(path: &Path, metadata: &Metadata, largest: u64) -> Option<[u8; 32]> {
    if metadata.is_dir() {
        return names(path, metadata, None);
    }
    if !metadata.is_file() || metadata.len() > largest {
        return None;
    }
    let mut content = Vec::new();
    std::fs::File::open(path).ok()?.take(largest).read_to_end(&mut content).ok()?;
    Some(Sha256::digest(&content).into())
}

/// Returns the digest of a program's content and real path, because two releases may have the same launcher.
fn program(path: &Path, metadata: &Metadata) -> Option<[u8; 32]> {
    let content = content(path, metadata, LARGEST_SCRIPT)?;
    let real = path.canonicalize().ok()?;
    Some(Sha256::new().chain_update(content).chain_update(real.as_os_str().as_bytes()).finalize().into())
}

/// Returns the digest of the relevant names in a directory and of its link target, such as `current` of SDKMAN.
fn names(path: &Path, metadata: &Metadata, pattern: Option<&str>) -> Option<[u8; 32]> {
    if !metadata.is_dir() {
        return Some(kind(metadata));
    }
    let names = std::fs::read_dir(path).ok()?.flatten().map(|entry| entry.file_name());
    let mut names: Vec<_> = names.filter(|name| counts(&name.to_string_lossy(), pattern)).collect();
    names.sort();
    let mut hash = Sha256::new();
    if let Ok(target) = std::fs::read_link(path) {
        hash.update(target.as_os_str().as_bytes());
    }
    for name in names {
        hash.update([0]);
        hash.update(name.as_bytes());
    }
    Some(hash.finalize().into())
}

/// Reports whether a start-up file would read a file of this name.
fn counts(name: &str, pattern: Option<&str>) -> bool {
    match pattern {
        Some(pattern) => agentd_glob::matches_file_name(pattern, name),
        None => !name.starts_with(['.', '#']) && !LEFT_BEHIND.iter().any(|end| name.ends_with(end)),
    }
}

fn kind(metadata: &Metadata) -> [u8; 32] {
    let kind = metadata.file_type();
    // `[ -s FILE ]` tests for an empty file.
    let has_content = kind.is_file() && metadata.len() > 0;
    let tests = [kind.is_file(), kind.is_dir(), kind.is_socket(), kind.is_fifo(), has_content];
    let mut digest = [0; 32];
    for (byte, test) in digest.iter_mut().zip(tests) {
        *byte = u8::from(test);
    }
    digest
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Instant;

    use super::*;

    fn of(paths: impl IntoIterator<Item = PathBuf>, now: SystemTime) -> Fingerprints {
        Fingerprints::take(paths.into_iter().map(Watched::Content), now, &ServedFileSystems::default())
    }

    fn changed(prints: &mut Fingerprints, now: SystemTime) -> Option<PathBuf> {
        let shared = Arc::new(prints.clone());
        let mut seen = shared.check(now, &Watcher::default(), &ServedFileSystems::default());
        if let Some(again) = prints.with(&mut seen) {
            *prints = again;
        }
        seen.changed
    }

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
        let mut prints = of(all.clone(), later());
        assert_eq!(changed(&mut prints, later()), None);

        // The same content in another file, as editors write it.
        fs::write(path("new"), "export A=1").unwrap();
        fs::rename(path("new"), path("rc")).unwrap();
        assert_eq!(changed(&mut prints, later()), None, "the content is the same");

        fs::write(path("rc"), "export A=2").unwrap();
        assert_eq!(changed(&mut prints, later()), Some(path("rc")));
        let mut prints = of(all.clone(), later());
        fs::write(path("absent"), "").unwrap();
        assert_eq!(changed(&mut prints, later()), Some(path("absent")));
        let mut prints = of(all.clone(), later());
        fs::write(path("conf.d/x.fish"), "").unwrap();
        assert_eq!(changed(&mut prints, later()), Some(path("conf.d")));
        let mut prints = of(all, later());
        fs::remove_file(path("rc")).unwrap();
        assert_eq!(changed(&mut prints, later()), Some(path("rc")));
    }

    #[test]
    fn a_second_write_with_the_same_time_and_size_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let rc = directory.path().join("rc");
        fs::write(&rc, "A=1").unwrap();
        let mut prints = of([rc.clone()], SystemTime::now());
        fs::write(&rc, "A=2").unwrap();
        // Simulates a file system with coarse times.
        let print = prints.prints.get_mut(&Watched::Content(rc.clone())).unwrap();
        print.stat = fs::metadata(&rc).ok().map(|metadata| Stat::of(&metadata));
        assert_eq!(changed(&mut prints, SystemTime::now()), Some(rc.clone()));
    }

    #[test]
    fn files_changed_during_a_read_are_distinguished_from_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("known"), "1").unwrap();
        fs::write(path("old"), "1").unwrap();
        let before = of([path("known")], later());
        // A file in `before` is compared by content, and a new file by its time.
        let start = SystemTime::now() + Duration::from_secs(30);
        fs::write(path("known"), "2").unwrap();
        let after = of([path("known"), path("old")], later());
        assert_eq!(after.changed_since(&before, start), [path("known")]);
        assert_eq!(after.changed_since(&after, SystemTime::UNIX_EPOCH), Vec::<PathBuf>::new());
        assert_eq!(after.changed_since(&before, SystemTime::UNIX_EPOCH), [path("known"), path("old")]);
    }

    #[test]
    fn only_the_matching_names_of_a_directory_count() {
        let directory = tempfile::tempdir().unwrap();
        let conf = directory.path().join("conf.d");
        fs::create_dir(&conf).unwrap();
        let names = Watched::Names(conf.clone(), "*.sh".to_owned());
        let mut prints = Fingerprints::take([names.clone()], later(), &ServedFileSystems::default());
        for other in [".a.sh.swp", "a.sh~", "4913", "a.lock", "a.fish", ".hidden.sh"] {
            fs::write(conf.join(other), "").unwrap();
            assert_eq!(changed(&mut prints, later()), None, "{other}");
        }
        fs::write(conf.join("a.sh"), "").unwrap();
        assert_eq!(changed(&mut prints, later()), Some(conf.clone()));
        let mut all = of([conf.clone()], later());
        for other in [".b.swp", "b~", "#b#", "b.lock"] {
            fs::write(conf.join(other), "").unwrap();
            assert_eq!(changed(&mut all, later()), None, "{other}");
        }
        assert_eq!(names.shown(), conf.join("*.sh"));
    }

    #[test]
    fn only_the_existence_of_a_tested_file_counts() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let take = || Fingerprints::take([Watched::Presence(file.clone())], later(), &ServedFileSystems::default());
        let mut prints = take();
        assert_eq!(changed(&mut prints, later()), None);
        fs::write(&file, "").unwrap();
        assert_eq!(changed(&mut prints, later()), Some(file.clone()));
        let mut prints = take();
        fs::write(&file, "1").unwrap();
        assert_eq!(changed(&mut prints, later()), Some(file.clone()), "it is empty no more");
        let mut prints = take();
        fs::write(&file, "2").unwrap();
        assert_eq!(changed(&mut prints, later()), None);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(changed(&mut prints, later()), Some(file.clone()), "it is a directory now");
    }

    #[test]
    fn a_program_counts_by_its_content_and_by_where_its_link_leads() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let link = |to: &str| {
            let _ = fs::remove_file(at("java"));
            std::os::unix::fs::symlink(to, at("java")).unwrap();
        };
        fs::write(at("17"), "launcher").unwrap();
        fs::write(at("21"), "launcher").unwrap();
        link("17");
        let take = || Fingerprints::take([Watched::Program(at("java"))], later(), &ServedFileSystems::default());
        let mut prints = take();
        fs::write(at("17"), "launcher").unwrap();
        assert_eq!(changed(&mut prints, later()), None, "the content is the same");
        link("21");
        assert_eq!(changed(&mut prints, later()), Some(at("java")));
        let mut prints = take();
        fs::write(at("21"), "other").unwrap();
        assert_eq!(changed(&mut prints, later()), Some(at("java")));
    }

    #[test]
    fn a_link_to_a_directory_that_leads_elsewhere_is_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for version in ["17", "21"] {
            fs::create_dir_all(at(version).join("bin")).unwrap();
        }
        std::os::unix::fs::symlink("17", at("current")).unwrap();
        let mut prints = of([at("current")], later());
        assert_eq!(changed(&mut prints, later()), None);
        fs::remove_file(at("current")).unwrap();
        std::os::unix::fs::symlink("21", at("current")).unwrap();
        assert_eq!(changed(&mut prints, later()), Some(at("current")));
    }

    #[test]
    fn devices_and_proc_files_are_not_watched() {
        let prints = of(["/dev/fd/63".into(), "/proc/self/status".into()], later());
        assert_eq!(prints.watched().count(), 0);
    }

    #[test]
    fn looking_at_twenty_files_takes_next_to_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..20).map(|n| directory.path().join(format!("{n}"))).collect();
        for path in &paths {
            fs::write(path, vec![b'x'; 10_000]).unwrap();
        }
        let mut prints = of(paths, later());
        let mut times: Vec<Duration> = (0..200)
            .map(|_| {
                let start = Instant::now();
                assert_eq!(changed(&mut prints, later()), None);
                start.elapsed()
            })
            .collect();
        times.sort();
        assert!(times[100] < Duration::from_millis(1), "{:?}", times[100]);
    }
}
