//! Applies the lines between agentd and an agent to the state. Requests of either side are pending until they are
//! answered.

use agentd_api::elicitation::Elicitation;
use agentd_api::event::OpenedBy;
use agentd_api::session::{AgentInfo, PermissionOption};
use agentd_api::surrogates::replace_lone_surrogates;
use serde_json::value::RawValue;

use crate::acp::{self, Call, Message, Question, RpcError, ToolCall};
use crate::note::ToolCallName;
use crate::state::{AgentRequest, OpenRefused, Opening, Pending, Run, Running, State, Title};
use agentd_permission::PermissionDraft;

/// Maximum number of open tool calls kept. A permission request for a dropped tool call is described by its own
/// fields.
const CALLS: usize = 32;

impl Running {
    /// Records or updates a tool call that has not ended.
    fn announced(&mut self, call: Call) {
        if let Some(known) = self.calls.iter_mut().find(|known| known.id == call.id) {
            return known.update(call);
        }
        if self.calls.len() == CALLS {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    /// Returns the names of the tool calls with these ids.
    pub(crate) fn names_of<'a>(&self, ids: impl IntoIterator<Item = &'a String>) -> Vec<ToolCallName> {
        ToolCallName::of(ids, |id| self.calls.iter().find(|call| call.id == id).map(ToolCallName::from))
    }

    /// Builds the content of a permission request, including details that its tool call reported before.
    fn draft(&self, asked: Call, options: Vec<PermissionOption>, agent: Option<&AgentInfo>) -> PermissionDraft {
        let before = self.calls.iter().find(|known| known.id == asked.id && !asked.id.is_empty());
        let mut call = before.cloned().unwrap_or_default();
        call.update(asked);
        call.settle(agent.map(|agent| agent.name.as_str()));
        let id = call.details.tool_call.clone();
        let title = call.title.or(id).unwrap_or_else(|| "an unnamed operation".to_owned());
        PermissionDraft { title, tool_kind: call.kind, details: call.details, options }
    }

    /// Builds the content of a question, including details of the tool call that it belongs to.
    fn question(&self, asked: Question, agent: Option<&AgentInfo>) -> (PermissionDraft, Elicitation) {
        let Question { message, tool_call, elicitation } = asked;
        let call = Call { id: tool_call.unwrap_or_default(), ..Call::default() };
        let draft = self.draft(call, acp::question_options(&elicitation), agent);
        (PermissionDraft { title: message, ..draft }, elicitation)
    }
}

impl State {
    /// Applies a line that agentd sent. A request becomes pending; a response closes the agent's request.
    pub fn agent_in(&mut self, line: &RawValue) {
        let Run::Running(running) = &mut self.run else { return };
        let readable = replace_lone_surrogates(line);
        match Message::parse(&readable, line) {
            Some(Message::Request { id, method, params }) => {
                let Some(id) = id.as_u64() else { return };
                self.next_rpc = self.next_rpc.max(id + 1);
                let is_opening = [acp::method::LOAD, acp::method::RESUME, acp::method::FORK].contains(&method.as_str());
                if is_opening && matches!(running.opening, Opening::Refused(_)) {
                    running.is_second_attempt = true;
                    running.opening = Opening::Initialized(running.capabilities);
                }
                if method == acp::method::INITIALIZE {
                    running.editor = params.map(acp::offered_to_agent).unwrap_or_default();
                }
                let pending = match method.as_str() {
                    acp::method::INITIALIZE => Pending::Initialize,
                    acp::method::AUTHENTICATE => Pending::Authenticate,
                    acp::method::NEW if running.fresh => Pending::Open(OpenedBy::New),
                    acp::method::NEW => Pending::Open(OpenedBy::NewAfterLoss),
                    acp::method::LOAD => Pending::Open(OpenedBy::Load),
                    acp::method::RESUME => Pending::Open(OpenedBy::Resume),
                    acp::method::FORK => Pending::Open(OpenedBy::Fork),
                    acp::method::PROMPT => match &running.turn {
                        Some(turn) => Pending::Prompt(turn.id.clone()),
                        None => return,
                    },
                    acp::method::SET_OPTION | acp::method::SET_MODE | acp::method::SET_MODEL => {
                        match params.and_then(acp::option_of) {
                            Some((option, value)) => Pending::Option { option, value },
                            None => return,
                        }
                    }
                    _ => return,
                };
                running.pending.insert(id, pending);
            }
            Some(Message::Response { id, .. }) => running.asked.retain(|asked| asked.rpc != id),
            Some(Message::Notification { .. }) | None => {}
        }
    }

