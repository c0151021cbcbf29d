//! Requests of the control endpoint: `METHOD PATH?QUERY`, as the daemon finds and parses them.
//!
//! Properties:
//! - A path has a route for exactly the methods that it allows.
//! - A parsed call belongs to its route. Its address parses to the same call.
//! - A refusal is `invalid-request` with a hint.
//! - A path names a session exactly if its route has that parameter.

#![no_main]

mod meter;

use agentd_api::route::{self, Method};
use agentd_api::{Call, Code, Route};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    meter::bounded(data, 256 << 10, 64, || request(text));
});

fn request(text: &str) {
    let (method, address) = text.split_once(' ').unwrap_or(("GET", text));
    let (path, query) = address.split_once('?').unwrap_or((address, ""));
    let allowed = route::allowed(path);
    let allows = |method: &str| allowed.as_deref().is_some_and(|list| list.split(", ").any(|one| one == method));
    for method in ["GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "get", ""] {
        assert_eq!(route::find(method, path).is_some(), allows(method), "{method} {path}");
    }
    let Some(route) = route::find(method, path) else { return };
    assert!(allows(method), "{method} {path} has a route and is not allowed");
    let names_session = route.path().contains("{session}");
    assert_eq!(route::session_in(path).is_some(), names_session, "{path} of {route}");
    match Call::parse(route, path, query) {
        Ok(call) => parsed(&call, route, path),
        Err(problem) => {
            assert_eq!(problem.code, Code::InvalidRequest, "{problem:?}");
            assert_eq!(problem.status, 400);
            assert!(problem.hint.is_some_and(|hint| !hint.is_empty()), "{text} is refused without a hint");
        }
    }
}

/// Checks a call that was read from this path.
fn parsed(call: &Call, route: Route, path: &str) {
    assert_eq!(call.route(), route);
    let address = call.address();
    let (written, query) = address.split_once('?').unwrap_or((&address, ""));
    let method = if route.method() == Method::Get { "HEAD" } else { route.method().as_str() };
    let again = route::find(method, written).and_then(|found| Call::parse(found, written, query).ok());
    let again = again.unwrap_or_else(|| panic!("{address}, written for {call:?}, does not parse"));
    // Parameters of the path are not decoded, so only those without escapes come back unchanged.
    if path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte)) {
        assert_eq!(&again, call, "{address}");
    }
    assert_eq!(again.route(), route, "{address}");
}
