//! `agentctl ui`: the server of the page, with a plain HTTP client, and the page in a browser.

mod browser;
mod calls;
mod guests;
mod hosts;
mod revive;
mod sign_in;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::ctl::agentctl;
use crate::harness::{Daemon, within};

/// A running `agentctl ui`. Dropping it kills the program.
struct Shown {
    program: Child,
    port: u16,
    token: String,
}

/// A whole answer: the status, the head in lower case, and the body.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    /// Reads an answer to the end of its connection.
    async fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        within("the answer", stream.read_to_end(&mut bytes)).await.unwrap();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(&bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head}"));
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {} {}", self.head, self.text()))
    }

    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_else(|| panic!("{} {}", self.head, self.text())).to_owned()
    }
}

impl Shown {
    /// Runs `agentctl ui` for a daemon, and waits for the address.
    fn start(daemon: &Daemon, arguments: &[&str]) -> Self {
        let mut command = agentctl(daemon, &["ui", "--json", "--no-open"]);
        command.args(arguments);
        Self::run(&mut command)
    }

    fn run(command: &mut Command) -> Self {
        let mut program = command.stderr(Stdio::inherit()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let shown: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let (address, token) = shown["url"].as_str().unwrap().split_once("/#token=").unwrap();
        let port = shown["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap();
        assert_eq!(address, format!("http://127.0.0.1:{port}"));
        Self { program, port, token: token.to_owned() }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    /// Returns the lines that a browser sends with each request of the page itself.
    fn own(&self) -> String {
        let host = format!("127.0.0.1:{}", self.port);
        format!("host: {host}\r\norigin: http://{host}\r\nsec-fetch-site: same-origin\r\n")
    }

    /// Sends a request with exactly these lines in its head.
    async fn send(&self, request: &str, lines: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect().await;
        let length = body.len();
        let head = format!("{request} HTTP/1.1\r\n{lines}content-length: {length}\r\nconnection: close\r\n\r\n");
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        stream
    }

    /// Sends a request with exactly these lines in its head, and reads the answer.
    async fn ask(&self, request: &str, lines: &str, body: &[u8]) -> Answer {
        Answer::read(&mut self.send(request, lines, body).await).await
    }

    async fn log_in(&self, token: &str) -> Answer {
        let lines = format!("{}content-type: application/json\r\n", self.own());
        self.ask("POST /ui/login", &lines, format!("{{\"token\":{token:?}}}").as_bytes()).await
    }

    /// Signs in, and returns the client of the page.
    async fn sign_in(&self) -> Visitor<'_> {
        let answer = self.log_in(&self.token).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let pair = cookie.and_then(|cookie| cookie.split(';').next()).unwrap_or_else(|| panic!("{answer:?}"));
        let key = answer.json()["key"].as_str().unwrap().to_owned();
        Visitor { shown: self, lines: format!("{}cookie: {pair}\r\nagentd-ui-key: {key}\r\n", self.own()) }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// A client that has signed in, like the page in a browser.
struct Visitor<'a> {
    shown: &'a Shown,
    /// The lines of each request's head.
    lines: String,
}

impl Visitor<'_> {
    async fn get(&self, path: &str) -> Answer {
        self.shown.ask(&format!("GET {path}"), &self.lines, b"").await
    }

    async fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let lines = format!("{}content-type: application/json\r\n", self.lines);
        self.shown.ask(&format!("{method} {path}"), &lines, body).await
    }
}
