//! The interface of agentd as JSON: resources, events, problems and ids.
//!
//! This crate contains data types only: no I/O, no clock, no policy. Its JSON is stable. Fields are added and
//! never renamed, and readers ignore unknown fields. The daemon's internal types may change freely.

pub mod acp;
pub mod agents;
pub mod audit;
pub mod bulk;
pub mod bytes;
pub mod changes;
pub mod compatibility;
pub mod completion;
pub mod configuration;
pub mod context;
pub mod contract;
pub mod degraded;
pub mod directories;
pub mod doc;
pub mod doctor;
pub mod drain;
pub mod editor;
pub mod elicitation;
pub mod environment;
pub mod error;
pub mod event;
pub mod facts;
pub mod feed;
pub mod hex;
pub mod hint;
pub mod hook;
pub mod id;
pub mod isolation;
pub mod keep;
pub mod label;
pub mod list;
pub mod lock;
pub mod login;
pub mod mcp;
pub mod note;
#[cfg(feature = "schema")]
pub mod openapi;
pub mod options;
pub mod paths;
pub mod permission;
pub mod place;
pub mod plugin;
pub mod plugin_tool;
pub mod prerequisite;
pub mod problem;
pub mod prompt;
pub mod prune;
pub mod quantity;
pub mod readiness;
pub mod reason;
pub mod repository;
pub mod route;
pub mod schedule;
#[cfg(feature = "schema")]
pub mod schema;
pub mod scripts;
pub mod secret;
pub mod session;
pub mod snapshot;
pub mod spec;
pub mod staleness;
pub mod status;
pub mod surrogates;
pub mod validation;
pub mod workflow;
mod workspace;

pub use bytes::ByteString;
pub use error::chain;
pub use event::{Body, Event};
pub use hex::hex;
pub use id::{AgentName, PermissionId, PlaceName, ScheduleName, SessionId, SessionName, TokenName, TurnId};
pub use problem::{Code, Problem};
pub use route::{Call, Route};
