//! What the built-in prerequisites share: hosts, ports and networks as people write them, time that is shared out among what is asked,
//! and the facts that explain a connection that did not come about.
//!
//! Not its job: what an outcome is. Each prerequisite decides that.

pub mod address;
pub mod explain;
pub mod text;
pub mod time;
