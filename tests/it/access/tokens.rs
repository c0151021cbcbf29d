//! Named tokens: where their values come from, what a reload does, and what records remain.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use agentd_api::audit::AuditList;
use agentd_api::{Code, Problem};
use futures_util::StreamExt as _;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpStream;

use super::{NAMES, Open, bearer, code, follow, over_socket, socket_of, value, write_token};
use crate::harness::ctl::end_of;
use crate::harness::within;

#[tokio::test]
async fn a_refused_call_names_the_token_its_scope_the_needed_scope_and_the_route_and_is_recorded_and_counted() {
    let open = Open::start().await;
    let said = open.with_token("reader", "POST", "/v1/sessions").await;
    assert_eq!((said.status, said.code()), (403, code(Code::ScopeTooSmall)));
    let problem: Problem = serde_json::from_str(&said.body).unwrap();
    for word in ["\"reader\"", "scope read", "needs own", "POST /v1/sessions"] {
        assert!(problem.detail.contains(word), "{word}: {problem:?}");
    }
    // A refused read that reveals nothing is recorded too. A permitted one is recorded as that of the owner is.
    assert_eq!(open.with_token("operator", "GET", "/v1/reload").await.status, 403);
    assert_eq!(open.with_token("reader", "GET", "/v1/snapshots").await.status, 200);
    let audit: AuditList = open.daemon.client.get("/v1/audit").await.expect(200);
    let of = |token: &str| -> Vec<_> {
        let by = audit
            .records
            .iter()
            .filter(|record| record.requester.token.as_ref().is_some_and(|name| name.as_str() == token));
        by.map(|record| (record.path.as_str(), record.status, record.code)).collect()
    };
    assert_eq!(
        of("reader"),
        [("/v1/sessions", 403, Some(Code::ScopeTooSmall)), ("/v1/snapshots", 200, None)],
        "{audit:?}"
    );
    assert_eq!(of("operator"), [("/v1/reload", 403, Some(Code::ScopeTooSmall))]);
    let page = open.daemon.client.get("/metrics").await;
    let text = String::from_utf8_lossy(&page.body).into_owned();
    assert!(text.contains("agentd_audit_refusals_total 2"), "{text}");
}

#[tokio::test]
async fn one_token_cannot_push_the_records_of_others_out_of_the_audit_log() {
    let open = Open::start().await;
    let address = open.address().await;
    for _ in 0..130 {
        let said = Open::tcp(&address, "POST", "/v1/reload", &bearer(&value("reader"))).await;
        assert_eq!(said.status, 403);
    }
    let audit: AuditList = open.daemon.client.get("/v1/audit").await.expect(200);
    // The limit is 120 in each minute, and a minute may end meanwhile.
    let mut minutes = std::collections::BTreeMap::<i64, usize>::new();
    for record in audit.records.iter().filter(|record| record.requester.token.is_some()) {
        *minutes.entry(record.time.as_second().div_euclid(60)).or_default() += 1;
    }
    assert!(minutes.values().all(|count| *count <= 120) && minutes.values().sum::<usize>() >= 120, "{minutes:?}");
    assert!(minutes.len() > 1 || minutes.values().eq(&[120]), "{minutes:?}");
}

#[tokio::test]
async fn agentctl_with_a_read_token_reads_and_prints_the_remedy_of_a_refusal() {
    let open = Open::start().await;
    let session = open.daemon.session(&open.daemon.scripted(&[])).await;
    let url = format!("http://{}", open.address().await);
    let agentctl = async |arguments: &[&str]| {
        let mut command = crate::harness::ctl::agentctl(&open.daemon, arguments);
        command.env_remove("AGENTD_SOCKET").env("AGENTD_URL", &url);
        command.env("AGENTD_TOKEN_FILE", open.daemon.root().join("token-reader"));
        end_of(command.spawn().unwrap()).await
    };
    let said = agentctl(&["ls"]).await;
    assert!(said.status == Some(0) && said.out.contains(session.id.as_str()), "{said:?}");
    let said = agentctl(&["stop", session.id.as_str()]).await;
    assert!(said.status != Some(0) && said.err.contains("needs operate") && said.err.contains("hint: "), "{said:?}");
}

