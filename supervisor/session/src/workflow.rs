//! Finds the workflow that a session requests, and checks that its owner has approved it.
//!
//! A launch examines the workflow once. A running session examines it between two turns, again and again until it can
//! come into force. [`agentd_decide::workflow`] decides what follows.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentd_api::degraded::{MissingKind, MissingPart};
use agentd_api::reason;
use agentd_api::scripts::ScriptState;
use agentd_api::session::ConditionType;
use agentd_api::workflow::{ActiveWorkflow, WorkflowChanged, WorkflowDescription, WorkflowFailed, WorkflowSpec};
use agentd_api::{Body, chain};
use agentd_config::{WORKFLOW_FILES, parse_workflow};
use agentd_decide::waits::doubled;
use agentd_environment::{Script, Trust};
use tokio::sync::mpsc;

use crate::bringup::{Failure, Progress};
use crate::launch_plan::LaunchPlan;

/// Pause before the first repeated examination. Each further pause is twice as long, up to [`LONGEST`]. An approval
/// ends the pause.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);

/// Outcome of an examination.
pub(crate) type Examined = Result<ActiveWorkflow, WorkflowFailed>;

/// Examines the workflow until the outcome differs from the known failure.
pub(crate) async fn until_news(plan: &LaunchPlan, wanted: &WorkflowSpec, known: Option<&WorkflowFailed>) -> Examined {
    let mut approvals = plan.daemon.trust.changes();
    let mut failures = 0_u32;
    loop {
        approvals.mark_unchanged();
        let examined = examine(plan, wanted).await;
        if examined.is_ok() || examined.as_ref().err() != known {
            return examined;
        }
        failures = failures.saturating_add(1);
        let pause = tokio::time::sleep(doubled(FIRST, failures, LONGEST));
        tokio::select! {
            () = pause => {}
            Ok(()) = approvals.changed() => {}
        }
    }
}

/// Examines the workflow of a launch. Another workflow than that in force is reported, and the launch begins again
/// with it. A launch of a new session fails without its workflow; later ones continue with the workflow that was
/// in force. Returns what a degraded launch leaves out.
pub(crate) async fn of_launch(
    plan: &LaunchPlan,
    report: &mpsc::Sender<Progress>,
) -> Result<Option<MissingPart>, Failure> {
    let Some(wanted) = &plan.spec.workflow else { return Ok(None) };
    let failed = match examine(plan, wanted).await {
        Ok(found) if plan.workflow.as_ref() == Some(&found) => return Ok(None),
        Ok(found) => return begin_again(WorkflowChanged { workflow: Some(found) }, report).await,
        Err(failed) => failed,
    };
    tracing::warn!(workflow = %wanted, reason = %failed.reason, "{}", failed.message);
    let Failure { kind, reason, message } = failure(&failed);
    let part = MissingPart { kind: MissingKind::Workflow, name: wanted.to_string(), message: failed.message.clone() };
    if plan.workflow_failure.as_ref() != Some(&failed) {
        let _ = report.send(Progress::Record(Box::new(Body::WorkflowFailed(failed)))).await;
    }
    let Some(active) = &plan.workflow else {
        return match &plan.degraded_by {
            Some(_) => Ok(Some(part)),
            None if !plan.is_new => Ok(None),
            None => Err(Failure { kind, reason, message }),
        };
    };
    let directory = active.directory.clone();
    let is_there = agentd_host::work::blocking(move || directory.is_dir());
    match tokio::time::timeout(plan.deadline, is_there).await {
        Ok(Ok(true)) => Ok(None),
        _ => begin_again(WorkflowChanged { workflow: None }, report).await,
    }
}

/// Reports a change, after which the launch begins again.
async fn begin_again<T>(changed: WorkflowChanged, report: &mpsc::Sender<Progress>) -> Result<T, Failure> {
    let _ = report.send(Progress::Workflow(Box::new(changed))).await;
    std::future::pending().await
}

/// Returns the failure of a launch without its workflow. The reasons are listed, since a condition has a static one.
fn failure(failed: &WorkflowFailed) -> Failure {
    let known = [reason::NO_WORKFLOW, reason::WORKFLOW_INVALID, reason::WORKFLOW_NOT_APPROVED];
    let reason = known.into_iter().find(|known| *known == failed.reason).unwrap_or(reason::WORKFLOW_UNREADABLE);
    Failure { kind: ConditionType::WorkflowReady, reason, message: format!("{}: {}", failed.spec, failed.message) }
}

/// Findings of an examination, before the owner's approval is considered.
struct Found {
    directory: PathBuf,
    file: PathBuf,
    digest: String,
    description: WorkflowDescription,
    to_approve: Vec<(PathBuf, ScriptState)>,
}

