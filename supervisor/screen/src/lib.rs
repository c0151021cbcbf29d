//! Text for a terminal: made harmless, painted, in tables, and Markdown.
//!
//! Knows nothing of sessions. Prints nothing itself.

pub mod change;
pub mod markdown;
pub mod painted;
pub mod table;
pub mod terminal;
