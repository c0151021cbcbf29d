//! The steps of a launch before the agent is started: checks the prerequisites and builds the environment.
//!
//! The bring-up runs beside the driver and writes nothing to the journal; the driver records its reports. A
//! dropped bring-up leaves nothing behind: its scripts end with it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::context::{ContextLoaded, ContextReason};
use agentd_api::degraded::{LaunchDegraded, MissingPart, NOT_LEFT_OUT};
use agentd_api::event::LaunchReason;
use agentd_api::facts::FactsObserved;
use agentd_api::prerequisite::Requester;
use agentd_api::reason;
use agentd_api::repository::RepositoryChanged;
use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_api::workflow::WorkflowChanged;
use agentd_api::{Body, ByteString, chain};
use agentd_keeper::protocol::{Attributes, Fill, LaunchRecord, PlaceLine, Variable};
use agentd_place::LaunchNames;
use tokio::sync::{mpsc, oneshot};
use tracing::{Instrument as _, info_span};

use super::compiling;
use super::context::missing_files;
use super::creation;
use super::environment::{self, ProvidedEnvironment};
use super::needs::LaunchPrerequisites;
use super::validation::ScriptInspection;
use crate::facts;
use crate::isolation;
use crate::launch::Reservation;
use crate::launch_plan::LaunchPlan;
use crate::place::SessionPlace;
use crate::repositories;
use crate::workflow;
use agentd_decide::staleness::EXISTS;
use agentd_decide::verdict;
use agentd_environment::{BuiltEnvironment, Environment, SessionFile};
use agentd_host::capability::{Machine, PathState};
use agentd_host::workspace;
use agentd_traces::TARGET;

/// Report of a bring-up. After `Ready`, which begins the start of the agent, only a condition and the facts of a first
/// launch follow. `Failed` is the last report.
#[derive(Debug)]
pub(crate) enum Progress {
    Condition {
        kind: ConditionType,
        status: ConditionStatus,
        reason: String,
        message: String,
    },
    Record(Box<Body>),
    /// Work on a repository begins or ends. The work waits for `go_on`.
    Repository {
        changed: Box<RepositoryChanged>,
        go_on: oneshot::Sender<()>,
    },
    /// Another workflow comes into force, or none. The launch begins again with it.
    Workflow(Box<WorkflowChanged>),
    /// The facts are read. The launch waits for `go_on`.
    Observed {
        observed: Box<FactsObserved>,
        go_on: oneshot::Sender<()>,
    },
    /// The environment is built and recorded. The launch waits for `go_on`.
    EnvironmentKept {
        go_on: oneshot::Sender<()>,
    },
    Failed {
        kind: ConditionType,
        reason: &'static str,
        message: String,
    },
    Ready(Box<Prepared>),
}

/// Everything that the start of the agent needs.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub record: LaunchRecord,
    /// Files that are written before the agent starts.
    pub files: Vec<SessionFile>,
    /// The keeper that was started meanwhile.
    pub keeper: Option<Reservation>,
}

/// Reason for the failure of a launch: the condition that does not hold.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ConditionType,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Time limit of the search for the agent's program in the session's `PATH`.
const LOOKED_UP: Duration = Duration::from_secs(10);

/// Runs the steps, until the receiver of the reports is dropped.
pub(crate) async fn run(plan: Arc<LaunchPlan>, report: mpsc::Sender<Progress>) {
    let launch = launch(&plan, &report);
    let failure = if plan.is_first() {
        // The facts of the creation are compared with none, so the agent starts meanwhile.
        tokio::join!(launch, facts::observe(&plan, &report)).0
    } else {
        launch.await
    };
    if let Some(Failure { kind, reason, mut message }) = failure {
        if plan.degraded_by.is_some() && reason != reason::ENDING {
            message = format!("{message}; {NOT_LEFT_OUT}");
        }
        let _ = report.send(Progress::Failed { kind, reason, message }).await;
    }
}

/// Brings the launch up to the start of the agent, and examines the environment meanwhile. Returns the reason of a
/// failure.
async fn launch(plan: &LaunchPlan, report: &mpsc::Sender<Progress>) -> Option<Failure> {
    match Box::pin(steps(plan, report)).await {
        Ok((prepared, inspection, environment)) => {
            let _ = report.send(Progress::Ready(Box::new(prepared))).await;
            inspection.report(plan, Some(&environment), report).await;
            None
        }
        Err(failure) => Some(failure),
    }
}

fn failed(kind: ConditionType, reason: &'static str, message: String) -> Failure {
    Failure { kind, reason, message }
}

