//! Accepts connections, checks who is there, and serves each with bounds on everything a client can make large.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::router;
use crate::platform;
use crate::reload::Reload;
use crate::session::Sessions;
use crate::world::Worlds;

/// What requests are answered from.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) worlds: Arc<Worlds>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) reload: Arc<Reload>,
}

/// The listening socket.
#[derive(Debug)]
pub(crate) struct Endpoint {
    listener: UnixListener,
    /// The socket's file, where we made it and so take it away.
    own: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("another agentd answers on {path:?}; `agentctl version` shows it")]
    Taken { path: PathBuf },
    #[error("{path:?} is in the way of the control socket and is not a socket")]
    NotASocket { path: PathBuf },
    #[error(
        "the control socket's path {path:?} has {length} bytes; a socket's path has at most 107 (unix(7)). Set XDG_RUNTIME_DIR or --runtime-dir to a shorter one"
    )]
    TooLong { path: PathBuf, length: usize },
    #[error("cannot listen on {path:?}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("the socket handed over by the service manager cannot be used")]
    HandedOver(#[source] io::Error),
}

/// The most bytes of a request's head; hyper answers 431 beyond it.
const HEAD: usize = 64 << 10;
/// How long a client may take for a request's head.
const HEAD_TIME: Duration = Duration::from_secs(10);

impl Endpoint {
    /// The socket that systemd or launchd handed over, else our own at `path`.
    pub(crate) async fn open(path: &Path) -> Result<Self, EndpointError> {
        if let Some(descriptor) = platform::activated_socket().map_err(EndpointError::HandedOver)? {
            let listener = std::os::unix::net::UnixListener::from(descriptor);
            listener.set_nonblocking(true).map_err(EndpointError::HandedOver)?;
            let listener = UnixListener::from_std(listener).map_err(EndpointError::HandedOver)?;
            return Ok(Self { listener, own: None });
        }
        let length = path.as_os_str().len();
        if length > 107 {
            return Err(EndpointError::TooLong { path: path.to_owned(), length });
        }
        let listen = |source| EndpointError::Listen { path: path.to_owned(), source };
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(EndpointError::NotASocket { path: path.to_owned() });
            }
            Ok(_) if UnixStream::connect(path).await.is_ok() => {
                return Err(EndpointError::Taken { path: path.to_owned() });
            }
            // Left by a daemon that was killed. Whether another is starting at this moment is the state directory's lock's business.
            Ok(_) => std::fs::remove_file(path).map_err(listen)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(listen)?;
        // The directory is 0700 already; this is for who looks at the socket alone.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(listen)?;
        Ok(Self { listener, own: Some(path.to_owned()) })
    }

    /// Serves until the daemon's shutdown, then lets requests that are being answered end.
    pub(crate) async fn serve(self, served: Served) {
        let permits = Arc::new(Semaphore::new(served.worlds.now().config.limits.connections));
        let shutdown = served.worlds.now().shutdown.clone();
        let connections = TaskTracker::new();
        let uid = nix::unistd::getuid().as_raw();
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { break };
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // EMFILE and its kin: they pass, and spinning on them helps nobody.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let peer = stream.peer_cred();
            let allowed = peer.as_ref().is_ok_and(|peer| peer.uid() == uid || peer.uid() == 0);
            let peer = peer.map_or_else(
                |_| router::Peer::default(),
                |peer| router::Peer { uid: peer.uid(), pid: peer.pid().and_then(|pid| u32::try_from(pid).ok()) },
            );
            let served = served.clone();
            connections.spawn(async move {
                serve_connection(stream, served, allowed, peer).await;
                drop(permit);
            });
        }
        if let Some(path) = &self.own {
            let _ = std::fs::remove_file(path);
        }
        connections.close();
        // Streams end with the drivers; whoever is slower than this is cut off.
        let _ = tokio::time::timeout(Duration::from_secs(2), connections.wait()).await;
    }
}

async fn serve_connection(stream: UnixStream, served: Served, allowed: bool, peer: router::Peer) {
    let shutdown = served.worlds.now().shutdown.clone();
    let service = service_fn(move |request| {
        let Served { worlds, sessions, reload } = served.clone();
        router::answer(router::Context { world: worlds.now(), sessions, reload, allowed, peer }, request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
