//! Calls whose types are known when a client is compiled.

use super::{Call, Route};

/// A call whose types are known when a client is compiled: each row of the table is one such type in [`super::call`].
pub trait Typed: Into<Call> {
    /// The row of the call.
    const ROUTE: Route;
    /// Body of the request; `()` for a route that reads no body.
    type Body;
    /// Body of the response: the document, [`serde::de::IgnoredAny`] for a response without a body, or [`NoDocument`].
    type Answer;
}

/// A response that is text or a stream, and no single document.
#[derive(Debug, Clone, Copy)]
pub enum NoDocument {}
