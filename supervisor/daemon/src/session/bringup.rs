//! The steps of a launch up to the moment the agent can be started: the world is checked and the environment built.
//!
//! It runs beside the driver, which writes what it reports; it writes nothing into the journal itself. Dropped, it leaves nothing
//! behind: the scripts it runs end with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::prerequisite::Requester;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::{Body, ByteString, SessionId};
use agentd_keeper::protocol::{Attributes, LaunchRecord, Limits, Rate, Variable};
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::compiling;
use super::driver::Driver;
use super::environment;
use super::needs::Needs;
use super::state::Run;
use crate::capability::{Machine, Place};
use crate::env::{Built, SessionFile};
use crate::isolation;
use crate::workspace;
use crate::world::World;

/// What a bring-up reports, in order; the last is `Ready` or `Failed`.
#[derive(Debug)]
pub(crate) enum Progress {
    Condition { kind: ConditionType, status: ConditionStatus, reason: String, message: String },
    Record(Box<Body>),
    Failed { kind: ConditionType, reason: &'static str, message: String },
    Ready(Box<Prepared>),
}

/// What an agent is started with.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) record: LaunchRecord,
    /// What is written before it starts.
    pub(crate) files: Vec<SessionFile>,
}

/// What a bring-up needs to know of its session.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) id: SessionId,
    pub(crate) spec: SessionSpec,
    pub(crate) launch: u64,
    /// Until when it waits for what is missing.
    pub(crate) wait_until: Option<Timestamp>,
    /// Who asked for it whatever is missing.
    pub(crate) forced_by: Option<Requester>,
    /// When the first thing of the environment before expires, and when it is asked for again.
    pub(crate) schedule: Option<(Timestamp, Timestamp)>,
}

/// Why a launch ends here: the condition that does not hold.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: ConditionType,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Driver {
    /// What a launch is told of its session.
    pub(super) fn job(&self, launch: u64) -> Job {
        let (id, spec) = (self.document.id.clone(), self.document.spec.clone());
        let wait_until = match &self.state.run {
            Run::Preparing(preparing) => preparing.wait_until,
            Run::Ended(_) | Run::Running(_) => None,
        };
        let schedule = self.state.expires.zip(self.state.renews);
        Job { id, spec, launch, wait_until, forced_by: self.state.forced_by.clone(), schedule }
    }
}

/// How long the agent's program is looked for in all of the session's PATH.
const LOOKED_UP: Duration = Duration::from_secs(10);

/// Runs the steps; the receiver's end ends it.
pub(crate) async fn run(world: Arc<World>, job: Job, report: mpsc::Sender<Progress>) {
    let last = match Box::pin(steps(&world, &job, &report)).await {
        Ok(prepared) => Progress::Ready(Box::new(prepared)),
        Err(Failure { kind, reason, message }) => Progress::Failed { kind, reason, message },
    };
    let _ = report.send(last).await;
}

fn failed(kind: ConditionType, reason: &'static str, message: String) -> Failure {
    Failure { kind, reason, message }
}

