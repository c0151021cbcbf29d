//! Implements `agentctl drain`: makes the daemon stop every session and launch none, or undoes a drain.

use std::collections::BTreeSet;
use std::time::Duration;

use agentd_api::drain::{ActiveSession, DrainView};

use super::{Context, print, tell};
use crate::error::Error;
use agentd_client::Document;

/// Interval between progress reports.
const PROGRESS: Duration = Duration::from_secs(1);

pub(super) async fn drain(context: &Context, undo: bool, no_wait: bool) -> Result<u8, Error> {
    if undo {
        let document = context.client.undo_drain().await?;
        return if context.json { context.print_document(&document.raw).map(|()| 0) } else { Ok(0) };
    }
    let mut document = context.client.drain().await?;
    if !no_wait {
        document = stopped(context, document).await?;
    }
    if context.json {
        context.print_document(&document.raw)?;
    } else if document.value.active.is_empty() {
        print("drained: no session has an agent, and none is launched until `agentctl drain --undo`\n")?;
    }
    Ok(0)
}

/// Waits until every session is stopped, and reports the remaining sessions when their number changes. Returns
/// the last answer.
async fn stopped(context: &Context, mut document: Document<DrainView>) -> Result<Document<DrainView>, Error> {
    let mut told = BTreeSet::new();
    while !document.value.active.is_empty() {
        if !document.value.draining {
            let detail = "the drain was undone, or agentd was restarted, before every session was stopped".to_owned();
            return Err(Error::Session { detail, hint: Some("agentctl ls lists the active sessions".to_owned()) });
        }
        let left: BTreeSet<String> = document.value.active.iter().map(label).collect();
        if left != told {
            let labels: Vec<&str> = left.iter().map(String::as_str).collect();
            tell(&format!("stopping {}: {}", labels.len(), labels.join(", ")))?;
            told = left;
        }
        document = context.client.drain_progress(PROGRESS).await?;
    }
    Ok(document)
}

fn label(session: &ActiveSession) -> String {
    session.name.as_ref().map_or_else(|| session.id.to_string(), ToString::to_string)
}
