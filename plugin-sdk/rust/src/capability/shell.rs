//! The user's login shell. Grant: `login-shell = true`.

use super::host;
use crate::{Failure, Variable};

/// Its environment, as the shell gives it to a program that it starts; or what the session begins with in its place.
pub fn login() -> Result<Vec<Variable>, Failure> {
    host::shell_environment::login()
}
