//! How the installation stands: files, units, the daemon that runs. Looking changes nothing, and starts nothing.

use std::path::{Path, PathBuf};

use agentd_api::compatibility::Compatibility;
use agentd_api::session::SessionView;

use super::ServiceError;
use super::host::{Host, Program, is_instance, unit_of};
use super::manager::Service;
use super::material::{self, PROGRAMS, Unit};
use super::record::{Record, Standing, digest_of, standing};
use crate::client::Client;

/// A program of the installation.
#[derive(Debug, Clone)]
pub(in crate::commands) struct ProgramFile {
    pub(super) from: PathBuf,
    pub(in crate::commands) to: PathBuf,
    pub(in crate::commands) standing: Standing,
}

/// A unit of the installation.
#[derive(Debug, Clone)]
pub(in crate::commands) struct UnitFile {
    pub(in crate::commands) unit: Unit,
    pub(in crate::commands) standing: Standing,
}

/// What systemd says of a unit, or launchd of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::commands) struct State {
    /// `active`, `inactive`, `failed`, `activating` ...; `not-found` where the manager knows none, `masked` where it must not start.
    pub(in crate::commands) active: String,
    /// More exactly: `auto-restart`, `running`, `listening` ...
    pub(in crate::commands) sub: String,
    /// How it ended last: `success`, `exit-code` ...
    pub(in crate::commands) result: String,
    /// The exit status of its main process, once that has ended.
    pub(in crate::commands) status: Option<i32>,
    /// How often the manager has started it again by itself.
    pub(in crate::commands) restarts: u32,
    /// The path that a socket unit listens at.
    pub(in crate::commands) listens: Option<PathBuf>,
    pub(in crate::commands) enabled: bool,
    pub(in crate::commands) pid: Option<u32>,
    /// The manager holds an older text than the file has.
    pub(in crate::commands) stale: bool,
}

impl State {
    pub(in crate::commands) fn is_active(&self) -> bool {
        matches!(self.active.as_str(), "active" | "reloading")
    }

    /// Whether a restart has something to restart.
    pub(in crate::commands) fn is_up(&self) -> bool {
        self.is_active() || self.active == "activating"
    }

    pub(in crate::commands) fn is_known(&self) -> bool {
        self.active != "not-found"
    }
}

/// A daemon that answers.
#[derive(Debug)]
pub(super) struct Running {
    /// The unit that it is, perhaps the administrator's; nothing where no manager started it.
    pub(super) unit: Option<String>,
    /// Whose it is, where it is not that of the user who asks.
    pub(super) user: Option<String>,
    pub(super) client: Client,
    pub(super) pid: u32,
    pub(super) version: String,
    pub(super) compatibility: Compatibility,
    pub(super) sessions: Vec<SessionView>,
    /// Its program's file by its own word: the daemon's process is closed to others of its user.
    pub(super) said: Option<PathBuf>,
}

impl Running {
    /// Its program, and whether another was put in its place since.
    pub(super) fn program(&self, host: &Host) -> Option<Program> {
        let said = || self.said.as_deref().filter(|_| host.os == "linux").map(Program::of_link);
        host.program_of(self.pid).or_else(said)
    }
}

#[derive(Debug)]
pub(in crate::commands) struct Survey {
    pub(in crate::commands) record: Option<Record>,
    /// The directory of the programs.
    pub(in crate::commands) directory: PathBuf,
    pub(in crate::commands) programs: Vec<ProgramFile>,
    pub(in crate::commands) units: Vec<UnitFile>,
}

