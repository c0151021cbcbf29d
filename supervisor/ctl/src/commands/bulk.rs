//! Implements `agentctl stop`, `resume` and `rm` for all sessions with certain labels.

use std::time::Duration;

use agentd_api::Call;
use agentd_api::bulk::{BulkResume, BulkStop, BulkView, Selection};
use agentd_api::label::Selector;
use serde::Serialize;

use super::{Context, print, tell};
use crate::error::{Error, exit};

/// Time limit for the end of all sessions.
const LONGEST: Duration = Duration::from_mins(11);

pub(super) async fn stop(context: &Context, selector: &Selector, no_wait: bool) -> Result<u8, Error> {
    call(context, &Call::BulkStop {}, &BulkStop { select: select(selector), wait: !no_wait }, "stopped").await
}

pub(super) async fn resume(context: &Context, selector: &Selector, new_conversation: bool) -> Result<u8, Error> {
    call(context, &Call::BulkResume {}, &BulkResume { select: select(selector), new_conversation }, "resumed").await
}

/// Returns the ids of the sessions with these labels. The agent of each deletes its conversation one after another.
pub(super) async fn ids(context: &Context, selector: Selector) -> Result<Vec<String>, Error> {
    let list = context.client.list(Some(selector)).await?.value;
    Ok(list.sessions.iter().map(|view| view.id.to_string()).collect())
}

fn select(selector: &Selector) -> Selection {
    Selection { label: Some(selector.to_string()), ..Selection::default() }
}

/// Makes a call, and prints a line for each session.
async fn call<B: Serialize>(context: &Context, call: &Call, body: &B, done: &str) -> Result<u8, Error> {
    let document = context.client.submit::<B, BulkView>(call, body, LONGEST).await?;
    if context.json {
        context.print_document(&document.raw)?;
    }
    let mut lines = String::new();
    for result in &document.value.results {
        let label = result.name.as_ref().map_or(result.session.as_str(), agentd_api::SessionName::as_str);
        match &result.problem {
            None => lines.extend([label, " ", done, "\n"]),
            Some(problem) => {
                let hint = problem.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
                tell(&format!("{label}: {}{hint}", problem.detail))?;
            }
        }
    }
    if !context.json {
        print(&lines)?;
        if document.value.results.is_empty() {
            tell("no session matches")?;
        }
    }
    Ok(if document.value.failed == 0 { 0 } else { exit::FAILED })
}
