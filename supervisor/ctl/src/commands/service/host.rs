//! The machine as the service's commands see it: whose it is, where its files are, and how its programs are run.
//!
//! One value says all of it, so that a test can give another machine: other directories, and other programs in the place of the
//! manager's.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::unistd::{User, getuid};
use tokio::process::Command;

use super::ServiceError;

/// How long one command of a manager may take: longer than it waits for a service to start.
const PATIENCE: Duration = Duration::from_mins(3);

/// A machine and the user on it.
#[derive(Debug, Clone)]
pub(in crate::commands) struct Host {
    /// As [`std::env::consts::OS`].
    pub(in crate::commands) os: &'static str,
    pub(in crate::commands) uid: u32,
    pub(in crate::commands) user: String,
    pub(in crate::commands) home: PathBuf,
    /// Where commands are looked for, as `PATH`.
    pub(in crate::commands) search: OsString,
    /// What stands in front of `/etc`, `/usr`, `/run`, `/proc` and `/sys`; nothing but on a test's machine.
    pub(in crate::commands) root: PathBuf,
}

/// What a command did that ended.
#[derive(Debug)]
pub(in crate::commands) struct Ran {
    pub(in crate::commands) success: bool,
    /// Its exit status; nothing where a signal ended it.
    pub(in crate::commands) status: Option<i32>,
    pub(in crate::commands) stdout: String,
    /// The end and the last that it said, for people.
    pub(in crate::commands) complaint: String,
}

impl Host {
    /// One that there is nowhere.
    #[cfg(test)]
    pub(in crate::commands) fn of_kim() -> Self {
        Self {
            os: "linux",
            uid: 1000,
            user: "kim".into(),
            home: "/home/kim".into(),
            search: "/usr/bin:/bin".into(),
            root: PathBuf::new(),
        }
    }

    /// This one. A user without a passwd entry, as in many containers, is named by the number.
    pub(in crate::commands) fn this() -> io::Result<Self> {
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

    /// The same machine as another user's.
    pub(in crate::commands) fn of_user(&self, user: &User) -> Self {
        Self { uid: user.uid.as_raw(), user: user.name.clone(), home: user.dir.clone(), ..self.clone() }
    }

    /// A path of the machine's.
    pub(in crate::commands) fn path(&self, absolute: &str) -> PathBuf {
        if self.root.as_os_str().is_empty() {
            return absolute.into();
        }
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// A command with what it needs to find the user's manager, also from where no login told it.
    pub(in crate::commands) fn command<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut words = words.iter();
        let mut command = Command::new(words.next().map_or_else(|| OsStr::new("true"), AsRef::as_ref));
        command.args(words).env("PATH", &self.search);
        let runtime = self.path(&format!("/run/user/{}", self.uid));
        if std::env::var_os("XDG_RUNTIME_DIR").is_none() && runtime.is_dir() {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        command
    }

    /// Runs a command to its end; what it says is kept.
    pub(in crate::commands) async fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Ran, ServiceError> {
        let line = line(words);
        let mut command = self.command(words);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await;
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
        Ok(Ran {
            success: output.status.success(),
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).trim_end().to_owned(),
            complaint,
        })
    }

    /// What a command says that succeeds; nothing where it is not there or fails.
    pub(in crate::commands) async fn said<S: AsRef<OsStr>>(&self, words: &[S]) -> Option<String> {
        self.run(words).await.ok().filter(|ran| ran.success).map(|ran| ran.stdout)
    }

    /// Whether the process's program is not in its file any more: another was put there since.
    pub(in crate::commands) fn program_of(&self, pid: u32) -> Option<Program> {
        let file = std::fs::read_link(self.path(&format!("/proc/{pid}/exe"))).ok()?;
        Some(Program::of_link(&file))
    }
}

/// The unit of agentd that a process belongs to, by its cgroups: the user's service, or an instance of the template.
pub(in crate::commands) fn unit_of(host: &Host, pid: u32) -> Option<String> {
    let cgroups = std::fs::read_to_string(host.path(&format!("/proc/{pid}/cgroup"))).ok()?;
    let is_agentds = |part: &&str| *part == "agentd.service" || is_instance(part);
    cgroups.lines().flat_map(|line| line.split('/')).find(is_agentds).map(str::to_owned)
}

/// Whether a unit is an instance of the system's template.
pub(in crate::commands) fn is_instance(unit: &str) -> bool {
    unit.starts_with("agentd@")
}

/// The file that a process was started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) struct Program {
    pub(in crate::commands) path: PathBuf,
    pub(in crate::commands) replaced: bool,
}

impl Program {
    /// As proc(5) shows it: a file that was replaced has a word behind its path.
    pub(in crate::commands) fn of_link(file: &Path) -> Self {
        match file.to_string_lossy().strip_suffix(" (deleted)") {
            Some(path) => Self { path: path.into(), replaced: true },
            None => Self { path: file.to_owned(), replaced: false },
        }
    }
}

/// A command as a person would type it.
pub(in crate::commands) fn line<S: AsRef<OsStr>>(words: &[S]) -> String {
    let quoted = |word: &S| agentd_api::doctor::shell_word(&word.as_ref().to_string_lossy());
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
