//! Environment scripts. Grant: `script = [patterns]`.
//!
//! A path is absolute, or begins with `{config}`, `{cwd}` or `{session}`.

use super::host;
use crate::{Failure, Variable};

pub use crate::bindings::provider::agentd::plugin::script::Sourced;

/// Where these scripts are, placeholders resolved, in the same order; none for what is not there.
pub fn locate(paths: &[String]) -> Result<Vec<Option<String>>, Failure> {
    host::script::locate(paths)
}

/// Sources a file in a fresh shell that is given only `environment`.
pub fn source(path: &str, environment: &[Variable]) -> Result<Sourced, Failure> {
    host::script::source(path, environment)
}
