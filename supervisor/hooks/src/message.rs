//! Makes the message about an event. It names the session, the question and the remedy. Prompts and the agent's output
//! are left out, except for the title of a question.

use std::sync::Arc;

use agentd_api::doctor::shell_word;
use agentd_api::elicitation::Elicitation;
use agentd_api::event::{PermissionRequested, TurnEnded};
use agentd_api::feed::{FEED_GONE, FeedEvent, SessionBrief};
use agentd_api::hook::{HookData, HookMessage, HookSession, NEEDS_ATTENTION, SESSION_FAILED, TEST};
use agentd_api::list::{agent_of, attention_of};
use agentd_api::reason;
use agentd_api::session::{PermissionRequest, SessionView};
use jiff::Timestamp;

use crate::tracker;

/// Longest title or message in characters.
const LONGEST: usize = 500;

/// Everything that is known about the session of an event.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// The state in the feed.
    pub(crate) brief: Option<Arc<SessionBrief>>,
    /// The present state. Absent for a session that was removed.
    pub(crate) view: Option<Arc<SessionView>>,
}

impl Known {
    /// Returns the agent, as lists have it.
    pub(crate) fn agent(&self) -> Option<String> {
        let of_brief = || self.brief.as_ref()?.agent.as_ref().map(ToString::to_string);
        self.view.as_ref().map(|view| agent_of(view)).or_else(of_brief)
    }

    fn session(&self) -> Option<HookSession> {
        let brief = match (&self.view, &self.brief) {
            (Some(view), _) => Arc::new(SessionBrief::from(&**view)),
            (None, brief) => Arc::clone(brief.as_ref()?),
        };
        Some(HookSession {
            id: brief.id.clone(),
            name: brief.name.clone(),
            agent: self.agent(),
            directory: brief.directory.clone(),
            labels: brief.labels.clone(),
            phase: brief.phase,
        })
    }

    /// Returns an open question of the session.
    fn question(&self, brief: &SessionBrief) -> Option<&PermissionRequest> {
        let open = &self.view.as_ref()?.status.permissions;
        open.iter().find(|request| brief.permissions.contains(&request.id))
    }
}

/// Returns the id of a message. Repeated deliveries of the same event have the same id, also after a restart.
pub(crate) fn id(hook: &str, cursor: u64, event: &str) -> String {
    format!("msg_{hook}_{cursor}_{}", event.replace('.', "-"))
}

/// Makes the message about an event of the feed.
pub(crate) fn of_event(hook: &str, event: &FeedEvent, known: &Known) -> HookMessage {
    let mut message = plain(hook, &event.kind, event.cursor, event.time, known);
    let label = label(known);
    let data = &mut message.data;
    match event.kind.as_str() {
        "permission.requested" => {
            if let Ok(asked) = serde_json::from_value::<PermissionRequested>(event.data.clone()) {
                data.reason = Some(reason::PERMISSION_REQUESTED.to_owned());
                ask(data, &label, &asked.request);
            }
        }
        "turn.ended" => {
            if let Ok(ended) = serde_json::from_value::<TurnEnded>(event.data.clone()) {
                let cause = ended.synthetic.and_then(|synthetic| serde_json::to_value(synthetic.cause).ok());
                let cause = cause.and_then(|cause| cause.as_str().map(str::to_owned));
                data.reason = cause.or(ended.stop_reason);
                data.turn = Some(ended.turn);
                let reason = data.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
                data.text = format!("{label} ended a turn{reason}");
                data.command = Some(format!("agentctl attach {}", shell_word(&label)));
            }
        }
        FEED_GONE => {
            "events are missing before this message".clone_into(&mut data.text);
            data.remedy = Some("look at the present state of the sessions".to_owned());
            data.command = Some("agentctl ls".to_owned());
        }
        _ => {}
    }
    message
}

/// Makes the message about an event that follows from the state of a session.
pub(crate) fn of_state(
    hook: &str,
    event: &str,
    (cursor, time): (u64, Timestamp),
    brief: &SessionBrief,
    known: &Known,
) -> HookMessage {
    let mut message = plain(hook, event, cursor, time, known);
    let label = label(known);
    let word = shell_word(&label);
    let data = &mut message.data;
    let because = |data: &mut HookData, text: Option<&str>| {
        data.message = text.map(short);
        data.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default()
    };
    let present = known.view.as_ref().and_then(|view| attention_of(view));
    match event {
        NEEDS_ATTENTION => {
            data.reason = tracker::reason(brief).map(str::to_owned);
            let present = present.filter(|condition| Some(&condition.reason) == data.reason.as_ref());
            let why = because(data, present.map(|condition| condition.message.as_str()).or(brief.message.as_deref()));
            data.text = format!("{label} needs attention ({}){why}", data.reason.as_deref().unwrap_or_default());
            data.command = Some(format!("agentctl show {word}"));
            match data.reason.as_deref() {
                Some(reason::LOGIN_REQUIRED) => data.remedy = Some("log the agent in".to_owned()),
                Some(reason::FAILED | reason::PARKED) => {
                    data.remedy = Some("correct the cause and resume the session".to_owned());
                }
                _ => {
                    if let Some(request) = known.question(brief) {
                        ask(data, &label, request);
                    } else {
                        data.remedy = Some("answer the question".to_owned());
                    }
                }
            }
        }
        SESSION_FAILED => {
            data.reason = tracker::reason(brief).map(str::to_owned);
            let why = because(data, brief.message.as_deref());
            data.text = format!("{label} failed{why}");
            data.remedy = Some("correct the cause and resume the session".to_owned());
            data.command = Some(format!("agentctl show {word}"));
        }
        _ => {}
    }
    message
}

