//! Implements `agentctl ui`: serves the page on the loopback and opens it in a browser, until Ctrl-C.

mod browser;
mod editor;
mod revive;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use agentd_api::route::call;
use agentd_api::{Code, Problem};
use agentd_client::{Client, Way};
use agentd_remote::{Hosts, THIS};
use agentd_ui::{Host, Page, Settings, Stage};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::signal::unix::{SignalKind, signal};

use super::{Context, default_socket, environment_text, hosts_file, print, tell};
use crate::args::ui::UiArgs;
use crate::connector::by_ssh;
use crate::error::Error;

use browser::Browser;
use editor::Editor;

/// Time in which the browser must sign in.
const TOKEN: Duration = Duration::from_mins(5);
/// Shortest life of a sign-in.
const SHORTEST: Duration = Duration::from_secs(1);

/// Serves the page until a signal.
pub(super) async fn ui(context: &Context, args: &UiArgs) -> Result<u8, Error> {
    if args.life.0 < SHORTEST {
        return Err(Error::Usage {
            detail: "--for is shorter than a second".to_owned(),
            hint: "a sign-in lasts at least 1s".to_owned(),
        });
    }
    owner_only(&context.client).await?;
    let file = hosts_file().map_err(Error::Setup)?;
    let editor = Editor::find(args.editor.as_deref(), &file.with_file_name(editor::FILE))?;
    let settings = Settings {
        hosts: hosts(context, &file, &editor)?,
        is_read_only: args.read_only,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        token_life: TOKEN,
        life: args.life.0,
    };
    // Before the page exists, so that a signal cannot leave its file behind.
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        signals.push(signal(kind).map_err(Error::Setup)?);
    }
    let uid = nix::unistd::getuid().as_raw();
    let ports =
        args.port.map_or_else(|| vec![usual_port(uid, &context.client.way().to_string()), 0], |port| vec![port]);
    let page = Page::bind(settings, &ports).await.map_err(|source| not_bound(&ports, source))?;
    show(context, &page, args)?;
    let browser = if args.no_open { None } else { opened(&page)? };
    let [interrupt, terminate, hangup] = signals.as_mut_slice() else { return Ok(0) };
    tokio::select! {
        () = page.serve() => Ok(0),
        () = revive::revive(context.client.clone(), context.starter.clone()) => Ok(0),
        ended = follow(&page, browser) => ended.map(|()| 0),
        _ = interrupt.recv() => Ok(0),
        _ = terminate.recv() => Ok(0),
        _ = hangup.recv() => Ok(0),
    }
}

/// Refuses an agent: as the daemon does over its socket, and as this process sees itself over any other way. The
/// daemon answers this call to its owner only.
async fn owner_only(client: &Client) -> Result<(), Error> {
    let is_inside = || agentd_ui::is_inside_session() != Some(false);
    if !matches!(client.way(), Way::Socket(_)) && is_inside() {
        let problem = Problem::new(Code::InSession, "agentctl ui is for people, and this process is inside a session");
        return Err(problem.hint("run agentctl ui outside of the sessions").into());
    }
    client.ask(call::Version {}).await?;
    Ok(())
}

/// Returns the hosts of the page: that of the command, then this machine and the named machines.
fn hosts(context: &Context, file: &Path, editor: &Editor) -> Result<Vec<Host>, Error> {
    let known = Hosts::read(file)?;
    // Without words a command is for the default machine.
    let ours = if known.default.is_some() { vec!["--host".to_owned(), THIS.to_owned()] } else { Vec::new() };
    let Some(chosen) = context.client.way().machine() else {
        let options = if context.options.is_empty() { ours } else { context.options.clone() };
        let mut hosts = vec![here(context.client.clone(), options, editor)];
        // --socket and --url choose one daemon alone.
        if context.client.way().socket() == Some(&default_socket()) {
            add_named(&mut hosts, &known, context, editor)?;
        }
        return Ok(hosts);
    };
    let destination = known.find(chosen)?.map(|ssh| ssh.destination().to_owned());
    let first = Host {
        name: in_path(chosen),
        label: chosen.to_owned(),
        options: context.options.clone(),
        client: context.client.clone(),
        editor: editor.url(destination.as_deref()),
    };
    let mut hosts = vec![first, here(Client::new(default_socket()), ours, editor)];
    add_named(&mut hosts, &known, context, editor)?;
    Ok(hosts)
}

/// Returns this machine.
fn here(client: Client, options: Vec<String>, editor: &Editor) -> Host {
    Host { name: THIS.to_owned(), label: "this machine".to_owned(), options, client, editor: editor.url(None) }
}

