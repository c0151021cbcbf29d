//! Decides which environment variables hold secrets: by their names and, for a few unmistakable shapes, by
//! their values.
//!
//! The plugin that filters an agent's environment and the daemon that stores and shows variables share this
//! rule. With two rules, the daemon could store in clear text a variable that the plugin lets through.
//!
//! The rule does not decide what happens to a secret. In doubt it answers "secret": a wrong "secret" costs a
//! line in a list of names, a wrong "no secret" costs a password.

mod encoded;
mod names;
mod pairs;
mod tokens;
mod urls;
mod values;

pub use names::is_secret_name;
pub use values::{is_secret_value, password};

/// Reports whether the variable is treated as a secret because of its name or its value.
pub fn is_secret(name: &str, value: &[u8]) -> bool {
    is_secret_name(name) || is_secret_value(value)
}
