//! A typed client of agentd's control endpoint.
//!
//! Paths, query keys and types of a call come from the table of routes in `agentd-api`. [`Client::ask`] and
//! [`Client::send`] make each call of the table, and further functions of [`Client`] make the usual calls with the time
//! limits of their work.
//!
//! ```no_run
//! use agentd_api::route::call;
//! use agentd_client::{Client, Error};
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::new("/run/user/1000/agentd/control.sock");
//! let agents = client.ask(call::Agents {}).await?.value;
//! println!("{} agents", agents.agents.len());
//! match client.session("fix-the-build").await {
//!     Ok(session) => println!("{:?}", session.value.status.phase),
//!     Err(error) => eprintln!("{}: {error}; {}", error.code(), error.hint().unwrap_or_default()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - **Errors** are values of [`Error`], each with a stable code and mostly a remedy. An answer of another program, a
//!   part of an answer and an answer without an end are errors too.
//! - **Time**: each call has a limit, from the connection to the last byte. Streams have no limit.
//! - **Repeats**: a call that may have had an effect is never repeated. [`patiently`] repeats a read while the daemon
//!   is away, for example during its restart.
//! - **Streams** ([`EventStream`], [`FeedStream`]) continue after their last event when the daemon is back.
//! - **Transports**: the control socket, TCP on this machine with a token, and every connector of the caller
//!   ([`Connect`]).
//!
//! Not responsible for the start of a daemon, and for output. Each call needs a tokio runtime with I/O and time.

mod calls;
mod client;
mod error;
mod list;
mod stream;
mod terms;
mod transport;
mod trust;

pub use client::{Client, Document};
pub use error::{Absence, Error, Foreign, nobody_listens};
pub use list::{ListQuery, Pages, fields};
pub use stream::{
    Body, EventStream, FeedLine, FeedQuery, FeedStream, Next, Patience, Revival, Revive, Reviving, StreamStart,
    patiently,
};
pub use terms::Terms;
pub use transport::{Connect, Connecting, Stream, Way, connect_trusted};
pub use trust::Distrust;
