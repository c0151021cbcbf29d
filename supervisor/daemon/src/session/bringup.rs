//! The steps of a launch up to the moment the agent can be started: the world is checked and the environment built.
//!
//! It runs beside the driver, which writes what it reports; it writes nothing into the journal itself. Dropped, it leaves nothing
//! behind: the scripts it runs end with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::environment::EnvironmentView;
use agentd_api::event::EnvironmentBuilt;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::{Body, ByteString, SessionId};
use agentd_fault::Point;
use agentd_keeper::protocol::{LaunchRecord, Limits, Rate, Variable};
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::validation;
use crate::env::{Built, Environment, Finding, PipelineError, Placeholders, Target, Unbuilt, chain, difference};
use crate::world::World;
use crate::{store, workspace};

/// What a bring-up reports, in order; the last is `Ready` or `Failed`.
#[derive(Debug)]
pub(crate) enum Progress {
    Condition { kind: ConditionType, status: ConditionStatus, reason: String, message: String },
    Record(Box<Body>),
    Failed { kind: ConditionType, reason: &'static str, message: String },
    Ready(Box<LaunchRecord>),
}

/// What a bring-up needs to know of its session.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: SessionId,
    pub(crate) spec: SessionSpec,
    pub(crate) launch: u64,
}

struct Failure {
    kind: ConditionType,
    reason: &'static str,
    message: String,
}

/// Runs the steps; the receiver's end ends it.
pub(crate) async fn run(world: Arc<World>, job: Job, report: mpsc::Sender<Progress>) {
    // Bounded: fifty sessions resumed at once must not run fifty login shells at once.
    let Ok(_permit) = world.launches.acquire().await else { return };
    let last = match steps(&world, &job, &report).await {
        Ok(record) => Progress::Ready(Box::new(record)),
        Err(Failure { kind, reason, message }) => Progress::Failed { kind, reason, message },
    };
    let _ = report.send(last).await;
}

