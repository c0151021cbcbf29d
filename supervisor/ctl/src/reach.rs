//! Makes sure that a daemon answers before a command calls it.
//!
//! If a service manager has a unit for agentd, that unit is started. A second daemon beside the service would
//! hold the sessions, and the service could not start. A user cannot start the administrator's unit; the
//! command that starts it is shown. Without an installed service, agentctl starts `agentd` itself (`start.rs`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::error::Error;
use crate::service::host::Host;
use crate::service::journal::last_lines;
use crate::service::launchd;
use crate::service::manager::Service;
use crate::service::survey::{self, UnitState, Units};
use crate::service::{ServiceError, repair};
use crate::start::Starter;
use agentd_client::{Client, Error as ClientError};

/// Time limit of a manager's answer about a unit.
const MANAGER: Duration = Duration::from_secs(20);
/// Time without an answer after which the unit's failures are checked.
const SILENCE: Duration = Duration::from_secs(2);
/// Number of failures during the check that is treated as a permanent failure.
const FAILURES: u32 = 2;
/// Time limit for a daemon to create its socket again after the file was removed.
const ANEW: Duration = Duration::from_secs(5);
/// Time limit until a job of launchd listens: `ThrottleInterval` of its property list, and its start.
const LISTENS: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(100);

/// Service that starts agentd for this user.
#[derive(Debug)]
enum Installed {
    Nothing,
    /// Units of systemd: the user's own, or the administrator's for this user.
    Units(Box<Units>),
    /// The user's own units exist, but the user's manager does not answer.
    NoUserManager {
        said: String,
    },
    /// A property list, and whether launchd has loaded it.
    Job {
        plist: PathBuf,
        loaded: bool,
    },
}

/// Makes sure that a daemon answers, and starts one if none does and `starter` is given.
pub(crate) async fn reach(starter: Option<&Starter>, client: &mut Client) -> Result<(), Error> {
    let Some(starter) = starter else { return Ok(client.health().await?) };
    let health = client.clone();
    let mut answer = std::pin::pin!(health.health());
    match timeout(SILENCE, &mut answer).await {
        Ok(Err(error)) if error.is_without_listener() => bring_up(starter, client).await,
        Ok(answered) => answered.map_err(Error::from),
        // While a service fails repeatedly, a request waits at its socket.
        Err(_) => match Host::this() {
            Ok(host) => match installed(&host, client).await {
                Ok(Installed::Units(units)) => answers(&host, &units.service, client).await,
                _ => answer.await.map_err(Error::from),
            },
            Err(_) => answer.await.map_err(Error::from),
        },
    }
    .map_err(unreached)
}

/// Makes the first call of a command that changes nothing. Only without an answer, makes sure that a daemon answers,
/// and makes the call again. An answer of the daemon is final, also if it is a refusal.
pub(crate) async fn first<T>(
    starter: Option<&Starter>,
    client: &mut Client,
    call: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<T, Error> {
    if starter.is_none() {
        return Ok(call(client).await?);
    }
    if let Ok(answer @ (Ok(_) | Err(ClientError::Problem { .. }))) = timeout(SILENCE, call(client)).await {
        return Ok(answer?);
    }
    reach(starter, client).await?;
    Ok(call(client).await?)
}

/// Starts agentd if no daemon listens: through the service manager if a service is installed, otherwise as a
/// child process.
///
/// The administrator's service may listen at another path; `client` is then replaced by the client of that socket.
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

/// Converts an error of the connection into an error with a remedy and the exit status of an unreachable daemon.
fn unreached(error: Error) -> Error {
    match error {
        Error::Service(_) | Error::Setup(_) | Error::Client(ClientError::Broken { .. }) => Error::Managed {
            what: agentd_api::chain(&error),
            hint: error.hint().unwrap_or_else(|| "agentctl doctor looks for the cause".to_owned()),
        },
        other => other,
    }
}

/// Finds the installed service. Changes nothing.
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
            let elsewhere = |listens: &Path| client.way().socket().is_some_and(|path| path != listens);
            if socket.listens.as_deref().is_some_and(elsewhere) {
                // The environment selects another daemon, with its own socket.
                return Ok(Installed::Nothing);
            }
            Ok(Installed::Units(Box::new(Units { service: Service::User, socket, unit })))
        }
        Err(error) if is_enabled(host) => Ok(Installed::NoUserManager { said: agentd_api::chain(&error) }),
        Ok(_) | Err(_) => Ok(Installed::Nothing),
    }
}

/// Reports whether the user's own socket unit is enabled, from its link. Used if the manager does not answer.
fn is_enabled(host: &Host) -> bool {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    if runtime.is_some_and(|runtime| Path::new(&runtime) != Path::new(&format!("/run/user/{}", host.uid))) {
        return false;
    }
    let places = [host.home.join(".config/systemd/user"), host.path("/etc/systemd/user")];
    places.iter().any(|place| place.join("sockets.target.wants/agentd.socket").symlink_metadata().is_ok())
}