/// Writes the session's script if the specification was changed.
async fn own_script(plan: &LaunchPlan) -> Result<(), Failure> {
    if !plan.is_changed {
        return Ok(());
    }
    let (directory, spec) = (plan.daemon.directories.session(&plan.id), Arc::clone(&plan.spec));
    let written = agentd_host::work::blocking(move || creation::write_script(&directory, &spec)).await;
    written.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
        let message = format!("cannot write the session's script env-setup.sh: {error}");
        failed(ConditionType::EnvironmentReady, reason::FILES_NOT_WRITTEN, message)
    })
}

/// Checks that a directory of the session can be entered. The session's own workspace is created first.
async fn directory(plan: &LaunchPlan, path: &Path) -> Result<(), Failure> {
    if plan.workspace.as_deref() == Some(path) {
        let made = repositories::make_workspace(path.to_owned()).await;
        made.map_err(|error| {
            let message = format!("cannot create the session's workspace {}: {error}", path.display());
            failed(ConditionType::WorkspaceReady, reason::DIRECTORY_CLOSED, message)
        })?;
    }
    let looked = workspace::check(&plan.daemon.machine, path).await;
    looked.map_err(|error| failed(ConditionType::NotStale, error.reason(), error.to_string()))
}

/// Runs the steps before the start of the agent. Also returns the inspection of the environment that is still to be
/// reported.
async fn steps(
    plan: &LaunchPlan,
    report: &mpsc::Sender<Progress>,
) -> Result<(Prepared, ScriptInspection, Environment), Failure> {
    let holds = |kind, reason: &str, message: &str| Progress::Condition {
        kind,
        status: ConditionStatus::True,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    compiling::wait(plan, report).instrument(info_span!(target: TARGET, "plugins")).await?;
    reached(plan, report).await?;
    let mut needs = LaunchPrerequisites::new(plan, report);
    needs.before().instrument(info_span!(target: TARGET, "prerequisites")).await?;
    own_script(plan).await?;
    let mut parts = (Vec::new(), None);
    if plan.place.is_none() {
        let in_workspace = info_span!(target: TARGET, "workspace");
        parts = Box::pin(workspace_of(plan, report)).instrument(in_workspace).await?;
        if plan.launch == 1 {
            let _ = report.send(holds(ConditionType::NotStale, reason::FRESH, EXISTS)).await;
        }
        if plan.launch > 1 || plan.workspace.is_some() {
            facts::observe(plan, report).await;
        }
        let message = "the working directory can be entered";
        let _ = report.send(holds(ConditionType::WorkspaceReady, reason::READY, message)).await;
    }
    let (left_out, without_workflow) = parts;
    load_context(plan, report).await;
    // The permits bound the number of login shells: fifty sessions resumed at once must not run fifty login shells.
    let ending = |_| failed(ConditionType::EnvironmentReady, reason::ENDING, "agentd is ending".to_owned());
    let permit = plan.permits.acquire().await.map_err(ending)?;
    let reserve = || plan.daemon.launcher.reserve(&plan.id, &plan.keeper, &plan.unit);
    let keeper = if plan.has_warm_agent { None } else { reserve() };
    let in_environment = info_span!(target: TARGET, "environment");
    let provided = Box::pin(environment::provide_environment(plan, report)).instrument(in_environment);
    let ProvidedEnvironment { built, without, mcp_secrets, inspection } = provided.await?;
    drop(permit);
    facts::compare_environment(report).await;
    needs.after(&built.environment).instrument(info_span!(target: TARGET, "prerequisites")).await?;
    if let Some(by) = &plan.degraded_by {
        let missing = without.into_iter().chain(needs.left_out()).chain(left_out).chain(without_workflow).collect();
        report_degraded(plan, by, missing, report).await;
    }
    let files = SessionFile::of(&built.environment, |_| true);
    let prepared = Prepared { record: launch_record(plan, &built, mcp_secrets).await?, files, keeper };
    Ok((prepared, inspection, built.environment))
}

/// Waits until the place has told its host. The engine of the place may queue the question.
async fn reached(plan: &LaunchPlan, report: &mpsc::Sender<Progress>) -> Result<(), Failure> {
    if let Some(error) = &plan.no_place {
        return Err(failed(ConditionType::Placed, reason::PLACE_UNREACHABLE, error.to_string()));
    }
    let Some(place) = &plan.place else { return Ok(()) };
    if place.snapshots().is_none() {
        let message = format!("asks the place {:?} for its host", place.name());
        let (kind, reason) = (ConditionType::Placed, reason::SUBMITTED.to_owned());
        let _ = report.send(Progress::Condition { kind, status: ConditionStatus::False, reason, message }).await;
    }
    match place.host(&plan.environments).await {
        Ok(_) => Ok(()),
        Err(error) => Err(failed(ConditionType::Placed, reason::PLACE_UNREACHABLE, chain(&error))),
    }
}

/// Provides the working directory with its repositories and its workflow. Returns what a degraded launch left out.
async fn workspace_of(
    plan: &LaunchPlan,
    report: &mpsc::Sender<Progress>,
) -> Result<(Vec<MissingPart>, Option<MissingPart>), Failure> {
    directory(plan, plan.root()).await?;
    let left_out = repositories::of_launch(plan, report).await?;
    if plan.root() != plan.spec.directory {
        directory(plan, &plan.spec.directory).await?;
    }
    let without_workflow = workflow::of_launch(plan, report).await?;
    if plan.workflow.is_some() {
        directory(plan, plan.directory()).await?;
    }
    let looked = workspace::check_all(&plan.daemon.machine, &plan.spec.directories).await;
    looked.map_err(|error| failed(ConditionType::NotStale, error.reason(), error.to_string()))?;
    Ok((left_out, without_workflow))
}

/// Reports the session's context with the files that do not exist any more.
async fn load_context(plan: &LaunchPlan, report: &mpsc::Sender<Progress>) {
    if plan.context.is_empty() {
        return;
    }
    // The files of a place are not examined.
    let missing =
        if plan.place.is_none() { missing_files(&plan.daemon.machine, &plan.context).await } else { Vec::new() };
    let reason = if plan.reason == LaunchReason::Resume { ContextReason::Resume } else { ContextReason::Load };
    let (launch, context) = (plan.launch, plan.context.clone());
    let loaded = ContextLoaded { reason, launch, context, missing };
    let _ = report.send(Progress::Record(Box::new(Body::ContextLoaded(loaded)))).await;
}

/// Reports what a degraded launch left out: in the log, in the journal and in a condition.
async fn report_degraded(
    plan: &LaunchPlan,
    by: &Requester,
    mut missing: Vec<MissingPart>,
    report: &mpsc::Sender<Progress>,
) {
    missing.sort_by_key(|part| part.kind);
    let (status, reason, message) = verdict::degraded(&missing, by);
    if !missing.is_empty() {
        tracing::warn!(%by, "{message}");
        let degraded = LaunchDegraded { launch: plan.launch, by: by.clone(), missing };
        let _ = report.send(Progress::Record(Box::new(Body::LaunchDegraded(degraded)))).await;
    }
    let (kind, reason) = (ConditionType::Degraded, reason.to_owned());
    let _ = report.send(Progress::Condition { kind, status, reason, message }).await;
}

/// Finds the program and fills the launch record.
pub(crate) async fn launch_record(
    plan: &LaunchPlan,
    built: &BuiltEnvironment,
    fills: Vec<Fill>,
) -> Result<LaunchRecord, Failure> {
    let environment = &built.environment;
    let failed = |reason, message| failed(ConditionType::AgentStarted, reason, message);
    let command = plan.command.as_ref().map_err(|problem| failed(reason::NO_SUCH_AGENT, problem.detail.clone()))?;
    let (program, args) =
        command.split_first().ok_or_else(|| failed(reason::NO_SUCH_AGENT, "its command is empty".into()))?;
    let program =
        self::program(plan, environment, program).await.map_err(|(reason, message)| failed(reason, message))?;
    let mut variables: Vec<Variable> =
        environment.pairs().map(|(name, value)| Variable { name: name.into(), value: value.into() }).collect();
    if let Some(socket) = &plan.guest_socket {
        isolation::set_socket(socket, &mut variables);
    }
    let place = match &plan.place {
        None => None,
        Some(place) => Some(line(plan, Arc::clone(place), built).await?),
    };
    let attributes = environment.attributes.clone();
    let withheld = attributes.as_ref().map(Attributes::withheld).unwrap_or_default();
    if !withheld.is_empty() {
        tracing::warn!(
            withheld = withheld.join(", "),
            "the agent does not get all limits that the login shell sets; see LimitNOFILE= and similar settings in \
             systemd.exec(5)"
        );
    }
    Ok(LaunchRecord {
        launch: plan.launch,
        attributes,
        program: program.into_os_string().into(),
        args: args.iter().map(|arg| ByteString::from(arg.as_str())).collect(),
        environment: variables,
        directory: plan.directory().as_os_str().into(),
        secrets: built.hidden.iter().cloned().chain(fills.iter().map(|fill| fill.text.as_str().into())).collect(),
        fills,
        max_line: plan.max_line,
        output_rate: plan.output_rate,
        stderr_rate: None,
        limits: plan.limits,
        is_unit: plan.is_unit,
        enclosure: plan.enclosure.clone(),
        initialize: None,
        place: place.map(Box::new),
        mute: None,
    })
}

/// Makes the line to the place of a launch.
async fn line(plan: &LaunchPlan, place: Arc<SessionPlace>, built: &BuiltEnvironment) -> Result<PlaceLine, Failure> {
    let failed = |message| failed(ConditionType::Placed, reason::PLACE_UNREACHABLE, message);
    if let Some((name, ..)) = built.environment.files().next() {
        let message = format!(
            "a provider gives the environment the file {name:?}, and files of this machine are not on place {:?}; \
             remove the provider from the sessions of that place",
            place.name()
        );
        return Err(failed(message));
    }
    let (id, launch, directory) = (plan.id.clone(), plan.launch, plan.directory().to_owned());
    if let Some(earlier) = launch.checked_sub(1).filter(|earlier| *earlier > 0) {
        place.clear(&LaunchNames::new(id.as_str(), earlier)).await;
    }
    let made = agentd_host::work::blocking(move || place.line(&id, launch, &directory)).await;
    made.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(chain(&error)))
}

