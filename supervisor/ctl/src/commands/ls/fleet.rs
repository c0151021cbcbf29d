//! Implements `agentctl ls --all-hosts`: the sessions of this machine and of all named machines in one list.
//!
//! The machines are asked side by side, each within the time of `--timeout`. A machine that fails is reported, and all
//! others are listed. No ssh outlives the command.

use std::io::{self, Write as _};
use std::time::Duration;

use agentd_api::session::{SessionList, UnreadableSession};
use agentd_api::staleness::UncheckedSession;
use agentd_remote::{Hosts, RemoteError, SshHost, THIS, side_by_side};
use serde::Serialize;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::{MachineList, Row, Wish, print_stale, sort, watch};
use crate::commands::{Context, environment_text, hosts_file};
use crate::connector::by_ssh;
use crate::error::{Error, exit};
use crate::reach::reach;
use crate::start::Starter;
use agentd_client::{Client, Error as ClientError};
use agentd_client::{ListQuery, Pages};

/// Difference of the time limits of one call and of the whole machine. The limit of the machine comes first, because
/// its error has the better remedy.
const MORE: Duration = Duration::from_secs(1);

/// A machine whose sessions are listed.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Name of the machine in a list of several machines.
    pub(super) host: Option<String>,
    pub(super) client: Client,
    /// Starts the daemon of this machine if none answers.
    pub(super) starter: Option<Starter>,
    /// Time limit of each look at a machine in a list of several.
    pub(super) limit: Option<Duration>,
    ssh: Option<SshHost>,
}

impl Place {
    /// Returns the daemon of a list of one machine. It is known to answer.
    pub(super) fn of_client(client: Client) -> Self {
        Self { host: None, client, starter: None, limit: None, ssh: None }
    }

    /// Returns the error for a look that took too long.
    pub(super) fn late(&self, limit: Duration) -> Error {
        match &self.ssh {
            Some(ssh) => ssh.late(limit).into(),
            None => Error::Client(ClientError::Silent {
                place: self.client.way().to_string(),
                call: "GET /v1/sessions".to_owned(),
                seconds: limit.as_secs(),
            }),
        }
    }

    async fn list(mut self, query: ListQuery, is_stale: bool) -> Result<MachineList, Error> {
        if let Some(starter) = &self.starter {
            reach(Some(starter), &mut self.client).await?;
        }
        if is_stale {
            let document = self.client.list_stale(&query).await?;
            let raw: SessionList<Value> = serde_json::from_slice(&document.raw).map_err(Error::Request)?;
            let SessionList { sessions, unreadable, unchecked, .. } = document.value;
            return Ok(MachineList {
                sessions: sessions.into_iter().zip(raw.sessions).collect(),
                unreadable,
                unchecked,
            });
        }
        let mut pages = Pages::new(query);
        pages.refresh(&self.client).await?;
        MachineList::of(&pages)
    }
}

/// Returns this machine and the named machines.
fn places(context: &Context, limit: Duration) -> Result<Vec<Place>, Error> {
    let program = environment_text("AGENTD_HOST_PROGRAM");
    let hosts = Hosts::read(&hosts_file().map_err(Error::Setup)?)?;
    let mut places = vec![Place {
        host: Some(THIS.to_owned()),
        client: context.client.clone().within(limit.saturating_add(MORE)),
        starter: context.starter.clone(),
        limit: Some(limit),
        ssh: None,
    }];
    for (name, ssh) in hosts.machines()? {
        let ssh = ssh.program(program.clone()).unattended(limit);
        let ssh = if context.no_start { ssh.without_start() } else { ssh };
        places.push(Place {
            host: Some(name),
            client: Client::by(by_ssh(ssh.clone())).within(limit.saturating_add(MORE)),
            starter: None,
            limit: Some(limit),
            ssh: Some(ssh),
        });
    }
    Ok(places)
}

