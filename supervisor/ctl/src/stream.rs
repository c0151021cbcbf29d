//! A session's events as lines, from one place on, without gap or double, over any number of connections.
//!
//! The daemon may go away in the middle: it crashed, or was replaced. The session goes on without it, so the stream waits,
//! asks again from the record after the last it has seen, and goes on as if nothing had been.

use std::time::Duration;

use agentd_api::{Code, Event};
use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::commands::{bring_up, nobody_listens};
use crate::error::Error;
use crate::start::Starter;

/// How long the daemon may be away.
const AWAY: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// When a daemon that broke off in mid-word is not back by then, nobody else is going to start it.
const REVIVE: Duration = Duration::from_secs(2);
/// A record holds at most a line of the agent, and the keeper bounds those.
const MAX_LINE: usize = 256 << 20;

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// After this seq; `0` is the first record.
    After(u64),
    /// So many records before the end.
    Last(u64),
}

/// What the stream tells.
#[derive(Debug)]
pub(crate) enum Next {
    /// A record's line, without its newline.
    Record {
        seq: u64,
        line: Vec<u8>,
    },
    /// The daemon went away; what follows is as if it had not.
    Away,
    /// The session was deleted.
    Deleted,
    Failed(Error),
}

/// A running stream; dropping it ends it.
#[derive(Debug)]
pub(crate) struct EventStream {
    receiver: mpsc::Receiver<Next>,
    task: JoinHandle<()>,
}

impl EventStream {
    /// Follows a session; `starter` starts the daemon again if it may.
    pub(crate) fn follow(client: Client, id: String, from: From, starter: Option<Starter>) -> Self {
        let (sender, receiver) = mpsc::channel(64);
        let follower = Follower { client, id, from, sender, starter };
        Self { receiver, task: tokio::spawn(follower.run()) }
    }

    /// The next; `None` after [`Next::Deleted`] and [`Next::Failed`]. Safe to drop before it is ready.
    pub(crate) async fn next(&mut self) -> Option<Next> {
        self.receiver.recv().await
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a connection is over.
enum Cut {
    /// The daemon ended the answer in an orderly way: it stops, or the session is deleted.
    Ended,
    /// In the middle of a word.
    Broken,
    /// Nobody reads any more.
    Unread,
    Invalid(Error),
}

struct Follower {
    client: Client,
    id: String,
    from: From,
    sender: mpsc::Sender<Next>,
    starter: Option<Starter>,
}

impl Follower {
    async fn run(mut self) {
        let mut connected = self.client.events(&self.id, &query(self.from, true)).await;
        if let Err(Error::Unreachable { .. } | Error::Broken { .. }) = connected {
            connected = self.again(true).await; // it answered a moment ago, when the session was looked up
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
                // A daemon that ends each answer at once is not asked in a tight loop.
                Cut::Ended if self.from == began => sleep(FIRST_PAUSE).await,
                Cut::Ended | Cut::Broken => {}
            }
            connected = self.again(matches!(cut, Cut::Broken)).await;
        };
        let _ = self.sender.send(last).await; // nobody may be reading any more
    }

    /// Connects again, patiently. Said only when the first attempt shows that the daemon is really away.
    async fn again(&mut self, broken: bool) -> Result<Incoming, Error> {
        let since = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut told = false;
        let mut managed = None;
        loop {
            let error = match self.client.events(&self.id, &query(self.from, true)).await {
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
            // One that was stopped in an orderly way is meant to be down; one that crashed is not.
            if broken
                && since.elapsed() >= REVIVE
                && matches!(&error, Error::Unreachable { source, .. } if nobody_listens(source))
                && let Some(starter) = self.starter.take()
            {
                match bring_up(&starter, &mut self.client).await {
                    Ok(()) => {}
                    // The administrator may still start it.
                    Err(error @ Error::Managed { .. }) => managed = Some(error),
                    Err(error) => return Err(error),
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The last events of a session, at most so many.
pub(crate) async fn recent(client: &Client, id: &str, count: u64) -> Result<Vec<Event>, Error> {
    let mut body = client.events(id, &query(From::Last(count), false)).await?;
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

/// Asks until the daemon answers, as patiently as a stream does that follows.
pub(crate) async fn patiently<T>(ask: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let (since, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        match ask().await {
            Err(error) if error.is_absence() && since.elapsed() < AWAY => sleep(pause).await,
            answer => return answer,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The query of `GET .../events`.
pub(crate) fn query(from: From, follow: bool) -> String {
    let from = match from {
        From::After(seq) => format!("after={seq}"),
        From::Last(count) => format!("last={count}"),
    };
    format!("?{from}&follow={follow}")
}

/// Only what the stream itself needs of a record.
#[derive(Deserialize)]
struct Numbered {
    seq: u64,
}

/// Passes on the records of one connection, and moves `from` behind each.
async fn read(mut body: Incoming, from: &mut From, sender: &mpsc::Sender<Next>) -> Cut {
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
            if matches!(*from, From::After(seen) if seq <= seen) {
                continue;
            }
            *from = From::After(seq);
            if sender.send(Next::Record { seq, line }).await.is_err() {
                return Cut::Unread;
            }
        }
    }
}

/// Cuts a body into lines; what is torn off at the end is not a line.
#[derive(Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// How far the buffer was searched.
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

    /// The next whole line that is not empty.
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
