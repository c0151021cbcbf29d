//! Implements `agentctl wait`: waits until sessions have a state.

use std::time::Duration;

use agentd_api::Code;
use agentd_api::session::SessionView;
use tokio::time::{Instant, timeout_at};

use super::{Context, tell};
use crate::args::wait::{WaitArgs, Wanted};
use crate::error::Error;
use crate::start::Starter;
use agentd_client::{Document, Error as ClientError, StreamStart};
use agentd_client::{EventStream, Next, patiently};

/// Time between two looks at a session without events: some conditions are in no journal.
const LOOK: Duration = Duration::from_secs(1);
/// Least time between two looks at a session with many events.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest wait, so that the sum with the present time does not overflow.
const LONGEST: Duration = Duration::from_hours(24 * 365);

pub(super) async fn wait(context: &Context, args: WaitArgs) -> Result<u8, Error> {
    let until = Instant::now() + args.timeout.0.min(LONGEST);
    for session in &args.sessions {
        wait_for(context, session, &args.wanted, until).await?;
    }
    Ok(0)
}

/// Waits until the session has the state, and fails after `until`.
async fn wait_for(context: &Context, session: &str, wanted: &Wanted, until: Instant) -> Result<(), Error> {
    let Some(mut found) = present(patiently(|| context.client.find(session)).await, wanted)? else { return Ok(()) };
    let id = found.value.id.to_string();
    let after = StreamStart::After(found.value.status.last_seq);
    if context.verbose {
        tell(&format!("waiting for {wanted}: {}", wanted.present(&found.value)))?;
    }
    let mut events =
        EventStream::follow(context.client.clone(), id.clone(), after, context.starter.clone().map(Starter::reviver));
    while !wanted.holds(&found.value) {
        if wanted.is_hopeless(&found.value) {
            return Err(hopeless(session, wanted, &found.value));
        }
        if Instant::now() >= until {
            return Err(late(session, wanted, &found.value));
        }
        // An event is the reason to look again at once.
        match timeout_at(until.min(Instant::now() + LOOK), events.next()).await {
            Ok(Some(Next::Failed(error))) if error.problem_code() != Some(Code::NoSuchSession) => {
                return Err(error.into());
            }
            Ok(_) => tokio::time::sleep_until(until.min(Instant::now() + PAUSE)).await,
            Err(_) => {}
        }
        while let Ok(Some(Next::Record { .. })) = timeout_at(Instant::now(), events.next()).await {}
        match present(patiently(|| context.client.session(&id)).await, wanted)? {
            Some(now) => found = now,
            None => return Ok(()),
        }
    }
    if context.json {
        context.print_document(&found.raw)?;
    }
    Ok(())
}

/// Returns the session; `None` if its absence is what the caller waits for.
fn present(
    found: Result<Document<SessionView>, ClientError>,
    wanted: &Wanted,
) -> Result<Option<Document<SessionView>>, Error> {
    match found {
        Err(error) if *wanted == Wanted::Deleted && error.problem_code() == Some(Code::NoSuchSession) => Ok(None),
        found => Ok(Some(found?)),
    }
}

fn hopeless(session: &str, wanted: &Wanted, view: &SessionView) -> Error {
    Error::Hopeless {
        detail: format!("session {session:?} can no longer have {wanted}; {}", wanted.present(view)),
        hint: format!("agentctl show {session}; agentctl resume {session} continues it"),
    }
}

fn late(session: &str, wanted: &Wanted, view: &SessionView) -> Error {
    let state = match wanted {
        Wanted::Deleted => "is not deleted".to_owned(),
        wanted => format!("does not have {wanted}"),
    };
    Error::Session {
        detail: format!("session {session:?} {state} within the time limit; {}", wanted.present(view)),
        hint: Some(format!("agentctl show {session}; --timeout sets the time limit")),
    }
}
