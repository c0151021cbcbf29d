//! Makes sure that a daemon answers before a command asks it something.
//!
//! Where a service manager has a unit for it, that unit is started and no daemon beside it: such a stray daemon would hold the sessions, and
//! the service could not come back. A unit of the administrator's is not this user's to start; the command that starts it is shown.
//! Only where nothing is installed does agentctl start `agentd` itself (`start.rs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::service::host::Host;
use super::service::launchd;
use super::service::manager::Service;
use super::service::survey::{self, State, Units};
use super::service::{ServiceError, last_lines, repair};
use super::{Context, nobody_listens};
use crate::client::Client;
use crate::error::{Error, told};
use crate::start::Starter;
use crate::way::Way;

/// How long a manager may take to say how a unit stands.
const MANAGER: Duration = Duration::from_secs(20);
/// After this much silence it is looked at whether the service fails again and again.
const SILENCE: Duration = Duration::from_secs(2);
/// As many failures, while it is looked, are no accident.
const FAILURES: u32 = 2;
/// How long a daemon may take to make a socket anew whose file was removed.
const ANEW: Duration = Duration::from_secs(5);
/// How long a job of launchd may take until it listens: `ThrottleInterval` of its property list, and its start.
const LISTENS: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(100);

/// What starts agentd for this user.
#[derive(Debug)]
enum Installed {
    Nothing,
    /// Units of systemd: the user's own, or the administrator's for this user.
    Units(Box<Units>),
    /// The user's own units, and a manager that cannot be asked.
    NoUserManager {
        said: String,
    },
    /// A property list, and whether launchd has loaded it.
    Job {
        plist: PathBuf,
        loaded: bool,
    },
}

impl Context {
    /// Makes sure that a daemon answers, and starts one if none does.
    pub(super) async fn reach(&mut self) -> Result<(), Error> {
        let Some(starter) = &self.starter else { return self.client.health().await };
        let health = self.client.clone();
        let mut answer = std::pin::pin!(health.health());
        match timeout(SILENCE, &mut answer).await {
            Ok(Err(Error::Unreachable { source, .. })) if nobody_listens(&source) => {
                bring_up(starter, &mut self.client).await
            }
            Ok(answered) => answered,
            // A service that fails again and again lets a request wait at its socket.
            Err(_) => match Host::this() {
                Ok(host) => match installed(&host, &self.client).await {
                    Ok(Installed::Units(units)) => answers(&host, &units.service, &self.client).await,
                    _ => answer.await,
                },
                Err(_) => answer.await,
            },
        }
        .map_err(unreached)
    }
}

/// Starts agentd where no daemon listens: through the service manager if a service is installed, otherwise as a child of its own.
///
/// The service of the administrator may listen elsewhere than the client looked; `client` is then that of its socket.
pub(crate) async fn bring_up(starter: &Starter, client: &mut Client) -> Result<(), Error> {
    // A user without a home has no units either.
    let Ok(host) = Host::this() else { return starter.start(client).await };
    let brought = match installed(&host, client).await {
        Ok(Installed::Nothing) => starter.start(client).await,
        Ok(other) => start(&host, client, other).await,
        Err(error) => Err(error),
    };
    brought.map_err(unreached)
}

/// An error of the way to the daemon, as one that says what to do and has the exit status for it.
fn unreached(error: Error) -> Error {
    match error {
        Error::Service(_) | Error::Setup(_) | Error::Broken { .. } => Error::Managed {
            what: told(&error),
            hint: error.hint().unwrap_or_else(|| "agentctl doctor looks for the cause".to_owned()),
        },
        other => other,
    }
}

/// Looks, and changes nothing.
async fn installed(host: &Host, client: &Client) -> Result<Installed, Error> {
    if host.os == "macos" {
        let plist = launchd::plist(host);
        if !plist.exists() {
            return Ok(Installed::Nothing);
        }
        return Ok(Installed::Job { loaded: survey::job_state(host).await?.is_known(), plist });
    }
    if !host.path("/run/systemd/system").is_dir() {
        return Ok(Installed::Nothing);
    }
    let looked = timeout(MANAGER, units(host, client)).await;
    looked.map_err(|_| no_answer("systemctl show agentd.socket".to_owned()))?
}

fn no_answer(command: String) -> Error {
    ServiceError::Hangs { command, seconds: MANAGER.as_secs() }.into()
}

async fn units(host: &Host, client: &Client) -> Result<Installed, Error> {
    let is_told_elsewhere = std::env::var_os("RUNTIME_DIRECTORY").is_some();
    if let Some(units) = survey::administrators(host).await?.filter(|_| !is_told_elsewhere) {
        return Ok(Installed::Units(Box::new(units)));
    }
    match survey::states(host, &Service::User).await {
        Ok((Some(socket), Some(unit))) if socket.is_known() => {
            let elsewhere = |listens: &Path| matches!(client.way(), Way::Socket(path) if path != listens);
            if socket.listens.as_deref().is_some_and(elsewhere) {
                // The environment says that another daemon is meant, with a socket of its own.
                return Ok(Installed::Nothing);
            }
            Ok(Installed::Units(Box::new(Units { service: Service::User, socket, unit })))
        }
        Err(error) if is_enabled(host) => Ok(Installed::NoUserManager { said: told(&error) }),
        Ok(_) | Err(_) => Ok(Installed::Nothing),
    }
}

