//! The control sockets of guarded sessions. A process that connects to one is that session's guest: no other process can see the socket.
//!
//! The socket lies in a directory of its own, and the directory is what the session sees: so a daemon that is started again can make the
//! socket anew, and the session finds it. It is made under another name and renamed: at no moment is the path without a socket.
//!
//! Not its job: what a guest may do, which the control endpoint decides.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agentd_api::SessionId;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::directories::make_private;
use crate::platform;

/// A guest that connected.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) session: SessionId,
    pub(crate) stream: UnixStream,
}

/// Connections that wait to be served; more wait in the sockets' own queues.
const ARRIVALS: usize = 16;
/// How long accepting rests after it failed.
const AGAIN: Duration = Duration::from_millis(100);

/// Where guests arrive.
#[derive(Debug)]
pub(crate) struct Guests {
    announce: mpsc::Sender<Arrival>,
    arrivals: Mutex<Option<mpsc::Receiver<Arrival>>>,
}

impl Default for Guests {
    fn default() -> Self {
        let (announce, arrivals) = mpsc::channel(ARRIVALS);
        Self { announce, arrivals: Mutex::new(Some(arrivals)) }
    }
}

impl Guests {
    /// Those who arrive. There is one who serves them.
    pub(crate) fn arrivals(&self) -> Option<mpsc::Receiver<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Listens for guests of this session.
    pub(crate) fn listen(&self, session: &SessionId, path: PathBuf) -> io::Result<GuestSocket> {
        let length = path.as_os_str().len();
        if length + NEW.len() > platform::SOCKET_PATH_MAX {
            return Err(io::Error::other(format!(
                "the path {} has {length} bytes; a socket's has at most {}. Use a shorter runtime directory",
                path.display(),
                platform::SOCKET_PATH_MAX - NEW.len()
            )));
        }
        make_private(path.parent().unwrap_or(&path)).map_err(io::Error::other)?;
        let new = PathBuf::from(format!("{}{NEW}", path.display()));
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&new)?;
        std::fs::rename(&new, &path)?;
        let (announce, session) = (self.announce.clone(), session.clone());
        let task = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let arrival = Arrival { session: session.clone(), stream };
                        if announce.send(arrival).await.is_err() {
                            return;
                        }
                    }
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            }
        });
        Ok(GuestSocket { path, task })
    }
}

/// What the name of a socket ends with until it is in its place.
const NEW: &str = "-";

/// One session's socket. Dropped, it listens no more; its file stays for the daemon that makes it anew.
#[derive(Debug)]
pub(crate) struct GuestSocket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl GuestSocket {
    /// Ends the listening and removes the file.
    pub(crate) fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for GuestSocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}
