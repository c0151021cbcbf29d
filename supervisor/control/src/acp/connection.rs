//! The connections of clients: from `initialize` or an upgrade until they are ended, or are not read for a while.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agentd_api::acp::{AcpOptions, Outgoing};
use agentd_api::{Code, Problem};
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::outbox::{Gone, Next, Outbox, Scope};
use super::{AcpPipe, AcpService, Dial};

/// Maximum number of connections. Each has a thread.
const MOST: usize = 64;
/// Time limit for the answer to `initialize`.
const INITIALIZE: Duration = Duration::from_secs(30);
/// Time after which a connection that is not read ends. Its sessions continue, and their journals have everything.
const UNREAD: Duration = Duration::from_mins(10);
const LOOK: Duration = Duration::from_secs(10);
/// Beginning of the ids of requests that agentd makes for a client.
pub(super) const OWN: &str = "agentd-reopens-";

/// All connections of `/acp`.
#[derive(Debug)]
pub struct Hub {
    service: Arc<dyn AcpService>,
    connections: Arc<Mutex<HashMap<String, Arc<Connection>>>>,
    /// The endpoint, while it serves.
    endpoint: Mutex<Option<Serving>>,
}

#[derive(Clone)]
struct Serving {
    dial: Dial,
    closing: CancellationToken,
    tasks: TaskTracker,
    runtime: Handle,
}

impl fmt::Debug for Serving {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Serving").finish_non_exhaustive()
    }
}

/// Locks a value that no code under the lock can leave inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub fn new(service: Arc<dyn AcpService>) -> Self {
        Self { service, connections: Arc::default(), endpoint: Mutex::default() }
    }

    /// Begins to serve. Connections end when `closing` is cancelled.
    pub(crate) fn open(&self, dial: Dial, closing: CancellationToken, tasks: TaskTracker) {
        *lock(&self.endpoint) = Some(Serving { dial, closing, tasks, runtime: Handle::current() });
    }

    /// Forgets the endpoint.
    pub(crate) fn close(&self) {
        *lock(&self.endpoint) = None;
    }

    /// Runs a task that the endpoint's end waits for.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(serving) = lock(&self.endpoint).as_ref() {
            serving.tasks.spawn_on(task, &serving.runtime);
        }
    }

    /// Returns a connection that has not ended. An ended connection stays in the map until its task has run.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Connection>> {
        lock(&self.connections).get(id).filter(|connection| !connection.ended.is_cancelled()).cloned()
    }

    /// Begins a connection. With the body of `initialize`, also returns the answer.
    pub(super) async fn begin(
        &self,
        options: AcpOptions,
        initialize: Option<Vec<u8>>,
    ) -> Result<(Arc<Connection>, Vec<u8>), Problem> {
        let internal = |text: String| Problem::new(Code::Internal, text);
        let serving = lock(&self.endpoint).clone().ok_or_else(|| internal("the endpoint is closed".to_owned()))?;
        if lock(&self.connections).len() >= MOST {
            return Err(Problem::new(
                Code::TooManyConnections,
                format!("/acp has {MOST} connections, which is its limit"),
            )
            .hint("end one with DELETE /acp; a connection that is not read ends after 10 minutes"));
        }
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(|error| internal(format!("no random bytes: {error}")))?;
        let id = format!("{:032x}", u128::from_ne_bytes(id));
        let served = self.service.serve(options, Arc::clone(&serving.dial));
        let AcpPipe { lines, mut messages } = served.map_err(|error| {
            internal(format!("cannot start a thread: {error}")).hint("look at the limits of the user")
        })?;
        let mut answer = Vec::new();
        if let Some(body) = initialize {
            // The service sends nothing before this answer.
            let answered = async {
                lines.send(body).await.ok()?;
                Some(messages.recv().await?.line)
            };
            let answered = timeout(INITIALIZE, answered).await.ok().flatten();
            answer = answered.ok_or_else(|| internal("there was no answer to initialize".to_owned()))?;
        }
        let connection = Arc::new(Connection {
            outbox: Mutex::new(Outbox::new(&id)),
            id: id.clone(),
            lines,
            changed: Notify::new(),
            used: Mutex::new(Instant::now()),
            ended: serving.closing.child_token(),
        });
        lock(&self.connections).insert(id.clone(), Arc::clone(&connection));
        let (connections, pumped) = (Arc::clone(&self.connections), Arc::clone(&connection));
        let pump = async move {
            pumped.pump(messages).await;
            pumped.end();
            lock(&connections).remove(&id);
        };
        serving.tasks.spawn_on(pump, &serving.runtime);
        Ok((connection, answer))
    }
}

