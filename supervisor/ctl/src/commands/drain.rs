//! drain: has the daemon stop every session and launch none, and undoes that.

use std::collections::BTreeSet;
use std::time::Duration;

use agentd_api::drain::{ActiveSession, DrainView};

use super::{Context, print, print_document, tell};
use crate::client::Document;
use crate::error::Error;

/// How often it is told how far it is.
const PROGRESS: Duration = Duration::from_secs(1);

pub(super) async fn drain(context: &Context, undo: bool, no_wait: bool) -> Result<u8, Error> {
    if undo {
        let document = context.client.undo_drain().await?;
        return if context.json { print_document(&document.raw).map(|()| 0) } else { Ok(0) };
    }
    let mut document = context.client.drain().await?;
    if !no_wait {
        document = stopped(context, document).await?;
    }
    if context.json {
        print_document(&document.raw)?;
    } else if document.value.active.is_empty() {
        print("drained: no session has an agent, and none is launched until `agentctl drain --undo`\n")?;
    }
    Ok(0)
}

/// The answer when every session is stopped; those that are left are told each time that some have gone.
async fn stopped(context: &Context, mut document: Document<DrainView>) -> Result<Document<DrainView>, Error> {
    let mut told = BTreeSet::new();
    while !document.value.active.is_empty() {
        if !document.value.draining {
            let detail =
                "the drain was undone, or agentd has started anew, before every session was stopped".to_owned();
            return Err(Error::Session { detail, hint: Some("agentctl ls lists those that are active".to_owned()) });
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
