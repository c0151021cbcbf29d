//! What the outside of agentd sees: resources, events, problems and ids, as they stand in JSON.
//!
//! Nothing here does anything: no I/O, no clock, no policy. The daemon's own types are free to change; these are not:
//! fields are added, never renamed, and a reader ignores what it does not know.

pub mod audit;
pub mod bytes;
pub mod compatibility;
pub mod configuration;
pub mod doctor;
pub mod drain;
pub mod environment;
pub mod event;
pub mod id;
pub mod isolation;
pub mod keep;
pub mod lock;
pub mod paths;
pub mod permission;
pub mod plugin;
pub mod plugin_tool;
pub mod prerequisite;
pub mod problem;
pub mod quantity;
pub mod reason;
pub mod scripts;
pub mod secret;
pub mod session;
pub mod snapshot;
pub mod surrogates;
pub mod validation;

pub use bytes::ByteString;
pub use event::{Body, Event};
pub use id::{AgentName, PermissionId, SessionId, SessionName, TurnId};
pub use problem::{Code, Problem};
