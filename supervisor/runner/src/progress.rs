//! Prints the progress of a run: a line for each step on standard error, or each event as JSON on standard output.
//!
//! A closed output is no reason to fail. Then the lines are left out.

use std::io::{self, Write as _};

use agentd_api::event::{AgentExited, TurnEnded};
use agentd_api::reason::is_progress;
use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_api::{Body, Event};
use agentd_screen::terminal::{self, Screen};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::result::RunResult;
use crate::status::Status;

/// Maximum width of a text of the agent in a line, in columns.
const COLUMNS: usize = 200;

/// The output of a run.
#[derive(Debug)]
pub(crate) struct Progress {
    json: bool,
    /// The session, if a client answers its questions. Otherwise its questions are not printed.
    asking: Option<String>,
}

impl Progress {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, asking: None }
    }

    /// Prints the questions of this session, with the command that answers them.
    pub(crate) fn ask_for(&mut self, session: &str) {
        self.asking = Some(session.to_owned());
    }

    /// Prints a line about the run. With JSON, only events and errors are printed.
    pub(crate) fn line(&mut self, text: &str) {
        if !self.json {
            Self::error_line(text);
        }
    }

    /// Prints an error.
    pub(crate) fn error(text: &str) {
        Self::error_line(&format!("error: {text}"));
    }

    fn error_line(text: &str) {
        let text = format!("agentd: {}\n", Screen::stderr().text(text));
        let _ = io::stderr().write_all(text.as_bytes());
    }

    /// Prints an event: the whole record, or a line about it.
    pub(crate) fn event(&mut self, event: &Event, line: &[u8]) {
        if self.json {
            Self::json_line(line);
        } else if let Some(text) = described(&event.body, self.asking.as_deref()) {
            self.line(&text);
        }
    }

    fn json_line(line: &[u8]) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(&[line, b"\n"].concat()).and_then(|()| out.flush());
    }

    /// Prints the result: the agent's last message on standard output, and everything else on standard error.
    pub(crate) fn end(&mut self, result: &RunResult) {
        if self.json {
            let document = serde_json::json!({ "result": result });
            Self::json_line(document.to_string().as_bytes());
        } else if let Some(answer) = result.completion.as_ref().and_then(|done| done.answer.as_ref()) {
            let text = format!("{}\n", Screen::stdout().text(answer.trim_end_matches('\n')));
            let mut out = io::stdout().lock();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
        for missing in &result.undelivered {
            Self::error(&format!("not delivered: {missing}"));
        }
        let end = format!("{} (exit status {}): {}", result.outcome, result.exit_status, result.reason);
        match result.status {
            Status::Completed => self.line(&end),
            _ => Self::error(&end),
        }
    }
}

/// Describes an event in one line, if it is of interest to a reader of the log. `asking` is the session whose questions
/// a client answers.
fn described(body: &Body, asking: Option<&str>) -> Option<String> {
    let excerpt = |text: &str| terminal::excerpt(text, COLUMNS);
    Some(match body {
        Body::LaunchStarted(launch) => format!("launch {} began", launch.launch),
        Body::LaunchFailed(failed) => {
            format!("launch {} failed: {}: {}", failed.launch, failed.reason, excerpt(&failed.message))
        }
        Body::Condition(condition) if condition.status == ConditionStatus::False => match condition.kind {
            // Other events report the phase, the agent's start and its end.
            ConditionType::Ready | ConditionType::AgentStarted | ConditionType::ConversationReady => return None,
            _ if is_progress(&condition.reason) => excerpt(&condition.message),
            kind => format!("{kind:?} is False: {}: {}", condition.reason, excerpt(&condition.message)),
        },
        Body::AgentStarted(agent) => format!("the agent runs as process {}", agent.pid),
        Body::AgentStderr(text) => format!("agent's stderr: {}", excerpt(text.text.display().trim_end())),
        Body::AgentUnusable(unusable) => excerpt(&unusable.message),
        Body::AgentExited(exited) => exit(exited),
        Body::ConversationOpened(opened) => format!("conversation {} is open", excerpt(&opened.conversation)),
        Body::TurnStarted(turn) => format!("turn {} began", turn.turn),
        Body::TurnLimited(limited) => format!(
            "turn {} waits until {} for the end of a rate limit: {}",
            limited.turn,
            limited.until,
            excerpt(&limited.message)
        ),
        Body::TurnSilent(silent) => format!("the agent has sent nothing for {} s", silent.seconds),
        Body::TurnEnded(ended) => turn_end(ended),
        Body::AgentOut(message) => format!("tool: {}", excerpt(&tool(message)?)),
        Body::PermissionRequested(asked) => {
            let (session, request) = (asking?, &asked.request);
            let title = excerpt(&request.title);
            format!("question {}: {title}; answer it with: agentctl answer {session} {} allow", request.id, request.id)
        }
        Body::StopRequested(stop) => format!("stop requested: {}{}", excerpt(&stop.reason), stop.cause),
        Body::DaemonRecovered(_) => "agentd was started again; the session continues".to_owned(),
        Body::JournalRepaired(_) => "the end of the journal was damaged, and was repaired".to_owned(),
        _ => return None,
    })
}

