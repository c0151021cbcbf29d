//! Surveys the installation: files, units, and running daemons. Changes nothing, and starts nothing.

use std::path::{Path, PathBuf};

use agentd_api::compatibility::Compatibility;
use agentd_api::session::SessionView;

use super::ServiceError;
use super::host::{Host, Program, is_instance, unit_of};
use super::manager::Service;
use super::material::{self, PROGRAMS, TextFile};
use super::record::{Record, Standing, digest_of, standing};
use agentd_client::Client;

/// Program of the installation.
#[derive(Debug, Clone)]
pub(crate) struct ProgramFile {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    pub(crate) standing: Standing,
}

/// Unit, completion script or man page of the installation.
#[derive(Debug, Clone)]
pub(crate) struct InstalledText {
    pub(crate) file: TextFile,
    pub(crate) standing: Standing,
}

/// State of a systemd unit, or of launchd's job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UnitState {
    /// `active`, `inactive`, `failed`, `activating` ...; `not-found` if the manager does not know the unit,
    /// `masked` if it must not start.
    pub(crate) active: String,
    /// Detailed state: `auto-restart`, `running`, `listening` ...
    pub(crate) sub: String,
    /// Result of the last run: `success`, `exit-code` ...
    pub(crate) result: String,
    /// Exit status of the main process, once it has ended.
    pub(crate) status: Option<i32>,
    /// Number of automatic restarts.
    pub(crate) restarts: u32,
    /// Path at which a socket unit listens.
    pub(crate) listens: Option<PathBuf>,
    pub(crate) enabled: bool,
    pub(crate) pid: Option<u32>,
    /// The unit's file changed after the manager read it.
    pub(crate) stale: bool,
}

impl UnitState {
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.active.as_str(), "active" | "reloading")
    }

    /// Reports whether a restart has a process to restart.
    pub(crate) fn is_up(&self) -> bool {
        self.is_active() || self.active == "activating"
    }

    pub(crate) fn is_known(&self) -> bool {
        self.active != "not-found"
    }
}

/// Running daemon.
#[derive(Debug)]
pub(crate) struct Running {
    /// Unit of the daemon, perhaps the administrator's; `None` if it was started without a manager.
    pub(crate) unit: Option<String>,
    /// User of the daemon; `None` for the calling user.
    pub(crate) user: Option<String>,
    pub(crate) client: Client,
    pub(crate) pid: u32,
    pub(crate) version: String,
    pub(crate) compatibility: Compatibility,
    pub(crate) sessions: Vec<SessionView>,
    /// Program of the daemon as the daemon reports it: other processes of the user cannot inspect the daemon's
    /// process.
    pub(crate) said: Option<PathBuf>,
}

impl Running {
    /// Returns the program, and whether its file was replaced since.
    pub(crate) fn program(&self, host: &Host) -> Option<Program> {
        let said = || self.said.as_deref().filter(|_| host.os == "linux").map(Program::of_link);
        host.program_of(self.pid).or_else(said)
    }
}

#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) record: Option<Record>,
    /// Directory of the programs.
    pub(crate) directory: PathBuf,
    pub(crate) programs: Vec<ProgramFile>,
    pub(crate) units: Vec<InstalledText>,
    /// Completion scripts and man pages.
    pub(crate) documents: Vec<InstalledText>,
}

impl Survey {
    /// Compares the installation with the build in `from`. `directory` is the chosen directory of the programs,
    /// if there is a choice.
    pub(crate) async fn look(
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
        let installed = |file: TextFile| {
            let standing = standing(&file.path, &material::digest(file.text.as_bytes()), record.as_ref())?;
            Ok::<_, ServiceError>(InstalledText { file, standing })
        };
        let units = material::units(host, service, &directory)?.into_iter().map(installed).collect::<Result<_, _>>()?;
        let agentd_page = host.said(&[from.join(PROGRAMS[0]).as_os_str(), "man".as_ref()]).await;
        let agentd_page = agentd_page.filter(|page| page.contains(".TH agentd 8")).map(|page| page + "\n");
        let documents = material::documents(host, service, agentd_page)?;
        let documents = documents.into_iter().map(installed).collect::<Result<_, _>>()?;
        Ok(Self { record, directory, programs, units, documents })
    }

    /// Installs every file, as `install` does.
    #[cfg(test)]
    pub(crate) fn lay_down(&self) -> std::io::Result<()> {
        for program in &self.programs {
            std::fs::copy(&program.from, &program.to)?;
        }
        for InstalledText { file, .. } in self.units.iter().chain(&self.documents) {
            std::fs::create_dir_all(file.path.parent().unwrap_or(Path::new("/")))?;
            std::fs::write(&file.path, &file.text)?;
        }
        Ok(())
    }

    /// Reports whether every program and unit exists. Completion scripts and man pages do not count: agentd
    /// runs without them.
    pub(crate) fn is_installed(&self) -> bool {
        let standings = self.programs.iter().map(|it| it.standing).chain(self.units.iter().map(|it| it.standing));
        standings.into_iter().all(|standing| standing != Standing::Absent) && !self.units.is_empty()
    }
}

