//! Lists the places of the configuration, and checks whether an agent can run on one.
//!
//! A check reaches the place as a launch does: it starts the client, and asks `agentd-keeper enter` there for its host.
//! It starts no agent and needs no session.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::event::{PlaceHost, PlaceState};
use agentd_api::hint;
use agentd_api::place::{PlaceCheck, PlaceList, PlaceStep, PlaceSummary};
use agentd_api::{Code, Problem};
use agentd_place::EngineState;
use async_recursion::async_recursion as boxed;

use super::SessionPlace;
use crate::Sessions;

/// Time limit of the answer of a place, unless the caller sets another limit.
const ANSWERS: Duration = Duration::from_mins(1);
/// Time limit of a look at the program of the client, which may be on a network file system.
const FOUND: Duration = Duration::from_secs(5);

impl Sessions {
    /// Lists the places with the number of sessions on each.
    pub async fn places(&self) -> PlaceList {
        self.whole().await;
        let generation = self.generations().now();
        let summary = |place: &SessionPlace| {
            let mut sessions = 0;
            self.each_view(|view| {
                let is_there = view.status.place.as_ref().is_some_and(|placed| placed.name == place.name());
                sessions += u64::from(is_there && view.status.phase.is_active());
            });
            let (name, kind) = (place.place.name.clone(), place.place.kind.as_str().to_owned());
            PlaceSummary { name, kind, target: place.place.kind.target(), sessions }
        };
        PlaceList { places: generation.places().values().map(|place| summary(place)).collect() }
    }

    /// Checks whether an agent can run on a place. `limit` is the time of the place for its answer.
    ///
    /// # Errors
    ///
    /// The place is not configured. Every other failure is a step of the result.
    #[boxed]
    pub async fn check_place(&self, name: &str, limit: Option<Duration>) -> Result<PlaceCheck, Problem> {
        let generation = self.generations().now();
        let place = generation.places().get(name).ok_or_else(|| no_such_place(name))?;
        Ok(place.check(limit.unwrap_or(ANSWERS)).await)
    }
}

/// Makes the problem of a place that is not configured.
fn no_such_place(name: &str) -> Problem {
    Problem::new(Code::NoSuchPlace, format!("there is no place {name:?} in the configuration")).hint(hint::LIST_PLACES)
}

/// The steps of a check.
#[derive(Debug, Default)]
struct Steps(Vec<PlaceStep>);

impl Steps {
    /// Adds a step that began at this time. Returns whether it succeeded.
    fn add(&mut self, name: &str, begun: Instant, result: Result<String, String>) -> bool {
        let ok = result.is_ok();
        let (Ok(message) | Err(message)) = result;
        let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.push(PlaceStep { name: name.to_owned(), ok, message, ms });
        ok
    }
}

impl SessionPlace {
    /// Reaches the place and reports each step. A failed version or query of states does not end the check, because an
    /// agent may run nevertheless.
    async fn check(&self, limit: Duration) -> PlaceCheck {
        let mut steps = Steps::default();
        let host = self.reach(&mut steps, limit).await;
        let ok = steps.0.iter().all(|step| step.ok);
        PlaceCheck { place: self.place.name.clone(), ok, steps: steps.0, host }
    }

    async fn reach(&self, steps: &mut Steps, limit: Duration) -> Option<PlaceHost> {
        let begun = Instant::now();
        let program = self.program().await;
        if !steps.add("program", begun, program.map(|path| path.display().to_string())) {
            return None;
        }
        if let Some(command) = self.place.version() {
            let begun = Instant::now();
            let version = self.version(&command).await;
            steps.add("version", begun, version);
        }
        if self.place.status().is_some() {
            let begun = Instant::now();
            let states = self.states().await.map_err(|error| agentd_api::chain(&error));
            let counted = states.map(|states| match states.unwrap_or_default().len() {
                1 => "the engine lists 1 launch".to_owned(),
                count => format!("the engine lists {count} launches"),
            });
            steps.add("states", begun, counted);
        }
        let begun = Instant::now();
        let answer = self.answer(limit).await;
        let text = answer.as_ref().map(described).map_err(Clone::clone);
        steps.add("answer", begun, text);
        let host = answer.ok()?;
        let (there, here) = (host.version.as_str(), env!("CARGO_PKG_VERSION"));
        let is_equal = there == here;
        let message = format!("version {there}{}", if is_equal { "" } else { ", and agentd has the version " });
        let message = if is_equal { message } else { message + here };
        steps.add("keeper", Instant::now(), if is_equal { Ok(message) } else { Err(message) });
        Some(host)
    }

