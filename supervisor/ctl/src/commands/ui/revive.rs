//! Starts a crashed daemon of this machine again while the page is open, as `agentctl attach` does.
//!
//! A daemon that was stopped in order stays down. Not responsible for the page, which connects again by itself.

use std::time::Duration;

use agentd_client::{Client, Error, FeedQuery, FeedStream, Patience};
use tokio::time::{Instant, sleep};

use crate::commands::tell;
use crate::reach::bring_up;
use crate::start::Starter;

/// Events of the stream that is watched. The stream is only there to end with the daemon, so it has few events.
const KINDS: &str = "session.removed";
/// Time in which a service manager may start the daemon.
const MANAGED: Duration = Duration::from_secs(2);
/// Longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Pause between two looks at a daemon that has crashed.
const PAUSE: Duration = Duration::from_millis(100);

/// Watches the daemon until it is dropped.
pub(super) async fn revive(mut client: Client, starter: Option<Starter>) {
    let Some(starter) = starter else { return std::future::pending().await };
    let mut patience = Patience::endless(LONGEST_PAUSE);
    // The command has just called the daemon, which can crash before the first stream.
    let mut is_expected = true;
    loop {
        let query = FeedQuery { kind: Some(KINDS.to_owned()), follow: true, ..FeedQuery::default() };
        let mut feed = FeedStream::new(client.clone(), query);
        match feed.open().await {
            Ok(()) => {
                patience.reset();
                is_expected = breaks_off(&mut feed).await;
            }
            Err(error) if is_expected && error.is_without_listener() && is_left_alone(&client).await => {
                is_expected = false;
                if let Err(error) = bring_up(&starter, &mut client).await {
                    let text = format!("agentd has crashed and could not be started: {}", agentd_api::chain(&error));
                    let _ = tell(&text); // a terminal that is gone shows nothing
                }
            }
            Err(_) => {}
        }
        patience.pause().await;
    }
}

/// Waits for the end of the stream, and reports whether it broke off in the middle: the daemon did not stop in order.
async fn breaks_off(feed: &mut FeedStream) -> bool {
    loop {
        match feed.next().await {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(error) => return matches!(error, Error::Broken { .. }),
        }
    }
}

/// Reports whether no service manager starts the daemon in its time.
async fn is_left_alone(client: &Client) -> bool {
    let since = Instant::now();
    while since.elapsed() < MANAGED {
        match client.health().await {
            Err(error) if error.is_without_listener() => sleep(PAUSE).await,
            _ => return false,
        }
    }
    true
}
