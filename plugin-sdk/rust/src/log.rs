//! Messages to the daemon's journal, where they stand with the plugin's and the session's name. The host limits their
//! number and length. Never write a variable's value: it may be a secret.

use std::fmt::Display;

#[cfg(target_arch = "wasm32")]
use crate::bindings::provider::agentd::plugin as host;
#[cfg(not(target_arch = "wasm32"))]
use crate::fake::imports as host;

pub use crate::bindings::provider::agentd::plugin::log::Level;

pub fn error(message: impl Display) {
    write(Level::Error, &message.to_string());
}

pub fn warn(message: impl Display) {
    write(Level::Warn, &message.to_string());
}

pub fn info(message: impl Display) {
    write(Level::Info, &message.to_string());
}

pub fn debug(message: impl Display) {
    write(Level::Debug, &message.to_string());
}

/// Without a host, as in a test of a part, it goes to stderr.
fn write(level: Level, message: &str) {
    host::log::write(level, message);
}

/// Sends the text of a panic to the host, which otherwise sees no more than a trap.
#[doc(hidden)]
pub fn panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| error(panic)));
}
