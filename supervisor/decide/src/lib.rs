//! Decides the next action of a session from the records in its journal alone.
//!
//! A fold turns the journal's records into a [`state::State`]. Three modules decide from that state:
//!
//! - [`rules`] decides the records that a client's command adds.
//! - [`next`] returns the next step that the session takes by itself.
//! - [`waits`] lists the time limits and decides the records to write when a limit is over.
//!
//! Everything here is pure: no task, no clock and no file. Time comes in as data. The manifest enforces this: the
//! crate depends on neither tokio nor the host.
//!
//! ```text
//!  journal ─► fold ─► State ─┬─ rules::decide (a command) ─┐
//!                            ├─ next::next (the state)     ├─► Batch of records ─► journal
//!                            └─ waits::over (time)         ┘
//! ```

pub mod acp;
mod attention;
pub mod batch;
pub mod completion;
pub mod context;
pub mod current;
mod dialogue;
mod editor;
pub mod exit;
pub mod facts;
mod fold;
mod limit;
pub mod login;
pub mod next;
pub mod note;
pub mod options;
pub mod placed;
pub mod replay;
pub mod repositories;
pub mod rules;
pub mod spec;
pub mod staleness;
pub mod state;
#[cfg(test)]
mod tests;
mod title;
pub mod verdict;
pub mod waits;
pub mod workflow;
