//! HTTP over the control socket, one request after another on one connection.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// Time limit of an answer. A slower answer counts as not measurable.
const LIMIT: Duration = Duration::from_mins(5);

/// A client that connects at its first request.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    runtime: Runtime,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Client {
    pub(crate) fn new(socket: PathBuf) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket, runtime, sender: None })
    }

    pub(crate) fn get(&mut self, path: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&self.bytes(path)?)?)
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Result<Value> {
        Ok(serde_json::from_slice(&self.call("POST", path, body.to_string())?)?)
    }

    pub(crate) fn delete(&mut self, path: &str) -> Result<()> {
        self.call("DELETE", path, String::new()).map(drop)
    }

    /// The body, whatever it is.
    pub(crate) fn bytes(&mut self, path: &str) -> Result<Bytes> {
        self.call("GET", path, String::new())
    }

    fn call(&mut self, method: &str, path: &str, body: String) -> Result<Bytes> {
        let Self { socket, runtime, sender } = self;
        let answer = async {
            let response = send(socket, sender, method, path, body).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            ensure!(status.is_success(), "it answered {status}: {}", String::from_utf8_lossy(&body));
            Ok(body)
        };
        let answer = runtime.block_on(async { tokio::time::timeout(LIMIT, answer).await });
        answer.context("no answer in time").flatten().with_context(|| format!("{method} {path}"))
    }

    /// Passes on the body piece by piece until the body ends or `piece` breaks.
    pub(crate) fn stream(&mut self, path: &str, mut piece: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<()> {
        let Self { socket, runtime, sender } = self;
        let streamed = runtime.block_on(async {
            tokio::time::timeout(LIMIT, async {
                let mut response = send(socket, sender, "GET", path, String::new()).await?;
                while let Some(frame) = response.frame().await {
                    if let Some(bytes) = frame?.data_ref()
                        && piece(bytes).is_break()
                    {
                        break;
                    }
                }
                Ok(())
            })
            .await
        });
        // The remaining bytes of the stream would come before the next answer, so the connection is closed.
        *sender = None;
        streamed.context("the stream did not end in time").flatten().with_context(|| format!("GET {path}"))
    }
}

async fn send(
    socket: &PathBuf,
    sender: &mut Option<SendRequest<Full<Bytes>>>,
    method: &str,
    path: &str,
    body: String,
) -> Result<hyper::Response<Incoming>> {
    let sender = match sender {
        Some(sender) if !sender.is_closed() => sender,
        closed => {
            let stream = UnixStream::connect(socket).await.context("the daemon does not listen")?;
            let (connected, connection) = http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            closed.insert(connected)
        }
    };
    sender.ready().await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "agentd")
        .header("content-type", "application/json")
        .body(Full::new(body.into()))?;
    Ok(sender.send_request(request).await?)
}
