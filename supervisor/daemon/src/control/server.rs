//! Accepts connections, checks who is there, and serves each with bounds on everything a client can make large.
//!
//! At the end nobody who was let in is sent away: no further connection is accepted, each that was is served its first request, what is
//! waited for is answered as it is, and streams end, so that their readers come back with their cursors. Only then may the drivers end.
//! Connections that were not accepted wait for the next daemon where the socket was handed over, and are served where it was ours.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::SessionId;
use agentd_keeper::caller::{Caller, Who, Why};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::libc;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::room::{Bounds, Full, Party, Place, Room};
use super::router::{self, Admission};
pub use super::socket::EndpointError;
use super::socket::{Socket, SocketState};
use super::tcp::{self, Gate};
use crate::audit::Audit;
use crate::guest::Arrival;
use crate::launch::Keepers;
use crate::reload::Reload;
use crate::session::Sessions;
use crate::world::Worlds;

/// What requests are answered from.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) worlds: Arc<Worlds>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) reload: Arc<Reload>,
    pub(crate) audit: Arc<Audit>,
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
/// How long the accepting of connections rests after it failed.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the one connection has that is served while there are no descriptors.
const BRIEF: Duration = Duration::from_secs(2);
/// How many refused connections are waited for at once, so that they read why; further ones are refused without a wait.
const REFUSALS: usize = 32;
/// Number of further looks for room before a refusal, and the pause before each: the end of a connection that its client has
/// closed is noticed a moment later.
const LOOKS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);
/// How long one of them may take for its request, and again for its end.
const REFUSAL: Duration = Duration::from_secs(1);
/// At the end: how long a connection that was let in may take for its first request.
const FIRST: Duration = Duration::from_secs(2);
/// At the end: how long requests may take to be answered; whoever is slower is cut off.
const LAST: Duration = Duration::from_secs(5);

impl Endpoint {
    /// The control socket.
    pub(crate) fn open(socket: &std::path::Path) -> Result<Self, EndpointError> {
        Ok(Self { socket: Socket::open(socket)? })
    }

    /// What is known of the control socket, as long as the daemon lives.
    pub(crate) fn socket_state(&self) -> SocketState {
        self.socket.state()
    }

    /// Serves until it is closed, then lets requests that were let in be answered.
    pub(crate) async fn serve(self, served: Served) {
        let connections = TaskTracker::new();
        let bounds = Bounds::of(&served.worlds.now().config.limits);
        let refusals = Arc::new(Semaphore::new(REFUSALS));
        let door = |admission: Admission| Door {
            served: served.clone(),
            connections: connections.clone(),
            admission,
            room: Room::new(bounds),
            refusals: Arc::clone(&refusals),
        };
        let listening = Arc::clone(&served.worlds.now().tcp);
        let (mut socket, local) = (self.socket, door(Admission::Everything));
        let guests = door(Admission::Everything);
        let near = door(Admission::Bearer(Arc::new(Gate::new(Arc::clone(&listening)))));
        tokio::join!(
            async {
                local.accept(&mut socket, std::future::pending()).await;
                socket.close(|stream| local.let_in(stream));
            },
            near.accept_near(listening.listener()),
            guests.accept_guests(),
        );
        connections.close();
        let _ = tokio::time::timeout(LAST, connections.wait()).await;
    }
}

/// One way in, with a number of connections of its own: who may not come in by one cannot close the other.
#[derive(Debug, Clone)]
struct Door {
    served: Served,
    connections: TaskTracker,
    admission: Admission,
    room: Arc<Room>,
    refusals: Arc<Semaphore>,
}

/// As many as it takes to accept one connection and to look at who made it.
const SPARE: usize = 3;

/// Descriptors that are given up when there is no other, so that one connection can be served.
#[derive(Default)]
struct Spare(Vec<File>);

impl Spare {
    fn fill(&mut self) {
        while self.0.len() < SPARE {
            let Ok(file) = File::open("/dev/null") else { return };
            self.0.push(file);
        }
    }
}

/// What connections come from.
trait Listen {
    type Stream: Connection;
    async fn accept(&mut self) -> io::Result<Self::Stream>;
}

/// A connection, and who is at its other end.
trait Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// By the kernel's word, which takes a look at a few files of proc(5).
    fn caller(&self, keepers: &Keepers) -> Caller;
}

