//! Connects to the daemon: over its socket, over TCP on this machine with the daemon's token, or over the caller's
//! connector.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::route::Scope;
use agentd_api::{Call, Code, Problem};
use hyper::Uri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, sleep};

use crate::error::{Error, Foreign};
use crate::trust;

/// Longest wait for room in the queue of a socket.
const QUEUED: Duration = Duration::from_secs(15);
/// Shortest and longest pause between two attempts to connect.
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(200);

/// Bytes in both directions, of any transport.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The result of [`Connect::connect`], some time later.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Stream>, Foreign>> + Send + 'a>>;

/// Makes connections to a control endpoint that this crate cannot reach itself.
///
/// Each call has a connection of its own. A failure is [`Error::Connect`], and counts as the absence of the daemon.
pub trait Connect: Send + Sync {
    /// Makes a connection.
    fn connect(&self) -> Connecting<'_>;

    /// Returns the address for messages.
    fn place(&self) -> String;

    /// Returns the name of the daemon's machine if it is another machine than this one.
    fn machine(&self) -> Option<&str> {
        None
    }
}

/// Address of a daemon.
#[derive(Clone)]
pub enum Way {
    /// The control socket.
    Socket(PathBuf),
    /// TCP on this machine.
    Tcp {
        /// `HOST:PORT`.
        authority: String,
        /// The token of the daemon.
        token: String,
    },
    /// A connector of the caller.
    By(Arc<dyn Connect>),
}

impl Way {
    /// Parses a URL, `http://127.0.0.1:7345`, and reads the token from its file.
    ///
    /// # Errors
    ///
    /// [`Error::Url`], [`Error::NoToken`] without a file, and [`Error::Token`] if the file cannot be read.
    pub fn of_url(url: &str, token_file: Option<&Path>) -> Result<Self, Error> {
        let uri = url.parse::<Uri>().ok();
        let authority = uri.as_ref().filter(|uri| uri.scheme_str() == Some("http") && uri.path() == "/");
        let Some(authority) = authority.and_then(Uri::authority).filter(|authority| authority.port().is_some()) else {
            return Err(Error::Url { url: url.to_owned() });
        };
        let file = token_file.ok_or_else(|| Error::NoToken { url: url.to_owned() })?;
        let token = std::fs::read_to_string(file).map_err(|source| Error::Token { path: file.to_owned(), source })?;
        Ok(Self::Tcp { authority: authority.to_string(), token: token.trim().to_owned() })
    }

    /// Refuses a call that the socket of another user does not take. Nothing is sent, since the call could contain this
    /// terminal's environment.
    pub(crate) fn check(&self, call: &Call) -> Result<(), Error> {
        self.check_scope(call, call.scope())
    }

    /// Refuses a request of this scope as [`Way::check`] does.
    pub(crate) fn check_scope(&self, call: &dyn fmt::Display, needed: Scope) -> Result<(), Error> {
        let Self::Socket(path) = self else { return Ok(()) };
        let Some(owner) = (needed > Scope::Read).then(|| trust::reader_of(path)).flatten() else { return Ok(()) };
        let detail = format!("the read-only socket {} of user {owner} has the scope read", path.display());
        let problem = Problem::new(Code::ScopeTooSmall, format!("{detail}, and {call} needs {needed}"))
            .hint(format!("user {owner} can make the call, or give you a token of the scope {needed}"));
        let raw = serde_json::to_vec(&problem).unwrap_or_default().into();
        Err(Error::Problem { problem: Box::new(problem), raw })
    }

    /// Connects, unless the listening process is not trusted.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, Error> {
        let unreachable = |source: io::Error| Error::Unreachable { place: self.to_string(), source };
        match self {
            Self::Socket(path) => Ok(Box::new(connect_trusted(path).await?)),
            Self::Tcp { authority, .. } => {
                let found = lookup_host(authority.as_str()).await.map_err(unreachable)?;
                let near = trust::near(authority, found)?;
                Ok(Box::new(TcpStream::connect(near.as_slice()).await.map_err(unreachable)?))
            }
            Self::By(connector) => connector.connect().await.map_err(Error::Connect),
        }
    }

    /// Returns the name of the daemon's machine if it is another machine. A daemon over TCP is on this machine.
    pub fn machine(&self) -> Option<&str> {
        match self {
            Self::By(connector) => connector.machine(),
            Self::Socket(_) | Self::Tcp { .. } => None,
        }
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> Option<&Path> {
        if let Self::Socket(path) = self { Some(path) } else { None }
    }

    /// Returns the `Host` header of a request.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Socket(_) | Self::By(_) => "agentd",
            Self::Tcp { authority, .. } => authority,
        }
    }

    pub(crate) fn authorization(&self) -> Option<String> {
        match self {
            Self::Socket(_) | Self::By(_) => None,
            Self::Tcp { token, .. } => Some(format!("Bearer {token}")),
        }
    }
}

