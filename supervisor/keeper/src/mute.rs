//! Recognises the replay of a conversation's history, which the journal has already.
//!
//! An agent that loads a conversation repeats it as `session/update` notifications, some before and some after the response
//! that should end it. So the end is the response *and* a quiet time behind it; the response is held back until then, so that
//! who waits for it in the journal knows that the replay is over. Pure: the time comes in.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use agentd_api::event::AgentReplayed;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::protocol;

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is journalled as ever.
    Journal,
    /// It was a part of the replay, and is counted.
    Replay,
    /// It is the response, which comes when the mute ends.
    Hold,
    /// It is an error in place of the response: the mute ends here, and then the line is journalled.
    End,
}

/// A replay that is being awaited.
#[derive(Debug)]
pub(crate) struct Mute {
    rule: protocol::Mute,
    replayed: AgentReplayed,
    /// The response, and when it will have been quiet for long enough.
    held: Option<(Box<RawValue>, Instant)>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    error: Option<IgnoredAny>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    update: Update<'a>,
}

#[derive(Deserialize)]
struct Update<'a> {
    #[serde(borrow, rename = "sessionUpdate")]
    kind: Cow<'a, str>,
}

impl Mute {
    pub(crate) fn new(rule: protocol::Mute) -> Self {
        Self { rule, replayed: AgentReplayed { lines: 0, bytes: 0 }, held: None }
    }

    /// Judges one line of JSON, and notes what it has to of it.
    pub(crate) fn judge(&mut self, line: &RawValue, now: Instant) -> Verdict {
        // What is no object is no message, and is journalled like any other line.
        let Ok(message) = serde_json::from_str::<Message<'_>>(line.get()) else { return Verdict::Journal };
        match message.method.as_deref() {
            Some("session/update") => {
                let params = message.params.and_then(|params| serde_json::from_str::<Params<'_>>(params.get()).ok());
                if !params.is_some_and(|params| self.rule.updates.iter().any(|kind| *kind == params.update.kind)) {
                    return Verdict::Journal;
                }
                self.replayed.lines += 1;
                self.replayed.bytes += line.get().len() as u64;
                if let Some((_, quiet)) = &mut self.held {
                    *quiet = now + Duration::from_millis(self.rule.quiet_ms);
                }
                Verdict::Replay
            }
            Some(_) => Verdict::Journal,
            None if self.held.is_some()
                || message.id.and_then(|id| id.get().parse().ok()) != Some(self.rule.response_to) =>
            {
                Verdict::Journal
            }
            None if message.error.is_some() => Verdict::End,
            None => {
                self.held = Some((line.to_owned(), now + Duration::from_millis(self.rule.quiet_ms)));
                Verdict::Hold
            }
        }
    }

    /// When it ends unless something comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, quiet)| *quiet)
    }

    /// What is journalled when it ends: the count, and then the response where there was one.
    pub(crate) fn end(self) -> (AgentReplayed, Option<Box<RawValue>>) {
        (self.replayed, self.held.map(|(response, _)| response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mute() -> Mute {
        let updates = vec!["user_message_chunk".to_owned(), "tool_call".to_owned()];
        Mute::new(protocol::Mute { response_to: 3, updates, quiet_ms: 200 })
    }

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn update(kind: &str) -> Box<RawValue> {
        raw(&format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":{{"x":1,"sessionUpdate":"{kind}"}}}}}}"#
        ))
    }

    #[test]
    fn a_replay_before_the_response_ends_a_quiet_time_after_it() {
        let (mut mute, now) = (mute(), Instant::now());
        assert_eq!(mute.judge(&update("tool_call"), now), Verdict::Replay);
        assert_eq!(mute.deadline(), None);
        assert_eq!(mute.judge(&raw(r#"{"id":3,"result":null}"#), now), Verdict::Hold);
        assert_eq!(mute.deadline(), Some(now + Duration::from_millis(200)));
        let (replayed, response) = mute.end();
        assert_eq!((replayed.lines, response.unwrap().get()), (1, r#"{"id":3,"result":null}"#));
    }

    #[test]
    fn a_replay_after_the_response_puts_the_end_off() {
        let (mut mute, now) = (mute(), Instant::now());
        assert_eq!(mute.judge(&raw(r#"{"id":3,"result":{}}"#), now), Verdict::Hold);
        let later = now + Duration::from_millis(150);
        assert_eq!(mute.judge(&update("user_message_chunk"), later), Verdict::Replay);
        assert_eq!(mute.deadline(), Some(later + Duration::from_millis(200)));
        assert_eq!(mute.judge(&update("available_commands_update"), later), Verdict::Journal);
        assert_eq!(mute.deadline(), Some(later + Duration::from_millis(200)));
    }

    #[test]
    fn an_error_ends_it_at_once() {
        let (mut mute, now) = (mute(), Instant::now());
        assert_eq!(mute.judge(&update("tool_call"), now), Verdict::Replay);
        assert_eq!(mute.judge(&raw(r#"{"id":3,"error":{"code":-32002,"message":"no"}}"#), now), Verdict::End);
        let (replayed, response) = mute.end();
        assert_eq!((replayed.lines, response.is_none()), (1, true));
    }

    #[test]
    fn everything_else_is_journalled() {
        let (mut mute, now) = (mute(), Instant::now());
        for line in [
            r#"{"id":4,"result":{}}"#,
            r#"{"id":"3","result":{}}"#,
            r#"{"id":3,"method":"fs/read_text_file","params":{}}"#,
            r#"{"method":"session/update"}"#,
            r#"{"method":"session/update","params":{"update":{"sessionUpdate":7}}}"#,
            r#"{"id":null,"error":{"code":-32700}}"#,
            "[1]",
            "null",
        ] {
            assert_eq!(mute.judge(&raw(line), now), Verdict::Journal, "{line}");
        }
    }
}