#[tokio::test]
async fn the_scheme_has_any_case_and_a_token_that_is_repeated_or_elsewhere_does_not_count() {
    let open = Open::start().await;
    let address = open.address().await;
    let reader = value("reader");
    let ask = async |path: &str, lines: &str| Open::tcp(&address, "GET", path, lines).await.status;
    for name in ["authorization: Bearer", "Authorization: bearer", "AUTHORIZATION: BEARER ", "authorization:bEaReR"] {
        assert_eq!(ask("/v1/sessions", &format!("{name} {reader}\r\n")).await, 200, "{name}");
    }
    for lines in [
        bearer(&reader).repeat(2),
        bearer(&reader) + &bearer(&value("owner")),
        bearer(&value("owner")) + "authorization: Basic eDp5\r\n",
        format!("authorization: Basic {reader}\r\n"),
        format!("authorization: {reader}\r\n"),
        format!("authorization: Bearer {reader},{reader}\r\n"),
        format!("proxy-authorization: Bearer {reader}\r\n"),
        format!("cookie: token={reader}\r\n"),
        bearer(&reader[1..]),
        bearer(&reader.to_uppercase()),
        bearer(&format!("{reader}0")),
    ] {
        assert_eq!(ask("/v1/sessions", &lines).await, 401, "{lines:?}");
    }
    for path in ["/v1/sessions?token=", "/v1/sessions?access_token=", "/v1/sessions?authorization=Bearer%20"] {
        assert_eq!(ask(&format!("{path}{reader}"), "").await, 401, "{path}");
    }
}

#[tokio::test]
async fn a_token_file_that_cannot_be_trusted_or_holds_no_token_leaves_the_former_tokens_in_force_and_says_which() {
    let open = Open::start().await;
    for (content, mode, said) in [
        ("", 0o600, "it is empty"),
        ("\n", 0o600, "it is empty"),
        ("short", 0o600, "openssl rand"),
        ("a token with spaces in it", 0o600, "openssl rand"),
        ("two-lines-0123456789\ntwo-lines-0123456789\n", 0o600, "openssl rand"),
        (" leading-0123456789", 0o600, "openssl rand"),
        (&"x".repeat(70_000), 0o600, "longer than"),
        ("readable-by-all-0123456789", 0o644, "chmod 600"),
        ("readable-by-group-0123456789", 0o640, "chmod 600"),
        (&value("owner"), 0o600, "name equal tokens"),
        (&value("operator"), 0o600, "name equal tokens"),
    ] {
        let file = write_token(&open.daemon, "reader", content);
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let view = open.reload().await;
        let [mistake] = &view.mistakes[..] else { panic!("{content:.40}: {view:?}") };
        // Of two equal tokens the later name is the mistake.
        assert!(mistake.key.starts_with("control.tokens."), "{mistake:?}");
        assert!(mistake.message.contains(said) && mistake.message.contains("control.tokens.reader"), "{mistake:?}");
        assert!(content.len() < 8 || !mistake.message.contains(content), "{mistake:?}");
        // The former value counts, so that a mistake locks no client out.
        assert_eq!(open.with_token("reader", "GET", "/v1/sessions").await.status, 200, "{content:.40}");
    }
    write_token(&open.daemon, "reader", &format!("{}\n", value("reader")));
    assert_eq!(open.reload().await.mistakes, []);
}

async fn connected(address: &str, name: &str) -> BufReader<TcpStream> {
    follow(TcpStream::connect(address).await.unwrap(), &bearer(&value(name))).await
}