/// Makes the message of a test.
pub(crate) fn of_test(hook: &str, cursor: u64, id: String, now: Timestamp) -> HookMessage {
    let mut message = plain(hook, TEST, cursor, now, &Known::default());
    message.data.id = id;
    message.data.text = format!("This is a test of the hook {hook:?} of agentd");
    message.data.command = Some("agentctl hooks".to_owned());
    message
}

fn plain(hook: &str, kind: &str, cursor: u64, time: Timestamp, known: &Known) -> HookMessage {
    let data = HookData {
        id: id(hook, cursor, kind),
        hook: hook.to_owned(),
        cursor,
        text: format!("{}: {kind}", label(known)),
        session: known.session(),
        reason: None,
        message: None,
        turn: None,
        permission: None,
        remedy: None,
        command: None,
    };
    HookMessage { kind: kind.to_owned(), timestamp: time, data }
}

/// Describes a question, and how it is answered.
fn ask(data: &mut HookData, label: &str, request: &PermissionRequest) {
    let title = short(&request.title);
    let word = shell_word(label);
    data.text = format!("{label} asks: {title}");
    data.message = Some(title);
    data.permission = Some(request.id.clone());
    let (remedy, command) = match &request.elicitation {
        Some(Elicitation::Form { .. }) => ("fill in the form", format!("agentctl attach {word}")),
        Some(Elicitation::Unknown) => ("deny the question", format!("agentctl answer {word} {} deny", request.id)),
        None if request.options.is_empty() => {
            ("deny the question", format!("agentctl answer {word} {} deny", request.id))
        }
        Some(Elicitation::Url { .. }) | None => {
            ("answer allow or deny", format!("agentctl answer {word} {} allow", request.id))
        }
    };
    (data.remedy, data.command) = (Some(remedy.to_owned()), Some(command));
}

/// Returns the name of the session, or its id.
fn label(known: &Known) -> String {
    let of = |id: &dyn ToString, name: Option<&agentd_api::SessionName>| {
        name.map_or_else(|| id.to_string(), ToString::to_string)
    };
    match (&known.view, &known.brief) {
        (Some(view), _) => of(&view.id, view.spec.name.as_ref()),
        (None, Some(brief)) => of(&brief.id, brief.name.as_ref()),
        (None, None) => "agentd".to_owned(),
    }
}

/// Shortens a text to one line.
fn short(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = line.clone().take(LONGEST).collect();
    if line.count() > LONGEST {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use agentd_api::session::Phase;
    use serde_json::json;

    use super::*;

    fn known() -> Known {
        let brief = json!({ "id": "aaaaaaaaaaaa", "name": "fix", "directory": "/src", "phase": "busy",
            "agent": "claude", "labels": { "team": "web" }, "message": "no disk", "permissions": ["p1"],
            "conditions": [{ "type": "NeedsAttention", "status": "True", "reason": "PermissionRequested" }] });
        Known { brief: Some(Arc::new(serde_json::from_value(brief).unwrap())), view: None }
    }

    fn event(kind: &str, data: &serde_json::Value) -> FeedEvent {
        serde_json::from_value(json!({ "cursor": 7, "session": "aaaaaaaaaaaa", "seq": 3,
            "time": "2026-01-01T00:00:00Z", "kind": kind, "data": data }))
        .unwrap()
    }

    #[test]
    fn a_question_has_its_title_and_the_command_that_answers() {
        let request = json!({ "id": "p1", "title": "Run\nrm -rf", "options": [{ "id": "a", "name": "Allow",
            "kind": "allow-once" }], "details": {} });
        let event = event("permission.requested", &json!({ "request": request, "rpc": 1 }));
        let message = of_event("phone", &event, &known());
        let data = message.data;
        assert_eq!(
            (data.text.as_str(), data.id.as_str()),
            ("fix asks: Run rm -rf", "msg_phone_7_permission-requested")
        );
        assert_eq!(data.command.as_deref(), Some("agentctl answer fix p1 allow"));
        let session = data.session.unwrap();
        assert_eq!((session.agent.as_deref(), session.phase), (Some("claude"), Phase::Busy));
    }

    #[test]
    fn a_turn_has_its_reason_and_none_of_its_answer() {
        let detail = json!({ "turn": "t1", "synthetic": { "cause": "agent-error", "detail": "hunter2" } });
        let message = of_event("h", &event("turn.ended", &detail), &known());
        assert_eq!(message.data.text, "fix ended a turn (agent-error)");
        assert!(!serde_json::to_string(&message).unwrap().contains("hunter2"));
        let message =
            of_event("h", &event("turn.ended", &json!({ "turn": "t1", "stop_reason": "end_turn" })), &known());
        assert_eq!(message.data.reason.as_deref(), Some("end_turn"));
    }

    #[test]
    fn a_state_has_the_reason_of_the_need() {
        let (known, time) = (known(), "2026-01-01T00:00:00Z".parse().unwrap());
        let brief = known.brief.clone().unwrap();
        let message = of_state("h", NEEDS_ATTENTION, (7, time), &brief, &known);
        assert_eq!(message.data.reason.as_deref(), Some("PermissionRequested"));
        let message = of_state("h", SESSION_FAILED, (7, time), &brief, &known);
        assert_eq!(message.data.text, "fix failed: no disk");
        let gone = of_event("h", &event(FEED_GONE, &json!({ "after": 3 })), &Known::default());
        assert_eq!(gone.data.command.as_deref(), Some("agentctl ls"));
        assert_eq!(short(&"x".repeat(600)).chars().count(), LONGEST + 1);
    }
}
