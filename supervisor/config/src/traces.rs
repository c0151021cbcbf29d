//! `[traces]`: the collector of traces.

use http::Uri;
use serde::Deserialize;

use super::{Flaws, flaw};

/// Traces of requests and launches for a collector of OpenTelemetry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Traces {
    /// Address of a collector that takes OTLP over HTTP with JSON, for example `http://127.0.0.1:4318`. agentd adds the
    /// path `/v1/traces`. Default: none, and there are no traces.
    pub endpoint: Option<String>,
}

/// Returns the mistake of the table, if it has one.
pub(super) fn check(traces: &Traces) -> Flaws {
    let mistake = traces.endpoint.as_deref().and_then(mistake);
    mistake.map(|mistake| flaw(&["traces", "endpoint"], mistake)).into_iter().collect()
}

fn mistake(endpoint: &str) -> Option<String> {
    const EXAMPLE: &str = "write for example http://127.0.0.1:4318";
    let uri = endpoint.parse::<Uri>().ok();
    let Some((uri, scheme)) = uri.as_ref().and_then(|uri| Some((uri, uri.scheme_str()?))) else {
        return Some(format!("traces.endpoint: {endpoint:?} is not a URL; {EXAMPLE}"));
    };
    if scheme != "http" {
        return Some(format!(
            "traces.endpoint: {endpoint} does not begin with http://; name a collector on this machine, which can pass \
             the traces on by {scheme}"
        ));
    }
    let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    (authority.contains('@') || uri.query().is_some())
        .then(|| format!("traces.endpoint: {endpoint} has a user name or a query; {EXAMPLE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_of_http() {
        for good in ["http://127.0.0.1:4318", "http://[::1]:4318/", "http://collector/prefix"] {
            assert_eq!(mistake(good), None);
        }
        for (bad, expected) in [
            ("", "not a URL"),
            ("127.0.0.1:4318", "not a URL"),
            ("collector", "not a URL"),
            ("http://", "not a URL"),
            ("https://collector:4318", "does not begin with http://"),
            ("grpc://collector:4317", "does not begin with http://"),
            ("http://user@collector", "user name"),
            ("http://collector?key=1", "query"),
        ] {
            let said = mistake(bad).unwrap_or_else(|| panic!("{bad} is accepted"));
            assert!(said.contains(expected), "{bad}: {said}");
        }
    }
}
