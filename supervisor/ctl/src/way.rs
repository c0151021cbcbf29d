//! Connects to the daemon: over its socket, over TCP on this machine with the daemon's token, over ssh on another
//! machine, or inside of its process.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agentd_remote::SshHost;
use hyper::Uri;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UnixStream, lookup_host};

use crate::error::Error;
use crate::machine::Machine;
use crate::trust;

/// Makes a connection to the control endpoint in the same process. The endpoint takes its calls as the owner's.
pub type Dial = Arc<dyn Fn() -> DuplexStream + Send + Sync>;

/// Address of a daemon.
#[derive(Clone)]
pub(crate) enum Way {
    Socket(PathBuf),
    Tcp {
        authority: String,
        token: String,
    },
    /// The daemon of another machine.
    Ssh(SshHost),
    /// This code runs inside of the daemon.
    Inside(Dial),
}

/// Connection over either transport.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Way {
    /// Parses a URL, `http://127.0.0.1:7345`, and reads the token from its file.
    pub(crate) fn of_url(url: &str, token_file: Option<&Path>) -> Result<Self, Error> {
        let uri = url.parse::<Uri>().ok();
        let authority = uri.as_ref().filter(|uri| uri.scheme_str() == Some("http") && uri.path() == "/");
        let Some(authority) = authority.and_then(Uri::authority).filter(|authority| authority.port().is_some()) else {
            return Err(Error::Url { url: url.to_owned() });
        };
        let file = token_file.ok_or_else(|| Error::NoToken { url: url.to_owned() })?;
        let token = std::fs::read_to_string(file).map_err(|source| Error::File { path: file.to_owned(), source })?;
        Ok(Self::Tcp { authority: authority.to_string(), token: token.trim().to_owned() })
    }

    /// Connects, unless the listening process is not trusted.
    pub(crate) async fn connect(&self) -> Result<Box<dyn Stream>, Error> {
        let unreachable = |source: io::Error| Error::Unreachable { place: self.to_string(), source };
        match self {
            Self::Socket(path) => Ok(Box::new(trusted(path).await?)),
            Self::Tcp { authority, .. } => {
                let found = lookup_host(authority.as_str()).await.map_err(unreachable)?;
                let near = trust::near(authority, found)?;
                Ok(Box::new(TcpStream::connect(near.as_slice()).await.map_err(unreachable)?))
            }
            Self::Ssh(host) => Ok(Box::new(host.connect().await?)),
            Self::Inside(dial) => Ok(Box::new(dial())),
        }
    }

    /// Returns the machine of the daemon. A daemon over TCP is on this machine too.
    pub(crate) fn machine(&self) -> Machine {
        match self {
            Self::Ssh(host) => Machine::Other(host.to_string()),
            Self::Socket(_) | Self::Tcp { .. } | Self::Inside(_) => Machine::This,
        }
    }

    /// Returns the `Host` header of a request.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Socket(_) | Self::Ssh(_) | Self::Inside(_) => "agentd",
            Self::Tcp { authority, .. } => authority,
        }
    }

    pub(crate) fn authorization(&self) -> Option<String> {
        match self {
            Self::Socket(_) | Self::Ssh(_) | Self::Inside(_) => None,
            Self::Tcp { token, .. } => Some(format!("Bearer {token}")),
        }
    }
}

/// Connects to a socket, unless the listening process is not trusted.
pub(crate) async fn trusted(path: &Path) -> Result<UnixStream, Error> {
    let unreachable = |source: io::Error| Error::Unreachable { place: path.display().to_string(), source };
    let owner = trust::check_directory(path)?;
    let stream = UnixStream::connect(path).await.map_err(unreachable)?;
    trust::check_listener(path, stream.peer_cred().map_err(unreachable)?.uid(), owner)?;
    Ok(stream)
}

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(formatter, "{}", path.display()),
            Self::Tcp { authority, .. } => write!(formatter, "http://{authority}"),
            Self::Ssh(host) => write!(formatter, "{host}"),
            Self::Inside(_) => write!(formatter, "agentd"),
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
        assert!(matches!(Way::of_url("http://[::1]:1", Some(&nowhere)), Err(Error::File { .. })));
    }
}