    /// Returns the path of the client's program.
    async fn program(&self) -> Result<PathBuf, String> {
        let line =
            self.lines.of(&self.lines.word, 0, Path::new("/"), false).map_err(|error| agentd_api::chain(&error))?;
        let program = line.client.first().map(|word| word.as_os_str().to_owned()).unwrap_or_default();
        let path = self.place.environment(|name| std::env::var_os(name)).remove("PATH").unwrap_or_default();
        let looking = tokio::task::spawn_blocking(move || found(&program, &path));
        let looked = tokio::time::timeout(FOUND, looking).await;
        looked.ok().and_then(Result::ok).unwrap_or_else(|| Err("the file system does not answer".to_owned()))
    }

    /// Starts the client and asks agentd-keeper on the place for its host. The engine's state of the start is the
    /// reason if the place does not answer.
    async fn answer(&self, limit: Duration) -> Result<PlaceHost, String> {
        let deadline = Instant::now() + limit;
        let asking = self.machine.host(deadline);
        tokio::pin!(asking);
        let mut last = None;
        loop {
            tokio::select! {
                answer = &mut asking => {
                    return answer.map_err(|failure| match &last {
                        None => failure.to_string(),
                        Some(queued) => format!("{failure}; {queued}"),
                    });
                }
                () = tokio::time::sleep(self.place.poll), if self.place.status().is_some() => {
                    let states = self.states().await.ok().flatten().unwrap_or_default();
                    let own = format!("{}{}-", agentd_place::PREFIX, self.lines.word);
                    last = states.iter().rev().find(|state| state.name.starts_with(&own)).and_then(waiting);
                }
            }
        }
    }

    /// Runs the command that prints the version of the client's program. ssh prints it on stderr.
    async fn version(&self, command: &[String]) -> Result<String, String> {
        let program = command.first().cloned().unwrap_or_default();
        let environment = self.environment();
        let mut started = tokio::process::Command::new(&program);
        started.args(&command[1..]).env_clear();
        started.envs(environment.iter().map(|one| (one.name.as_os_str(), one.value.as_os_str())));
        started.current_dir("/").stdin(std::process::Stdio::null()).kill_on_drop(true);
        let output = match tokio::time::timeout(FOUND, started.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => return Err(format!("cannot run {program:?}: {error}")),
            Err(_) => return Err(format!("{program:?} did not end within {} s", FOUND.as_secs())),
        };
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no output").to_owned();
        if output.status.success() { Ok(first) } else { Err(first) }
    }
}

/// Describes the machine that answered.
fn described(host: &PlaceHost) -> String {
    let PlaceHost { host, user, uid, architecture, system, .. } = host;
    format!("host {host} as user {user} ({uid}), {system} on {architecture}")
}

/// Describes a start that waits at its engine.
fn waiting(state: &EngineState) -> Option<String> {
    if state.state != Some(PlaceState::Queued) && state.state != Some(PlaceState::Starting) {
        return None;
    }
    let word = state.state.map_or("", PlaceState::as_str);
    let words: Vec<&str> = state.reason.iter().chain(&state.message).map(String::as_str).collect();
    let job = state.job.as_ref().map(|job| format!(" as job {job}")).unwrap_or_default();
    let words = if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) };
    Some(format!("the engine has it in the state {word}{job}{words}"))
}

/// Looks up a program as execvp(3) does.
fn found(program: &OsStr, path: &OsStr) -> Result<PathBuf, String> {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    if Path::new(program).components().count() > 1 {
        let file = PathBuf::from(program);
        return if is_program(&file) { Ok(file) } else { Err(format!("{} is no executable file", file.display())) };
    }
    let mut all = std::env::split_paths(path).map(|directory| directory.join(program));
    all.find(|file| is_program(file)).ok_or_else(|| {
        let (program, path) = (program.display(), path.display());
        format!("\"{program}\" is in no directory of PATH, which agentd has as {path}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_path_or_by_its_own_path() {
        let found = |program: &str, path: &str| super::found(program.as_ref(), path.as_ref());
        assert_eq!(found("sh", "/no/such:/bin").unwrap(), Path::new("/bin/sh"));
        assert_eq!(found("/bin/sh", "").unwrap(), Path::new("/bin/sh"));
        assert!(found("sh", "/no/such").unwrap_err().contains("in no directory of PATH"));
        assert_eq!(found("/etc/passwd", "").unwrap_err(), "/etc/passwd is no executable file");
    }

    #[test]
    fn a_start_that_waits_has_the_reason_of_its_engine() {
        let state = EngineState {
            state: Some(PlaceState::Queued),
            reason: Some("Resources".to_owned()),
            job: Some("7".to_owned()),
            ..EngineState::default()
        };
        assert_eq!(waiting(&state).unwrap(), "the engine has it in the state queued as job 7: Resources");
        assert_eq!(waiting(&EngineState { state: Some(PlaceState::Running), ..state }), None);
    }
}
