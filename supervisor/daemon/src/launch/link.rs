//! The line to one keeper.
//!
//! A reading task takes every frame off the socket as it comes: how far the journal reaches goes to a watch, where the newest
//! takes the place of the older, and answers go to a queue, of which there is one for each request. So neither side can
//! be held up by the other.
//!
//! **Every wait has an end** ([`Patience`]). After an answer that did not come in time the line is not used again: a later answer would be
//! taken for that of another request. A keeper carries out nothing of a line whose place another has taken, so after the next
//! [`Hello`] the journal says which of the requests it has carried out.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_keeper::protocol::{FromKeeper, Hello, Hide, PROTOCOL, Tail, ToKeeper};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::frame;
use crate::pulse;

/// How long a keeper is waited for.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    /// For an answer.
    pub(crate) answer: Duration,
    /// Cancelled when the daemon ends, which waits [`LAST`] for nobody.
    pub(crate) shutdown: CancellationToken,
}

/// How long an answer is still waited for when the daemon ends.
const LAST: Duration = Duration::from_secs(1);
/// A launch takes longer than other requests: the agent's program may lie on a slow file system.
const LAUNCH: u32 = 3;

impl Patience {
    /// Ends when it is over.
    async fn over(&self, limit: Duration) {
        tokio::select! {
            () = tokio::time::sleep(limit) => {}
            () = async { self.shutdown.cancelled().await; tokio::time::sleep(LAST).await } => {}
        }
    }
}

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
    patience: Patience,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("cannot connect to the keeper at {socket:?}")]
    Connect { socket: PathBuf, source: io::Error },
    #[error("the keeper at {socket:?} did not introduce itself")]
    NoHello { socket: PathBuf },
    #[error("the keeper at {socket:?} speaks version {found} of its protocol; this agentd speaks {PROTOCOL}")]
    Protocol { socket: PathBuf, found: u32 },
    #[error("the keeper did not answer within {} s", limit.as_secs_f32())]
    Silent { limit: Duration },
    #[error("the line to the keeper is lost")]
    Lost,
    #[error("the keeper refused: {message} ({code})")]
    Refused { code: String, message: String, errno: Option<i32> },
}

/// A keeper that accepts a connection speaks at once.
const HELLO: Duration = Duration::from_secs(5);

impl Link {
    /// Connects, and waits for the keeper to introduce itself.
    pub(crate) async fn connect(socket: &Path, patience: &Patience) -> Result<Self, LinkError> {
        let limit = HELLO.min(patience.answer);
        tokio::select! {
            biased;
            link = Self::introduced(socket, patience) => link,
            () = patience.over(limit) => Err(LinkError::Silent { limit }),
        }
    }

    /// As [`Self::connect`], and waits for as long as it takes.
    pub(crate) async fn introduced(socket: &Path, patience: &Patience) -> Result<Self, LinkError> {
        let connect = |source| LinkError::Connect { socket: socket.to_owned(), source };
        let stream = pulse::elsewhere(UnixStream::connect(socket)).await.map_err(connect)?;
        let peer = stream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok()).filter(|pid| *pid > 0);
        let (mut read, write) = stream.into_split();
        let Ok(Some(FromKeeper::Hello(hello))) = pulse::elsewhere(frame::read(&mut read)).await else {
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
        Ok(Self { hello, peer, write, answers, tail, appended: 0, reader, patience: patience.clone() })
    }

    /// Sends a request and waits for its answer. After [`LinkError::Silent`] the line is of no use any more, and the request may
    /// have been carried out all the same.
    pub(crate) async fn call(&mut self, request: &ToKeeper) -> Result<FromKeeper, LinkError> {
        let launches = matches!(request, ToKeeper::Launch(_));
        let limit = self.patience.answer.saturating_mul(if launches { LAUNCH } else { 1 });
        let patience = self.patience.clone();
        // A keeper that does not answer is not the daemon's own doing.
        pulse::elsewhere(async {
            tokio::select! {
                biased;
                answer = self.answer(request) => answer,
                () = patience.over(limit) => Err(LinkError::Silent { limit }),
            }
        })
        .await
    }

    /// Whether the keeper answers at all. Every version of it answers this, if only that it does not know the request.
    pub(crate) async fn answers(&mut self) -> Result<(), LinkError> {
        match self.call(&ToKeeper::Hide(Hide { secrets: Vec::new() })).await {
            Ok(_) | Err(LinkError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn answer(&mut self, request: &ToKeeper) -> Result<FromKeeper, LinkError> {
        frame::write(&mut self.write, request).await.map_err(|_| LinkError::Lost)?;
        match self.answers.recv().await.map(|answer| *answer) {
            Some(FromKeeper::Refused { code, message, errno }) => Err(LinkError::Refused { code, message, errno }),
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

    /// What the keeper said last of its journal.
    pub(crate) fn tail(&self) -> Tail {
        *self.tail.borrow()
    }

    /// Waits until the journal has grown, or can or cannot be written; an error when the line is lost.
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
