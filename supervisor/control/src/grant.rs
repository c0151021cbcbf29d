//! The calls that a connection or a token permits, in addition to the access of its caller ([`crate::access`]). Both
//! conditions must hold: a token gives a process no more rights than its caller has, and the caller no more than the
//! token has.
//!
//! A grant ends when a reload removes its token or its socket. Streams and waiting requests end with their grant.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use agentd_api::route::Scope;
use agentd_api::{Call, Code, Problem, Route, TokenName};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::Body;

/// The right of a request to be answered.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) scope: Scope,
    pub(crate) source: GrantSource,
    /// Cancelled when the grant has ended.
    pub(crate) revoked: CancellationToken,
}

/// Origin of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GrantSource {
    /// The control socket, where the kernel identifies the caller.
    Kernel,
    /// The token of `control.token`.
    OwnToken,
    /// A token of `control.tokens`.
    Token(TokenName),
    /// The read-only socket.
    ReadOnly(Arc<Path>),
}

impl Grant {
    /// Returns the grant of the control socket. It never ends.
    pub(crate) fn of_kernel() -> Self {
        Self { scope: Scope::Own, source: GrantSource::Kernel, revoked: CancellationToken::new() }
    }

    /// Returns the grant of a request that is not admitted.
    pub(crate) fn nothing() -> Self {
        Self { scope: Scope::Read, ..Self::of_kernel() }
    }

    /// Returns the name of the token, if it has one.
    pub(crate) fn token(&self) -> Option<&TokenName> {
        match &self.source {
            GrantSource::Token(name) => Some(name),
            GrantSource::Kernel | GrantSource::OwnToken | GrantSource::ReadOnly(_) => None,
        }
    }

    /// Refuses a call of a route that needs a larger scope.
    pub(crate) fn check_route(&self, route: Route) -> Result<(), Problem> {
        self.check(&route.to_string(), route.scope())
    }

    /// Refuses a call that needs a larger scope because of its keys.
    pub(crate) fn check_call(&self, call: &Call) -> Result<(), Problem> {
        self.check(&call.to_string(), call.scope())
    }

    /// Refuses `call` if its scope is larger.
    pub(crate) fn check(&self, call: &str, needed: Scope) -> Result<(), Problem> {
        if needed <= self.scope {
            return Ok(());
        }
        let (scope, owner) = (self.scope, "make it as the owner over the control socket");
        let (detail, hint) = match &self.source {
            GrantSource::ReadOnly(path) => (
                format!("the read-only socket {} has the scope {scope}, and {call} needs {needed}", path.display()),
                format!("{owner}, or over TCP with a token of the scope {needed}"),
            ),
            GrantSource::Token(name) => (
                format!("the token \"{name}\" has the scope {scope}, and {call} needs {needed}"),
                format!("{owner}, or with a token of the scope {needed}; control.tokens.{name}.scope sets the scope"),
            ),
            GrantSource::OwnToken | GrantSource::Kernel => {
                (format!("the scope is {scope}, and {call} needs {needed}"), owner.to_owned())
            }
        };
        Err(Problem::new(Code::ScopeTooSmall, detail).hint(hint))
    }

    /// Ends the body of the response when the grant ends. A document of known length is sent whole.
    pub(crate) fn limit(&self, response: Response<Body>) -> Response<Body> {
        if self.source == GrantSource::Kernel || response.body().size_hint().exact().is_some() {
            return response;
        }
        response.map(|body| Granted { body, revoked: Box::pin(self.revoked.clone().cancelled_owned()) }.boxed_unsync())
    }

    /// Waits for the answer of a call that may be interrupted, and refuses when the grant ends first.
    pub(crate) async fn within<T>(&self, answer: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.revoked.cancelled() => {
                let detail = "a reload removed the token or the socket while the request waited";
                let hint = "ask the owner for a token that is in force; the work of the call continues";
                Err(Problem::new(Code::Unauthorized, detail).hint(hint))
            }
        }
    }
}

/// A streamed body that ends with its grant.
struct Granted {
    body: Body,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl HttpBody for Granted {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.revoked.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(scope: Scope, source: GrantSource) -> Grant {
        Grant { scope, source, revoked: CancellationToken::new() }
    }

    #[test]
    fn a_refusal_names_the_token_its_scope_the_needed_scope_and_the_route() {
        let grafana = grant(Scope::Read, GrantSource::Token("grafana".parse().unwrap()));
        assert_eq!(grafana.check_route(Route::Sessions), Ok(()));
        let refused = grafana.check_route(Route::CreateSession).unwrap_err();
        assert_eq!((refused.code, refused.status), (Code::ScopeTooSmall, 403));
        for word in ["\"grafana\"", "scope read", "POST /v1/sessions", "needs own"] {
            assert!(refused.detail.contains(word), "{word}: {refused:?}");
        }
        assert!(refused.hint.unwrap().contains("control.tokens.grafana.scope"));
        let socket = grant(Scope::Read, GrantSource::ReadOnly(Path::new("/run/ops/ro.sock").into()));
        let refused = socket.check_route(Route::Prompt).unwrap_err();
        assert!(refused.detail.contains("/run/ops/ro.sock") && refused.hint.is_some(), "{refused:?}");
    }

    #[tokio::test]
    async fn a_stream_and_a_wait_end_with_their_grant_and_a_document_does_not() {
        let grant = grant(Scope::Read, GrantSource::OwnToken);
        let endless = http_body_util::StreamBody::new(futures_util::stream::pending::<std::io::Result<Frame<Bytes>>>())
            .boxed_unsync();
        let stream = grant.limit(Response::new(endless));
        let document = grant.limit(Response::new(crate::full("whole")));
        grant.revoked.cancel();
        assert_eq!(stream.into_body().collect().await.unwrap().to_bytes(), "");
        assert_eq!(document.into_body().collect().await.unwrap().to_bytes(), "whole");
        let waited = grant.within(std::future::pending::<Result<(), _>>()).await;
        assert_eq!(waited.unwrap_err().code, Code::Unauthorized);
    }
}
