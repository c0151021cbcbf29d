//! Prerequisites against real things: a whole daemon on a machine of its own, with networks, name servers, peers and mounts that come and go,
//! and some of them that do not answer.
//!
//! Almost every one of these tests asks `/healthz` again and again while it runs ([`pulse::Pulse`]).

mod licences;
mod mounts;
mod names;
mod network;
pub(crate) mod place;
mod pulse;
mod sessions;
mod stage;
mod world;
