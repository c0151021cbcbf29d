//! Streams a session's events as lines, without gaps or duplicates, over any number of connections.
//!
//! The daemon may crash or be replaced while the session continues. The stream then waits for the daemon, and
//! resumes with the record after the last one received.

mod feed;
mod lines;
mod patience;

use std::pin::Pin;
use std::time::Duration;

use agentd_api::{Call, Code, Event};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::error::{Absence as _, Error, Foreign};

pub use feed::{FeedLine, FeedQuery, FeedStream};
pub use lines::Body;
pub use patience::{Patience, patiently};

use patience::{AWAY, FIRST_PAUSE, LONGEST_PAUSE};

/// Time after which this process starts a crashed daemon: no service manager is going to.
const REVIVE: Duration = Duration::from_secs(2);
/// Start of a session's stream of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamStart {
    /// After this sequence number; `0` starts at the first record.
    After(u64),
    /// This number of records before the end.
    Last(u64),
}

/// The result of [`Revive::revive`], some time later.
pub type Reviving<'a> = Pin<Box<dyn Future<Output = Result<(), Revival>> + Send + 'a>>;

/// Starts a crashed daemon again, for a stream that waits for the daemon.
pub trait Revive: Send {
    /// Starts the daemon. May replace the client if the daemon listens at another address.
    fn revive<'a>(&'a mut self, client: &'a mut Client) -> Reviving<'a>;
}

/// Reason why a daemon was not started again.
#[derive(Debug)]
pub enum Revival {
    /// The daemon may still come back: the stream waits on, and reports this error if it does not.
    Later(Foreign),
    /// The stream ends with this error.
    Failed(Foreign),
}

/// Item of the stream.
#[derive(Debug)]
pub enum Next {
    /// Line of a record, without its newline.
    Record {
        /// Sequence number of the record.
        seq: u64,
        /// The JSON of the record.
        line: Vec<u8>,
    },
    /// The daemon became unreachable. The stream continues without a gap once it is back.
    Away,
    /// The session was deleted.
    Deleted,
    /// The stream cannot continue.
    Failed(Error),
}

/// Running stream. Dropping it ends it.
#[derive(Debug)]
pub struct EventStream {
    receiver: mpsc::Receiver<Next>,
    task: JoinHandle<()>,
}

impl EventStream {
    /// Follows a session, in a task of the present runtime. `starter` starts a crashed daemon again.
    pub fn follow(client: Client, id: String, from: StreamStart, starter: Option<Box<dyn Revive>>) -> Self {
        let (sender, receiver) = mpsc::channel(64);
        let follower = Follower { client, id, from, sender, starter };
        Self { receiver, task: tokio::spawn(follower.run()) }
    }

    /// Returns the next item; `None` after [`Next::Deleted`] and [`Next::Failed`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<Next> {
        self.receiver.recv().await
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reason for the end of a connection.
enum Cut {
    /// The daemon ended the answer in order: it stops, or the session was deleted.
    Ended,
    /// The connection broke in the middle of the answer.
    Broken,
    /// The receiver was dropped.
    Unread,
    Invalid(Error),
}

struct Follower {
    client: Client,
    id: String,
    from: StreamStart,
    sender: mpsc::Sender<Next>,
    starter: Option<Box<dyn Revive>>,
}

impl Follower {
    async fn run(mut self) {
        let mut connected = self.client.events(&self.id, self.from, true).await;
        if let Err(Error::Unreachable { .. } | Error::Broken { .. }) = connected {
            connected = self.again(true).await; // the daemon answered a moment ago, when the session was looked up
        }
        let mut was_there = false;
        let last = loop {
            let began = self.from;
            let cut = match connected {
                Ok(body) => {
                    was_there = true;
                    read(body, &mut self.from, &self.sender).await
                }
                Err(error) if error.problem_code() == Some(Code::NoSuchSession) && was_there => break Next::Deleted,
                Err(error) => break Next::Failed(error),
            };
            match cut {
                Cut::Unread => return,
                Cut::Invalid(error) => break Next::Failed(error),
                // Pauses, so that a daemon that ends each answer at once is not asked in a tight loop.
                Cut::Ended if self.from == began => sleep(FIRST_PAUSE).await,
                Cut::Ended | Cut::Broken => {}
            }
            connected = self.again(matches!(cut, Cut::Broken)).await;
        };
        let _ = self.sender.send(last).await; // the receiver may be gone
    }

    /// Connects again, with pauses. Sends [`Next::Away`] once the first attempt has failed.
    async fn again(&mut self, broken: bool) -> Result<Body, Error> {
        let since = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut told = false;
        let mut managed = None;
        loop {
            let error = match self.client.events(&self.id, self.from, true).await {
                Ok(body) => return Ok(body),
                Err(error) if error.is_absence() => error,
                Err(error) => return Err(error),
            };
            if !std::mem::replace(&mut told, true) {
                let _ = self.sender.send(Next::Away).await;
            }
            if since.elapsed() >= AWAY {
                let away = || Error::Away { seconds: AWAY.as_secs(), source: Some(Box::new(error)) };
                return Err(managed.unwrap_or_else(away));
            }
            // A daemon that was stopped in order must stay down; a crashed daemon is started again.
            if broken
                && since.elapsed() >= REVIVE
                && error.is_without_listener()
                && let Some(mut starter) = self.starter.take()
            {
                match starter.revive(&mut self.client).await {
                    Ok(()) => {}
                    Err(Revival::Later(error)) => managed = Some(Error::Revive(error)),
                    Err(Revival::Failed(error)) => return Err(Error::Revive(error)),
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Client {
    /// Opens a session's stream of events.
    pub async fn events(&self, id: &str, from: StreamStart, follow: bool) -> Result<Body, Error> {
        let (after, last) = match from {
            StreamStart::After(seq) => (Some(seq), None),
            StreamStart::Last(count) => (None, Some(count)),
        };
        let follow = Some(follow);
        self.stream(&Call::Events { session: id.to_owned(), after, last, follow, before: None, limit: None }).await
    }

    /// Returns at most `count` of the last events of a session.
    pub async fn recent(&self, id: &str, count: u64) -> Result<Vec<Event>, Error> {
        let mut body = self.events(id, StreamStart::Last(count), false).await?;
        let mut events = Vec::new();
        while let Some(line) = body.next().await? {
            events.push(Event::parse(&line)?);
        }
        Ok(events)
    }
}

/// The part of a record that the stream reads.
#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

/// Sends the records of one connection to the receiver, and moves `from` after each.
async fn read(mut body: Body, from: &mut StreamStart, sender: &mpsc::Sender<Next>) -> Cut {
    loop {
        let line = match body.next().await {
            Ok(Some(line)) => line,
            Ok(None) => return Cut::Ended,
            Err(Error::Broken { .. }) => return Cut::Broken,
            Err(error) => return Cut::Invalid(error),
        };
        let seq = match serde_json::from_slice::<Numbered>(&line) {
            Ok(numbered) => numbered.seq,
            Err(error) => return Cut::Invalid(agentd_api::event::InvalidEvent::Envelope(error).into()),
        };
        if matches!(*from, StreamStart::After(seen) if seq <= seen) {
            continue;
        }
        *from = StreamStart::After(seq);
        if sender.send(Next::Record { seq, line }).await.is_err() {
            return Cut::Unread;
        }
    }
}

#[cfg(test)]
mod tests;
