//! Streams a session's events as lines, without gaps or duplicates, over any number of connections.
//! `feed` streams the events of all sessions.
//!
//! The daemon may crash or be replaced while the session continues. The stream then waits for the daemon, and
//! resumes with the record after the last one received.

pub(crate) mod feed;

use std::time::Duration;

use agentd_api::{Code, Event};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::client::{Client, StreamStart, nobody_listens};
use crate::error::Error;
use crate::reach::bring_up;
use crate::start::Starter;

/// Maximum time for which the daemon may be unreachable.
const AWAY: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Time after which this process starts a crashed daemon: no service manager is going to.
const REVIVE: Duration = Duration::from_secs(2);
/// Maximum length of a line, in bytes. A record holds at most one line of the agent, whose length the keeper
/// bounds.
const MAX_LINE: usize = 256 << 20;

/// Item of the stream.
#[derive(Debug)]
pub(crate) enum Next {
    /// Line of a record, without its newline.
    Record {
        seq: u64,
        line: Vec<u8>,
    },
    /// The daemon became unreachable. The stream continues without a gap once it is back.
    Away,
    /// The session was deleted.
    Deleted,
    Failed(Error),
}

/// Running stream. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct EventStream {
    receiver: mpsc::Receiver<Next>,
    task: JoinHandle<()>,
}

impl EventStream {
    /// Follows a session. `starter` starts a crashed daemon again, if this process may.
    pub(crate) fn follow(client: Client, id: String, from: StreamStart, starter: Option<Starter>) -> Self {
        let (sender, receiver) = mpsc::channel(64);
        let follower = Follower { client, id, from, sender, starter };
        Self { receiver, task: tokio::spawn(follower.run()) }
    }

    /// Returns the next item; `None` after [`Next::Deleted`] and [`Next::Failed`]. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Next> {
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
    starter: Option<Starter>,
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
                Err(error) if error.code() == Some(Code::NoSuchSession) && was_there => break Next::Deleted,
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
    async fn again(&mut self, broken: bool) -> Result<Incoming, Error> {
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
                && matches!(&error, Error::Unreachable { source, .. } if nobody_listens(source))
                && let Some(starter) = self.starter.take()
            {
                match bring_up(&starter, &mut self.client).await {
                    Ok(()) => {}
                    // The administrator may still start the daemon.
                    Err(error @ Error::Managed { .. }) => managed = Some(error),
                    Err(error) => return Err(error),
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Returns at most `count` of the last events of a session.
pub(crate) async fn recent(client: &Client, id: &str, count: u64) -> Result<Vec<Event>, Error> {
    let mut body = client.events(id, StreamStart::Last(count), false).await?;
    let (mut lines, mut events) = (Lines::default(), Vec::new());
    while let Some(frame) = body.frame().await {
        let broken = |source| Error::Broken { call: "GET events".into(), source };
        lines.push(&frame.map_err(broken)?.into_data().unwrap_or_default());
        while let Some(line) = lines.next()? {
            events.push(Event::parse(&line)?);
        }
    }
    Ok(events)
}

/// Repeats a call until the daemon answers, for as long as a stream waits for the daemon.
pub(crate) async fn patiently<T>(ask: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let mut patience = Patience::default();
    loop {
        match ask().await {
            Err(error) => patience.wait(error).await?,
            answer => return answer,
        }
    }
}

/// Pauses between attempts to reach a daemon that is away.
#[derive(Debug)]
pub(crate) struct Patience {
    since: Instant,
    pause: Duration,
    longest: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self::endless(LONGEST_PAUSE)
    }
}

impl Patience {
    /// Makes pauses of at most `longest`.
    pub(crate) fn endless(longest: Duration) -> Self {
        Self { since: Instant::now(), pause: FIRST_PAUSE, longest }
    }

    /// Begins again: the daemon has answered.
    pub(crate) fn reset(&mut self) {
        *self = Self::endless(self.longest);
    }

    /// Pauses after a failed attempt. Each pause is twice as long as the pause before.
    pub(crate) async fn pause(&mut self) {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(self.longest);
    }

    /// Pauses, if the error is the absence of the daemon and the daemon was not away for too long. Otherwise returns
    /// the error.
    pub(crate) async fn wait(&mut self, error: Error) -> Result<(), Error> {
        if !error.is_absence() || self.since.elapsed() >= AWAY {
            return Err(error);
        }
        self.pause().await;
        Ok(())
    }
}

/// The part of a record that the stream reads.
#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

/// Sends the records of one connection to the receiver, and moves `from` after each.
async fn read(mut body: Incoming, from: &mut StreamStart, sender: &mpsc::Sender<Next>) -> Cut {
    let mut lines = Lines::default();
    loop {
        match body.frame().await {
            None => return Cut::Ended,
            Some(Err(_)) => return Cut::Broken,
            Some(Ok(frame)) => lines.push(&frame.into_data().unwrap_or_default()),
        }
        loop {
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
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
}

/// Splits a body into lines. An incomplete line at the end is dropped.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// Length of the searched part of the buffer.
    searched: usize,
    taken: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, bytes: &Bytes) {
        self.buffer.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete line that is not empty.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let Some(length) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                if self.searched - self.taken > MAX_LINE {
                    let detail = format!("agentd sent a line of more than {MAX_LINE} bytes");
                    return Err(Error::Session { detail, hint: None });
                }
                return Ok(None);
            };
            let end = self.searched + length;
            let line = self.buffer[self.taken..end].trim_ascii().to_vec();
            self.taken = end + 1;
            self.searched = self.taken;
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

#[cfg(test)]
mod tests;
