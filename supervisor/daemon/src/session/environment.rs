//! The environment of one launch: built from nothing, or that of the launch before given again; and what is kept of it.
//!
//! `stored` runs no provider. A secret is in no file in clear, so it is taken from where it can be had: the sealed file, what the last
//! launch under this daemon had, the login shell. One that cannot be had is named in a condition, at this launch and at each
//! further one until it is there again. An environment with something in it that has expired, or with a file, is built anew all the same.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::environment::{EnvironmentView, Refresh};
use agentd_api::event::EnvironmentBuilt;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::snapshot::SnapshotState;
use agentd_api::{Body, Code, Problem, SessionId};
use agentd_fault::Point;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::bringup::{Failure, Job, Progress};
use super::validation;
use crate::env::{
    Built, Environment, EnvironmentError, Environments, Finding, Kept, Placeholders, Renewal, Target, Unbuilt, chain,
    describe, drift, not_to_be_given_again, renew_at, with_secrets,
};
use crate::isolation;
use crate::world::World;

/// How long an environment may take before the launch says what it waits for.
const SLOW: Duration = Duration::from_secs(1);

/// Gets the launch its environment, keeps it, and reports what there is to say of it.
pub(super) async fn prepare(world: &World, job: &Job, report: &mpsc::Sender<Progress>) -> Result<Built, Failure> {
    let kept = on_disk(world, &job.id, Environments::read).await?;
    let refresh = world.refresh(&job.spec);
    let again = kept.filter(|_| refresh != Refresh::Fresh);
    let refused = again.as_ref().and_then(|kept| not_to_be_given_again(&kept.last, Timestamp::now()));
    let again = again.filter(|_| refused.is_none());
    let look = validation::look(world, &job.id, &job.spec).await;
    let look = look.map_err(|error| failed("PluginsUnusable", chain(&error)))?;
    let begun = Instant::now();
    let built = match &again {
        Some(kept) => give_again(world, job, kept, report).await,
        None => build(world, job, Some(report)).await,
    };
    let took = begun.elapsed();
    look.report(world, &job.id, &job.spec, built.as_ref().ok().map(|built| &built.environment), report).await;
    let built = built?;
    if let Some(condition) = secrets_condition(&built) {
        let _ = report.send(condition).await;
    }
    let mut record = keep(world, job, &built.environment).await?;
    record.duration_us = u64::try_from(took.as_micros()).ok();
    let mut message = format!("{} variables, {} dropped", record.variables, record.dropped.len());
    let reason = match refused {
        Some(why) => {
            message = format!("{message}; built anew, not given again: {why}");
            "BuiltAnew"
        }
        None if !built.skipped.is_empty() => "ProviderSkipped",
        None if again.is_some() => "GivenAgain",
        None => "Built",
    };
    if !built.skipped.is_empty() {
        message = format!("{message}; without what failed: {}", built.skipped.join("; "));
    }
    let _ = report.send(Progress::Record(Box::new(Body::EnvironmentBuilt(record)))).await;
    let _ = report.send(condition(ConditionType::EnvironmentReady, ConditionStatus::True, reason, message)).await;
    if let Some((count, _)) = built.environment.expiry() {
        let message =
            format!("{count} of its variables hold for a limited time, and are asked for again before their end");
        let kind = ConditionType::EnvironmentCurrent;
        let _ = report.send(condition(kind, ConditionStatus::True, "Current", message)).await;
    }
    if let Some(kept) = again.filter(|_| refresh == Refresh::Warn) {
        compare(world, job, &kept, report).await;
    }
    Ok(built)
}

/// Which secrets the agent has to do without, or which named ones it has; nothing where there is neither.
fn secrets_condition(built: &Built) -> Option<Progress> {
    let kind = ConditionType::SecretsAvailable;
    let lost = built
        .environment
        .missing()
        .map(|name| format!("{name}, which the launch before had, is in no file and was not found where it came from"));
    let lacking: Vec<String> = built.missing.iter().map(ToString::to_string).chain(lost).collect();
    if !lacking.is_empty() {
        return Some(condition(kind, ConditionStatus::False, "SecretUnavailable", lacking.join("; ")));
    }
    let message = built.secrets.join(", ");
    (!built.secrets.is_empty()).then(|| condition(kind, ConditionStatus::True, "Taken", message))
}

