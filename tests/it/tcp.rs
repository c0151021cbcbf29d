//! The control endpoint over TCP: a client with the token gets access, and other clients get no information.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use agentd_api::doctor::DoctorView;
use agentd_api::plugin::ReloadView;
use agentd_api::prerequisite::Outcome;
use agentd_api::{Code, Problem};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::planted::{Planted, found_below};
use crate::harness::{Daemon, paths, until, within};

/// A daemon that listens on a free port, with its own token.
struct Listening {
    daemon: Daemon,
    address: String,
    token: Planted,
}

fn prepared(token: &str) -> (Daemon, PathBuf) {
    let daemon = Daemon::prepare();
    let file = daemon.root().join("token");
    fs::write(&file, format!("{token}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    daemon.configure(|config| {
        format!("{config}\n[control]\ntcp = \"127.0.0.1:0\"\ntoken = {{ file = \"{}\" }}\n", file.display())
    });
    (daemon, file)
}

impl Listening {
    async fn start() -> Self {
        let token = Planted::new("TOKEN", "token-{}");
        let (mut daemon, _) = prepared(&token.value);
        daemon.run().await;
        let version: Value = daemon.client.get("/v1/version").await.expect(200);
        let address = version["tcp"].as_str().unwrap_or_else(|| panic!("{version}")).to_owned();
        Self { daemon, address, token }
    }

    /// Sends a request with these lines in its head, and returns the head and the body of the answer.
    async fn ask(&self, lines: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!("GET /v1/version HTTP/1.1\r\n{lines}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        within("the answer", stream.read_to_string(&mut answer)).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_ascii_lowercase(), body.to_owned())
    }

    async fn refused(&self, lines: &str) -> (String, Code) {
        let (head, body) = self.ask(lines).await;
        let problem: Problem = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {head}\n{body}"));
        assert!(problem.hint.is_some() && head.contains("application/problem+json"), "{head}\n{problem:?}");
        assert!(!body.contains("pid") && !body.contains(&self.token.value), "{body}");
        assert!(head.starts_with(&format!("http/1.1 {}", problem.status)), "{head}");
        (head, problem.code)
    }

    fn agentctl(&self, arguments: &[&str], token_file: &str) -> std::process::Output {
        Command::new(paths::agentctl())
            .args(arguments)
            .env_clear()
            .env("AGENTD_URL", format!("http://{}", self.address))
            .env("AGENTD_TOKEN_FILE", self.daemon.root().join(token_file))
            .output()
            .unwrap()
    }
}

#[tokio::test]
async fn a_request_over_tcp_is_answered_with_the_token_and_refused_without_it_for_another_host_and_from_another_site() {
    let listening = Listening::start().await;
    let host = format!("host: {}\r\n", listening.address);
    let bearer = format!("authorization: Bearer {}\r\n", listening.token.value);
    let (head, body) = listening.ask(&format!("{host}{bearer}")).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["pid"], listening.daemon.pid());

    for without in [String::new(), "authorization: Bearer 0123456789abcdef0123456789abcdef\r\n".to_owned()] {
        let (head, code) = listening.refused(&format!("{host}{without}")).await;
        assert_eq!(code, Code::Unauthorized);
        assert!(head.contains("www-authenticate: bearer"), "{head}");
    }
    let (_, code) = listening.refused(&format!("host: rebound.example:7345\r\n{bearer}")).await;
    assert_eq!(code, Code::ForeignHost);
    let (_, code) = listening.refused(&format!("{host}{bearer}origin: http://evil.example\r\n")).await;
    assert_eq!(code, Code::ForeignOrigin);
    // Over the socket the kernel identifies the caller, so the daemon checks none of these headers.
    assert_eq!(listening.daemon.client.get("/v1/version").await.status, 200);
    // Only the token's own file contains the token.
    assert_eq!(found_below(listening.daemon.root(), std::slice::from_ref(&listening.token)).len(), 1);
}

#[tokio::test]
async fn agentctl_goes_over_tcp_where_it_is_told_to_and_is_told_what_is_missing() {
    let listening = Listening::start().await;
    let output = listening.agentctl(&["--json", "agents"], "token");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("scripted"), "{output:?}");
    fs::write(listening.daemon.root().join("wrong"), "0123456789abcdef0").unwrap();
    let output = listening.agentctl(&["ls"], "wrong");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the token is wrong"), "{said}");
    let output = listening.agentctl(&["ls"], "nowhere");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("nowhere"), "{said}");
}

