//! Tokens with scopes, and the read-only socket: who may make which call over which listener.

mod read_only;
mod table;
mod tokens;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use agentd_api::Code;
use agentd_api::plugin::ReloadView;
use agentd_api::route::Scope;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpStream, UnixStream};

use crate::harness::{Daemon, reached, within};

/// Answer to a raw request.
#[derive(Debug)]
struct Said {
    status: u16,
    body: String,
}

impl Said {
    fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("this is no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("an answer has a status");
        Self { status, body: body.to_owned() }
    }

    /// Returns the code of a refusal. Each refusal has a remedy.
    fn code(&self) -> String {
        let problem: Value = serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert!(problem["hint"].is_string(), "{self:?}");
        problem["code"].as_str().expect("a problem has a code").to_owned()
    }
}

/// Makes a request without a body over any connection.
async fn exchange<S>(stream: S, method: &str, path: &str, lines: &str) -> Said
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    exchange_body(stream, method, path, lines, "").await
}

/// Writes a request over any connection, and reads the answer to the end.
async fn exchange_body<S>(mut stream: S, method: &str, path: &str, lines: &str, body: &str) -> Said
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{lines}connection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.expect("the request is sent");
    let mut answer = Vec::new();
    within("the answer", stream.read_to_end(&mut answer)).await.expect("the answer is read");
    reached::record_raw(request.as_bytes(), &answer);
    Said::of(&answer)
}

/// Opens the stream of all events over any connection, and reads the first event.
async fn follow<S>(mut stream: S, lines: &str) -> BufReader<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let request = format!("GET /v1/events HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n");
    stream.write_all(request.as_bytes()).await.expect("the request is sent");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("feed.state") {
        line.clear();
        assert!(within("the first event", stream.read_line(&mut line)).await.unwrap() > 0, "the stream ended");
    }
    stream
}

async fn over_socket(socket: &Path, method: &str, path: &str) -> Said {
    exchange(UnixStream::connect(socket).await.expect("a daemon listens"), method, path, "").await
}

/// A daemon with an owner's token, a token of each smaller scope and a read-only socket for this process's own group.
struct Open {
    daemon: Daemon,
}

/// Value of the token with this name.
fn value(name: &str) -> String {
    format!("the-token-of-{name}-0123456789")
}

const NAMES: [(&str, Scope); 2] = [("reader", Scope::Read), ("operator", Scope::Operate)];

fn write_token(daemon: &Daemon, name: &str, content: &str) -> PathBuf {
    let file = daemon.root().join(format!("token-{name}"));
    fs::write(&file, content).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

/// Returns the directory for read-only sockets. The group can enter it and the directory above.
fn readers_directory(daemon: &Daemon) -> PathBuf {
    let directory = daemon.root().join("readers");
    fs::create_dir_all(&directory).unwrap();
    for path in [daemon.root(), &directory] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o711)).unwrap();
    }
    directory
}

fn socket_of(daemon: &Daemon) -> PathBuf {
    daemon.root().join("readers/read-only.sock")
}

/// Returns the table of the read-only socket for a group.
fn read_only(socket: &Path, group: impl std::fmt::Display) -> String {
    format!("[control.read_only]\nsocket = \"{}\"\ngroup = \"{group}\"\n", socket.display())
}

fn own_group() -> u32 {
    nix::unistd::getegid().as_raw()
}

impl Open {
    fn prepare() -> Daemon {
        let daemon = Daemon::prepare();
        let own = write_token(&daemon, "owner", &value("owner"));
        let mut control = format!("\n[control]\ntcp = \"127.0.0.1:0\"\ntoken = {{ file = \"{}\" }}\n", own.display());
        for (name, scope) in NAMES {
            let file = write_token(&daemon, name, &value(name));
            let file = file.display();
            let table = format!("[control.tokens.{name}]\nfile = \"{file}\"\nscope = \"{scope}\"\n");
            control.push_str(&table);
        }
        readers_directory(&daemon);
        control += &read_only(&socket_of(&daemon), own_group());
        daemon.configure(|config| config + &control);
        daemon
    }

    async fn start() -> Self {
        let mut daemon = Self::prepare();
        daemon.run().await;
        Self { daemon }
    }

    async fn address(&self) -> String {
        let version: Value = self.daemon.client.get("/v1/version").await.expect(200);
        version["tcp"].as_str().unwrap_or_else(|| panic!("{version}: {}", self.daemon.last_words())).to_owned()
    }

    /// Sends a request over TCP with the header lines.
    async fn tcp(address: &str, method: &str, path: &str, lines: &str) -> Said {
        exchange(TcpStream::connect(address).await.expect("it listens"), method, path, lines).await
    }

    async fn with_token(&self, name: &str, method: &str, path: &str) -> Said {
        Self::tcp(&self.address().await, method, path, &bearer(&value(name))).await
    }

    async fn reload(&self) -> ReloadView {
        self.daemon.client.call("POST", "/v1/reload", "").await.expect(200)
    }
}

fn bearer(value: &str) -> String {
    format!("authorization: Bearer {value}\r\n")
}

fn code(code: Code) -> String {
    code.as_str()
}
