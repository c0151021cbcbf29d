//! Reads one named secret from its source.

use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::login::capture::{Capture, CaptureError};
use crate::login::seed::{Seed, SeedError};

/// Maximum length of a value in bytes. The limit of execve(2) for one variable with its name is 128 KiB.
const LONGEST: usize = 64 << 10;

/// Reason why a secret could not be read. The message names the remedy and never the value.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path:?} is not a file")]
    NotAFile { path: PathBuf },
    #[error("{path:?} belongs to user {uid}; it must be yours or root's")]
    Owner { path: PathBuf, uid: u32 },
    #[error("{path:?} can be read or written by others (mode {mode:03o}); run `chmod 600 {}`", path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error(
        "agentd has no $CREDENTIALS_DIRECTORY; start it as a service of systemd that has LoadCredential={name}:PATH"
    )]
    NoCredentials { name: String },
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    #[error("it has a NUL byte in it, which no variable can hold")]
    Nul,
    #[error("no login shell can be run")]
    Seed(#[source] SeedError),
    #[error(transparent)]
    Command(CaptureError),
    #[error("the login shell sets no {variable}")]
    NotSet { variable: String },
    #[error("{0}")]
    NoSnapshot(String),
    #[error("it took longer than {seconds} s")]
    TimedOut { seconds: u64 },
    #[error("internal error: the task that reads the secret failed (please report, with agentd.log)")]
    Defect,
}

/// Reads a file that only its owner can read, and that belongs to the user or root.
pub fn file(path: &Path, seed: Result<Seed, SeedError>) -> Result<Vec<u8>, SourceError> {
    let path = match path.strip_prefix("~") {
        Ok(rest) => seed.map_err(SourceError::Seed)?.home.join(rest),
        Err(_) => path.to_owned(),
    };
    let failed = |source| SourceError::Read { path: path.clone(), source };
    let file = open(&path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(SourceError::NotAFile { path });
    }
    let (uid, mode) = (metadata.uid(), metadata.mode() & 0o777);
    if uid != 0 && uid != nix::unistd::getuid().as_raw() {
        return Err(SourceError::Owner { path, uid });
    }
    if mode & 0o077 != 0 {
        return Err(SourceError::Mode { path, mode });
    }
    read(file).map_err(failed)?
}

/// Reads a credential that systemd passed (systemd.exec(5), `LoadCredential=`). systemd controls its owner and
/// access. The mode is not checked, because access control lists change its meaning.
pub fn credential(name: &str, directory: Option<&Path>) -> Result<Vec<u8>, SourceError> {
    let directory = directory.ok_or_else(|| SourceError::NoCredentials { name: name.to_owned() })?;
    let path = directory.join(name);
    let failed = |source| SourceError::Read { path: path.clone(), source };
    read(open(&path).map_err(failed)?).map_err(failed)?
}

/// Returns the output of a program that succeeds.
pub(super) async fn command(
    command: &[String],
    capture: &Capture,
    seed: Result<Seed, SeedError>,
    deadline: Instant,
) -> Result<Vec<u8>, SourceError> {
    let seed = seed.map_err(SourceError::Seed)?;
    let printed = capture.output(command, &seed, LONGEST + 1, deadline).await.map_err(SourceError::Command)?;
    value(printed)
}

/// Returns a variable of the login shell.
pub(super) fn snapshot(variable: &str, login: Result<&[(String, Vec<u8>)], String>) -> Result<Vec<u8>, SourceError> {
    let login = login.map_err(SourceError::NoSnapshot)?;
    let found = login.iter().find(|(name, _)| name == variable);
    let (_, found) = found.ok_or_else(|| SourceError::NotSet { variable: variable.to_owned() })?;
    if found.is_empty() { Err(SourceError::Empty) } else { Ok(found.clone()) }
}

/// Opens a file without waiting for a writer, in case the file is a pipe.
fn open(path: &Path) -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY).open(path)
}

fn read(file: std::fs::File) -> io::Result<Result<Vec<u8>, SourceError>> {
    let mut bytes = Vec::new();
    file.take(LONGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(value(bytes))
}

/// Removes one trailing line end, which editors and `echo` add, and checks the value.
fn value(mut bytes: Vec<u8>) -> Result<Vec<u8>, SourceError> {
    if bytes.len() > LONGEST {
        return Err(SourceError::TooLong);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    match bytes {
        bytes if bytes.is_empty() => Err(SourceError::Empty),
        bytes if bytes.contains(&0) => Err(SourceError::Nul),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn login(home: &Path) -> Result<Seed, SeedError> {
        Seed::find(Some(home), Some(Path::new("/bin/sh")))
    }

    fn read(path: &Path) -> Result<Vec<u8>, SourceError> {
        file(path, login(Path::new("/")))
    }

    fn written(directory: &Path, content: &[u8], mode: u32) -> PathBuf {
        let path = directory.join("secret");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_file_is_read_exactly_except_for_its_last_line_end() {
        let directory = tempfile::tempdir().unwrap();
        for (content, expected) in
            [(&b"a=b \xff"[..], &b"a=b \xff"[..]), (b"one\ntwo\n", b"one\ntwo"), (b"x\r\n", b"x"), (b"x\n\n", b"x\n")]
        {
            assert_eq!(read(&written(directory.path(), content, 0o600)).unwrap(), expected);
        }
        written(directory.path(), b"x", 0o400);
        assert_eq!(file(Path::new("~/secret"), login(directory.path())).unwrap(), b"x");
    }

    #[test]
    fn each_reason_for_refusing_a_file_has_its_own_message() {
        let directory = tempfile::tempdir().unwrap();
        let long = vec![b'x'; LONGEST + 1];
        for (content, mode, expected) in [
            (&b"x"[..], 0o640, "mode 640"),
            (b"x", 0o604, "chmod 600"),
            (b"\n", 0o600, "it is empty"),
            (b"a\0b", 0o600, "NUL"),
            (&long, 0o600, "longer than 65536"),
        ] {
            let error = read(&written(directory.path(), content, mode)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = read(&directory.path().join("none")).unwrap_err();
        assert!(matches!(error, SourceError::Read { .. }), "{error}");
        assert!(matches!(read(directory.path()).unwrap_err(), SourceError::NotAFile { .. }));
        let nobody = Seed::find(Some(directory.path()), Some(Path::new("/no/such/shell")));
        assert!(matches!(file(Path::new("~/secret"), nobody).unwrap_err(), SourceError::Seed(_)));
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(read(&pipe).unwrap_err(), SourceError::NotAFile { .. }));
    }

    #[test]
    fn a_credential_is_a_file_of_the_directory_that_systemd_gave() {
        let directory = tempfile::tempdir().unwrap();
        written(directory.path(), b"x\n", 0o440);
        assert_eq!(credential("secret", Some(directory.path())).unwrap(), b"x");
        let error = credential("secret", None).unwrap_err().to_string();
        assert!(error.contains("LoadCredential=secret:PATH"), "{error}");
    }

    #[test]
    fn a_variable_of_the_login_shell_is_read_or_reported_missing() {
        let login = [("A".to_owned(), b"x".to_vec()), ("EMPTY".to_owned(), Vec::new())];
        assert_eq!(snapshot("A", Ok(&login)).unwrap(), b"x");
        assert!(matches!(snapshot("EMPTY", Ok(&login)).unwrap_err(), SourceError::Empty));
        assert!(matches!(snapshot("B", Ok(&login)).unwrap_err(), SourceError::NotSet { .. }));
        assert_eq!(snapshot("A", Err("no shell".to_owned())).unwrap_err().to_string(), "no shell");
    }
}
