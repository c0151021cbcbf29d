//! Every route with every credential: each answer is that of the tables `Route::scope` and `access`.

use std::fs;
use std::path::Path;

use agentd_api::route::{Method, Scope};
use agentd_api::{Code, Route};
use agentd_control::{Access, access};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};

use super::{Open, bearer, code, exchange, exchange_body, over_socket, socket_of, value};
use crate::boundary::table::is_over;
use crate::harness::quote::quoted;
use crate::harness::{Session, scripted_agent, until, within};

/// A key that no route takes. A permitted call is refused for the key alone, so the test has no effect.
const UNKNOWN: &str = "no-such-key";

/// Returns a path of the route with this session in it.
fn path(route: Route, session: &str) -> String {
    let part = |part: &str| match part {
        "{session}" => session.to_owned(),
        part if part.starts_with('{') => "x".to_owned(),
        part => part.to_owned(),
    };
    let parts: Vec<String> = route.path().split('/').map(part).collect();
    format!("{}?{UNKNOWN}", parts.join("/"))
}

/// Returns the expected code of a call with a grant of this scope.
fn expected(route: Route, scope: Scope) -> String {
    code(if route.scope() <= scope { Code::InvalidRequest } else { Code::ScopeTooSmall })
}

#[tokio::test]
async fn each_route_is_answered_or_refused_as_the_scope_of_the_credential_says() {
    let open = Open::start().await;
    let address = open.address().await;
    let mut wrong = Vec::new();
    let credentials = [
        (bearer(&value("owner")), Some(Scope::Own)),
        (bearer(&value("operator")), Some(Scope::Operate)),
        (bearer(&value("reader")), Some(Scope::Read)),
        (bearer(&value("nobody")), None),
        (String::new(), None),
    ];
    for route in Route::ALL {
        let (method, path) = (route.method().as_str(), path(*route, "nobody"));
        for (lines, scope) in &credentials {
            let said = Open::tcp(&address, method, &path, lines).await;
            let expected = scope.map_or(code(Code::Unauthorized), |scope| expected(*route, scope));
            if said.code() != expected {
                wrong.push(format!("{route} with {lines:?}: {said:?}, not {expected}"));
            }
        }
        let said = over_socket(&socket_of(&open.daemon), method, &path).await;
        if said.code() != expected(*route, Scope::Read) {
            wrong.push(format!("{route} over the read-only socket: {said:?}"));
        }
        if route.method() == Method::Get && route.scope() > Scope::Read {
            let head = Open::tcp(&address, "HEAD", &path, &bearer(&value("reader"))).await;
            assert_eq!((head.status, head.body.as_str()), (403, ""), "HEAD {path}: {head:?}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the expected code of a guest's call on the guest's own session, over the control socket.
fn of_guest(route: Route) -> Code {
    match access(route) {
        Access::Public | Access::Guest | Access::Inside | Access::Own => Code::InvalidRequest,
        Access::Parent | Access::Creator | Access::Owner => Code::InSession,
    }
}

/// Makes the calls from inside the session, and returns the answers by their names.
async fn from_inside(open: &Open, session: &Session, socket: &Path, name: &str, calls: &[Value]) -> Value {
    let directory = open.daemon.root().join(name);
    fs::create_dir(&directory).unwrap();
    let table = directory.join("table");
    let text = json!({ "socket": socket, "keepers": [], "forged": {}, "calls": calls }).to_string();
    fs::write(&table, text).unwrap();
    fs::write(directory.join("1.go"), "").unwrap();
    let agent = scripted_agent();
    let words = [agent.as_path(), Path::new("attack"), &table, &directory].map(quoted).join(" ");
    session.turn(&format!("do {words} 1 </dev/null >/dev/null 2>&1 &")).await;
    until("the calls are made", || is_over(&directory, 1)).await;
    // A process that hides that it belongs to the session.
    serde_json::from_slice(&fs::read(directory.join("1-orphan.json")).unwrap()).unwrap()
}

#[tokio::test]
async fn a_process_inside_a_session_has_the_rights_of_a_guest_and_over_the_read_only_socket_no_more_than_reading() {
    let open = Open::start().await;
    let session = open.daemon.session(&open.daemon.scripted(&[])).await;
    let calls: Vec<Value> = Route::ALL
        .iter()
        .map(|route| json!([route.to_string(), route.method().as_str(), path(*route, session.id.as_str()), null]))
        .collect();
    let mut wrong = Vec::new();
    for (name, socket, scope) in [
        ("control", open.daemon.client.socket().to_owned(), Scope::Own),
        ("read-only", socket_of(&open.daemon), Scope::Read),
    ] {
        let answers = from_inside(&open, &session, &socket, name, &calls).await;
        for route in Route::ALL {
            let expected = if route.scope() <= scope { of_guest(*route) } else { Code::ScopeTooSmall };
            let text = answers[route.to_string()][1].as_str().unwrap_or_default();
            if !text.contains(&format!("\"code\":\"{}\"", code(expected))) {
                wrong.push(format!("{route} over {name}: {text}, not {}", code(expected)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn each_request_of_an_http2_connection_is_checked_with_its_own_token() {
    let open = Open::start().await;
    let address = open.address().await;
    let stream = TcpStream::connect(&address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let ask = async |method: &str, path: &str, name: Option<&str>| {
        let mut request = hyper::Request::builder().method(method).uri(format!("http://localhost{path}"));
        if let Some(name) = name {
            request = request.header("authorization", format!("Bearer {}", value(name)));
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let answer = within(path, sender.clone().send_request(request)).await.unwrap();
        let status = answer.status().as_u16();
        (status, String::from_utf8_lossy(&answer.into_body().collect().await.unwrap().to_bytes()).into_owned())
    };
    for (method, path, name, status) in [
        ("GET", "/v1/sessions", Some("reader"), 200),
        ("POST", "/v1/reload", Some("reader"), 403),
        ("GET", "/v1/secrets", Some("operator"), 403),
        ("GET", "/v1/secrets", Some("owner"), 200),
        ("GET", "/v1/sessions", None, 401),
        ("GET", "/v1/sessions", Some("operator"), 200),
    ] {
        let (said, body) = ask(method, path, name).await;
        assert_eq!(said, status, "{method} {path} {name:?}: {body}");
    }
    // The same over the read-only socket, where no token counts.
    let stream = UnixStream::connect(socket_of(&open.daemon)).await.unwrap();
    let lines = bearer(&value("owner"));
    assert_eq!(exchange(stream, "POST", "/v1/reload", &lines).await.code(), code(Code::ScopeTooSmall));
}

#[tokio::test]
async fn acp_and_its_upgrade_need_the_scope_own() {
    const UPGRADE: &str = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                           sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let open = Open::start().await;
    let address = open.address().await;
    for name in ["reader", "operator"] {
        let said = Open::tcp(&address, "GET", "/acp", &format!("{}{UPGRADE}", bearer(&value(name)))).await;
        assert_eq!((said.status, said.code()), (403, code(Code::ScopeTooSmall)), "{name}");
    }
    let stream = UnixStream::connect(socket_of(&open.daemon)).await.unwrap();
    assert_eq!(exchange(stream, "GET", "/acp", UPGRADE).await.code(), code(Code::ScopeTooSmall));
}

#[tokio::test]
async fn keys_and_fields_that_need_more_than_their_route_are_refused() {
    let open = Open::start().await;
    let session = open.daemon.session(&open.daemon.scripted(&[])).await;
    let address = open.address().await;
    let ask = async |name: &str, method: &str, path: &str, body: &str| {
        let token = bearer(&value(name));
        let lines = format!("{token}content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        let stream = TcpStream::connect(&address).await.unwrap();
        exchange_body(stream, method, path, &lines, body).await
    };
    for (name, method, path, body) in [
        ("reader", "GET", "/v1/catalogue?versions=true".to_owned(), ""),
        ("operator", "POST", session.path("/resume?force=true"), ""),
        ("operator", "POST", session.path("/resume?degraded=true"), ""),
        ("operator", "PATCH", session.path(""), r#"{"env_setup":"touch /tmp/x"}"#),
        ("operator", "PATCH", session.path(""), r#"{"labels":{"team":"web"},"permissions":"allow"}"#),
    ] {
        let said = ask(name, method, &path, body).await;
        assert_eq!(said.code(), code(Code::ScopeTooSmall), "{method} {path} {body}: {said:?}");
    }
    let labelled = ask("operator", "PATCH", &session.path(""), r#"{"labels":{"team":"web"}}"#).await;
    assert_eq!(labelled.status, 200, "{labelled:?}");
    let titled = ask("operator", "PUT", &session.path("/title"), r#"{"title":"a title"}"#).await;
    assert_eq!(titled.status, 200, "{titled:?}");
    let prompted = ask("operator", "POST", &session.path("/prompt"), r#"{"prompt":"say hi"}"#).await;
    assert_eq!(prompted.status, 202, "{prompted:?}");
    let view = session.view().await;
    assert!(view.spec.labels.contains_key("team") && view.spec.env_setup.is_none(), "{:?}", view.spec);
}