/// Starts the installed service through its manager, or reports who can start it.
async fn start(host: &Host, client: &mut Client, installed: Installed) -> Result<(), Error> {
    match installed {
        Installed::Nothing => Ok(()),
        Installed::NoUserManager { said } => Err(Error::Managed {
            what: format!("agentd is a service of your user's systemd, which is not running: {said}"),
            hint: format!(
                "log in as {0}, or let your systemd run without a login: loginctl enable-linger {0}",
                host.user
            ),
        }),
        Installed::Job { plist, loaded } => {
            // A running job without a socket creates the socket again.
            if loaded && survey::job_state(host).await?.is_active() && comes_back(client).await {
                return Ok(());
            }
            launchd::up(host, &plist, loaded).await?;
            answers(host, &Service::Launchd, client).await
        }
        Installed::Units(units) => {
            let Units { service, socket, unit } = *units;
            if let (Service::System { .. }, Some(listens)) = (&service, &socket.listens) {
                // While the administrator's socket was missing, agentctl chose the path of the user's own socket.
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
                    what: format!("the administrator's agentd for you is not running: {stands}"),
                    hint: format!("as root: {}", repair::shell(&commands)),
                }),
                (_, Err(commands)) => Err(Error::Managed {
                    what: format!("your agentd service cannot start: {stands}"),
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

/// Reports whether the daemon creates its removed socket again.
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

/// Waits for the answer of a starting service until the service fails.
async fn answers(host: &Host, service: &Service, client: &Client) -> Result<(), Error> {
    let Some(name) = service.service_unit() else { return listens(client).await };
    let look = || async { survey::unit_state(host, service, &name).await.unwrap_or_default() };
    let mut answer = Box::pin(client.health());
    let before = look().await.restarts;
    // Between two attempts a unit does not show the result of the previous attempt.
    let mut ended: Option<UnitState> = None;
    loop {
        match timeout(SILENCE / 4, &mut answer).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => {
                let unit = look().await;
                if unit.active == "activating" && matches!(error, ClientError::Silent { .. }) {
                    // The service takes longer to start than one request waits; systemd bounds the start.
                    answer.set(client.health());
                    continue;
                }
                return Err(if unit.is_active() { error.into() } else { not_up(host, service, &name, &unit).await });
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

/// Waits until a process listens and answers: the commands of launchd return before the job listens.
async fn listens(client: &Client) -> Result<(), Error> {
    let deadline = Instant::now() + LISTENS;
    loop {
        match client.health().await {
            Err(error) if error.is_without_listener() && Instant::now() < deadline => {
                sleep(PAUSE).await;
            }
            answered => return answered.map_err(Error::from),
        }
    }
}

async fn not_up(host: &Host, service: &Service, name: &str, unit: &UnitState) -> Error {
    Error::NotStarted {
        what: format!("{name} fails at each start: {}", described(unit)),
        hint: "agentctl service logs shows more, agentctl doctor looks for the cause; after the repair the next \
             command starts the service"
            .into(),
        last_lines: last_lines(host, service).await,
        source: None,
    }
}

/// Formats a unit's state, such as `failed (exit-code, status 2)`.
fn described(unit: &UnitState) -> String {
    let status =
        unit.status.filter(|status| *status != 0).map(|status| format!(", status {status}")).unwrap_or_default();
    match unit.result.as_str() {
        "" | "success" => unit.active.clone(),
        result => format!("{} ({result}{status})", unit.active),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use agentd_client::{ListQuery, fields};

    use super::*;

    /// Lists the sessions of a server, and returns the paths of its requests. The server closes as many first
    /// connections as `lost` says, and gives the answer to the others.
    fn listed(lost: usize, status: &str, body: &str) -> (Result<(), Error>, Vec<String>) {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
        let answer = head + body;
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let mut paths = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
                let Some(line) = head.collect::<Vec<_>>().into_iter().next() else { break };
                paths.extend(line.split([' ', '?']).nth(1).map(str::to_owned));
                if paths.len() > lost {
                    stream.write_all(answer.as_bytes()).unwrap();
                }
            }
            paths
        });
        let starter = Starter::beside_this_program().unwrap();
        let mut client = Client::new(&socket);
        let query =
            ListQuery { label: None, phase: None, agent: None, directory: None, condition: None, fields: fields(&[]) };
        let call = async |client: &Client| client.list_all(&query).await;
        let result = crate::runtime().unwrap().block_on(first(Some(&starter), &mut client, call)).map(drop);
        // A connection without a request ends the server.
        drop(std::os::unix::net::UnixStream::connect(&socket).unwrap());
        (result, server.join().unwrap())
    }

    #[test]
    fn a_list_is_the_only_request_of_its_command() {
        let (result, paths) = listed(0, "200 OK", r#"{"sessions":[]}"#);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(paths, ["/v1/sessions"]);
    }

    #[test]
    fn a_refused_list_is_not_asked_again() {
        let (result, paths) = listed(0, "403 Forbidden", r#"{"status":403,"code":"scope-too-small","detail":"no"}"#);
        assert!(matches!(result, Err(Error::Client(ClientError::Problem { .. }))), "{result:?}");
        assert_eq!(paths, ["/v1/sessions"]);
    }

    #[test]
    fn a_list_without_an_answer_is_asked_again_when_a_daemon_answers() {
        let (result, paths) = listed(1, "200 OK", r#"{"sessions":[]}"#);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(paths, ["/v1/sessions", "/healthz", "/v1/sessions"]);
    }
}
