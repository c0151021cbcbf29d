//! Implements `agentctl events`: prints the lines of the journal's records unchanged.

use std::io::{self, Write};

use super::{Context, tell};
use crate::error::Error;
use crate::output::Reader;
use crate::start::Starter;
use agentd_client::StreamStart;
use agentd_client::{EventStream, Next};

pub(super) async fn events(
    context: &Context,
    session: &str,
    after: Option<u64>,
    last: Option<u64>,
    follow: bool,
) -> Result<u8, Error> {
    let id = context.client.find(session).await?.value.id.to_string();
    let from = last.map_or(StreamStart::After(after.unwrap_or(0)), StreamStart::Last);
    let mut out = io::stdout().lock();
    if !follow {
        let mut body = context.client.events(&id, from, false).await?;
        while let Some(line) = body.next().await? {
            out.write_all(&line).and_then(|()| out.write_all(b"\n")).map_err(Error::Output)?;
        }
        out.flush().map_err(Error::Output)?;
        return Ok(0);
    }
    let mut stream =
        EventStream::follow(context.client.clone(), id, from, context.starter.clone().map(Starter::reviver));
    let mut reader = Reader::of_stdout()?;
    loop {
        let next = tokio::select! {
            next = stream.next() => next,
            gone = reader.gone() => return Err(gone),
        };
        match next {
            Some(Next::Record { line, .. }) => {
                out.write_all(&line)
                    .and_then(|()| out.write_all(b"\n"))
                    .and_then(|()| out.flush())
                    .map_err(Error::Output)?;
            }
            Some(Next::Away) => tell("agentd is unreachable; agentctl reconnects when agentd is back")?,
            Some(Next::Failed(error)) => return Err(error.into()),
            Some(Next::Deleted) | None => return Ok(0),
        }
    }
}
