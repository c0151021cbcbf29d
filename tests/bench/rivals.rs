//! Other ways to start an agent beside which agentd is measured: the bare server, and programs of Debian that start and
//! watch processes. A program that is not in `PATH` is left out.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::libc::O_NONBLOCK;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::agent::wall;
use crate::bare_http::{BEGAN, BareServer};
use crate::client::Client;
use crate::daemon::wait;
use crate::process;

/// Time limit of an agent's start.
const LIMIT: Duration = Duration::from_mins(1);

/// One way to start an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A request to the bare server, which starts the agent with three pipes.
    Bare,
    /// A new service directory, and the start of this program for it.
    New(&'static str),
    /// The command "up" in the control pipe of this program, which already waits for it in the service's directory.
    Waiting(&'static str),
    /// The program `conmon` with a runtime that starts the agent.
    Conmon,
    /// A transient unit of the user's systemd.
    SystemdRun,
}

impl Way {
    pub(crate) const ALL: [Self; 7] = [
        Self::Bare,
        Self::New("runsv"),
        Self::Waiting("runsv"),
        Self::New("s6-supervise"),
        Self::Waiting("s6-supervise"),
        Self::Conmon,
        Self::SystemdRun,
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Bare => "a bare server".to_owned(),
            Self::New(program) => format!("{program} for a new service"),
            Self::Waiting(program) => format!("{program} that waits, by its pipe"),
            Self::Conmon => "conmon".to_owned(),
            Self::SystemdRun => "systemd-run --user".to_owned(),
        }
    }

    /// Returns the reason why it cannot be measured on this machine.
    pub(crate) fn lacks(self) -> Option<&'static str> {
        let program = match self {
            Self::Bare => return None,
            Self::New(program) | Self::Waiting(program) => program,
            Self::Conmon => "conmon",
            Self::SystemdRun => {
                let mut command = Command::new("systemctl");
                let manager = command.args(["--user", "show", "--property=Version"]).stderr(Stdio::null()).output();
                return (!manager.is_ok_and(|answer| answer.status.success())).then_some("no manager");
            }
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
        (!found).then_some("not installed")
    }
}

/// The started agents, below one directory. On drop, all processes of this directory are killed.
#[derive(Debug)]
pub(crate) struct Rivals {
    directory: TempDir,
    /// The socket to which each agent sends its start time.
    began: UnixDatagram,
    client: Client,
    /// Answers until it is dropped.
    _server: BareServer,
    /// Number of services that were made.
    made: u32,
}

/// An agent and its program, which are killed on drop.
#[derive(Debug)]
pub(crate) struct Started {
    /// From the request to the agent's `main()`.
    pub(crate) main: Duration,
    agent: Pid,
    program: Option<Child>,
}

impl Drop for Started {
    fn drop(&mut self) {
        // The program is killed before the agent, which it would start again. Either may have ended already.
        if let Some(program) = &mut self.program {
            let _ = program.kill();
            let _ = program.wait();
        }
        let _ = kill(self.agent, Signal::SIGKILL);
    }
}

impl Rivals {
    pub(crate) fn new() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("agentd-bench-").tempdir()?;
        let began = UnixDatagram::bind(directory.path().join(BEGAN))?;
        began.set_read_timeout(Some(LIMIT))?;
        let server = BareServer::start(directory.path())?;
        let client = Client::new(server.socket().to_owned())?;
        Ok(Self { directory, began, client, _server: server, made: 0 })
    }

    /// Starts an agent, and waits until it has told its start time.
    pub(crate) fn start(&mut self, way: Way) -> Result<Started> {
        self.started(way).with_context(|| way.name())
    }

    fn started(&mut self, way: Way) -> Result<Started> {
        self.made += 1;
        let service = self.directory.path().join(self.made.to_string());
        let (asked, program) = match way {
            Way::Bare => {
                let asked = wall()?;
                self.client.bytes("/spawn")?;
                (asked, None)
            }
            Way::New(program) => {
                let asked = wall()?;
                self.make(&service)?;
                (asked, Some(supervise(program, &service)?))
            }
            Way::Waiting(program) => {
                self.make(&service)?;
                File::create(service.join("down"))?;
                let supervisor = supervise(program, &service)?;
                let mut control = wait("the control pipe", Duration::from_millis(1), || {
                    let pipe = service.join("supervise/control");
                    // Without a reader, a pipe cannot be opened to write.
                    Ok(File::options().write(true).custom_flags(O_NONBLOCK).open(pipe).ok())
                })?;
                let asked = wall()?;
                control.write_all(b"u")?;
                (asked, Some(supervisor))
            }
            Way::Conmon => {
                let asked = wall()?;
                (asked, Some(self.conmon(&service)?))
            }
            Way::SystemdRun => {
                let asked = wall()?;
                let mut command = Command::new("systemd-run");
                command.args(["--user", "--quiet", "--collect"]).args(self.agent()?).stdin(Stdio::null());
                (asked, Some(command.spawn()?))
            }
        };
        let mut told = [0; 64];
        let length = self.began.recv(&mut told).context("no agent told its start time")?;
        let told = String::from_utf8_lossy(&told[..length]);
        let (began, agent) = told.split_once(' ').context("the agent told no process ID")?;
        let main = Duration::from_micros(began.parse::<u64>()?.saturating_sub(asked));
        Ok(Started { main, agent: Pid::from_raw(agent.parse()?), program })
    }

    /// Returns the agent's command line, without spaces in its words.
    fn agent(&self) -> Result<[PathBuf; 4]> {
        let directory = self.directory.path();
        Ok([std::env::current_exe()?, "agent".into(), directory.to_owned(), directory.join(BEGAN)])
    }

    /// Makes a service directory whose `run` starts the agent.
    fn make(&self, service: &Path) -> Result<()> {
        let agent = self.agent()?.map(|word| word.display().to_string()).join(" ");
        fs::create_dir(service)?;
        script(&service.join("run"), &format!("exec {agent}"))
    }

    /// Starts conmon for a bundle, whose runtime starts the agent and writes its process ID as runtimes do.
    fn conmon(&self, bundle: &Path) -> Result<Child> {
        let agent = self.agent()?.map(|word| word.display().to_string()).join(" ");
        let (runtime, pid) = (bundle.join("runtime"), bundle.join("pid"));
        fs::create_dir(bundle)?;
        script(&runtime, &format!("{agent} &\necho $! > {}", pid.display()))?;
        let id = format!("bench-{}", self.made);
        let mut command = Command::new("conmon");
        command.args(["--cid", &id, "--cuuid", &id, "--name", &id]);
        command.arg("--runtime").arg(runtime).arg("--bundle").arg(bundle).arg("--container-pidfile").arg(pid);
        command.arg("--log-path").arg(format!("k8s-file:{}", bundle.join("log").display()));
        command.arg("--socket-dir-path").arg(self.directory.path());
        spawn(&mut command)
    }
}

impl Drop for Rivals {
    fn drop(&mut self) {
        process::kill_all_of(self.directory.path());
    }
}

fn script(path: &Path, commands: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{commands}\n"))?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

fn supervise(program: &str, service: &Path) -> Result<Child> {
    spawn(Command::new(program).arg(service))
}

fn spawn(command: &mut Command) -> Result<Child> {
    // The program is searched in the PATH of the bench before the environment is cleared.
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("it cannot be started")
}
