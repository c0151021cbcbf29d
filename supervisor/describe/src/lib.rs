//! Texts for people about a session: its failure, its questions, its result and what it lacks.
//!
//! Each text is derived from documents of the control endpoint. Nothing here acts: no call, no file and no clock.

pub mod completion;
pub mod details;
pub mod failure;
pub mod form;
pub mod prerequisite;
pub mod session;