/// Returns the state of a systemd unit.
pub(crate) async fn unit_state(host: &Host, service: &Service, unit: &str) -> Result<UnitState, ServiceError> {
    let properties = "--property=LoadState,ActiveState,SubState,Result,ExecMainStatus,NRestarts,Listen,UnitFileState,\
                      MainPID,NeedDaemonReload";
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
    Ok(UnitState {
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

/// Returns the state of launchd's job.
pub(crate) async fn job_state(host: &Host) -> Result<UnitState, ServiceError> {
    let ran = host.run(&["launchctl", "print", &Service::target(host)]).await?;
    if !ran.success {
        return Ok(UnitState { active: "not-found".to_owned(), ..UnitState::default() });
    }
    let value = |key: &str| ran.stdout.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(" = "));
    let pid = value("pid").and_then(|pid| pid.parse().ok());
    let active = if pid.is_some() { "active" } else { "inactive" };
    Ok(UnitState { active: active.to_owned(), enabled: true, pid, ..UnitState::default() })
}

/// Returns the states of the socket unit and of the service. launchd has no socket unit.
pub(crate) async fn states(
    host: &Host,
    service: &Service,
) -> Result<(Option<UnitState>, Option<UnitState>), ServiceError> {
    if *service == Service::Launchd {
        return Ok((None, Some(job_state(host).await?)));
    }
    let (Some(socket), Some(unit)) = (service.socket_unit(), service.service_unit()) else { return Ok((None, None)) };
    Ok((Some(unit_state(host, service, &socket).await?), Some(unit_state(host, service, &unit).await?)))
}

/// Units of one service, with their states.
#[derive(Debug)]
pub(crate) struct Units {
    pub(crate) service: Service,
    pub(crate) socket: UnitState,
    pub(crate) unit: UnitState,
}

impl Units {
    /// Reports whether only root may start the units.
    pub(crate) fn are_administrators(&self) -> bool {
        matches!(self.service, Service::System { .. })
    }

    /// Returns the name of the service unit.
    pub(crate) fn name(&self) -> String {
        self.service.service_unit().unwrap_or_default()
    }
}

/// Returns the template's units for this user, if the administrator enabled or started them.
pub(crate) async fn administrators(host: &Host) -> Result<Option<Units>, ServiceError> {
    if host.os == "macos" || !host.path("/run/systemd/system").is_dir() {
        return Ok(None);
    }
    let service = Service::System { user: Some(host.user.clone()) };
    match states(host, &service).await {
        Ok((Some(socket), Some(unit))) => {
            // systemd loads an installed template for every name in a query.
            let is_this_users =
                |state: &UnitState| state.enabled || !matches!(state.active.as_str(), "inactive" | "not-found");
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

/// Returns the users of the template's loaded instances.
pub(crate) async fn instances(host: &Host, service: &Service) -> Result<Vec<String>, ServiceError> {
    let command = service.systemctl(&["list-units", "--all", "--plain", "--no-legend", "agentd@*.socket"]);
    let ran = host.run(&command).await?;
    let names = ran.stdout.lines().filter_map(|line| line.split_whitespace().next());
    Ok(names.filter_map(|unit| unit.strip_prefix("agentd@")?.strip_suffix(".socket").map(str::to_owned)).collect())
}

/// Returns the client of an instance of the template, at the socket that systemd reports.
pub(crate) async fn client_of(host: &Host, service: &Service, user: &str) -> Option<Client> {
    let unit = format!("agentd@{user}.socket");
    let said = host.said(&service.systemctl(&["show", "--property=Listen", "--value", &unit])).await?;
    Some(Client::new(said.lines().next()?.strip_suffix(" (Stream)")?))
}

/// Queries the daemon behind a client.
pub(crate) async fn running(
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
        sessions: client.list(None).await?.value.sessions,
        said: version.program,
    })
}

/// Returns the running daemons of this service. Starts no daemon.
pub(crate) async fn all_running(
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
    if state.as_ref().is_some_and(UnitState::is_active) {
        let unit = service.service_unit().unwrap_or_else(|| super::manager::LABEL.to_owned());
        return Ok(vec![running(client, Some(unit), None).await?]);
    }
    // If the manager listens, a request would start the service. Otherwise an answering daemon was started
    // without the manager.
    if socket.is_some_and(|socket| socket.is_active())
        || state.is_some_and(|state| state.is_known() && service == &Service::Launchd)
    {
        return Ok(Vec::new());
    }
    match running(client, None, None).await {
        Ok(running) => {
            Ok(vec![Running { unit: unit_of(host, running.pid).filter(|unit| is_instance(unit)), ..running }])
        }
        Err(crate::error::Error::Client(agentd_client::Error::Unreachable { .. })) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Reports whether the user's manager, and so the sessions, outlive the user's logins.
pub(crate) async fn lingers(host: &Host, user: &str) -> bool {
    host.said(&["loginctl", "show-user", user, "--property=Linger", "--value"]).await.as_deref() == Some("yes")
}
