//! Checks whether agentd is installed as a service, equals this build, and is in force.

use std::path::Path;

use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;

use crate::service::ServiceError;
use crate::service::host::Host;
use crate::service::manager::Service;
use crate::service::record::Standing;
use crate::service::repair;
use crate::service::survey::{self, Survey, UnitState, Units};

/// State of the installed service.
#[derive(Debug)]
pub(super) struct Installed {
    survey: Survey,
    pub(super) socket: Option<UnitState>,
    state: Option<UnitState>,
}

impl Installed {
    /// Returns the units, if systemd knows them.
    pub(super) fn units(&self, service: &Service) -> Option<Units> {
        let (socket, unit) = (self.socket.clone()?, self.state.clone()?);
        socket.is_known().then(|| Units { service: service.clone(), socket, unit })
    }
}

pub(super) async fn look(
    host: &Host,
    service: &Result<Service, ServiceError>,
    from: &Path,
) -> Result<Installed, Option<ServiceError>> {
    let Ok(service) = service else { return Err(None) };
    let survey = Survey::look(host, service, from, None).await?;
    let (socket, state) = survey::states(host, service).await?;
    Ok(Installed { survey, socket, state })
}

pub(super) fn service(
    service: &Result<Service, ServiceError>,
    installed: Result<&Installed, Option<&ServiceError>>,
) -> Check {
    match (service, installed) {
        (Err(error @ ServiceError::NoManager), _) => {
            Check::new("service", Outcome::Pass, format!("{error}; agentctl starts agentd when it is needed"))
        }
        (Err(error), _) | (_, Err(Some(error))) => {
            let check = Check::new("service", Outcome::Unknown, agentd_api::chain(error));
            match error.hint() {
                Some(hint) => check.remedy(hint),
                None => check,
            }
        }
        (Ok(service), Ok(installed)) => of(service, installed),
        (Ok(_), Err(None)) => Check::new("service", Outcome::Unknown, "not checked"),
    }
}

/// Checks the administrator's units.
pub(super) fn administrators(units: &Units) -> Check {
    let findings: Vec<Finding> = units_stand(units);
    Check::of("service", &findings, format!("the administrator runs agentd for you ({})", units.name()))
}

/// Returns the reasons why the units would not start agentd at a request.
fn units_stand(units: &Units) -> Vec<Finding> {
    let Units { service, socket, unit } = units;
    let mut findings = Vec::new();
    let name = service.socket_unit().unwrap_or_default();
    for (what, state) in [("socket", socket), ("service", unit)] {
        if state.stale {
            let finding = Finding::bare(Outcome::Warn, format!("systemd holds an older {what} unit than the file"));
            findings.push(repair::by(finding, service, &[service.systemctl(&["daemon-reload"])]));
        }
    }
    if !socket.is_active() || unit.active == "failed" || unit.active == "masked" {
        let summary = format!("{name} is {}, {} is {}", socket.active, units.name(), unit.active);
        let commands = if socket.is_active() && unit.active == "failed" {
            repair::starts(units)
        } else {
            repair::listens(service, socket, unit).unwrap_or_else(|commands| commands)
        };
        findings.push(repair::by(Finding::bare(Outcome::Fail, summary), service, &commands));
    } else if !socket.enabled {
        let finding =
            Finding::bare(Outcome::Warn, format!("{name} is not enabled: it does not start at the next login"));
        findings.push(repair::by(finding, service, &[service.systemctl(&["enable", &name])]));
    }
    findings
}

