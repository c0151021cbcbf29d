//! The permission requests and questions of a session that wait for an answer, and those of them that this editor was
//! asked.
//!
//! Each client of the session is asked, and the first answer counts. The daemon decides which one was first. An editor
//! that cannot show a form or a page is asked in the form of a permission request.

use agentd_api::PermissionId;
use agentd_api::elicitation::{ACCEPT, Elicitation, Form, FormValues};
use agentd_api::event::PermissionRequested;
use agentd_api::session::{PermissionAnswer, PermissionOption, PermissionRequest};
use agentd_screen::terminal::Screen;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::history::rewritten;
use super::wire::{Out, raw};
use crate::form;
use crate::render::answers;

/// Methods that ask the editor.
const PERMISSION: &str = "session/request_permission";
const ELICITATION: &str = "elicitation/create";
/// Notification of the agent that the page of a question is done.
const COMPLETE: &str = "elicitation/complete";
/// Number of the agent's requests that are kept until the daemon has named their permission.
const KEPT: usize = 64;
/// Kinds of tools that the protocol names; an editor may refuse others.
const KINDS: [&str; 10] =
    ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];

/// Kinds of questions that the editor can show (ACP `clientCapabilities.elicitation`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shows {
    form: bool,
    page: bool,
}

impl Shows {
    pub(super) fn of(capabilities: &Value) -> Self {
        let offered = |kind: &str| capabilities["elicitation"].get(kind).is_some_and(|offer| !offer.is_null());
        Self { form: offered("form"), page: offered("url") }
    }

    fn can_show(self, elicitation: &Elicitation) -> bool {
        match elicitation {
            Elicitation::Form { .. } => self.form,
            Elicitation::Url { .. } => self.page,
            Elicitation::Unknown => false,
        }
    }
}

/// The ids of options begin with this if they mean a choice of a form.
const CHOICE: &str = "choice:";

/// A permission request or a question without an answer.
#[derive(Debug)]
struct Open {
    request: PermissionRequest,
    method: &'static str,
    params: Box<RawValue>,
    /// Id of the request that the editor was sent.
    asked: Option<u64>,
    /// Whether the editor has answered.
    answered: bool,
}

#[derive(Debug)]
pub(super) struct Permissions {
    /// Id of the session, as the editor knows it.
    session: String,
    shows: Shows,
    /// The agent's own requests with their ids, oldest first.
    lines: Vec<(Box<RawValue>, Box<RawValue>)>,
    open: Vec<Open>,
    /// The agent's ids of the pages that the editor was shown.
    shown: Vec<String>,
}

impl Permissions {
    pub(super) fn new(session: &str, shows: Shows) -> Self {
        Self { session: session.to_owned(), shows, lines: Vec::new(), open: Vec::new(), shown: Vec::new() }
    }

    /// Keeps a request of the agent. The daemon's record about it follows.
    pub(super) fn sent(&mut self, id: &RawValue, params: &RawValue) {
        if self.lines.len() == KEPT {
            self.lines.remove(0);
        }
        self.lines.push((id.to_owned(), params.to_owned()));
    }

    pub(super) fn requested(&mut self, requested: &PermissionRequested) {
        let is_it = |(id, _): &(Box<RawValue>, Box<RawValue>)| is_same(id, &requested.rpc);
        let line = self.lines.iter().rposition(is_it).map(|at| self.lines.remove(at).1);
        self.add(requested.request.clone(), line);
    }

    /// Adds a request in the agent's own words, if they are known and the editor can show them.
    fn add(&mut self, request: PermissionRequest, line: Option<Box<RawValue>>) {
        let (method, verbatim) = match &request.elicitation {
            None => (PERMISSION, line),
            Some(elicitation) if self.shows.can_show(elicitation) => {
                (ELICITATION, line.filter(|line| is_of_session(line)))
            }
            Some(_) => (PERMISSION, None),
        };
        let verbatim = verbatim.and_then(|params| rewritten(&params, &self.session, None));
        let params = verbatim.unwrap_or_else(|| match (method, &request.elicitation) {
            (ELICITATION, Some(elicitation)) => question(&self.session, &request, elicitation),
            _ => composed(&self.session, &request),
        });
        self.open.push(Open { request, method, params, asked: None, answered: false });
    }

    /// Takes over the requests that the daemon reports as open.
    pub(super) fn adopt(&mut self, present: &[PermissionRequest]) {
        self.open.retain(|open| present.iter().any(|request| request.id == open.request.id));
        for request in present {
            if self.open.iter().all(|open| open.request.id != request.id) {
                self.add(request.clone(), None);
            }
        }
    }