impl Survey {
    /// `from` has the programs that would be installed; `directory` is where, if that was said.
    pub(in crate::commands) fn look(
        host: &Host,
        service: &Service,
        from: &Path,
        directory: Option<&Path>,
    ) -> Result<Self, ServiceError> {
        let record = Record::read(&service.record(host))?;
        let directory = directory
            .map(Path::to_owned)
            .or_else(|| record.as_ref().map(|record| record.programs.clone()))
            .unwrap_or_else(|| service.default_programs(host));
        let mut programs = Vec::new();
        for name in PROGRAMS {
            let (from, to) = (from.join(name), directory.join(name));
            let wanted = digest_of(&from)?.ok_or_else(|| ServiceError::NoProgram { path: from.clone() })?;
            let standing = standing(&to, &wanted, record.as_ref())?;
            programs.push(ProgramFile { from, to, standing });
        }
        let mut units = Vec::new();
        for unit in material::units(host, service, &directory)? {
            let standing = standing(&unit.path, &material::digest(unit.text.as_bytes()), record.as_ref())?;
            units.push(UnitFile { unit, standing });
        }
        Ok(Self { record, directory, programs, units })
    }

    /// Puts everything there, as an install does.
    #[cfg(test)]
    pub(in crate::commands) fn lay_down(&self) -> std::io::Result<()> {
        for program in &self.programs {
            std::fs::copy(&program.from, &program.to)?;
        }
        for file in &self.units {
            std::fs::create_dir_all(file.unit.path.parent().unwrap_or(Path::new("/")))?;
            std::fs::write(&file.unit.path, &file.unit.text)?;
        }
        Ok(())
    }

    pub(in crate::commands) fn is_installed(&self) -> bool {
        let standings = self.programs.iter().map(|it| it.standing).chain(self.units.iter().map(|it| it.standing));
        standings.into_iter().all(|standing| standing != Standing::Absent) && !self.units.is_empty()
    }
}

/// What systemd says of a unit.
pub(in crate::commands) async fn unit_state(host: &Host, service: &Service, unit: &str) -> Result<State, ServiceError> {
    let properties = "--property=LoadState,ActiveState,SubState,Result,ExecMainStatus,NRestarts,Listen,UnitFileState,MainPID,\
                      NeedDaemonReload";
    let command = service.systemctl(&["show", properties, unit]);
    let ran = host.run(&command).await?;
    if !ran.success {
        return Err(ServiceError::Failed { command: super::host::line(&command), said: ran.complaint });
    }
    let value = |key: &str| ran.stdout.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or("");
    let active = match value("LoadState") {
        other @ ("not-found" | "masked") => other,
        _ => value("ActiveState"),
    };
    Ok(State {
        active: active.to_owned(),
        sub: value("SubState").to_owned(),
        result: value("Result").to_owned(),
        status: value("ExecMainStatus").parse().ok(),
        restarts: value("NRestarts").parse().unwrap_or_default(),
        listens: value("Listen").strip_suffix(" (Stream)").map(PathBuf::from),
        enabled: value("UnitFileState").starts_with("enabled"),
        pid: value("MainPID").parse().ok().filter(|pid| *pid != 0),
        stale: value("NeedDaemonReload") == "yes",
    })
}

/// What launchd says of the job.
pub(in crate::commands) async fn job_state(host: &Host) -> Result<State, ServiceError> {
    let ran = host.run(&["launchctl", "print", &Service::target(host)]).await?;
    if !ran.success {
        return Ok(State { active: "not-found".to_owned(), ..State::default() });
    }
    let value = |key: &str| ran.stdout.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(" = "));
    let pid = value("pid").and_then(|pid| pid.parse().ok());
    let active = if pid.is_some() { "active" } else { "inactive" };
    Ok(State { active: active.to_owned(), enabled: true, pid, ..State::default() })
}

/// The state of the service, and of its socket where that is a unit of its own.
pub(in crate::commands) async fn states(
    host: &Host,
    service: &Service,
) -> Result<(Option<State>, Option<State>), ServiceError> {
    if *service == Service::Launchd {
        return Ok((None, Some(job_state(host).await?)));
    }
    let (Some(socket), Some(unit)) = (service.socket_unit(), service.service_unit()) else { return Ok((None, None)) };
    Ok((Some(unit_state(host, service, &socket).await?), Some(unit_state(host, service, &unit).await?)))
}

/// The units of one service, and how they stand.
#[derive(Debug)]
pub(in crate::commands) struct Units {
    pub(in crate::commands) service: Service,
    pub(in crate::commands) socket: State,
    pub(in crate::commands) unit: State,
}

