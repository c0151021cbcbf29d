//! Renders the note that an agent receives before the first prompt after a resume or a restart.
//!
//! The content of a note is data ([`NoteVariables`](agentd_api::note::NoteVariables)), and its form is a
//! [`Template`]: the built-in one or the user's. Pure: the crate reads no file and no clock, and a template cannot
//! either. A template can neither run for long nor take much memory, and its note has a maximum length.
//!
//! Names and texts in the variables come from agents, files and programs. [`text`] makes each of them one safe line
//! before the template sees it.

mod derive;
mod sample;
mod template;
#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the cases and the page are files")]
mod tests;
pub mod text;

pub use derive::derive;
pub use sample::{full_sample, samples};
pub use template::{BUILT_IN, MAX_NOTE, Rendered, Template, TemplateError, render};
