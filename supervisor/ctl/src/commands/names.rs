//! Implements `agentctl names`, which the completion scripts call at each press of Tab: prints names, one a line.
//!
//! A failure is silent, because its message would damage the command line. No daemon is started, ssh asks nothing, and
//! the names come within [`LIMIT`] or not at all.

use std::time::Duration;

use agentd_api::place::HERE;
use agentd_client::Client;
use agentd_remote::{Hosts, THIS};

use super::{Context, chosen_host, environment_text, hosts_file, label, print};
use crate::args::Global;
use crate::args::names::{NameKind, NamesArgs};
use crate::connector::by_ssh;
use crate::error::Error;

/// Time limit. A person waits for the names.
const LIMIT: Duration = Duration::from_secs(2);

/// Prints the names, or nothing.
pub(super) fn names(args: &NamesArgs) -> Result<u8, Error> {
    let found = found(args).unwrap_or_default();
    let lines: String = found.iter().filter(|name| is_plain(name)).flat_map(|name| [name.as_str(), "\n"]).collect();
    print(&lines).map(|()| 0)
}

fn found(args: &NamesArgs) -> Result<Vec<String>, Error> {
    if args.kind == NameKind::Hosts {
        let hosts = Hosts::read(&hosts_file().map_err(Error::Setup)?)?;
        return Ok([THIS.to_owned()].into_iter().chain(hosts.hosts.into_keys()).collect());
    }
    let client = client(&global(&args.line))?;
    crate::runtime()?.block_on(async {
        match tokio::time::timeout(LIMIT, of_daemon(&client, args.kind)).await {
            Ok(names) => names,
            Err(_) => Ok(Vec::new()),
        }
    })
}

async fn of_daemon(client: &Client, kind: NameKind) -> Result<Vec<String>, Error> {
    Ok(match kind {
        NameKind::Agents => client.agents().await?.value.agents.into_iter().map(|agent| agent.name).collect(),
        NameKind::Places => {
            let places = client.places().await?.value.places;
            places.into_iter().map(|place| place.name.to_string()).chain([HERE.to_owned()]).collect()
        }
        NameKind::Sessions => sessions(client).await?,
        NameKind::Hosts => Vec::new(),
    })
}

/// Returns the names of the sessions, and the ids of sessions without a name.
async fn sessions(client: &Client) -> Result<Vec<String>, Error> {
    let sessions = client.sessions(&[]).await?;
    Ok(sessions.iter().map(label).collect())
}

/// Returns the daemon that the options mean. It may be on another machine.
fn client(global: &Global) -> Result<Client, Error> {
    match chosen_host(global, false)? {
        Some(host) => {
            let host = host.program(environment_text("AGENTD_HOST_PROGRAM")).socket(global.socket.clone());
            Ok(Client::by(by_ssh(host.without_start().unattended(LIMIT))))
        }
        None => Ok(Context::new(global, false)?.client),
    }
}

/// Reads the options that choose the daemon. The line is not complete yet, so its other words are ignored.
fn global(line: &[String]) -> Global {
    let mut global = Global { no_start: true, ..Global::default() };
    let mut words = line.iter().skip(1).map(String::as_str).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let (option, value) = word.split_once('=').map_or((word, None), |(option, value)| (option, Some(value)));
        if !["--host", "--socket", "--url", "--token-file"].contains(&option) {
            continue;
        }
        let Some(value) = value.or_else(|| words.next()) else { break };
        match option {
            "--host" => global.host = Some(value.to_owned()),
            "--socket" => global.socket = Some(value.into()),
            "--url" => global.url = Some(value.to_owned()),
            _ => global.token_file = Some(value.into()),
        }
    }
    global
}

/// Reports whether a shell gives no character of a name a meaning. Another daemon may send any text.
fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Global {
        global(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_options_of_an_incomplete_line_choose_the_daemon() {
        let given = of("agentctl --host lab run --socket=/run/x --wrong --place");
        assert_eq!((given.host.as_deref(), given.socket.as_deref()), (Some("lab"), Some("/run/x".as_ref())));
        assert!(given.no_start && given.url.is_none());
        let given = of("agentctl run --url http://[::1]:7 --token-file /t -- x --host lab");
        assert_eq!((given.url.as_deref(), given.host), (Some("http://[::1]:7"), None));
        assert_eq!(of("agentctl run --host").host, None);
    }

    #[test]
    fn a_name_with_a_meaning_for_a_shell_is_not_offered() {
        assert!(["farm", "k3m", "lab.example", "a_b-c"].into_iter().all(is_plain));
        assert!(!["", "-x", "$(id)", "a b", "a;b", "`id`", "ü", "a\nb"].into_iter().any(is_plain));
    }
}