/// Lists the sessions of all machines. A signal ends all work first, and with it each ssh.
pub(super) async fn ls(context: &Context, wish: &Wish) -> Result<u8, Error> {
    let places = places(context, wish.args.timeout.0)?;
    let mut signals = Vec::new();
    for (kind, status) in [
        (SignalKind::interrupt(), exit::CANCELLED),
        (SignalKind::terminate(), exit::TERMINATED),
        (SignalKind::hangup(), exit::HUNG_UP),
    ] {
        signals.push((signal(kind).map_err(Error::Setup)?, status));
    }
    let [(interrupt, cancelled), (terminate, terminated), (hangup, hung_up)] = signals.as_mut_slice() else {
        return Ok(exit::FAILED);
    };
    let work = async { if wish.args.watch { watch::watch(wish, places).await } else { once(wish, places).await } };
    tokio::select! {
        status = work => status,
        _ = interrupt.recv() => Ok(*cancelled),
        _ = terminate.recv() => Ok(*terminated),
        _ = hangup.recv() => Ok(*hung_up),
    }
}

async fn once(wish: &Wish, places: Vec<Place>) -> Result<u8, Error> {
    let (limit, is_stale) = (wish.args.timeout.0, wish.args.stale);
    let looked = side_by_side(places.clone(), limit, |place: Place| place.list(wish.query.clone(), is_stale)).await;
    let results: Vec<(Place, Result<MachineList, Error>)> = places
        .into_iter()
        .zip(looked)
        .map(|(place, looked)| {
            let result = looked.unwrap_or_else(|| Err(place.late(limit)));
            (place, result)
        })
        .collect();
    let rows = results.iter().filter_map(|(place, result)| Some(result.as_ref().ok()?.rows(place.host.as_deref())));
    let form = wish.form.documents();
    if let Some(form) = form {
        let hosts = results.iter().map(|(place, result)| HostView::of(wish, place, result)).collect();
        form.print_value(&FleetView { hosts })?;
    } else if is_stale {
        print_stale(&rows.flatten().collect::<Vec<_>>(), true)?;
    } else {
        wish.print(rows.flatten().collect(), false)?;
    }
    let mut status = None;
    for (place, result) in &results {
        match result {
            Ok(list) => {
                status = Some(0);
                if form.is_none() {
                    list.tell_omitted(place.host.as_deref())?;
                }
            }
            Err(error) => report(place.host.as_deref().unwrap_or_default(), error)?,
        }
    }
    let first = || results.iter().find_map(|(_, result)| result.as_ref().err()).map_or(0, Error::exit_status);
    Ok(status.unwrap_or_else(first))
}

/// Prints the error of one machine as a line on standard error.
pub(super) fn report(host: &str, error: &Error) -> Result<(), Error> {
    let line = format!("agentctl: {}\n", line(host, error));
    io::stderr().write_all(agentd_screen::terminal::for_stderr(&line).as_bytes()).map_err(Error::Output)
}

/// Formats the error of one machine on one line, with the last message of ssh.
pub(super) fn line(host: &str, error: &Error) -> String {
    let last = match error {
        Error::Remote(RemoteError::Unreachable { last_lines, .. }) => last_lines.last(),
        _ => None,
    };
    let last = last.map(|last| format!(": {}", last.trim())).unwrap_or_default();
    format!("{host}: {}{last}", agentd_api::chain(error)).replace('\n', " ")
}

/// The list as a document for programs.
#[derive(Serialize)]
struct FleetView<'a> {
    hosts: Vec<HostView<'a>>,
}

/// A machine in a document for programs.
#[derive(Serialize)]
struct HostView<'a> {
    host: &'a str,
    sessions: Vec<&'a Value>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    unreadable: &'a [UnreadableSession],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    unchecked: &'a [UncheckedSession],
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorView>,
}

impl<'a> HostView<'a> {
    fn of(wish: &Wish, place: &'a Place, result: &'a Result<MachineList, Error>) -> Self {
        let host = place.host.as_deref().unwrap_or_default();
        match result {
            Ok(list) => {
                let mut rows: Vec<Row<'_>> = list.rows(None).collect();
                if wish.args.sort.is_some() {
                    sort(&mut rows, wish.args.sort);
                }
                let sessions = rows.iter().map(|row| row.document).collect();
                Self { host, sessions, unreadable: &list.unreadable, unchecked: &list.unchecked, error: None }
            }
            Err(error) => {
                let error = Some(ErrorView::of(error));
                Self { host, sessions: Vec::new(), unreadable: &[], unchecked: &[], error }
            }
        }
    }
}

/// An error in a document for programs.
#[derive(Debug, Serialize)]
pub(super) struct ErrorView {
    code: String,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl ErrorView {
    pub(super) fn of(error: &Error) -> Self {
        Self { code: error.code(), detail: agentd_api::chain(error), hint: error.hint() }
    }
}
