//! Serves the Agent Client Protocol on standard input and output: an editor starts `agentctl acp` in place of an agent,
//! and its sessions are those of agentd.
//!
//! ```text
//! editor ── JSON-RPC lines ── server ── session (one task each) ── HTTP ── agentd ── keeper ── agent
//! ```
//!
//! Each session reads its journal: for `session/load` from the beginning, then live. The editor's requests are calls of
//! the control endpoint, as those of every other command. Several editors and terminals can have one session open.
//!
//! The end of standard input leaves every session unchanged, and so do `session/close`, SIGTERM and SIGKILL: an editor
//! ends its agents when it ends. Standard output has nothing but messages; remarks go to standard error.
//!
//! Not responsible for the content: an agent's update is passed on unchanged.

mod command;
mod content;
mod directories;
mod history;
mod host;
mod lines;
mod list;
mod outcome;
mod permission;
mod refusal;
mod remote;
mod requests;
mod seen;
mod server;
mod servers;
mod session;
mod settings;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::start::Starter;
use agentd_client::Client;
use host::Host;
pub(crate) use host::Options;
use permission::Shows;
pub use remote::serve as serve_inside;
use requests::Offers;
use server::Server;
use wire::Out;

/// Time limit of the last messages to an editor that does not read them.
const LAST: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// Serves until standard input ends or standard output is closed.
pub(crate) async fn serve(client: Client, starter: Option<Starter>, options: Options) -> Result<(), Error> {
    let lines = lines::read(std::io::stdin()).map_err(Error::Setup)?;
    let (sender, writer) = lines::write(std::io::stdout()).map_err(Error::Setup)?;
    let (seen, shows, offers) = (seen::directory(""), Shows::default(), Offers::default());
    let host = Host { client, starter, options: Arc::new(options), out: Out::new(sender), seen, shows, offers };
    LocalSet::new().run_until(Server::new(host).run(lines)).await;
    let since = Instant::now();
    while !writer.is_finished() && since.elapsed() < LAST {
        sleep(PAUSE).await;
    }
    Ok(())
}