#[tokio::test]
async fn who_holds_every_connection_over_tcp_shuts_nobody_out_of_the_socket() {
    let token = Planted::new("TOKEN", "token-{}");
    let (mut daemon, _) = prepared(&token.value);
    daemon.configure(|config| format!("{config}\n[limits]\nconnections = 4\n"));
    daemon.run().await;
    let version: Value = daemon.client.get("/v1/version").await.expect(200);
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(TcpStream::connect(version["tcp"].as_str().unwrap()).await.unwrap());
    }
    assert_eq!(daemon.client.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn without_a_token_that_can_be_used_the_socket_serves_and_tcp_is_off_until_a_reload_finds_one() {
    for (token, mode, said) in [("0123456789abcdef", 0o644, "chmod 600"), ("short", 0o600, "openssl rand")] {
        let (mut daemon, file) = prepared(token);
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        daemon.run().await;
        let version: Value = daemon.client.get("/v1/version").await.expect(200);
        assert_eq!(version["tcp"], Value::Null);
        let log = daemon.last_words();
        assert!(log.contains(said) && log.contains("control.token") && !log.contains(&format!("\"{token}\"")), "{log}");
        let doctor: DoctorView = daemon.client.get("/v1/doctor").await.expect(200);
        let check = doctor.checks.iter().find(|check| check.name == "configuration").unwrap();
        assert!(check.outcome == Outcome::Fail && check.summary.contains(said), "{check:?}");
        // Sessions still start with this mistake.
        daemon.session(&daemon.scripted(&[])).await;

        fs::write(&file, "0123456789abcdef0123").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let view: ReloadView = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
        assert_eq!(view.mistakes, []);
        let version: Value = daemon.client.get("/v1/version").await.expect(200);
        TcpStream::connect(version["tcp"].as_str().unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn a_port_that_is_in_use_at_the_start_costs_tcp_alone_and_a_reload_opens_it_when_it_is_free() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (mut daemon, _) = prepared("0123456789abcdef");
    daemon.configure(|config| config.replace("127.0.0.1:0", &address.to_string()));
    daemon.run().await;
    let tcp = async || daemon.client.get("/v1/version").await.expect::<Value>(200)["tcp"].clone();
    assert_eq!(tcp().await, Value::Null);
    let view: ReloadView = daemon.client.call("POST", "/v1/reload", "").await.expect(200);
    assert!(view.mistakes.len() == 1 && view.mistakes[0].message.contains(&address.to_string()), "{view:?}");
    drop(taken);
    // A child that another test forked has the socket until it executes its own program.
    let reload = async || daemon.client.call("POST", "/v1/reload", "").await.expect::<ReloadView>(200).mistakes;
    let begun = std::time::Instant::now();
    let mut mistakes = reload().await;
    while !mistakes.is_empty() && begun.elapsed() < std::time::Duration::from_secs(5) {
        mistakes = reload().await;
    }
    assert_eq!(mistakes, []);
    assert_eq!(tcp().await, address.to_string());
}

#[tokio::test]
async fn another_token_counts_from_the_reload_on_for_connections_that_are_open_too() {
    let listening = Listening::start().await;
    let host = format!("host: {}\r\n", listening.address);
    let bearer = |token: &str| format!("authorization: Bearer {token}\r\n");
    fs::write(listening.daemon.root().join("token"), "another-token-0123456789").unwrap();
    listening.daemon.client.call("POST", "/v1/reload", "").await.expect::<ReloadView>(200);
    let (_, code) = listening.refused(&format!("{host}{}", bearer(&listening.token.value))).await;
    assert_eq!(code, Code::Unauthorized);
    let (head, _) = listening.ask(&format!("{host}{}", bearer("another-token-0123456789"))).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    // Without `[control]` the daemon no longer listens at the address.
    listening.daemon.configure(|config| config.split("[control]").next().unwrap().to_owned());
    listening.daemon.client.call("POST", "/v1/reload", "").await.expect::<ReloadView>(200);
    until("nobody listens", || std::net::TcpStream::connect(&listening.address).is_err()).await;
}
