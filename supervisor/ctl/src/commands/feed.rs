//! Implements `agentctl events` without a session: prints the events of all sessions and of the daemon.

use std::io::{self, Write};

use agentd_api::feed::HEARTBEAT;

use super::{Context, tell};
use crate::args::events::EventsArgs;
use crate::error::Error;
use crate::output::Reader;
use agentd_client::Patience;
use agentd_client::{Error as ClientError, FeedQuery, FeedStream};

/// Prints one event a line. Continues after the last event when the daemon was away.
pub(super) async fn feed(context: &Context, args: EventsArgs) -> Result<u8, Error> {
    let EventsArgs { after, last, no_follow, kind, chosen, .. } = args;
    let query = FeedQuery { kind, label: chosen.selector, after, last, follow: !no_follow };
    let mut reader = Reader::of_stdout()?;
    let mut out = io::stdout().lock();
    let mut feed = FeedStream::new(context.client.clone(), query);
    loop {
        let mut patience = Patience::default();
        while let Err(error) = feed.open().await {
            patience.wait(error).await?;
        }
        loop {
            let next = tokio::select! {
                next = feed.next() => next,
                gone = reader.gone() => return Err(gone),
            };
            match next {
                Ok(Some(event)) if event.kind == HEARTBEAT => {}
                Ok(Some(event)) => {
                    out.write_all(&event.line).and_then(|()| out.write_all(b"\n")).map_err(Error::Output)?;
                    out.flush().map_err(Error::Output)?;
                }
                Ok(None) => break,
                Err(ClientError::Broken { .. }) if !no_follow => break,
                Err(ClientError::Broken { .. }) => {
                    let detail = "the stream of events broke".to_owned();
                    return Err(Error::Session { detail, hint: Some("repeat the command".to_owned()) });
                }
                Err(error) => return Err(error.into()),
            }
        }
        if no_follow {
            return Ok(0);
        }
        tell("agentd ended the stream; agentctl reconnects when agentd is back")?;
    }
}