    /// Applies a line that the agent sent.
    pub fn agent_out(&mut self, line: &RawValue) {
        if !acp::concerns_the_session(line.get().as_bytes()) {
            return;
        }
        let Run::Running(running) = &mut self.run else { return };
        let readable = replace_lone_surrogates(line);
        match Message::parse(&readable, line) {
            Some(Message::Request { id, method, params }) => {
                let (permission, elicitation) = match method.as_str() {
                    acp::method::REQUEST_PERMISSION => {
                        let asked = params.and_then(acp::permission_request);
                        (asked.map(|(call, options)| running.draft(call, options, self.agent.as_ref())), None)
                    }
                    acp::method::ELICITATION => match params.and_then(acp::question) {
                        Some(asked) => {
                            let (draft, elicitation) = running.question(asked, self.agent.as_ref());
                            (Some(draft), Some(elicitation))
                        }
                        None => (None, None),
                    },
                    _ => (None, None),
                };
                running.asked.push(AgentRequest { rpc: id, method, permission, elicitation });
            }
            Some(Message::Notification { method, params: Some(params) }) if method == acp::method::UPDATE => {
                match acp::tool_call(params) {
                    Some(ToolCall::Open(call, has_state)) => {
                        if let Some(turn) = running.turn.as_mut().filter(|_| has_state) {
                            turn.tool_calls.insert(call.id.clone());
                        }
                        running.announced(*call);
                    }
                    Some(ToolCall::Closed(id)) => {
                        if let Some(turn) = &mut running.turn {
                            turn.tool_calls.remove(&id);
                        }
                        running.calls.retain(|call| call.id != id);
                    }
                    None => {
                        if let Some(title) = acp::session_title(params) {
                            self.title.agent = title.as_deref().and_then(Title::of);
                        } else if let Some(update) = acp::option_update(params) {
                            self.options_updated(update);
                        }
                    }
                }
            }
            Some(Message::Response { id, result }) => {
                let pending = id.as_u64().and_then(|id| running.pending.remove(&id));
                match pending {
                    Some(Pending::Initialize) => self.initialized(result),
                    Some(Pending::Authenticate) => running.login.answered(result.as_ref().err()),
                    Some(Pending::Open(by)) => {
                        self.options_offered(result.as_ref().map(|result| acp::options(result)).unwrap_or_default());
                        self.opened(by, result);
                    }
                    Some(Pending::Option { option, value }) => {
                        let all = |result: &RawValue| acp::config_options(&serde_json::from_str(result.get()).ok()?);
                        self.option_answered(option, value, result.map(all));
                    }
                    Some(Pending::Prompt(id)) => {
                        if let Some(turn) = self.turn_mut().filter(|turn| turn.id == id) {
                            turn.answer = Some(result.map(acp::stop_reason));
                        }
                    }
                    None => {}
                }
            }
            Some(Message::Notification { .. }) | None => {}
        }
    }

    fn initialized(&mut self, result: Result<&RawValue, RpcError>) {
        let opening = match result.map_err(|error| error.to_string()).and_then(acp::initialized) {
            Ok(initialized) if initialized.protocol == 1 => {
                self.agent = initialized.agent;
                self.login_methods = initialized.login_methods;
                self.can_fork = initialized.capabilities.fork;
                self.can_delete = initialized.capabilities.delete;
                if let Run::Running(running) = &mut self.run {
                    running.capabilities = initialized.capabilities;
                }
                Opening::Initialized(initialized.capabilities)
            }
            Ok(initialized) => Opening::Refused(OpenRefused::Initialize(format!(
                "the agent speaks version {} of the Agent Client Protocol and agentd speaks version 1: install a \
                 release of the agent that speaks version 1",
                initialized.protocol
            ))),
            Err(error) => {
                Opening::Refused(OpenRefused::Initialize(format!("the agent answered with an error: {error}")))
            }
        };
        self.set_opening(opening);
    }

    fn opened(&mut self, by: OpenedBy, result: Result<&RawValue, RpcError>) {
        let refused = |error: String, code: i64| Opening::Refused(OpenRefused::Open { by, error, code });
        let opening = match (result, by) {
            (Err(error), _) => refused(error.to_string(), error.code),
            (Ok(_), OpenedBy::Load | OpenedBy::Resume) => match &self.conversation {
                Some(conversation) => Opening::Answered { conversation: conversation.clone(), by },
                None => return,
            },
            (Ok(result), _) => match acp::opened(result) {
                Some(conversation) => Opening::Answered { conversation, by },
                None => refused("the response has no sessionId".to_owned(), 0),
            },
        };
        self.set_opening(opening);
    }

    fn set_opening(&mut self, opening: Opening) {
        if let Run::Running(running) = &mut self.run {
            running.opening = opening;
        }
    }
}

#[cfg(test)]
mod tests {
    use agentd_api::Event;
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn half_an_emoji_loses_neither_a_question_nor_an_answer() {
        let mut state = State::new(Timestamp::UNIX_EPOCH);
        for (at, (kind, data)) in [
            ("launch.started", r#"{"launch":1,"reason":"create"}"#),
            ("agent.started", r#"{"launch":1,"pid":7,"start_time":1,"command":["a"]}"#),
            ("conversation.opened", r#"{"launch":1,"conversation":"c","by":"new"}"#),
            ("turn.queued", r#"{"turn":"t1","prompt":"p"}"#),
            ("turn.started", r#"{"turn":"t1","rpc":3}"#),
            ("agent.in", r#"{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{}}"#),
            (
                "agent.out",
                concat!(
                    r#"{"jsonrpc":"2.0","id":9,"method":"session/request_permission","#,
                    r#""params":{"toolCall":{"title":"rm \ud83d"},"options":[]}}"#
                ),
            ),
            ("agent.out", r#"{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no \ude00"}}"#),
        ]
        .into_iter()
        .enumerate()
        {
            let time = "2026-01-01T00:00:00.000000Z";
            let line = format!(r#"{{"seq":{},"time":"{time}","kind":"{kind}","data":{data}}}"#, at + 1);
            state.apply(&Event::parse(line.as_bytes()).unwrap());
        }
        let Run::Running(running) = &state.run else { panic!("{state:?}") };
        let asked = running.asked[0].permission.as_ref().expect("it is a question");
        assert_eq!(asked.title, "rm \u{fffd}");
        let answer = running.turn.as_ref().and_then(|turn| turn.answer.as_ref()).expect("it is an answer");
        assert_eq!(answer.as_ref().unwrap_err().message, "no \u{fffd}");
    }
}