/// Connects to a socket, unless its directory or the listening process belongs to another user than this one or root.
///
/// # Errors
///
/// [`Error::Unreachable`] and [`Error::Distrusted`].
pub async fn connect_trusted(path: &Path) -> Result<UnixStream, Error> {
    let unreachable = |source: io::Error| Error::Unreachable { place: path.display().to_string(), source };
    let owner = trust::check_directory(path)?;
    let stream = queued(path, QUEUED).await.map_err(unreachable)?;
    trust::check_listener(path, stream.peer_cred().map_err(unreachable)?.uid(), owner)?;
    Ok(stream)
}

/// Connects to a socket. While the queue of its connections is full, tries again for at most `limit`.
///
/// Only Linux distinguishes a full queue from a missing listener. Its connect(2) then fails with `EAGAIN` for a socket
/// that does not block (unix(7)).
async fn queued(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let (since, mut pause) = (Instant::now(), SHORTEST);
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && since.elapsed() >= limit => {
                let seconds = limit.as_secs_f32();
                let what = format!("its queue of connections stayed full for {seconds} s, so it accepts none");
                return Err(io::Error::new(error.kind(), what));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sleep(pause).await;
                pause = LONGEST.min(pause * 2);
            }
            result => return result,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(formatter, "{}", path.display()),
            Self::Tcp { authority, .. } => write!(formatter, "http://{authority}"),
            Self::By(connector) => formatter.write_str(&connector.place()),
        }
    }
}

/// Formats the address without the token.
impl fmt::Debug for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_of_http_with_a_port_and_nothing_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "abc\n").unwrap();
        for url in ["http://127.0.0.1:7345", "http://[::1]:7345/", "http://localhost:1"] {
            let way = Way::of_url(url, Some(&file)).unwrap();
            assert_eq!(
                (way.to_string().as_str(), way.authorization().as_deref()),
                (url.trim_end_matches('/'), Some("Bearer abc"))
            );
            assert!(!format!("{way:?}").contains("abc"), "{way:?}");
        }
        for url in
            ["", "127.0.0.1:7345", "https://127.0.0.1:7345", "http://127.0.0.1", "http://127.0.0.1:7345/v1", "/run/x"]
        {
            assert!(matches!(Way::of_url(url, Some(&file)), Err(Error::Url { .. })), "{url}");
        }
        assert!(matches!(Way::of_url("http://[::1]:1", None), Err(Error::NoToken { .. })));
        let nowhere = directory.path().join("none");
        assert!(matches!(Way::of_url("http://[::1]:1", Some(&nowhere)), Err(Error::Token { .. })));
    }

    /// A socket whose queue has room for one connection, and the connection in it.
    fn full(directory: &Path) -> (PathBuf, std::os::unix::net::UnixListener, Vec<std::os::unix::net::UnixStream>) {
        let path = directory.join("full.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // Another listen(2) changes the length of the queue. Linux takes one connection more than this length.
        nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
        let connected = vec![std::os::unix::net::UnixStream::connect(&path).unwrap()];
        (path, listener, connected)
    }

    #[tokio::test]
    async fn a_full_queue_is_waited_for_and_the_wait_is_bounded() {
        if std::env::consts::OS != "linux" {
            eprintln!("skipped: other systems have other lengths of the queue");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (path, listener, held) = full(directory.path());
        let limit = Duration::from_millis(50);
        let begun = Instant::now();
        let error = queued(&path, limit).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains("0.05 s"), "{error}");
        assert!(begun.elapsed() >= limit, "{:?}", begun.elapsed());
        // The connection is made as soon as the listener takes another from the queue.
        let mut waiting = Box::pin(queued(&path, QUEUED));
        assert!(tokio::time::timeout(limit, &mut waiting).await.is_err());
        listener.accept().unwrap();
        waiting.await.unwrap();
        drop(held);
    }
}
