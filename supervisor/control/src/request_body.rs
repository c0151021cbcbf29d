//! The body of a request, whose rest is read after an answer that did not need it.
//!
//! hyper closes a connection whose request is answered before its body has arrived. A client that is still sending then
//! gets an error of its connection instead of the answer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

/// Maximum time for which the rest of a body is read and discarded. The connection is closed afterwards.
const REST: Duration = Duration::from_secs(5);
/// Maximum size of this rest in bytes. A client that sends more does not wait for an answer.
const REST_BYTES: usize = 6 << 20;
/// Bytes as which each frame of the rest counts, beside its data. A frame of one byte costs work too.
const FRAME: usize = 64;

/// The body of a request. Dropping it before its end reads and discards the rest.
#[derive(Debug)]
pub(crate) struct RequestBody(Option<Incoming>);

impl RequestBody {
    pub(crate) fn new(incoming: Incoming) -> Self {
        Self(Some(incoming))
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(rest) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        // Without a runtime the endpoint has ended, and its connections with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(REST, discard(rest)));
    }
}

async fn discard(mut rest: Incoming) {
    let mut left = REST_BYTES;
    while let Some(Ok(frame)) = rest.frame().await {
        let length = FRAME + frame.data_ref().map_or(0, Bytes::len);
        let Some(less) = left.checked_sub(length) else { return };
        left = less;
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