/// Whether the user's own socket unit is enabled, by its link: where the manager cannot be asked.
fn is_enabled(host: &Host) -> bool {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    if runtime.is_some_and(|runtime| Path::new(&runtime) != Path::new(&format!("/run/user/{}", host.uid))) {
        return false;
    }
    let places = [host.home.join(".config/systemd/user"), host.path("/etc/systemd/user")];
    places.iter().any(|place| place.join("sockets.target.wants/agentd.socket").symlink_metadata().is_ok())
}

/// Has the manager start what it has, or says who can.
async fn start(host: &Host, client: &mut Client, installed: Installed) -> Result<(), Error> {
    match installed {
        Installed::Nothing => Ok(()),
        Installed::NoUserManager { said } => Err(Error::Managed {
            what: format!("agentd is a service of your systemd, which does not run: {said}"),
            hint: format!(
                "log in as {0}, or have your systemd run without a login: loginctl enable-linger {0}",
                host.user
            ),
        }),
        Installed::Job { plist, loaded } => {
            // A job that runs and has lost its socket makes the socket anew.
            if loaded && survey::job_state(host).await?.is_active() && comes_back(client).await {
                return Ok(());
            }
            launchd::up(host, &plist, loaded).await?;
            answers(host, &Service::Launchd, client).await
        }
        Installed::Units(units) => {
            let Units { service, socket, unit } = *units;
            if let (Service::System { .. }, Some(listens)) = (&service, &socket.listens) {
                // While its socket was missing, agentctl looked for one of the user's own.
                *client = Client::new(listens.clone());
            }
            if socket.is_active() && unit.is_up() && comes_back(client).await {
                return Ok(());
            }
            let commands = repair::listens(&service, &socket, &unit);
            let stands = format!(
                "{} is {}, {} is {}",
                service.socket_unit().unwrap_or_default(),
                socket.active,
                service.service_unit().unwrap_or_default(),
                described(&unit)
            );
            match (&service, commands) {
                (Service::System { .. }, Ok(commands) | Err(commands)) => Err(Error::Managed {
                    what: format!("the administrator runs agentd for you, and it does not run: {stands}"),
                    hint: format!("as root: {}", repair::shell(&commands)),
                }),
                (_, Err(commands)) => Err(Error::Managed {
                    what: format!("agentd is your service, and it was kept from starting: {stands}"),
                    hint: repair::shell(&commands),
                }),
                (_, Ok(commands)) => {
                    for command in &commands {
                        let ran = timeout(MANAGER, host.run(command)).await;
                        let line = repair::shell(std::slice::from_ref(command));
                        let ran = ran.map_err(|_| no_answer(line.clone()))??;
                        if !ran.success {
                            return Err(ServiceError::Failed { command: line, said: ran.complaint }.into());
                        }
                    }
                    answers(host, &service, client).await
                }
            }
        }
    }
}

/// Whether the daemon makes a socket anew that somebody removed.
async fn comes_back(client: &Client) -> bool {
    let deadline = Instant::now() + ANEW;
    while Instant::now() < deadline {
        if client.health().await.is_ok() {
            return true;
        }
        sleep(PAUSE).await;
    }
    false
}

/// Waits for the answer of a service that starts, for as long as it does not fail.
async fn answers(host: &Host, service: &Service, client: &Client) -> Result<(), Error> {
    let Some(name) = service.service_unit() else { return listens(client).await };
    let look = || async { survey::unit_state(host, service, &name).await.unwrap_or_default() };
    let mut answer = Box::pin(client.health());
    let before = look().await.restarts;
    // Between two attempts a unit does not show how the one before ended.
    let mut ended: Option<State> = None;
    loop {
        match timeout(SILENCE / 4, &mut answer).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => {
                let unit = look().await;
                if unit.active == "activating" && matches!(error, Error::Silent { .. }) {
                    // It takes longer to start than one request waits; systemd bounds the start.
                    answer.set(client.health());
                    continue;
                }
                return Err(if unit.is_active() { error } else { not_up(host, service, &name, &unit).await });
            }
            Err(_) => {
                let unit = look().await;
                let is_over = unit.active == "failed" || unit.restarts.saturating_sub(before) >= FAILURES;
                if !matches!(unit.result.as_str(), "" | "success") {
                    ended = Some(unit.clone());
                }
                if is_over {
                    return Err(not_up(host, service, &name, ended.as_ref().unwrap_or(&unit)).await);
                }
            }
        }
    }
}

/// Waits until somebody listens and answers: launchd returns from its commands before its job does.
async fn listens(client: &Client) -> Result<(), Error> {
    let deadline = Instant::now() + LISTENS;
    loop {
        match client.health().await {
            Err(Error::Unreachable { source, .. }) if nobody_listens(&source) && Instant::now() < deadline => {
                sleep(PAUSE).await;
            }
            answered => return answered,
        }
    }
}

async fn not_up(host: &Host, service: &Service, name: &str, unit: &State) -> Error {
    Error::NotStarted {
        what: format!("{name} fails each time it is started: it is {}", described(unit)),
        hint: "agentctl service logs has more, agentctl doctor looks for the cause; once that is repaired the next command starts it again".into(),
        last_lines: last_lines(host, service).await,
        source: None,
    }
}

/// `failed (exit-code, status 2)`.
fn described(unit: &State) -> String {
    let status =
        unit.status.filter(|status| *status != 0).map(|status| format!(", status {status}")).unwrap_or_default();
    match unit.result.as_str() {
        "" | "success" => unit.active.clone(),
        result => format!("{} ({result}{status})", unit.active),
    }
}
