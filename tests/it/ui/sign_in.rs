//! The token, the cookie, and the requests of other sites.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::{Signal, kill};

use super::Shown;
use crate::harness::ctl::{agentctl, ctl};
use crate::harness::quote::quoted;
use crate::harness::{Daemon, process, until};

#[tokio::test]
async fn the_token_opens_the_page_once_and_two_secrets_follow_for_their_time() {
    let daemon = Daemon::start().await;
    let shown = Shown::start(&daemon, &["--for", "3s"]);
    assert_eq!(shown.ask("GET /ui/info", &shown.own(), b"").await.code(), "ui.signed_out");
    assert_eq!(shown.log_in(&"0".repeat(64)).await.code(), "ui.token_wrong");
    let visitor = shown.sign_in().await;
    assert_eq!(shown.log_in(&shown.token).await.code(), "ui.token_used");

    let info = visitor.get("/ui/info").await;
    assert!(info.status == 200 && info.head.contains("cache-control: no-store"), "{info:?}");
    let info = info.json();
    assert_eq!((&info["hosts"][0]["name"], &info["read_only"]), (&"this".into(), &false.into()), "{info}");
    assert_eq!(info["hosts"][0]["editor"], serde_json::Value::Null);
    let socket = daemon.client.socket().display().to_string();
    assert_eq!(info["hosts"][0]["options"], serde_json::json!(["--socket", socket]));
    let version: serde_json::Value = daemon.client.get("/v1/version").await.expect(200);
    assert_eq!(visitor.get("/host/this/v1/version").await.json(), version);

    let mut code = String::new();
    while code != "ui.signed_out" {
        let answer = visitor.get("/ui/info").await;
        code = if answer.status == 200 { String::new() } else { answer.code() };
    }
    assert_eq!(visitor.get("/host/this/v1/version").await.code(), "ui.signed_out");
}

#[tokio::test]
async fn the_cookie_is_for_this_page_alone() {
    let daemon = Daemon::start().await;
    let (shown, other) = (Shown::start(&daemon, &[]), Shown::start(&daemon, &[]));
    let answer = shown.log_in(&shown.token).await;
    let line = answer.head.lines().find(|line| line.starts_with("set-cookie: ")).unwrap().to_owned();
    let (pair, attributes) = line.strip_prefix("set-cookie: ").unwrap().split_once("; ").unwrap();
    assert!(pair.starts_with(&format!("agentd-ui-{}=", shown.port)), "{line}");
    let mut attributes: Vec<&str> = attributes.split("; ").collect();
    let age = attributes.remove(1).strip_prefix("max-age=").unwrap().parse::<u64>().unwrap();
    assert!((43_190..=43_200).contains(&age), "{line}");
    assert_eq!(attributes, ["path=/", "httponly", "samesite=strict"], "{line}");
    // A browser sends the cookies of one port to the other. Each page takes its own.
    let key = format!("agentd-ui-key: {}\r\n", answer.json()["key"].as_str().unwrap());
    let lines = format!("{}cookie: {pair}\r\n{key}", other.own());
    assert_eq!(other.ask("GET /ui/info", &lines, b"").await.code(), "ui.signed_out");
    let value = pair.split_once('=').unwrap().1;
    let lines = format!("{}cookie: agentd-ui-{}={value}\r\n{key}", other.own(), other.port);
    assert_eq!(other.ask("GET /ui/info", &lines, b"").await.code(), "ui.signed_out");
    // A server at another port sees the cookie, but not the key, which the page's storage keeps.
    let lines = format!("{}cookie: {pair}\r\n", shown.own());
    for lines in [&lines, &format!("{}{key}", shown.own()), &format!("{lines}agentd-ui-key: {value}\r\n")] {
        assert_eq!(shown.ask("GET /host/this/v1/sessions", lines, b"").await.code(), "ui.signed_out", "{lines}");
    }
    assert_eq!(shown.ask("GET /ui/info", &format!("{lines}{key}"), b"").await.status, 200);
}