#[tokio::test]
async fn a_reload_ends_the_streams_and_websockets_of_a_removed_token_and_no_other() {
    let open = Open::start().await;
    let extra = write_token(&open.daemon, "editor", &value("editor"));
    let table = format!("[control.tokens.editor]\nfile = \"{}\"\nscope = \"own\"\n", extra.display());
    let with_editor = |config: String| config.replace("[control.read_only]", &format!("{table}[control.read_only]"));
    open.daemon.configure(with_editor);
    assert_eq!(open.reload().await.mistakes, []);
    let address = open.address().await;
    let (mut kept, mut removed) = (connected(&address, "reader").await, connected(&address, "editor").await);
    let stream = TcpStream::connect(&address).await.unwrap();
    let request = hyper::Request::get("ws://localhost/acp")
        .header("host", "localhost")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .header("authorization", format!("Bearer {}", value("editor")))
        .body(())
        .unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.expect("an upgrade");
    open.daemon.configure(|config| config.replace(&table, ""));
    assert_eq!(open.reload().await.mistakes, []);
    let mut rest = Vec::new();
    within("the stream of the removed token ends", removed.read_to_end(&mut rest)).await.unwrap();
    within("the websocket ends", async { while let Some(Ok(_)) = socket.next().await {} }).await;
    // The stream of the other token continues.
    let session = open.daemon.session(&open.daemon.scripted(&[])).await;
    let mut line = String::new();
    while !line.contains(session.id.as_str()) {
        line.clear();
        assert!(within("the next event", kept.read_line(&mut line)).await.unwrap() > 0, "the stream ended");
    }
}

#[tokio::test]
async fn a_token_is_rotated_and_its_scope_changed_by_a_reload_made_with_a_token() {
    let open = Open::start().await;
    let address = open.address().await;
    write_token(&open.daemon, "reader", "another-token-0123456789");
    // The reload that replaces the very token with which it is made is answered.
    write_token(&open.daemon, "owner", "another-owner-0123456789");
    let said = Open::tcp(&address, "POST", "/v1/reload", &bearer(&value("owner"))).await;
    assert_eq!(said.status, 200, "{said:?}");
    let new = "another-token-0123456789".to_owned();
    for (token, status) in [(value("reader"), 401), (value("owner"), 401), (new, 200)] {
        assert_eq!(Open::tcp(&address, "GET", "/v1/sessions", &bearer(&token)).await.status, status, "{token}");
    }
    open.daemon.configure(|config| config.replace("scope = \"operate\"", "scope = \"read\""));
    let said = Open::tcp(&address, "POST", "/v1/reload", &bearer("another-owner-0123456789")).await;
    assert_eq!(said.status, 200, "{said:?}");
    let said = Open::tcp(&address, "POST", "/v1/sessions/x/cancel", &bearer(&value("operator"))).await;
    assert_eq!(said.code(), code(Code::ScopeTooSmall));
}

#[tokio::test]
async fn tcp_is_open_with_named_tokens_alone_and_nobody_is_the_owner_there() {
    let mut daemon = Open::prepare();
    let line = format!("token = {{ file = \"{}\" }}\n", daemon.root().join("token-owner").display());
    daemon.configure(|config| config.replace(&line, ""));
    daemon.run().await;
    let open = Open { daemon };
    for (name, _) in NAMES {
        assert_eq!(open.with_token(name, "GET", "/v1/sessions").await.status, 200, "{name}");
        assert_eq!(open.with_token(name, "POST", "/v1/reload").await.status, 403, "{name}");
    }
    assert_eq!(open.with_token("owner", "GET", "/v1/sessions").await.status, 401);
    let version: Value =
        serde_json::from_str(&over_socket(&socket_of(&open.daemon), "GET", "/v1/version").await.body).unwrap();
    assert_eq!(version["read_only_socket"], socket_of(&open.daemon).display().to_string());
}

#[tokio::test]
async fn a_reader_sees_no_value_of_an_environment_and_no_settings() {
    let open = Open::start().await;
    open.daemon.configure(|config| config + "\n[plugins.snapshot]\nsettings = { drop = [\"PRIVATE_*\"] }\n");
    open.reload().await;
    let session = open.daemon.session(&open.daemon.scripted(&[])).await;
    for path in [session.path("/environment?values=true"), session.path("/environment/diff"), "/v1/secrets".to_owned()]
    {
        for name in ["reader", "operator"] {
            assert_eq!(open.with_token(name, "GET", &path).await.code(), code(Code::ScopeTooSmall), "{name} {path}");
        }
    }
    let of = async |name: &str| {
        let said = open.with_token(name, "GET", "/v1/plugins").await;
        let list: Value = serde_json::from_str(&said.body).unwrap();
        let settings = |plugin: &Value| plugin["settings"].as_object().is_some_and(|settings| !settings.is_empty());
        list["plugins"].as_array().unwrap().iter().any(settings)
    };
    assert!(of("owner").await && !of("reader").await && !of("operator").await);
}
