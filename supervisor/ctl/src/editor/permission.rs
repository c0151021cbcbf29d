//! The permission requests of a session that wait for an answer, and those of them that this editor was asked.
//!
//! Each client of the session is asked, and the first answer counts. The daemon decides which one was first.

use agentd_api::PermissionId;
use agentd_api::event::PermissionRequested;
use agentd_api::session::PermissionRequest;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::history::rewritten;
use super::wire::{Out, raw};

/// Number of the agent's requests that are kept until the daemon has named their permission.
const KEPT: usize = 64;
/// Kinds of tools that the protocol names; an editor may refuse others.
const KINDS: [&str; 10] =
    ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];

/// A permission request without an answer.
#[derive(Debug)]
struct Open {
    permission: PermissionId,
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
    /// The agent's own requests with their ids, oldest first.
    lines: Vec<(Box<RawValue>, Box<RawValue>)>,
    open: Vec<Open>,
}

impl Permissions {
    pub(super) fn new(session: &str) -> Self {
        Self { session: session.to_owned(), lines: Vec::new(), open: Vec::new() }
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
        let verbatim = line.and_then(|params| rewritten(&params, &self.session, None));
        let params = verbatim.unwrap_or_else(|| composed(&self.session, &requested.request));
        self.open.push(Open { permission: requested.request.id.clone(), params, asked: None, answered: false });
    }

    /// Takes over the requests that the daemon reports as open.
    pub(super) fn adopt(&mut self, present: &[PermissionRequest]) {
        self.open.retain(|open| present.iter().any(|request| request.id == open.permission));
        for request in present {
            if self.open.iter().all(|open| open.permission != request.id) {
                let params = composed(&self.session, request);
                self.open.push(Open { permission: request.id.clone(), params, asked: None, answered: false });
            }
        }
    }

    /// Asks the editor everything that it was not asked yet.
    pub(super) async fn ask(&mut self, out: &Out) {
        for open in self.open.iter_mut().filter(|open| open.asked.is_none()) {
            open.asked = Some(out.ask("session/request_permission", &open.params).await);
        }
    }

    /// Returns the permission request that the editor has answered with this id. A late answer has no request.
    pub(super) fn answered(&mut self, id: u64) -> Option<PermissionId> {
        let open = self.open.iter_mut().find(|open| open.asked == Some(id) && !open.answered)?;
        open.answered = true;
        Some(open.permission.clone())
    }

    /// Removes a request that has an answer, and withdraws it from the editor if the editor has not answered.
    pub(super) async fn resolved(&mut self, permission: &PermissionId, out: &Out) {
        let Some(at) = self.open.iter().position(|open| open.permission == *permission) else { return };
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

/// Returns the request from the daemon's own words: for a question of agentd, or if the journal has lost the agent's.
fn composed(session: &str, request: &PermissionRequest) -> Box<RawValue> {
    let details = &request.details;
    let mut call = Map::new();
    let id = details.tool_call.clone().unwrap_or_else(|| request.id.to_string());
    call.insert("toolCallId".to_owned(), json!(id));
    call.insert("title".to_owned(), json!(request.title));
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
    let options = request.options.iter();
    let options: Vec<Value> =
        options.map(|option| json!({ "optionId": option.id, "name": option.name, "kind": option.kind })).collect();
    raw(&json!({ "sessionId": session, "toolCall": call, "options": options }))
}

#[cfg(test)]
mod tests {
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

    fn said(lines: &mut mpsc::Receiver<Vec<u8>>) -> Value {
        serde_json::from_slice(&lines.try_recv().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn the_agents_own_words_reach_the_editor_once_and_are_withdrawn_when_another_client_answers() {
        let (sender, mut lines) = mpsc::channel(9);
        let out = Out::new(sender);
        let mut permissions = Permissions::new("k3m");
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
        assert_eq!(permissions.answered(id), None, "a late answer has no request");
    }

    #[tokio::test]
    async fn a_question_of_the_daemon_is_a_request_that_the_protocol_allows() {
        let (sender, mut lines) = mpsc::channel(9);
        let mut permissions = Permissions::new("k3m");
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
