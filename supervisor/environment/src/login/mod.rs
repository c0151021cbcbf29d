//! Captures a login: runs the user's login shell and returns the environment that its terminal would have.
//!
//! The shell starts from the variables that a login sets before it (`seed`, `sources`). `attempts` chooses how the
//! shell runs, `shell` and `typed` say how each shell does so, and `capture` runs it and reads the result. Captures
//! are stored and reused elsewhere (`snapshot`).

mod attempts;
pub(crate) mod capture;
pub(crate) mod hooks;
pub(crate) mod printed;
pub(crate) mod quality;
pub(crate) mod seed;
pub(crate) mod shell;
pub mod sources;
mod typed;
