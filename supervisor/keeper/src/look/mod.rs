//! `agentd-keeper look` queries files and names for the daemon, in a process that may hang and can be killed.
//!
//! A dead file server or name service can block its caller in the kernel or in the C library forever. Here it blocks
//! only this process, which the daemon kills after a timeout. Requests come as frames on stdin and are answered in
//! order.
//!
//! One process serves many lookups, one after the other. [`LookupRequest::Begin`] separates them: nothing of a lookup
//! is kept for the next one. A process without work waits for as long as its stdin is open.
//!
//! A file is examined in two steps. [`LookupRequest::Resolve`] returns its resolved path, which the requester can
//! check. The next request then examines that file. A resolved path has no symbolic links, and opening it fails if one
//! has appeared since.
//!
//! This module does not decide who may examine which file, or for how long.

mod exchange;

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use agentd_api::ByteString;
use agentd_api::event::PlaceHost;
use agentd_api::facts::DirectoryIdentity;
use dns_lookup::{AddrInfoHints, LookupErrorKind};
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access, alarm};
use serde::{Deserialize, Serialize};

pub use exchange::{ExchangeEnd, ExchangeStep, Exchanged, NotConnected};

use crate::frame::{self, FrameError};
use crate::os;
use crate::place::host;

/// Maximum number of entries of a directory that [`LookupRequest::Directories`] reads.
const EXAMINED: usize = 100_000;

/// Request to examine a file or a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupRequest {
    /// Begins a lookup and forgets the file of the lookup before. Has no answer. An alarm kills the process if one of
    /// the next requests takes more than this many seconds.
    Begin { seconds: u32 },
    /// Resolves a path and selects its file for the next requests; [`LookupAnswer::Path`] or [`LookupAnswer::Absent`].
    Resolve(ByteString),
    /// Returns the metadata of the selected file; [`LookupAnswer::Metadata`].
    Inspect,
    /// Returns the content of the selected regular file; [`LookupAnswer::Content`].
    Read { most: u64 },
    /// Returns the sorted names in the selected directory; [`LookupAnswer::Names`].
    Entries { most: u64 },
    /// Returns the sorted names of the directories in the directory at this path that begin with `prefix`;
    /// [`LookupAnswer::Directories`]. Links to directories count. Names that begin with a dot count if `prefix` does
    /// too.
    Directories { path: ByteString, prefix: ByteString, most: u64 },
    /// Returns the first of these paths that exists. It must be a program; [`LookupAnswer::Program`].
    Program(Vec<ByteString>),
    /// Returns the kind of the file at this path, following links; [`LookupAnswer::Place`].
    Place(ByteString),
    /// Returns the device of this path, as its file system reports it now; [`LookupAnswer::Device`].
    Device(ByteString),
    /// Returns the numbers that identify the directory at this path; [`LookupAnswer::Identity`].
    Identity(ByteString),
    /// Returns the addresses of a host from getaddrinfo(3); [`LookupAnswer::Addresses`].
    Addresses(String),
    /// Returns facts about the machine and the user; [`LookupAnswer::Host`].
    Host,
    /// Connects to the first of these addresses that answers, and performs the steps; [`LookupAnswer::Exchanged`] or
    /// [`LookupAnswer::NotConnected`].
    Exchange { addresses: Vec<SocketAddr>, time_ms: u64, steps: Vec<ExchangeStep> },
}

/// Answer to a [`LookupRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LookupAnswer {
    Path(ByteString),
    /// The path does not exist. `path` is resolved as far as it exists, and its rest is as requested.
    Absent {
        path: ByteString,
        why: FailureReason,
        text: String,
    },
    Metadata(FileInfo),
    Content(ByteString),
    Names(Vec<ByteString>),
    /// Names of directories. `is_cut` means that there are more.
    Directories {
        names: Vec<ByteString>,
        is_cut: bool,
    },
    /// The program's path as requested, and fully resolved.
    Program {
        named: ByteString,
        path: ByteString,
    },
    Place {
        /// Fully resolved path.
        path: ByteString,
        kind: Kind,
        /// Whether this user may execute the file or enter the directory.
        usable: bool,
    },
    /// Device as `major:minor`.
    Device(String),
    /// Resolved path of a directory, and its numbers.
    Identity {
        path: ByteString,
        identity: DirectoryIdentity,
        /// Whether the directory or a directory above it has an entry `.git`, or may have one.
        may_have_repository: bool,
    },
    /// Addresses without ports. A link-local address ends in `%` and the number of its interface.
    Addresses(Vec<String>),
    Host(Box<PlaceHost>),
    Exchanged(Exchanged),
    NotConnected(Vec<NotConnected>),
    Not {
        why: FailureReason,
        text: String,
    },
}

