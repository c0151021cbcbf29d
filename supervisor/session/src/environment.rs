//! Builds the environment of one launch, or restores the environment of the launch before. Stores the result.
//!
//! Restoring (`stored`) runs no provider. No file contains a secret in clear, so secrets come from other sources:
//! the sealed file, the memory of this daemon, the login shell. A condition names each missing secret, at every
//! launch until the secret is found. An environment with expired variables or with files is always built again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::contract::OPTIONS;
use agentd_api::degraded::{MissingKind, MissingPart};
use agentd_api::environment::{EnvironmentView, Refresh, RunnerNames};
use agentd_api::event::EnvironmentBuilt;
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::snapshot::SnapshotState;
use agentd_api::workflow::ActiveWorkflow;
use agentd_api::{Body, Code, Problem, SessionId};
use agentd_fault::Point;
use agentd_host::directories::Directories;
use agentd_keeper::protocol::Fill;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::bringup::{Failure, Progress};
use super::known_agent;
use super::validation::{self, ScriptInspection};
use crate::generation::Generation;
use crate::launch_plan::LaunchPlan;
use crate::mcp::{self, ServersOfLaunch};
use agentd_api::chain;
use agentd_api::changes::describe;
use agentd_environment::{
    BuildFailure, BuiltEnvironment, Environment, EnvironmentError, Environments, Pipeline, Renewal, ScriptDirectories,
    SnapshotFinding, StoredEnvironments, Target, WorkflowScript, drift, renew_at, restore_obstacle, with_secrets,
};

/// Time after which a launch names the step that it waits for.
const SLOW: Duration = Duration::from_secs(1);

/// The environment of a launch.
pub(super) struct ProvidedEnvironment {
    pub(super) built: BuiltEnvironment,
    /// Parts that a degraded launch left out.
    pub(super) without: Vec<MissingPart>,
    /// Secrets of the agent's MCP servers.
    pub(super) mcp_secrets: Vec<Fill>,
    /// Scripts whose warnings are not reported yet.
    pub(super) inspection: ScriptInspection,
}

/// Provides the launch with its environment, stores it, and reports records and conditions.
pub(super) async fn provide_environment(
    plan: &LaunchPlan,
    report: &mpsc::Sender<Progress>,
) -> Result<ProvidedEnvironment, Failure> {
    // Before its first launch, a session has no environment.
    let kept = if plan.launch == 1 { None } else { on_disk(&plan.environments, &plan.id, Environments::read).await? };
    let refresh = plan.refresh;
    let again = kept.as_ref().filter(|_| refresh != Refresh::Fresh);
    let refused = again.and_then(|kept| restore_obstacle(&kept.last, &plan.conversation_places, Timestamp::now()));
    let again = again.filter(|_| refused.is_none());
    let inspecting = validation::inspect_scripts(pipeline(plan).await?, &plan.daemon, &plan.id, &plan.places);
    let begun = Instant::now();
    let building = async {
        let built = match again {
            Some(kept) => give_again(plan, kept, report).await,
            None => build(plan, Some(report)).await,
        };
        (built, begun.elapsed())
    };
    let (inspection, (mut built, took)) = tokio::join!(inspecting, building);
    let replaced = match (&mut built, kept.as_ref()) {
        (Ok(built), Some(kept)) if built.is_without_snapshot => use_earlier(plan, kept, built, report).await,
        _ => Vec::new(),
    };
    let built = match built {
        Ok(built) => built,
        Err(failure) => {
            inspection.report(plan, None, report).await;
            return Err(failure);
        }
    };
    let is_earlier = !replaced.is_empty();
    let mut without = [replaced, built.environment.without.clone()].concat();
    without.sort_by_key(|part| part.kind);
    if let Some(condition) = secrets_condition(&built) {
        let _ = report.send(condition).await;
    }
    let mut record = keep(plan, &built.environment).await?;
    record.duration_us = u64::try_from(took.as_micros()).ok();
    known_agent::note(&mut record, &built);
    if let Some(condition) = known_agent::place_condition(plan, &record.held) {
        let _ = report.send(condition).await;
    }
    let ServersOfLaunch { launched, fills } = mcp::of_launch(plan, &built.environment).await;
    record.mcp = launched;
    let mut message = format!("{} variables, {} dropped", record.variables, record.dropped.len());
    let reason = match refused {
        Some(why) => {
            message = format!("{message}; built anew, not restored: {why}");
            reason::BUILT_ANEW
        }
        None if is_earlier => reason::GIVEN_AGAIN,
        None if !without.is_empty() => reason::BUILT_WITHOUT,
        None if !built.skipped.is_empty() => reason::PROVIDER_SKIPPED,
        None if again.is_some() => reason::GIVEN_AGAIN,
        None => reason::BUILT,
    };
    if !without.is_empty() {
        let parts: Vec<String> = without.iter().map(ToString::to_string).collect();
        message = format!("{message}; without: {}", parts.join("; "));
    }
    if !built.skipped.is_empty() {
        message = format!("{message}; without failed providers: {}", built.skipped.join("; "));
    }
    let _ = report.send(Progress::Record(Box::new(Body::EnvironmentBuilt(record)))).await;
    let _ = report.send(condition(ConditionType::EnvironmentReady, ConditionStatus::True, reason, message)).await;
    if let Some((count, _)) = built.environment.expiry() {
        let message = format!("{count} of its variables expire, and are renewed before they do");
        let kind = ConditionType::EnvironmentCurrent;
        let _ = report.send(condition(kind, ConditionStatus::True, reason::CURRENT, message)).await;
    }
    if let Some(kept) = again.filter(|_| refresh == Refresh::Warn) {
        compare(plan, kept, report).await;
    }
    Ok(ProvidedEnvironment { built, without, mcp_secrets: fills, inspection })
}