#[tokio::test]
async fn other_sites_and_other_names_are_refused_with_and_without_the_cookie() {
    let daemon = Daemon::start().await;
    let shown = Shown::start(&daemon, &[]);
    let visitor = shown.sign_in().await;
    let secrets: Vec<&str> = visitor
        .lines
        .lines()
        .filter(|line| line.starts_with("cookie: ") || line.starts_with("agentd-ui-key: "))
        .collect();
    let secrets = format!("{}\r\n", secrets.join("\r\n"));
    let host = format!("host: 127.0.0.1:{}\r\n", shown.port);
    for secrets in [&secrets, ""] {
        for (lines, code) in [
            ("host: evil.example\r\n".to_owned(), "ui.foreign_host"),
            (format!("host: evil.example:{}\r\n", shown.port), "ui.foreign_host"),
            (format!("host: 127.0.0.1:{}\r\n", shown.port - 1), "ui.foreign_host"),
            (format!("{host}origin: http://evil.example\r\n"), "ui.foreign_origin"),
            (format!("{host}origin: null\r\n"), "ui.foreign_origin"),
            (format!("{host}origin: http://127.0.0.1:{}\r\n", shown.port - 1), "ui.foreign_origin"),
            (format!("{host}sec-fetch-site: cross-site\r\n"), "ui.foreign_origin"),
            (format!("{host}sec-fetch-site: same-site\r\n"), "ui.foreign_origin"),
            (format!("{host}sec-fetch-site: none\r\n"), "ui.foreign_origin"),
        ] {
            for request in ["GET /host/this/v1/sessions", "GET /ui/info", "POST /ui/login", "POST /host/this/v1/prune"]
            {
                let answer = shown.ask(request, &format!("{lines}{secrets}"), b"{}").await;
                assert_eq!((answer.status, answer.code().as_str()), (403, code), "{request} {lines}");
                assert!(!answer.head.contains("access-control-"), "{}", answer.head);
            }
        }
        // Without an origin nothing is changed.
        let answer = shown.ask("POST /host/this/v1/prune", &format!("{host}{secrets}"), b"{}").await;
        assert_eq!(answer.code(), "ui.foreign_origin");
    }
    // A link of another site may lead to the document, which has no data.
    let navigation = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    assert_eq!(shown.ask("GET /", &format!("{host}{navigation}"), b"").await.status, 200);
    let localhost = format!("host: localhost:{0}\r\norigin: http://localhost:{0}\r\n{secrets}", shown.port);
    assert_eq!(shown.ask("GET /ui/info", &localhost, b"").await.status, 200);
}

#[tokio::test]
async fn the_browser_gets_a_private_file_which_is_gone_after_the_sign_in() {
    let daemon = Daemon::start().await;
    let (browser, told) = (daemon.root().join("browser"), daemon.root().join("told"));
    fs::write(&browser, format!("#!/bin/sh\necho \"$1\" >'{0}.new'; mv '{0}.new' '{0}'\n", told.display())).unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = agentctl(&daemon, &["ui", "--json"]);
    command.env("BROWSER", quoted(&browser)).env("RUNTIME_DIRECTORY", daemon.root().join("run"));
    let shown = Shown::run(&mut command);
    until("the browser is called", || told.exists()).await;
    let argument = fs::read_to_string(&told).unwrap();
    assert!(!argument.contains(&shown.token), "{argument}");
    let file = std::path::PathBuf::from(argument.trim().strip_prefix("file://").unwrap().replace("%20", " "));
    assert!(file.starts_with(daemon.root().join("run")), "{file:?}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&file).unwrap().contains(&shown.token));
    shown.sign_in().await;
    until("the file is removed", || !file.exists()).await;
}

#[tokio::test]
async fn a_signal_ends_the_page_and_removes_its_file() {
    let daemon = Daemon::start().await;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let directory = daemon.root().join(signal.as_str());
        fs::create_dir(&directory).unwrap();
        let mut command = agentctl(&daemon, &["ui", "--json"]);
        command.env("BROWSER", "/bin/true").env("RUNTIME_DIRECTORY", &directory);
        let mut shown = Shown::run(&mut command);
        until("the file is written", || fs::read_dir(&directory).unwrap().count() == 1).await;
        let visitor = shown.sign_in().await;
        let mut stream = shown.send("GET /host/this/v1/events", &visitor.lines, b"").await;
        drop(visitor);
        kill(process::pid(shown.program.id()), signal).unwrap();
        let mut status = None;
        until("the program ends", || {
            status = shown.program.try_wait().unwrap();
            status.is_some()
        })
        .await;
        assert!(status.unwrap().success(), "{signal}: {status:?}");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        let mut rest = Vec::new();
        // The stream has ended, in order or by a reset.
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
    }
}

#[tokio::test]
async fn wrong_arguments_are_refused_before_the_page_opens() {
    let daemon = Daemon::start().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, said) in [
        (&["ui", "--no-open", "--port", &port][..], "another program listens"),
        (&["ui", "--no-open", "--for", "0"], "at least 1s"),
        (&["ui", "--no-open", "--editor", "javascript:{path}"], "opens no editor"),
    ] {
        let ended = ctl(&daemon, arguments).await;
        assert!(
            ended.status == Some(2) && ended.err.contains(said) && ended.out.is_empty(),
            "{arguments:?}: {ended:?}"
        );
    }
}
