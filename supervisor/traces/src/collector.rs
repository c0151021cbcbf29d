//! The collector of spans, and requests to it (OTLP/HTTP with JSON, opentelemetry.io/docs/specs/otlp).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::SpanData;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Time limit of one request to the collector.
pub(crate) const TIME: Duration = Duration::from_secs(5);
/// Maximum size of the collector's answer, in bytes.
const ANSWER: usize = 64 << 10;
/// Path of traces (OTLP specification, "OTLP/HTTP Request").
const PATH: &str = "/v1/traces";

/// An exporter that cannot be built, for example because of an environment variable `OTEL_EXPORTER_OTLP_*`.
#[derive(Debug, thiserror::Error)]
#[error("cannot send traces to {endpoint}")]
pub struct ExporterError {
    endpoint: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Creates the exporter for a collector. Requests run in the tokio runtime of the caller.
pub(crate) fn exporter(endpoint: &str) -> Result<Reporting, ExporterError> {
    let failed = |source| ExporterError { endpoint: endpoint.to_owned(), source };
    let client = Client { runtime: Handle::try_current().map_err(|error| failed(error.into()))? };
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpJson)
        .with_endpoint(format!("{}{PATH}", endpoint.trim_end_matches('/')))
        .with_timeout(TIME)
        .build()
        .map_err(|error| failed(error.into()))?;
    Ok(Reporting { exporter, endpoint: endpoint.to_owned(), fails: AtomicBool::new(false) })
}

/// An exporter that writes the first failure, and the end of the failures, to the log.
#[derive(Debug)]
pub(crate) struct Reporting {
    exporter: SpanExporter,
    endpoint: String,
    fails: AtomicBool,
}

impl opentelemetry_sdk::trace::SpanExporter for Reporting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        let endpoint = &self.endpoint;
        match (&exported, self.fails.swap(exported.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => {
                tracing::warn!(%endpoint, %error, "the collector takes no traces; they are dropped until it does");
            }
            (Ok(()), true) => tracing::info!(%endpoint, "the collector takes traces again"),
            _ => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, time: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(time)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Sends requests over new connections. The exporter's own thread has no runtime, so the work runs in that of the
/// daemon.
#[derive(Debug)]
struct Client {
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.runtime.spawn(async { tokio::time::timeout(TIME, send(request)).await });
        sent.await??
    }
}

async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let host = uri.host().ok_or("the address has no host")?.trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let (mut parts, body) = request.into_parts();
    // The target of a request to a server is its path (RFC 9112 section 3.2.1).
    parts.uri = uri.path().parse()?;
    parts.headers.entry(http::header::HOST).or_insert(uri.authority().ok_or("no host")?.as_str().parse()?);
    let answered = async {
        let (parts, body) = sender.send_request(Request::from_parts(parts, Full::new(body))).await?.into_parts();
        let body = Limited::new(body, ANSWER).collect().await?.to_bytes();
        Ok::<_, HttpError>(Response::from_parts(parts, body))
    };
    tokio::select! {
        answer = answered => answer,
        // The connection ends only with an error while its answer is awaited.
        Err(error) = connection => Err(error.into()),
    }
}
