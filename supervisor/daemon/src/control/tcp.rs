//! The control endpoint over TCP, on this machine only: what a request there has to carry. Where it listens is [`crate::tcp`]'s.
//!
//! No kernel says who is at the other end, so the token is what counts: who has it is the daemon's owner, and nobody's session. Any web
//! page can have a browser on this machine send requests here, by the address or by a name of its own that it has resolve to this machine
//! (DNS rebinding); so what is meant for another name, or comes for another site, is refused before the token is looked at.

use std::net::SocketAddr;
use std::sync::Arc;

use agentd_api::{Code, Problem};
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::uri::Authority;

use crate::tcp::Listening;

/// Lets through who carries the token.
#[derive(Debug)]
pub(super) struct Gate {
    listening: Arc<Listening>,
}

/// Whether the connection's other end is this machine too; the address that is listened on says so already.
pub(super) fn is_near(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

impl Gate {
    pub(super) fn new(listening: Arc<Listening>) -> Self {
        Self { listening }
    }

    /// Whether the request may be answered.
    pub(super) fn check<T>(&self, request: &Request<T>) -> Result<(), Problem> {
        let headers = request.headers();
        let host = only(headers, &HOST).filter(|host| names_this_machine(host));
        let asked = request.uri().authority().is_none_or(|authority| names_this_machine(authority.as_str()));
        let Some(host) = host.filter(|_| asked) else {
            return Err(Problem::new(Code::ForeignHost, "the request is not for this machine by its Host").hint(
                "ask for 127.0.0.1, [::1] or localhost; a name that resolves to this machine could be anybody's",
            ));
        };
        if !is_own_site(headers, host) {
            return Err(Problem::new(Code::ForeignOrigin, "a browser sent the request for another site")
                .hint("agentd answers no page that does not come from it; send no Origin"));
        }
        let given = only(headers, &AUTHORIZATION).and_then(bearer);
        match given {
            Some(given) if self.listening.admits(given.as_bytes()) => Ok(()),
            Some(_) => Err(Problem::new(Code::Unauthorized, "the token is another")
                .hint("it is read at the start and at each reload, from where control.token says")),
            None => Err(Problem::new(Code::Unauthorized, "the request carries no token")
                .hint("send Authorization: Bearer TOKEN; control.token says where the token is")),
        }
    }
}

/// A header's value, where it is given once and is text.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// `Bearer` and the token; the scheme's name in any case (RFC 9110 section 11.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

/// Whether a host, with or without a port, is this machine whoever resolves it. The port is not looked at: it is another one where it is
/// forwarded.
fn names_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_loopback = address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    !authority.as_str().contains('@') && (is_loopback || name.eq_ignore_ascii_case("localhost"))
}

/// Whether no browser says that the request comes from another site (WHATWG Fetch, `Origin`; W3C Fetch Metadata, `Sec-Fetch-Site`).
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
        let gate = Gate::new(Arc::new(Listening::with_token(TOKEN)));
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        gate.check(&request.body(()).unwrap()).map_err(|problem| problem.code)
    }

    #[test]
    fn who_carries_the_token_and_asks_this_machine_is_let_through() {
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
    fn another_token_or_none_is_unauthorized() {
        for value in ["", "Bearer", "Bearer ", "Basic x", &TOKEN[1..], "Bearer 0123456789abcdef"] {
            let asked = ask("/", &[("host", "localhost"), ("authorization", value)]);
            assert_eq!(asked, Err(Code::Unauthorized), "{value:?}");
        }
        assert_eq!(ask("/", &[("host", "localhost")]), Err(Code::Unauthorized));
        let bearer = format!("Bearer {TOKEN}");
        let twice = [("host", "localhost"), ("authorization", &bearer), ("authorization", &bearer)];
        assert_eq!(ask("/", &twice), Err(Code::Unauthorized));
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
    fn what_a_browser_sends_for_another_site_is_refused_whatever_the_token() {
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
