//! Accepts connections of the loopback, identifies their processes, and serves the owner's.
//!
//! A refused process gets an answer to its request and holds no place of the owner's connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agentd_caller::TcpPeer;
use http_body_util::{BodyExt as _, Collected};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::{SignedDuration, Timestamp};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Settings;
use crate::answer::{confine, problem};
use crate::door::{Door, Secret, after};
use crate::origin::Names;
use crate::refusal::Refusal;
use crate::router::{self, Shared};

/// Maximum number of connections. A browser makes at most six for all windows of a page.
const CONNECTIONS: usize = 64;
/// Number of connections that are identified at a time. Further ones wait.
const ARRIVALS: usize = 8;
/// Maximum number of refused connections that are given an answer at a time. Further ones are closed.
const REFUSALS: usize = 32;
/// Maximum size of a request's head in bytes. For a larger one hyper answers 431.
const HEAD: usize = 64 << 10;
/// Time limit for a request's head.
const HEAD_TIME: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };
/// Time limit for each step of a refusal.
const REFUSAL: Duration = Duration::from_secs(1);
/// Pause after a failure to accept connections.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest sleep until the end of a stage. A machine that was suspended notices the end this late.
const LOOK: Duration = Duration::from_secs(30);

/// Stage of the page's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The token can be used.
    Waiting,
    /// The token was not used in its time, so no browser can sign in any more.
    Unused,
    /// A browser has signed in.
    SignedIn,
    /// The time of the sign-in is over, and its connections were closed.
    SignedOut,
}

/// The page at its port. It is served while [`Page::serve`] runs.
#[derive(Debug)]
pub struct Page {
    listener: TcpListener,
    port: u16,
    shared: Arc<Shared>,
}

impl Page {
    /// Opens the first of these ports of the loopback that is free; port 0 is any free one. The life of the token
    /// begins.
    ///
    /// # Errors
    ///
    /// The failure to open the last port.
    pub async fn bind(settings: Settings, ports: &[u16]) -> io::Result<Self> {
        let addresses: Vec<SocketAddr> = ports.iter().map(|port| (Ipv4Addr::LOCALHOST, *port).into()).collect();
        let listener = TcpListener::bind(addresses.as_slice()).await?;
        let port = listener.local_addr()?.port();
        let token = Secret::random().map_err(io::Error::other)?;
        let door = Door::new(token, after(Timestamp::now(), settings.token_life), settings.life);
        let shared = Shared {
            settings,
            names: Names::at(port),
            cookie: format!("agentd-ui-{port}"),
            door: Mutex::new(door),
            stage: watch::Sender::new(Stage::Waiting),
        };
        Ok(Self { listener, port, shared: Arc::new(shared) })
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address with the token in its fragment, which a browser sends nowhere.
    pub fn url(&self) -> String {
        let door = self.shared.door.lock().unwrap_or_else(PoisonError::into_inner);
        format!("http://127.0.0.1:{}/#token={}", self.port, door.token())
    }

    /// Returns the time at which the present stage ends.
    pub fn ends(&self) -> Timestamp {
        self.shared.door.lock().unwrap_or_else(PoisonError::into_inner).ends()
    }

    /// Returns the stage, now and after each change.
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.shared.stage.subscribe()
    }

    /// Serves until it is dropped. All connections end with it.
    pub async fn serve(&self) {
        tokio::join!(self.accept(), self.watch());
    }

    async fn accept(&self) {
        let rooms = Rooms::default();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = rooms.accept(&self.listener) => accepted,
                Some(_) = connections.join_next() => continue,
            };
            match accepted {
                Ok((stream, peer, arrival)) => {
                    let (shared, rooms) = (Arc::clone(&self.shared), rooms.clone());
                    connections.spawn(async move {
                        let admitted = admit(&stream, peer).await;
                        drop(arrival);
                        rooms.receive(stream, shared, admitted).await;
                    });
                }
                // The failure is temporary, and retrying without a pause would only use processor time.
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    /// Ends the stages whose time is over.
    async fn watch(&self) {
        let mut changes = self.stage();
        loop {
            let stage = *changes.borrow_and_update();
            let over = match stage {
                Stage::Waiting => Stage::Unused,
                Stage::SignedIn => Stage::SignedOut,
                Stage::Unused | Stage::SignedOut => return,
            };
            let left = self.ends().duration_since(Timestamp::now());
            if left <= SignedDuration::ZERO {
                self.shared.stage.send_replace(over);
                continue;
            }
            let pause = Duration::try_from(left).unwrap_or(LOOK).min(LOOK);
            let _ = timeout(pause, changes.changed()).await;
        }
    }
}

/// Limits on connections. A refused process takes no place of the owner's.
#[derive(Debug, Clone)]
struct Rooms {
    arrivals: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    served: Arc<Semaphore>,
}

impl Default for Rooms {
    fn default() -> Self {
        let room = |size| Arc::new(Semaphore::new(size));
        Self { arrivals: room(ARRIVALS), refusals: room(REFUSALS), served: room(CONNECTIONS) }
    }
}

impl Rooms {
    /// Accepts a connection as soon as its process can be identified.
    async fn accept(&self, listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let arrival = Arc::clone(&self.arrivals).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, peer) = listener.accept().await?;
        Ok((stream, peer, arrival))
    }