    /// Asks the editor everything that it was not asked yet.
    pub(super) async fn ask(&mut self, out: &Out) {
        for open in self.open.iter_mut().filter(|open| open.asked.is_none()) {
            open.asked = Some(out.ask(open.method, &open.params).await);
            if let (ELICITATION, Some(Elicitation::Url { id, .. })) = (open.method, &open.request.elicitation) {
                if self.shown.len() == KEPT {
                    self.shown.remove(0);
                }
                self.shown.push(id.clone());
            }
        }
    }

    /// Reports whether a notification of the agent is about a page that the editor was shown.
    pub(super) fn completes_shown(&self, method: &str, params: Option<&RawValue>) -> bool {
        #[derive(Deserialize)]
        struct Completed {
            #[serde(rename = "elicitationId")]
            id: String,
        }
        let completed = params.filter(|_| method == COMPLETE).map(|params| serde_json::from_str(params.get()));
        matches!(completed, Some(Ok(Completed { id })) if self.shown.contains(&id))
    }

    /// Reads the editor's answer to the request with this id. Returns `None` for a late answer, and for a cancelled one
    /// if `cancelling`: the daemon answers the requests of a cancelled turn. An error leaves the request to other
    /// clients.
    pub(super) fn answered(
        &mut self,
        id: u64,
        outcome: Result<Value, Value>,
        cancelling: bool,
    ) -> Option<Result<(PermissionId, PermissionAnswer), String>> {
        let open = self.open.iter_mut().find(|open| open.asked == Some(id) && !open.answered)?;
        open.answered = true;
        let id = &open.request.id;
        let result = match outcome {
            Ok(result) => result,
            Err(error) => {
                let why = error["message"].as_str().unwrap_or_default();
                return Some(Err(format!("the editor cannot answer permission request {id}: {why}")));
            }
        };
        let (said, option) = if open.method == ELICITATION {
            (result["action"].as_str(), None)
        } else {
            (result["outcome"]["outcome"].as_str(), result["outcome"]["optionId"].as_str())
        };
        let answer = match (said, option) {
            (Some("accept"), _) => match &open.request.elicitation {
                Some(Elicitation::Form { .. }) => {
                    PermissionAnswer::Form(result["content"].as_object().cloned().unwrap_or_default())
                }
                _ => PermissionAnswer::Allow,
            },
            (Some("selected"), Some(option)) => {
                let choice = option.strip_prefix(CHOICE).filter(|_| open.request.elicitation.is_some());
                let picked = choice.and_then(|number| form::pick(&open.request, number.parse().ok()?));
                picked.unwrap_or_else(|| PermissionAnswer::Option(option.to_owned()))
            }
            (Some("cancelled" | "cancel"), _) if cancelling => return None,
            (Some("cancelled" | "cancel" | "decline"), _) => PermissionAnswer::Deny,
            _ => return Some(Err(format!("the editor's answer to permission request {id} cannot be read"))),
        };
        Some(Ok((id.clone(), answer)))
    }

    /// Removes a request that has an answer, and withdraws it from the editor if the editor has not answered.
    pub(super) async fn resolved(&mut self, permission: &PermissionId, out: &Out) {
        let Some(at) = self.open.iter().position(|open| open.request.id == *permission) else { return };
        let open = self.open.remove(at);
        if let Some(id) = open.asked.filter(|_| !open.answered) {
            out.withdraw(id).await;
        }
    }

    /// Withdraws every request: the agent that asked is gone, or this editor leaves.
    pub(super) async fn clear(&mut self, out: &Out) {
        for id in self.open.drain(..).filter(|open| !open.answered).filter_map(|open| open.asked) {
            out.withdraw(id).await;
        }
    }
}

/// Reports whether the daemon's record names the request with this id.
fn is_same(id: &RawValue, rpc: &Value) -> bool {
    match rpc.get("verbatim") {
        Some(text) => text.as_str() == Some(id.get()),
        None => serde_json::from_str::<Value>(id.get()).is_ok_and(|id| id == *rpc),
    }
}

/// Reports whether a question belongs to the session, and not to a request that the editor does not know.
fn is_of_session(params: &RawValue) -> bool {
    serde_json::from_str::<Value>(params.get()).is_ok_and(|params| params.get("requestId").is_none())
}

/// Returns a question in the protocol's form.
fn question(session: &str, request: &PermissionRequest, elicitation: &Elicitation) -> Box<RawValue> {
    let mut params = json!({ "sessionId": session, "message": request.title });
    let more = match elicitation {
        Elicitation::Form { schema, .. } => json!({ "mode": "form", "requestedSchema": schema }),
        Elicitation::Url { id, url } => json!({ "mode": "url", "elicitationId": id, "url": url }),
        Elicitation::Unknown => json!({}),
    };
    for (key, value) in more.as_object().into_iter().flatten() {
        params[key] = value.clone();
    }
    raw(&params)
}

