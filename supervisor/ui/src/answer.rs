//! Answers of the page's server, with the headers by which a browser confines the page.

use std::io;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap,
    HeaderName, HeaderValue, REFERRER_POLICY, RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::assets::Asset;
use crate::refusal::Refusal;

/// Body of every answer: a document or a stream.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Policy of the page: scripts, styles and connections of this server only, and no text becomes HTML. The frame shows
/// the applet of a session, which any server can have.
const PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                    connect-src 'self'; frame-src http: https:; base-uri 'none'; form-action 'none'; \
                    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
/// Policy of data, which no browser should show as a document.
const DATA: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";
/// Seconds after which a refused connection may be tried again.
const RETRY: u32 = 1;

/// Returns an answer with a body.
pub(crate) fn full(content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns a JSON document.
pub(crate) fn json(document: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(document) {
        Ok(bytes) => full("application/json", bytes),
        Err(error) => problem(&Refusal::Internal { detail: error.to_string() }),
    }
}

/// Returns a problem document.
pub(crate) fn problem(refusal: &Refusal) -> Response<Body> {
    let document = refusal.document();
    let bytes = serde_json::to_vec(&document).unwrap_or_default();
    let mut response = full("application/problem+json", bytes);
    *response.status_mut() = StatusCode::from_u16(document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if *refusal == Refusal::TooManyConnections {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY));
    }
    if *refusal == Refusal::MethodNotAllowed {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

/// Returns a file of the page, compressed if the client takes gzip.
pub(crate) fn file(asset: &Asset, asked: &HeaderMap, kept: &'static str) -> Response<Body> {
    let is_compressed = takes_gzip(asked);
    let content = if is_compressed { Ok(asset.compressed()) } else { asset.plain() };
    let content = match content {
        Ok(content) => content,
        Err(error) => return problem(&Refusal::Internal { detail: error.to_string() }),
    };
    let mut response = full(asset.content_type(), content);
    let headers = response.headers_mut();
    if is_compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(kept));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE));
    response
}

/// Reports whether `Accept-Encoding` names gzip without the weight 0 (RFC 9110 section 12.5.3).
fn takes_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_some_and(|weight| weight > 0.0)
    })
}

/// Adds the headers that every answer has. An answer that sets no policy of its own is data.
pub(crate) fn confine(headers: &mut HeaderMap) {
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(DATA));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_to_clients_that_take_it() {
        let takes = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(value));
            takes_gzip(&headers)
        };
        for value in ["gzip", "br, gzip", "GZIP;q=0.5", "deflate,gzip; q=1"] {
            assert!(takes(value), "{value}");
        }
        for value in ["", "br", "gzip;q=0", "gzip;q=x", "xgzip"] {
            assert!(!takes(value), "{value}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
