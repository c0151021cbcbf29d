//! The measured daemon: the released programs, real sockets, and a temporary directory.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use agentd_plugin_host::World;
use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::client::Client;
use crate::process;

/// Number of connections that start sessions at once.
pub(crate) const THREADS: usize = 8;
/// Time limit of every wait for a state that only polling can detect.
const LIMIT: Duration = Duration::from_mins(5);

/// Source of a session's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipeline {
    /// The default without a configuration: login shell, whitelist, scripts.
    Default,
    /// No provider at all.
    Empty,
    /// The default providers, with a whitelist that keeps all variables `BENCH_*`.
    Bench,
    /// This number of plugins: the default providers, and copies of the whitelist in further files as different
    /// components.
    Plugins(usize),
}

/// Returns the configuration of the providers for a daemon with this number of plugins.
fn plugins(root: &Path, number: usize) -> Result<String> {
    use std::fmt::Write as _;
    let built_in: Vec<_> =
        agentd_plugin_host::builtin().iter().filter(|plugin| plugin.world == World::Provider).collect();
    let (mut text, mut declared) = ("providers = [".to_owned(), String::new());
    for plugin in &built_in {
        write!(text, "{{ plugin = {:?} }}, ", plugin.name)?;
    }
    let whitelist = built_in.iter().find(|plugin| plugin.name == "whitelist").context("there is no whitelist")?;
    for n in built_in.len()..number {
        // A custom section named `n` at the end, with two bytes that make the file another component.
        let mut component = whitelist.bytes.to_vec();
        component.extend([0, 4, 1, b'n', u8::try_from(n)?, 0]);
        let file = root.join(format!("config/whitelist-{n}.wasm"));
        fs::write(&file, &component)?;
        let pin = Sha256::digest(&component).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        write!(text, "{{ plugin = \"whitelist-{n}\" }}, ")?;
        writeln!(
            declared,
            "[plugins.whitelist-{n}]\nfile = {:?}\nsha256 = \"{pin}\"\ngrant.variables = [\"*\"]",
            file.display().to_string()
        )?;
    }
    Ok(format!("{text}]\n{declared}"))
}

/// A daemon. On drop, all processes that belong to its directory are killed.
#[derive(Debug)]
pub(crate) struct Daemon {
    directory: TempDir,
    /// The compiled plugins.
    cache: PathBuf,
    /// Variables beside `PATH`.
    environment: Vec<(&'static str, OsString)>,
    /// Name of the place of the sessions.
    place: Option<&'static str>,
    child: Option<Child>,
}

impl Daemon {
    /// Starts a daemon without sessions.
    pub(crate) fn start(pipeline: Pipeline) -> Result<Self> {
        let mut daemon = Self::prepare(pipeline)?;
        daemon.serve()?;
        Ok(daemon)
    }

    /// Prepares the daemon of a user who has no compiled plugins.
    pub(crate) fn of_new_user() -> Result<Self> {
        let mut daemon = Self::prepare(Pipeline::Default)?;
        daemon.cache = daemon.root().join("cache");
        Ok(daemon)
    }

    /// Starts a daemon whose sessions are units of the user's systemd.
    pub(crate) fn of_systemd() -> Result<Self> {
        let mut daemon = Self::prepare(Pipeline::Default)?;
        let file = daemon.root().join("config/agentd.toml");
        fs::write(&file, fs::read_to_string(&file)?.replace("\"detached\"", "\"systemd\""))?;
        let way = ["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"];
        daemon.environment = way.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect();
        daemon.serve()?;
        Ok(daemon)
    }

    /// Starts a daemon whose sessions are on a place with these keys. `keys` gets the daemon's directory.
    pub(crate) fn on_a_place(keys: impl FnOnce(&Path) -> String) -> Result<Self> {
        let mut daemon = Self::prepare(Pipeline::Default)?;
        let file = daemon.root().join("config/agentd.toml");
        let text = format!("{}\n[places.there]\n{}", fs::read_to_string(&file)?, keys(daemon.root()));
        fs::write(&file, text)?;
        daemon.place = Some("there");
        daemon.serve()?;
        Ok(daemon)
    }

