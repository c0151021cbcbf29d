//! Posts a message to an address: one connection for each attempt, no redirects, and a bounded answer.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use agentd_api::hook::{HookFault, HookMessage};
use agentd_config::{Hook, HookAddress, TokenSource};
use agentd_environment::{Seed, secret_credential, secret_file};
use agentd_session::generation::{Generation, credentials};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, LOCATION, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::body;
use crate::retry;
use crate::send::{ANSWER, SendFailure, Sent, answer};
use crate::signature::Keys;
use crate::tls::Tls;

const AGENT: &str = concat!("agentd/", env!("CARGO_PKG_VERSION"));
/// Longest text of an answer in the description of a failure, in characters.
const SHOWN: usize = 200;
/// Time limit for reading an answer after its head.
const READING: Duration = Duration::from_secs(1);

/// Posts the message. The caller limits the time.
pub(crate) async fn post(
    generation: &Generation,
    hook: &Hook,
    url: &str,
    tls: &Tls,
    message: &HookMessage,
) -> Result<Sent, SendFailure> {
    let address = HookAddress::parse(url).map_err(|wrong| unreachable(format!("`url` {wrong}")))?;
    let request = request(generation, hook, &address, message).await?;
    let stream = connect(&address).await?;
    if !address.is_encrypted {
        return exchange(stream, request).await;
    }
    let connector = tls.connector().await?;
    let name = ServerName::try_from(address.host.clone()).map_err(|error| unreachable(error.to_string()))?;
    let stream = connector.connect(name, stream).await;
    let stream = stream.map_err(|error| unreachable(format!("cannot encrypt to {}: {error}", address.authority())))?;
    exchange(stream, request).await
}

fn unreachable(detail: String) -> SendFailure {
    SendFailure::new(HookFault::HookUnreachable, detail)
}

/// Makes the request, signed if the hook has a secret.
async fn request(
    generation: &Generation,
    hook: &Hook,
    address: &HookAddress,
    message: &HookMessage,
) -> Result<Request<Full<Bytes>>, SendFailure> {
    let (body, media_type) = body::of(message, hook.format);
    let (id, timestamp) = (&message.data.id, Timestamp::now().as_second());
    let default = if address.is_encrypted { 443 } else { 80 };
    let authority = address.authority();
    let host = authority.strip_suffix(&format!(":{default}")).unwrap_or(&authority);
    let mut request = Request::post(address.path.as_str())
        .header(HOST, host)
        .header(USER_AGENT, AGENT)
        .header(CONTENT_TYPE, media_type)
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp);
    if let Some(source) = &hook.secret {
        request = request.header("webhook-signature", keys(generation, source).await?.sign(id, timestamp, &body));
    }
    request.body(Full::new(body.into())).map_err(|error| unreachable(format!("cannot make the request: {error}")))
}

/// Reads the secret for each request, so that a replaced file takes effect at once.
async fn keys(generation: &Generation, source: &TokenSource) -> Result<Keys, SendFailure> {
    let (source, environment) = (source.clone(), generation.config.environment.clone());
    let invalid = |detail: String| SendFailure::new(HookFault::HookSecretInvalid, detail);
    let reading = agentd_host::work::blocking(move || match &source {
        TokenSource::File(path) => {
            secret_file(path, Seed::find(environment.home.as_deref(), environment.shell.as_deref()))
        }
        TokenSource::Credential(name) => secret_credential(name, credentials().as_deref()),
    });
    let read = reading.await.map_err(|error| invalid(error.to_string()))?;
    let text = read.map_err(|error| invalid(format!("cannot read the secret: {}", agentd_api::chain(&error))))?;
    Keys::parse(&text).map_err(|error| invalid(error.to_string()))
}

/// Connects to the first address of the host that answers. A name of this machine must lead to this machine.
async fn connect(address: &HookAddress) -> Result<TcpStream, SendFailure> {
    let authority = address.authority();
    let found = tokio::net::lookup_host((address.host.as_str(), address.port)).await;
    let found = found.map_err(|error| unreachable(format!("cannot find {authority}: {error}")))?;
    let found: Vec<SocketAddr> = found.filter(|found| !address.is_loopback() || found.ip().is_loopback()).collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address of this machine");
    for one in found {
        match TcpStream::connect(one).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(unreachable(format!("cannot connect to {authority}: {last}")))
}

/// Sends the request and judges the answer.
async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Sent, SendFailure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |error: hyper::Error| unreachable(format!("the connection broke: {}", agentd_api::chain(&error)));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        judge(response).await
    };
    // The connection works only while it is polled, and is dropped with this future.
    let driving = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        judged = exchange => judged,
        () = driving => Err(unreachable("the connection ended".to_owned())),
    }
}

async fn judge(response: Response<Incoming>) -> Result<Sent, SendFailure> {
    let status = response.status();
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (asked, location) = (header(RETRY_AFTER), header(LOCATION));
    let asked: Option<Duration> = asked.and_then(|asked| retry::asked(&asked, Timestamp::now()));
    let answer = read(response.into_body()).await;
    let number = Some(i32::from(status.as_u16()));
    if status.is_success() {
        return Ok(Sent { status: number, answer });
    }
    let (code, detail) = if status == StatusCode::GONE {
        (HookFault::HookGone, "the receiver answered 410: it wants no more events".to_owned())
    } else if status.is_redirection() {
        let host = location.and_then(|location| HookAddress::parse(&location).ok());
        let place = host.map(|address| format!(" to {}", address.shown())).unwrap_or_default();
        (HookFault::HookRedirected, format!("the receiver answered {status} and redirects{place}"))
    } else {
        let shown: String = answer.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
        let shown = if shown.is_empty() { shown } else { format!(": {shown}") };
        (HookFault::HookRefused, format!("the receiver answered {status}{shown}"))
    };
    Err(SendFailure { code, detail, status: number, asked, answer })
}

/// Reads the begin of the answer, for a second at most. The status has decided already, so an answer that breaks off or
/// does not end changes nothing.
async fn read(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    let reading = async {
        while bytes.len() < ANSWER {
            let Some(Ok(frame)) = body.frame().await else { break };
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(&data[..data.len().min(ANSWER)]);
            }
        }
    };
    let _ = tokio::time::timeout(READING, reading).await;
    answer(&bytes)
}
