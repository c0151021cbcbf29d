//! Requests per second of `GET /v1/sessions` with 1,000 sessions. The comparison is a bare server that answers each
//! request with as many bytes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use crate::bare_http::BareServer;
use crate::daemon::{Daemon, Pipeline};
use crate::table::{Table, median, ratio};

const SESSIONS: usize = 1000;
/// Connections that make requests at once.
const CONNECTIONS: usize = 4;
/// Requests of each connection in a round: many, since a connection costs more than a request.
const REQUESTS: usize = 100;
const ROUNDS: usize = 7;
/// Least ratio of the requests per second.
const GOAL: f64 = 0.7;

/// Makes the paths of the requests. A path that was not requested before has no kept answer.
type Paths = fn(usize) -> String;

/// The lines of the table: their names, their paths, and whether they have a goal.
const CASES: [(&str, Paths, bool); 6] = [
    ("default items, kept answer", |_| "/v1/sessions".to_owned(), true),
    ("default items, no kept answer", |number| format!("/v1/sessions?limit={}", SESSIONS + number), true),
    ("fields=id,status.phase, kept items", |number| with_fields("id,status.phase", number), true),
    ("fields=id,status.phase, no kept item", |number| with_fields(&new_fields("id,status.phase", number), 0), true),
    (
        "eight fields of specification and status, no kept item",
        |number| with_fields(&new_fields(EIGHT, number), 0),
        false,
    ),
    ("whole sessions (fields=*), no kept answer", |number| with_fields("*", number), false),
];
const EIGHT: &str = "id,name,agent,spec.labels,spec.directory,status.phase,status.last_seq,status.conditions.Ready";

fn with_fields(fields: &str, number: usize) -> String {
    format!("/v1/sessions?limit={}&fields={fields}", SESSIONS + number)
}

/// Returns the fields with a new name: repeated names add nothing to an item.
fn new_fields(fields: &str, number: usize) -> String {
    let digits = (0..usize::BITS).map(|bit| if number >> bit & 1 == 1 { ",id" } else { ",status.phase" });
    fields.to_owned() + &digits.take(16).collect::<String>()
}

pub(crate) fn measure() -> Result<Table> {
    let mut daemon = Daemon::start(Pipeline::Empty)?;
    daemon.persist(SESSIONS)?;
    let bare = BareServer::start(daemon.root())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut table = Table::new(format!(
        "list: GET /v1/sessions of 1,000 sessions, requests/s of {CONNECTIONS} connections; median of {ROUNDS}"
    ));
    for (name, paths, has_goal) in CASES {
        let mut ours = Clients::new(&runtime, daemon.socket());
        let mut theirs = Clients::new(&runtime, bare.socket().to_owned());
        let length = ours.round(|_| paths(0))?.1;
        let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            our_times.push(ours.round(paths)?.0);
            their_times.push(theirs.round(|_| format!("/bytes/{length}"))?.0);
        }
        let (our, their) = (median(our_times), median(their_times));
        let figure = format!("{name}, {length} B");
        table.pair(figure, per_second(our), per_second(their), ratio(their, our));
        if has_goal {
            table.goal("ratio >= 0.70", ratio(their, our) >= GOAL);
        }
    }
    Ok(table)
}

fn per_second(round: Duration) -> String {
    let requests = u32::try_from(CONNECTIONS * REQUESTS).map_or(f64::NAN, f64::from);
    format!("{:.0}/s", requests / round.as_secs_f64())
}

/// Connections to one server.
struct Clients<'a> {
    runtime: &'a Runtime,
    socket: PathBuf,
    /// Number of requests so far.
    made: usize,
}

impl<'a> Clients<'a> {
    fn new(runtime: &'a Runtime, socket: PathBuf) -> Self {
        Self { runtime, socket, made: 0 }
    }

    /// Makes the requests of a round. Returns their time, and the length of an answer in bytes.
    fn round(&mut self, path: impl Fn(usize) -> String) -> Result<(Duration, usize)> {
        let first = self.made;
        self.made += CONNECTIONS * REQUESTS;
        self.runtime.block_on(async {
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                connections.push(connect(&self.socket).await?);
            }
            let begun = Instant::now();
            let workers: Vec<_> = connections
                .into_iter()
                .enumerate()
                .map(|(worker, sender)| {
                    let first = first + worker * REQUESTS;
                    let paths = (first..first + REQUESTS).map(&path).collect::<Vec<_>>();
                    tokio::spawn(requests(sender, paths))
                })
                .collect();
            let mut length = 0;
            for worker in workers {
                length = worker.await??;
            }
            Ok((begun.elapsed(), length))
        })
    }
}

/// Opens a connection.
pub(crate) async fn connect(socket: &Path) -> Result<SendRequest<Empty<Bytes>>> {
    let stream = UnixStream::connect(socket).await.context("the server does not listen")?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Makes these requests one after the other, and returns the length of the last answer in bytes.
async fn requests(mut sender: SendRequest<Empty<Bytes>>, paths: Vec<String>) -> Result<usize> {
    let mut length = 0;
    for path in paths {
        sender.ready().await?;
        let request = Request::get(&path).header("host", "agentd").body(Empty::new())?;
        let mut response = sender.send_request(request).await?;
        ensure!(response.status().is_success(), "{path} was answered with {}", response.status());
        length = 0;
        while let Some(frame) = response.frame().await {
            length += frame?.data_ref().map_or(0, Bytes::len);
        }
    }
    Ok(length)
}
