//! The plugin host. It compiles each component once in a child process and links only granted imports. Each
//! call runs in its own instance, with limits of time, memory and output.
//!
//! No other crate uses wasmtime. The crate knows of a session only the facts that a plugin receives. The
//! daemon performs what plugins request from the machine, through [`Services`].
//!
//! Guarantees:
//!
//! - A plugin's imports are compared with its [`Grant`] before any of its code runs. A refusal names the
//!   import.
//! - A host call succeeds only if the grant and the plugin's wants cover it, and no denial does.
//! - A call, including its host calls, ends within its [`Limits`]. Otherwise it fails with an error that names
//!   the plugin and the limit.
//! - Calls share nothing but compiled code. An instance serves one call, though it may be created in advance.
//! - A failure in one plugin does not affect other plugins.

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
mod memory;
mod passing;
mod plugin;
mod services;
mod settings;
mod state;
mod text;

pub use agentd_glob::matches as glob;
pub use builtin::{BuiltIn, builtin};
pub use cache::{CompiledError, OnCompile};
pub use call::{
    Call, Change, CheckMoment, CheckOutcome, Description, Effect, Failure, LogLevel, Report, SessionFacts, Setting,
    SettingDescription,
};
pub use code::{Code, UnknownCode};
pub use compile::{CompileError, CompileFiles, compile};
pub use compiler::CompileLimits;
pub use error::{CallError, LoadError};
pub use grant::{
    Admission, Capability, CommandGrant, ComponentRequests, Grant, PatternError, Places, Refusal, UncoveredPattern,
    Want, admit, is_withheld, steers, variables_between, variables_line,
};
pub use host::{Host, HostError, HostOptions, LoadTerms, Source};
pub use inspect::Inspection;
pub use limits::Limits;
pub use plugin::{Plugin, World};
pub use services::{
    COMMAND_PATH, CONTENT, ENTRIES, ERRORS, ExchangeEnding, ExchangeResult, FileKind, Interface, Invocation, Liveness,
    MachineServices, Metadata, MountEntry, NameService, NetworkProblem, PathFilter, ProgramEnding, ProgramResult,
    RECEIVE, Route, RouteTo, Services, SourcedScript, Step, Variables,
};
pub use settings::SettingsProblem;
