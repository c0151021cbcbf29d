//! The page of routes: the table of `agentd_api::route` with scopes, and the callers that `agentd_control` permits.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use agentd_api::openapi::codes;
use agentd_api::route::{Answer, Scope};
use agentd_api::{Code, Route};
use agentd_control::{Access, access};

const BEGINNING: &str = "# Routes

The calls of the [control endpoint](../operations/control.md). A request has at most the query keys of its route, each
at most once. Other requests are refused with `invalid-request` (400) and have no effect.

Each route with `GET` also answers `HEAD`, with the same headers and without a body.

Bodies and answers are JSON. `Event` is a stream of documents, one a line, or Server-Sent Events with
`Accept: text/event-stream`. `OpenMetrics` is text. Errors are [problem documents](problems.md).

[openapi.json](openapi.json) describes the calls for programs, with the schema of each type: an OpenAPI 3.1 document.
The daemon serves this document as `GET /v1/openapi.json`. [Compatibility](compatibility.md) has the rules for clients
of later versions.

";

pub(super) fn page() -> String {
    let mut page = String::from(BEGINNING);
    page += "| route | callers | scope | body | answer | purpose |\n|---|---|---|---|---|---|\n";
    for route in Route::ALL {
        let body = route.body().map_or(String::new(), |body| format!("`{body}`"));
        let answer = match route.answer() {
            Answer::Nothing => route.status().to_string(),
            Answer::Document(name) | Answer::Text(name) | Answer::Stream(name) => {
                format!("{} `{name}`", route.status())
            }
        };
        let keys: Vec<&str> = route.keys().iter().map(|key| key.name).collect();
        let query = if keys.is_empty() { String::new() } else { format!(" ?`{}`", keys.join("` `")) };
        let (callers, scope, purpose) = (access(*route).name(), route.scope(), route.purpose());
        writeln!(page, "| `{route}`{query} | {callers} | {scope} | {body} | {answer} | {purpose} |").unwrap();
    }
    page += &problems();
    page += "\n## Callers\n\n| callers | |\n|---|---|\n";
    for level in Access::ALL {
        writeln!(page, "| {} | {} |", level.name(), level.callers()).unwrap();
    }
    page += "\nEach level includes the callers of the following ones. The owner may make every call.\n\
             [The control endpoint](../operations/control.md#callers) has the rules for processes inside sessions.\n";
    page += "\n## Scopes\n\n| scope | calls of a token |\n|---|---|\n";
    for scope in Scope::ALL {
        writeln!(page, "| {scope} | {} |", scope.calls()).unwrap();
    }
    page += "\nThe read-only socket has the scope `read`. `PATCH` of a session changes only `labels` with the scope \
             `operate`.\nThese keys need more than their route:\n\n| route | key | scope |\n|---|---|---|\n";
    for route in Route::ALL {
        let more = route.keys().iter().map(|key| (key.name, route.scope_of_key(key.name)));
        for (key, scope) in more.filter(|(_, scope)| *scope > route.scope()) {
            writeln!(page, "| `{route}` | `{key}` | {scope} |").unwrap();
        }
    }
    page += "\n[Tokens with scopes](../operations/control.md#tokens-with-scopes) describes their use.\n";
    page += "\n## Query keys\n\n| key | values |\n|---|---|\n";
    for (name, values) in keys() {
        for (values, routes) in &values {
            let of = if keys()[name].len() == 1 { String::new() } else { format!("of {}: ", routes.join(", ")) };
            writeln!(page, "| `{name}` | {of}{values} |").unwrap();
        }
    }
    page
}

/// Makes the section with the problem codes of each route.
fn problems() -> String {
    let common: Vec<Code> = Code::ALL
        .iter()
        .copied()
        .filter(|code| {
            let mut others = Route::ALL.iter().filter(|route| **route != Route::Health);
            others.all(|route| codes(*route).contains(code))
        })
        .collect();
    let list = |codes: &mut dyn Iterator<Item = Code>| {
        let names: Vec<String> = codes.map(|code| format!("`{}`", code.as_str())).collect();
        names.join(", ")
    };
    let mut text = format!(
        "\n## Problem codes\n\n`GET /healthz` is open to all callers, so it has no code about the caller's place. The \
         other routes have the codes of\nthe first row.\n\n| route | further codes |\n|---|---|\n| each route | {} |\n\
         | unknown path | {} |\n| unknown method of a path | {} |\n",
        list(&mut common.iter().copied()),
        list(&mut [Code::NoSuchPath].into_iter()),
        list(&mut [Code::MethodNotAllowed].into_iter()),
    );
    for route in Route::ALL {
        let further = list(&mut codes(*route).into_iter().filter(|code| !common.contains(code)));
        if !further.is_empty() {
            writeln!(text, "| `{route}` | {further} |").unwrap();
        }
    }
    text
}

/// Returns each key with its values, and the routes that take these values.
fn keys() -> BTreeMap<&'static str, BTreeMap<String, Vec<String>>> {
    let mut all = BTreeMap::<_, BTreeMap<_, Vec<String>>>::new();
    for route in Route::ALL {
        for key in route.keys() {
            all.entry(key.name).or_default().entry((key.values)()).or_default().push(format!("`{route}`"));
        }
    }
    all
}
