//! `agentd run-spec`: one session from a specification to its result.

#[cfg(target_os = "linux")]
mod container;
#[cfg(target_os = "linux")]
mod process_1;
mod prompts;
mod results;
mod signals;
mod statuses;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use agentd_api::{Body, Event};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::ctl::{Said, end_of};
use crate::harness::{paths, process, scripted_agent, until};

/// A run with all files that it needs. Dropping the value kills every process of its directory.
pub(super) struct Run {
    directory: TempDir,
    /// Words before the program: a command that becomes the program in another place.
    pub(super) entrance: Vec<String>,
    /// The complete environment.
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) arguments: Vec<String>,
}

impl Run {
    /// Prepares a run of this specification, with the scripted agent and these flags unless it names another one.
    pub(super) fn of(spec: Value, flags: &[&str]) -> Self {
        let directory = tempfile::Builder::new().prefix("agentd-").tempdir().unwrap();
        let root = directory.path();
        fs::create_dir(root.join("home")).unwrap();
        let mut run = Self {
            entrance: Vec::new(),
            environment: vec![
                ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
                ("HOME".into(), root.join("home").into()),
            ],
            arguments: Vec::new(),
            directory,
        };
        let mut spec = spec;
        if spec.get("command").is_none() && spec.get("agent").is_none() {
            let mut command = vec![scripted_agent().display().to_string()];
            command.extend(["--store".into(), run.path("").display().to_string()]);
            command.extend(flags.iter().map(|&flag| flag.to_owned()));
            spec["command"] = json!(command);
        }
        fs::write(run.path("spec.json"), spec.to_string()).unwrap();
        fs::write(run.path("agentd.toml"), "[launch]\nstop_close = \"1s\"\nstop_term = \"1s\"\n").unwrap();
        run.add("--config", run.path("agentd.toml"));
        run.add("--system-config-dir", run.path("etc"));
        run.add("--state", run.path("state"));
        run.add("--artifacts", run.path("out"));
        run
    }

    /// Prepares a run of this prompt in a workspace.
    pub(super) fn of_prompt(prompt: &str) -> Self {
        Self::of(json!({ "workspace": "new", "initial_prompt": prompt }), &[])
    }

    /// Adds an option.
    pub(super) fn add(&mut self, option: &str, value: impl AsRef<Path>) {
        self.arguments.extend([option.to_owned(), value.as_ref().to_str().unwrap().to_owned()]);
    }

    /// Removes an option with its value.
    pub(super) fn leave_out(&mut self, option: &str) {
        let at = self.arguments.iter().position(|argument| argument == option).unwrap();
        self.arguments.drain(at..at + 2);
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.into(), value.into()));
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Builds the command. Its specification is the file, or else the last argument.
    pub(super) fn command(&self, file: &str) -> Command {
        let mut words = self.entrance.iter().map(String::as_str).chain([paths::agentd()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg("run-spec").args(&self.arguments).arg(file);
        command.env_clear().envs(self.environment.iter().cloned()).current_dir(self.directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(super) fn start(&self) -> Child {
        self.command("spec.json").spawn().unwrap()
    }

    /// Runs to the end.
    pub(super) async fn end(&self) -> Said {
        end_of(self.start()).await
    }

    pub(super) fn result(&self) -> Value {
        let text =
            fs::read_to_string(self.path("out/result.json")).unwrap_or_else(|error| panic!("no result: {error}"));
        serde_json::from_str(&text).unwrap()
    }

    /// Returns the delivered journal.
    pub(super) fn delivered(&self) -> Vec<Event> {
        let text = fs::read(self.path("out/journal.jsonl")).unwrap();
        let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let events: Vec<Event> = lines.map(|line| Event::parse(line).unwrap()).collect();
        assert!(events.iter().zip(1..).all(|(event, seq)| event.seq == seq), "the journal has a gap");
        events
    }

    /// Returns the records of the running session so far.
    pub(super) fn so_far(&self) -> Vec<Event> {
        let sessions = fs::read_dir(self.path("state/state/sessions")).into_iter().flatten().flatten();
        let journals = sessions.filter_map(|session| fs::read(session.path().join("journal.jsonl")).ok());
        let parse = |text: Vec<u8>| -> Vec<Event> {
            text.split(|&byte| byte == b'\n').filter_map(|line| Event::parse(line).ok()).collect()
        };
        journals.flat_map(parse).collect()
    }

    /// Waits until the agent has said the text.
    pub(super) async fn said(&self, text: &str) {
        let has_said = |event: &Event| matches!(&event.body, Body::AgentOut(message) if message.get().contains(text));
        until(&format!("the agent says {text:?}"), || self.so_far().iter().any(has_said)).await;
    }

    /// Waits until no process of the run is left.
    pub(super) async fn nothing_is_left(&self) {
        until("no process is left", || process::of(self.directory.path()).is_empty()).await;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        process::kill_all_of(self.directory.path());
    }
}

/// Returns the pid of the process in a PID namespace that a command has made.
#[cfg(target_os = "linux")]
pub(super) fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().next()?.parse().ok()
}
