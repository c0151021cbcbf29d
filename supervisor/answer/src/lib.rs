//! Answers of agents: collects the text of an answer, finds the JSON document at its end, and checks the document
//! against a JSON Schema.
//!
//! A schema comes from a client and an answer from a model. Both may be hostile: a regular expression or a recursion
//! can take any time and memory. So [`check`] runs in the short-lived child process `agentd check-answer`, which
//! [`child`] starts and bounds. The daemon never evaluates a schema itself.

pub mod check;
pub mod child;
mod collect;
mod document;

pub use collect::Collector;
pub use document::document;
