//! The page of agentd: its files, and the server on the loopback that `agentctl ui` runs.
//!
//! ```text
//!  browser ─► http://127.0.0.1:PORT ─► Page ─┬─ /, /assets/...   the embedded files
//!                                            ├─ /ui/login        the token once, for a cookie and a key
//!                                            ├─ /ui/info         what the page shows
//!                                            └─ /host/NAME/v1/.. the daemon of a host, streamed
//! ```
//!
//! A request passes these checks in this order. Each is enough to refuse the request:
//!
//! 1. The process at the other end belongs to this user or root, and is outside of every session.
//! 2. `Host`, `Origin` and `Sec-Fetch-Site` name this server.
//! 3. The cookie and the key are those of the one sign-in, and its time has not ended.
//! 4. With [`Settings::is_read_only`], the method is `GET` or `HEAD`.
//!
//! The daemon decides about the call itself. Not responsible for the start of a daemon and for the browser.

mod answer;
mod assets;
mod door;
mod origin;
mod proxy;
mod refusal;
mod router;
mod server;

use std::time::Duration;

use agentd_client::Client;

pub use agentd_caller::is_inside_session;
pub use server::{Page, Stage};

/// A daemon that the page shows.
#[derive(Debug, Clone)]
pub struct Host {
    /// Name in paths: letters, digits and `-._~`, which need no escape.
    pub name: String,
    /// Name for people.
    pub label: String,
    /// The way to the daemon.
    pub client: Client,
    /// Words after `agentctl` with which a command on this machine reaches the daemon.
    pub options: Vec<String>,
    /// URL that opens a file of the host in the person's editor, with `{path}` and perhaps `{line}`.
    pub editor: Option<String>,
}

/// Contents and times of a page.
#[derive(Debug)]
pub struct Settings {
    /// The daemons, the first of which the page opens with.
    pub hosts: Vec<Host>,
    /// Refuses every call that could change something.
    pub is_read_only: bool,
    /// Version of the program.
    pub version: String,
    /// Time in which the token must be used.
    pub token_life: Duration,
    /// Time from the sign-in to its end.
    pub life: Duration,
}
