//! Prints the sessions that need a person, and then each change of a session's phase:
//!
//! ```text
//! cargo run -p agentd-client --example attention -- /run/user/1000/agentd/control.sock
//! ```

use std::error::Error;

use agentd_api::feed::{FeedEvent, SessionBrief};
use agentd_api::list::attention_of;
use agentd_client::{Client, FeedQuery, FeedStream, ListQuery, Pages, Patience, fields};

fn main() -> Result<(), Box<dyn Error>> {
    let socket = std::env::args().nth(1).ok_or("give the path of the control socket")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(follow(Client::new(socket)))
}

async fn follow(client: Client) -> Result<(), Box<dyn Error>> {
    // Opened before the list is read, so that no change is missed between the two.
    let query = FeedQuery { kind: Some("session.state".to_owned()), follow: true, ..FeedQuery::default() };
    let mut feed = FeedStream::new(client.clone(), query);
    feed.open().await?;
    let mut pages = Pages::new(ListQuery::of(fields(&[])));
    pages.refresh(&client).await?;
    for session in pages.sessions()? {
        if let Some(need) = attention_of(&session) {
            show(&format!("{} needs you: {}", session.id, need.reason));
        }
    }
    let mut patience = Patience::default();
    loop {
        // agentd may be away, for example to restart. The next stream continues after the last event.
        if let Err(error) = feed.open().await {
            patience.wait(error).await?;
            continue;
        }
        match feed.next().await {
            Ok(Some(event)) if event.kind == "session.state" => {
                let event: FeedEvent = serde_json::from_slice(&event.line)?;
                let brief: SessionBrief = serde_json::from_value(event.data)?;
                show(&format!("{} is {}", brief.id, brief.phase.as_str()));
                patience.reset();
            }
            // A heartbeat, or the state at the start.
            Ok(Some(_)) => patience.reset(),
            Ok(None) => patience.pause().await,
            Err(error) => patience.wait(error).await?,
        }
    }
}

#[allow(clippy::print_stdout, reason = "the output of the example")]
fn show(line: &str) {
    println!("{line}");
}
