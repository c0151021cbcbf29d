//! The daemon: assembles the other crates, and runs until a signal.
//!
//! It reads the configuration, opens the sessions and the control endpoint, reloads the configuration, monitors its
//! own health and runs the checks of `agentctl doctor`. `docs/internals/layout.md` shows the dependencies between the
//! crates.

mod config_tool;
mod doctor;
mod health;
mod init;
mod log;
mod reload;
mod serve;
mod supervisor;

pub use agentd_control::{AcpPipe, AcpService, Dial, EndpointError};
pub use agentd_host::directories::{Directories, DirectoryError, DirectoryOptions};
pub use agentd_plugin_tool::{PluginTool, plugin_tool};
pub use agentd_session::compatibility;
pub use config_tool::{ConfigTool, config_tool};
pub use init::{InitError, OwnDaemon, hand_over};
pub use serve::{Options, ServeError, serve};

/// Logs a remark about a session for its user.
pub fn remark(session: &str, text: &str) {
    tracing::info!(session, "{text}");
}
