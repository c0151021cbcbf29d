//! Delivers the results of a run into a directory: the artifacts, the journal, the daemon's log and `result.json`.
//!
//! The agent wrote the artifacts, so nothing among them is trusted: links are not followed, and special files are not
//! opened. A file that cannot be copied is named in the result, and the others are still copied. Space for the result
//! itself is reserved before anything else is written, so that a full disk is reported there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use agentd_journal::{JOURNAL, ReadError, Reader};
use nix::libc;

use crate::place::Place;
use crate::result::RunResult;

/// Name of the result.
const RESULT: &str = "result.json";
/// Name of the result until everything else is delivered.
const RESERVE: &str = ".result.json.partial";
/// Name of the directory of the artifacts, here and in a workspace.
const ARTIFACTS: &str = "artifacts";
/// Name of the daemon's log.
const LOG: &str = "agentd.log";
/// Space for the names of undelivered files, in bytes.
const ROOM: usize = 8 << 10;
/// Maximum depth of directories.
const DEPTH: usize = 64;

/// Reason why nothing can be delivered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DestinationError {
    #[error("cannot write to the directory {}: {source}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error(
        "the directory {} already has a {RESULT}: give each run a directory of its own, or remove the file",
        path.display()
    )]
    Used { path: PathBuf },
}

/// The directory that receives the results.
#[derive(Debug)]
pub(crate) struct Destination {
    directory: PathBuf,
    reserve: File,
}

/// The files of a run that are delivered.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Directory of the session's stored files.
    session: Option<PathBuf>,
    /// Artifacts directory of the session's workspace.
    artifacts: Option<PathBuf>,
    log: PathBuf,
}

impl Sources {
    /// Returns the files of a run in this place.
    pub(crate) fn of(place: &Place, result: &RunResult) -> Self {
        let state = place.state();
        let created = result.created.as_ref();
        let workspace = created.and_then(|created| created.workspace.as_ref());
        Self {
            session: created.map(|created| state.join("sessions").join(created.id.as_str())),
            artifacts: workspace.map(|owner| state.join("workspaces").join(owner.as_str()).join(ARTIFACTS)),
            log: state.join(LOG),
        }
    }
}

impl Destination {
    /// Creates the directory, and checks that files can be written there. Another run's result is not replaced.
    pub(crate) fn open(directory: &Path) -> Result<Self, DestinationError> {
        let unwritable = |source| DestinationError::Unwritable { path: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(unwritable)?;
        if fs::symlink_metadata(directory.join(RESULT)).is_ok() {
            return Err(DestinationError::Used { path: directory.to_owned() });
        }
        let reserve = File::create(directory.join(RESERVE)).map_err(unwritable)?;
        Ok(Self { directory: directory.to_owned(), reserve })
    }

    /// Copies everything that can be copied, and writes the result last.
    pub(crate) fn deliver(mut self, sources: Option<&Sources>, result: &mut RunResult) {
        // Even if the room is missing, the result itself may fit.
        let _ = self.write_result(result, ROOM);
        if let Some(sources) = sources {
            self.copy(sources, result);
        }
        // The reserved file is overwritten in place, which needs no further space.
        let written = self.write_result(result, 0).and_then(|()| {
            self.reserve.sync_all()?;
            fs::rename(self.directory.join(RESERVE), self.directory.join(RESULT))?;
            File::open(&self.directory)?.sync_all()
        });
        if let Err(error) = written {
            let _ = fs::remove_file(self.directory.join(RESERVE));
            result.undelivered(format!("{RESULT}: {error}"));
        }
    }

    /// Writes the result with this number of blanks behind it.
    fn write_result(&mut self, result: &RunResult, room: usize) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(result).map_err(io::Error::other)?;
        text.push(b'\n');
        text.resize(text.len() + room, b' ');
        self.reserve.seek(SeekFrom::Start(0))?;
        self.reserve.write_all(&text)?;
        self.reserve.set_len(text.len() as u64)
    }

    fn copy(&self, sources: &Sources, result: &mut RunResult) {
        if let Some(session) = &sources.session {
            let path = self.directory.join(JOURNAL);
            if let Err(error) = copy_journal(session, &path) {
                let _ = fs::remove_file(path);
                result.undelivered(format!("{JOURNAL}: {error}; it stays in {}", session.display()));
            }
        }
        if let Some(artifacts) = &sources.artifacts {
            copy_directory(artifacts, &self.directory.join(ARTIFACTS), 0, result);
        }
        match copy_file(&sources.log, &self.directory.join(LOG)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => result.undelivered(format!("{LOG}: {error}")),
            _ => {}
        }
    }
}

