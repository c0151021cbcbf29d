//! Warnings about a session's environment: in a condition of each launch, and in the answer to a validation
//! request.
//!
//! The session's `scripts.json` keeps the digests of the scripts of the last launch. A file that cannot be read
//! counts as missing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec, SessionView};
use agentd_api::validation::{ValidationView, Warning};
use agentd_keeper::protocol::Attributes;
use async_recursion::async_recursion as boxed;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::bringup::Progress;
use super::tools;
use crate::daemon::Daemon;
use crate::generation::Generation;
use crate::launch_plan::LaunchPlan;
use crate::pulse;
use agentd_environment::sources::HomeDiffers;
use agentd_environment::{
    Digests, Environment, NamedPlaces, Pipeline, ScriptDirectories, Scripts, StoredEnvironments, warnings_of_runs,
};
use agentd_host::capability::Machine;
use agentd_host::files;
use agentd_host::workspace::{self, WorkspaceError};
use agentd_plugin_set::NoHost;

/// Contents of `scripts.json`.
#[derive(Debug, Serialize, Deserialize)]
struct ScriptsFile {
    version: u32,
    scripts: Digests,
}

const VERSION: u32 = 1;
/// Time limit for the file system to answer about all paths of an environment. The launch continues after that,
/// with a warning.
const PLACES: Duration = Duration::from_secs(4);

fn file(daemon: &Daemon, id: &SessionId) -> PathBuf {
    daemon.directories.session(id).join("scripts.json")
}

fn ran(file: &Path) -> Option<Digests> {
    let ran: ScriptsFile = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    (ran.version == VERSION).then_some(ran.scripts)
}

/// The scripts that a launch is about to run, and those of the last launch.
#[derive(Debug)]
pub(super) struct ScriptInspection {
    scripts: Scripts,
    ran: Option<Digests>,
}

/// Reads a session's scripts before they run.
pub(super) async fn inspect_scripts(
    pipeline: &Pipeline,
    daemon: &Daemon,
    id: &SessionId,
    places: &ScriptDirectories,
) -> ScriptInspection {
    let file = file(daemon, id);
    let ran = pulse::blocking(move || ran(&file)).await;
    let scripts = pipeline.look_at_scripts(places, &daemon.trust, ran.as_ref()).await;
    ScriptInspection { scripts, ran }
}

impl ScriptInspection {
    /// Reports the warnings in a condition. `environment` is the result of the build, if the build succeeded.
    pub(super) async fn report(
        self,
        plan: &LaunchPlan,
        environment: Option<&Environment>,
        report: &mpsc::Sender<Progress>,
    ) {
        let mut warnings = self.scripts.warnings;
        if let Some(environment) = environment {
            let named = NamedPlaces::new(|name| environment.get(name), &plan.spec.directory);
            // Each look at a path of a place is a start of its client.
            if plan.place.is_none() {
                warnings.extend(of_variables(&plan.daemon.machine, &named).await);
            }
            warnings.extend(warnings_of_runs(&environment.scripts));
            warnings.extend(withheld(environment.attributes.as_ref(), &plan.spec));
            let digests = self.scripts.digests;
            if self.ran.as_ref() != Some(&digests) && (self.ran.is_some() || !digests.is_empty()) {
                let (file, scripts) =
                    (file(&plan.daemon, &plan.id), ScriptsFile { version: VERSION, scripts: digests });
                if let Err(error) = pulse::blocking(move || files::write_json(&file, &scripts)).await {
                    tracing::warn!(
                        %error,
                        "cannot write scripts.json; the next launch will not notice changed scripts"
                    );
                }
            }
        }
        let (status, reason, message) = condition(&warnings);
        let _ =
            report.send(Progress::Condition { kind: ConditionType::EnvironmentValid, status, reason, message }).await;
    }
}

/// Merges the warnings into one condition.
fn condition(warnings: &[Warning]) -> (ConditionStatus, String, String) {
    let message = warnings.iter().map(|one| one.message.as_str()).collect::<Vec<_>>().join("; ");
    match warnings {
        [] => (ConditionStatus::True, reason::NOTHING_WRONG.to_owned(), "nothing looks wrong".to_owned()),
        [first, rest @ ..] if rest.iter().all(|one| one.reason == first.reason) => {
            (ConditionStatus::False, first.reason.clone(), message)
        }
        _ => (ConditionStatus::False, reason::SEVERAL_WARNINGS.to_owned(), message),
    }
}