    /// Serves a connection, or refuses it.
    async fn receive(&self, stream: TcpStream, shared: Arc<Shared>, admitted: Result<(), Refusal>) {
        let place = admitted.and_then(|()| self.served.try_acquire().map_err(|_| Refusal::TooManyConnections));
        match place {
            Ok(_place) => serve_until_signed_out(stream, shared).await,
            Err(refusal) => {
                let Ok(_permit) = self.refusals.try_acquire() else { return };
                refuse(stream, &refusal).await;
            }
        }
    }
}

/// Refuses a process that is not the owner's, or inside a session.
async fn admit(stream: &TcpStream, peer: SocketAddr) -> Result<(), Refusal> {
    // Answers are small, so send each at once.
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().map_err(|_| Refusal::CallerUnknown)?;
    let looking = tokio::task::spawn_blocking(move || TcpPeer::find(local, peer));
    match looking.await.map_err(|_| Refusal::CallerUnknown)? {
        TcpPeer::Owner => Ok(()),
        TcpPeer::InSession => Err(Refusal::InSession),
        TcpPeer::OtherUser => Err(Refusal::OtherUser),
        TcpPeer::Unknown => Err(Refusal::CallerUnknown),
    }
}

/// Answers the request of a refused connection, whatever it is.
async fn refuse(mut stream: TcpStream, refusal: &Refusal) {
    let answer = refusal_text(refusal).await;
    let mut request = [0; 4 << 10];
    // Some clients cannot handle an answer that arrives before they sent the request.
    let _ = timeout(REFUSAL, stream.read(&mut request)).await;
    let sent = async { stream.write_all(&answer).await.is_ok() && stream.shutdown().await.is_ok() };
    if timeout(REFUSAL, sent).await.unwrap_or_default() {
        // Unread data would make the answer unreadable (tcp(7), RST).
        let rest = async { while stream.read(&mut request).await.is_ok_and(|length| length > 0) {} };
        let _ = timeout(REFUSAL, rest).await;
    }
}

/// Returns the HTTP answer that refuses a connection.
async fn refusal_text(refusal: &Refusal) -> Vec<u8> {
    let (mut head, body) = problem(refusal).into_parts();
    confine(&mut head.headers);
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let mut text = format!("HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n", head.status, body.len());
    for (name, value) in &head.headers {
        let value = value.to_str().unwrap_or_default();
        text.extend([name.as_str(), ": ", value, "\r\n"]);
    }
    text.push_str("\r\n");
    [text.as_bytes(), &body].concat()
}

/// Serves a connection. A connection that was made before the end of the sign-in ends with it, with its streams.
async fn serve_until_signed_out(stream: TcpStream, shared: Arc<Shared>) {
    let mut stage = shared.stage.subscribe();
    let was_over = *stage.borrow() == Stage::SignedOut;
    let signed_out = async {
        if was_over || stage.wait_for(|stage| *stage == Stage::SignedOut).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = serve(stream, shared) => {}
        () = signed_out => {}
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let begun = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&begun);
    let service = service_fn(move |request: Request<Incoming>| {
        asked.store(true, Ordering::Relaxed);
        router::answer(Arc::clone(&shared), request)
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    // hyper begins its own limit only after the first bytes.
    let silent = async {
        sleep(HEAD_TIME).await;
        if begun.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        _ = connection => {} // an error is the end of the browser's side
        () = silent => {}
    }
}

#[cfg(test)]
mod tests;
