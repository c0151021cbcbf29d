//! The page in Debian's Chromium. The scenarios are in `tests/ui`; here are the daemon and what a scenario asks for.

mod floods;
mod hostile;
mod looks;
mod sessions;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::Shown;
use crate::harness::{Daemon, paths, process, require, scripted_agent, within};

/// A daemon and its page, for scenarios.
pub(super) struct Stage {
    daemon: Daemon,
    shown: Shown,
    modules: PathBuf,
}

impl Stage {
    /// Starts a daemon and its page. Returns `None` on a machine without a browser.
    pub(super) async fn start() -> Option<Self> {
        Self::with(&[]).await
    }

    /// Starts a daemon, and its page with further arguments for `agentctl ui`.
    pub(super) async fn with(arguments: &[&str]) -> Option<Self> {
        Self::configured(|_| String::new(), arguments).await
    }

    /// Starts a daemon with further lines of its configuration, and its page.
    pub(super) async fn configured(more: impl FnOnce(&Daemon) -> String, arguments: &[&str]) -> Option<Self> {
        let modules = require::browser()?;
        let mut daemon = Daemon::prepare();
        // Sessions of the form can be resumed, and their agents can be killed.
        let command = daemon.scripted(&[]).command.unwrap();
        let more = more(&daemon);
        daemon
            .configure(|config| config.replace(&format!("{:?}", [scripted_agent()]), &format!("{command:?}")) + &more);
        daemon.run().await;
        Some(Self::of(modules, daemon, arguments))
    }

    /// Starts the page of a daemon with further arguments for `agentctl ui`.
    pub(super) fn of(modules: PathBuf, daemon: Daemon, arguments: &[&str]) -> Self {
        let shown = Shown::start(&daemon, arguments);
        Self { daemon, shown, modules }
    }

    /// Plays the scenario `tests/ui/SCENARIO.mjs` to its end. The scenario gets `settings` besides the usual ones.
    pub(super) async fn play(&mut self, scenario: &str, settings: Value) {
        let mut player = Player::start(self, scenario);
        while let Some(ask) = player.next().await {
            let answer = match ask["ask"].as_str() {
                Some("settings") => self.settings(&player.directory, &settings),
                Some("call") => self.call(&ask).await,
                Some("kill daemon") => self.kill_daemon(),
                Some("start daemon") => self.start_daemon().await,
                Some("kill agent") => self.kill_agents().await,
                _ => panic!("the scenario asks for something unknown: {ask}"),
            };
            player.answer(&answer).await;
        }
        process::gone(&process::of(&temporary(&self.daemon))).await;
    }

    /// Returns what each scenario knows: the page's address, where to leave pictures, and a scripted session.
    fn settings(&self, directory: &Path, more: &Value) -> Value {
        let mut settings = json!({
            "address": format!("http://127.0.0.1:{}", self.shown.port),
            "token": self.shown.token,
            "directory": directory,
            "modules": self.modules,
            "spec": self.daemon.scripted(&[]),
        });
        let more = more.as_object().into_iter().flatten();
        settings.as_object_mut().unwrap().extend(more.map(|(name, value)| (name.clone(), value.clone())));
        settings
    }

    /// Makes a request on the daemon's own socket.
    async fn call(&self, ask: &Value) -> Value {
        let word = |name: &str| ask[name].as_str().unwrap_or_else(|| panic!("{name}: {ask}")).to_owned();
        let answer = self.daemon.client.call(&word("method"), &word("path"), word("body")).await;
        json!({ "status": answer.status.as_u16(), "text": String::from_utf8_lossy(&answer.body) })
    }

    fn kill_daemon(&mut self) -> Value {
        self.daemon.kill9();
        Value::Null
    }

    async fn start_daemon(&mut self) -> Value {
        self.daemon.run().await;
        Value::Null
    }

    /// Kills the scripted agents that run, and waits for their ends.
    async fn kill_agents(&self) -> Value {
        let noted = process::pid_file(&self.daemon.pid_file());
        let agents = noted.into_iter().filter(|(role, pid)| role == "agent" && process::is_alive(*pid));
        let agents: Vec<u32> = agents.map(|(_, pid)| pid).collect();
        for &agent in &agents {
            process::kill9(agent);
        }
        process::gone(&agents).await;
        json!(agents.len())
    }
}

/// Returns the directory of the browser's files. The browser's processes have it in their environments.
fn temporary(daemon: &Daemon) -> PathBuf {
    daemon.root().join("browser")
}

/// The program that plays a scenario. Dropping it kills the program, and Chromium ends with it. At the latest Chromium
/// ends with the test's daemon, because its files are in the daemon's directory.
struct Player {
    program: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// Pictures, consoles and messages of the scenario.
    directory: PathBuf,
}

impl Player {
    fn start(stage: &Stage, scenario: &str) -> Self {
        let directory = paths::kept().join("page").join(scenario);
        let _ = fs::remove_dir_all(&directory);
        let temporary = temporary(&stage.daemon);
        for directory in [&directory, &temporary] {
            fs::create_dir_all(directory).unwrap();
        }
        let mut program = Command::new("node")
            .arg(paths::checkout().join("tests/ui/run.mjs"))
            .arg(scenario)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs([("HOME", &temporary), ("TMPDIR", &temporary)])
            .envs([("LANG", "C.UTF-8"), ("TZ", "UTC")])
            .current_dir(&temporary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(directory.join("messages")).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("node: {error}"));
        let stdin = program.stdin.take().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines();
        Self { program, stdin, lines, directory }
    }

    /// Returns what the scenario asks for next, or `None` after its success. Its failure fails the test.
    async fn next(&mut self) -> Option<Value> {
        let line = within("the next request of the scenario", self.lines.next_line()).await.unwrap();
        if let Some(line) = line {
            return Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}")));
        }
        let status = within("the end of the scenario", self.program.wait()).await.unwrap();
        let messages = fs::read_to_string(self.directory.join("messages")).unwrap();
        assert!(status.success(), "{messages}\npictures and consoles: {}", self.directory.display());
        None
    }

    async fn answer(&mut self, answer: &Value) {
        // A scenario that has failed meanwhile reads no answer. Its end tells why.
        let _ = self.stdin.write_all(format!("{answer}\n").as_bytes()).await;
    }
}
