//! A booted systemd that runs agentd (tests/systemd/lab), with one ordinary user, `worker`.
//!
//! Whether this machine supports the lab is decided by [`super::require::systemd`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use agentd_api::{Event, SessionId};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use tempfile::TempDir;

use super::{journal, paths, process, scripted_agent, until};

/// User id of `worker`, as tests/systemd/setup creates it.
const UID: &str = "4711";

/// A running system. Dropping the value ends the system and all its processes.
pub(crate) struct Lab {
    directory: TempDir,
    boot: Child,
    /// Pid of the lab's process 1 in the outer namespace.
    init: u32,
}

impl Lab {
    /// Boots the system, and waits until the user's manager runs.
    pub(crate) async fn boot() -> Self {
        let directory = tempfile::Builder::new().prefix("agentd-lab-").tempdir().expect("a temporary directory");
        let project = paths::checkout().to_owned();
        let binaries = paths::programs();
        let log = File::create(directory.path().join("log")).expect("the log can be made");
        // The test's thread is the parent. If the thread ends without dropping the lab, the lab ends too.
        let boot = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(project.join("tests/systemd/lab"))
            .arg(directory.path())
            .arg(project.join("tests/systemd/setup"))
            .arg(binaries)
            .arg(scripted_agent())
            .arg(project.join("units/systemd/user"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor can be copied"))
            .stderr(log)
            .spawn()
            .expect("setpriv can be executed");
        let mut lab = Self { directory, boot, init: 0 };
        let init = lab.directory.path().join("init");
        until("the lab's PID 1 runs", || {
            assert!(lab.boot.try_wait().expect("it can be waited for").is_none(), "the lab ended:\n{}", lab.log());
            init.exists()
        })
        .await;
        lab.init = fs::read_to_string(init).expect("it is there").trim().parse().expect("a pid");
        until("the user's manager runs", || {
            lab.try_worker(&["systemctl", "--user", "is-active", "default.target"]).status.success()
        })
        .await;
        lab
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Builds a command that runs inside as root.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.init.to_string(), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"])
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null());
        command
    }

    /// Builds a command that runs inside as the user, with exactly this environment.
    pub(crate) fn as_worker(&self, environment: &[(String, String)], arguments: &[&str]) -> Command {
        let words =
            ["setpriv", "--reuid", "worker", "--regid", "worker", "--init-groups", "env", "-i"].map(str::to_owned);
        let variables = environment.iter().map(|(name, value)| format!("{name}={value}"));
        self.command(words.into_iter().chain(variables).chain(arguments.iter().map(|&word| word.to_owned())))
    }

    /// Runs a command as the user with a login's environment, and returns its output. Fails unless the command
    /// succeeds.
    pub(crate) fn worker(&self, arguments: &[&str]) -> String {
        let output = self.try_worker(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}\n{}", self.journalctl(&["-n", "60"]));
        String::from_utf8(output.stdout).expect("its output is UTF-8")
    }

    pub(crate) fn try_worker(&self, arguments: &[&str]) -> Output {
        self.as_worker(&login(), arguments).output().expect("nsenter can be executed")
    }

    /// Runs `systemctl --user` as the user.
    pub(crate) fn systemctl(&self, arguments: &[&str]) -> String {
        self.worker(&[&["systemctl", "--user"], arguments].concat())
    }

    pub(crate) fn journalctl(&self, arguments: &[&str]) -> String {
        let arguments = [&["journalctl", "--no-pager"], arguments].concat();
        let output = self.command(arguments).output().expect("nsenter can be executed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs `agentctl --json` as the user.
    pub(crate) fn agentctl(&self, arguments: &[&str]) -> Value {
        let output = self.worker(&[&["agentctl", "--json"], arguments].concat());
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("agentctl {arguments:?}: {error}: {output}"))
    }

    /// Creates a session with the scripted agent.
    pub(crate) fn session(&self) -> SessionId {
        self.session_in("/home/worker/project", &[])
    }

    /// Creates a session in this directory, with these additional arguments.
    pub(crate) fn session_in(&self, directory: &str, arguments: &[&str]) -> SessionId {
        let new = ["new", "--agent", "scripted", "--dir", directory, "--ready", "60"];
        let made = self.agentctl(&[&new, arguments].concat());
        made["id"].as_str().and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{made}"))
    }

    /// Returns the outer path of an inner path.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.init))
    }

    /// Returns the outer paths of a user unit's cgroups, one for each hierarchy that contains the unit.
    pub(crate) fn cgroups(&self, unit: &str) -> Vec<PathBuf> {
        let group = self.systemctl(&["show", "--value", "-p", "ControlGroup", unit]).trim().to_owned();
        assert!(group.ends_with(unit), "{unit} is in no cgroup: {group:?}");
        let trees = self.path("/sys/fs/cgroup");
        let hybrid = fs::read_dir(&trees).expect("it is mounted").flatten().map(|entry| entry.path());
        hybrid.chain([trees]).map(|tree| tree.join(&group[1..])).filter(|cgroup| cgroup.is_dir()).collect()
    }

    /// Makes the administrator run agentd for the user as in units/README.md, instead of the user's own service.
    pub(crate) fn administer(&self) {
        self.systemctl(&["disable", "--now", "agentd.socket", "agentd.service"]);
        for program in ["agentd", "agentd-keeper", "agentctl"] {
            self.root(&["mv", &format!("/home/worker/.local/bin/{program}"), "/usr/local/bin/"]);
        }
        let units = paths::checkout().join("units/systemd/system");
        for unit in ["agentd@.service", "agentd@.socket"] {
            fs::copy(units.join(unit), self.path("/etc/systemd/system").join(unit)).expect("the unit can be copied");
        }
        self.root(&["systemctl", "daemon-reload"]);
        self.root(&["systemctl", "enable", "--now", "agentd@worker.socket"]);
    }

    /// Writes a file of the user that only the user can read.
    pub(crate) fn write(&self, inside: &str, content: &str) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("it is in a directory")).expect("the directory can be made");
        fs::write(&path, content).expect("the file can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("root may");
        self.root(&["chown", "-R", "worker:worker", "/home/worker"]);
    }