/// Metadata of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Kind of the file.
    pub kind: Kind,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// Time of the last modification, in milliseconds since 1970.
    pub modified: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    File,
    Directory,
    Other,
}

/// Reason why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureReason {
    /// The file does not exist, or the name service reports an unknown host.
    NotFound,
    /// This user has no permission, or the path is not a file, directory or program as requested.
    Unusable,
    /// A symbolic link has replaced a part of the path since it was resolved.
    Changed,
    TooLarge,
    Other,
}

/// Error of the role itself.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("cannot close inherited file descriptors")]
    Inherited(#[source] io::Error),
    #[error("cannot read a request from stdin")]
    Question(#[source] FrameError),
    #[error("cannot write an answer to stdout")]
    Answer(#[source] FrameError),
}

/// Reason and message of a failed request.
struct Failure(FailureReason, String);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => FailureReason::NotFound,
            io::ErrorKind::PermissionDenied => FailureReason::Unusable,
            _ => FailureReason::Other,
        };
        Self(why, error.to_string())
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

/// Answers the requests on `input` until its end. The requester may be gone while a request hangs, so an alarm kills
/// the process. The alarm also kills the process if its first request does not arrive within `seconds`. The calling
/// process must have no file descriptors except stdin, stdout and stderr.
pub fn look(seconds: u32, input: impl Read, output: &mut impl Write) -> Result<(), LookError> {
    os::close_inherited(None).map_err(LookError::Inherited)?;
    // This process reads files with secrets.
    crate::private::protect_memory(None).map_err(LookError::Inherited)?;
    serve(seconds, input, output)
}

fn serve(seconds: u32, mut input: impl Read, output: &mut impl Write) -> Result<(), LookError> {
    alarm::set(seconds);
    let (mut resolved, mut longest) = (PathBuf::new(), seconds);
    while let Some(question) = frame::read(&mut input).map_err(LookError::Question)? {
        if let LookupRequest::Begin { seconds } = question {
            (resolved, longest) = (PathBuf::new(), seconds.max(1));
            continue;
        }
        alarm::set(longest);
        let answer =
            answer(question, &mut resolved).unwrap_or_else(|Failure(why, text)| LookupAnswer::Not { why, text });
        frame::write(output, &answer).map_err(LookError::Answer)?;
        // Without a request, the end of stdin ends the process.
        alarm::cancel();
    }
    Ok(())
}

fn answer(look: LookupRequest, resolved: &mut PathBuf) -> Result<LookupAnswer, Failure> {
    Ok(match look {
        LookupRequest::Begin { .. } => return Err(Failure(FailureReason::Other, "it has no answer".to_owned())),
        LookupRequest::Resolve(path) => {
            let asked = Path::new(path.as_os_str());
            match asked.canonicalize().map_err(Failure::from) {
                Ok(found) => *resolved = found,
                Err(Failure(why, text)) => {
                    return Ok(LookupAnswer::Absent { path: nearest(asked).as_os_str().into(), why, text });
                }
            }
            LookupAnswer::Path(resolved.as_os_str().into())
        }
        LookupRequest::Inspect => LookupAnswer::Metadata(seen(&File::from(pin(resolved)?).metadata()?)),
        LookupRequest::Read { most } => LookupAnswer::Content(content(resolved, most)?.into()),
        LookupRequest::Entries { most } => LookupAnswer::Names(names(resolved, most)?),
        LookupRequest::Directories { path, prefix, most } => {
            directories(Path::new(path.as_os_str()), &prefix.0, usize::try_from(most).unwrap_or(usize::MAX))?
        }
        LookupRequest::Program(candidates) => program(&candidates)?,
        LookupRequest::Place(path) => place(Path::new(path.as_os_str()))?,
        LookupRequest::Device(path) => device(Path::new(path.as_os_str()))?,
        LookupRequest::Identity(path) => identity(Path::new(path.as_os_str()))?,
        LookupRequest::Addresses(host) => LookupAnswer::Addresses(addresses(&host)?),
        LookupRequest::Exchange { addresses, time_ms, steps } => {
            match exchange::exchange(&addresses, Duration::from_millis(time_ms), &steps) {
                Ok(exchanged) => LookupAnswer::Exchanged(exchanged),
                Err(failures) => LookupAnswer::NotConnected(failures),
            }
        }
        LookupRequest::Host => LookupAnswer::Host(Box::new(host::facts())),
    })
}

fn nearest(path: &Path) -> PathBuf {
    let there = path.ancestors().skip(1).find_map(|above| Some((above, above.canonicalize().ok()?)));
    match there {
        Some((above, resolved)) => resolved.join(path.strip_prefix(above).unwrap_or(path)),
        None => path.to_owned(),
    }
}

fn pin(path: &Path) -> Result<OwnedFd, Failure> {
    os::pin(path).map_err(|error| match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::ELOOP => {
            Failure(FailureReason::Changed, "a symbolic link took its place while it was looked at".to_owned())
        }
        _ => error.into(),
    })
}