/// Copies all records of a journal into one file.
fn copy_journal(session: &Path, path: &Path) -> io::Result<()> {
    let failed = |error: ReadError| io::Error::other(agentd_api::chain(&error));
    let mut reader = Reader::open(session, 0).map_err(failed)?;
    let mut out = io::BufWriter::new(File::create(path)?);
    while let Some(line) = reader.next().map_err(failed)? {
        out.write_all(line.bytes)?;
        out.write_all(b"\n")?;
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// Copies the regular files below a directory. A missing directory has no files.
fn copy_directory(from: &Path, to: &Path, depth: usize, result: &mut RunResult) {
    let entries = match fs::symlink_metadata(from) {
        Ok(found) if found.is_dir() => fs::read_dir(from).and_then(Iterator::collect::<io::Result<Vec<_>>>),
        // A link is no directory of artifacts.
        Ok(_) => return,
        Err(error) => Err(error),
    };
    let entries = match entries {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => return result.undelivered(format!("{}: {error}", from.display())),
        Ok(entries) => entries,
    };
    if let Err(error) = fs::create_dir_all(to) {
        return result.undelivered(format!("{}: {error}; the files stay in {}", to.display(), from.display()));
    }
    for entry in entries {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth == DEPTH => {
                result.undelivered(format!("{}: more than {DEPTH} directories deep", from.display()));
            }
            Ok(kind) if kind.is_dir() => copy_directory(&from, &to, depth + 1, result),
            Ok(kind) if kind.is_file() => {
                if let Err(error) = copy_file(&from, &to) {
                    // A part of a file is worse than no file.
                    let _ = fs::remove_file(&to);
                    result.undelivered(format!("{}: {error}; the file stays in {}", to.display(), from.display()));
                }
            }
            _ => {}
        }
    }
}

/// Copies a regular file with its permissions. Fails on another file, without waiting for a pipe.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(from)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mode = metadata.permissions().mode() & 0o777 | 0o400;
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).custom_flags(flags).open(to)?;
    io::copy(&mut file, &mut out)?;
    out.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::status::Status;

    fn delivered(artifacts: &Path, to: &Path) -> (RunResult, serde_json::Value) {
        let mut result = RunResult::early(Status::Completed, "the prompts are done".to_owned());
        let log = artifacts.with_file_name("agentd.log");
        let sources = Sources { session: None, artifacts: Some(artifacts.to_owned()), log };
        Destination::open(to).unwrap().deliver(Some(&sources), &mut result);
        let text = fs::read_to_string(to.join(RESULT)).unwrap();
        (result, serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn regular_files_are_copied_and_links_and_pipes_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let (artifacts, to, secret) =
            (root.path().join("artifacts"), root.path().join("to"), root.path().join("secret"));
        fs::create_dir_all(artifacts.join("sub")).unwrap();
        fs::write(&secret, "secret").unwrap();
        fs::write(artifacts.join("sub/tool"), "x").unwrap();
        fs::set_permissions(artifacts.join("sub/tool"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink(&secret, artifacts.join("link")).unwrap();
        symlink(root.path(), artifacts.join("up")).unwrap();
        nix::unistd::mkfifo(&artifacts.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (result, document) = delivered(&artifacts, &to);
        assert_eq!((result.exit_status, document["outcome"].as_str()), (0, Some("completed")));
        let names: Vec<_> = fs::read_dir(to.join("artifacts")).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(names, ["sub"]);
        let tool = to.join("artifacts/sub/tool");
        assert_eq!(fs::read_to_string(&tool).unwrap(), "x");
        // The umask decides about the other users.
        assert_eq!(fs::metadata(&tool).unwrap().permissions().mode() & 0o700, 0o700);
        assert!(!to.join(RESERVE).exists());
    }

    #[test]
    fn a_file_that_cannot_be_copied_is_named_and_the_others_are_copied() {
        let root = tempfile::tempdir().unwrap();
        let (artifacts, to) = (root.path().join("artifacts"), root.path().join("to"));
        fs::create_dir_all(&artifacts).unwrap();
        fs::write(artifacts.join("a"), "a").unwrap();
        fs::write(artifacts.join("b"), "b").unwrap();
        // A directory stands where the file has to be.
        fs::create_dir_all(to.join("artifacts/a")).unwrap();
        let (result, document) = delivered(&artifacts, &to);
        assert_eq!((result.exit_status, document["outcome"].as_str()), (8, Some("undelivered")));
        assert!(document["undelivered"][0].as_str().unwrap().contains("artifacts/a"), "{document}");
        assert_eq!(fs::read_to_string(to.join("artifacts/b")).unwrap(), "b");
    }

    #[test]
    fn the_result_of_another_run_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(RESULT), "{}").unwrap();
        assert!(matches!(Destination::open(root.path()), Err(DestinationError::Used { .. })));
        assert!(matches!(Destination::open(Path::new("/dev/null/x")), Err(DestinationError::Unwritable { .. })));
    }
}
