//! The protocol over WebSocket (RFC 6455): each message is a text frame, and the end of the connection ends no session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use agentd_api::{Code, Problem};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::connection::Connection;
use super::{Context, HEARTBEAT};
use crate::request_body::RequestBody;
use crate::{Body, full};

/// Number of heartbeats without any frame from the client after which it counts as gone.
const SILENT: u32 = 4;

fn has(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(token))
}

/// Reports whether a request asks for WebSocket.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    has(headers, &UPGRADE, "websocket")
}

/// Checks the handshake (RFC 6455 section 4.2.1), and returns the accept key.
pub(super) fn accept(headers: &HeaderMap) -> Result<String, Problem> {
    let refused = |detail: &str| Problem::new(Code::InvalidRequest, detail.to_owned());
    if !has(headers, &SEC_WEBSOCKET_VERSION, "13") || !has(headers, &CONNECTION, "upgrade") {
        return Err(refused("the WebSocket handshake is not that of version 13").hint("use a client of RFC 6455"));
    }
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let key = key.ok_or_else(|| refused("the header Sec-WebSocket-Key is missing").hint("use a client of RFC 6455"))?;
    Ok(derive_accept_key(key.as_bytes()))
}

/// Answers the handshake, and serves the connection after it.
pub(super) fn upgrade(
    context: &Context,
    connection: Arc<Connection>,
    accept: &str,
    mut request: Request<RequestBody>,
) -> Result<Response<Body>, Problem> {
    let (stream, permit, revoked) = (context.stream()?, context.permit.clone(), context.grant.revoked.clone());
    let longest = context.generation.config.limits.prompt;
    let upgraded = hyper::upgrade::on(&mut request);
    let task = async move {
        let _permits = (stream, permit);
        match upgraded.await {
            Ok(upgraded) => tokio::select! {
                () = serve(upgraded, &connection, longest) => {}
                // The client finds out why when it connects again with its token.
                () = revoked.cancelled() => {}
            },
            Err(error) => tracing::debug!(%error, "a WebSocket did not begin"),
        }
        connection.end();
    };
    context.acp.spawn(task);
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Ok(accept) = HeaderValue::from_str(accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok(response)
}

async fn serve(upgraded: Upgraded, connection: &Arc<Connection>, longest: usize) {
    let config = WebSocketConfig::default().max_message_size(Some(longest)).max_frame_size(Some(longest));
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let (mut sink, mut frames) = socket.split();
    let Ok(reader) = connection.read(None, None) else { return };
    let silent = AtomicU32::new(0);
    let receive = async {
        while let Some(Ok(frame)) = frames.next().await {
            silent.store(0, Ordering::Relaxed);
            match frame {
                Message::Text(text) if !connection.send(text.as_bytes().to_vec()).await => return,
                Message::Close(_) => return,
                // Other frames carry no messages, and pings are answered by the library.
                _ => {}
            }
        }
    };
    let send = async {
        loop {
            let frame = tokio::select! {
                next = reader.next() => match next {
                    Some((_, line)) => match Utf8Bytes::try_from(line) {
                        Ok(text) => Message::Text(text),
                        Err(_) => continue,
                    },
                    None => break,
                },
                () = tokio::time::sleep(HEARTBEAT) => {
                    if silent.fetch_add(1, Ordering::Relaxed) >= SILENT {
                        return;
                    }
                    Message::Ping(Vec::new().into())
                }
            };
            if sink.send(frame).await.is_err() {
                return;
            }
        }
        let frame = CloseFrame { code: CloseCode::Away, reason: "agentd ends or restarts".into() };
        let _ = sink.send(Message::Close(Some(frame))).await;
    };
    tokio::select! {
        () = receive => {}
        () = send => {}
    }
}
