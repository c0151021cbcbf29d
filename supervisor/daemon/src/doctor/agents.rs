//! Checks whether each configured agent exists in the environment of its sessions, and reports its version.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentd_api::doctor::{Check, Finding};
use agentd_api::environment::{EnvironmentSpec, EnvironmentView, SnapshotSource};
use agentd_api::prerequisite::Outcome;
use agentd_api::session::SessionSpec;
use agentd_api::{AgentName, ByteString, SessionId};
use agentd_keeper::protocol::{RunOutcome, RunRequest, Variable};
use nix::unistd::{AccessFlags, access};

use agentd_host::runner;
use agentd_session::build_now;
use agentd_session::generation::Generation;

/// Time limit of an agent's `--version`.
const TIME: Duration = Duration::from_secs(10);
/// Maximum number of bytes read from the output of `--version`.
const OUTPUT: u64 = 4096;
/// Search path of execvp(3) without PATH.
const WITHOUT_PATH: &str = "/bin:/usr/bin";

/// Result of searching one agent.
#[derive(Debug)]
enum Found {
    /// The program's path, and its version or the reason why the version is unknown.
    Installed {
        program: PathBuf,
        version: Result<String, String>,
    },
    Missing {
        program: String,
        path: String,
    },
    /// The environment could not be built, so the agent cannot be searched.
    NoEnvironment {
        why: String,
    },
}

pub(super) async fn check(generation: &Arc<Generation>) -> Check {
    if let Err(problem) = generation.launchable() {
        return Check::new("agents", Outcome::Unknown, format!("cannot build an environment: {}", problem.detail))
            .remedy("correct the configuration, then run `agentctl reload`");
    }
    let mut agents = Vec::new();
    for (name, command) in generation.agents() {
        let found = look(generation, &name, &command).await;
        agents.push((name, found));
    }
    concluded(&agents)
}

async fn look(generation: &Arc<Generation>, name: &str, command: &[String]) -> Found {
    let home = generation.config.environment.home.clone().or_else(std::env::home_dir);
    let directory = home.unwrap_or_else(|| "/".into());
    let spec = match spec(name, &directory) {
        Ok(spec) => Arc::new(spec),
        Err(why) => return Found::NoEnvironment { why },
    };
    let environment = match build_now(generation, &SessionId::random(), (&spec, None), 1).await {
        Ok(environment) => environment,
        Err(problem) => return Found::NoEnvironment { why: problem.detail },
    };
    let program = command.first().map(String::as_str).unwrap_or_default().to_owned();
    let path = value(&environment, "PATH").unwrap_or_else(|| WITHOUT_PATH.to_owned());
    let (searched, from) = (program.clone(), directory.clone());
    let (installed, path) = agentd_host::work::blocking(move || (find(&searched, &path, &from), path))
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    let Some(installed) = installed else { return Found::Missing { program, path } };
    let version = version(generation, &installed, &environment, &directory).await;
    Found::Installed { program: installed, version }
}

/// Builds the spec of a session in the home directory that starts from the login shell, which needs no terminal.
fn spec(agent: &str, directory: &Path) -> Result<SessionSpec, String> {
    let agent: AgentName = agent.parse().map_err(|_| format!("{agent:?} is not an agent name"))?;
    let mut spec: SessionSpec =
        serde_json::from_value(serde_json::json!({ "directory": directory })).map_err(|error| error.to_string())?;
    spec.agent = Some(agent);
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

async fn version(
    generation: &Generation,
    program: &Path,
    environment: &EnvironmentView,
    directory: &Path,
) -> Result<String, String> {
    // `--version` needs no secrets.
    let plain = environment.variables.iter().filter(|variable| !variable.secret);
    let variables = plain
        .filter_map(|variable| Some(Variable { name: variable.name.as_str().into(), value: variable.value.clone()? }));
    let request = RunRequest {
        program: ByteString::from(program.as_os_str().as_bytes().to_vec()),
        args: vec!["--version".into()],
        environment: variables.collect(),
        directory: ByteString::from(directory.as_os_str().as_bytes().to_vec()),
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

fn concluded(agents: &[(String, Found)]) -> Check {
    let mut findings = Vec::new();
    for (name, found) in agents {
        match found {
            Found::Installed { version: Ok(_), .. } => {}
            Found::Installed { program, version: Err(why) } => findings.push(Finding::new(
                Outcome::Warn,
                format!("the version of {name} is unknown: {why}"),
                format!("try {} --version", program.display()),
            )),
            Found::Missing { program, path } => findings.push(Finding::new(
                Outcome::Fail,
                format!("the program {program:?} of agent {name} does not exist"),
                format!("install the program, or correct agents.{name}.command; sessions have PATH={path}"),
            )),
            Found::NoEnvironment { why } => findings.push(Finding::new(
                Outcome::Fail,
                format!("cannot build an environment for a session of {name}: {why}"),
                "a launch would fail in the same way; `agentctl snapshot refresh` runs only the login shell".to_owned(),
            )),
        }
    }
    let mut check = Check::of("agents", &findings, format!("{} installed", agents.len()));
    for (name, found) in agents {
        if let Found::Installed { program, version: Ok(version) } = found {
            check = check.fact(name, format!("{version} ({})", program.display()));
        }
    }
    check
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

    #[test]
    fn a_missing_agent_fails_with_the_path_and_an_unknown_version_warns() {
        let missing = Found::Missing { program: "claude".into(), path: "/bin".into() };
        let installed = Found::Installed { program: "/bin/agent".into(), version: Ok("agent 1.2".into()) };
        let check = concluded(&[("claude".into(), missing), ("own".into(), installed)]);
        assert_eq!(check.outcome, Outcome::Fail);
        assert!(check.remedy.as_ref().unwrap().contains("PATH=/bin"), "{check:?}");
        assert_eq!(check.facts[0].value, "agent 1.2 (/bin/agent)");
        let silent =
            Found::Installed { program: "/bin/agent".into(), version: Err("--version printed nothing".into()) };
        assert_eq!(concluded(&[("own".into(), silent)]).outcome, Outcome::Warn);
        let none = Found::NoEnvironment { why: "the login shell hangs".into() };
        assert_eq!(concluded(&[("own".into(), none)]).outcome, Outcome::Fail);
    }
}