/// Connection of a client.
#[derive(Debug)]
pub(super) struct Connection {
    id: String,
    lines: mpsc::Sender<Vec<u8>>,
    outbox: Mutex<Outbox>,
    /// A message came or was taken, or a reader changed.
    changed: Notify,
    /// Time of the last message in either direction.
    used: Mutex<Instant>,
    ended: CancellationToken,
}

impl Connection {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Passes a message of the client on. Returns `false` if the connection has ended.
    pub(super) async fn send(&self, line: Vec<u8>) -> bool {
        *lock(&self.used) = Instant::now();
        tokio::select! {
            () = self.ended.cancelled() => false,
            sent = self.lines.send(line) => sent.is_ok(),
        }
    }

    /// Reports whether a message of this session has passed.
    pub(super) fn knows(&self, session: &str) -> bool {
        lock(&self.outbox).knows(session)
    }

    /// Begins to read a stream, and ends its reader before.
    pub(super) fn read(self: &Arc<Self>, scope: Scope, after: Option<u64>) -> Result<Reader, Gone> {
        let number = lock(&self.outbox).open(scope.clone(), after)?;
        *lock(&self.used) = Instant::now();
        self.changed.notify_waiters();
        Ok(Reader { connection: Arc::clone(self), scope, number })
    }

    /// Ends the connection. Its sessions continue.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Takes the service's messages while there is room, until either side ends.
    async fn pump(&self, mut messages: mpsc::Receiver<Outgoing>) {
        let reopened = format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{OWN}");
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (has_room, is_read) = {
                let outbox = lock(&self.outbox);
                (outbox.has_room(), outbox.is_read())
            };
            if !(has_room && is_read) && lock(&self.used).elapsed() > UNREAD {
                return;
            }
            tokio::select! {
                () = self.ended.cancelled() => return,
                () = changed, if !has_room => {}
                message = messages.recv(), if has_room => match message {
                    Some(message) if message.line.starts_with(reopened.as_bytes()) => {}
                    Some(message) => {
                        lock(&self.outbox).push(message);
                        self.changed.notify_waiters();
                    }
                    None => return,
                },
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

/// Reader of one stream of a connection.
#[derive(Debug)]
pub(super) struct Reader {
    connection: Arc<Connection>,
    scope: Scope,
    number: u64,
}

impl Reader {
    /// Returns the next message and the id of its event; `None` after the end of the connection, and if another reader
    /// has the stream.
    pub(super) async fn next(&self) -> Option<(String, Bytes)> {
        loop {
            let mut changed = std::pin::pin!(self.connection.changed.notified());
            changed.as_mut().enable();
            let next = lock(&self.connection.outbox).take(&self.scope, self.number);
            match next {
                Next::Message { id, line } => {
                    *lock(&self.connection.used) = Instant::now();
                    self.connection.changed.notify_waiters();
                    return Some((id, line));
                }
                Next::Replaced => return None,
                Next::Nothing => {}
            }
            tokio::select! {
                () = changed => {}
                () = self.connection.ended.cancelled() => return None,
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.connection.outbox).close(&self.scope, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Service that says nothing. Its ends of the pipes stay open.
    #[derive(Debug, Default)]
    struct Silent {
        taken: Mutex<Vec<mpsc::Receiver<Vec<u8>>>>,
        said: Mutex<Vec<mpsc::Sender<Outgoing>>>,
    }

    impl AcpService for Silent {
        fn serve(&self, _: AcpOptions, _: Dial) -> io::Result<AcpPipe> {
            let (lines, taken) = mpsc::channel(1);
            let (said, messages) = mpsc::channel(1);
            lock(&self.taken).push(taken);
            lock(&self.said).push(said);
            Ok(AcpPipe { lines, messages })
        }
    }

    // On this runtime, the task of the connection does not run before the test waits.
    #[tokio::test]
    async fn an_ended_connection_is_not_found_from_then_on() {
        let hub = Hub::new(Arc::new(Silent::default()));
        let dial: Dial = Arc::new(|| tokio::io::duplex(1).0);
        hub.open(dial, CancellationToken::new(), TaskTracker::new());
        let (connection, _) = hub.begin(AcpOptions::default(), None).await.expect("the hub serves");
        assert!(hub.find(connection.id()).is_some());
        connection.end();
        assert!(hub.find(connection.id()).is_none());
    }
}
