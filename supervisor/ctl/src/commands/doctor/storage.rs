//! Checks agentd's directories: their owners and modes, the free space, and the length of sockets' paths.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use agentd_api::doctor::{Check, Command, Finding, shell_word};
use agentd_api::prerequisite::Outcome;
use agentd_api::status::VersionView;
use nix::sys::statvfs::{FsFlags, statvfs};

use crate::error::Error;
use crate::start::{home_directory, state_directory};

/// Free space in bytes below which agentd soon fails.
const NO_ROOM: u64 = 64 << 20;
/// Free space in bytes below which the user is warned.
const LITTLE_ROOM: u64 = 512 << 20;
/// Number of further files below which agentd soon fails.
const NO_FILES: u64 = 100;
const LITTLE_FILES: u64 = 1000;
/// Length of a keeper's socket path after the runtime directory: `/ID/keeper.sock`.
const KEEPER: usize = "/kmdn0eq26qgf/keeper.sock".len();

/// Directory of agentd.
#[derive(Debug)]
pub(super) struct Place {
    what: &'static str,
    pub(super) path: PathBuf,
    /// Other users must not have access.
    private: bool,
}

/// State of the file system of a directory.
#[derive(Debug)]
pub(super) struct Volume {
    path: PathBuf,
    free: u64,
    /// Number of files that can still be created; `None` if the file system does not count them.
    files: Option<u64>,
    read_only: bool,
}

/// Returns the directories of the running daemon, or the default directories. The runtime directory is first.
///
/// `other` is the home directory of another user, whose directories do not depend on this process's environment.
pub(super) fn places(running: Option<&VersionView>, socket: &Path, other: Option<&Path>) -> Result<Vec<Place>, Error> {
    let variable = |name: &str| match other {
        Some(home) => (name == "HOME").then(|| home.to_owned()),
        None => std::env::var_os(name).map(PathBuf::from),
    };
    let home = other.map_or_else(home_directory, |home| Ok(home.to_owned())).map_err(Error::Setup)?;
    let xdg = |name: &str, below: &str| {
        variable(name).filter(|path| path.is_absolute()).unwrap_or_else(|| home.join(below)).join("agentd")
    };
    let (runtime, state) = match running {
        Some(view) => (view.runtime_directory.clone(), view.state_directory.clone()),
        None => {
            (socket.parent().map(Path::to_owned).unwrap_or_default(), state_directory(variable).map_err(Error::Setup)?)
        }
    };
    let place = |what, path, private| Place { what, path, private };
    Ok(vec![
        place("runtime", runtime, true),
        place("sessions", state.join("sessions"), true),
        place("state", state, true),
        place("cache", xdg("XDG_CACHE_HOME", ".cache"), false),
        place("configuration", xdg("XDG_CONFIG_HOME", ".config"), false),
    ])
}

/// Returns the state directory.
pub(super) fn state(places: &[Place]) -> Option<&Path> {
    places.iter().find(|place| place.what == "state").map(|place| place.path.as_path())
}

/// Checks owners and modes. A missing directory is no finding: agentd creates it when needed.
pub(super) fn directories(places: &[Place], uid: u32) -> Check {
    let mut findings = Vec::new();
    for Place { what, path, private } in places {
        let Ok(metadata) = std::fs::metadata(path) else { continue };
        let shown = path.display();
        let word = shell_word(&path.to_string_lossy());
        let mut found = |outcome, summary: String, command: String| {
            findings.push(Finding::bare(outcome, summary).run(command));
        };
        if !metadata.is_dir() {
            found(Outcome::Fail, format!("{shown} is not a directory"), format!("mv {word} {word}.aside"));
        } else if metadata.uid() != uid {
            let summary = format!("the {what} directory {shown} belongs to user {}", metadata.uid());
            findings
                .push(Finding::bare(Outcome::Fail, summary).run(Command::of_root(format!("chown -R {uid} {word}"))));
        } else if metadata.mode() & 0o700 != 0o700 {
            let summary =
                format!("the {what} directory {shown} is closed to its owner (mode {:o})", metadata.mode() & 0o7777);
            found(Outcome::Fail, summary, format!("chmod u+rwx {word}"));
        } else if metadata.mode() & 0o022 != 0 {
            let summary =
                format!("other users can write to the {what} directory {shown} (mode {:o})", metadata.mode() & 0o7777);
            found(Outcome::Fail, summary, format!("chmod go-w {word}"));
        } else if *private && metadata.mode() & 0o077 != 0 {
            let summary =
                format!("other users can read the {what} directory {shown} (mode {:o})", metadata.mode() & 0o7777);
            found(Outcome::Warn, summary, format!("chmod 700 {word}"));
        }
    }
    let check = Check::of("directories", &findings, "agentd's directories are private");
    places.iter().fold(check, |check, place| check.fact(place.what, place.path.display().to_string()))
}

