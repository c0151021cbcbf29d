//! Which environment variables hold secrets, told by their names and, for a few shapes that nothing else has, by their values.
//!
//! One rule, for the plugin that decides what an agent gets and for the daemon that decides what is stored and shown: were
//! there two, a variable that one of them lets through by its name would be stored in clear by the other. It does not decide
//! what becomes of a secret. It errs on the side of "secret": that costs a line in a list of names, the other a password.

mod encoded;
mod names;
mod pairs;
mod tokens;
mod urls;
mod values;

pub use names::is_secret_name;
pub use values::{is_secret_value, password};

/// Whether the variable is treated as a secret: by its name or by its value.
pub fn is_secret(name: &str, value: &[u8]) -> bool {
    is_secret_name(name) || is_secret_value(value)
}
