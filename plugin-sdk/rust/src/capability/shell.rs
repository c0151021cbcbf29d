//! The capability `shell-environment`: the user's login shell. Grant: `login-shell = true`.

use super::host;
use crate::{Failure, Variable};

/// Returns the environment that the login shell gives to a program, or the environment that the session starts
/// with instead.
pub fn login() -> Result<Vec<Variable>, Failure> {
    host::shell_environment::login()
}
