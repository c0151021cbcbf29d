//! The bare HTTP server on a unix socket: hyper with two threads, like the daemon's. `GET /bytes/N` returns N bytes.
//! `GET /events` streams lines that `GET /send/LINES/BYTES/RATE` sends to all streams. `GET /spawn` starts an agent
//! with three pipes. That agent tells its start time to [`BEGAN`] in the directory of the server's socket.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast;

use crate::agent::{STAMPED, stamp};
use crate::bare::myself;
use crate::daemon::wait;

/// Number of lines that a stream may lag behind.
const LAG: usize = 4096;
/// Name of the datagram socket to which an agent sends its start time.
pub(crate) const BEGAN: &str = "began.sock";
/// Length of the longest body in bytes.
const LONGEST: usize = 8 << 20;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A bare server, which is killed on drop.
#[derive(Debug)]
pub(crate) struct BareServer {
    child: Child,
    socket: PathBuf,
}

impl BareServer {
    /// Starts a server in a process of its own, and waits until it accepts connections.
    pub(crate) fn start(directory: &Path) -> Result<Self> {
        let socket = directory.join("bare.sock");
        let child = myself()?.arg("bare-http").arg(&socket).env_clear().stdin(Stdio::null()).spawn()?;
        let server = Self { child, socket };
        wait("the bare server", Duration::from_millis(1), || {
            Ok(std::os::unix::net::UnixStream::connect(&server.socket).ok().map(drop))
        })?;
        Ok(server)
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for BareServer {
    fn drop(&mut self) {
        // A server that has already ended needs no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until the process is killed.
pub(crate) fn serve(socket: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let _ = fs::remove_file(socket);
        let listener = UnixListener::bind(socket).context("the bare server cannot listen")?;
        let (lines, _) = broadcast::channel(LAG);
        let bytes = Bytes::from(vec![b'x'; LONGEST]);
        let directory: Arc<Path> = socket.parent().context("the socket has no directory")?.into();
        loop {
            let (stream, _) = listener.accept().await?;
            tokio::spawn(answer_all(stream, lines.clone(), bytes.clone(), Arc::clone(&directory)));
        }
    })
}

async fn answer_all(stream: UnixStream, lines: broadcast::Sender<Bytes>, bytes: Bytes, directory: Arc<Path>) {
    let service = service_fn(move |request| {
        let answered = answer(&request, &lines, &bytes, &directory);
        async { Ok::<_, Infallible>(answered) }
    });
    // The other end closes the connection.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

fn answer(
    request: &Request<Incoming>,
    lines: &broadcast::Sender<Bytes>,
    bytes: &Bytes,
    directory: &Path,
) -> Response<Body> {
    let words: Vec<&str> = request.uri().path().split('/').skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok()).unwrap_or_default();
    match words[0] {
        "events" => {
            let events = stream::unfold(lines.subscribe(), |mut lines| async {
                // A stream that lags too far ends.
                let line = lines.recv().await.ok()?;
                Some((Ok(Frame::data(line)), lines))
            });
            Response::new(StreamBody::new(events).boxed_unsync())
        }
        "send" => {
            let (count, length, rate) = (number(1), number(2), u32::try_from(number(3)).unwrap_or_default());
            let lines = lines.clone();
            std::thread::spawn(move || send(&lines, count, length, rate));
            Response::new(Full::default().boxed_unsync())
        }
        "spawn" => {
            let mut answered = Response::new(Full::default().boxed_unsync());
            if spawn(directory).is_err() {
                *answered.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            }
            answered
        }
        _ => Response::new(Full::new(bytes.slice(..number(1).min(bytes.len()))).boxed_unsync()),
    }
}

/// Starts an agent, and holds its pipes until it ends.
fn spawn(directory: &Path) -> Result<()> {
    let mut command = tokio::process::Command::from(myself()?);
    command.arg("agent").arg(directory).arg(directory.join(BEGAN)).current_dir(directory).env_clear();
    let mut agent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    tokio::spawn(async move {
        let _pipes = (agent.stdin.take(), agent.stdout.take(), agent.stderr.take());
        // The bench kills the agent, and needs no status.
        let _ = agent.wait().await;
    });
    Ok(())
}

/// Sends lines of this length at this rate, each with the time at which it was sent.
fn send(lines: &broadcast::Sender<Bytes>, count: usize, length: usize, rate: u32) {
    let mut line = vec![b'x'; length.max(STAMPED + 1)];
    line.splice(length.max(STAMPED + 1) - 1.., [b'\n']);
    let begun = Instant::now();
    for number in 0..u32::try_from(count).unwrap_or(u32::MAX) {
        std::thread::sleep((Duration::from_secs(1) * number / rate.max(1)).saturating_sub(begun.elapsed()));
        stamp(&mut line[..STAMPED]);
        // Without a stream the line is lost.
        let _ = lines.send(Bytes::copy_from_slice(&line));
    }
}
