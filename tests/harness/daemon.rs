//! A real `agentd` in its own directory, with a temporary home.

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use agentd_api::session::{Phase, SessionSpec};
use agentd_client::Terms;
use nix::sys::signal::{Signal, kill};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::UnixStream;

use super::{Client, Session, paths, process, scripted_agent, session, until};

/// A daemon with all files that it and its sessions need. Dropping the value kills every process of its directory.
pub(crate) struct Daemon {
    directory: TempDir,
    child: Option<Child>,
    program: PathBuf,
    /// Words before the program: a command that becomes the daemon in another place.
    entrance: Vec<String>,
    /// Cache shared by all tests. Entries are found by content, and compiling takes longer than most tests.
    cache: PathBuf,
    /// The complete environment of the daemon.
    environment: Vec<(OsString, OsString)>,
    pub(crate) client: Client,
}

impl Daemon {
    /// Starts a daemon in an environment as small as that of a service manager.
    pub(crate) async fn start() -> Self {
        let mut daemon = Self::prepare();
        daemon.run().await;
        daemon
    }

    /// Prepares a daemon without starting it.
    pub(crate) fn prepare() -> Self {
        let directory = tempfile::Builder::new().prefix("agentd-").tempdir().expect("a temporary directory");
        let root = directory.path();
        for name in ["home", "run", "state", "config", "work"] {
            fs::create_dir(root.join(name)).expect("the temporary directory is empty");
        }
        let config = format!(
            "[environment]\nhome = \"{home}\"\nshell = \"/bin/bash\"\n\n[agents.scripted]\ncommand = {command:?}\n\n\
             [launch]\nstop_close = \"500ms\"\nstop_term = \"500ms\"\nrestart = \"never\"\n",
            home = root.join("home").display(),
            command = [scripted_agent()],
        );
        fs::write(root.join("config/agentd.toml"), config).expect("the configuration is written");
        fs::write(root.join("home/.profile"), "export EDITOR=ed LANG=C.UTF-8\nexport FROM_PROFILE=dropped\n")
            .expect("the profile is written");
        let client = Client::new(root.join("run/control.sock"));
        let environment = vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())];
        let program = paths::agentd().into();
        Self {
            directory,
            child: None,
            program,
            entrance: Vec::new(),
            cache: paths::kept().join("agentd-cache"),
            environment,
            client,
        }
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.root().join("home")
    }

    /// Returns the sessions' working directory.
    pub(crate) fn work(&self) -> PathBuf {
        self.root().join("work")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root().join("state")
    }

    /// Returns every file of the state directory that contains the text, including the journals and the log.
    pub(crate) fn holders(&self, text: &str) -> Vec<PathBuf> {
        let (mut found, mut left) = (Vec::new(), vec![self.state()]);
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).expect("the state can be listed").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    left.push(path);
                } else if fs::read(&path)
                    .is_ok_and(|content| content.windows(text.len()).any(|part| part == text.as_bytes()))
                {
                    found.push(path);
                }
            }
        }
        found
    }

    /// Returns the path that replaces `/etc/agentd`. The directory does not exist.
    pub(crate) fn system_config(&self) -> PathBuf {
        self.root().join("etc")
    }

    /// Returns the pids of a session's process tree, the keeper first. Starts a child in its own process session
    /// before.
    pub(crate) async fn tree_of(&self, session: &Session) -> Vec<u32> {
        session.turn("setsid-child").await;
        let mut pids = vec![session.view().await.status.keeper_pid.expect("it has a keeper")];
        pids.extend(process::pid_file(&self.pid_file()).iter().map(|(_, pid)| *pid));
        pids
    }

    /// Returns the file to which a scripted agent with `--pidfile` writes.
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.root().join("pids")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the daemon runs").id()
    }

    /// Reports whether a test has ended the daemon and not restarted it.
    pub(crate) fn is_down(&self) -> bool {
        self.child.is_none()
    }

    /// Sets the program of the next start. The program finds the other programs beside itself.
    pub(crate) fn set_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Sets the command for the next start, which becomes the daemon elsewhere, in the same process.
    pub(crate) fn enter(&mut self, entrance: Vec<String>) {
        self.entrance = entrance;
    }

    /// Sets the cache of the next start: for a daemon of another user, or for files that no other daemon may change.
    pub(crate) fn set_cache(&mut self, cache: PathBuf) {
        self.cache = cache;
    }

    /// Changes the configuration of the next start.
    pub(crate) fn configure(&self, change: impl FnOnce(String) -> String) {
        let file = self.root().join("config/agentd.toml");
        let config = fs::read_to_string(&file).expect("the configuration can be read");
        fs::write(file, change(config)).expect("the configuration can be written");
    }

    /// Gives keepers one second for a response.
    pub(crate) fn hurry_keepers(&self) {
        self.configure(|config| config.replace("[launch]\n", "[launch]\nkeeper_answer = \"1s\"\n"));
    }

    /// Starts a daemon that gives keepers one second for a response.
    pub(crate) async fn impatient() -> Self {
        let mut daemon = Self::prepare();
        daemon.hurry_keepers();
        daemon.run().await;
        daemon
    }

    /// Sets the complete environment of the next start.
    pub(crate) fn set_environment<N: Into<OsString>, V: Into<OsString>>(
        &mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) {
        self.environment = variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    }

    /// Builds the command that serves this directory.
    pub(crate) fn command(&self) -> Command {
        let mut words = self.entrance.iter().map(OsString::from).chain([self.program.clone().into()]);
        let mut command = Command::new(words.next().expect("there is the program at least"));
        command
            .args(words)
            .arg("serve")
            .arg("--config")
            .arg(self.root().join("config/agentd.toml"))
            .arg("--runtime-dir")
            .arg(self.root().join("run"))
            .arg("--state-dir")
            .arg(self.state())
            .arg("--cache-dir")
            .arg(&self.cache)
            .arg("--config-dir")
            .arg(self.root().join("config"))
            .arg("--system-config-dir")
            .arg(self.system_config())
            .env_clear()
            .envs(self.environment.iter().cloned())
            .current_dir(self.root())
            .stdin(Stdio::null());
        command
    }

    /// Starts the daemon and waits until it answers.
    pub(crate) async fn run(&mut self) {
        self.spawn();
        self.ready().await;
    }

    /// Starts the daemon without waiting.
    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "the daemon runs already");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).expect("the log can be opened");
        let child = self
            .command()
            .stdout(log.try_clone().expect("a descriptor can be copied"))
            .stderr(log)
            .spawn()
            .expect("agentd can be executed");
        self.child = Some(child);
    }

    /// Waits until the daemon answers.
    pub(crate) async fn ready(&mut self) {
        let socket = self.client.socket().to_owned();
        // A connection alone proves nothing. A program that a killed daemon was about to start still holds its socket
        // for a moment.
        until("the daemon answers", || {
            self.assert_running();
            healthy(&socket).unwrap_or(false)
        })
        .await;
    }

    /// Fails if the daemon ended by itself.
    pub(crate) fn assert_running(&mut self) {
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        assert!(status.is_none(), "agentd ended instead of serving: {status:?}\n{}", self.last_words());
    }

    fn log(&self) -> PathBuf {
        self.root().join("agentd.log")
    }

    /// Returns the logs of all daemons that ran here.
    pub(crate) fn words(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log()).unwrap_or_default()).into_owned()
    }

    /// Returns the end of the daemon's log.
    pub(crate) fn last_words(&self) -> String {
        let log = self.words();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Kills only the daemon, with SIGKILL.
    pub(crate) fn kill9(&mut self) {
        let mut child = self.child.take().expect("the daemon runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
    }

    /// Asks the daemon to end and waits for its end. Fails unless the exit status is 0.
    pub(crate) async fn terminate(&mut self) {
        kill(process::pid(self.pid()), Signal::SIGTERM).expect("the daemon is there");
        self.ended().await;
    }

    /// Waits for the end of a daemon that was asked to end. Fails unless the exit status is 0.
    pub(crate) async fn ended(&mut self) {
        let mut child = self.child.take().expect("the daemon runs");
        let mut status = None;
        until("the daemon ends after SIGTERM", || {
            status = child.try_wait().expect("it can be waited for");
            status.is_some()
        })
        .await;
        assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", self.last_words());
        assert!(UnixStream::connect(self.client.socket()).await.is_err(), "a process still listens");
    }

    /// Creates a session and waits until the session is ready for a prompt.
    pub(crate) async fn session(&self, spec: &SessionSpec) -> Session {
        let session = self.create(spec).await;
        session
            .wait_for("the session is ready", |view| {
                assert_ne!(view.status.phase, Phase::Failed, "{view:#?}");
                matches!(view.status.phase, Phase::Idle | Phase::Busy)
            })
            .await;
        session
    }

    /// Creates a session with this name whose launch fails, and waits until it has failed.
    pub(crate) async fn failed(&self, name: &str) -> Session {
        let spec = json!({ "directory": self.work(), "command": ["/bin/false"], "name": name });
        let session = self.create(&serde_json::from_value(spec).expect("a specification")).await;
        session.wait_for_phase(Phase::Failed).await;
        session
    }

    /// Creates a session without waiting.
    pub(crate) async fn create(&self, spec: &SessionSpec) -> Session {
        let created = self.client.typed().create(spec, Terms::default()).await;
        let view = created.unwrap_or_else(|error| panic!("the session is not created: {error:?}")).value;
        Session::new(view.id, self.client.clone(), self.state())
    }

    /// Builds a session's spec with the scripted agent and these flags, plus a pid file and a store for
    /// conversations.
    pub(crate) fn scripted(&self, flags: &[&str]) -> SessionSpec {
        let mut command = vec![scripted_agent().display().to_string()];
        let (pids, store) = (self.pid_file(), self.root());
        command.extend(["--pidfile".into(), pids.display().to_string(), "--store".into(), store.display().to_string()]);
        command.extend(flags.iter().map(|&flag| flag.to_owned()));
        session::spec(self.work(), command)
    }
}

fn healthy(socket: &Path) -> std::io::Result<bool> {
    let mut stream = std::os::unix::net::UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: agentd\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.1 200 "))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- agentd's last words\n{}\n---", self.last_words());
        }
        process::kill_all_of(self.root());
        if let Some(mut child) = self.child.take() {
            child.wait().ok();
        }
    }
}