fn kind(metadata: &Metadata) -> Kind {
    match metadata {
        it if it.is_file() => Kind::File,
        it if it.is_dir() => Kind::Directory,
        _ => Kind::Other,
    }
}

fn seen(metadata: &Metadata) -> FileInfo {
    let kind = kind(metadata);
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    FileInfo {
        kind,
        size: if kind == Kind::Directory { 0 } else { metadata.len() },
        modified: u64::try_from(modified.as_millis()).unwrap_or(u64::MAX),
    }
}

fn content(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let pinned = pin(path)?;
    let metadata = File::from(pinned.try_clone()?).metadata()?;
    if !metadata.is_file() {
        return Err(Failure(FailureReason::Unusable, "it is not a regular file".to_owned()));
    }
    let too_large = || Failure(FailureReason::TooLarge, format!("it has more than {most} bytes"));
    if metadata.len() > most {
        return Err(too_large());
    }
    let mut content = Vec::new();
    // Files of proc(5) report a size of 0.
    File::from(os::reopen(&pinned)?).take(most.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > most { Err(too_large()) } else { Ok(content) }
}

fn names(path: &Path, most: u64) -> Result<Vec<ByteString>, Failure> {
    let pinned = pin(path)?;
    if !File::from(pinned.try_clone()?).metadata()?.is_dir() {
        return Err(Failure(FailureReason::Unusable, "it is not a directory".to_owned()));
    }
    let mut names: Vec<ByteString> = Vec::new();
    for entry in nix::dir::Dir::from_fd(os::reopen(&pinned)?)?.iter() {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() as u64 == most {
            return Err(Failure(FailureReason::TooLarge, format!("it has more than {most} entries")));
        }
        names.push(name.to_bytes().to_vec().into());
    }
    names.sort();
    Ok(names)
}

/// Lists at most the first `most` directories in the order of their names. At most [`EXAMINED`] entries are read.
fn directories(path: &Path, prefix: &[u8], most: usize) -> Result<LookupAnswer, Failure> {
    let mut names = BTreeSet::new();
    let mut is_cut = false;
    for (count, entry) in path.read_dir()?.enumerate() {
        if count == EXAMINED {
            is_cut = true;
            break;
        }
        let entry = entry?;
        let name = entry.file_name();
        let is_hidden = name.as_bytes().starts_with(b".") && !prefix.starts_with(b".");
        let is_meant = name.as_bytes().starts_with(prefix) && !is_hidden;
        // A link is followed, so that a directory on another disk is listed.
        if is_meant && entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_symlink() && entry.path().is_dir()) {
            names.insert(name);
        }
        if names.len() > most {
            is_cut = true;
            names.pop_last();
        }
    }
    let names = names.iter().map(|name| name.as_bytes().to_vec().into()).collect();
    Ok(LookupAnswer::Directories { names, is_cut })
}