/// Replaces the environment of a degraded launch that lacks its snapshot by the environment of the launch before. Only
/// agentd's own variables would be left otherwise. Returns the replaced parts; none if nothing was replaced.
async fn use_earlier(
    plan: &LaunchPlan,
    kept: &StoredEnvironments,
    built: &mut BuiltEnvironment,
    report: &mpsc::Sender<Progress>,
) -> Vec<MissingPart> {
    if restore_obstacle(&kept.last, &plan.conversation_places, Timestamp::now()).is_some() {
        return Vec::new();
    }
    // If the earlier environment cannot be restored, the launch continues with the new environment.
    let Ok(restored) = give_again(plan, kept, report).await else { return Vec::new() };
    let lacking = std::mem::replace(built, restored).environment.without.into_iter();
    let launch = kept.last.launch;
    (lacking.filter(|part| part.kind == MissingKind::Provider))
        .map(|part| MissingPart {
            message: format!("{}; the environment of launch {launch} was given again instead", part.message),
            ..part
        })
        .collect()
}

/// Returns the condition for missing secrets, or else for the named secrets that the agent has. Returns `None`
/// without either.
fn secrets_condition(built: &BuiltEnvironment) -> Option<Progress> {
    let kind = ConditionType::SecretsAvailable;
    let lost = built.environment.missing().map(|name| {
        format!("{name}, which the launch before had, is stored in no file and its source no longer provides it")
    });
    let lacking: Vec<String> = built.missing.iter().map(ToString::to_string).chain(lost).collect();
    if !lacking.is_empty() {
        return Some(condition(kind, ConditionStatus::False, reason::SECRET_UNAVAILABLE, lacking.join("; ")));
    }
    let message = built.secrets.join(", ");
    (!built.secrets.is_empty()).then(|| condition(kind, ConditionStatus::True, reason::TAKEN, message))
}

pub(super) fn condition(
    kind: ConditionType,
    status: ConditionStatus,
    reason: &'static str,
    message: String,
) -> Progress {
    Progress::Condition { kind, status, reason: reason.to_owned(), message }
}

fn failed(reason: &'static str, message: String) -> Failure {
    Failure { kind: ConditionType::EnvironmentReady, reason, message }
}

impl From<EnvironmentError> for Failure {
    fn from(error: EnvironmentError) -> Self {
        let hint = error.problem().hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        failed(error.reason(), format!("{}{hint}", chain(&error)))
    }
}

async fn pipeline(plan: &LaunchPlan) -> Result<&Pipeline, Failure> {
    plan.pipeline().await.map_err(|error| failed(reason::PLUGINS_UNUSABLE, chain(&error)))
}

