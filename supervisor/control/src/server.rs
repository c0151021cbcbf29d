//! Accepts connections, identifies their callers and serves them, with limits on everything that a client can make
//! large.
//! When the endpoint closes, it still serves every accepted connection:
//!
//! - no further connection is accepted
//! - each accepted connection gets its first request answered
//! - waiting requests are answered with the present state
//! - streams end, so that their readers reconnect with their cursors
//!
//! Only then may the drivers end. Connections that were not accepted wait for the next daemon if the socket was
//! handed over. If the socket is agentd's own, they are served.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_caller::{Caller, CallerClass, StrangerReason};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use nix::libc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::acp::{Dial, Hub};
use super::fair::Fair;
use super::grant::Grant;
use super::list::Lists;
use super::operations::Operations;
use super::read_only::{ReadOnlyEndpoint, ServedSocket};
use super::room::{Bounds, ConnectionPermit, NoRoom, Party, Room};
use super::router::{self, Admission};
pub use super::socket::EndpointError;
use super::socket::{Socket, SocketState};
use super::tcp::{self, Gate};
use crate::audit_log::Audit;
use crate::request_body::RequestBody;
use crate::tcp_listener::TcpEndpoint;
use agentd_feed::Feed;
use agentd_host::guest::Arrival;
use agentd_session::Sessions;
use agentd_session::generation::Generations;
use agentd_session::launch::Keepers;
use agentd_session::schedules::Schedules;

/// Everything that the endpoint needs to answer requests.
#[derive(Debug, Clone)]
pub struct Served {
    pub generations: Arc<Generations>,
    pub sessions: Arc<Sessions>,
    pub schedules: Arc<Schedules>,
    /// The daemon that contains the endpoint.
    pub operations: Arc<dyn Operations>,
    /// The TCP listener and its tokens.
    pub tcp: Arc<TcpEndpoint>,
    pub read_only: Arc<ReadOnlyEndpoint>,
    pub audit: Arc<Audit>,
    /// The events of all sessions and of the daemon.
    pub feed: Arc<Feed>,
    /// The clients of `/acp`.
    pub acp: Arc<Hub>,
    /// Kept answers of lists.
    pub lists: Arc<Lists>,
    /// Closes the endpoint when cancelled.
    pub closing: CancellationToken,
}

/// The control endpoint before it serves.
#[derive(Debug)]
pub struct Endpoint {
    socket: Socket,
}

/// Maximum size of a request's head in bytes. For a larger one hyper answers 431.
const HEAD: usize = 64 << 10;
/// Maximum size of the header fields of a request over HTTP/2, in bytes (RFC 9113 section 6.5.2).
const HEAD_LIST: u32 = 64 << 10;
/// Number of requests that a client makes on one connection of HTTP/2 at a time.
const STREAMS: u32 = 32;
/// Time limit for a request's head.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Pause after a failure to accept connections.
const AGAIN: Duration = Duration::from_millis(100);
/// Time limit for a connection that is served while no file descriptor is left.
const BRIEF: Duration = Duration::from_secs(2);
/// Maximum number of refused connections that are given time to read the refusal. Further ones are refused without
/// a wait.
const REFUSALS: usize = 32;
/// Buffer of a connection inside of the process, in bytes.
const BUFFER: usize = 64 << 10;
/// Number of further attempts to find room before a refusal, and the pause before each. The end of a closed
/// connection is noticed a moment later.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);
/// Time limit for the request of a refused connection, and again for its end.
const REFUSAL: Duration = Duration::from_secs(1);
/// Time limit for the first request of an accepted connection, after the endpoint began to close.
const FIRST: Duration = Duration::from_secs(2);
/// Time limit for all responses after the endpoint began to close. Slower connections are cut off.
const LAST: Duration = Duration::from_secs(5);

impl Endpoint {
    /// Opens the control socket that a service manager handed over, or else a new socket.
    pub fn open(socket: &std::path::Path, handed_over: Option<OwnedFd>) -> Result<Self, EndpointError> {
        Ok(Self { socket: Socket::open(socket, handed_over)? })
    }

    /// Returns the state of the control socket. It stays readable for the daemon's whole life.
    pub fn socket_state(&self) -> SocketState {
        self.socket.state()
    }

