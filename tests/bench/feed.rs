//! Latency of `GET /v1/events`, from the agent's write to the reader, with 1,000 events per second. The comparison is
//! a bare server that sends lines of the same length through a broadcast channel to hyper's streams.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Incoming;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::agent::{STAMP, wall};
use crate::bare_http::BareServer;
use crate::client::Client;
use crate::daemon::{Daemon, Pipeline, prompt, wait_idle};
use crate::list::connect;
use crate::process::rss;
use crate::table::{Table, kib, millis, ratio};

const READERS: [usize; 3] = [1, 10, 100];
/// Events per second.
const RATE: usize = 1000;
/// Events of one measurement.
const EVENTS: usize = 5 * RATE;
/// Length of the agent's line in bytes.
const LINE: usize = 300;
/// Events before and after the first look at the memory with a stalled reader.
const STALLED: (usize, usize) = (8 * RATE, 24 * RATE);
/// Time within which the last event must arrive.
const LIMIT: Duration = Duration::from_mins(1);
/// Longest latency of 99 % of the events.
const GOAL: Duration = Duration::from_millis(5);
/// Largest growth of the memory in KiB. 24,000 events have 10 MB.
const GROWTH: u64 = 1024;

pub(crate) fn measure() -> Result<Table> {
    let daemon = Daemon::start(Pipeline::Empty)?;
    let id = daemon.session(&mut daemon.client()?)?;
    let bare = BareServer::start(daemon.root())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let ours = Side { runtime: &runtime, socket: daemon.socket(), path: "/v1/events" };
    let theirs = Side { runtime: &runtime, socket: bare.socket().to_owned(), path: "/events" };
    let mut bare_client = Client::new(bare.socket().to_owned())?;
    let mut table = Table::new(format!("feed: GET /v1/events at {RATE} events/s, from the write to the reader"));
    // The first events fill the memory for them.
    let length = warm(&ours, &daemon, &id)?;
    for readers in READERS {
        let ours = ours.read(readers, EVENTS, || send(&daemon, &id, EVENTS))?;
        let theirs =
            theirs.read(readers, EVENTS, || bare_client.bytes(&format!("/send/{EVENTS}/{length}/{RATE}")).map(drop))?;
        let name =
            |what: &str| if readers == 1 { format!("1 reader, {what}") } else { format!("{readers} readers, {what}") };
        for (what, share) in [("median", 50), ("p99", 99)] {
            let (our, their) = (ours.at(share), theirs.at(share));
            table.pair(name(what), millis(our), millis(their), ratio(our, their));
            if share == 99 {
                table.goal("< 5 ms", our < GOAL);
            }
        }
        let (count, all) = (ours.0.len(), readers * EVENTS);
        let share = |count: usize| format!("{count} of {all}");
        let arrived = u32::try_from(count).map_or(f64::NAN, f64::from) / f64::from(u32::try_from(all)?);
        table.pair(name("events"), share(count), share(theirs.0.len()), arrived).goal("all", count == all);
    }
    stalled(&mut table, &ours, &daemon, &id)?;
    Ok(table)
}

/// Sends events once, and returns the length of an event in the stream in bytes.
fn warm(ours: &Side<'_>, daemon: &Daemon, id: &str) -> Result<usize> {
    let read = ours.read(1, EVENTS, || send(daemon, id, EVENTS))?;
    ensure!(read.0.len() == EVENTS, "{} of {EVENTS} events arrived", read.0.len());
    Ok(read.1 / EVENTS)
}

/// Makes the agent print, and waits for the end of its turn. Requests that ask for the end would disturb the events.
fn send(daemon: &Daemon, id: &str, events: usize) -> Result<()> {
    let before = prompt(&mut daemon.client()?, id, &format!("pace {events} {LINE} {RATE}"))?;
    thread::sleep(Duration::from_secs(1) * u32::try_from(events / RATE)?);
    wait_idle(&mut daemon.client()?, id, before).map(drop)
}

