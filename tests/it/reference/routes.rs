//! The page of routes: the table of `agentd_api::route`, with the callers that `agentd_control` permits.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use agentd_api::Route;
use agentd_api::route::Answer;
use agentd_control::{Access, access};

const BEGINNING: &str = "# Routes

The calls of the [control endpoint](../operations/control.md). A request has at most the query keys of its route, each
at most once. Other requests are refused with `invalid-request` (400) and have no effect.

Bodies and answers are JSON. `Event` is a stream of documents, one a line, or Server-Sent Events with
`Accept: text/event-stream`. Errors are [problem documents](problems.md).

";

pub(super) fn page() -> String {
    let mut page = String::from(BEGINNING);
    page += "| route | callers | body | answer | purpose |\n|---|---|---|---|---|\n";
    for route in Route::ALL {
        let body = route.body().map_or(String::new(), |body| format!("`{body}`"));
        let answer = match route.answer() {
            Answer::Nothing => route.status().to_string(),
            Answer::Document(name) | Answer::Stream(name) => format!("{} `{name}`", route.status()),
        };
        let keys: Vec<&str> = route.keys().iter().map(|key| key.name).collect();
        let query = if keys.is_empty() { String::new() } else { format!(" ?`{}`", keys.join("` `")) };
        let (callers, purpose) = (access(*route).name(), route.purpose());
        writeln!(page, "| `{route}`{query} | {callers} | {body} | {answer} | {purpose} |").unwrap();
    }
    page += "\n## Callers\n\n| callers | |\n|---|---|\n";
    for level in Access::ALL {
        writeln!(page, "| {} | {} |", level.name(), level.callers()).unwrap();
    }
    page += "\nEach level includes the callers of the following ones. The owner may make every call.\n\
             [The control endpoint](../operations/control.md#callers) has the rules for processes inside sessions.\n";
    page += "\n## Query keys\n\n| key | values |\n|---|---|\n";
    for (name, values) in keys() {
        writeln!(page, "| `{name}` | {values} |").unwrap();
    }
    page
}

/// Returns each key with its values. A key has the same values for all routes.
fn keys() -> BTreeMap<&'static str, String> {
    let mut all = BTreeMap::new();
    for key in Route::ALL.iter().flat_map(|route| route.keys()) {
        let values = (key.values)();
        let before = all.insert(key.name, values.clone());
        assert!(before.is_none_or(|before| before == values), "{} has other values for another route", key.name);
    }
    all
}
