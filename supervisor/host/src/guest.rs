//! The control sockets of guarded sessions. A process that connects to such a socket is a guest of the socket's
//! session, because no other process can see the socket.
//!
//! Each socket is in a directory of its own, and the session sees the directory. A restarted daemon can therefore
//! create the socket again, and the session finds it. The socket is created under another name and renamed, so the
//! path always has a socket.
//!
//! The control endpoint decides what a guest may do.

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

/// A connection of a guest.
#[derive(Debug)]
pub struct Arrival {
    /// Session of the guest.
    pub session: SessionId,
    /// Connection to the guest.
    pub stream: UnixStream,
}

/// Maximum number of accepted connections that wait. Further connections wait in the queues of the sockets.
const QUEUE: usize = 16;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The queue of guest connections.
#[derive(Debug)]
pub struct Guests {
    announce: mpsc::Sender<Arrival>,
    arrivals: Mutex<Option<mpsc::Receiver<Arrival>>>,
}

impl Default for Guests {
    fn default() -> Self {
        let (announce, arrivals) = mpsc::channel(QUEUE);
        Self { announce, arrivals: Mutex::new(Some(arrivals)) }
    }
}

impl Guests {
    /// Returns the receiver of guest connections. Only the first call returns it.
    pub fn arrivals(&self) -> Option<mpsc::Receiver<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Listens for guests of this session.
    pub fn listen(&self, session: &SessionId, path: PathBuf) -> io::Result<GuestSocket> {
        let length = path.as_os_str().len();
        if length + UNFINISHED_SUFFIX.len() > platform::SOCKET_PATH_MAX {
            return Err(io::Error::other(format!(
                "the socket path {} has {length} bytes, and the limit is {}; use a shorter runtime directory",
                path.display(),
                platform::SOCKET_PATH_MAX - UNFINISHED_SUFFIX.len()
            )));
        }
        make_private(path.parent().unwrap_or(&path)).map_err(io::Error::other)?;
        let new = PathBuf::from(format!("{}{UNFINISHED_SUFFIX}", path.display()));
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
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        });
        Ok(GuestSocket { path, task })
    }
}

/// Suffix of the socket's name until the socket is renamed.
const UNFINISHED_SUFFIX: &str = "-";

/// The socket of one session. Dropping it stops the listener and keeps the file for the next daemon.
#[derive(Debug)]
pub struct GuestSocket {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl GuestSocket {
    /// Stops the listener and removes the file.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for GuestSocket {
    fn drop(&mut self) {
        self.task.abort();
    }
}