    /// Prepares the directories of a daemon, and starts nothing.
    pub(crate) fn prepare(pipeline: Pipeline) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("agentd-bench-").tempdir()?;
        let root = directory.path();
        for name in ["home", "run", "state", "config", "work"] {
            fs::create_dir(root.join(name))?;
        }
        let providers = match pipeline {
            Pipeline::Default => String::new(),
            Pipeline::Empty => "providers = []\n".to_owned(),
            Pipeline::Bench => "providers = [{ plugin = \"snapshot\" }, \
                 { plugin = \"whitelist\", settings = { allow = [\"BENCH_*\"] } }, \
                 { plugin = \"env-script\" }]\n"
                .to_owned(),
            Pipeline::Plugins(number) => plugins(root, number)?,
        };
        let config = format!(
            "[environment]\nhome = \"{home}\"\nshell = \"/bin/bash\"\n{providers}\n\
             [journal]\nkeep_session = \"unlimited\"\n\n[limits]\nactive_sessions = 2000\nlaunches = 32\n\
             streams_per_caller = 128\n\n\
             [launch]\nmanager = \"detached\"\n",
            home = root.join("home").display(),
        );
        fs::write(root.join("config/agentd.toml"), config)?;
        // The directory is kept between runs, except for the first session of a new user.
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("agentd-bench-cache");
        Ok(Self { directory, cache, environment: Vec::new(), place: None, child: None })
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("the daemon does not run")?.id())
    }

    pub(crate) fn client(&self) -> Result<Client> {
        Client::new(self.socket())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.root().join("run/control.sock")
    }

    pub(crate) fn sessions(&self) -> PathBuf {
        self.root().join("state/sessions")
    }

    pub(crate) fn journal(&self, id: &str) -> PathBuf {
        self.sessions().join(id).join("journal.jsonl")
    }

    /// Returns the size of a session's files in bytes. A journal segment that is being renamed may be missed.
    pub(crate) fn size(&self, id: &str) -> Result<u64> {
        let files = fs::read_dir(self.sessions().join(id))?;
        Ok(files.filter_map(|file| file.ok()?.metadata().ok()).map(|metadata| metadata.len()).sum())
    }

    /// Starts the process, and returns the time until it answered a request.
    pub(crate) fn serve(&mut self) -> Result<Duration> {
        let mut command = self.of(Command::new(crate::agentd()))?;
        let begun = Instant::now();
        self.child = Some(command.stdin(Stdio::null()).spawn().context("agentd cannot be executed")?);
        let socket = self.socket();
        wait("the control socket", Duration::from_micros(500), || match UnixStream::connect(&socket) {
            Ok(_) => Ok(Some(())),
            Err(_) if self.ended()? => bail!("agentd ended instead of serving:\n{}", self.last_words()),
            Err(_) => Ok(None),
        })?;
        self.client()?.get("/healthz")?;
        Ok(begun.elapsed())
    }

    /// Starts the process as a service manager does for the first request to its socket. Returns the time until the
    /// process answered that request.
    pub(crate) fn activate(&mut self) -> Result<Duration> {
        let listener = UnixListener::bind(self.socket())?;
        // LISTEN_PID names the process, so no other process can set it beforehand.
        let script = "exec 3<&0 < /dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=control; exec \"$@\"";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script, "sh"]).arg(crate::agentd());
        let mut command = self.of(shell)?;
        let begun = Instant::now();
        self.child = Some(command.stdin(OwnedFd::from(listener)).spawn().context("/bin/sh cannot be executed")?);
        drop(command); // it holds the socket, which would accept connections after the end of the process
        self.client()?.get("/healthz")?;
        Ok(begun.elapsed())
    }

    /// Completes a command that ends with the program `agentd`.
    fn of(&self, mut command: Command) -> Result<Command> {
        let root = self.directory.path();
        let log = File::options().create(true).append(true).open(root.join("agentd.log"))?;
        command
            .arg("serve")
            .arg("--config")
            .arg(root.join("config/agentd.toml"))
            .arg("--config-dir")
            .arg(root.join("config"))
            .arg("--system-config-dir")
            .arg(root.join("etc"))
            .arg("--runtime-dir")
            .arg(root.join("run"))
            .arg("--state-dir")
            .arg(root.join("state"))
            .arg("--cache-dir")
            .arg(&self.cache)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(root)
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    fn ended(&mut self) -> Result<bool> {
        Ok(match &mut self.child {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        })
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.root().join("agentd.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Kills the daemon; its sessions continue to run.
    pub(crate) fn kill9(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the daemon does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks the daemon to end, and waits for its end. Its sessions continue to run.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the daemon does not run")?;
        kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
        let status = child.wait()?;
        ensure!(status.success(), "the daemon ended with {status}:\n{}", self.last_words());
        Ok(())
    }

    /// Starts this number of sessions from [`THREADS`] connections at once, and returns their IDs when all are idle.
    pub(crate) fn launch(&self, number: usize) -> Result<Vec<String>> {
        thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|worker| {
                    let share = number / THREADS + usize::from(worker < number % THREADS);
                    scope.spawn(move || {
                        let mut client = self.client()?;
                        (0..share).map(|_| self.session(&mut client)).collect::<Result<Vec<_>>>()
                    })
                })
                .collect();
            let mut ids = Vec::new();
            for worker in workers {
                ids.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(ids)
        })
    }

    /// Starts one session, waits until it is idle, and returns its ID.
    pub(crate) fn session(&self, client: &mut Client) -> Result<String> {
        let command = [std::env::current_exe()?, "agent".into(), self.root().to_owned()];
        let spec = json!({ "directory": self.root().join("work"), "command": command, "place": self.place });
        let view = client.post("/v1/sessions?wait=120", &spec)?;
        ensure!(view["status"]["phase"] == "idle", "the session is not idle: {view}");
        Ok(view["id"].as_str().context("the session has no id")?.to_owned())
    }

    /// Creates this number of stopped sessions, each with a turn of some length, and starts the daemon again. The first
    /// is a real session; the others are copies of its files with their own IDs.
    pub(crate) fn persist(&mut self, number: usize) -> Result<()> {
        let mut client = self.client()?;
        let id = self.session(&mut client)?;
        let before = prompt(&mut client, &id, "print 200 400")?;
        wait_idle(&mut client, &id, before)?;
        client.post(&format!("/v1/sessions/{id}/stop?wait=60"), &json!({}))?;
        // The daemon ends in order, so that it stores everything.
        self.terminate()?;
        let original = self.sessions().join(&id);
        let mut document: Value = serde_json::from_slice(&fs::read(original.join("session.json"))?)?;
        for n in 1..number {
            let copy = format!("{id}-{n}");
            let directory = self.sessions().join(&copy);
            fs::create_dir(&directory)?;
            for file in fs::read_dir(&original)? {
                let file = file?;
                fs::copy(file.path(), directory.join(file.file_name()))?;
            }
            document["id"] = copy.into();
            fs::write(directory.join("session.json"), document.to_string())?;
        }
        self.serve()?;
        let list = self.client()?.get("/v1/sessions")?;
        let found = list["sessions"].as_array().map_or(0, Vec::len);
        ensure!(list["unreadable"].is_null() && found >= number, "{found} of {number} copies were read: {list}");
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        process::kill_all_of(self.directory.path());
        if let Some(mut child) = self.child.take() {
            // The process was killed by `kill_all_of`.
            let _ = child.wait();
        }
    }
}

