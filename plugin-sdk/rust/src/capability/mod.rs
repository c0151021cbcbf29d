//! Functions that the host provides to a plugin: one module for each capability.
//!
//! A function that a plugin does not call leaves no import in its component. Every call ends by the deadline of
//! the plugin's call.

pub mod clock;
pub mod command;
pub mod file;
pub mod mount;
pub mod network;
pub mod process;
pub mod script;
pub mod secret;
pub mod shell;

/// The host's functions under the names of the interface. In a test, those of [`crate::fake`].
#[cfg(target_arch = "wasm32")]
use crate::bindings::provider::agentd::plugin as host;
#[cfg(not(target_arch = "wasm32"))]
use crate::fake::imports as host;

/// Converts a duration into milliseconds, the unit of the interface.
fn milliseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