/// Returns the options of a request. The choices of a form with one choice are options; another form that needs a
/// value can only be declined here.
fn options(request: &PermissionRequest) -> Vec<Value> {
    let form = request.elicitation.as_ref().and_then(Elicitation::form);
    let choices = form.as_ref().and_then(Form::single_choice).map(|(_, choices)| choices).unwrap_or_default();
    let choices = choices.iter().enumerate().map(
        |(at, choice)| json!({ "optionId": format!("{CHOICE}{}", at + 1), "name": choice.title, "kind": "allow_once" }),
    );
    let is_complete = form.as_ref().is_none_or(|form| form.check(FormValues::new()).is_ok());
    let is_offered = |option: &&PermissionOption| option.id != ACCEPT || (is_complete && choices.len() == 0);
    let own = request.options.iter().filter(|option| request.elicitation.is_none() || is_offered(option));
    let own = own.map(|option| json!({ "optionId": option.id, "name": option.name, "kind": option.kind }));
    choices.clone().chain(own).collect()
}

/// Returns the title of a request. That of a question has the fields or the page, and how to answer elsewhere.
fn title(session: &str, request: &PermissionRequest) -> String {
    if request.elicitation.is_none() {
        return request.title.clone();
    }
    let fields = form::lines(request, Screen { terminal: false, colour: false }).join("\n");
    let answers = answers(request);
    format!("{}\n{fields}\n(in a terminal: agentctl answer {session} {} {answers})", request.title, request.id)
}

/// Returns the request in the daemon's own words: for a question of agentd, and for a request that the editor cannot
/// show. Also if the journal has lost the agent's words.
fn composed(session: &str, request: &PermissionRequest) -> Box<RawValue> {
    let details = &request.details;
    let mut call = Map::new();
    let id = details.tool_call.clone().unwrap_or_else(|| request.id.to_string());
    call.insert("toolCallId".to_owned(), json!(id));
    call.insert("title".to_owned(), json!(title(session, request)));
    if let Some(kind) = request.tool_kind.as_deref().filter(|kind| KINDS.contains(kind)) {
        call.insert("kind".to_owned(), json!(kind));
    }
    let arguments = details.arguments.as_deref().map(|text| serde_json::from_str(text).unwrap_or_else(|_| json!(text)));
    if let Some(input) = arguments.or_else(|| details.command.as_ref().map(|command| json!({ "command": command }))) {
        call.insert("rawInput".to_owned(), input);
    }
    let diffs: Vec<Value> = details
        .diffs
        .iter()
        .map(|diff| json!({ "type": "diff", "path": diff.path, "oldText": diff.old, "newText": diff.new }))
        .collect();
    if !diffs.is_empty() {
        call.insert("content".to_owned(), json!(diffs));
    }
    raw(&json!({ "sessionId": session, "toolCall": call, "options": options(request) }))
}

#[cfg(test)]
mod tests {
    use agentd_api::acp::Outgoing;
    use tokio::sync::mpsc;

    use super::*;

    fn text(json: &str) -> Box<RawValue> {
        RawValue::from_string(json.to_owned()).unwrap()
    }

    fn requested(id: &str, rpc: Value) -> PermissionRequested {
        let options = json!([{ "id": "yes", "name": "Yes", "kind": "allow_once" }]);
        let request = json!({ "id": id, "title": "edit it", "tool_kind": "edit", "options": options });
        PermissionRequested { request: serde_json::from_value(request).unwrap(), rpc }
    }

    fn said(lines: &mut mpsc::Receiver<Outgoing>) -> Value {
        serde_json::from_slice(&lines.try_recv().unwrap().line).unwrap()
    }