async fn of_variables(machine: &Machine, named: &NamedPlaces) -> Vec<Warning> {
    named.warnings(machine.path_states(named.paths(), Instant::now() + PLACES, |_| false).await)
}

/// Returns the warning about limits that the login shell sets but the agent does not get.
fn withheld(attributes: Option<&Attributes>, spec: &SessionSpec) -> Option<Warning> {
    let withheld = attributes.map(Attributes::withheld).filter(|withheld| !withheld.is_empty())?;
    let message = format!(
        "the agent does not get {}, which the login shell sets; see LimitNOFILE= and the like in systemd.exec(5)",
        withheld.join(", ")
    );
    Some(Warning { reason: reason::LIMITS_WITHHELD.to_owned(), path: spec.directory.clone(), message })
}

/// Returns the warnings that the next launch would give, without a launch. They are based on the present scripts
/// and on the environment of the last launch.
#[boxed]
pub async fn validate(
    generation: &Generation,
    SessionView { id, spec, status, .. }: &SessionView,
    kept: Option<&StoredEnvironments>,
) -> Result<ValidationView, NoHost> {
    let last = kept.map(|kept| &kept.last);
    let active = status.workflow.as_ref().and_then(|workflow| workflow.active.as_ref());
    let is_here = !generation.is_elsewhere(spec);
    let mut directory = None;
    let mut further = None;
    if is_here {
        directory = workspace::check(&generation.daemon.machine, &spec.directory).await.err();
        further = workspace::check_all(&generation.daemon.machine, &spec.directories).await.err();
    }
    let unusable = |error: &WorkspaceError| Warning {
        reason: error.reason().to_owned(),
        path: error.path().to_owned(),
        message: error.to_string(),
    };
    let home = HomeDiffers::find(generation.config.environment.home.as_deref()).map(|differs| Warning {
        reason: HomeDiffers::CODE.to_owned(),
        path: differs.own.clone(),
        message: differs.to_string(),
    });
    let mut warnings: Vec<Warning> = directory.iter().chain(&further).map(unusable).chain(home).collect();
    // In a directory that does not answer, nothing else is looked at.
    if let Some(WorkspaceError::Silent { .. }) = directory {
        let launch = last.map(|last| last.launch);
        return Ok(ValidationView { session: id.clone(), launch, scripts: Vec::new(), warnings });
    }
    let (pipeline, daemon) = (generation.pipeline().await?, &generation.daemon);
    let places = super::environment::places_under(&daemon.directories, id, (spec, active));
    let Scripts { paths, warnings: of_scripts, .. } = inspect_scripts(pipeline, daemon, id, &places).await.scripts;
    warnings.extend(of_scripts);
    warnings.extend(withheld(kept.and_then(|kept| kept.attributes.as_ref()), spec));
    if let Some(last) = last.filter(|_| is_here) {
        let value = |name: &str| {
            let variable = last.variables.iter().find(|variable| variable.name == name)?;
            variable.value.as_ref().map(agentd_api::ByteString::as_bytes)
        };
        warnings.extend(of_variables(&generation.daemon.machine, &NamedPlaces::new(value, &spec.directory)).await);
        warnings.extend(tools::missing(generation, spec, last).await);
    }
    warnings.extend(last.into_iter().flat_map(|last| warnings_of_runs(&last.scripts)));
    Ok(ValidationView { session: id.clone(), launch: last.map(|last| last.launch), scripts: paths, warnings })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_names_each_warning() {
        let one = |reason: &str, message: &str| Warning {
            reason: reason.to_owned(),
            path: PathBuf::new(),
            message: message.to_owned(),
        };
        let told = |warnings: &[Warning]| {
            let (status, reason, message) = condition(warnings);
            (status == ConditionStatus::True, reason, message)
        };
        assert!(told(&[]).0);
        let expected = (false, "A".to_owned(), "x; y".to_owned());
        assert_eq!(told(&[one("A", "x"), one("A", "y")]), expected);
        let expected = (false, "SeveralWarnings".to_owned(), "x; y".to_owned());
        assert_eq!(told(&[one("A", "x"), one("B", "y")]), expected);
    }
}