/// Returns the path of a program in the environment of a session. The error is a reason and a message.
pub(crate) async fn program(
    plan: &LaunchPlan,
    environment: &Environment,
    program: &str,
) -> Result<PathBuf, (&'static str, String)> {
    let path = environment.get("PATH").unwrap_or_default();
    match candidates(program, path, &plan.spec.directory) {
        ProgramLocation::Path(path) => Ok(path),
        // agentd-keeper looks the name up on the place.
        ProgramLocation::Candidates(_) if plan.place.is_some() => Ok(PathBuf::from(program)),
        ProgramLocation::Candidates(candidates) => {
            let found = find(&plan.daemon.machine, candidates).await;
            found.map_err(|(reason, silent)| {
                let path = String::from_utf8_lossy(path);
                (reason, format!("there is no program {program:?}{silent} in the session's PATH ({path})"))
            })
        }
    }
}

/// Location of the agent's program.
#[derive(Debug, PartialEq, Eq)]
enum ProgramLocation {
    /// A path. If the file is missing, the execution reports that with the system's message.
    Path(PathBuf),
    /// Candidates, of which the first executable file is run.
    Candidates(Vec<PathBuf>),
}

/// Lists the candidates as execvp(3) does, but with the session's `PATH` instead of the daemon's.
fn candidates(program: &str, path: &[u8], directory: &Path) -> ProgramLocation {
    use std::os::unix::ffi::OsStrExt as _;
    if program.contains('/') {
        return ProgramLocation::Path(directory.join(program));
    }
    let entries = path.split(|&byte| byte == b':').filter(|entry| !entry.is_empty());
    ProgramLocation::Candidates(
        entries.map(|entry| directory.join(Path::new(std::ffi::OsStr::from_bytes(entry))).join(program)).collect(),
    )
}