/// Checks the free space of each existing directory, or of the parent in which it would be created.
#[allow(clippy::useless_conversion, reason = "macOS counts blocks in 32 bits")]
pub(super) fn volumes(places: &[Place]) -> Vec<Volume> {
    let volume = |place: &Place| {
        let there = place.path.ancestors().find(|path| path.exists())?;
        let found = statvfs(there).ok()?;
        let counts = found.files() > 0;
        Some(Volume {
            path: place.path.clone(),
            free: u64::from(found.blocks_available()).saturating_mul(found.fragment_size()),
            files: counts.then(|| u64::from(found.files_available())),
            read_only: found.flags().contains(FsFlags::ST_RDONLY),
        })
    };
    places.iter().filter_map(volume).collect()
}

pub(super) fn disk(volumes: &[Volume]) -> Check {
    let mut findings = Vec::new();
    for Volume { path, free, files, read_only } in volumes {
        let shown = path.display();
        let files = files.unwrap_or(u64::MAX);
        if *read_only {
            let remedy = "mount it for writing; the kernel's log shows the reason";
            findings.push(Finding::new(Outcome::Fail, format!("the file system of {shown} is read-only"), remedy));
        } else if *free < LITTLE_ROOM {
            let outcome = if *free < NO_ROOM { Outcome::Fail } else { Outcome::Warn };
            let remedy = "free space: sessions pause while nothing can be written; agentctl rm SESSION removes \
                 one with its journal";
            findings.push(Finding::new(outcome, format!("{} MB are free for {shown}", free >> 20), remedy));
        } else if files < LITTLE_FILES {
            let outcome = if files < NO_FILES { Outcome::Fail } else { Outcome::Warn };
            let remedy = "remove files: the file system has free space but no free inodes";
            findings.push(Finding::new(outcome, format!("{files} more files can be made for {shown}"), remedy));
        }
    }
    let check = Check::of("disk", &findings, "enough free space");
    volumes.iter().fold(check, |check, volume| {
        check.fact(volume.path.display().to_string(), format!("{} MB free", volume.free >> 20))
    })
}

/// Checks the length of a socket's path against the limit in unix(7) and the same page of macOS.
pub(super) fn path_length(runtime: &Path, os: &str) -> Check {
    let limit = if os == "macos" { 103 } else { 107 };
    let length = runtime.as_os_str().len() + KEEPER;
    if length <= limit {
        return Check::new("socket path", Outcome::Pass, format!("{length} bytes of {limit}"));
    }
    Check::new(
        "socket path",
        Outcome::Fail,
        format!("a keeper's socket in {} would have a path of {length} bytes", runtime.display()),
    )
    .remedy(format!("choose a shorter XDG_RUNTIME_DIR: the limit is {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_is_somebody_elses_or_open_to_others_is_told() {
        let root = tempfile::tempdir().unwrap();
        let uid = nix::unistd::getuid().as_raw();
        let check = |mode: u32, uid: u32| {
            std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let place = Place { what: "state", path: root.path().to_owned(), private: true };
            directories(&[place], uid).outcome
        };
        assert_eq!(check(0o700, uid), Outcome::Pass);
        assert_eq!(check(0o500, uid), Outcome::Fail);
        assert_eq!(check(0o755, uid), Outcome::Warn);
        assert_eq!(check(0o770, uid), Outcome::Fail);
        assert_eq!(check(0o700, uid + 1), Outcome::Fail);
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let place = |path| [Place { what: "state", path, private: true }];
        assert_eq!(directories(&place(file), uid).outcome, Outcome::Fail);
        assert_eq!(directories(&place(root.path().join("none")), uid).outcome, Outcome::Pass);
    }

    #[test]
    fn a_full_disk_one_without_files_and_one_that_is_read_only_fail() {
        let volume = |free: u64, files: u64, read_only: bool| {
            disk(&[Volume { path: "/state".into(), free: free << 20, files: Some(files), read_only }]).outcome
        };
        assert_eq!(volume(100_000, 100_000, false), Outcome::Pass);
        assert_eq!(volume(300, 100_000, false), Outcome::Warn);
        assert_eq!(volume(3, 100_000, false), Outcome::Fail);
        assert_eq!(volume(100_000, 500, false), Outcome::Warn);
        assert_eq!(volume(100_000, 3, false), Outcome::Fail);
        assert_eq!(volume(100_000, 100_000, true), Outcome::Fail);
        let here = Place { what: "state", path: std::env::temp_dir().join("not/made/yet"), private: true };
        let found = volumes(&[here]);
        assert!(found[0].free > 0 && !found[0].read_only, "{found:?}");
    }

    #[test]
    fn a_path_that_leaves_no_room_for_a_keepers_socket_fails() {
        assert_eq!(path_length(Path::new("/run/user/1000/agentd"), "linux").outcome, Outcome::Pass);
        let limit = "/".repeat(107 - KEEPER);
        assert_eq!(path_length(Path::new(&limit), "linux").outcome, Outcome::Pass);
        assert_eq!(path_length(Path::new(&limit), "macos").outcome, Outcome::Fail);
        assert_eq!(path_length(Path::new(&"/".repeat(108 - KEEPER)), "linux").outcome, Outcome::Fail);
    }
}