fn exit(exited: &AgentExited) -> String {
    let how = match (exited.exec_error.as_ref(), exited.status, exited.signal) {
        (Some(error), _, _) => format!("could not be executed: {error}"),
        (None, Some(status), _) => format!("exited with status {status}"),
        (None, None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None, None) => "ended".to_owned(),
    };
    let reason = exited.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("the agent {how}{reason}")
}

fn turn_end(ended: &TurnEnded) -> String {
    let how = match (&ended.stop_reason, &ended.synthetic) {
        (Some(reason), _) => terminal::excerpt(reason, COLUMNS),
        (None, Some(synthetic)) => terminal::excerpt(&synthetic.detail, COLUMNS),
        (None, None) => "no reason".to_owned(),
    };
    format!("turn {} ended: {how}", ended.turn)
}

/// Returns the title of a tool call that begins (ACP `tool_call`). A message without these words is not parsed.
fn tool(message: &RawValue) -> Option<String> {
    if !message.get().contains("\"tool_call\"") {
        return None;
    }
    let message: Value = serde_json::from_str(message.get()).ok()?;
    let update = message.get("params")?.get("update")?;
    let is_call = message.get("method")? == "session/update" && update.get("sessionUpdate")? == "tool_call";
    is_call.then(|| update.get("title")?.as_str().map(str::to_owned)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(record: &serde_json::Value) -> Option<String> {
        described(&Event::parse(record.to_string().as_bytes()).unwrap().body, None)
    }

    fn record(kind: &str, data: &serde_json::Value) -> serde_json::Value {
        serde_json::json!({ "seq": 1, "time": "2026-01-01T00:00:00Z", "kind": kind, "data": data })
    }

    #[test]
    fn a_tool_call_has_a_line_and_a_message_has_none() {
        let update = |update: &serde_json::Value| {
            let message = serde_json::json!({ "method": "session/update", "params": { "update": update } });
            line(&record("agent.out", &message))
        };
        let call = serde_json::json!({ "sessionUpdate": "tool_call", "title": "cargo test\n\u{1b}[31m" });
        assert_eq!(update(&call).as_deref(), Some("tool: cargo test"));
        let text =
            serde_json::json!({ "sessionUpdate": "agent_message_chunk", "content": { "text": "\"tool_call\"" } });
        assert_eq!(update(&text), None);
    }

    #[test]
    fn an_end_of_the_agent_names_its_status_or_its_signal() {
        let said = |data: &serde_json::Value| line(&record("agent.exited", data)).unwrap();
        assert_eq!(said(&serde_json::json!({ "launch": 1, "status": 3 })), "the agent exited with status 3");
        assert_eq!(said(&serde_json::json!({ "launch": 1, "signal": 9 })), "the agent was ended by signal 9");
        let failed = serde_json::json!({ "launch": 1, "exec_error": "No such file" });
        assert_eq!(said(&failed), "the agent could not be executed: No such file");
    }
}
