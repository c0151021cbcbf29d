//! Sends requests while a test changes the daemon. Counts the answered requests, and checks that none was refused.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::within;

/// Number of concurrent clients.
const CLIENTS: usize = 8;

/// Results of the requests.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) answered: AtomicUsize,
    /// Connections that ended without an answer because the answering daemon was killed.
    pub(crate) broken: AtomicUsize,
}

/// Requests `path` repeatedly during `work`, and until `at_least` requests were answered. Fails if no process
/// listens, or on a status other than 200.
pub(crate) async fn meanwhile(
    socket: &Path,
    path: &str,
    at_least: usize,
    work: impl Future<Output = ()>,
) -> Arc<Asked> {
    let (asked, done) = (Arc::new(Asked::default()), Arc::new(AtomicBool::new(false)));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (socket, asked, done) = (socket.to_owned(), Arc::clone(&asked), Arc::clone(&done));
        let request = format!("GET {path} HTTP/1.1\r\nhost: agentd\r\nconnection: close\r\n\r\n");
        clients.spawn(async move {
            while !done.load(Ordering::Relaxed) || asked.answered.load(Ordering::Relaxed) < at_least {
                ask(&socket, &request, &asked).await;
            }
        });
    }
    work.await;
    done.store(true, Ordering::Relaxed);
    within("the last requests are answered", async {
        while let Some(client) = clients.join_next().await {
            client.expect("nobody is refused");
        }
    })
    .await;
    asked
}

async fn ask(socket: &Path, request: &str, asked: &Asked) {
    let mut stream = UnixStream::connect(socket).await.unwrap_or_else(|error| panic!("a request was refused: {error}"));
    let mut answer = String::new();
    let exchange = async {
        stream.write_all(request.as_bytes()).await?;
        stream.read_to_string(&mut answer).await
    };
    let exchanged = within("an answer", exchange).await;
    if answer.is_empty() || exchanged.is_err() {
        asked.broken.fetch_add(1, Ordering::Relaxed);
        return;
    }
    assert!(answer.starts_with("HTTP/1.1 200"), "a request was refused: {answer}");
    asked.answered.fetch_add(1, Ordering::Relaxed);
}