/// Adds the named machines that are not there yet.
fn add_named(hosts: &mut Vec<Host>, known: &Hosts, context: &Context, editor: &Editor) -> Result<(), Error> {
    for (name, ssh) in known.machines()? {
        if hosts.iter().any(|host| host.label == name) {
            continue;
        }
        let editor = editor.url(Some(ssh.destination()));
        let ssh = ssh.program(environment_text("AGENTD_HOST_PROGRAM")).asking_nothing();
        let ssh = if context.no_start { ssh.without_start() } else { ssh };
        let options = vec!["--host".to_owned(), name.clone()];
        hosts.push(Host { name: name.clone(), label: name, options, client: Client::by(by_ssh(ssh)), editor });
    }
    Ok(())
}

/// Returns a name without characters that a path would escape. The names of `hosts.toml` have no such characters and no
/// `~`.
fn in_path(name: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
    name.chars().map(|char| if is_plain(char) { char } else { '~' }).collect()
}

/// Returns the port that the page of this user and daemon has each time, if it is free. A browser keeps typed text,
/// settings and the permission for notifications by port.
///
/// The range is below the ports of outgoing connections: 32768 and above on Linux (ip(7), `ip_local_port_range`), 49152
/// and above on macOS.
fn usual_port(uid: u32, place: &str) -> u16 {
    let digest = Sha256::digest(format!("{uid} {place}"));
    20_000 + u16::from_be_bytes([digest[0], digest[1]]) % 10_000
}

fn not_bound(ports: &[u16], source: io::Error) -> Error {
    let [port] = ports else { return Error::Setup(source) };
    if source.kind() != io::ErrorKind::AddrInUse {
        return Error::Setup(source);
    }
    Error::Usage {
        detail: format!("another program listens on port {port}"),
        hint: "give another port, or leave --port out".to_owned(),
    }
}

/// Prints the address.
fn show(context: &Context, page: &Page, args: &UiArgs) -> Result<(), Error> {
    let (url, port) = (page.url(), page.port());
    if context.json {
        return context.print_value(&json!({
            "url": url,
            "port": port,
            "token_expires": page.ends(),
            "read_only": args.read_only,
        }));
    }
    print(&format!("{url}\n"))?;
    tell(&format!("The address opens the page once, within {} minutes. Ctrl-C ends the page.", TOKEN.as_secs() / 60))?;
    if environment_text("SSH_CONNECTION").is_some() {
        tell(&format!("For a browser on another machine, run there: ssh -L {port}:127.0.0.1:{port} MACHINE"))?;
    }
    Ok(())
}

/// Opens the browser. Without one the address that was printed is enough.
fn opened(page: &Page) -> Result<Option<Browser>, Error> {
    let uid = nix::unistd::getuid().as_raw();
    let runtime = agentd_api::paths::runtime_directory(|name| std::env::var_os(name), uid, Path::exists);
    let users = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let directories: Vec<PathBuf> = [Some(runtime), users, Some(std::env::temp_dir())].into_iter().flatten().collect();
    match browser::open(&page.url(), &directories) {
        Ok(browser) => Ok(Some(browser)),
        Err(error) => {
            tell(&format!("No browser was opened: {}", agentd_api::chain(&error)))?;
            Ok(None)
        }
    }
}

/// Reports the stages of the page, and removes the browser's file after the sign-in. Returns when no browser
/// can sign in any more.
async fn follow(page: &Page, browser: Option<Browser>) -> Result<(), Error> {
    let mut stage = page.stage();
    let (mut program, mut file) = browser.map_or((None, None), |browser| (Some(browser.program), Some(browser.file)));
    loop {
        let now = *stage.borrow_and_update();
        match now {
            Stage::Waiting => {}
            Stage::Unused => {
                return Err(Error::Hopeless {
                    detail: format!("no browser opened the page within {} minutes", TOKEN.as_secs() / 60),
                    hint: "run agentctl ui again".to_owned(),
                });
            }
            Stage::SignedIn => drop(file.take()),
            Stage::SignedOut => tell("The browser is signed out. Run agentctl ui again to sign in.")?,
        }
        tokio::select! {
            _ = stage.changed() => {}
            status = ended(program.as_mut()) => {
                program = None;
                if !status.is_some_and(|status| status.success()) && now == Stage::Waiting {
                    tell("The browser reported a failure; open the address yourself.")?;
                }
            }
        }
    }
}

/// Waits for the end of the browser's program.
async fn ended(program: Option<&mut tokio::process::Child>) -> Option<ExitStatus> {
    match program {
        Some(program) => program.wait().await.ok(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_and_daemon_has_its_port_again() {
        let port = usual_port(1000, "/run/user/1000/agentd/control.sock");
        assert_eq!(port, usual_port(1000, "/run/user/1000/agentd/control.sock"));
        assert!((20_000..30_000).contains(&port));
        let others = [usual_port(1001, "/run/user/1000/agentd/control.sock"), usual_port(1000, "lab")];
        assert!(!others.contains(&port));
    }

    #[test]
    fn the_name_of_a_host_needs_no_escape_in_a_path() {
        for (name, expected) in [("lab-1.example", "lab-1.example"), ("kim@lab", "kim~lab"), ("ssh://a:2", "ssh~~~a~2")]
        {
            assert_eq!(in_path(name), expected);
        }
    }
}
