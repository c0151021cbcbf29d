//! Whether agentd is installed as a service, as this agentctl has it, and in force.

use std::path::Path;

use agentd_api::doctor::{Check, Finding};
use agentd_api::prerequisite::Outcome;

use super::super::service::host::Host;
use super::super::service::manager::Service;
use super::super::service::survey::{self, State, Survey};
use super::super::service::{ServiceError, Standing};

/// What was found of the service.
#[derive(Debug)]
pub(super) struct Installed {
    survey: Survey,
    pub(super) socket: Option<State>,
    state: Option<State>,
}

pub(super) async fn look(
    host: &Host,
    service: &Result<Service, ServiceError>,
    from: &Path,
) -> Result<Installed, Option<ServiceError>> {
    let Ok(service) = service else { return Err(None) };
    let survey = Survey::look(host, service, from, None)?;
    let (socket, state) = survey::states(host, service).await?;
    Ok(Installed { survey, socket, state })
}

pub(super) fn service(
    service: &Result<Service, ServiceError>,
    installed: &Result<Installed, Option<ServiceError>>,
) -> Check {
    match (service, installed) {
        (Err(error @ ServiceError::NoManager), _) => {
            Check::new("service", Outcome::Pass, format!("{error}; agentctl starts agentd when it is needed"))
        }
        (Err(error), _) | (_, Err(Some(error))) => {
            let check = Check::new("service", Outcome::Unknown, crate::error::told(error));
            match error.hint() {
                Some(hint) => check.remedy(hint),
                None => check,
            }
        }
        (Ok(service), Ok(installed)) => of(service, installed),
        (Ok(_), Err(None)) => Check::new("service", Outcome::Unknown, "it was not looked at"),
    }
}

/// Of a daemon that the administrator runs.
pub(super) fn administrators(unit: &str) -> Check {
    Check::new("service", Outcome::Pass, format!("the administrator runs agentd for you ({unit})"))
}

fn of(service: &Service, installed: &Installed) -> Check {
    const INSTALL: &str = "agentctl service install";
    let Installed { survey, socket, state } = installed;
    if !survey.is_installed() {
        return Check::new(
            "service",
            Outcome::Warn,
            "agentd is not installed as a service; sessions are, where agentctl started it, \
             nobody's to look after",
        )
        .remedy(INSTALL);
    }
    let mut findings = Vec::new();
    let paths = |wanted: Standing| {
        let programs = survey.programs.iter().filter(|it| it.standing == wanted).map(|it| it.to.display().to_string());
        let units = survey.units.iter().filter(|it| it.standing == wanted).map(|it| it.unit.path.display().to_string());
        programs.chain(units).collect::<Vec<_>>().join(", ")
    };
    let (older, changed) = (paths(Standing::Ours), paths(Standing::Foreign));
    if !older.is_empty() {
        findings.push(Finding::new(Outcome::Warn, format!("of another build than this agentctl: {older}"), INSTALL));
    }
    if !changed.is_empty() {
        let remedy = "agentctl service install --force puts them back; your own settings belong in a drop-in";
        findings.push(Finding::new(Outcome::Warn, format!("not as they were installed: {changed}"), remedy));
    }
    for (name, state) in [("socket", socket), ("service", state)] {
        let Some(state) = state else { continue };
        if state.stale {
            let remedy = "systemctl --user daemon-reload";
            findings.push(Finding::new(
                Outcome::Warn,
                format!("systemd holds an older {name} unit than the file"),
                remedy,
            ));
        }
        if state.active == "failed" {
            let remedy = "agentctl service logs says why; agentctl service install starts it again";
            findings.push(Finding::new(Outcome::Fail, format!("the {name} has failed"), remedy));
        }
    }
    if let Some(socket) = socket.as_ref().filter(|socket| socket.active != "failed") {
        if !socket.is_active() {
            findings.push(Finding::new(Outcome::Fail, format!("the socket is {}", socket.active), INSTALL));
        } else if !socket.enabled {
            findings.push(Finding::new(
                Outcome::Warn,
                "the socket is not enabled: it is gone after the next login",
                INSTALL,
            ));
        }
    }
    Check::of("service", &findings, format!("installed and current ({})", service.name()))
}

pub(super) fn linger(lingers: bool, user: &str) -> Check {
    if lingers {
        return Check::new("linger", Outcome::Pass, format!("sessions of {user} outlive the last logout"));
    }
    Check::new("linger", Outcome::Warn, format!("sessions of {user} end with the last login of {user}"))
        .remedy(format!("loginctl enable-linger {user}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn active() -> State {
        State { active: "active".into(), enabled: true, ..State::default() }
    }

    /// A home with what `Survey` looks for, put there as it is to be.
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

    #[test]
    fn what_is_missing_older_changed_not_read_failed_or_off_is_told() {
        let (_directory, host, build) = machine();
        let look = |socket: State, state: State| {
            let survey = Survey::look(&host, &Service::User, &build, None).unwrap();
            of(&Service::User, &Installed { survey, socket: Some(socket), state: Some(state) })
        };
        assert_eq!(look(active(), active()).outcome, Outcome::Warn, "nothing is installed");
        let survey = Survey::look(&host, &Service::User, &build, None).unwrap();
        survey.lay_down().unwrap();
        let good = look(active(), active());
        assert_eq!(good.outcome, Outcome::Pass, "{good:?}");
        let unit = host.home.join(".config/systemd/user/agentd.service");
        std::fs::write(unit, "# mine").unwrap();
        let check = look(active(), active());
        assert!(check.outcome == Outcome::Warn && check.summary.contains("not as they were installed"), "{check:?}");
        survey.lay_down().unwrap();
        for (socket, state, outcome) in [
            (State { enabled: false, ..active() }, active(), Outcome::Warn),
            (State { active: "inactive".into(), ..active() }, active(), Outcome::Fail),
            (active(), State { active: "failed".into(), ..active() }, Outcome::Fail),
            (active(), State { stale: true, ..active() }, Outcome::Warn),
        ] {
            let check = look(socket, state);
            assert!(check.outcome == outcome && check.remedy.is_some(), "{check:?}");
        }
    }

    #[test]
    fn a_user_who_does_not_linger_is_told_and_no_manager_is_no_fault() {
        assert_eq!(linger(true, "kim").outcome, Outcome::Pass);
        assert_eq!(linger(false, "kim").remedy.as_deref(), Some("loginctl enable-linger kim"));
        assert_eq!(service(&Err(ServiceError::NoManager), &Err(None)).outcome, Outcome::Pass);
        let no_bus = Err(ServiceError::NoUserManager { said: "no bus".into() });
        assert_eq!(service(&no_bus, &Err(None)).outcome, Outcome::Unknown);
    }
}
