//! The operations of the document: parameters, headers, bodies and answers of each route.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::codes::{ALWAYS, codes};
use super::components::Components;
use crate::route::Answer;
use crate::schema::LABEL;
use crate::{Code, Route};

/// Media type of problem documents.
const PROBLEM: &str = "application/problem+json";

/// Describes the calls of a route.
pub(super) fn operation(route: Route, callers: impl Fn(Route) -> &'static str, components: &mut Components) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [tag(route)],
        "summary": route.purpose(),
        "parameters": parameters(route),
        "responses": answers(route, components),
        "x-callers": callers(route),
        "x-agentd-scope": route.scope(),
        // A role of OpenAPI 3.1: the scope that the token needs.
        "security": [{}, { "token": [route.scope()] }],
    });
    if let Some(schema) = components.body(route) {
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

/// Returns the name of a route with a small first letter.
fn operation_id(route: Route) -> String {
    let (first, rest) = route.name().split_at(1);
    first.to_ascii_lowercase() + rest
}

/// Subjects of calls, each with the first part of its paths behind `/v1`. Other parts belong to the daemon.
const TAGS: &[(&str, &str, &[&str])] = &[
    ("acp", "The Agent Client Protocol, for editors and other clients of the protocol.", &["acp"]),
    ("agents", "Configured and known agents.", &["agents", "catalogue"]),
    ("daemon", "The daemon itself: health, configuration, drain and audit.", &[]),
    (
        "environment",
        "Environments, their snapshots, scripts and secrets.",
        &["environment", "scripts", "secrets", "snapshots"],
    ),
    ("hooks", "Programs, addresses and desktops that are told of events.", &["hooks"]),
    ("places", "Machines, jobs and containers on which agents run.", &["places"]),
    ("plugins", "Plugins and prerequisites.", &["plugins", "prerequisites"]),
    ("schedules", "Sessions that start at given times.", &["schedules"]),
    ("sessions", "Sessions: life, prompts, answers, events and context.", &["sessions", "prune"]),
];

pub(super) fn tags() -> Value {
    TAGS.iter().map(|(name, description, _)| json!({ "name": name, "description": description })).collect()
}

fn tag(route: Route) -> &'static str {
    let part = route.path().split('/').find(|part| !part.is_empty() && *part != "v1").unwrap_or_default();
    TAGS.iter().find(|(_, _, parts)| parts.contains(&part)).map_or("daemon", |(name, ..)| name)
}

/// Describes the parameters of the path, the query and the headers.
fn parameters(route: Route) -> Vec<Value> {
    let in_path = route.path().split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).map(|name| {
        let (description, schema) = path_parameter(name);
        json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
    });
    let in_query = route.keys().iter().map(|key| {
        let description = format!("{}.", (key.values)());
        let mut parameter =
            json!({ "name": key.name, "in": "query", "description": description, "schema": (key.schema)() });
        let scope = route.scope_of_key(key.name);
        if scope > route.scope() {
            parameter["x-agentd-scope"] = json!(scope);
        }
        parameter
    });
    let in_header = request_headers(route).into_iter().map(|(name, required, description)| {
        json!({
            "name": name,
            "in": "header",
            "required": required,
            "description": description,
            "schema": { "type": "string" },
        })
    });
    in_path.chain(in_query).chain(in_header).collect()
}

/// Describes a parameter of the path. A name that is not listed is a text.
fn path_parameter(name: &str) -> (&'static str, Value) {
    let label = |longest: u32| json!({ "type": "string", "pattern": LABEL, "maxLength": longest });
    match name {
        "session" => ("Id or name of the session.", label(63)),
        "schedule" => ("Name of the schedule.", label(63)),
        "turn" => ("Id of the turn.", label(32)),
        "permission" => ("Id of the permission request.", label(32)),
        "repository" => ("Name of the repository.", json!({ "type": "string", "minLength": 1 })),
        _ => ("Name of the resource.", json!({ "type": "string", "minLength": 1 })),
    }
}

