//! Serves a client of `/acp` inside of the daemon, as `agentctl acp` serves an editor.
//!
//! Its calls go to the control endpoint of the same process. Each client has a thread of its own: a hanging directory
//! holds up nothing else.

use std::io;
use std::sync::Arc;
use std::thread;

use agentd_api::acp::{AcpOptions, Outgoing};
use agentd_api::session::SessionSpec;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::host::{Host, Options, REMARKS};
use super::lines::Line;
use super::permission::Shows;
use super::requests::Offers;
use super::seen;
use super::server::Server;
use super::wire::Out;
use crate::connector::{Dial, inside};
use agentd_client::{Client, Terms};

/// Number of messages that wait in each direction. A message can have megabytes.
const QUEUE: usize = 16;

/// Begins to serve a client. Returns the way of the client's messages, one JSON document each, and of those for the
/// client. `remark` gets remarks for the user about a session.
///
/// # Errors
///
/// The thread cannot be started.
pub fn serve(
    options: AcpOptions,
    dial: Dial,
    remark: fn(session: &str, text: &str),
) -> io::Result<(mpsc::Sender<Vec<u8>>, mpsc::Receiver<Outgoing>)> {
    let _ = REMARKS.set(remark);
    let (lines, given) = mpsc::channel(QUEUE);
    let (sender, messages) = mpsc::channel(QUEUE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let AcpOptions { agent, wait, force, degraded } = options;
    let spec = SessionSpec { agent, ..SessionSpec::new("") };
    let options = Arc::new(Options { spec, terms: Terms { wait, force, degraded } });
    let host = Host {
        client: Client::by(inside(dial)),
        starter: None,
        options,
        out: Out::new(sender),
        seen: seen::directory(""),
        shows: Shows::default(),
        offers: Offers::default(),
    };
    thread::Builder::new().name("acp".into()).spawn(move || {
        let local = LocalSet::new();
        let (sender, lines) = mpsc::channel(1);
        local.spawn_local(hand_over(given, sender));
        runtime.block_on(local.run_until(Server::new(host).run(lines)));
    })?;
    Ok((lines, messages))
}

async fn hand_over(mut given: mpsc::Receiver<Vec<u8>>, lines: mpsc::Sender<Line>) {
    while let Some(line) = given.recv().await {
        if lines.send(Line::Complete(line)).await.is_err() {
            return;
        }
    }
}
