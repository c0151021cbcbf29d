//! What is said of a session's environment before it is launched: as a condition of the launch, and to whoever asks.
//!
//! Which scripts ran at the last launch is kept in the session's `scripts.json`; a file that cannot be read is as none.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_api::session::{ConditionStatus, ConditionType, SessionSpec};
use agentd_api::validation::{ValidationView, Warning};
use agentd_keeper::protocol::Attributes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::bringup::Progress;
use super::tools;
use crate::capability::Machine;
use crate::env::sources::HomeDiffers;
use crate::env::{Digests, Environment, Kept, NamedPlaces, Scripts, warnings_of_runs};
use crate::plugins::NoHost;
use crate::store;
use crate::workspace::{self, WorkspaceError};
use crate::world::World;

/// `scripts.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Ran {
    version: u32,
    scripts: Digests,
}

const VERSION: u32 = 1;
/// How long all places that an environment names have to answer. Of one that does not the launch is told, and waits no longer.
const PLACES: Duration = Duration::from_secs(4);

fn file(world: &World, id: &SessionId) -> PathBuf {
    world.directories.session(id).join("scripts.json")
}

fn ran(world: &World, id: &SessionId) -> Option<Digests> {
    let ran: Ran = serde_json::from_slice(&std::fs::read(file(world, id)).ok()?).ok()?;
    (ran.version == VERSION).then_some(ran.scripts)
}

/// What a launch is about to use.
#[derive(Debug)]
pub(super) struct Look {
    scripts: Scripts,
    ran: Option<Digests>,
}

/// Looks at a session's scripts before they are run.
pub(super) async fn look(world: &World, id: &SessionId, spec: &SessionSpec) -> Result<Look, NoHost> {
    let places = super::environment::places(world, id, spec);
    let ran = ran(world, id);
    let scripts = world.pipeline().await?.look_at_scripts(&places, &world.trust, ran.as_ref()).await;
    Ok(Look { scripts, ran })
}

impl Look {
    /// Says what was found; `environment` is what the scripts and all else made, where they made one.
    pub(super) async fn report(
        self,
        world: &World,
        id: &SessionId,
        spec: &SessionSpec,
        environment: Option<&Environment>,
        report: &mpsc::Sender<Progress>,
    ) {
        let mut warnings = self.scripts.warnings;
        if let Some(environment) = environment {
            warnings.extend(
                of_variables(&world.machine, &NamedPlaces::new(|name| environment.get(name), &spec.directory)).await,
            );
            warnings.extend(warnings_of_runs(&environment.scripts));
            warnings.extend(withheld(environment.attributes.as_ref(), spec));
            let digests = self.scripts.digests;
            if self.ran.as_ref() != Some(&digests) && (self.ran.is_some() || !digests.is_empty()) {
                let written = store::write_json(&file(world, id), &Ran { version: VERSION, scripts: digests });
                if let Err(error) = written {
                    tracing::warn!(agentd.session = %id, %error, "which scripts ran cannot be kept; a change will not be noticed");
                }
            }
        }
        let (status, reason, message) = condition(&warnings);
        let _ =
            report.send(Progress::Condition { kind: ConditionType::EnvironmentValid, status, reason, message }).await;
    }
}

/// The warnings as one condition.
fn condition(warnings: &[Warning]) -> (ConditionStatus, String, String) {
    let message = warnings.iter().map(|one| one.message.as_str()).collect::<Vec<_>>().join("; ");
    match warnings {
        [] => (ConditionStatus::True, "NothingWrong".to_owned(), "nothing looks wrong".to_owned()),
        [first, rest @ ..] if rest.iter().all(|one| one.reason == first.reason) => {
            (ConditionStatus::False, first.reason.clone(), message)
        }
        _ => (ConditionStatus::False, "SeveralWarnings".to_owned(), message),
    }
}

async fn of_variables(machine: &Machine, named: &NamedPlaces) -> Vec<Warning> {
    named.warnings(machine.places(named.paths(), Instant::now() + PLACES, |_| false).await)
}

/// What the login shell sets besides variables and the agent does not get.
fn withheld(attributes: Option<&Attributes>, spec: &SessionSpec) -> Option<Warning> {
    let withheld = attributes.map(Attributes::withheld).filter(|withheld| !withheld.is_empty())?;
    let message = format!(
        "the agent does not get {}, which the login shell sets; see LimitNOFILE= and the like in systemd.exec(5)",
        withheld.join(", ")
    );
    Some(Warning { reason: "LimitsWithheld".to_owned(), path: spec.directory.clone(), message })
}

/// What the next launch would warn of, as far as it can be told without one: the scripts as they are, and the environment of the last
/// launch.
pub(crate) async fn validate(
    world: &World,
    id: &SessionId,
    spec: &SessionSpec,
    kept: Option<&Kept>,
) -> Result<ValidationView, NoHost> {
    let last = kept.map(|kept| &kept.last);
    let directory = workspace::check(&world.machine, &spec.directory).await.err();
    let unusable = directory.as_ref().map(|error| Warning {
        reason: error.reason().to_owned(),
        path: spec.directory.clone(),
        message: error.to_string(),
    });
    let home = HomeDiffers::find(world.config.environment.home.as_deref()).map(|differs| Warning {
        reason: HomeDiffers::CODE.to_owned(),
        path: differs.own.clone(),
        message: differs.to_string(),
    });
    let mut warnings: Vec<Warning> = unusable.into_iter().chain(home).collect();
    // Of a directory that does not answer nothing below it is looked at.
    if let Some(WorkspaceError::Silent { .. }) = directory {
        let launch = last.map(|last| last.launch);
        return Ok(ValidationView { session: id.clone(), launch, scripts: Vec::new(), warnings });
    }
    let Scripts { paths, warnings: of_scripts, .. } = look(world, id, spec).await?.scripts;
    warnings.extend(of_scripts);
    warnings.extend(withheld(kept.and_then(|kept| kept.attributes.as_ref()), spec));
    if let Some(last) = last {
        let value = |name: &str| {
            let variable = last.variables.iter().find(|variable| variable.name == name)?;
            variable.value.as_ref().map(agentd_api::ByteString::as_bytes)
        };
        warnings.extend(of_variables(&world.machine, &NamedPlaces::new(value, &spec.directory)).await);
        warnings.extend(warnings_of_runs(&last.scripts));
        warnings.extend(tools::missing(world, spec, last).await);
    }
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