async fn steps(world: &World, job: &Job, report: &mpsc::Sender<Progress>) -> Result<Prepared, Failure> {
    let holds = |kind, reason: &str, message: &str| Progress::Condition {
        kind,
        status: ConditionStatus::True,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    compiling::wait(world, &job.spec, report).await?;
    let mut needs = Needs::new(world, job, report);
    needs.before().await?;
    let directory = &job.spec.directory;
    let looked = workspace::check(&world.machine, directory).await;
    looked.map_err(|error| failed(ConditionType::NotStale, error.reason(), error.to_string()))?;
    let _ = report.send(holds(ConditionType::NotStale, "Fresh", "the working directory is there")).await;
    let _ = report.send(holds(ConditionType::WorkspaceReady, "Ready", "the working directory can be entered")).await;
    // Bounded: fifty sessions resumed at once must not run fifty login shells at once.
    let ending = |_| failed(ConditionType::EnvironmentReady, "Ending", "agentd is ending".to_owned());
    let permit = world.launches.acquire().await.map_err(ending)?;
    let built = Box::pin(environment::prepare(world, job, report)).await?;
    drop(permit);
    needs.after(&built.environment).await?;
    let files = SessionFile::of(&built.environment, |_| true);
    Ok(Prepared { record: launch_record(world, job, &built).await?, files })
}

async fn launch_record(world: &World, job: &Job, built: &Built) -> Result<LaunchRecord, Failure> {
    let environment = &built.environment;
    let failed = |reason, message| failed(ConditionType::AgentStarted, reason, message);
    let command = world.agent_command(&job.spec).map_err(|problem| failed("NoSuchAgent", problem.detail))?;
    let (program, args) = command.split_first().ok_or_else(|| failed("NoSuchAgent", "its command is empty".into()))?;
    let (limits, configured) = (&job.spec.limits, &world.config.limits);
    let bounds =
        Limits { memory_bytes: limits.memory.or(configured.memory), processes: limits.tasks.or(configured.tasks) };
    let path = environment.get("PATH").unwrap_or_default();
    let program = match candidates(program, path, &job.spec.directory) {
        Named::Path(path) => path,
        Named::In(candidates) => {
            let of_path = |text| format!("{text} in the session's PATH ({})", String::from_utf8_lossy(path));
            let found = find(&world.machine, candidates).await;
            found.map_err(|(reason, silent)| {
                failed(reason, of_path(format!("there is no program {program:?}{silent}")))
            })?
        }
    };
    let mut variables: Vec<Variable> =
        environment.pairs().map(|(name, value)| Variable { name: name.into(), value: value.into() }).collect();
    isolation::set_socket(world, &job.id, &job.spec, &mut variables);
    let attributes = environment.attributes.clone();
    let withheld = attributes.as_ref().map(Attributes::withheld).unwrap_or_default();
    if !withheld.is_empty() {
        tracing::warn!(session = %job.id, withheld = withheld.join(", "), "the agent does not get all limits that the login shell sets; see LimitNOFILE= and the like in systemd.exec(5)");
    }
    Ok(LaunchRecord {
        launch: job.launch,
        attributes,
        program: program.into_os_string().into(),
        args: args.iter().map(|arg| ByteString::from(arg.as_str())).collect(),
        environment: variables,
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
        is_unit: world.launcher.has_cgroups(),
        enclosure: isolation::enclosure(world, &job.id, &job.spec),
    })
}

/// Where the agent's program is.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    /// One that is not there is left to the execution to report, with the system's own words.
    Path(PathBuf),
    /// The first of these that can be executed.
    In(Vec<PathBuf>),
}

/// As execvp(3) looks a program up, but in the session's PATH and not in the daemon's.
fn candidates(program: &str, path: &[u8], directory: &Path) -> Named {
    use std::os::unix::ffi::OsStrExt as _;
    if program.contains('/') {
        return Named::Path(directory.join(program));
    }
    let entries = path.split(|&byte| byte == b':').filter(|entry| !entry.is_empty());
    Named::In(
        entries.map(|entry| directory.join(Path::new(std::ffi::OsStr::from_bytes(entry))).join(program)).collect(),
    )
}

/// The first that can be executed; else the reason, and which of them do not answer. What does not answer is passed over: an entry of a
/// dead file server behind the program's own is no obstacle, and of one in front of it the agent hears early enough.
async fn find(machine: &Machine, candidates: Vec<PathBuf>) -> Result<PathBuf, (&'static str, String)> {
    let is_it = |place: &Place| matches!(place, Place::File { usable: true, .. });
    let seen = machine.places(candidates.clone(), Instant::now() + LOOKED_UP, is_it).await;
    let silent =
        seen.iter().filter_map(|place| if let Place::Silent(text) = place { Some(text.as_str()) } else { None });
    let silent = silent.fold(String::new(), |told, text| format!("{told}; {text}"));
    let reason = if silent.is_empty() { "ProgramNotFound" } else { "ProgramSilent" };
    let found = candidates.into_iter().zip(&seen).find(|(_, place)| is_it(place));
    found.map(|(path, _)| path).ok_or((reason, silent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_looked_up_in_the_path_it_is_given() {
        let directory = Path::new("/work");
        let of = |program, path: &[u8]| candidates(program, path, directory);
        assert_eq!(of("sh", b"/nowhere::rel"), Named::In(vec!["/nowhere/sh".into(), "/work/rel/sh".into()]));
        assert_eq!(of("sh", b""), Named::In(Vec::new()));
        assert_eq!(of("./x", b"/bin"), Named::Path("/work/./x".into()));
        assert_eq!(of("/opt/x", b""), Named::Path("/opt/x".into()));
    }
}