type Refused = (&'static str, String);

/// Reads the workflow's description, and looks for its approval.
async fn examine(plan: &LaunchPlan, wanted: &WorkflowSpec) -> Examined {
    let failed = |reason: &'static str, message: String, to_approve: Vec<PathBuf>| WorkflowFailed {
        spec: wanted.clone(),
        reason: reason.to_owned(),
        message,
        to_approve,
    };
    let place = wanted.place(plan.root());
    let clone = wanted.repository().map(|repository| plan.root().join(repository.place()));
    let (trust, at) = (Arc::clone(&plan.daemon.trust), place.clone());
    let looking = agentd_host::work::blocking(move || look(&trust, clone.as_deref(), &at));
    let found = match tokio::time::timeout(plan.deadline, looking).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => Err((reason::WORKFLOW_UNREADABLE, error.to_string())),
        Err(_) => {
            let seconds = plan.deadline.as_secs_f64();
            Err((reason::WORKFLOW_UNREADABLE, format!("{} did not answer within {seconds} s", place.display())))
        }
    };
    let Found { directory, file, digest, description, to_approve } =
        found.map_err(|(reason, message)| failed(reason, message, Vec::new()))?;
    if let Some(name) = description.requires.iter().find(|name| !plan.is_prerequisite(name)) {
        let message = format!("{} requires {name:?}, which is not declared as a prerequisite", file.display());
        return Err(failed(reason::WORKFLOW_INVALID, message, Vec::new()));
    }
    if !to_approve.is_empty() {
        let state = |state: &ScriptState| state.as_str().replace('-', " ");
        let list: Vec<String> =
            to_approve.iter().map(|(path, found)| format!("{} is {}", path.display(), state(found))).collect();
        let id = &plan.id;
        let message = format!("{}; `agentctl workflow allow {id}` shows and approves it", list.join(", "));
        let files = to_approve.into_iter().map(|(path, _)| path).collect();
        return Err(failed(reason::WORKFLOW_NOT_APPROVED, message, files));
    }
    Ok(ActiveWorkflow { spec: wanted.clone(), directory, file, digest, description })
}

/// Finds the description and the script. `clone` is the repository that the workflow lies in.
fn look(trust: &Trust, clone: Option<&Path>, place: &Path) -> Result<Found, Refused> {
    let unreadable = |error: &io::Error| (reason::WORKFLOW_UNREADABLE, format!("{}: {error}", place.display()));
    let real = |path: &Path| {
        path.canonicalize().map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                (reason::NO_WORKFLOW, format!("there is no directory {}", path.display()))
            }
            _ => unreadable(&error),
        })
    };
    let directory = real(place)?;
    if let Some(clone) = clone
        && !directory.starts_with(real(clone)?)
    {
        let message = format!("{} is a link that leads out of the repository", place.display());
        return Err((reason::WORKFLOW_INVALID, message));
    }
    let examined = |path: &Path| trust.examine(path).map_err(|error| (reason::WORKFLOW_UNREADABLE, chain(&error)));
    let mut described = None;
    for file in WORKFLOW_FILES {
        described = examined(&directory.join(file))?;
        if described.is_some() {
            break;
        }
    }
    let Some(file) = described else {
        let message = format!("{} has neither {} nor {}", directory.display(), WORKFLOW_FILES[0], WORKFLOW_FILES[1]);
        return Err((reason::NO_WORKFLOW, message));
    };
    let invalid = |message: String| (reason::WORKFLOW_INVALID, format!("{}: {message}", file.named.display()));
    let text = std::str::from_utf8(&file.content).map_err(|error| invalid(error.to_string()))?;
    let description = parse_workflow(&file.named, text).map_err(invalid)?;
    let script = match &description.environment_script {
        Some(script) => {
            let path = directory.join(script);
            let absent = || invalid(format!("the script {} does not exist", path.display()));
            Some(examined(&path)?.ok_or_else(absent)?)
        }
        None => None,
    };
    let is_open = |script: &&Script| script.state != ScriptState::Approved;
    let to_approve = [Some(&file), script.as_ref()].into_iter().flatten().filter(is_open);
    let to_approve = to_approve.map(|script| (script.named.clone(), script.state)).collect();
    Ok(Found { directory, digest: file.digest.clone(), file: file.named.clone(), description, to_approve })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn reason_of(found: &Result<Found, Refused>) -> &'static str {
        match found {
            Ok(_) => "found",
            Err((reason, _)) => reason,
        }
    }

    #[test]
    fn a_description_and_its_script_are_approved_with_their_content() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap().join("flow");
        let trust = Trust::open(directory.path()).unwrap();
        assert_eq!(reason_of(&look(&trust, None, &place)), reason::NO_WORKFLOW);
        std::fs::create_dir(&place).unwrap();
        assert_eq!(reason_of(&look(&trust, None, &place)), reason::NO_WORKFLOW);
        let write = |name: &str, text: &str| agentd_host::files::write(&place.join(name), text.as_bytes()).unwrap();
        write("workflow.toml", "nam = 1");
        assert_eq!(reason_of(&look(&trust, None, &place)), reason::WORKFLOW_INVALID);
        write("workflow.toml", "name = \"flow\"\nenvironment_script = \"env.sh\"");
        assert_eq!(reason_of(&look(&trust, None, &place)), reason::WORKFLOW_INVALID, "the script is missing");
        write("env.sh", "export A=1");
        let open = || look(&trust, None, &place).unwrap().to_approve;
        let names = |open: Vec<(PathBuf, ScriptState)>| open.into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        let both = [place.join("workflow.toml"), place.join("env.sh")];
        assert_eq!(names(open()), both);
        trust.allow(&both, None, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(names(open()), [] as [PathBuf; 0]);
        write("env.sh", "export A=2");
        assert_eq!(open(), [(place.join("env.sh"), ScriptState::Changed)]);
    }

    #[test]
    fn a_link_out_of_the_repository_and_a_file_that_others_can_write_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let trust = Trust::open(directory.path()).unwrap();
        let (clone, other) = (top.join("clone"), top.join("other"));
        std::fs::create_dir(&clone).unwrap();
        std::fs::create_dir(&other).unwrap();
        let file = other.join("workflow.toml");
        agentd_host::files::write(&file, b"name = \"x\"").unwrap();
        std::os::unix::fs::symlink(&other, clone.join("flow")).unwrap();
        assert_eq!(reason_of(&look(&trust, Some(&clone), &clone.join("flow"))), reason::WORKFLOW_INVALID);
        assert_eq!(reason_of(&look(&trust, Some(&other), &other)), "found");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(reason_of(&look(&trust, None, &other)), reason::WORKFLOW_UNREADABLE);
    }
}
