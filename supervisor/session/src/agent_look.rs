//! Looks for an agent in the environment of its sessions: the program, its version, and the signs of a login. Starts
//! no agent, except with `--version`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentd_api::environment::{EnvironmentSpec, EnvironmentView, SnapshotSource};
use agentd_api::session::SessionSpec;
use agentd_api::{ByteString, SessionId};
use agentd_catalogue::{KnownAgent, LoginSign};
use agentd_host::runner;
use agentd_keeper::protocol::{RunOutcome, RunRequest, Variable};
use nix::unistd::{AccessFlags, access};

use crate::environment::build_now;
use crate::generation::Generation;

/// Time limit of an agent's `--version`.
const TIME: Duration = Duration::from_secs(10);
/// Maximum number of bytes read from the output of `--version`.
const OUTPUT: u64 = 4096;
/// Search path of execvp(3) without PATH.
const WITHOUT_PATH: &str = "/bin:/usr/bin";

/// The environment in which an agent's sessions start in the home directory, and the agent's program in it.
#[derive(Debug)]
pub struct AgentLook {
    environment: EnvironmentView,
    directory: PathBuf,
    /// Name of the program in the agent's command.
    pub program: String,
    /// Directories in which the program is searched.
    pub path: String,
    /// Path of the program, if it exists.
    pub found: Option<PathBuf>,
}

/// Looks for the program of an agent. `name` is its name in the configuration; without one, the command is of a known
/// agent.
///
/// # Errors
///
/// The environment cannot be built. The text says why.
pub async fn agent_look(
    generation: &Arc<Generation>,
    name: Option<&str>,
    command: &[String],
) -> Result<AgentLook, String> {
    let home = generation.config.environment.home_directory().or_else(std::env::home_dir);
    let directory = home.unwrap_or_else(|| "/".into());
    let spec = Arc::new(spec(name, command, &directory)?);
    let built = build_now(generation, &SessionId::random(), (&spec, None), 1).await;
    let environment = built.map_err(|problem| problem.detail)?;
    let program = command.first().cloned().unwrap_or_default();
    let path = value(&environment, "PATH").unwrap_or_else(|| WITHOUT_PATH.to_owned());
    let (searched, path_list, from) = (program.clone(), path.clone(), directory.clone());
    let search = agentd_host::work::blocking(move || find(&searched, &path_list, &from)).await;
    let found = search.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    Ok(AgentLook { environment, directory, program, path, found })
}

/// Builds the spec of a session in the home directory that starts from the login shell, which needs no terminal.
fn spec(agent: Option<&str>, command: &[String], directory: &Path) -> Result<SessionSpec, String> {
    let mut spec = SessionSpec::new(directory);
    match agent {
        Some(name) => spec.agent = Some(name.parse().map_err(|_| format!("{name:?} is not an agent name"))?),
        None => spec.command = Some(command.to_vec()),
    }
    spec.environment = EnvironmentSpec { source: Some(SnapshotSource::LoginShell), ..EnvironmentSpec::default() };
    Ok(spec)
}

fn value(environment: &EnvironmentView, name: &str) -> Option<String> {
    let variable = environment.variables.iter().find(|variable| variable.name == name)?;
    Some(String::from_utf8_lossy(variable.value.as_ref()?.as_bytes()).into_owned())
}

/// Finds a program like execvp(3).
fn find(program: &str, path: &str, directory: &Path) -> Option<PathBuf> {
    let runs = |file: &PathBuf| file.is_file() && access(file, AccessFlags::X_OK).is_ok();
    if program.contains('/') {
        return Some(directory.join(program)).filter(runs);
    }
    path.split(':').map(|place| directory.join(place).join(program)).find(runs)
}

impl AgentLook {
    /// Returns the known agent that the command runs.
    pub async fn recognised(&self, command: &[String]) -> Option<&'static KnownAgent> {
        agentd_environment::known_agent(command, Some(self.path.as_bytes()), &self.directory).await
    }

    /// Returns the sign of a known agent's login.
    pub async fn login_sign(&self, known: &'static KnownAgent) -> LoginSign {
        let home = value(&self.environment, "HOME").map_or_else(|| self.directory.clone(), PathBuf::from);
        let environment = self.environment.clone();
        let look = move || known.login_sign(&home, |name| value(&environment, name));
        agentd_host::work::blocking(look).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    /// Runs the program with `--version`, and returns the first line that it prints.
    ///
    /// # Errors
    ///
    /// The version is unknown. The text says why.
    pub async fn version(&self, generation: &Generation) -> Result<String, String> {
        let program = self.found.as_ref().ok_or_else(|| "the program does not exist".to_owned())?;
        // `--version` needs no secrets.
        let plain = self.environment.variables.iter().filter(|variable| !variable.secret);
        let variables = plain.filter_map(|variable| {
            Some(Variable { name: variable.name.as_str().into(), value: variable.value.clone()? })
        });
        let request = RunRequest {
            program: ByteString::from(program.as_os_str().as_bytes().to_vec()),
            args: vec!["--version".into()],
            environment: variables.collect(),
            directory: ByteString::from(self.directory.as_os_str().as_bytes().to_vec()),
            deadline_ms: u64::try_from(TIME.as_millis()).unwrap_or(u64::MAX),
            max_output: OUTPUT,
            ..RunRequest::default()
        };
        let ran = tokio::time::timeout(TIME * 2, runner::run(&generation.daemon.programs.keeper, &request)).await;
        let ran = ran.map_err(|_| "--version did not end".to_owned())?.map_err(|error| error.to_string())?;
        let first_line = String::from_utf8_lossy(ran.stdout.as_bytes())
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty())
            .map(str::to_owned);
        match (ran.outcome, first_line) {
            (RunOutcome::Exited(0), Some(line)) => Ok(line.chars().take(80).collect()),
            (RunOutcome::Exited(0), None) => Err("--version printed nothing".to_owned()),
            (RunOutcome::Exited(status), _) => Err(format!("--version ended with status {status}")),
            (RunOutcome::Signalled(signal), _) => Err(format!("--version ended with signal {signal}")),
            (RunOutcome::TimedOut, _) => Err(format!("--version took longer than {} s", TIME.as_secs())),
            (RunOutcome::NotExecuted(why), _) => Err(format!("the program cannot be executed: {why}")),
            (
                RunOutcome::Cancelled
                | RunOutcome::TooMuchOutput
                | RunOutcome::Changed
                | RunOutcome::NotSealed
                | RunOutcome::Captured
                | RunOutcome::Unanswered,
                _,
            ) => Err("--version was ended".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_exactly_the_programs_that_execvp_finds() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("bin")).unwrap();
        std::fs::copy("/bin/true", directory.path().join("bin/agent")).unwrap();
        std::fs::write(directory.path().join("bin/text"), "no program").unwrap();
        let path = format!("/nowhere:{}/bin", directory.path().display());
        assert_eq!(find("agent", &path, Path::new("/")), Some(directory.path().join("bin/agent")));
        assert_eq!(find("bin/agent", "", directory.path()), Some(directory.path().join("bin/agent")));
        for program in ["text", "bin", "", "other"] {
            assert_eq!(find(program, &path, Path::new("/")), None, "{program}");
        }
    }
}