    /// Serves until `closing` is cancelled, then answers the accepted requests.
    pub async fn serve(self, served: Served) {
        let connections = TaskTracker::new();
        let bounds = Bounds::of(served.generations.now().daemon.start);
        let refusals = Arc::new(Semaphore::new(REFUSALS));
        let acceptor = |admission: Admission| Acceptor {
            served: served.clone(),
            connections: connections.clone(),
            admission,
            room: Room::new(bounds),
            refusals: Arc::clone(&refusals),
        };
        // Nothing of the read-only socket is shared with the owner's.
        let readers = Acceptor {
            room: Room::new(bounds.read_only()),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            ..acceptor(Admission::ReadOnly(Grant::nothing()))
        };
        let listening = Arc::clone(&served.tcp);
        let (mut socket, local) = (self.socket, acceptor(Admission::Everything));
        let guests = acceptor(Admission::Everything);
        served.acp.open(inside(&served, &connections), served.closing.clone(), connections.clone());
        let tcp_acceptor = acceptor(Admission::Bearer(Arc::new(Gate::new(Arc::clone(&listening)))));
        tokio::join!(
            async {
                local.accept(&mut socket, std::future::pending()).await;
                socket.close(|stream| local.serve_accepted(stream));
            },
            tcp_acceptor.accept_tcp(listening.listener()),
            guests.accept_guests(),
            readers.accept_given(),
            async {
                readers.accept_readers().await;
                served.read_only.close();
            },
        );
        connections.close();
        let _ = tokio::time::timeout(LAST, connections.wait()).await;
        served.acp.close();
    }
}

/// Returns the way into this endpoint for code of the same process, whose calls are the owner's.
fn inside(served: &Served, connections: &TaskTracker) -> Dial {
    let (served, connections, runtime) = (served.clone(), connections.clone(), Handle::current());
    Arc::new(move || {
        let (near, far) = tokio::io::duplex(BUFFER);
        let serving = serve_connection(far, served.clone(), Admission::Everything, Caller::owner(), None, None);
        connections.spawn_on(serving, &runtime);
        near
    })
}

/// One listener with its own limit on connections. Callers that can use only one listener cannot block the other.
#[derive(Debug, Clone)]
struct Acceptor {
    served: Served,
    connections: TaskTracker,
    admission: Admission,
    room: Arc<Room>,
    refusals: Arc<Semaphore>,
}

/// Number of file descriptors needed to accept one connection and to identify its caller.
const SPARE: usize = 3;

/// File descriptors that are released when no other is left, so that one connection can be served.
#[derive(Default)]
struct SpareDescriptors(Vec<File>);

impl SpareDescriptors {
    fn fill(&mut self) {
        while self.0.len() < SPARE {
            let Ok(file) = File::open("/dev/null") else { return };
            self.0.push(file);
        }
    }
}

/// A source of connections.
trait Listen {
    type Stream: Connection;
    async fn accept(&mut self) -> io::Result<Self::Stream>;
}

/// A connection whose caller can be identified.
trait Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns the caller as the kernel identifies it. This reads a few files of proc(5). With `any_user` a process of
    /// another user is not a stranger.
    fn caller(&self, any_user: bool, keepers: &Keepers) -> Caller;
}

impl Acceptor {
    /// Accepts TCP connections while there is a listener. Continues with the next listener after a change of the
    /// configuration.
    async fn accept_tcp(&self, mut listener: watch::Receiver<Option<Arc<TcpListener>>>) {
        let closing = &self.served.closing;
        while !closing.is_cancelled() {
            let now = listener.borrow_and_update().clone();
            let another = async { drop(listener.changed().await) };
            if let Some(mut now) = now {
                self.accept(&mut now, another).await;
                continue;
            }
            tokio::select! {
                () = closing.cancelled() => return,
                () = another => {}
            }
        }
    }

    /// Accepts connections to the read-only socket of the configuration, and to each later one.
    async fn accept_readers(&self) {
        let (closing, mut sockets) = (&self.served.closing, self.served.read_only.served());
        while !closing.is_cancelled() {
            let now = sockets.borrow_and_update().clone();
            let another = async { drop(sockets.changed().await) };
            if let Some(now) = now {
                self.of_socket(&now).accept(&mut Arc::clone(&now.listener), another).await;
                continue;
            }
            tokio::select! {
                () = closing.cancelled() => return,
                () = another => {}
            }
        }
    }

    /// Accepts connections to the read-only socket that the service manager handed over.
    async fn accept_given(&self) {
        let Some(given) = self.served.read_only.given() else { return };
        self.of_socket(&given).accept(&mut Arc::clone(&given.listener), std::future::pending()).await;
    }

    /// Returns the acceptor for a read-only socket. All of them share one limit.
    fn of_socket(&self, socket: &ServedSocket) -> Self {
        Self { admission: Admission::ReadOnly(socket.grant.clone()), ..self.clone() }
    }