    #[tokio::test]
    async fn the_agents_own_words_reach_the_editor_once_and_are_withdrawn_when_another_client_answers() {
        let (sender, mut lines) = mpsc::channel(9);
        let out = Out::new(sender);
        let mut permissions = Permissions::new("k3m", Shows::default());
        permissions.sent(&text(r#""a\uDE00""#), &text(r#"{"sessionId":"c","toolCall":{"toolCallId":"t","new":1}}"#));
        permissions.requested(&requested("p1", json!({ "verbatim": r#""a\uDE00""# })));
        permissions.ask(&out).await;
        permissions.ask(&out).await;
        let asked = said(&mut lines);
        assert_eq!(asked["params"], json!({ "sessionId": "k3m", "toolCall": { "toolCallId": "t", "new": 1 } }));
        assert!(lines.try_recv().is_err(), "it is asked once");
        let id = asked["id"].as_u64().unwrap();
        permissions.resolved(&"p1".parse().unwrap(), &out).await;
        let withdrawn = said(&mut lines);
        assert_eq!((&withdrawn["method"], &withdrawn["params"]["requestId"]), (&json!("$/cancel_request"), &json!(id)));
        assert_eq!(permissions.answered(id, Ok(Value::Null), false), None, "a late answer has no request");
    }

    fn form(properties: &Value, required: &Value) -> PermissionRequest {
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        let accept = json!({ "id": "accept", "name": "Answer", "kind": "allow_once" });
        let decline = json!({ "id": "decline", "name": "Decline", "kind": "reject_once" });
        serde_json::from_value(json!({
            "id": "p1", "title": "Which?", "options": [accept, decline],
            "elicitation": { "mode": "form", "schema": schema },
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn an_editor_that_shows_forms_gets_the_question_and_its_answer_is_read() {
        let (sender, mut lines) = mpsc::channel(9);
        let out = Out::new(sender);
        let shows = Shows::of(&json!({ "elicitation": { "form": {}, "url": null } }));
        let request = form(&json!({ "n": { "type": "integer" } }), &json!(["n"]));
        let own = r#"{"sessionId":"c","mode":"form","message":"Which?","requestedSchema":{},"new":1}"#;
        let of_request = r#"{"requestId":7,"mode":"form","message":"Which?","requestedSchema":{}}"#;
        for (line, is_own) in [(own, true), (of_request, false)] {
            let mut permissions = Permissions::new("k3m", shows);
            permissions.sent(&text("1"), &text(line));
            permissions.requested(&PermissionRequested { request: request.clone(), rpc: json!(1) });
            permissions.ask(&out).await;
            let asked = said(&mut lines);
            assert_eq!(asked["method"], "elicitation/create");
            assert_eq!((&asked["params"]["sessionId"], asked["params"]["new"] == 1), (&json!("k3m"), is_own));
            assert!(asked["params"].get("requestId").is_none());
            let params = asked["params"].clone();
            serde_json::from_value::<agent_client_protocol_schema::v1::CreateElicitationRequest>(params).unwrap();
            let answer = json!({ "action": "accept", "content": { "n": 3 } });
            let (_, answer) = permissions.answered(asked["id"].as_u64().unwrap(), Ok(answer), false).unwrap().unwrap();
            assert_eq!(answer, PermissionAnswer::Form(serde_json::from_value(json!({ "n": 3 })).unwrap()));
        }
    }

    #[test]
    fn an_editor_that_shows_no_forms_gets_the_choices_as_options() {
        let ids = |request: &PermissionRequest| -> Vec<String> {
            options(request).iter().map(|option| option["optionId"].as_str().unwrap().to_owned()).collect()
        };
        let choice = form(&json!({ "q": { "type": "string", "enum": ["a", "b"] } }), &json!(["q"]));
        assert_eq!(ids(&choice), ["choice:1", "choice:2", "decline"]);
        assert_eq!(ids(&form(&json!({ "n": { "type": "integer" } }), &json!(["n"]))), ["decline"]);
        assert_eq!(
            ids(&form(&json!({ "n": { "type": "integer", "default": 1 } }), &json!(["n"]))),
            ["accept", "decline"]
        );
        assert!(title("k3m", &choice).contains("1) a\n"), "{}", title("k3m", &choice));
        let mut permissions = Permissions::new("k3m", Shows::default());
        permissions.adopt(&[choice]);
        permissions.open[0].asked = Some(1);
        let selected = json!({ "outcome": { "outcome": "selected", "optionId": "choice:2" } });
        let (_, answer) = permissions.answered(1, Ok(selected), false).unwrap().unwrap();
        assert_eq!(answer, PermissionAnswer::Form(serde_json::from_value(json!({ "q": "b" })).unwrap()));
    }

    #[tokio::test]
    async fn a_question_of_the_daemon_is_a_request_that_the_protocol_allows() {
        let (sender, mut lines) = mpsc::channel(9);
        let mut permissions = Permissions::new("k3m", Shows::default());
        permissions.adopt(&[requested("p1", Value::Null).request]);
        permissions.adopt(&[requested("p1", Value::Null).request]);
        permissions.ask(&Out::new(sender)).await;
        let params = said(&mut lines)["params"].take();
        serde_json::from_value::<agent_client_protocol_schema::v1::RequestPermissionRequest>(params.clone()).unwrap();
        assert_eq!(
            (&params["toolCall"]["toolCallId"], &params["options"][0]["optionId"]),
            (&json!("p1"), &json!("yes"))
        );
        assert!(lines.try_recv().is_err());
    }
}
