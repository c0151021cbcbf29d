//! The connection to one keeper.
//!
//! A task reads every frame as it arrives. The announced end of the journal goes to a watch channel, which keeps
//! the newest value. Answers go to a queue, one for each request. So neither can delay the other.
//!
//! **Every wait has a limit** ([`KeeperLimits`]). After a late answer the connection is not used again: the answer
//! would be taken for that of another request. A keeper ignores further requests of a connection that another one
//! has replaced. So after the next [`Hello`] the journal tells which requests were carried out.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentd_keeper::protocol::{Begin, FromKeeper, Hello, PROTOCOL, Tail, ToKeeper};
use async_recursion::async_recursion as boxed;
use async_trait::async_trait;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Connection;
use crate::pulse;
use agentd_host::frame;

/// Time limits of a driver that waits for a keeper.
#[derive(Debug, Clone)]
pub struct KeeperLimits {
    /// Time limit for an answer.
    pub answer: Duration,
    /// Cancelled when the daemon ends. From then on `LAST` is the limit.
    pub shutdown: CancellationToken,
}

/// Time limit for an answer after the daemon began to end.
const LAST: Duration = Duration::from_secs(1);
/// Factor of the limit for a launch request: the agent's program may be on a slow file system.
const LAUNCH: u32 = 3;

impl KeeperLimits {
    /// Completes when the limit has passed.
    async fn over(&self, limit: Duration) {
        tokio::select! {
            () = tokio::time::sleep(limit) => {}
            () = async { self.shutdown.cancelled().await; tokio::time::sleep(LAST).await } => {}
        }
    }
}

/// A connection to a keeper. Dropping the value closes it.
#[derive(Debug)]
pub struct Link {
    pub hello: Hello,
    /// Process that listens on the socket, if the system reports it.
    pub peer: Option<u32>,
    write: OwnedWriteHalf,
    /// Boxed, since a channel reserves room for its messages in advance.
    answers: mpsc::Receiver<Box<FromKeeper>>,
    tail: watch::Receiver<Tail>,
    /// Sequence number of the last record that the keeper wrote at this daemon's request.
    appended: u64,
    reader: JoinHandle<()>,
    patience: KeeperLimits,
}

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("cannot connect to the keeper at {socket:?}")]
    Connect { socket: PathBuf, source: io::Error },
    #[error("the keeper at {socket:?} sent no greeting")]
    NoHello { socket: PathBuf },
    #[error("the keeper at {socket:?} speaks protocol version {found}, but this agentd speaks version {PROTOCOL}")]
    Protocol { socket: PathBuf, found: u32 },
    #[error("the keeper did not answer within {} s", limit.as_secs_f32())]
    Silent { limit: Duration },
    #[error("the connection to the keeper is lost")]
    Lost,
    #[error("the keeper refused the request: {message} ({code})")]
    Refused { code: String, message: String, errno: Option<i32> },
}

/// Time limit for the greeting, which a keeper sends at once.
const HELLO: Duration = Duration::from_secs(5);

impl Link {
    /// Connects, and waits for the keeper's greeting.
    #[boxed]
    pub async fn connect(socket: &Path, patience: &KeeperLimits) -> Result<Self, LinkError> {
        let limit = HELLO.min(patience.answer);
        tokio::select! {
            biased;
            link = Self::introduced(socket, patience) => link,
            () = patience.over(limit) => Err(LinkError::Silent { limit }),
        }
    }

    /// Connects without a time limit, otherwise like [`Self::connect`].
    #[boxed]
    pub async fn introduced(socket: &Path, patience: &KeeperLimits) -> Result<Self, LinkError> {
        let connect = |source| LinkError::Connect { socket: socket.to_owned(), source };
        let stream = pulse::elsewhere(UnixStream::connect(socket)).await.map_err(connect)?;
        let peer = stream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok()).filter(|pid| *pid > 0);
        Self::greeted(stream, peer, socket, patience).await
    }

    /// Gives a keeper in standby the arguments of its session, and waits for its greeting. `pid` is its process, if
    /// that is known. Returns `None` if the process has ended before.
    #[boxed]
    pub(super) async fn begin(
        mut stream: UnixStream,
        pid: Option<u32>,
        begin: &Begin,
        socket: &Path,
        patience: &KeeperLimits,
    ) -> Result<Option<Self>, LinkError> {
        if frame::write(&mut stream, begin).await.is_err() {
            return Ok(None);
        }
        let limit = HELLO.min(patience.answer);
        tokio::select! {
            biased;
            link = Self::greeted(stream, pid, socket, patience) => link.map(Some),
            () = patience.over(limit) => Err(LinkError::Silent { limit }),
        }
    }

    /// Waits for the greeting of the keeper at the other end.
    async fn greeted(
        stream: UnixStream,
        peer: Option<u32>,
        socket: &Path,
        patience: &KeeperLimits,
    ) -> Result<Self, LinkError> {
        let (mut read, write) = stream.into_split();
        let hello = match pulse::elsewhere(frame::read(&mut read)).await {
            Ok(Some(FromKeeper::Hello(hello))) => hello,
            Ok(Some(FromKeeper::Refused { code, message, errno })) => {
                return Err(LinkError::Refused { code, message, errno });
            }
            _ => return Err(LinkError::NoHello { socket: socket.to_owned() }),
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

    /// Sends a request and waits for its answer. After [`LinkError::Silent`] the connection must not be used
    /// again, and the request may still be carried out.
    #[boxed]
    pub async fn call(&mut self, request: &ToKeeper) -> Result<FromKeeper, LinkError> {
        let launches = matches!(request, ToKeeper::Launch(_));
        let limit = self.patience.answer.saturating_mul(if launches { LAUNCH } else { 1 });
        let patience = self.patience.clone();
        // The wait for a keeper is not part of the driver's step.
        pulse::elsewhere(async {
            tokio::select! {
                biased;
                answer = self.answer(request) => answer,
                () = patience.over(limit) => Err(LinkError::Silent { limit }),
            }
        })
        .await
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
}

#[async_trait]
impl Connection for Link {
    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn peer(&self) -> Option<u32> {
        self.peer
    }

    async fn call(&mut self, request: &ToKeeper) -> Result<FromKeeper, LinkError> {
        Self::call(self, request).await
    }

    fn reach(&self) -> u64 {
        self.appended.max(self.tail.borrow().seq)
    }

    fn tail(&self) -> Tail {
        *self.tail.borrow()
    }

    async fn grown(&mut self) -> Result<Tail, LinkError> {
        self.tail.changed().await.map_err(|_| LinkError::Lost)?;
        Ok(*self.tail.borrow_and_update())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}