/// Restores the environment of the last launch, with the secrets that are available.
async fn give_again(
    plan: &LaunchPlan,
    kept: &StoredEnvironments,
    report: &mpsc::Sender<Progress>,
) -> Result<BuiltEnvironment, Failure> {
    let (pipeline, target) = (pipeline(plan).await?, plan.target());
    let remembered = plan.environments.secrets(&plan.id);
    let restored = pipeline.restore(&target, kept, &remembered, &plan.secrets).await;
    report_snapshot(&target, report).await;
    restored.map_err(|BuildFailure { reason, message }| failed(reason, message))
}

/// Reports the differences between a new environment and the restored one.
async fn compare(plan: &LaunchPlan, kept: &StoredEnvironments, report: &mpsc::Sender<Progress>) {
    let (status, reason, message) = match build(plan, None).await {
        Ok(fresh) => {
            let remembered = plan.environments.secrets(&plan.id);
            let old = with_secrets(kept.last.clone(), known(&remembered));
            let new = fresh.environment.full_view(Timestamp::now(), plan.launch);
            let changes = drift(&old, &with_secrets(new, fresh.environment.secret_pairs())).names();
            if changes.is_empty() {
                let message = "a new environment would be the same".to_owned();
                (ConditionStatus::False, reason::SAME, message)
            } else {
                let message = format!("a new environment would differ: {}", describe(&changes));
                (ConditionStatus::True, reason::DRIFTED, message)
            }
        }
        Err(failure) => {
            let message = format!("cannot build a new environment for the comparison: {}", failure.message);
            (ConditionStatus::Unknown, reason::NOT_BUILT, message)
        }
    };
    let _ = report.send(condition(ConditionType::EnvironmentDrifted, status, reason, message)).await;
}

/// Builds a new environment. With `report`, also reports a slow build and the snapshot. A build without `report` serves
/// for a comparison, and leaves out nothing.
async fn build(plan: &LaunchPlan, report: Option<&mpsc::Sender<Progress>>) -> Result<BuiltEnvironment, Failure> {
    let pipeline = pipeline(plan).await?;
    let target = plan.target();
    let target = Target { is_degraded: target.is_degraded && report.is_some(), ..target };
    let building = pipeline.build(&target, &plan.daemon.trust, &plan.secrets);
    let built = match report {
        Some(report) => {
            tokio::select! {
                built = building => built,
                never = say_if_slow(plan, report) => match never {},
            }
        }
        None => building.await,
    };
    if let Some(report) = report {
        report_snapshot(&target, report).await;
    }
    built.map_err(|BuildFailure { reason, message }| failed(reason, message))
}

/// Reports what the build waits for once it takes longer than [`SLOW`].
async fn say_if_slow(plan: &LaunchPlan, report: &mpsc::Sender<Progress>) -> Infallible {
    tokio::time::sleep(SLOW).await;
    let shells = plan.snapshots().list().await.login_shells;
    let deadline = plan.deadline.as_secs();
    let message = match shells.iter().find(|view| view.state == SnapshotState::Capturing) {
        Some(view) => format!(
            "waiting for the login shell {}, for {deadline} s at most (environment.deadline)",
            view.shell.display()
        ),
        None => format!(
            "waiting for the scripts and plugins of {}, each for {deadline} s at most (environment.deadline)",
            plan.spec.directory.display()
        ),
    };
    let reason = agentd_api::reason::BUILDING;
    let _ = report.send(condition(ConditionType::EnvironmentReady, ConditionStatus::Unknown, reason, message)).await;
    std::future::pending().await
}

/// Reports the snapshot that the environment starts from, if there is one.
async fn report_snapshot(target: &Target, report: &mpsc::Sender<Progress>) {
    if let Some(SnapshotFinding { fresh, reason, message }) = target.chosen.finding() {
        let status = if fresh { ConditionStatus::True } else { ConditionStatus::False };
        let _ = report.send(condition(ConditionType::SnapshotFresh, status, reason, message)).await;
    }
}

/// Returns the values of the placeholders in paths of the session.
pub(super) fn places(directories: &Directories, id: &SessionId, spec: &SessionSpec) -> ScriptDirectories {
    ScriptDirectories {
        config: directories.config.clone(),
        cwd: spec.directory.clone(),
        session: directories.session(id),
        given: ScriptDirectories::digest_of(spec.env_setup.as_deref()),
        workflow: None,
    }
}

