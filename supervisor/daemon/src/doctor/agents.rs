//! Whether the agents of the configuration are there, in the environment that a session of each would get, and which version each is.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_api::doctor::{Check, Finding};
use agentd_api::environment::{EnvironmentSpec, EnvironmentView, SnapshotSource};
use agentd_api::prerequisite::Outcome;
use agentd_api::session::SessionSpec;
use agentd_api::{AgentName, ByteString, SessionId};
use agentd_keeper::protocol::{RunOutcome, RunRequest, Variable};
use nix::unistd::{AccessFlags, access};

use crate::runner;
use crate::session::build_now;
use crate::world::World;

/// How long an agent may take to say its version.
const TIME: Duration = Duration::from_secs(10);
/// How much of what it says is looked at.
const OUTPUT: u64 = 4096;
/// Where execvp(3) looks without a PATH.
const WITHOUT_PATH: &str = "/bin:/usr/bin";

/// One agent as it was found.
#[derive(Debug)]
enum Found {
    /// Where, and what it says of its version.
    There {
        program: PathBuf,
        version: Result<String, String>,
    },
    Missing {
        program: String,
        path: String,
    },
    /// It could not be told.
    NoEnvironment {
        why: String,
    },
}

pub(super) async fn check(world: &World) -> Check {
    if let Err(problem) = world.launchable() {
        return Check::new("agents", Outcome::Unknown, format!("no environment is built: {}", problem.detail))
            .remedy("correct the configuration, then run `agentctl reload`");
    }
    let mut agents = Vec::new();
    for (name, command) in world.agents() {
        let found = look(world, &name, &command).await;
        agents.push((name, found));
    }
    concluded(&agents)
}

async fn look(world: &World, name: &str, command: &[String]) -> Found {
    let home = world.config.environment.home.clone().or_else(std::env::home_dir);
    let directory = home.unwrap_or_else(|| "/".into());
    let spec = match spec(name, &directory) {
        Ok(spec) => spec,
        Err(why) => return Found::NoEnvironment { why },
    };
    let environment = match build_now(world, &SessionId::random(), &spec, 1).await {
        Ok(environment) => environment,
        Err(problem) => return Found::NoEnvironment { why: problem.detail },
    };
    let program = command.first().map(String::as_str).unwrap_or_default().to_owned();
    let path = value(&environment, "PATH").unwrap_or_else(|| WITHOUT_PATH.to_owned());
    let (searched, from) = (program.clone(), directory.clone());
    let (there, path) = tokio::task::spawn_blocking(move || (find(&searched, &path, &from), path))
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    let Some(there) = there else { return Found::Missing { program, path } };
    let version = version(world, &there, &environment, &directory).await;
    Found::There { program: there, version }
}

/// A session in the home directory, which begins with what needs no terminal.
fn spec(agent: &str, directory: &Path) -> Result<SessionSpec, String> {
    let agent: AgentName = agent.parse().map_err(|_| format!("{agent:?} is no name of an agent"))?;
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

/// As execvp(3) finds it.
fn find(program: &str, path: &str, directory: &Path) -> Option<PathBuf> {
    let runs = |file: &PathBuf| file.is_file() && access(file, AccessFlags::X_OK).is_ok();
    if program.contains('/') {
        return Some(directory.join(program)).filter(runs);
    }
    path.split(':').map(|place| directory.join(place).join(program)).find(runs)
}

async fn version(
    world: &World,
    program: &Path,
    environment: &EnvironmentView,
    directory: &Path,
) -> Result<String, String> {
    // It needs no secret to say who it is.
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
    let ran = tokio::time::timeout(TIME * 2, runner::run(&world.programs.keeper, &request)).await;
    let ran = ran.map_err(|_| "it does not end".to_owned())?.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(ran.stdout.as_bytes())
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .map(str::to_owned);
    match (ran.outcome, said) {
        (RunOutcome::Exited(0), Some(line)) => Ok(line.chars().take(80).collect()),
        (RunOutcome::Exited(0), None) => Err("it says none".to_owned()),
        (RunOutcome::Exited(status), _) => Err(format!("--version ended with status {status}")),
        (RunOutcome::Signalled(signal), _) => Err(format!("--version ended with signal {signal}")),
        (RunOutcome::TimedOut, _) => Err(format!("--version took longer than {} s", TIME.as_secs())),
        (RunOutcome::NotExecuted(why), _) => Err(format!("it cannot be executed: {why}")),
        (
            RunOutcome::Cancelled
            | RunOutcome::TooMuchOutput
            | RunOutcome::Changed
            | RunOutcome::NotSealed
            | RunOutcome::Captured
            | RunOutcome::Unanswered,
            _,
        ) => Err("it was ended".to_owned()),
    }
}

fn concluded(agents: &[(String, Found)]) -> Check {
    let mut findings = Vec::new();
    for (name, found) in agents {
        match found {
            Found::There { version: Ok(_), .. } => {}
            Found::There { program, version: Err(why) } => findings.push(Finding::new(
                Outcome::Warn,
                format!("{name} is there and does not say its version: {why}"),
                format!("try {} --version", program.display()),
            )),
            Found::Missing { program, path } => findings.push(Finding::new(
                Outcome::Fail,
                format!("there is no program {program:?} for the agent {name}"),
                format!("install it, or correct agents.{name}.command; sessions have PATH={path}"),
            )),
            Found::NoEnvironment { why } => findings.push(Finding::new(
                Outcome::Fail,
                format!("a session of {name} would get no environment: {why}"),
                "a launch would fail in the same way; agentctl snapshot refresh tries the login shell alone".to_owned(),
            )),
        }
    }
    let mut check = Check::of("agents", &findings, format!("{} are there", agents.len()));
    for (name, found) in agents {
        if let Found::There { program, version: Ok(version) } = found {
            check = check.fact(name, format!("{version} ({})", program.display()));
        }
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_as_the_agent_would_be_and_nothing_else_is() {
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
    fn an_agent_that_is_not_there_fails_with_the_path_and_one_without_a_version_is_told() {
        let missing = Found::Missing { program: "claude".into(), path: "/bin".into() };
        let there = Found::There { program: "/bin/agent".into(), version: Ok("agent 1.2".into()) };
        let check = concluded(&[("claude".into(), missing), ("own".into(), there)]);
        assert_eq!(check.outcome, Outcome::Fail);
        assert!(check.remedy.as_ref().unwrap().contains("PATH=/bin"), "{check:?}");
        assert_eq!(check.facts[0].value, "agent 1.2 (/bin/agent)");
        let silent = Found::There { program: "/bin/agent".into(), version: Err("it says none".into()) };
        assert_eq!(concluded(&[("own".into(), silent)]).outcome, Outcome::Warn);
        let none = Found::NoEnvironment { why: "the login shell hangs".into() };
        assert_eq!(concluded(&[("own".into(), none)]).outcome, Outcome::Fail);
    }
}