impl Door {
    /// Accepts over TCP for as long as there is a listener, and from the next one when the configuration has another.
    async fn accept_near(&self, mut listener: watch::Receiver<Option<Arc<TcpListener>>>) {
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

    /// Serves what comes by the sockets of guarded sessions, with a number of connections of their own.
    async fn accept_guests(&self) {
        let Some(mut arrivals) = self.served.worlds.now().guests.arrivals() else { return };
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

    /// Accepts until the endpoint is closed or `until`.
    async fn accept<L: Listen>(&self, listener: &mut L, until: impl Future<Output = ()>) {
        let (closing, mut until) = (&self.served.closing, std::pin::pin!(until));
        let mut spare = Spare::default();
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
                    // One at a time is served all the same, by the descriptor that was kept for it: `/healthz` among them.
                    let of_descriptors = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                    if of_descriptors && !spare.0.is_empty() {
                        tracing::warn!(%error, "no connection can be accepted but one at a time");
                        spare.0.clear();
                        let one = tokio::time::timeout(AGAIN, listener.accept()).await;
                        if let Ok(Ok(stream)) = one {
                            self.serve_briefly(stream, &mut spare).await;
                        }
                    } else {
                        // It passes, and spinning on it helps nobody.
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            }
            spare.fill();
        }
    }

    /// Serves one request while there are no descriptors for more; further connections wait until it is answered.
    async fn serve_briefly<S: Connection>(&self, stream: S, spare: &mut Spare) {
        let caller = stream.caller(self.served.worlds.now().launcher.keepers());
        // What it took to look is kept for the next one, and is not the request's.
        spare.fill();
        let serving = serve_connection(stream, self.served.clone(), self.admission.clone(), caller, None, Some(&BRIEF));
        // What takes longer is cut off: it is what the others wait for.
        let _ = tokio::time::timeout(BRIEF, serving).await;
    }

    /// Serves a connection that had come before the end.
    fn let_in(&self, stream: UnixStream) {
        let door = self.clone();
        self.connections.spawn(async move {
            let caller = stream.caller(door.served.worlds.now().launcher.keepers());
            door.serve(stream, caller, None).await;
        });
    }

    /// Serves a connection if there is room for it, and else says so to it. One that came by the socket of a guarded session is
    /// that session's guest.
    fn receive<S: Connection>(&self, stream: S, guest: Option<SessionId>) {
        let door = self.clone();
        self.connections.spawn(async move {
            let mut caller = stream.caller(door.served.worlds.now().launcher.keepers());
            if let Some(session) = guest.filter(|_| caller.who != Who::Stranger(Why::OtherUser)) {
                caller.who = Who::Guest(session);
            }
            let is_near = matches!(door.admission, Admission::Bearer(_));
            let party = if is_near { Party::default() } else { Party::of(&caller) };
            match door.enter(party).await {
                // Over TCP the token comes with the request.
                Ok(place) if is_near => door.serve(stream, caller, Some(place.unproven())).await,
                Ok(place) => door.serve(stream, caller, Some(place)).await,
                Err(full) => door.refuse(stream, full).await,
            }
        });
    }

    /// A place for a connection. Where there is none it looks again a few times, unless many are refused at once.
    async fn enter(&self, party: Party) -> Result<Place, Full> {
        let full = match self.room.enter(party.clone()) {
            Ok(place) => return Ok(place),
            Err(full) => full,
        };
        let Ok(_permit) = self.refusals.try_acquire() else { return Err(full) };
        for _ in 0..LOOKS {
            tokio::time::sleep(PAUSE).await;
            if let Ok(place) = self.room.enter(party.clone()) {
                return Ok(place);
            }
        }
        Err(full)
    }

    async fn refuse<S: Connection>(&self, mut stream: S, full: Full) {
        let answer = refusal(full);
        let Ok(_permit) = self.refusals.try_acquire() else {
            drop(timeout(Duration::ZERO, stream.write_all(&answer)).await);
            return;
        };
        let refusing = async {
            let mut request = [0; 4 << 10];
            // An answer that comes before the request confuses some clients.
            let _ = timeout(REFUSAL, stream.read(&mut request)).await;
            stream.write_all(&answer).await?;
            stream.shutdown().await?;
            // What is not read makes the answer unreadable (unix(7), ECONNRESET).
            let rest = async { while stream.read(&mut request).await.is_ok_and(|n| n > 0) {} };
            let _ = timeout(REFUSAL, rest).await;
            io::Result::Ok(())
        };
        tokio::select! {
            () = self.served.closing.cancelled() => {}
            _ = timeout(REFUSAL * 3, refusing) => {}
        }
    }

    async fn serve<S: Connection>(&self, stream: S, caller: Caller, place: Option<Place>) {
        let (served, admission) = (self.served.clone(), self.admission.clone());
        let evicted = place.as_ref().map(Place::evicted).unwrap_or_default();
        tokio::select! {
            () = evicted.cancelled() => {}
            () = serve_connection(stream, served, admission, caller, place, None) => {}
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
        // Answers are small and wanted at once.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Connection for UnixStream {
    fn caller(&self, keepers: &Keepers) -> Caller {
        Caller::look(self, |pid, start_time| keepers.session(pid, start_time))
    }
}

impl Connection for TcpStream {
    /// The token makes the owner, if the other end is this machine.
    fn caller(&self, _keepers: &Keepers) -> Caller {
        let owner = Caller::owner();
        if self.peer_addr().is_ok_and(tcp::is_near) {
            return owner;
        }
        Caller { who: Who::Stranger(Why::OtherUser), ..owner }
    }
}

/// The answer to a connection for which there is no room, as it goes over the wire.
fn refusal(full: Full) -> Vec<u8> {
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

async fn serve_connection<S: Connection>(
    stream: S,
    served: Served,
    admission: Admission,
    caller: Caller,
    place: Option<Place>,
    brief: Option<&Duration>,
) {
    let (caller, place) = (Arc::new(caller), place.map(Arc::new));
    let (closing, begun) = (served.closing.clone(), Arc::new(Notify::new()));
    let asked = Arc::clone(&begun);
    let service = service_fn(move |request| {
        asked.notify_one();
        let Served { worlds, sessions, reload, audit, closing } = served.clone();
        let (admission, caller, place) = (admission.clone(), Arc::clone(&caller), place.clone());
        let context =
            router::Context { world: worlds.now(), sessions, reload, audit, closing, admission, caller, place };
        router::answer(context, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(brief.copied().unwrap_or(HEAD_TIME))
        .keep_alive(brief.is_none())
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
