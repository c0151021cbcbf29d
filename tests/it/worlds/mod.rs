//! Prerequisites against real systems. Each test runs a whole daemon on a machine of its own, with networks, name
//! servers, peers and mounts. The test connects, disconnects and silences them.
//!
//! Almost every test repeats `GET /healthz` while it runs ([`pulse::Pulse`]).

mod licences;
mod mounts;
mod names;
mod network;
pub(crate) mod place;
mod pulse;
mod sessions;
mod stage;
mod world;
