//! The keeper: the small process that is the parent of one agent.
//!
//! The keeper holds the agent's stdin, stdout and stderr, and writes the session's journal. It continues both without
//! a daemon. The keeper has no async runtime, no HTTP and no plugins, because the process that outlives all others
//! must have few ways to fail.

mod agent;
mod attributes;
mod bound;
mod cgroup;
mod check;
pub mod cli;
mod connection;
mod contents;
mod door;
pub mod enter;
pub mod environment;
mod essential;
mod fifo;
mod fill;
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
pub mod output;
pub mod place;
pub mod private;
pub mod protocol;
mod rate;
pub mod run;
mod screen;
mod signals;
mod spawn;
pub mod standby;
mod terminal;
mod texts;
pub mod tokens;
mod trace;
mod tree;
mod wait;
mod warm;
mod watch;
