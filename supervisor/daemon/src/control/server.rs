//! Accepts connections, checks who is there, and serves each with bounds on everything a client can make large.
//!
//! At the end nobody who was let in is sent away: no further connection is accepted, each that was is served its first request, what is
//! waited for is answered as it is, and streams end, so that their readers come back with their cursors. Only then may the drivers end.
//! Connections that were not accepted wait for the next daemon where the socket was handed over, and are served where it was ours.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::router::{self, Admission, Peer};
pub use super::socket::EndpointError;
use super::socket::Socket;
use super::tcp::{self, Gate};
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
    /// The control socket.
    pub(crate) fn open(socket: &std::path::Path) -> Result<Self, EndpointError> {
        Ok(Self { socket: Socket::open(socket)? })
    }

    /// Serves until it is closed, then lets requests that were let in be answered.
    pub(crate) async fn serve(self, served: Served) {
        let connections = TaskTracker::new();
        let door = |admission: Admission| Door { served: served.clone(), connections: connections.clone(), admission };
        let listening = Arc::clone(&served.worlds.now().tcp);
        let (socket, local) = (self.socket, door(Admission::Everything));
        let near = door(Admission::Bearer(Arc::new(Gate::new(Arc::clone(&listening)))));
        tokio::join!(
            async {
                local.accept(&socket.listener, std::future::pending()).await;
                socket.close(|stream| local.let_in(stream));
            },
            near.accept_near(listening.listener()),
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
    /// Accepts over TCP for as long as there is a listener, and from the next one when the configuration has another.
    async fn accept_near(&self, mut listener: watch::Receiver<Option<Arc<TcpListener>>>) {
        let closing = &self.served.closing;
        while !closing.is_cancelled() {
            let now = listener.borrow_and_update().clone();
            let another = async { drop(listener.changed().await) };
            if let Some(now) = now {
                self.accept(now.as_ref(), another).await;
                continue;
            }
            tokio::select! {
                () = closing.cancelled() => return,
                () = another => {}
            }
        }
    }

    /// Accepts until the endpoint is closed or `until`.
    async fn accept<L: Listen>(&self, listener: &L, until: impl Future<Output = ()>) {
        let permits = Arc::new(Semaphore::new(self.served.worlds.now().config.limits.connections));
        let (closing, mut until) = (&self.served.closing, std::pin::pin!(until));
        loop {
            let accepted = tokio::select! {
                biased;
                () = closing.cancelled() => return,
                () = until.as_mut() => return,
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
        let served = self.served.clone();
        self.connections.spawn(async move {
            serve_connection(stream, served, admission, peer).await;
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

async fn serve_connection<S: Connection>(stream: S, served: Served, admission: Admission, peer: Peer) {
    let (closing, begun) = (served.closing.clone(), Arc::new(Notify::new()));
    let asked = Arc::clone(&begun);
    let service = service_fn(move |request| {
        asked.notify_one();
        let Served { worlds, sessions, reload, closing } = served.clone();
        let context =
            router::Context { world: worlds.now(), sessions, reload, closing, admission: admission.clone(), peer };
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
