//! Implements `GET /v1/openapi.json`: the description of the endpoint, as the repository has it.
//!
//! A test makes the file from the routes and the types. The daemon has only the file, so it needs no code for schemas.

use std::sync::LazyLock;

use agentd_api::hex;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use hyper::{Response, StatusCode};
use sha2::{Digest as _, Sha256};

use super::{Body, full};

const DESCRIPTION: &str = include_str!("../../../docs/reference/openapi.json");

/// The `ETag` of the description: a hash of its text.
static TAG: LazyLock<String> = LazyLock::new(|| format!("\"{}\"", &hex(&Sha256::digest(DESCRIPTION))[..32]));

/// Answers with the description, or with 304 if the client has it.
pub(super) fn show(headers: &HeaderMap) -> Response<Body> {
    let mut response = if is_known(headers) {
        let mut response = Response::new(full(""));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let mut response = Response::new(full(DESCRIPTION));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    };
    if let Ok(tag) = HeaderValue::from_str(&TAG) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Reports whether `If-None-Match` names the description. The comparison is weak (RFC 9110 section 13.1.2).
fn is_known(headers: &HeaderMap) -> bool {
    let values = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == TAG.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(values: &[&str]) -> u16 {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_NONE_MATCH, value.parse().unwrap());
        }
        show(&headers).status().as_u16()
    }

    #[test]
    fn a_client_that_has_the_description_gets_no_other() {
        let tag = TAG.as_str();
        assert_eq!((status(&[]), status(&["\"x\""]), status(&["\"x\", W/\"y\""])), (200, 200, 200));
        let lists = [tag.to_owned(), "*".to_owned(), format!("W/{tag}"), format!("\"x\", {tag}")];
        for list in &lists {
            assert_eq!(status(&[list]), 304, "{list}");
        }
        assert_eq!(status(&["\"x\"", tag]), 304);
    }
}
