//! Requests of the agent that only an editor can carry out: its files and its terminals.
//!
//! Each editor that offers the method is asked, and the first answer counts.

use agentd_api::editor::{EditorTool, RequestAnswer, RequestOutcome};
use serde_json::Value;
use serde_json::value::RawValue;

use super::history::rewritten;
use super::wire::Out;

/// Requests that the editor carries out for an agent (ACP `clientCapabilities`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Offers {
    reads: bool,
    writes: bool,
    terminal: bool,
}

impl Offers {
    pub(super) fn of(capabilities: &Value) -> Self {
        let fs = |method: &str| capabilities["fs"][method] == true;
        Self { reads: fs("readTextFile"), writes: fs("writeTextFile"), terminal: capabilities["terminal"] == true }
    }

    fn has(self, method: &str) -> bool {
        match (EditorTool::of_method(method), method) {
            (Some(EditorTool::Fs), "fs/read_text_file") => self.reads,
            (Some(EditorTool::Fs), _) => self.writes,
            (Some(EditorTool::Terminal), _) => self.terminal,
            (None, _) => false,
        }
    }
}

/// A request of the agent without an answer.
#[derive(Debug)]
struct Open {
    id: Box<RawValue>,
    method: String,
    params: Box<RawValue>,
    /// Id of the request that the editor was sent.
    asked: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Requests {
    /// Id of the session, as the editor knows it.
    session: String,
    offers: Offers,
    open: Vec<Open>,
}

impl Requests {
    pub(super) fn new(session: &str, offers: Offers) -> Self {
        Self { session: session.to_owned(), offers, open: Vec::new() }
    }

    /// Takes a request of the agent that the editor can carry out.
    pub(super) fn sent(&mut self, id: &RawValue, method: &str, params: &RawValue) {
        if self.offers.has(method) {
            let (id, method, params) = (id.to_owned(), method.to_owned(), params.to_owned());
            self.open.push(Open { id, method, params, asked: None });
        }
    }

    /// Removes the request with this id, which has an answer, and withdraws it from the editor.
    pub(super) async fn resolved(&mut self, id: &RawValue, out: &Out) {
        let Some(at) = self.open.iter().position(|open| open.id.get() == id.get()) else { return };
        if let Some(asked) = self.open.remove(at).asked {
            out.withdraw(asked).await;
        }
    }

    /// Asks the editor everything that it was not asked yet.
    pub(super) async fn ask(&mut self, out: &Out) {
        for open in self.open.iter_mut().filter(|open| open.asked.is_none()) {
            if let Some(params) = rewritten(&open.params, &self.session, None) {
                open.asked = Some(out.ask(&open.method, &params).await);
            }
        }
    }

    /// Returns the editor's answer to the request with this id, for the agent.
    pub(super) fn answered(&mut self, id: u64, outcome: &Result<Value, Value>) -> Option<RequestAnswer> {
        let at = self.open.iter().position(|open| open.asked == Some(id))?;
        let id = serde_json::from_str(self.open.remove(at).id.get()).ok()?;
        let outcome = match outcome {
            Ok(result) => RequestOutcome::Result(result.clone()),
            Err(error) => RequestOutcome::Error(error.clone()),
        };
        Some(RequestAnswer { id, outcome })
    }

    /// Withdraws every request: the agent is gone, or this editor leaves.
    pub(super) async fn clear(&mut self, out: &Out) {
        for id in self.open.drain(..).filter_map(|open| open.asked) {
            out.withdraw(id).await;
        }
    }
}