impl Units {
    /// Whether only root may start them.
    pub(in crate::commands) fn are_administrators(&self) -> bool {
        matches!(self.service, Service::System { .. })
    }

    /// The name of the service's unit.
    pub(in crate::commands) fn name(&self) -> String {
        self.service.service_unit().unwrap_or_default()
    }
}

/// The units of the template for this user, where the administrator enabled or started them.
pub(in crate::commands) async fn administrators(host: &Host) -> Result<Option<Units>, ServiceError> {
    if host.os == "macos" || !host.path("/run/systemd/system").is_dir() {
        return Ok(None);
    }
    let service = Service::System { user: Some(host.user.clone()) };
    match states(host, &service).await {
        Ok((Some(socket), Some(unit))) => {
            // Once the template lies there, it is loaded for every name that is asked for.
            let is_this_users =
                |state: &State| state.enabled || !matches!(state.active.as_str(), "inactive" | "not-found");
            let found = socket.is_known() && (is_this_users(&socket) || is_this_users(&unit));
            Ok(found.then_some(Units { service, socket, unit }))
        }
        Ok(_) => Ok(None),
        Err(error) => {
            let link = format!("/etc/systemd/system/sockets.target.wants/agentd@{}.socket", host.user);
            if host.path(&link).symlink_metadata().is_ok() { Err(error) } else { Ok(None) }
        }
    }
}

/// The instances of the template that systemd has loaded, by their users.
pub(super) async fn instances(host: &Host, service: &Service) -> Result<Vec<String>, ServiceError> {
    let command = service.systemctl(&["list-units", "--all", "--plain", "--no-legend", "agentd@*.socket"]);
    let ran = host.run(&command).await?;
    let names = ran.stdout.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter_map(|unit| unit.strip_prefix("agentd@")?.strip_suffix(".socket").map(str::to_owned)).collect())
}

/// The client of an instance of the template: systemd says where its socket is.
pub(in crate::commands) async fn client_of(host: &Host, service: &Service, user: &str) -> Option<Client> {
    let unit = format!("agentd@{user}.socket");
    let said = host.said(&service.systemctl(&["show", "--property=Listen", "--value", &unit])).await?;
    Some(Client::new(said.lines().next()?.strip_suffix(" (Stream)")?.into()))
}

/// A daemon, if one answers this client.
pub(super) async fn running(
    client: &Client,
    unit: Option<String>,
    user: Option<String>,
) -> Result<Running, crate::error::Error> {
    let version = client.version().await?.value;
    Ok(Running {
        unit,
        user,
        client: client.clone(),
        pid: version.pid,
        version: version.version,
        compatibility: version.compatibility,
        sessions: client.list().await?.value.sessions,
        said: version.program,
    })
}

/// The daemons that this service is, as far as they run; none is started by it.
pub(super) async fn all_running(
    host: &Host,
    service: &Service,
    client: &Client,
) -> Result<Vec<Running>, crate::error::Error> {
    if let Service::System { .. } = service {
        let mut found = Vec::new();
        for user in instances(host, service).await? {
            let unit = format!("agentd@{user}.service");
            if unit_state(host, service, &unit).await?.is_active()
                && let Some(client) = client_of(host, service, &user).await
            {
                found.push(running(&client, Some(unit), Some(user)).await?);
            }
        }
        return Ok(found);
    }
    let (socket, state) = states(host, service).await?;
    if state.as_ref().is_some_and(State::is_active) {
        let unit = service.service_unit().unwrap_or_else(|| super::manager::LABEL.to_owned());
        return Ok(vec![running(client, Some(unit), None).await?]);
    }
    // Where the manager listens, a request would start the service; where it does not, whoever answers was started by somebody else.
    if socket.is_some_and(|socket| socket.is_active())
        || state.is_some_and(|state| state.is_known() && service == &Service::Launchd)
    {
        return Ok(Vec::new());
    }
    match running(client, None, None).await {
        Ok(running) => {
            Ok(vec![Running { unit: unit_of(host, running.pid).filter(|unit| is_instance(unit)), ..running }])
        }
        Err(crate::error::Error::Unreachable { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
