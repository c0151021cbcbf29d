//! Accepts connections, checks who is there, and serves each with bounds on everything a client can make large.
//!
//! At the end nobody who was let in is sent away: no further connection is accepted, each that was is served its first request, what is
//! waited for is answered as it is, and streams end, so that their readers come back with their cursors. Only then may the drivers end.
//! Connections that were not accepted wait for the next daemon where the socket was handed over, and are served where it was ours.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::router::{self, Admission, Peer};
pub use super::socket::EndpointError;
use super::socket::Socket;
use super::tcp::{self, Gate};
use crate::config::Config;
use crate::reload::Reload;
use crate::session::Sessions;
use crate::world::Worlds;

/// What requests are answered from.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) worlds: Arc<Worlds>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) reload: Arc<Reload>,
    /// Ends the endpoint.
    pub(crate) closing: CancellationToken,
}

/// Where requests come in.
#[derive(Debug)]
pub(crate) struct Endpoint {
    socket: Socket,
    tcp: Option<(TcpListener, Arc<Gate>)>,
}

/// The most bytes of a request's head; hyper answers 431 beyond it.
const HEAD: usize = 64 << 10;
/// How long a client may take for a request's head.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// At the end: how long a connection that was let in may take for its first request.
const FIRST: Duration = Duration::from_secs(2);
/// At the end: how long requests may take to be answered; whoever is slower is cut off.
const LAST: Duration = Duration::from_secs(5);

impl Endpoint {
    /// The control socket, and TCP where the configuration says so.
    pub(crate) async fn open(socket: &std::path::Path, config: &Config) -> Result<Self, EndpointError> {
        let tcp = tcp::open(config).await?.map(|(listener, gate)| (listener, Arc::new(gate)));
        Ok(Self { socket: Socket::open(socket)?, tcp })
    }

    /// Where it listens besides the socket.
    pub(crate) fn tcp(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|(listener, _)| listener.local_addr().ok())
    }

    /// Serves until it is closed, then lets requests that were let in be answered.
    pub(crate) async fn serve(self, served: Served) {
        let connections = TaskTracker::new();
        let tcp = self.tcp();
        let door =
            |admission: Admission| Door { served: served.clone(), connections: connections.clone(), tcp, admission };
        let (socket, local) = (self.socket, door(Admission::Everything));
        let near = self.tcp.map(|(listener, gate)| (listener, door(Admission::Bearer(gate))));
        tokio::join!(
            async {
                local.accept(&socket.listener).await;
                socket.close(|stream| local.let_in(stream));
            },
            async {
                if let Some((listener, door)) = near {
                    door.accept(&listener).await;
                }
            }
        );
        connections.close();
        let _ = tokio::time::timeout(LAST, connections.wait()).await;
    }
}

/// One way in, with a number of connections of its own: who may not come in by one cannot close the other.
#[derive(Debug)]
struct Door {
    served: Served,
    connections: TaskTracker,
    tcp: Option<SocketAddr>,
    admission: Admission,
}

/// What connections come from.
trait Listen {
    type Stream: Connection;
    async fn accept(&self) -> io::Result<Self::Stream>;
}

/// A connection, and who is at its other end.
trait Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// By the kernel's word; `None` for somebody who is not let in.
    fn peer(&self) -> Option<Peer>;
}

impl Door {
    async fn accept<L: Listen>(&self, listener: &L) {
        let permits = Arc::new(Semaphore::new(self.served.worlds.now().config.limits.connections));
        let closing = &self.served.closing;
        loop {
            let accepted = tokio::select! {
                biased;
                () = closing.cancelled() => return,
                accepted = async {
                    let permit = Arc::clone(&permits).acquire_owned().await;
                    (permit, listener.accept().await)
                } => accepted,
            };
            match accepted {
                (permit, Ok(stream)) => self.serve(stream, permit.ok()),
                (_, Err(error)) => {
                    // EMFILE and its kin: they pass, and spinning on them helps nobody.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves a connection that had come before the end.
    fn let_in(&self, stream: UnixStream) {
        self.serve(stream, None);
    }

    fn serve<S: Connection>(&self, stream: S, permit: Option<tokio::sync::OwnedSemaphorePermit>) {
        let (admission, peer) = match stream.peer() {
            Some(peer) => (self.admission.clone(), peer),
            None => (Admission::Nothing, Peer::owner()),
        };
        let (served, tcp) = (self.served.clone(), self.tcp);
        self.connections.spawn(async move {
            serve_connection(stream, served, tcp, admission, peer).await;
            drop(permit);
        });
    }
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Answers are small and wanted at once.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Connection for UnixStream {
    fn peer(&self) -> Option<Peer> {
        let peer = self.peer_cred().ok()?;
        let is_ours = peer.uid() == Peer::owner().uid || peer.uid() == 0;
        is_ours.then(|| Peer { uid: peer.uid(), pid: peer.pid().and_then(|pid| u32::try_from(pid).ok()) })
    }
}

impl Connection for TcpStream {
    fn peer(&self) -> Option<Peer> {
        self.peer_addr().is_ok_and(tcp::is_near).then(Peer::owner)
    }
}

async fn serve_connection<S: Connection>(
    stream: S,
    served: Served,
    tcp: Option<SocketAddr>,
    admission: Admission,
    peer: Peer,
) {
    let (closing, begun) = (served.closing.clone(), Arc::new(Notify::new()));
    let asked = Arc::clone(&begun);
    let service = service_fn(move |request| {
        asked.notify_one();
        let Served { worlds, sessions, reload, closing } = served.clone();
        let context =
            router::Context { world: worlds.now(), sessions, reload, closing, tcp, admission: admission.clone(), peer };
        router::answer(context, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            // hyper would close a connection that has not said anything yet.
            let ended = tokio::select! {
                biased;
                ended = connection.as_mut() => Some(ended),
                () = begun.notified() => None,
                () = tokio::time::sleep(FIRST) => None,
            };
            if let Some(ended) = ended {
                ended
            } else {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