/// Lists the headers that a route reads: name, whether the header is required, and meaning.
///
/// `Accept`, `Authorization` and `Content-Type` are not parameters of `OpenAPI`. Media types and security describe
/// them.
fn request_headers(route: Route) -> Vec<(&'static str, bool, &'static str)> {
    const KEY: (&str, bool, &str) =
        ("Idempotency-Key", false, "A text that marks repetitions of one request. Repetitions get the first answer.");
    const MATCH: (&str, bool, &str) =
        ("If-Match", false, "The `ETag` of the resource. Another generation is refused with `generation-changed`.");
    const CONNECTION: &str = "Id of the connection, as the answer to `initialize` has it in this header.";
    const SESSION: (&str, bool, &str) = ("Acp-Session-Id", false, "The session that the message or stream concerns.");
    match route {
        Route::CreateSession | Route::Prompt | Route::RunSchedule => vec![KEY],
        Route::ChangeSpec | Route::SetSchedule => vec![MATCH],
        Route::Description => vec![("If-None-Match", false, "The `ETag` of a description that the client has.")],
        Route::Sessions => vec![("If-None-Match", false, "The `ETag` of a list that the client has.")],
        Route::Feed => vec![("Last-Event-ID", false, "`cursor` of the last event that the client has.")],
        Route::Events => {
            vec![("Last-Event-ID", false, "`seq` of the last event that the client has, instead of `after`.")]
        }
        Route::AcpSend => vec![("Acp-Connection-Id", false, CONNECTION), SESSION],
        Route::AcpStream => vec![
            ("Acp-Connection-Id", false, CONNECTION),
            SESSION,
            ("Last-Event-ID", false, "Id of the last event that the client has, also of an earlier connection."),
        ],
        Route::AcpEnd => vec![("Acp-Connection-Id", true, CONNECTION)],
        _ => Vec::new(),
    }
}

/// Lists the headers of a successful answer besides `x-request-id`.
fn answer_headers(route: Route) -> &'static [&'static str] {
    match route {
        Route::CreateSession => &["Location"],
        Route::AddSchedule => &["ETag", "Location"],
        Route::Sessions
        | Route::Session
        | Route::ChangeSpec
        | Route::Schedule
        | Route::SetSchedule
        | Route::Description => &["ETag"],
        Route::AcpSend => &["Acp-Connection-Id"],
        _ => &[],
    }
}

/// Lists answers without a body besides the successful one of the table.
fn other_answers(route: Route) -> &'static [(u16, &'static str)] {
    match route {
        Route::Description => &[(304, "The client has this description already.")],
        Route::Sessions => &[(304, "The client has this list already.")],
        Route::AcpSend => &[(202, "The message was accepted. Its answer comes through the stream.")],
        Route::AcpStream => &[(101, "The connection continues as a WebSocket (RFC 6455).")],
        _ => &[],
    }
}

/// Describes the answers of a route by their statuses.
fn answers(route: Route, components: &mut Components) -> Map<String, Value> {
    let mut answers = Map::new();
    let mut success = json!({ "description": success(route), "headers": used(answer_headers(route)) });
    if let Some(schema) = components.answer(route) {
        success["content"] = match route.answer() {
            // OpenAPI 3.1 has no schema for the documents of a stream, so an extension has it.
            Answer::Stream(_) => streams(route, &schema),
            Answer::Document(_) | Answer::Nothing | Answer::Text(_) => {
                json!({ "application/json": { "schema": schema } })
            }
        };
    }
    if let Answer::Text(_) = route.answer() {
        let text = json!({ "schema": { "type": "string" } });
        success["content"] = json!({ "application/openmetrics-text": text, "text/plain": text });
    }
    if let Some(links) = links(route) {
        success["links"] = links;
    }
    answers.insert(route.status().to_string(), success);
    for (status, description) in other_answers(route) {
        let headers = used(if *status == 304 { answer_headers(route) } else { &[] });
        answers.insert(status.to_string(), json!({ "description": description, "headers": headers }));
    }
    let mut refusals: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
    for code in codes(route) {
        refusals.entry(code.status()).or_default().push(code);
    }
    for (status, codes) in refusals {
        let name = refusal_name(status, &codes);
        answers.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{name}") }));
        components.refusals.insert(name, refusal(status, &codes));
    }
    answers
}

fn success(route: Route) -> String {
    match route.answer() {
        Answer::Nothing => "The call succeeded. The answer has no body.".to_owned(),
        Answer::Text(name) => format!("A text in the format `{name}`."),
        Answer::Document(name) => format!("A document of the type `{name}`."),
        Answer::Stream(name) => format!("A stream of documents of the type `{name}`."),
    }
}