fn program(candidates: &[ByteString]) -> Result<LookupAnswer, Failure> {
    for named in candidates {
        let path = match Path::new(named.as_os_str()).canonicalize().map_err(Failure::from) {
            Err(Failure(FailureReason::NotFound, _)) => continue,
            path => path?,
        };
        if !path.metadata()?.is_file() || access(&path, AccessFlags::X_OK).is_err() {
            return Err(Failure(FailureReason::Unusable, "it is not a file that may be executed".to_owned()));
        }
        return Ok(LookupAnswer::Program { named: named.clone(), path: path.as_os_str().into() });
    }
    Err(Failure(FailureReason::NotFound, "there is no such program".to_owned()))
}

fn place(path: &Path) -> Result<LookupAnswer, Failure> {
    let resolved = path.canonicalize()?;
    let kind = kind(&resolved.metadata()?);
    let usable = access(&resolved, AccessFlags::X_OK).is_ok();
    Ok(LookupAnswer::Place { path: resolved.as_os_str().into(), kind, usable })
}

/// Returns the numbers of a directory. The device number of many file systems is new after each start of the machine.
fn identity(path: &Path) -> Result<LookupAnswer, Failure> {
    let resolved = path.canonicalize()?;
    let metadata = resolved.metadata()?;
    if !metadata.is_dir() {
        return Err(Failure(FailureReason::Unusable, "it is not a directory".to_owned()));
    }
    // Only Linux has this file.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let identity = DirectoryIdentity { device: metadata.dev(), inode: metadata.ino(), boot: boot.trim().to_owned() };
    // git does not look beyond the border of a file system (git(1), GIT_DISCOVERY_ACROSS_FILESYSTEM).
    let is_here = |above: &&Path| above.metadata().is_ok_and(|above| above.dev() == metadata.dev());
    let may_have_repository = resolved.ancestors().take_while(is_here).any(has_git);
    Ok(LookupAnswer::Identity { path: resolved.as_os_str().into(), identity, may_have_repository })
}

/// Reports whether a directory has an entry `.git`, by which git finds a repository (gitrepository-layout(5)). An entry
/// that cannot be examined counts.
fn has_git(directory: &Path) -> bool {
    !matches!(directory.join(".git").symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Returns the device of a path. The answer of stat(2) can come from a cache that is a minute old; the answer of
/// statvfs(3) cannot.
fn device(path: &Path) -> Result<LookupAnswer, Failure> {
    let device = path.metadata()?.dev();
    match nix::sys::statvfs::statvfs(path) {
        Ok(_) | Err(Errno::ENOSYS | Errno::EOPNOTSUPP) => {}
        Err(errno) => return Err(errno.into()),
    }
    let (major, minor) = os::device(device);
    Ok(LookupAnswer::Device(format!("{major}:{minor}")))
}

fn addresses(host: &str) -> Result<Vec<String>, Failure> {
    let hints = AddrInfoHints { socktype: nix::libc::SOCK_STREAM, ..AddrInfoHints::default() };
    let found = dns_lookup::getaddrinfo(Some(host), None, Some(hints)).map_err(|error| {
        let why = match error.kind() {
            LookupErrorKind::NoName | LookupErrorKind::NoData => FailureReason::NotFound,
            _ => FailureReason::Other,
        };
        Failure(why, io::Error::from(error).to_string())
    })?;
    let mut addresses: Vec<String> = Vec::new();
    for one in found {
        let address = match one?.sockaddr {
            SocketAddr::V6(address) if address.scope_id() != 0 => {
                format!("{}%{}", address.ip(), address.scope_id())
            }
            address => address.ip().to_string(),
        };
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests;
