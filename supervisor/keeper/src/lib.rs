//! The keeper: the small process that is an agent's parent.
//!
//! It holds the agent's stdin, stdout and stderr, writes the session's journal, and goes on doing both when the daemon is gone.
//! No async runtime, no HTTP, no plugins: what outlives everything else has little in it that can fail.

pub mod cli;
pub mod environment;
pub mod frame;
mod os;
pub mod protocol;
pub mod run;
mod signals;
mod spawn;
mod tree;
mod wait;
