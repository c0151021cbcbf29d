//! The box that plugins run in: a component is compiled once in a child process, linked against what it was granted and
//! nothing else, and called in an instance of its own under limits of time, memory and output.
//!
//! This is the only crate that names wasmtime. It knows a session as the few facts a plugin is told, and nothing of how
//! the daemon keeps one; what a plugin may ask of the machine is done by the daemon, through [`Services`].
//!
//! Promises:
//! - A plugin's imports are compared with its [`Grant`] before any of its code runs; one that is not granted is refused by name.
//! - A host call is done only if it is within the grant, within what the plugin says it wants, and not denied.
//! - A call ends within its [`Limits`], host calls included, or fails with an error that names the plugin and the limit.
//! - Nothing is kept from one call to the next, except the compiled code: an instance is used by one call, though it may have been
//!   made before it.
//! - What fails in one plugin leaves every other one working.

mod bindings;
mod builtin;
mod cache;
mod call;
mod code;
mod compile;
mod compiler;
mod convert;
mod epoch;
mod error;
mod grant;
mod host;
mod inspect;
mod limits;
mod linked;
mod passing;
mod plugin;
mod services;
mod settings;
mod state;
mod text;

pub use builtin::{BuiltIn, builtin};
pub use cache::{CompiledError, OnCompile};
pub use call::{
    Call, Change, Description, Effect, Failure, Level, Moment, Outcome, Report, SessionFacts, Setting,
    SettingDescription, Want,
};
pub use code::{Code, UnknownCode};
pub use compile::{CompileError, CompileFiles, compile};
pub use compiler::CompileLimits;
pub use error::{CallError, LoadError};
pub use grant::{
    Admission, Capability, CommandGrant, Grant, Narrowed, PatternError, Places, Refusal, Requested, admit, is_withheld,
    matches as glob, steers, variables_between, variables_line,
};
pub use host::{Host, HostError, HostOptions, Source, Terms};
pub use inspect::Inspection;
pub use limits::Limits;
pub use plugin::{Plugin, World};
pub use services::{
    Allowed, COMMAND_PATH, CONTENT, Completed, ENTRIES, ERRORS, Ending, ExchangeEnding, Exchanged, FileKind, Interface,
    Invocation, Liveness, MachineServices, Metadata, Mounted, NameService, NetworkProblem, RECEIVE, Route, Services,
    Sourced, Step, Variables, Way,
};
pub use settings::SettingsProblem;
