//! Describes the machine for the service's commands: its user, its files, and the way to run its programs.
//!
//! All of this is one value, so a test can provide another machine with other directories and stand-ins for the
//! manager's programs.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::{User, getuid};
use tokio::process::Command;

use super::ServiceError;

/// Time limit of one command of a manager, longer than a manager waits for a service's start.
const PATIENCE: Duration = Duration::from_mins(3);

/// Longest wait for a program that is open for writing.
const BUSY: Duration = Duration::from_secs(2);

/// A machine and the user on it.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// Operating system, as [`std::env::consts::OS`].
    pub(crate) os: &'static str,
    pub(crate) uid: u32,
    pub(crate) user: String,
    pub(crate) home: PathBuf,
    /// Search path of commands, as `PATH`.
    pub(crate) search: OsString,
    /// Prefix of `/etc`, `/usr`, `/run`, `/proc` and `/sys`; empty except in tests.
    pub(crate) root: PathBuf,
}

/// Result of a command that ended.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) success: bool,
    /// Exit status; `None` if a signal ended the command.
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    /// Exit status or signal, and the last lines of stderr, for users.
    pub(crate) complaint: String,
}

impl Host {
    /// Returns a fictitious machine.
    #[cfg(test)]
    pub(crate) fn of_kim() -> Self {
        Self {
            os: "linux",
            uid: 1000,
            user: "kim".into(),
            home: "/home/kim".into(),
            search: "/usr/bin:/bin".into(),
            root: PathBuf::new(),
        }
    }

    /// Returns this machine. A user without a passwd entry, as in many containers, is named by the user id.
    pub(crate) fn this() -> io::Result<Self> {
        let uid = getuid();
        let user = User::from_uid(uid).map_err(io::Error::from)?;
        Ok(Self {
            os: std::env::consts::OS,
            uid: uid.as_raw(),
            user: user.map_or_else(|| uid.to_string(), |user| user.name),
            home: crate::start::home_directory()?,
            search: std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()),
            root: PathBuf::new(),
        })
    }

    /// Returns this machine as another user's.
    pub(crate) fn of_user(&self, user: &User) -> Self {
        Self { uid: user.uid.as_raw(), user: user.name.clone(), home: user.dir.clone(), ..self.clone() }
    }

    /// Returns an absolute path below the machine's root.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        if self.root.as_os_str().is_empty() {
            return absolute.into();
        }
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// Builds a command with the environment that it needs to reach the user's manager, even without a login.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut words = words.iter();
        let mut command = Command::new(words.next().map_or_else(|| OsStr::new("true"), AsRef::as_ref));
        command.args(words).env("PATH", &self.search);
        let runtime = self.path(&format!("/run/user/{}", self.uid));
        if std::env::var_os("XDG_RUNTIME_DIR").is_none() && runtime.is_dir() {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        command
    }

    /// Runs a command to its end and captures its output.
    pub(crate) async fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<CommandOutput, ServiceError> {
        let line = line(words);
        let mut command = self.command(words);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, output_when_free(&mut command)).await;
        let output = output.map_err(|_| ServiceError::Hangs { command: line.clone(), seconds: PATIENCE.as_secs() })?;
        let output = output.map_err(|source| ServiceError::Execute { command: line.clone(), source })?;
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let end = match output.status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("status {}", output.status.code().unwrap_or_default()),
        };
        let complaint = match last.as_slice() {
            [] => end,
            lines => format!("{end}: {}", lines[lines.len().saturating_sub(3)..].join("; ")),
        };
        Ok(CommandOutput {
            success: output.status.success(),
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
            complaint,
        })
    }

    /// Returns the output of a command; `None` if it is missing or fails.
    pub(crate) async fn said<S: AsRef<OsStr>>(&self, words: &[S]) -> Option<String> {
        self.run(words).await.ok().filter(|ran| ran.success).map(|ran| ran.stdout)
    }

    /// Returns the program of a process, and whether its file was replaced since.
    pub(crate) fn program_of(&self, pid: u32) -> Option<Program> {
        let file = std::fs::read_link(self.path(&format!("/proc/{pid}/exe"))).ok()?;
        Some(Program::of_link(&file))
    }
}

/// Runs a command to its end, and waits up to [`BUSY`] while its program is open for writing.
///
/// `service install` executes programs that it has just written. A child that was forked during the write keeps the
/// descriptor until it executes its own program. Meanwhile the kernel refuses to execute the file (`ETXTBSY`,
/// execve(2)).
async fn output_when_free(command: &mut Command) -> io::Result<Output> {
    let start = Instant::now();
    loop {
        match command.output().await {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && start.elapsed() < BUSY => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            ended => return ended,
        }
    }
}

/// Returns the unit of agentd that a process belongs to, from its cgroups: the user's service, or an instance
/// of the template.
pub(crate) fn unit_of(host: &Host, pid: u32) -> Option<String> {
    let cgroups = std::fs::read_to_string(host.path(&format!("/proc/{pid}/cgroup"))).ok()?;
    let is_agentds = |part: &&str| *part == "agentd.service" || is_instance(part);
    cgroups.lines().flat_map(|line| line.split('/')).find(is_agentds).map(str::to_owned)
}

/// Reports whether a unit is an instance of the system's template.
pub(crate) fn is_instance(unit: &str) -> bool {
    unit.starts_with("agentd@")
}

/// File that a process was started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) replaced: bool,
}

impl Program {
    /// Parses the link of proc(5), which marks a replaced file by a suffix.
    pub(crate) fn of_link(file: &Path) -> Self {
        match file.to_string_lossy().strip_suffix(" (deleted)") {
            Some(path) => Self { path: path.into(), replaced: true },
            None => Self { path: file.to_owned(), replaced: false },
        }
    }
}

/// Formats a command as a user would type it.
pub(crate) fn line<S: AsRef<OsStr>>(words: &[S]) -> String {
    let quoted = |word: &S| agentd_api::doctor::shell_word(&word.as_ref().to_string_lossy());
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::program;

    #[test]
    fn a_program_that_is_still_open_for_writing_is_executed_once_it_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("agentd");
        program(&file, "echo agentd 1.0.0");
        let open = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
        crate::runtime().unwrap().block_on(async {
            let refused = Command::new(&file).output().await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ExecutableFileBusy);
            let mut command = Command::new(&file);
            let mut executed = std::pin::pin!(output_when_free(&mut command));
            let early = tokio::time::timeout(Duration::from_millis(30), executed.as_mut()).await;
            assert!(early.is_err(), "{early:?}");
            drop(open);
            let output = executed.await;
            assert_eq!(output.unwrap().stdout, b"agentd 1.0.0\n");
        });
    }
}
