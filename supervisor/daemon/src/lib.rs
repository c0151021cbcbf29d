//! The supervisor: sessions, their environment, and the control endpoint.
//!
//! Arrows point one way: `control → doctor → session → {prerequisite → env, workspace, acp, launch} → plugin host, journal → api`. `session` never names
//! `control`; hyper stands only in `control`, the names of operating systems only in `platform` and `launch`.

mod acp;
mod audit;
pub mod capability;
mod config;
mod config_tool;
mod control;
mod directories;
mod doctor;
mod drain;
mod env;
mod frame;
mod guest;
mod health;
mod init;
mod isolation;
mod launch;
mod lock;
mod log;
mod manager;
mod message;
mod platform;
mod plugin_tool;
mod plugins;
mod prerequisite;
mod pulse;
mod reload;
mod runner;
mod scarce;
mod serve;
mod session;
mod standing;
mod store;
mod tcp;
mod workspace;
mod world;

use agentd_api::compatibility::Compatibility;

pub use config_tool::{ConfigTool, config_tool};
pub use control::EndpointError;
pub use directories::{DirectoryError, Places};
pub use init::{InitError, hand_over};
pub use plugin_tool::{PluginTool, plugin_tool};
pub use serve::{Options, ServeError, serve};

/// What this build can take over from another.
pub fn compatibility() -> Compatibility {
    Compatibility {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        keeper_protocols: vec![agentd_keeper::protocol::PROTOCOL],
        session_documents: vec![session::DOCUMENT_VERSION],
        trust_records: env::TRUST_VERSIONS.to_vec(),
        environments: env::ENVIRONMENT_VERSIONS.to_vec(),
    }
}
