//! The capability `script`: environment scripts. Grant: `script = [patterns]`.
//!
//! A path is absolute, or begins with `{config}`, `{cwd}` or `{session}`.

use super::host;
use crate::{Failure, Variable};

pub use crate::bindings::provider::agentd::plugin::script::Sourced;

/// Returns the resolved paths of these scripts in the same order, with `None` for each that does not exist.
pub fn locate(paths: &[String]) -> Result<Vec<Option<String>>, Failure> {
    host::script::locate(paths)
}

/// Sources a script in a new shell that has only `environment`.
pub fn source(path: &str, environment: &[Variable]) -> Result<Sourced, Failure> {
    host::script::source(path, environment)
}
