//! The conditions on requests over TCP, which is open on this machine only. [`crate::tcp_listener`] has the
//! listener.
//!
//! No kernel identifies the process at the other end, so the token decides. Its holder is the daemon's owner within the
//! scope of the token, and never a session's guest.
//!
//! Any web page can make a browser on this machine send requests here. It can use the address, or a host name that
//! resolves to this machine (DNS rebinding). So requests for another host name or from another site are refused before
//! the token is compared.

use std::net::SocketAddr;
use std::sync::Arc;

use agentd_api::{Code, Problem};
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::uri::Authority;

use crate::grant::Grant;
use crate::tcp_listener::TcpEndpoint;

/// Admits requests that carry a token.
#[derive(Debug)]
pub(super) struct Gate {
    listening: Arc<TcpEndpoint>,
}

/// Reports whether the other end of a connection is on this machine. The listener's address should already ensure
/// that.
pub(super) fn is_near(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

impl Gate {
    pub(super) fn new(listening: Arc<TcpEndpoint>) -> Self {
        Self { listening }
    }

    /// Refuses a request with a foreign host, a foreign origin, or a wrong token. Returns what the token permits.
    pub(super) fn check<T>(&self, request: &Request<T>) -> Result<Grant, Problem> {
        let headers = request.headers();
        let authority = request.uri().authority().map(Authority::as_str);
        // HTTP/2 has the host in the authority alone (RFC 9113 section 8.3.1).
        let host = if headers.contains_key(HOST) { only(headers, &HOST) } else { authority };
        let host = host.filter(|host| names_this_machine(host));
        let is_near = authority.is_none_or(names_this_machine);
        let Some(host) = host.filter(|_| is_near) else {
            return Err(Problem::new(Code::ForeignHost, "the Host of the request does not name this machine")
                .hint("use 127.0.0.1, [::1] or localhost; any other name could be chosen by an attacker"));
        };
        if !is_own_site(headers, host) {
            return Err(Problem::new(Code::ForeignOrigin, "a browser sent the request on behalf of another site")
                .hint("send no Origin header; agentd answers no web page of another site"));
        }
        let token = only(headers, &AUTHORIZATION).and_then(bearer);
        match token {
            Some(token) => self.listening.admit(token.as_bytes()).ok_or_else(|| {
                Problem::new(Code::Unauthorized, "the token is wrong")
                    .hint("agentd reads control.token and control.tokens at its start and at each reload")
            }),
            None => Err(Problem::new(Code::Unauthorized, "the request carries no token")
                .hint("send one header Authorization: Bearer TOKEN; control.token and control.tokens name the places")),
        }
    }
}

/// Returns a header's value, if the header occurs once and is text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Returns the token of a `Bearer` value. The scheme is case-insensitive (RFC 9110 section 11.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

/// Reports whether a host, with or without a port, is this machine under any resolver. The port is ignored, since
/// forwarding changes it.
fn names_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_loopback = address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    !authority.as_str().contains('@') && (is_loopback || name.eq_ignore_ascii_case("localhost"))
}

/// Reports whether no browser header names another site (WHATWG Fetch, `Origin`; W3C Fetch Metadata,
/// `Sec-Fetch-Site`).
fn is_own_site(headers: &HeaderMap, host: &str) -> bool {
    let is_own = |origin: &str| origin.strip_prefix("http://").is_some_and(|origin| origin.eq_ignore_ascii_case(host));
    let from = headers.get_all(ORIGIN).iter().all(|origin| origin.to_str().is_ok_and(is_own));
    let fetched = headers.get_all("sec-fetch-site").iter();
    from && fetched.into_iter().all(|site| site == "same-origin" || site == "none")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef~+/-._=";

    fn ask(uri: &str, headers: &[(&str, &str)]) -> Result<(), Code> {
        let gate = Gate::new(Arc::new(TcpEndpoint::with_token(TOKEN)));
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        gate.check(&request.body(()).unwrap()).map(drop).map_err(|problem| problem.code)
    }

    #[test]
    fn a_request_with_the_token_for_this_machine_is_admitted() {
        let bearer = format!("Bearer {TOKEN}");
        for host in ["127.0.0.1:7345", "localhost:8000", "LocalHost", "[::1]:7345", "127.0.0.2"] {
            assert_eq!(ask("/", &[("host", host), ("authorization", &bearer)]), Ok(()), "{host}");
        }
        let own = [("host", "localhost:1"), ("authorization", &bearer), ("origin", "http://localhost:1")];
        assert_eq!(ask("/", &own), Ok(()));
        let lower = format!("bearer  {TOKEN}");
        assert_eq!(ask("http://[::1]:7345/", &[("host", "[::1]:7345"), ("authorization", &lower)]), Ok(()));
    }

    #[test]
    fn a_wrong_or_missing_token_is_unauthorized() {
        for value in ["", "Bearer", "Bearer ", "Basic x", &TOKEN[1..], "Bearer 0123456789abcdef"] {
            let asked = ask("/", &[("host", "localhost"), ("authorization", value)]);
            assert_eq!(asked, Err(Code::Unauthorized), "{value:?}");
        }
        assert_eq!(ask("/", &[("host", "localhost")]), Err(Code::Unauthorized));
        let bearer = format!("Bearer {TOKEN}");
        let twice = [("host", "localhost"), ("authorization", &bearer), ("authorization", &bearer)];
        assert_eq!(ask("/", &twice), Err(Code::Unauthorized));
        // A token in the address would be in logs, and counts nowhere.
        for query in ["token", "access_token", "authorization"] {
            let asked = ask(&format!("/v1/version?{query}={TOKEN}"), &[("host", "localhost")]);
            assert_eq!(asked, Err(Code::Unauthorized), "{query}");
        }
    }

    #[test]
    fn another_host_is_refused_whatever_the_token() {
        let bearer = format!("Bearer {TOKEN}");
        let hosts =
            ["evil.example", "localhost.evil.example", "192.168.0.1", "evil@localhost", "localhost@evil", "", "0"];
        for host in hosts {
            let asked = ask("/", &[("host", host), ("authorization", &bearer)]);
            assert_eq!(asked, Err(Code::ForeignHost), "{host:?}");
        }
        assert_eq!(ask("/", &[("authorization", &bearer)]), Err(Code::ForeignHost));
        let asked = ask("http://evil.example/", &[("host", "localhost"), ("authorization", &bearer)]);
        assert_eq!(asked, Err(Code::ForeignHost));
        let twice = [("host", "localhost"), ("host", "evil.example"), ("authorization", &bearer)];
        assert_eq!(ask("/", &twice), Err(Code::ForeignHost));
    }

    #[test]
    fn a_browser_request_on_behalf_of_another_site_is_refused_whatever_the_token() {
        let bearer = format!("Bearer {TOKEN}");
        for (name, value) in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("origin", "http://localhost:2"),
            ("origin", "https://localhost:1"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let asked = ask("/", &[("host", "localhost:1"), ("authorization", &bearer), (name, value)]);
            assert_eq!(asked, Err(Code::ForeignOrigin), "{name}: {value}");
        }
    }
}