    /// Identifies the caller of a connection.
    fn caller(&self, stream: &impl Connection) -> Caller {
        let any_user = matches!(self.admission, Admission::ReadOnly(_));
        stream.caller(any_user, self.served.generations.now().daemon.launcher.keepers())
    }

    /// Serves connections to the sockets of guarded sessions. They have their own limit.
    async fn accept_guests(&self) {
        let Some(mut arrivals) = self.served.generations.now().daemon.guests.arrivals() else { return };
        let closing = &self.served.closing;
        loop {
            tokio::select! {
                biased;
                () = closing.cancelled() => return,
                arrival = arrivals.recv() => match arrival {
                    Some(Arrival { session, stream }) => self.receive(stream, Some(session)),
                    None => return,
                }
            }
        }
    }

    /// Accepts connections until the endpoint closes or `until` completes.
    async fn accept<L: Listen>(&self, listener: &mut L, until: impl Future<Output = ()>) {
        let (closing, mut until) = (&self.served.closing, std::pin::pin!(until));
        let mut spare = SpareDescriptors::default();
        spare.fill();
        loop {
            let accepted = tokio::select! {
                biased;
                () = closing.cancelled() => return,
                () = until.as_mut() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(stream) => self.receive(stream, None),
                Err(error) => {
                    // With the reserved file descriptors, one connection at a time is still served, including
                    // `/healthz`.
                    let of_descriptors = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                    if of_descriptors && !spare.0.is_empty() {
                        tracing::warn!(%error, "no file descriptor is left; serving one connection at a time");
                        spare.0.clear();
                        let one = tokio::time::timeout(AGAIN, listener.accept()).await;
                        if let Ok(Ok(stream)) = one {
                            self.serve_briefly(stream, &mut spare).await;
                        }
                    } else {
                        // The failure is temporary, and retrying without a pause would only use processor time.
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            }
            spare.fill();
        }
    }

    /// Serves one request while no further file descriptor is left. Other connections wait until it is answered.
    async fn serve_briefly<S: Connection>(&self, stream: S, spare: &mut SpareDescriptors) {
        let caller = self.caller(&stream);
        // The descriptors of the identification are reserved again, and not left to the request.
        spare.fill();
        let serving = serve_connection(stream, self.served.clone(), self.admission.clone(), caller, None, Some(&BRIEF));
        // A slow request is cut off, since other connections wait for its end.
        let _ = tokio::time::timeout(BRIEF, serving).await;
    }

    /// Serves a connection that was made before the endpoint closed.
    fn serve_accepted(&self, stream: UnixStream) {
        let acceptor = self.clone();
        self.connections.spawn(async move {
            let caller = acceptor.caller(&stream);
            acceptor.serve(stream, caller, None).await;
        });
    }

    /// Serves a connection if there is room, or else refuses it. The caller on the socket of a guarded session is
    /// that session's guest.
    fn receive<S: Connection>(&self, stream: S, guest: Option<SessionId>) {
        let acceptor = self.clone();
        self.connections.spawn(async move {
            let mut caller = acceptor.caller(&stream);
            if let Some(session) = guest.filter(|_| caller.who != CallerClass::Stranger(StrangerReason::OtherUser)) {
                caller.who = CallerClass::Guest(session);
            }
            let is_tcp = matches!(acceptor.admission, Admission::Bearer(_));
            let party = if is_tcp { Party::default() } else { Party::of(&caller) };
            match acceptor.enter(party).await {
                // Over TCP the token arrives with the request.
                Ok(permit) if is_tcp => acceptor.serve(stream, caller, Some(permit.unproven())).await,
                Ok(permit) => acceptor.serve(stream, caller, Some(permit)).await,
                Err(full) => {
                    let metrics = &acceptor.served.generations.now().daemon.metrics;
                    metrics.connections_refused.count([acceptor.admission.listener()]);
                    acceptor.refuse(stream, full).await;
                }
            }
        });
    }

    /// Admits a connection. Without room it tries again a few times, unless many connections are being refused.
    async fn enter(&self, party: Party) -> Result<ConnectionPermit, NoRoom> {
        let full = match self.room.enter(party.clone()) {
            Ok(permit) => return Ok(permit),
            Err(full) => full,
        };
        let Ok(_permit) = self.refusals.try_acquire() else { return Err(full) };
        for _ in 0..LOOKS {
            tokio::time::sleep(PAUSE).await;
            if let Ok(permit) = self.room.enter(party.clone()) {
                return Ok(permit);
            }
        }
        Err(full)
    }

    async fn refuse<S: Connection>(&self, mut stream: S, full: NoRoom) {
        let answer = refusal(full);
        let Ok(_permit) = self.refusals.try_acquire() else {
            drop(timeout(Duration::ZERO, stream.write_all(&answer)).await);
            return;
        };
        let refusing = async {
            let mut request = [0; 4 << 10];
            // Some clients cannot handle a response that arrives before they sent the request.
            let _ = timeout(REFUSAL, stream.read(&mut request)).await;
            stream.write_all(&answer).await?;
            stream.shutdown().await?;
            // Unread data would make the response unreadable (unix(7), ECONNRESET).
            let rest = async { while stream.read(&mut request).await.is_ok_and(|n| n > 0) {} };
            let _ = timeout(REFUSAL, rest).await;
            io::Result::Ok(())
        };
        tokio::select! {
            () = self.served.closing.cancelled() => {}
            _ = timeout(REFUSAL * 3, refusing) => {}
        }
    }

    async fn serve<S: Connection>(&self, stream: S, caller: Caller, permit: Option<ConnectionPermit>) {
        let (served, admission) = (self.served.clone(), self.admission.clone());
        let evicted = permit.as_ref().map(ConnectionPermit::evicted).unwrap_or_default();
        let revoked = admission.revoked();
        tokio::select! {
            () = evicted.cancelled() => {}
            () = revoked.cancelled() => {}
            () = serve_connection(stream, served, admission, caller, permit, None) => {}
        }
    }
}

impl Listen for Socket {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<UnixStream> {
        Self::accept(self).await
    }
}

impl Listen for Arc<TcpListener> {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = self.as_ref().accept().await?;
        // Responses are small, so send each at once.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Listen for Arc<UnixListener> {
    type Stream = UnixStream;

    async fn accept(&mut self) -> io::Result<UnixStream> {
        self.as_ref().accept().await.map(|(stream, _)| stream)
    }
}

impl Connection for UnixStream {
    fn caller(&self, any_user: bool, keepers: &Keepers) -> Caller {
        let session = |pid, start_time| keepers.session(pid, start_time);
        if any_user { Caller::look_at_any_user(self, session) } else { Caller::look(self, session) }
    }
}

impl Connection for TcpStream {
    /// The holder of the token is the owner, if the other end is on this machine. The router checks the token.
    fn caller(&self, _any_user: bool, _keepers: &Keepers) -> Caller {
        let owner = Caller::owner();
        if self.peer_addr().is_ok_and(tcp::is_near) {
            return owner;
        }
        Caller { who: CallerClass::Stranger(StrangerReason::OtherUser), ..owner }
    }
}

/// Returns the HTTP response that refuses a connection.
fn refusal(full: NoRoom) -> Vec<u8> {
    let problem = full.problem();
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let retry = problem.code.retry_after().unwrap_or(1);
    format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: {retry}\r\nconnection: close\r\n\
         content-type: application/problem+json\r\ncontent-length: {}\r\n\r\n{body}\n",
        body.len() + 1
    )
    .into_bytes()
}

async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    served: Served,
    admission: Admission,
    caller: Caller,
    permit: Option<ConnectionPermit>,
    brief: Option<&Duration>,
) {
    let (caller, permit) = (Arc::new(caller), permit.map(Arc::new));
    let (closing, begun) = (served.closing.clone(), CancellationToken::new());
    let asked = begun.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        asked.cancel();
        let Served { generations, sessions, schedules, operations, tcp, read_only, audit, feed, acp, lists, closing } =
            served.clone();
        let (admission, caller, permit) = (admission.clone(), Arc::clone(&caller), permit.clone());
        let context = router::Context {
            generation: generations.now(),
            sessions,
            schedules,
            operations,
            tcp,
            read_only,
            audit,
            feed,
            acp,
            lists,
            closing,
            grant: Grant::nothing(),
            caller,
            permit,
        };
        router::answer(context, admission, request.map(RequestBody::new))
    });
    let head_time = brief.copied().unwrap_or(HEAD_TIME);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .keep_alive(brief.is_none())
        .max_buf_size(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_LIST)
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(HEAD_TIME);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(Fair::new(stream)), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = silence(head_time, &begun) => return,
        () = closing.cancelled() => {
            // hyper would close a connection that has not sent anything yet.
            let ended = tokio::select! {
                biased;
                ended = connection.as_mut() => Some(ended),
                () = begun.cancelled() => None,
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

/// Completes if no request has begun in this time. The library begins its own limit only after the first bytes.
async fn silence(time: Duration, begun: &CancellationToken) {
    tokio::time::sleep(time).await;
    if begun.is_cancelled() {
        std::future::pending::<()>().await;
    }
}
