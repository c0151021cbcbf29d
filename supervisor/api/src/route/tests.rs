use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::problem::Code;

/// Reads a request as the daemon reads a request.
fn read(method: &str, address: &str) -> Result<Call, Problem> {
    let (path, query) = address.split_once('?').unwrap_or((address, ""));
    Call::parse(find(method, path).expect("the path has a route"), path, query)
}

#[test]
fn a_method_and_a_path_have_one_route() {
    let mut seen = BTreeSet::new();
    for route in Route::ALL {
        assert!(seen.insert(route.to_string()), "{route} stands twice");
        assert_eq!(find(route.method().as_str(), route.path()), Some(*route), "{route} is hidden by another route");
    }
}

#[test]
fn a_purpose_is_one_or_two_whole_sentences() {
    for route in Route::ALL {
        let purpose = route.purpose();
        assert!(purpose.starts_with(char::is_uppercase) && purpose.ends_with('.'), "{route}: {purpose}");
        assert!(purpose.split_whitespace().count() <= 25, "{route}: {purpose}");
    }
}

#[test]
fn a_path_has_its_methods_and_an_unknown_path_has_none() {
    assert_eq!(allowed("/v1/sessions/k3m").as_deref(), Some("GET, HEAD, PATCH, DELETE"));
    assert_eq!(allowed("/v1/drain").as_deref(), Some("GET, HEAD, POST, DELETE"));
    assert_eq!(allowed("/v1/sessions/k3m/k3m"), None);
    assert_eq!(allowed("/v1/sessions/"), allowed("/v1/sessions/k3m"));
    assert_eq!(find("POST", "/v1/sessions/k3m/stop"), Some(Route::Stop));
    assert_eq!(find("PUT", "/v1/sessions"), None);
    assert_eq!(find("HEAD", "/v1/sessions"), Some(Route::Sessions));
    assert_eq!(find("HEAD", "/v1/prune"), None);
}

#[test]
fn a_path_below_a_session_names_the_session() {
    assert_eq!(session_in("/v1/sessions/k3m"), Some("k3m"));
    assert_eq!(session_in("/v1/sessions/k3m/no/such/path"), Some("k3m"));
    for path in ["/v1/sessions", "/v1/plugins/k3m", "/", "/v2/sessions/k3m"] {
        assert_eq!(session_in(path), None, "{path}");
    }
    for route in Route::ALL {
        assert_eq!(session_in(route.path()).is_some(), route.path().contains("{session}"), "{route}");
    }
}

#[test]
fn a_call_is_read_as_it_is_written() {
    let session = || "k3m".to_owned();
    let wait = || Some(Within(Duration::from_millis(1500)));
    let table = [
        (Call::Health {}, "GET /healthz"),
        (Call::CancelTurn { session: session(), turn: "t2".into() }, "DELETE /v1/sessions/k3m/turns/t2"),
        (Call::Plugin { name: "env-script".into() }, "GET /v1/plugins/env-script"),
        (
            Call::Events {
                session: session(),
                after: Some(7),
                last: None,
                follow: Some(false),
                before: None,
                limit: None,
            },
            "GET /v1/sessions/k3m/events?after=7&follow=false",
        ),
        (
            Call::Scripts { directory: Some("/a b&c".into()), diff: Some(true) },
            "GET /v1/scripts?directory=%2Fa%20b%26c&diff=true",
        ),
        (
            Call::Sessions {
                stale: None,
                label: "team=web, !old".parse().ok(),
                phase: Phases::read("idle,busy"),
                agent: None,
                directory: Some("/a".into()),
                condition: Conditions::read("!Ready"),
                fields: Fields::read("id,spec.labels"),
                limit: Some(10),
                after: Cursor::read("1.k3m"),
            },
            "GET /v1/sessions?label=team%3Dweb%2C%21old&phase=idle%2Cbusy&directory=%2Fa&condition=%21Ready\
             &fields=id%2Cspec.labels&limit=10&after=1.k3m",
        ),
        (
            Call::EnvironmentDifference { session: session(), from: Some(Moment::Created), to: None, values: None },
            "GET /v1/sessions/k3m/environment/diff?from=created",
        ),
        (
            Call::Resume {
                session: session(),
                wait: wait(),
                new_conversation: Some(true),
                wait_for_prerequisites: Some(Within(Duration::from_mins(1))),
                force: None,
                degraded: Some(true),
            },
            "POST /v1/sessions/k3m/resume?wait=1.5&new_conversation=true&wait_for_prerequisites=60&degraded=true",
        ),
    ];
    for (call, text) in table {
        assert_eq!(call.to_string(), text);
        assert_eq!(read(call.route().method().as_str(), &call.address()).as_ref(), Ok(&call), "{text}");
    }
}

