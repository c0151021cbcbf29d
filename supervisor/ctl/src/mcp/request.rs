//! Turns the arguments of a tool into one call of the control endpoint, and the answer into a short result.

use std::collections::BTreeMap;
use std::time::Duration;

use agentd_api::Call;
use agentd_api::context::{ContextChange, ContextMode, HintRequest, ProgressRequest, TitleRequest};
use agentd_api::environment::Moment;
use agentd_api::scripts::ScriptProposal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::tools;

/// Additional time limit of a call that runs checks.
const CHECKING: Duration = Duration::from_mins(2);

/// A call of the control endpoint.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) call: Call,
    pub(super) body: Option<Value>,
    /// Time that the answer may take beyond the usual limit.
    pub(super) wait: Duration,
    shape: Shape,
}

/// Form of the result that the model gets.
#[derive(Debug, PartialEq, Eq)]
enum Shape {
    /// The whole context, or one set.
    Context(Option<String>),
    /// These fields of the session's status.
    Status(&'static [&'static str]),
    /// Variables with their origins; with values if names were given.
    Variables(Vec<String>),
    Checks,
    Proposal(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetContext {
    set: String,
    items: Vec<Item>,
    #[serde(default)]
    mode: ContextMode,
    #[serde(default)]
    applet_url: Option<String>,
}

/// An item. Models write ports as numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Item {
    Text(String),
    Number(u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetContext {
    #[serde(default)]
    set: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetEnvironment {
    #[serde(default)]
    names: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Propose {
    script: String,
    #[serde(default)]
    explanation: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Request {
    /// Returns the call of a tool for a session. The error is a text for the model.
    pub(super) fn of(tool: &str, arguments: Value, session: &str) -> Result<Self, String> {
        let session = session.to_owned();
        let request = match tool {
            tools::SET_CONTEXT => {
                let SetContext { set, items, mode, applet_url } = read(tool, arguments)?;
                let items = items.into_iter().map(|item| match item {
                    Item::Text(text) => text,
                    Item::Number(number) => number.to_string(),
                });
                let sets = BTreeMap::from([(set, items.collect())]);
                let change = ContextChange { mode, sets, applet_url };
                Self::with(Call::ChangeContext { session }, &change, Shape::Context(None))
            }
            tools::GET_CONTEXT => {
                let GetContext { set } = read(tool, arguments)?;
                Self::new(Call::Context { session }, Shape::Context(set))
            }
            tools::SET_HINT => {
                let hint: HintRequest = read(tool, arguments)?;
                Self::with(Call::SetHint { session }, &hint, Shape::Status(&["hint"]))
            }
            tools::GET_ENVIRONMENT => {
                let GetEnvironment { names } = read(tool, arguments)?;
                let names = names.unwrap_or_default();
                let (at, values) = (Some(Moment::Last), Some(!names.is_empty()));
                Self::new(Call::Environment { session, at, values }, Shape::Variables(names))
            }
            tools::CHECK => {
                let Nothing {} = read(tool, arguments)?;
                let request = Self::new(Call::CheckSessionPrerequisites { session }, Shape::Checks);
                Self { wait: CHECKING, ..request }
            }
            tools::PROPOSE => {
                let Propose { script: text, explanation } = read(tool, arguments)?;
                let shape = Shape::Proposal(session.clone());
                Self::with(Call::ProposeScript { session }, &ScriptProposal { text, explanation }, shape)
            }
            tools::SET_TITLE => {
                let title: TitleRequest = read(tool, arguments)?;
                Self::with(Call::SetTitle { session }, &title, Shape::Status(&["title"]))
            }
            tools::REPORT_PROGRESS => {
                let progress: ProgressRequest = read(tool, arguments)?;
                Self::with(Call::ReportProgress { session }, &progress, Shape::Status(&["progress"]))
            }
            _ => {
                let names = tools::NAMES.join(", ");
                return Err(format!("there is no tool {tool:?}\nhint: the tools are {names}"));
            }
        };
        Ok(request)
    }

    fn new(call: Call, shape: Shape) -> Self {
        Self { call, body: None, wait: Duration::ZERO, shape }
    }

    fn with(call: Call, body: &impl Serialize, shape: Shape) -> Self {
        // The types of bodies have string keys, and no part of them fails to serialise.
        let body = Some(serde_json::to_value(body).unwrap_or_default());
        Self { call, body, wait: Duration::ZERO, shape }
    }

    /// Returns the part of the answer that the model needs.
    pub(super) fn answer(&self, mut answer: Value) -> Value {
        match &self.shape {
            Shape::Context(set) => {
                if let (Some(set), Some(sets)) = (set, answer["sets"].as_object_mut()) {
                    sets.retain(|name, _| name == set);
                }
                answer
            }
            Shape::Status(fields) => {
                fields.iter().map(|field| ((*field).to_owned(), answer["status"][field].take())).collect()
            }
            Shape::Variables(names) => variables(&answer, names),
            Shape::Checks => checks(&answer),
            Shape::Proposal(session) => {
                let state = &answer["scripts"][0]["state"];
                let next = match state.as_str() {
                    Some("approved") => "it runs at the next launch of the session".to_owned(),
                    _ => format!(
                        "it runs at the next launch after the user has approved it; ask the user to run `agentctl env \
                         allow --session {session}`"
                    ),
                };
                json!({ "state": state, "next": next })
            }
        }
    }
}

/// Parses the arguments of a tool.
fn read<T: DeserializeOwned>(tool: &str, arguments: Value) -> Result<T, String> {
    // A tool without arguments may be called with none.
    let arguments = if arguments.is_null() { json!({}) } else { arguments };
    serde_json::from_value(arguments).map_err(|error| {
        format!("cannot read the arguments of {tool}: {error}\nhint: the schema of the tool names its arguments")
    })
}

/// Returns an object with these fields of another, as far as it has them.
fn only(object: &Value, fields: &[&str]) -> Value {
    let found = fields.iter().filter_map(|field| Some(((*field).to_owned(), object.get(*field)?.clone())));
    found.collect()
}

fn list(answer: &Value, name: &str) -> Vec<Value> {
    answer[name].as_array().cloned().unwrap_or_default()
}

/// Returns the variables with their origins. The endpoint never answers with a secret's value.
fn variables(answer: &Value, names: &[String]) -> Value {
    let is_asked = |variable: &Value| variable["name"].as_str().is_some_and(|name| names.iter().any(|one| one == name));
    let all = list(answer, "variables");
    let fields = ["name", "value", "provider", "origin", "secret", "expires_at"];
    if names.is_empty() {
        let variables: Vec<Value> = all.iter().map(|variable| only(variable, &fields)).collect();
        let dropped = list(answer, "dropped").len();
        return json!({ "variables": variables, "dropped": dropped });
    }
    let variables: Vec<Value> =
        all.iter().filter(|one| is_asked(one)).map(|variable| only(variable, &fields)).collect();
    let dropped = list(answer, "dropped");
    let dropped: Vec<Value> =
        dropped.iter().filter(|one| is_asked(one)).map(|one| only(one, &["name", "provider", "reason"])).collect();
    let is_known = |name: &&String| variables.iter().chain(&dropped).any(|one| one["name"] == name.as_str());
    let unset: Vec<&String> = names.iter().filter(|name| !is_known(name)).collect();
    json!({ "variables": variables, "dropped": dropped, "not_set": unset })
}

fn checks(answer: &Value) -> Value {
    let one = |view: &Value| {
        if let Some(report) = view.get("report").filter(|report| report.is_object()) {
            return only(report, &["name", "outcome", "summary", "facts", "remedy"]);
        }
        let problem = view.get("problem").cloned().unwrap_or_else(|| json!("it has not been checked yet"));
        json!({ "name": view["name"], "outcome": "unknown", "summary": problem })
    };
    json!({ "prerequisites": list(answer, "prerequisites").iter().map(one).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tool: &str, arguments: Value) -> Request {
        Request::of(tool, arguments, "k3m").unwrap_or_else(|error| panic!("{tool}: {error}"))
    }

    #[test]
    fn each_tool_is_one_call_for_its_own_session() {
        for (tool, arguments, call, body) in [
            (
                tools::SET_CONTEXT,
                json!({ "set": "ports", "items": ["80", 443], "mode": "replace" }),
                "PATCH /v1/sessions/k3m/context",
                json!({ "mode": "replace", "sets": { "ports": ["80", "443"] } }),
            ),
            (tools::GET_CONTEXT, json!({ "set": "files" }), "GET /v1/sessions/k3m/context", Value::Null),
            (tools::SET_HINT, json!({ "hint": null }), "PUT /v1/sessions/k3m/hint", json!({ "hint": null })),
            (tools::GET_ENVIRONMENT, Value::Null, "GET /v1/sessions/k3m/environment?at=last&values=false", Value::Null),
            (
                tools::GET_ENVIRONMENT,
                json!({ "names": ["CC"] }),
                "GET /v1/sessions/k3m/environment?at=last&values=true",
                Value::Null,
            ),
            (tools::CHECK, json!({}), "POST /v1/sessions/k3m/prerequisites/check", Value::Null),
            (
                tools::PROPOSE,
                json!({ "script": "export A=1", "explanation": "for A" }),
                "PUT /v1/sessions/k3m/script-proposal",
                json!({ "text": "export A=1", "explanation": "for A" }),
            ),
            (tools::SET_TITLE, json!({ "title": "t" }), "PUT /v1/sessions/k3m/title", json!({ "title": "t" })),
            (
                tools::REPORT_PROGRESS,
                json!({ "message": "m", "percent": 5 }),
                "PUT /v1/sessions/k3m/progress",
                json!({ "message": "m", "percent": 5 }),
            ),
        ] {
            let request = request(tool, arguments);
            assert_eq!(request.call.to_string(), call);
            assert_eq!(request.body.unwrap_or_default(), body, "{tool}");
        }
    }

    #[test]
    fn arguments_that_are_missing_wrong_or_unknown_are_named() {
        for (tool, arguments, expected) in [
            (tools::SET_CONTEXT, json!({ "set": "files" }), "items"),
            (tools::SET_CONTEXT, json!({ "set": "files", "items": [], "mode": "add" }), "add"),
            (tools::GET_CONTEXT, json!({ "session": "other" }), "session"),
            (tools::CHECK, json!({ "name": "vpn" }), "name"),
            (tools::REPORT_PROGRESS, json!({ "message": "m", "percent": 1000 }), "1000"),
            // Only an explicit null removes a text.
            (tools::SET_TITLE, json!({}), "title"),
            (tools::SET_HINT, Value::Null, "hint"),
            ("unlock", json!({}), "set_title"),
        ] {
            let error = Request::of(tool, arguments, "k3m").unwrap_err();
            assert!(error.contains(expected) && error.contains("hint: "), "{tool}: {error}");
        }
    }

    #[test]
    fn a_result_has_only_what_the_tool_is_about() {
        let answer = json!({ "id": "k3m", "status": { "title": "t", "phase": "idle" } });
        assert_eq!(request(tools::SET_TITLE, json!({ "title": "t" })).answer(answer), json!({ "title": "t" }));
        let context = json!({ "sets": { "files": [{ "value": "/a" }], "ports": [] } });
        assert_eq!(
            request(tools::GET_CONTEXT, json!({ "set": "files" })).answer(context),
            json!({ "sets": { "files": [{ "value": "/a" }] } })
        );
        let environment = json!({
            "variables": [
                { "name": "CC", "value": "gcc", "provider": "env-script", "origin": "/w/s", "digest": "0", "step": 3 },
                { "name": "KEY", "provider": "agentd", "secret": true },
            ],
            "dropped": [{ "name": "DISPLAY", "provider": "whitelist", "reason": "not listed", "step": 2 }],
        });
        assert_eq!(
            request(tools::GET_ENVIRONMENT, json!({ "names": ["CC", "DISPLAY", "NONE"] })).answer(environment.clone()),
            json!({
                "variables": [{ "name": "CC", "value": "gcc", "provider": "env-script", "origin": "/w/s" }],
                "dropped": [{ "name": "DISPLAY", "provider": "whitelist", "reason": "not listed" }],
                "not_set": ["NONE"],
            })
        );
        let all = request(tools::GET_ENVIRONMENT, json!({})).answer(environment);
        assert_eq!((all["variables"].as_array().unwrap().len(), &all["dropped"]), (2, &json!(1)));
        let proposed = json!({ "scripts": [{ "state": "not-approved" }] });
        let told = request(tools::PROPOSE, json!({ "script": "x" })).answer(proposed);
        assert!(told["next"].as_str().unwrap().contains("agentctl env allow --session k3m"), "{told}");
        let checked = json!({ "prerequisites": [
            { "name": "vpn", "settings": {}, "report": { "name": "vpn", "outcome": "fail", "summary": "down" } },
            { "name": "lab", "problem": "its plugin is suspended" },
        ] });
        assert_eq!(
            request(tools::CHECK, json!({})).answer(checked),
            json!({ "prerequisites": [
                { "name": "vpn", "outcome": "fail", "summary": "down" },
                { "name": "lab", "outcome": "unknown", "summary": "its plugin is suspended" },
            ] })
        );
    }
}