fn condition(kind: ConditionType, status: ConditionStatus, reason: &'static str, message: String) -> Progress {
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

/// The environment of the last launch, with the secrets that can be had.
async fn give_again(world: &World, job: &Job, kept: &Kept, report: &mpsc::Sender<Progress>) -> Result<Built, Failure> {
    let pipeline = world.pipeline().await.map_err(|error| failed("PluginsUnusable", chain(&error)))?;
    let target = target(world, &job.id, &job.spec, job.launch);
    let remembered = world.environments.secrets(&job.id);
    let restored = pipeline.restore(&target, kept, &remembered, &world.secrets).await;
    report_snapshot(&target, report).await;
    restored.map_err(|Unbuilt { reason, message }| failed(reason, message))
}

/// Says how a fresh environment would differ from the one that is given.
async fn compare(world: &World, job: &Job, kept: &Kept, report: &mpsc::Sender<Progress>) {
    let (status, reason, message) = match build(world, job, None).await {
        Ok(fresh) => {
            let remembered = world.environments.secrets(&job.id);
            let old = with_secrets(kept.last.clone(), known(&remembered));
            let new = fresh.environment.full_view(Timestamp::now(), job.launch);
            let changes = drift(&old, &with_secrets(new, fresh.environment.secret_pairs())).names();
            if changes.is_empty() {
                let message = "a fresh environment would be the same".to_owned();
                (ConditionStatus::False, "Same", message)
            } else {
                let message = format!("a fresh environment would be another: {}", describe(&changes));
                (ConditionStatus::True, "Drifted", message)
            }
        }
        Err(failure) => {
            let message = format!("a fresh environment could not be built to compare with: {}", failure.message);
            (ConditionStatus::Unknown, "NotBuilt", message)
        }
    };
    let _ = report.send(condition(ConditionType::EnvironmentDrifted, status, reason, message)).await;
}

/// Builds it from nothing; with `report`, says what it begins with.
async fn build(world: &World, job: &Job, report: Option<&mpsc::Sender<Progress>>) -> Result<Built, Failure> {
    let pipeline = world.pipeline().await.map_err(|error| failed("PluginsUnusable", chain(&error)))?;
    let target = target(world, &job.id, &job.spec, job.launch);
    let building = pipeline.build(&target, &world.trust, &world.secrets);
    let built = match report {
        Some(report) => {
            tokio::select! {
                built = building => built,
                never = say_if_slow(world, &job.spec, report) => match never {},
            }
        }
        None => building.await,
    };
    if let Some(report) = report {
        report_snapshot(&target, report).await;
    }
    built.map_err(|Unbuilt { reason, message }| failed(reason, message))
}

/// Says what is waited for once that takes longer than a second.
async fn say_if_slow(world: &World, spec: &SessionSpec, report: &mpsc::Sender<Progress>) -> Infallible {
    tokio::time::sleep(SLOW).await;
    let shells = world.snapshots.list().await.login_shells;
    let deadline = world.config.environment.deadline.0.as_secs();
    let message = match shells.iter().find(|view| view.state == SnapshotState::Capturing) {
        Some(view) => format!(
            "waiting for the login shell {}, for {deadline} s at most (environment.deadline)",
            view.shell.display()
        ),
        None => format!(
            "waiting for the scripts and plugins of {}, each for {deadline} s at most (environment.deadline)",
            spec.directory.display()
        ),
    };
    let reason = agentd_api::reason::BUILDING;
    let _ = report.send(condition(ConditionType::EnvironmentReady, ConditionStatus::Unknown, reason, message)).await;
    std::future::pending().await
}

/// Says what the environment begins with, where a snapshot was asked for.
async fn report_snapshot(target: &Target, report: &mpsc::Sender<Progress>) {
    if let Some(Finding { fresh, reason, message }) = target.chosen.finding() {
        let status = if fresh { ConditionStatus::True } else { ConditionStatus::False };
        let _ = report.send(condition(ConditionType::SnapshotFresh, status, reason, message)).await;
    }
}

fn target(world: &World, id: &SessionId, spec: &SessionSpec, launch: u64) -> Target {
    Target {
        id: id.clone(),
        name: spec.name.as_ref().map(ToString::to_string),
        agent: world.agent_label(spec),
        command: world.agent_command(spec).unwrap_or_default(),
        scopes: world.scopes(spec),
        launch,
        places: places(world, id, spec),
        files: world.directories.session_files(id),
        socket: isolation::is_guarded(world, spec).then(|| world.directories.guest_socket(id)),
        chosen: world.chosen(id, spec),
        machine: world.machine.clone(),
        secrets: Arc::clone(&world.secrets),
    }
}

/// The session's places.
pub(super) fn places(world: &World, id: &SessionId, spec: &SessionSpec) -> Placeholders {
    Placeholders {
        config: world.directories.config.clone(),
        cwd: spec.directory.clone(),
        session: world.directories.session(id),
        given: Placeholders::digest_of(spec.env_setup.as_deref()),
    }
}

/// Writes `environment.json`, and says what is other than at the launch before.
async fn keep(world: &World, job: &Job, environment: &Environment) -> Result<EnvironmentBuilt, Failure> {
    let (launch, captured, given) = (job.launch, Timestamp::now(), environment.clone());
    let remembered = world.environments.secrets(&job.id);
    let write = move |environments: &Environments, id: &SessionId| environments.write(id, &given, captured, launch);
    let before = on_disk(world, &job.id, write).await?;
    agentd_fault::at(Point::DaemonBringUpEnvironment).map_err(|error| failed("NotKept", error.to_string()))?;
    let view = environment.full_view(captured, launch);
    let compared = |before: Kept| {
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
    // What is given again keeps its schedule; the rest begins one.
    let kept = job.schedule.filter(|(expires, _)| Some(*expires) == expires_at).map(|(_, renews)| renews);
    let renew_at = kept.or_else(|| expires_at.map(|expires| renew_at(captured, expires, job.id.as_str())));
    Ok(EnvironmentBuilt {
        launch,
        digest: view.digest,
        variables: u32::try_from(environment.len()).unwrap_or(u32::MAX),
        dropped: environment.dropped().map(str::to_owned).collect(),
        changed: names(&[&drift.added, &drift.changed]),
        removed: names(&[&drift.removed]),
        changes: drift.names(),
        home: environment.get("HOME").map(|home| String::from_utf8_lossy(home).into_owned()),
        killed: environment.background.killed,
        left: environment.background.left,
        duration_us: None,
        expires_at,
        renew_at,
    })
}

/// Asks again for what of a launch's environment holds for a limited time, and keeps what was found.
pub(super) async fn renew(world: &World, job: &Job) -> Result<Renewal, String> {
    // As many login shells and scripts at once as launches, and no more.
    let _permit = world.launches.acquire().await.map_err(|_| "agentd is ending".to_owned())?;
    let pipeline = world.pipeline().await.map_err(|error| chain(&error))?;
    let kept = on_disk(world, &job.id, Environments::read).await.map_err(|error| chain(&error))?;
    let stored = kept.map(|kept| kept.last).filter(|last| last.launch == job.launch);
    let stored = stored.ok_or_else(|| "what the agent was started with is not kept".to_owned())?;
    let target = target(world, &job.id, &job.spec, job.launch);
    let remembered = world.environments.secrets(&job.id);
    let renewal = pipeline.refresh(&target, &stored, &remembered, &world.trust, &world.secrets).await;
    let renewal = renewal.map_err(|unbuilt| unbuilt.message)?;
    let view = renewal.view.clone();
    let renew = move |environments: &Environments, id: &SessionId| environments.renew(id, view);
    on_disk(world, &job.id, renew).await.map_err(|error| chain(&error))?;
    Ok(renewal)
}

/// What is kept of a session, for those who ask. The last environment has the digests of secrets, as far as they are known: see
/// [`without_secrets`](crate::env::without_secrets).
pub(crate) async fn kept(world: &World, id: &SessionId) -> Result<Option<Kept>, Problem> {
    let kept = on_disk(world, id, Environments::read).await.map_err(|error| error.problem())?;
    let remembered = world.environments.secrets(id);
    let compared = |kept: Kept| Kept { last: with_secrets(kept.last, known(&remembered)), ..kept };
    Ok(kept.map(compared))
}

fn known(secrets: &BTreeMap<String, Vec<u8>>) -> impl Iterator<Item = (&str, &[u8])> {
    secrets.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
}

/// What a launch would build now; nothing is launched, and nothing is kept. Secrets are in it.
pub(crate) async fn build_now(
    world: &World,
    id: &SessionId,
    spec: &SessionSpec,
    launch: u64,
) -> Result<EnvironmentView, Problem> {
    crate::workspace::check(&world.machine, &spec.directory).await.map_err(|error| error.problem())?;
    // A login shell for each who asks would be as many as for sessions that are launched.
    let _permit = world.launches.acquire().await.map_err(|_| Problem::new(Code::TooBusy, "agentd is ending"))?;
    let pipeline = world.pipeline().await.map_err(|error| Problem::new(Code::EnvironmentNotBuilt, chain(&error)))?;
    let begun = Instant::now();
    let built = pipeline.build(&target(world, id, spec, launch), &world.trust, &world.secrets).await;
    let duration_us = u64::try_from(begun.elapsed().as_micros()).ok();
    let view = |built: Built| {
        let view = built.environment.full_view(Timestamp::now(), launch);
        EnvironmentView { duration_us, ..with_secrets(view, built.environment.secret_pairs()) }
    };
    built.map(view).map_err(|unbuilt| {
        Problem::new(Code::EnvironmentNotBuilt, unbuilt.message).hint("a launch would fail in the same way")
    })
}

/// Files are read and written where it holds up nobody.
async fn on_disk<T: Send + 'static>(
    world: &World,
    id: &SessionId,
    work: impl FnOnce(&Environments, &SessionId) -> Result<T, EnvironmentError> + Send + 'static,
) -> Result<T, EnvironmentError> {
    let (environments, id) = (Arc::clone(&world.environments), id.clone());
    tokio::task::spawn_blocking(move || work(&environments, &id))
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