#[test]
fn a_parameter_of_the_path_stays_one_part() {
    let call = Call::Plugin { name: "../a b".into() };
    assert_eq!(call.address(), "/v1/plugins/..%2Fa%20b");
    assert_eq!(find("GET", &call.address()), Some(Route::Plugin));
}

#[test]
fn a_flag_may_stand_alone_and_an_empty_query_has_no_key() {
    assert_eq!(read("POST", "/v1/reload?dry_run").unwrap(), Call::Reload { dry_run: Some(true) });
    assert_eq!(read("POST", "/v1/reload?").unwrap(), Call::Reload { dry_run: None });
    assert_eq!(read("POST", "/v1/reload?dry_run=false&").unwrap(), Call::Reload { dry_run: Some(false) });
}

#[test]
fn unknown_keys_repeated_keys_and_bad_values_are_refused_with_the_keys_that_are_allowed() {
    let table = [
        ("GET", "/healthz?x=1", "GET /healthz takes no query key \"x\"", "without a query"),
        ("POST", "/v1/reload?dryrun", "POST /v1/reload takes no query key \"dryrun\"", "the only key is dry_run"),
        (
            "GET",
            "/v1/sessions/k3m/events?after=1&folow=false",
            "GET /v1/sessions/{session}/events takes no query key \"folow\"",
            "the keys are after, last, follow, before and limit",
        ),
        ("GET", "/v1/drain?wait=1&wait=1", "GET /v1/drain takes the query key \"wait\" once", "the only key is wait"),
        ("GET", "/v1/drain?wait=1&wait", "GET /v1/drain takes the query key \"wait\" once", "the only key is wait"),
        ("GET", "/v1/drain?=1", "GET /v1/drain takes no query key \"\"", "the only key is wait"),
        ("GET", "/v1/drain?Wait=1", "GET /v1/drain takes no query key \"Wait\"", "the only key is wait"),
        ("GET", "/v1/drain?w%61it=1", "GET /v1/drain takes no query key \"w%61it\"", "the only key is wait"),
        ("GET", "/v1/drain?wait", "GET /v1/drain takes no wait=", "wait is a time from 0 to 600 seconds"),
        ("GET", "/v1/drain?wait=11m", "GET /v1/drain takes no wait=11m", "wait is a time from 0 to 600 seconds"),
        ("POST", "/v1/reload?dry_run=yes", "POST /v1/reload takes no dry_run=yes", "dry_run is `true` or `false`"),
        ("GET", "/v1/sessions?label=", "GET /v1/sessions takes no label=", "label is `KEY=VALUE`, `KEY!=VALUE`"),
        ("GET", "/v1/sessions?label=a+b", "GET /v1/sessions takes no label=a b", "label is `KEY=VALUE`"),
        ("GET", "/v1/audit?limit=-1", "GET /v1/audit takes no limit=-1", "limit is a whole number from 0"),
        ("GET", "/v1/scripts?directory=%ff", "GET /v1/scripts cannot decode directory=%ff", "directory and diff"),
    ];
    for (method, address, detail, hint) in table {
        let problem = read(method, address).expect_err(address);
        assert_eq!(problem.code, Code::InvalidRequest, "{address}");
        assert!(problem.detail.starts_with(detail), "{address}: {}", problem.detail);
        assert!(problem.hint.as_deref().unwrap_or_default().contains(hint), "{address}: {:?}", problem.hint);
    }
}

/// Reads a body of a call.
fn body_of<C: Typed<Body = B>, B: serde::de::DeserializeOwned>(_: C, json: &str) -> B {
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_typed_call_is_the_row_with_the_same_parameters() {
    let typed = call::Stop { session: "k3m".to_owned(), wait: Some(Within(Duration::from_secs(5))) };
    let call = Call::from(typed);
    assert_eq!((call.to_string().as_str(), call.route()), ("POST /v1/sessions/k3m/stop?wait=5", call::Stop::ROUTE));
    assert_eq!(Call::from(call::Sessions::default()).address(), "/v1/sessions");
    // Types of the same name as a row are those of the bodies.
    assert!(body_of(call::BulkStop {}, r#"{"select":{"all":true}}"#).select.all);
}
