//! Implements `GET /metrics`: the values of the moment in `OpenMetrics`, or in the text format of Prometheus.
//!
//! The page is written from memory. It waits for no session, no disk and no process.

use agentd_api::readiness::NotReady;
use agentd_metrics::Format;
use agentd_session::show_sessions;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response};

use super::router::Context;
use super::{Body, full, readiness};
use crate::request_body::RequestBody;

/// Returns the page in the format that the client accepts.
pub(super) fn page(context: &Context, request: &Request<RequestBody>) -> Response<Body> {
    let accept = request.headers().get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let format = Format::accepted(&accept.collect::<Vec<_>>().join(","));
    let reasons = readiness::reasons(context);
    let page = context.generation.daemon.metrics.page(format, |metrics| {
        show_sessions(&context.generation, &context.sessions, metrics);
        metrics.ready.set([], if reasons.is_empty() { 1.0 } else { 0.0 });
        for code in NotReady::CODES {
            let holds = reasons.iter().any(|reason| reason.code == *code);
            metrics.not_ready.set([code], f64::from(u8::from(holds)));
        }
    });
    let mut response = Response::new(full(page));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
