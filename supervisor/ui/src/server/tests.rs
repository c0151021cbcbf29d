//! The server over real sockets, without a daemon.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use super::*;
use crate::Host;
use agentd_client::Client;

const LONG: Duration = Duration::from_mins(5);

fn settings() -> Settings {
    let host = Host {
        name: "this".to_owned(),
        label: "Here".to_owned(),
        options: vec!["--socket".to_owned(), "/nowhere/control.sock".to_owned()],
        client: Client::new(PathBuf::from("/nowhere/control.sock")),
        editor: Some("zed://file{path}:{line}".to_owned()),
    };
    Settings { hosts: vec![host], is_read_only: false, version: "1.2.3".to_owned(), token_life: LONG, life: LONG }
}

/// Serves a page while `test` runs.
fn with<T>(settings: Settings, test: impl AsyncFnOnce(&Page) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let page = Page::bind(settings, &[0]).await.unwrap();
        tokio::select! {
            () = page.serve() => panic!("the page ended"),
            result = timeout(Duration::from_mins(1), test(&page)) => result.expect("no endless wait"),
        }
    })
}

/// An answer: the status, the head in lower case, and the body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn code(&self) -> String {
        let document: Value = serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        document["code"].as_str().unwrap().to_owned()
    }
}

/// Sends a request with these lines in its head and reads the answer.
async fn ask(page: &Page, request: &str, lines: &str, body: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", page.port())).await.unwrap();
    let host = format!("host: 127.0.0.1:{}\r\ncontent-length: {}\r\n", page.port(), body.len());
    let text = format!("{request} HTTP/1.1\r\n{host}{lines}connection: close\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// Signs in with a token, as the page does.
async fn sign_in(page: &Page, token: &str) -> Answer {
    let lines = format!("origin: http://127.0.0.1:{}\r\ncontent-type: application/json\r\n", page.port());
    ask(page, "POST /ui/login", &lines, &format!("{{\"token\":\"{token}\"}}")).await
}

fn token(page: &Page) -> String {
    page.url().split_once("#token=").unwrap().1.to_owned()
}

/// Returns the lines with the cookie and the key of a sign-in, for a request.
fn admission(answer: &Answer) -> String {
    let line =
        answer.head.lines().find(|line| line.starts_with("set-cookie: ")).unwrap_or_else(|| panic!("{answer:?}"));
    let pair = line.strip_prefix("set-cookie: ").unwrap().split(';').next().unwrap();
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    format!("cookie: {pair}\r\nagentd-ui-key: {}\r\n", body["key"].as_str().unwrap())
}

#[test]
fn a_browser_signs_in_once_and_cookie_and_key_show_the_page_its_hosts() {
    with(settings(), async |page| {
        assert_eq!(ask(page, "GET /ui/info", "", "").await.code(), "ui.signed_out");
        assert_eq!(sign_in(page, "wrong").await.code(), "ui.token_wrong");
        let answer = sign_in(page, &token(page)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        for attribute in ["; path=/", "; max-age=", "; httponly", "; samesite=strict"] {
            assert!(answer.head.contains(attribute), "{attribute}: {answer:?}");
        }
        assert!(answer.head.contains(&format!("set-cookie: agentd-ui-{}=", page.port())), "{answer:?}");
        assert_eq!(sign_in(page, &token(page)).await.code(), "ui.token_used");

        for line in admission(&answer).lines() {
            assert_eq!(ask(page, "GET /ui/info", &format!("{line}\r\n"), "").await.code(), "ui.signed_out", "{line}");
        }
        let info = ask(page, "GET /ui/info", &admission(&answer), "").await;
        let info: Value = serde_json::from_str(&info.body).unwrap();
        assert_eq!((&info["version"], &info["read_only"]), (&Value::from("1.2.3"), &Value::from(false)));
        assert_eq!(info["hosts"][0]["name"], "this");
        assert_eq!(info["hosts"][0]["options"], json!(["--socket", "/nowhere/control.sock"]));
        assert_eq!(info["hosts"][0]["editor"], "zed://file{path}:{line}");
        assert!(info["expires"].as_str().unwrap().parse::<Timestamp>().unwrap() > Timestamp::now());

        let away = ask(page, "GET /host/this/v1/sessions", &admission(&answer), "").await;
        assert_eq!((away.status, away.code().as_str()), (503, "ui.host_unreachable"));
        assert_eq!(ask(page, "GET /host/other/v1/x", &admission(&answer), "").await.code(), "ui.no_such_host");
        assert_eq!(ask(page, "GET /host/this/acp", &admission(&answer), "").await.code(), "ui.no_such_path");
    });
}

#[test]
fn the_files_need_no_sign_in_and_every_answer_is_confined() {
    with(settings(), async |page| {
        let index = ask(page, "GET /", "", "").await;
        assert!(index.status == 200 && index.head.contains("cache-control: no-store"), "{index:?}");
        assert!(index.head.contains("content-security-policy: default-src 'none'; script-src 'self';"), "{index:?}");
        assert!(index.body.contains("<html"), "{index:?}");
        let compressed = ask(page, "GET /", "accept-encoding: gzip\r\n", "").await;
        assert!(compressed.head.contains("content-encoding: gzip") && !compressed.body.contains("<html"));
        let refused = ask(page, "GET /ui/info", "", "").await;
        assert!(refused.head.contains("default-src 'none'; frame-ancestors 'none'; sandbox"), "{refused:?}");
        for answer in [&index, &refused] {
            for header in [
                "x-content-type-options: nosniff",
                "referrer-policy: no-referrer",
                "cross-origin-opener-policy: same-origin",
                "cross-origin-resource-policy: same-origin",
            ] {
                assert!(answer.head.contains(header), "{header}: {answer:?}");
            }
        }
        for path in ["/assets/index.html", "/assets/", "/assets/../index.html", "/favicon.ico", "/ui", "/v1/sessions"] {
            assert_eq!(ask(page, &format!("GET {path}"), "", "").await.code(), "ui.no_such_path", "{path}");
        }
        assert_eq!(ask(page, "GET /ui/login", "", "").await.code(), "ui.method_not_allowed");
    });
}

#[test]
fn a_token_that_was_not_used_in_time_opens_nothing() {
    with(Settings { token_life: Duration::ZERO, ..settings() }, async |page| {
        page.stage().wait_for(|stage| *stage == Stage::Unused).await.unwrap();
        assert_eq!(sign_in(page, &token(page)).await.code(), "ui.token_expired");
    });
}

#[test]
fn the_end_of_a_sign_in_closes_its_connections_and_refuses_its_secrets() {
    with(Settings { life: Duration::from_secs(2), ..settings() }, async |page| {
        let mut open = TcpStream::connect(("127.0.0.1", page.port())).await.unwrap();
        let answer = sign_in(page, &token(page)).await;
        let admission = admission(&answer);
        let head = format!("GET /ui/info HTTP/1.1\r\nhost: 127.0.0.1:{}\r\n{admission}\r\n", page.port());
        open.write_all(head.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        open.read_to_end(&mut rest).await.unwrap(); // until the server closes it
        assert!(String::from_utf8_lossy(&rest).starts_with("HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
        page.stage().wait_for(|stage| *stage == Stage::SignedOut).await.unwrap();
        assert_eq!(ask(page, "GET /ui/info", &admission, "").await.code(), "ui.signed_out");
        assert_eq!(ask(page, "GET /", "", "").await.status, 200);
    });
}

#[test]
fn a_sign_in_that_cannot_be_read_costs_nothing() {
    with(settings(), async |page| {
        let origin = format!("origin: http://127.0.0.1:{}\r\n", page.port());
        let json = format!("{origin}content-type: application/json\r\n");
        let long = format!("{{\"token\":\"{}\"}}", "t".repeat(5000));
        for (lines, body, code) in [
            (&origin, "{\"token\":\"t\"}", "ui.malformed_request"),
            (&json, "{", "ui.malformed_request"),
            (&json, "{\"token\":7}", "ui.malformed_request"),
            (&json, &long, "ui.body_too_large"),
            (&"content-type: application/json\r\n".to_owned(), "{}", "ui.foreign_origin"),
        ] {
            assert_eq!(ask(page, "POST /ui/login", lines, body).await.code(), code, "{body}");
        }
        assert_eq!(sign_in(page, &token(page)).await.status, 200);
    });
}

#[test]
fn clients_that_send_nothing_or_half_a_head_are_closed() {
    with(settings(), async |page| {
        for begun in ["", "GET / HTTP/1.1\r\nhost: 127"] {
            let mut stream = TcpStream::connect(("127.0.0.1", page.port())).await.unwrap();
            stream.write_all(begun.as_bytes()).await.unwrap();
            let since = Instant::now();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await; // the end may be a reset
            assert!(since.elapsed() >= HEAD_TIME / 2, "{begun:?}: {:?}", since.elapsed());
        }
    });
}

#[test]
fn a_connection_without_a_place_is_refused_with_an_answer() {
    with(settings(), async |page| {
        // Sign-ins whose bodies do not come.
        let host = format!("127.0.0.1:{}", page.port());
        let lines = format!("host: {host}\r\norigin: http://{host}\r\ncontent-type: application/json\r\n");
        let half = format!("POST /ui/login HTTP/1.1\r\n{lines}content-length: 9\r\nexpect: 100-continue\r\n\r\n");
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(("127.0.0.1", page.port())).await.unwrap();
            stream.write_all(half.as_bytes()).await.unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 100");
            held.push(stream);
        }
        let refused = ask(page, "GET /", "", "").await;
        assert!(refused.code() == "ui.too_many_connections" && refused.head.contains("retry-after"), "{refused:?}");
        drop(held);
        while ask(page, "GET /", "", "").await.status != 200 {}
    });
}
