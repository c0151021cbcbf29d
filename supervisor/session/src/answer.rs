//! JSON Schemas for answers: their validation in a request, and the check of an answer in the journal.

use std::path::Path;

use agentd_answer::Collector;
use agentd_answer::check::{CheckRequest, CheckResult};
use agentd_answer::child::{self, CheckError};
use agentd_api::completion::{LONGEST_ANSWER, LONGEST_SCHEMA, SchemaError};
use agentd_api::{Body, Code, Event, Problem, TurnId, chain};
use agentd_journal::{ReadError, Reader};
use serde_json::Value;

use crate::daemon::Daemon;

/// Number of checks that run side by side.
pub(crate) const AT_ONCE: usize = 4;

fn invalid(detail: String, hint: &str) -> Problem {
    Problem::new(Code::SchemaInvalid, detail).hint(hint)
}

/// Refuses a schema that is not valid, that is too large, or whose check exceeds the limits of a check.
///
/// # Errors
///
/// The problem names the place of the mistake in the schema.
pub async fn check_schema(daemon: &Daemon, schema: &Value) -> Result<(), Problem> {
    const HINT: &str = "docs/guide/batch.md describes the schemas of answers";
    if schema.to_string().len() > LONGEST_SCHEMA {
        let detail = format!("the schema of the answer is longer than {} KiB", LONGEST_SCHEMA >> 10);
        return Err(invalid(detail, "send a shorter schema"));
    }
    match check(daemon, schema.clone(), None).await {
        Ok(CheckResult::Valid | CheckResult::InvalidAnswer(_)) => Ok(()),
        Ok(CheckResult::InvalidSchema(error)) => {
            Err(invalid(format!("the schema of the answer is not valid {}", placed(&error)), HINT))
        }
        Err(error) if error.is_by_schema() => Err(invalid(error.to_string(), HINT)),
        Err(error) => Err(Problem::new(Code::Internal, chain(&error))),
    }
}

fn placed(error: &SchemaError) -> String {
    let place = if error.place.is_empty() { "/" } else { &error.place };
    format!("at {place}: {}", error.message)
}

async fn check(daemon: &Daemon, schema: Value, answer: Option<String>) -> Result<CheckResult, CheckError> {
    // The semaphore is never closed.
    let _permit = daemon.answers.acquire().await.ok();
    child::check(&daemon.programs.daemon, &CheckRequest { schema, answer }).await
}

/// The result of a check.
#[derive(Debug)]
pub(crate) struct Violations {
    /// Empty if the answer satisfies its schema.
    pub errors: Vec<SchemaError>,
    /// Whether another answer can be better: not if the check itself failed.
    pub may_improve: bool,
}

impl Violations {
    /// Makes the result of a check that could not be done.
    pub(crate) fn unchecked(message: String) -> Self {
        Self { errors: vec![SchemaError { place: String::new(), message }], may_improve: false }
    }
}

/// Returns what an answer violates. An answer that cannot be checked counts as invalid.
pub(crate) async fn violations(daemon: &Daemon, schema: Value, answer: Answer) -> Violations {
    if answer.is_cut {
        let message = format!("the answer is longer than {} KiB", LONGEST_ANSWER >> 10);
        return Violations { may_improve: true, ..Violations::unchecked(message) };
    }
    match check(daemon, schema, Some(answer.text.unwrap_or_default())).await {
        Ok(CheckResult::Valid) => Violations { errors: Vec::new(), may_improve: true },
        Ok(CheckResult::InvalidAnswer(errors)) => Violations { errors, may_improve: true },
        Ok(CheckResult::InvalidSchema(error)) => {
            Violations::unchecked(format!("the schema is not valid {}", placed(&error)))
        }
        Err(error) => Violations::unchecked(format!("the answer could not be checked: {}", chain(&error))),
    }
}

/// An agent's last message of a turn.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub text: Option<String>,
    /// Whether the message was longer than the maximum, or its beginning is not stored any more.
    pub is_cut: bool,
}

/// Reads the answer of a turn behind the record `since`. Blocks on the disk.
pub(crate) fn read(directory: &Path, turn: &TurnId, since: u64) -> Result<Answer, ReadError> {
    let (mut reader, is_shortened) = match Reader::open(directory, since) {
        Err(ReadError::Gone { first, .. }) => (Reader::open(directory, first.saturating_sub(1))?, true),
        opened => (opened?, false),
    };
    let mut collector = Collector::default();
    while let Some(line) = reader.next()? {
        match line.parts().map(|parts| parts.kind) {
            Some("agent.out") => {
                if let Ok(Event { body: Body::AgentOut(line), .. }) = Event::parse(line.bytes) {
                    collector.take(&line);
                }
            }
            Some("turn.ended") => {
                if let Ok(Event { body: Body::TurnEnded(ended), .. }) = Event::parse(line.bytes)
                    && ended.turn == *turn
                {
                    break;
                }
            }
            _ => {}
        }
    }
    let (text, is_cut) = collector.end();
    Ok(Answer { text, is_cut: is_cut || is_shortened })
}