/// Measures the memory that the daemon needs for a reader that does not read.
fn stalled(table: &mut Table, ours: &Side<'_>, daemon: &Daemon, id: &str) -> Result<()> {
    let pid = daemon.pid()?;
    let stalled = ours.runtime.block_on(open(&ours.socket, ours.path))?;
    let (before, after) = STALLED;
    ours.read(1, before, || send(daemon, id, before))?;
    let begun = rss(pid)?;
    let read = ours.read(1, after, || send(daemon, id, after))?;
    let ended = rss(pid)?;
    drop(stalled);
    let grown = ended.saturating_sub(begun);
    table
        .pair(
            "1 reader beside a stalled one, p99 and the median",
            millis(read.at(99)),
            millis(read.at(50)),
            ratio(read.at(99), read.at(50)),
        )
        .goal("< 5 ms", read.at(99) < GOAL);
    table.alone(format!("growth of the memory with a stalled reader, {after} events"), kib(grown));
    table.goal("<= 1 MB", grown <= GROWTH);
    Ok(())
}

/// One of the two servers.
struct Side<'a> {
    runtime: &'a Runtime,
    socket: PathBuf,
    path: &'a str,
}

/// Latencies of all events of all readers in microseconds, ascending, and the number of bytes.
struct Latencies(Vec<u64>, usize);

impl Latencies {
    /// Returns the latency that this share of the events, in percent, does not exceed.
    fn at(&self, percent: usize) -> Duration {
        let place = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        Duration::from_micros(self.0.get(place).copied().unwrap_or_default())
    }
}

impl Side<'_> {
    /// Opens streams, calls `send`, and reads each stream until it has had this number of events.
    fn read(&self, readers: usize, events: usize, send: impl FnOnce() -> Result<()>) -> Result<Latencies> {
        let mut streams: Vec<JoinHandle<Result<Latencies>>> = Vec::new();
        for _ in 0..readers {
            let body = self.runtime.block_on(open(&self.socket, self.path))?;
            streams.push(self.runtime.spawn(count(body, events)));
        }
        send()?;
        let mut all = Latencies(Vec::with_capacity(readers * events), 0);
        for stream in streams {
            let read = self.runtime.block_on(stream)??;
            all.0.extend(read.0);
            all.1 += read.1;
        }
        all.0.sort_unstable();
        Ok(all)
    }
}

async fn open(socket: &Path, path: &str) -> Result<Incoming> {
    let mut sender = connect(socket).await?;
    let request = Request::get(path).header("host", "agentd").body(Empty::new())?;
    let response = sender.send_request(request).await?;
    ensure!(response.status().is_success(), "{path} was answered with {}", response.status());
    // The connection lives as long as the body.
    Ok(response.into_body())
}

/// Reads until this number of stamped lines has arrived, or none arrives in time.
async fn count(mut body: Incoming, events: usize) -> Result<Latencies> {
    let mut read = Latencies(Vec::with_capacity(events), 0);
    // End of the last frame, which may be a part of a stamp.
    let mut rest: Vec<u8> = Vec::new();
    while read.0.len() < events {
        let Ok(frame) = timeout(LIMIT, body.frame()).await else { break };
        let frame = frame.context("the stream ended")??;
        let Some(bytes) = frame.data_ref() else { continue };
        let now = wall()?;
        let length = rest.len();
        rest.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(at) = memchr::memchr(STAMP, &rest[from..]) {
            let digits = from + at + 1;
            let Some(stamp) = rest.get(digits..digits + 16) else { break };
            from = digits + 16;
            let sent: u64 = std::str::from_utf8(stamp)?.parse().context("a stamp is not a number")?;
            read.0.push(now.saturating_sub(sent));
        }
        // Only the bytes of stamped lines are counted, for the length of a line.
        read.1 += rest.len() - length;
        let begin = memchr::memchr(STAMP, &rest[from..]).map_or(rest.len(), |at| from + at);
        rest.drain(..begin);
    }
    Ok(read)
}
