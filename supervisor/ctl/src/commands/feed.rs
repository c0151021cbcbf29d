//! Implements `agentctl events` without a session: prints the events of all sessions and of the daemon.

use std::io::{self, Write};

use agentd_api::Call;
use agentd_api::feed::HEARTBEAT;
use http_body_util::BodyExt;
use serde::Deserialize;

use super::{Context, tell};
use crate::args::events::EventsArgs;
use crate::error::Error;
use crate::output::Reader;
use crate::stream::{Lines, patiently};

/// The part of an event that the command reads.
#[derive(Deserialize)]
struct Head<'a> {
    cursor: u64,
    #[serde(borrow)]
    kind: std::borrow::Cow<'a, str>,
}

/// Prints one event a line. Continues after the last event when the daemon was away.
pub(super) async fn feed(context: &Context, args: EventsArgs) -> Result<u8, Error> {
    let EventsArgs { mut after, last, no_follow, kind, chosen, .. } = args;
    let mut reader = Reader::of_stdout()?;
    let mut out = io::stdout().lock();
    loop {
        let call = Call::Feed {
            after,
            last: last.filter(|_| after.is_none()),
            follow: Some(!no_follow),
            before: None,
            limit: None,
            kind: kind.clone(),
            session: None,
            label: chosen.selector.clone(),
        };
        let mut body = patiently(|| context.client.stream(&call)).await?;
        let mut lines = Lines::default();
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame,
                gone = reader.gone() => return Err(gone),
            };
            let Some(frame) = frame else { break };
            let Ok(frame) = frame else {
                if no_follow {
                    let detail = "the stream of events broke".to_owned();
                    return Err(Error::Session { detail, hint: Some("repeat the command".to_owned()) });
                }
                break;
            };
            lines.push(&frame.into_data().unwrap_or_default());
            while let Some(line) = lines.next()? {
                let head: Head<'_> =
                    serde_json::from_slice(&line).map_err(agentd_api::event::InvalidEvent::Envelope)?;
                after = Some(head.cursor);
                if head.kind != HEARTBEAT {
                    out.write_all(&line).and_then(|()| out.write_all(b"\n")).map_err(Error::Output)?;
                }
            }
            out.flush().map_err(Error::Output)?;
        }
        if no_follow {
            return Ok(0);
        }
        tell("agentd ended the stream; agentctl reconnects when agentd is back")?;
    }
}
