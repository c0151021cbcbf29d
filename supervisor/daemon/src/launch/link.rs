//! The line to one keeper.
//!
//! A reading task takes every frame off the socket as it comes: how far the journal reaches goes to a watch, where the newest
//! takes the place of the older, and answers go to a queue, of which there is one for each request. So neither side can
//! be held up by the other.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_keeper::protocol::{FromKeeper, Hello, PROTOCOL, Tail, ToKeeper};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::frame;
use crate::pulse;

/// A connection to a keeper. Dropped, it is closed.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) hello: Hello,
    /// The process that listens on the socket, where the system tells.
    pub(crate) peer: Option<u32>,
    write: OwnedWriteHalf,
    /// Boxed, since a channel has room for its messages before there is one.
    answers: mpsc::Receiver<Box<FromKeeper>>,
    tail: watch::Receiver<Tail>,
    /// Of the last record that the keeper said it has written for us.
    appended: u64,
    reader: JoinHandle<()>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("cannot connect to the keeper at {socket:?}")]
    Connect { socket: PathBuf, source: io::Error },
    #[error("the keeper at {socket:?} did not introduce itself")]
    NoHello { socket: PathBuf },
    #[error("the keeper at {socket:?} speaks version {found} of its protocol; this agentd speaks {PROTOCOL}")]
    Protocol { socket: PathBuf, found: u32 },
    #[error("the line to the keeper is lost")]
    Lost,
    #[error("the keeper refused: {message} ({code})")]
    Refused { code: String, message: String },
}

/// A keeper that accepts a connection speaks at once.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);

impl Link {
    pub(crate) async fn connect(socket: &Path) -> Result<Self, LinkError> {
        let connect = |source| LinkError::Connect { socket: socket.to_owned(), source };
        let stream = pulse::elsewhere(UnixStream::connect(socket)).await.map_err(connect)?;
        let peer = stream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok()).filter(|pid| *pid > 0);
        let (mut read, write) = stream.into_split();
        let first = pulse::elsewhere(tokio::time::timeout(HELLO_PATIENCE, frame::read(&mut read))).await;
        let Ok(Ok(Some(FromKeeper::Hello(hello)))) = first else {
            return Err(LinkError::NoHello { socket: socket.to_owned() });
        };
        if hello.protocol != PROTOCOL {
            return Err(LinkError::Protocol { socket: socket.to_owned(), found: hello.protocol });
        }
        let (tail_sender, tail) = watch::channel(hello.tail);
        let (answer_sender, answers) = mpsc::channel(16);
        let reader = tokio::spawn(async move {
            while let Ok(Some(frame)) = frame::read(&mut read).await {
                match frame {
                    FromKeeper::Grown(tail) => drop(tail_sender.send_replace(tail)),
                    answer => {
                        if answer_sender.send(Box::new(answer)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        });
        Ok(Self { hello, peer, write, answers, tail, appended: 0, reader })
    }

    /// Sends a request and waits for its answer.
    pub(crate) async fn call(&mut self, request: &ToKeeper) -> Result<FromKeeper, LinkError> {
        // A keeper that does not answer is not the daemon's own doing.
        let answer = pulse::elsewhere(async {
            frame::write(&mut self.write, request).await.map_err(|_| LinkError::Lost)?;
            Ok(self.answers.recv().await)
        });
        match answer.await?.map(|answer| *answer) {
            Some(FromKeeper::Refused { code, message }) => Err(LinkError::Refused { code, message }),
            Some(answer) => {
                if let FromKeeper::Appended(appended) = &answer {
                    self.appended = self.appended.max(appended.seq);
                }
                Ok(answer)
            }
            None => Err(LinkError::Lost),
        }
    }

    /// The seq up to which the keeper has announced its journal.
    pub(crate) fn reach(&self) -> u64 {
        self.appended.max(self.tail.borrow().seq)
    }

    /// Waits until the journal has grown; an error when the line is lost.
    pub(crate) async fn grown(&mut self) -> Result<Tail, LinkError> {
        self.tail.changed().await.map_err(|_| LinkError::Lost)?;
        Ok(*self.tail.borrow_and_update())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}
