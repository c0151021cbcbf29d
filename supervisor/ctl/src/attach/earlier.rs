//! Reads the events before those that the user sees, for the facts that agents report once.

use agentd_api::Event;

use super::facts::Facts;
use agentd_client::{Client, StreamStart};
use agentd_client::{EventStream, Next};

/// Maximum number of earlier events that are read.
const EVENTS: u64 = 20_000;

/// Returns the facts of the events up to this one. Events that cannot be read are left out.
pub(super) async fn facts(client: Client, id: String, until: u64) -> Facts {
    let mut facts = Facts::default();
    let from = StreamStart::After(until.saturating_sub(EVENTS));
    let mut stream = EventStream::follow(client, id, from, None);
    while let Some(Next::Record { seq, line }) = stream.next().await {
        if seq > until {
            break;
        }
        if let Ok(event) = Event::parse(&line) {
            facts.apply(&event);
        }
        if seq == until {
            break;
        }
    }
    facts
}