/// Returns the values of the placeholders for a session under a workflow.
pub(super) fn places_under(
    directories: &Directories,
    id: &SessionId,
    (spec, workflow): (&SessionSpec, Option<&ActiveWorkflow>),
) -> ScriptDirectories {
    ScriptDirectories { workflow: workflow.and_then(script_of), ..places(directories, id, spec) }
}

/// Returns the script of a workflow.
pub(super) fn script_of(workflow: &ActiveWorkflow) -> Option<WorkflowScript> {
    let directory = workflow.directory.clone();
    workflow.script().map(|script| WorkflowScript { script, directory })
}

/// Writes `environment.json`, and returns the record with the changes since the launch before.
async fn keep(plan: &LaunchPlan, environment: &Environment) -> Result<EnvironmentBuilt, Failure> {
    let (launch, captured, given) = (plan.launch, Timestamp::now(), environment.clone());
    let remembered = plan.environments.secrets(&plan.id);
    let write = move |environments: &Environments, id: &SessionId| environments.write(id, &given, captured, launch);
    let before = on_disk(&plan.environments, &plan.id, write).await?;
    sync_later(plan);
    agentd_fault::at(Point::DaemonBringUpEnvironment).map_err(|error| failed(reason::NOT_KEPT, error.to_string()))?;
    let view = environment.full_view(captured, launch);
    let compared = |before: StoredEnvironments| {
        let old = with_secrets(before.last, known(&remembered));
        drift(&old, &with_secrets(view.clone(), environment.secret_pairs()))
    };
    let drift = before.map(compared).unwrap_or_default();
    let names = |lists: &[&Vec<agentd_api::environment::ChangeView>]| {
        let mut names: Vec<String> =
            lists.iter().flat_map(|list| list.iter()).map(|change| change.name.clone()).collect();
        names.sort();
        names
    };
    let expires_at = environment.expiry().map(|(_, first)| first);
    // A restored expiry keeps its time of renewal; a new expiry gets a new time.
    let kept = plan.schedule.filter(|(expires, _)| Some(*expires) == expires_at).map(|(_, renews)| renews);
    let renew_at = kept.or_else(|| expires_at.map(|expires| renew_at(captured, expires, plan.id.as_str())));
    Ok(EnvironmentBuilt {
        launch,
        digest: view.digest,
        variables: u32::try_from(environment.count()).unwrap_or(u32::MAX),
        dropped: environment.dropped().map(str::to_owned).collect(),
        changed: names(&[&drift.added, &drift.changed]),
        removed: names(&[&drift.removed]),
        changes: drift.names(),
        home: environment.get("HOME").map(|home| String::from_utf8_lossy(home).into_owned()),
        options: options(plan, environment),
        mcp: Vec::new(),
        login: plan.login.clone(),
        key_logins: Vec::new(),
        places: BTreeMap::new(),
        held: environment.held(),
        killed: environment.background.killed,
        left: environment.background.left,
        duration_us: None,
        expires_at,
        renew_at,
    })
}

