//! Messages to the daemon's log, which adds the names of the plugin and the session. The host limits their
//! number and length.
//!
//! Never log a variable's value: it may be a secret.

use std::fmt::Display;

#[cfg(target_arch = "wasm32")]
use crate::bindings::provider::agentd::plugin as host;
#[cfg(not(target_arch = "wasm32"))]
use crate::fake::imports as host;

pub use crate::bindings::provider::agentd::plugin::log::Level;

/// Logs a message at level error.
pub fn error(message: impl Display) {
    write(Level::Error, &message.to_string());
}

/// Logs a message at level warn.
pub fn warn(message: impl Display) {
    write(Level::Warn, &message.to_string());
}

/// Logs a message at level info.
pub fn info(message: impl Display) {
    write(Level::Info, &message.to_string());
}

/// Logs a message at level debug.
pub fn debug(message: impl Display) {
    write(Level::Debug, &message.to_string());
}

/// Sends a message to the host. Without a host, for example in a unit test, the message goes to stderr.
fn write(level: Level, message: &str) {
    host::log::write(level, message);
}

/// Sends the text of panics to the host, which otherwise sees only a trap.
#[doc(hidden)]
pub fn panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| error(panic)));
}