async fn steps(world: &World, job: &Job, report: &mpsc::Sender<Progress>) -> Result<LaunchRecord, Failure> {
    let holds = |kind, reason: &str, message: &str| Progress::Condition {
        kind,
        status: ConditionStatus::True,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let _ = report
        .send(holds(ConditionType::PrerequisitesMet, "NoneRequired", "the session requires nothing outside of it"))
        .await;
    let directory = &job.spec.directory;
    workspace::check(directory).map_err(|error| Failure {
        kind: ConditionType::NotStale,
        reason: error.reason(),
        message: error.to_string(),
    })?;
    let _ = report.send(holds(ConditionType::NotStale, "Fresh", "the working directory is there")).await;
    let _ = report.send(holds(ConditionType::WorkspaceReady, "Ready", "the working directory can be entered")).await;

    let look = validation::look(world, &job.id, &job.spec).await.map_err(|error| plugins_unusable(&error))?;
    let built = build_environment(world, job, report).await;
    look.report(world, &job.id, &job.spec, built.as_ref().ok().map(|(built, _)| &built.environment), report).await;
    let (built, took) = built?;
    if let Some(condition) = secrets_condition(&built) {
        let _ = report.send(condition).await;
    }
    let environment = &built.environment;
    let view = environment.view(Timestamp::now(), job.launch);
    let mut record = keep_environment(world, job, environment, &view)?;
    record.duration_us = u64::try_from(took.as_micros()).ok();
    let message = format!("{} variables, {} dropped", record.variables, record.dropped.len());
    let _ = report.send(Progress::Record(Box::new(Body::EnvironmentBuilt(record)))).await;
    let _ = report.send(holds(ConditionType::EnvironmentReady, "Built", &message)).await;

    launch_record(world, job, &built)
}

fn plugins_unusable(error: &PipelineError) -> Failure {
    Failure { kind: ConditionType::EnvironmentReady, reason: "PluginsUnusable", message: chain(error) }
}

/// Which of the session's named secrets it has; nothing where it has none by the configuration.
fn secrets_condition(built: &Built) -> Option<Progress> {
    let kind = ConditionType::SecretsAvailable;
    if !built.missing.is_empty() {
        let message = built.missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        return Some(Progress::Condition {
            kind,
            status: ConditionStatus::False,
            reason: "SecretUnavailable".to_owned(),
            message,
        });
    }
    let message = built.secrets.join(", ");
    let status = ConditionStatus::True;
    (!built.secrets.is_empty()).then_some(Progress::Condition { kind, status, reason: "Taken".to_owned(), message })
}

/// The environment, and how long building it took.
async fn build_environment(
    world: &World,
    job: &Job,
    report: &mpsc::Sender<Progress>,
) -> Result<(Built, Duration), Failure> {
    let failed = |reason, message| Failure { kind: ConditionType::EnvironmentReady, reason, message };
    let pipeline = world.pipeline().await.map_err(|error| plugins_unusable(&error))?;
    let target = Target {
        id: job.id.clone(),
        name: job.spec.name.as_ref().map(ToString::to_string),
        agent: world.agent_label(&job.spec),
        launch: job.launch,
        places: Placeholders {
            config: world.directories.config.clone(),
            cwd: job.spec.directory.clone(),
            session: world.directories.session(&job.id),
        },
        chosen: world.chosen(&job.id, &job.spec),
    };
    let begun = Instant::now();
    let built = pipeline.build(&target, &world.trust, &world.secrets).await;
    let took = begun.elapsed();
    if let Some(Finding { fresh, reason, message }) = target.chosen.finding() {
        let status = if fresh { ConditionStatus::True } else { ConditionStatus::False };
        let kind = ConditionType::SnapshotFresh;
        let _ = report.send(Progress::Condition { kind, status, reason: reason.to_owned(), message }).await;
    }
    let built = built.map_err(|Unbuilt { reason, message }| failed(reason, message))?;
    Ok((built, took))
}

/// Writes `environment.json`, and says what is other than at the launch before.
fn keep_environment(
    world: &World,
    job: &Job,
    environment: &Environment,
    view: &EnvironmentView,
) -> Result<EnvironmentBuilt, Failure> {
    let path = environment_file(world, &job.id);
    let before = read_environment(&path);
    let written = store::write_json(&path, view).and_then(|()| agentd_fault::at(Point::DaemonBringUpEnvironment));
    written.map_err(|error| Failure {
        kind: ConditionType::EnvironmentReady,
        reason: "NotKept",
        message: format!("cannot write {}: {error}", path.display()),
    })?;
    let (changed, removed) = before.map(|before| difference(&before, view)).unwrap_or_default();
    Ok(EnvironmentBuilt {
        launch: job.launch,
        digest: view.digest.clone(),
        variables: u32::try_from(environment.len()).unwrap_or(u32::MAX),
        dropped: environment.dropped().map(str::to_owned).collect(),
        changed,
        removed,
        home: environment.get("HOME").map(|home| String::from_utf8_lossy(home).into_owned()),
        killed: environment.background.killed,
        left: environment.background.left,
        duration_us: None,
    })
}

pub(crate) fn environment_file(world: &World, id: &SessionId) -> PathBuf {
    world.directories.session(id).join("environment.json")
}

/// The environment of the last launch, if there was one and it can be read.
pub(crate) fn read_environment(path: &Path) -> Option<EnvironmentView> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn launch_record(world: &World, job: &Job, built: &Built) -> Result<LaunchRecord, Failure> {
    let environment = &built.environment;
    let failed = |reason, message| Failure { kind: ConditionType::AgentStarted, reason, message };
    let command = world.agent_command(&job.spec).map_err(|problem| failed("NoSuchAgent", problem.detail))?;
    let (program, args) = command.split_first().ok_or_else(|| failed("NoSuchAgent", "its command is empty".into()))?;
    let (limits, configured) = (&job.spec.limits, &world.config.limits);
    let bounds =
        Limits { memory_bytes: limits.memory.or(configured.memory), processes: limits.tasks.or(configured.tasks) };
    let path = environment.get("PATH").unwrap_or_default();
    let program = find_program(program, path, &job.spec.directory).ok_or_else(|| {
        let path = String::from_utf8_lossy(path);
        failed("ProgramNotFound", format!("there is no program {program:?} in the session's PATH ({path})"))
    })?;
    Ok(LaunchRecord {
        launch: job.launch,
        program: program.into_os_string().into(),
        args: args.iter().map(|arg| ByteString::from(arg.as_str())).collect(),
        environment: environment
            .pairs()
            .map(|(name, value)| Variable { name: name.into(), value: value.into() })
            .collect(),
        directory: job.spec.directory.as_os_str().into(),
        secrets: built.hidden.clone(),
        max_line: world.config.limits.line,
        output_rate: limits
            .output_rate
            .or(configured.output_rate)
            .map(|bytes_per_second| Rate { bytes_per_second, burst: bytes_per_second.saturating_mul(10) }),
        stderr_rate: None,
        // In a unit of its own the session has a cgroup, which knows better than anybody who looks once a second.
        limits: if world.launcher.has_cgroups() { Limits::default() } else { bounds },
    })
}

/// As execvp(3) looks a program up, but in the session's PATH and not in the daemon's.
fn find_program(program: &str, path: &[u8], directory: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let executable = |path: &Path| path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok();
    if program.contains('/') {
        // A path that is not there is left to the execution to report, with the system's own words.
        return Some(directory.join(program));
    }
    path.split(|&byte| byte == b':')
        .filter(|entry| !entry.is_empty())
        .map(|entry| directory.join(Path::new(std::ffi::OsStr::from_bytes(entry))).join(program))
        .find(|candidate| executable(candidate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_in_the_path_it_is_given() {
        let directory = Path::new("/work");
        assert_eq!(find_program("sh", b"/nowhere::/bin", directory), Some("/bin/sh".into()));
        assert_eq!(find_program("sh", b"", directory), None);
        assert_eq!(find_program("./x", b"/bin", directory), Some("/work/./x".into()));
        assert_eq!(find_program("/opt/x", b"", directory), Some("/opt/x".into()));
    }
}
