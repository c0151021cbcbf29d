//! The keeper: the small process that is an agent's parent.
//!
//! It holds the agent's stdin, stdout and stderr, writes the session's journal, and goes on doing both when the daemon is gone.
//! No async runtime, no HTTP, no plugins: what outlives everything else has little in it that can fail.

mod agent;
mod attributes;
mod bound;
pub mod caller;
mod cgroup;
mod check;
pub mod cli;
mod connection;
mod door;
pub mod enter;
pub mod environment;
mod essential;
mod fifo;
mod flood;
pub mod frame;
pub mod hold;
mod journald;
mod keeper;
mod lines;
mod log;
pub mod look;
mod machine;
pub mod mask;
mod mute;
mod os;
pub mod private;
pub mod protocol;
mod rate;
pub mod run;
mod screen;
mod signals;
mod spawn;
mod terminal;
pub mod tokens;
mod trace;
mod tree;
mod wait;
mod watch;