    /// Writes a file of root that all users can read.
    pub(crate) fn write_as_root(&self, inside: &str, content: &str) {
        let path = self.path(inside);
        fs::create_dir_all(path.parent().expect("it is in a directory")).expect("root may");
        fs::write(path, content).expect("root may");
    }

    /// Runs a command as root, which must succeed.
    pub(crate) fn root(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().expect("nsenter can be executed");
        assert!(output.status.success(), "{arguments:?}: {output:?}\n{}", self.journalctl(&["-n", "60"]));
        String::from_utf8(output.stdout).expect("its output is UTF-8")
    }

    fn state(&self) -> PathBuf {
        self.path("/home/worker/.local/state/agentd")
    }

    /// Reads and checks a session's journal.
    pub(crate) fn journal(&self, id: &SessionId) -> Vec<Event> {
        journal::checked(&self.state(), id)
    }

    /// Waits until the session's growing journal satisfies `condition`.
    pub(crate) async fn journal_shows(&self, id: &SessionId, what: &str, condition: impl Fn(&str) -> bool) {
        let path = journal::path(&self.state(), id);
        until(what, || fs::read_to_string(&path).is_ok_and(|text| condition(&text))).await;
    }
}

/// Returns the environment of a login session without a terminal.
pub(crate) fn login() -> Vec<(String, String)> {
    [
        ("HOME", "/home/worker"),
        ("USER", "worker"),
        ("LOGNAME", "worker"),
        ("SHELL", "/bin/bash"),
        ("PATH", "/home/worker/.local/bin:/usr/local/bin:/usr/bin:/bin"),
        ("XDG_RUNTIME_DIR", &format!("/run/user/{UID}")),
        ("DBUS_SESSION_BUS_ADDRESS", &format!("unix:path=/run/user/{UID}/bus")),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = if self.init == 0 { self.log() } else { self.journalctl(&["-n", "80"]) };
            eprintln!("--- the lab's last words\n{log}\n---");
        }
        kill(process::pid(self.boot.id()), Signal::SIGTERM).ok();
        self.boot.wait().ok();
    }
}