/// Describes the forms of a stream: lines of JSON, or Server-Sent Events.
fn streams(route: Route, schema: &Value) -> Value {
    let text = json!({ "schema": { "type": "string" }, "x-item-schema": schema });
    if route == Route::AcpStream {
        json!({ "text/event-stream": text })
    } else {
        json!({ "application/x-ndjson": text, "text/event-stream": text })
    }
}

/// Returns the name of a refusal: its status, and the codes that not every route has.
fn refusal_name(status: u16, codes: &[Code]) -> String {
    let own = codes.iter().filter(|code| !ALWAYS.contains(code)).map(|code| format!("{code:?}"));
    format!("Refused{status}{}", own.collect::<String>())
}

/// Describes the problems with one status. The schema permits only the codes of the route.
fn refusal(status: u16, codes: &[Code]) -> Value {
    let names: Vec<String> = codes.iter().map(|code| code.as_str()).collect();
    let mut headers = Vec::new();
    if status == 401 {
        headers.push("WWW-Authenticate");
    }
    if codes.iter().any(|code| code.retry_after().is_some()) {
        headers.push("Retry-After");
    }
    json!({
        "description": format!("The call is refused with {}.", listed(&names)),
        "headers": used(&headers),
        "content": { PROBLEM: { "schema": {
            "$ref": "#/components/schemas/Problem",
            "properties": { "code": { "enum": names } },
        } } },
    })
}

/// Joins codes as a sentence has them.
fn listed(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        alone => alone.concat(),
    }
}

/// Refers to headers of the document. Each answer has `x-request-id`.
fn used(names: &[&str]) -> Value {
    let all = names.iter().chain(&["x-request-id"]);
    Value::Object(
        all.map(|name| ((*name).to_owned(), json!({ "$ref": format!("#/components/headers/{name}") }))).collect(),
    )
}

/// Describes the headers of answers.
pub(super) fn headers() -> Value {
    let header = |required: bool, meaning: &str, schema: Value| {
        let header = [("required", json!(required)), ("description", json!(meaning)), ("schema", schema)];
        Value::Object(header.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    };
    let text = || json!({ "type": "string" });
    json!({
        "Acp-Connection-Id": header(false, "Id of the connection, in the answer to `initialize`.", text()),
        "Allow": header(true, "The methods of the path.", text()),
        "ETag": header(
            false,
            "Version of the resource, for `If-Match` and `If-None-Match`. A list of stale sessions has no version.",
            text(),
        ),
        "Location": header(true, "Path of the created resource.", text()),
        "Retry-After": header(
            false,
            "Seconds after which the request may succeed. The request had no effect. Other codes of the status have no \
             such header.",
            json!({ "type": "integer", "minimum": 0 }),
        ),
        "WWW-Authenticate": header(true, "`Bearer realm=\"agentd\"`.", text()),
        "x-request-id": header(
            false,
            "Id of the request, which the daemon's log has too. A connection that is refused has none.",
            text(),
        ),
    })
}

/// Describes the answers that belong to no route.
pub(super) fn responses() -> Map<String, Value> {
    let response = |code: Code, header: &[&str]| {
        let mut response = refusal(code.status(), &[code]);
        response["headers"] = used(header);
        response
    };
    Map::from_iter([
        ("MethodNotAllowed".to_owned(), response(Code::MethodNotAllowed, &["Allow"])),
        ("NoSuchPath".to_owned(), response(Code::NoSuchPath, &[])),
    ])
}

/// Describes the calls that can follow a successful answer with values of the answer.
fn links(route: Route) -> Option<Value> {
    let (parameter, source) = match route {
        Route::CreateSession => ("session", "$response.body#/id"),
        Route::AddSchedule => ("schedule", "$response.body#/spec/name"),
        Route::Prompt => ("turn", "$response.body#/turn"),
        _ => return None,
    };
    let named = format!("{{{parameter}}}");
    let mut links = Map::new();
    for next in Route::ALL.iter().filter(|next| next.path().contains(&named)) {
        let others = next.path().split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let mut parameters = Map::from_iter([(parameter.to_owned(), json!(source))]);
        for other in others.filter(|other| *other != parameter && route.path().contains(&format!("{{{other}}}"))) {
            parameters.insert(other.to_owned(), json!(format!("$request.path.{other}")));
        }
        let link = json!({ "operationId": operation_id(*next), "parameters": parameters });
        links.insert(operation_id(*next), link);
    }
    Some(Value::Object(links))
}
