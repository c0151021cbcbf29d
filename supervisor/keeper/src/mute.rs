//! Recognises the replay of a conversation's history, which the journal already contains.
//!
//! An agent that loads a conversation repeats it as `session/update` notifications. Some come before the response
//! that should end the replay, and some after it. The end is therefore the response *and* a quiet time after it. The
//! response is held back until then, so that its reader in the journal knows that the replay is over.
//!
//! This module has no clock: the time is an argument.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use agentd_api::event::AgentReplayed;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::protocol;

/// Decision about a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The line is journalled as usual.
    Journal,
    /// The line belongs to the replay and is counted.
    Replay,
    /// The line is the response, which is journalled when the mute ends.
    Hold,
    /// The line is an error response. The mute ends here, and then the line is journalled.
    End,
}

/// Replay that is expected or in progress.
#[derive(Debug)]
pub(crate) struct Mute {
    rule: protocol::Mute,
    replayed: AgentReplayed,
    /// Response, and the time at which the quiet time after it is over.
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

    /// Classifies one line of JSON and updates the replay's state.
    pub(crate) fn judge(&mut self, line: &RawValue, now: Instant) -> Verdict {
        // JSON that is not an object is not a message, and is journalled like any other line.
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

    /// Returns when the mute ends unless another line arrives.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, quiet)| *quiet)
    }

    /// Returns the records of the mute's end: the count, and the response if one came.
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
    fn a_replay_after_the_response_delays_the_end() {
        let (mut mute, now) = (mute(), Instant::now());
        assert_eq!(mute.judge(&raw(r#"{"id":3,"result":{}}"#), now), Verdict::Hold);
        let later = now + Duration::from_millis(150);
        assert_eq!(mute.judge(&update("user_message_chunk"), later), Verdict::Replay);
        assert_eq!(mute.deadline(), Some(later + Duration::from_millis(200)));
        assert_eq!(mute.judge(&update("available_commands_update"), later), Verdict::Journal);
        assert_eq!(mute.deadline(), Some(later + Duration::from_millis(200)));
    }

    #[test]
    fn an_error_ends_the_mute_at_once() {
        let (mut mute, now) = (mute(), Instant::now());
        assert_eq!(mute.judge(&update("tool_call"), now), Verdict::Replay);
        assert_eq!(mute.judge(&raw(r#"{"id":3,"error":{"code":-32002,"message":"no"}}"#), now), Verdict::End);
        let (replayed, response) = mute.end();
        assert_eq!((replayed.lines, response.is_none()), (1, true));
    }

    #[test]
    fn all_other_lines_are_journalled() {
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