/// Syncs `environment.json` to the disk beside the launch. The environment of a launch of which a power cut leaves
/// nothing can be built again.
fn sync_later(plan: &LaunchPlan) {
    let (environments, id) = (Arc::clone(&plan.environments), plan.id.clone());
    tokio::spawn(async move {
        match on_disk(&environments, &id, Environments::sync).await {
            Err(EnvironmentError::Write { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                // The session was removed meanwhile.
            }
            Err(error) => tracing::warn!(error = %chain(&error), "cannot sync a session's environment to the disk"),
            Ok(()) => {}
        }
    });
}

/// Returns the values that the environment and the configuration have for options of the agent. A value that no option
/// has is left out.
fn options(plan: &LaunchPlan, environment: &Environment) -> BTreeMap<String, String> {
    /// Maximum length of a value in bytes.
    const LONGEST: usize = 200;
    let configured = plan.options.clone();
    if plan.compatibility != RunnerNames::Ambient {
        return configured;
    }
    let value = |name: &str| {
        let text = std::str::from_utf8(environment.get(name)?).ok()?.trim();
        (!text.is_empty() && text.len() <= LONGEST && !text.contains(char::is_control)).then(|| text.to_owned())
    };
    let names = OPTIONS.iter().map(|variable| variable.name);
    names.filter_map(|name| Some((name.to_owned(), value(name)?))).chain(configured).collect()
}

/// Renews the expiring variables of a launch's environment, and stores the result.
pub(super) async fn renew(plan: &LaunchPlan) -> Result<Renewal, String> {
    // The permit bounds login shells and scripts, together with those of launches.
    let _permit = plan.permits.acquire().await.map_err(|_| "agentd is ending".to_owned())?;
    let pipeline = plan.pipeline().await.map_err(|error| chain(&error))?;
    let kept = on_disk(&plan.environments, &plan.id, Environments::read).await.map_err(|error| chain(&error))?;
    let stored = kept.map(|kept| kept.last).filter(|last| last.launch == plan.launch);
    let stored = stored.ok_or_else(|| "the agent's environment is not stored".to_owned())?;
    let remembered = plan.environments.secrets(&plan.id);
    let renewal = pipeline.renew(&plan.target(), &stored, &remembered, &plan.daemon.trust, &plan.secrets).await;
    let renewal = renewal.map_err(|unbuilt| unbuilt.message)?;
    let view = renewal.view.clone();
    let renew = move |environments: &Environments, id: &SessionId| environments.renew(id, view);
    on_disk(&plan.environments, &plan.id, renew).await.map_err(|error| chain(&error))?;
    Ok(renewal)
}

/// Returns the stored environment of a session for clients. The last environment contains digests of the known
/// secrets: see [`without_secrets`](agentd_environment::without_secrets).
#[boxed]
pub async fn kept(generation: &Generation, id: &SessionId) -> Result<Option<StoredEnvironments>, Problem> {
    let kept = on_disk(&generation.environments, id, Environments::read).await.map_err(|error| error.problem())?;
    let remembered = generation.environments.secrets(id);
    let compared =
        |kept: StoredEnvironments| StoredEnvironments { last: with_secrets(kept.last, known(&remembered)), ..kept };
    Ok(kept.map(compared))
}

fn known(secrets: &BTreeMap<String, Vec<u8>>) -> impl Iterator<Item = (&str, &[u8])> {
    secrets.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
}

/// Builds the environment of a launch without launching and without storing anything. The view contains secrets.
#[boxed]
pub async fn build_now(
    generation: &Arc<Generation>,
    id: &SessionId,
    (spec, workflow): (&Arc<SessionSpec>, Option<&ActiveWorkflow>),
    launch: u64,
) -> Result<EnvironmentView, Problem> {
    let plan = LaunchPlan::following(generation, id, (spec, workflow), launch);
    plan.reach().await?;
    // The permit bounds login shells, together with those of launches.
    let _permit = plan.permits.acquire().await.map_err(|_| Problem::new(Code::TooBusy, "agentd is ending"))?;
    let pipeline = plan.pipeline().await.map_err(|error| Problem::new(Code::EnvironmentNotBuilt, chain(&error)))?;
    let begun = Instant::now();
    let built = pipeline.build(&plan.target(), &plan.daemon.trust, &plan.secrets).await;
    let duration_us = u64::try_from(begun.elapsed().as_micros()).ok();
    let view = |built: BuiltEnvironment| {
        let view = built.environment.full_view(Timestamp::now(), launch);
        EnvironmentView { duration_us, ..with_secrets(view, built.environment.secret_pairs()) }
    };
    built.map(view).map_err(|unbuilt| {
        Problem::new(Code::EnvironmentNotBuilt, unbuilt.message).hint("a launch would fail in the same way")
    })
}

/// Runs `work` on a blocking thread, since it reads or writes files.
async fn on_disk<T: Send + 'static>(
    environments: &Arc<Environments>,
    id: &SessionId,
    work: impl FnOnce(&Environments, &SessionId) -> Result<T, EnvironmentError> + Send + 'static,
) -> Result<T, EnvironmentError> {
    let (environments, id) = (Arc::clone(environments), id.clone());
    agentd_host::work::blocking(move || work(&environments, &id))
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