/// Repeats `look` until it returns a value.
pub(crate) fn wait<T>(what: &str, pause: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(begun.elapsed() < LIMIT, "{what}: not within {} s", LIMIT.as_secs());
        thread::sleep(pause);
    }
}

/// Sends a prompt, and returns the last `seq` before the prompt's records.
pub(crate) fn prompt(client: &mut Client, id: &str, text: &str) -> Result<u64> {
    let accepted = client.post(&format!("/v1/sessions/{id}/prompt"), &json!({ "prompt": text }))?;
    accepted["after_seq"].as_u64().context("the prompt's answer has no after_seq")
}

/// Waits until the end of a session's turn that began after the record `after`, and returns the last `seq`.
pub(crate) fn wait_idle(client: &mut Client, id: &str, after: u64) -> Result<u64> {
    let path = format!("/v1/sessions/{id}");
    wait("the end of the turn", Duration::from_millis(2), || {
        let view = client.get(&path)?;
        let status = &view["status"];
        match status["phase"].as_str() {
            // A daemon that has just started may still show the state that the previous daemon stored.
            Some("idle") if status["queue"].as_array().is_none_or(Vec::is_empty) => {
                Ok(status["last_seq"].as_u64().filter(|last| *last > after))
            }
            Some("idle" | "busy") => Ok(None),
            _ => bail!("the session is not alive: {view}"),
        }
    })
}
