//! Refuses requests that name another host, and those that a browser sends on behalf of another site.
//!
//! Any web page can make a browser send requests to this port, by its address or by a name that resolves to this
//! machine (DNS rebinding). A page of another port of this machine is even the same site, and its requests have the
//! cookie. Such a page may be an agent's.

use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Method, Request};

use crate::refusal::Refusal;

const SITE: &str = "sec-fetch-site";

/// The names of this server.
#[derive(Debug)]
pub(crate) struct Names([String; 2]);

impl Names {
    /// Returns the names of a server at this port of the loopback.
    pub(crate) fn at(port: u16) -> Self {
        Self([format!("127.0.0.1:{port}"), format!("localhost:{port}")])
    }

    /// Checks the host, the origin and the site of a request.
    pub(crate) fn check<T>(&self, request: &Request<T>) -> Result<(), Refusal> {
        let headers = request.headers();
        let host = only(headers, &HOST).ok().flatten().filter(|host| self.0.iter().any(|name| name == host));
        let host = host.ok_or(Refusal::ForeignHost)?;
        if request.uri().authority().map(Authority::as_str).is_some_and(|authority| authority != host) {
            return Err(Refusal::ForeignHost);
        }
        let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
        let has_own_origin = match only(headers, &ORIGIN) {
            Ok(Some(origin)) => origin.strip_prefix("http://") == Some(host),
            // A browser names the origin of each request that could change something.
            Ok(None) => is_safe,
            Err(NotOne) => false,
        };
        let site = only(headers, &HeaderName::from_static(SITE));
        let is_own_site = matches!(site, Ok(None | Some("same-origin")));
        // The address is typed, or another page or file leads to it. The document itself has no data.
        let opens_the_page = is_safe && request.uri().path() == "/" && navigates(headers);
        if has_own_origin && (is_own_site || (opens_the_page && site.is_ok())) {
            return Ok(());
        }
        Err(Refusal::ForeignOrigin)
    }
}

/// Reports whether a browser shows the answer in a window of its own (Fetch Metadata).
fn navigates(headers: &HeaderMap) -> bool {
    let is = |name, value| only(headers, &HeaderName::from_static(name)) == Ok(Some(value));
    is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
}

/// A header that occurs twice, or is no text.
#[derive(Debug, PartialEq, Eq)]
struct NotOne;

/// Returns a header's value, if the header occurs at most once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, NotOne> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().map_err(|_| NotOne)?;
    if values.next().is_some() { Err(NotOne) } else { Ok(Some(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: (&str, &str) = ("host", "127.0.0.1:8123");

    fn ask(method: &str, uri: &str, headers: &[(&str, &str)]) -> Result<(), Refusal> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Names::at(8123).check(&request.body(()).unwrap())
    }

    #[test]
    fn only_the_two_names_of_the_loopback_with_the_port_are_hosts() {
        for host in ["127.0.0.1:8123", "localhost:8123"] {
            assert_eq!(ask("GET", "/ui/info", &[("host", host)]), Ok(()), "{host}");
        }
        for host in ["127.0.0.1", "localhost", "127.0.0.1:8124", "evil.example:8123", "[::1]:8123", "", "0:8123"] {
            assert_eq!(ask("GET", "/", &[("host", host)]), Err(Refusal::ForeignHost), "{host:?}");
        }
        assert_eq!(ask("GET", "/", &[]), Err(Refusal::ForeignHost));
        assert_eq!(ask("GET", "/", &[HOST, ("host", "evil.example")]), Err(Refusal::ForeignHost));
        assert_eq!(ask("GET", "http://evil.example/", &[HOST]), Err(Refusal::ForeignHost));
    }

    #[test]
    fn a_change_needs_the_origin_of_the_page() {
        let own = ("origin", "http://127.0.0.1:8123");
        assert_eq!(ask("POST", "/ui/login", &[HOST, own, (SITE, "same-origin")]), Ok(()));
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            assert_eq!(ask(method, "/host/this/v1/x", &[HOST]), Err(Refusal::ForeignOrigin), "{method}");
        }
        for origin in
            ["null", "http://localhost:8123", "http://127.0.0.1:8000", "https://127.0.0.1:8123", "http://evil.example"]
        {
            for method in ["GET", "POST"] {
                let asked = ask(method, "/host/this/v1/x", &[HOST, ("origin", origin)]);
                assert_eq!(asked, Err(Refusal::ForeignOrigin), "{method} {origin}");
            }
        }
        assert_eq!(ask("POST", "/", &[HOST, own, own]), Err(Refusal::ForeignOrigin));
    }

    #[test]
    fn another_site_may_only_lead_to_the_document() {
        let navigates = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        for site in ["cross-site", "same-site", "none"] {
            let with = |more: &[(&str, &str)], uri| ask("GET", uri, &[&[HOST, (SITE, site)], more].concat());
            assert_eq!(with(&navigates, "/"), Ok(()), "{site}");
            for uri in ["/ui/info", "/host/this/v1/sessions", "/assets/app.js"] {
                assert_eq!(with(&navigates, uri), Err(Refusal::ForeignOrigin), "{site} {uri}");
                assert_eq!(with(&[], uri), Err(Refusal::ForeignOrigin), "{site} {uri}");
            }
            // Not in a frame, and not by a script.
            assert_eq!(with(&[], "/"), Err(Refusal::ForeignOrigin), "{site}");
            let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
            assert_eq!(with(&frame, "/"), Err(Refusal::ForeignOrigin), "{site}");
        }
        assert_eq!(ask("GET", "/ui/info", &[HOST, (SITE, "same-origin")]), Ok(()));
    }
}