/// Returns the first candidate that can be executed, else the reason and the candidates that did not answer.
/// Candidates that do not answer are skipped, since a dead file server later in `PATH` is no obstacle.
async fn find(machine: &Machine, candidates: Vec<PathBuf>) -> Result<PathBuf, (&'static str, String)> {
    let is_it = |place: &PathState| matches!(place, PathState::File { usable: true, .. });
    let seen = machine.path_states(candidates.clone(), Instant::now() + LOOKED_UP, is_it).await;
    let silent =
        seen.iter().filter_map(|place| if let PathState::Silent(text) = place { Some(text.as_str()) } else { None });
    let silent = silent.fold(String::new(), |list, text| format!("{list}; {text}"));
    let reason = if silent.is_empty() { reason::PROGRAM_NOT_FOUND } else { reason::PROGRAM_SILENT };
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
        assert_eq!(
            of("sh", b"/nowhere::rel"),
            ProgramLocation::Candidates(vec!["/nowhere/sh".into(), "/work/rel/sh".into()])
        );
        assert_eq!(of("sh", b""), ProgramLocation::Candidates(Vec::new()));
        assert_eq!(of("./x", b"/bin"), ProgramLocation::Path("/work/./x".into()));
        assert_eq!(of("/opt/x", b""), ProgramLocation::Path("/opt/x".into()));
    }
}