fn of(service: &Service, installed: &Installed) -> Check {
    const INSTALL: &str = "agentctl service install";
    let survey = &installed.survey;
    if !survey.is_installed() {
        return Check::new(
            "service",
            Outcome::Warn,
            "agentd is not installed as a service: an agentd that agentctl started \
             is not restarted after a crash",
        )
        .run(INSTALL);
    }
    let mut findings = Vec::new();
    let paths = |wanted: Standing| {
        let programs = survey.programs.iter().filter(|it| it.standing == wanted).map(|it| it.to.display().to_string());
        let texts = survey.units.iter().chain(&survey.documents).filter(|it| it.standing == wanted);
        programs.chain(texts.map(|it| it.file.path.display().to_string())).collect::<Vec<_>>().join(", ")
    };
    let (older, changed) = (paths(Standing::Ours), paths(Standing::Foreign));
    if !older.is_empty() {
        let finding = Finding::bare(Outcome::Warn, format!("of another build than this agentctl: {older}"));
        findings.push(finding.run(INSTALL));
    }
    if !changed.is_empty() {
        let remedy =
            "your own settings belong in a drop-in (systemctl edit), which stays; this command restores the files";
        let finding = Finding::new(Outcome::Warn, format!("not as they were installed: {changed}"), remedy);
        findings.push(finding.run("agentctl service install --force"));
    }
    if let Some(units) = installed.units(service) {
        findings.extend(units_stand(&units));
    }
    Check::of("service", &findings, format!("installed and current ({})", service.name()))
}

pub(super) fn linger(lingers: bool, user: &str) -> Check {
    if lingers {
        return Check::new("linger", Outcome::Pass, format!("sessions of {user} outlive the last logout"));
    }
    Check::new("linger", Outcome::Warn, format!("sessions of {user} end with the last logout of {user}"))
        .run(format!("loginctl enable-linger {user}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn active() -> UnitState {
        UnitState { active: "active".into(), enabled: true, ..UnitState::default() }
    }

    /// Returns a machine with the files that `Survey` compares.
    fn machine() -> (tempfile::TempDir, Host, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (home, build) = (directory.path().join("home"), directory.path().join("build"));
        std::fs::create_dir_all(home.join(".local/bin")).unwrap();
        std::fs::create_dir_all(&build).unwrap();
        let host = Host {
            os: "linux",
            uid: 1000,
            user: "kim".into(),
            home,
            search: "/bin".into(),
            root: directory.path().to_owned(),
        };
        for name in ["agentd", "agentd-keeper", "agentctl"] {
            std::fs::write(build.join(name), name).unwrap();
        }
        (directory, host, build)
    }

    fn survey(host: &Host, build: &Path) -> Survey {
        crate::runtime().unwrap().block_on(Survey::look(host, &Service::User, build, None)).unwrap()
    }

    #[test]
    fn what_is_missing_older_changed_not_read_failed_or_off_is_told() {
        let (_directory, host, build) = machine();
        let look = |socket: UnitState, state: UnitState| {
            let survey = survey(&host, &build);
            of(&Service::User, &Installed { survey, socket: Some(socket), state: Some(state) })
        };
        assert_eq!(look(active(), active()).outcome, Outcome::Warn, "nothing is installed");
        let survey = survey(&host, &build);
        survey.lay_down().unwrap();
        let good = look(active(), active());
        assert_eq!(good.outcome, Outcome::Pass, "{good:?}");
        let unit = host.home.join(".config/systemd/user/agentd.service");
        std::fs::write(unit, "# mine").unwrap();
        let check = look(active(), active());
        assert!(check.outcome == Outcome::Warn && check.summary.contains("not as they were installed"), "{check:?}");
        survey.lay_down().unwrap();
        for (socket, state, outcome) in [
            (UnitState { enabled: false, ..active() }, active(), Outcome::Warn),
            (UnitState { active: "inactive".into(), ..active() }, active(), Outcome::Fail),
            (active(), UnitState { active: "failed".into(), ..active() }, Outcome::Fail),
            (active(), UnitState { stale: true, ..active() }, Outcome::Warn),
        ] {
            let check = look(socket, state);
            assert!(check.outcome == outcome && !check.run.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn a_user_who_does_not_linger_is_told_and_no_manager_is_no_fault() {
        assert_eq!(linger(true, "kim").outcome, Outcome::Pass);
        assert_eq!(linger(false, "kim").run[0].line, "loginctl enable-linger kim");
        assert_eq!(service(&Err(ServiceError::NoManager), Err(None)).outcome, Outcome::Pass);
        let no_bus = Err(ServiceError::NoUserManager { said: "no bus".into() });
        assert_eq!(service(&no_bus, Err(None)).outcome, Outcome::Unknown);
    }
}
