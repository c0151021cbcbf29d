//! The control endpoint refuses what it must, in the form it promised, and nothing changes by it.

use agentd_api::problem::Problem;
use agentd_api::session::{SessionView, WholeList};
use agentd_api::{Code, Route};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::harness::Daemon;

/// Returns the daemon's state: its answer to `GET /v1/sessions`, and the paths in its directory of sessions.
async fn everything(daemon: &Daemon) -> (WholeList, Vec<std::path::PathBuf>) {
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    let sessions = std::fs::read_dir(daemon.state().join("sessions")).expect("the state directory is there");
    let mut files: Vec<_> = sessions.map(|entry| entry.expect("it can be listed").path()).collect();
    files.sort();
    (list, files)
}

#[tokio::test]
async fn bad_input_is_answered_with_a_problem_that_has_a_code_and_a_hint_and_changes_nothing() {
    let daemon = Daemon::start().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let id = session.id.as_str();
    let work = daemon.work();
    let spec = |change: serde_json::Value| {
        let mut spec = json!({ "directory": work, "agent": "scripted" });
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        spec.to_string()
    };
    let file = daemon.root().join("config/agentd.toml");
    let big = format!("{{\"directory\":\"{}\"}}", "x".repeat(5 << 20));
    let prompt = json!({ "prompt": "say no" }).to_string();
    let table: Vec<(&str, String, String, Code)> = vec![
        ("POST", "/v1/sessions".into(), spec(json!({ "agent": "nobody" })), Code::NoSuchAgent),
        ("POST", "/v1/sessions".into(), spec(json!({ "agent": "../x" })), Code::MalformedRequest),
        ("POST", "/v1/sessions".into(), spec(json!({ "name": "Not A Name" })), Code::MalformedRequest),
        ("POST", "/v1/sessions".into(), spec(json!({ "directory": "/no/such/directory" })), Code::NoSuchDirectory),
        ("POST", "/v1/sessions".into(), spec(json!({ "directory": file })), Code::NoSuchDirectory),
        ("POST", "/v1/sessions".into(), spec(json!({ "directory": "relative" })), Code::NoSuchDirectory),
        ("POST", "/v1/sessions".into(), spec(json!({ "command": ["/bin/true"] })), Code::InvalidRequest),
        ("POST", "/v1/sessions".into(), spec(json!({ "agent": null, "command": [] })), Code::InvalidRequest),
        ("POST", "/v1/sessions".into(), spec(json!({ "no_such_field": 1 })), Code::MalformedRequest),
        ("POST", "/v1/sessions".into(), spec(json!({ "limits": { "memory": "2GB" } })), Code::MalformedRequest),
        ("POST", "/v1/sessions".into(), spec(json!({ "limits": { "idle_seconds": "soon" } })), Code::MalformedRequest),
        ("POST", "/v1/sessions?wait=soon".into(), spec(json!({})), Code::InvalidRequest),
        ("POST", "/v1/sessions?wait=11m".into(), spec(json!({})), Code::InvalidRequest),
        ("POST", "/v1/sessions?wait_for_prerequisites=-1".into(), spec(json!({})), Code::InvalidRequest),
        ("POST", "/v1/sessions?wait_for_prerequisites=200h".into(), spec(json!({})), Code::InvalidRequest),
        ("POST", "/v1/sessions".into(), "{ \"directory\": ".into(), Code::MalformedRequest),
        ("POST", "/v1/sessions".into(), "[]".into(), Code::MalformedRequest),
        ("POST", "/v1/sessions".into(), String::new(), Code::MalformedRequest),
        ("POST", "/v1/sessions".into(), "\u{0}".into(), Code::MalformedRequest),
        ("POST", "/v1/sessions".into(), big, Code::BodyTooLarge),
        ("GET", "/v1/sessions/..%2fx".into(), String::new(), Code::InvalidId),
        ("GET", "/v1/sessions/%2e%2e".into(), String::new(), Code::InvalidId),
        ("GET", format!("/v1/sessions/{}", "a".repeat(300)), String::new(), Code::InvalidId),
        ("DELETE", "/v1/sessions/UPPER".into(), String::new(), Code::InvalidId),
        ("POST", "/v1/sessions/a%00b/prompt".into(), prompt.clone(), Code::InvalidId),
        ("GET", "/v1/sessions/nobody".into(), String::new(), Code::NoSuchSession),
        ("POST", "/v1/sessions/nobody/prompt".into(), prompt, Code::NoSuchSession),
        ("POST", "/v1/sessions/nobody/stop".into(), String::new(), Code::NoSuchSession),
        ("GET", "/v1/sessions/nobody/events".into(), String::new(), Code::NoSuchSession),
        ("GET", "/v1/sessions/nobody/environment".into(), String::new(), Code::NoSuchSession),
        ("POST", format!("/v1/sessions/{id}/prompt"), "{}".into(), Code::MalformedRequest),
        ("POST", format!("/v1/sessions/{id}/permissions/p1"), "\"allow\"".into(), Code::NoSuchPermission),
        ("DELETE", format!("/v1/sessions/{id}/turns/t9"), String::new(), Code::NoSuchTurn),
        ("GET", format!("/v1/sessions/{id}/events?after=minus-one"), String::new(), Code::InvalidRequest),
        ("GET", format!("/v1/sessions/{id}/events?follow=maybe"), String::new(), Code::InvalidRequest),
        ("GET", format!("/v1/sessions/{id}?values"), String::new(), Code::InvalidRequest),
        ("GET", "/v1/audit?limit=1&limit=1".into(), String::new(), Code::InvalidRequest),
        ("GET", "/v1/scripts?directory=%ff".into(), String::new(), Code::InvalidRequest),
        ("DELETE", format!("/v1/sessions/{id}?forced"), String::new(), Code::InvalidRequest),
        ("POST", format!("/v1/sessions/{id}/stop?waiting=1"), String::new(), Code::InvalidRequest),
        ("GET", "/".into(), String::new(), Code::NoSuchPath),
        ("GET", "/v2/sessions".into(), String::new(), Code::NoSuchPath),
        ("PUT", "/v1/sessions".into(), String::new(), Code::MethodNotAllowed),
        ("DELETE", "/healthz".into(), String::new(), Code::MethodNotAllowed),
        ("GET", format!("/v1/sessions/{id}/prompt"), String::new(), Code::MethodNotAllowed),
    ];
    let before = everything(&daemon).await;
    let mut wrong = Vec::new();
    for (method, path, body, code) in table {
        let response = daemon.client.call(method, &path, body.clone()).await;
        let shown = format!("{method} {path} {}", body.chars().take(80).collect::<String>());
        let problem = match serde_json::from_slice::<Problem>(&response.body) {
            Ok(problem) if response.content_type == "application/problem+json" => problem,
            _ => {
                wrong.push(format!("{shown}: not a problem document: {response:?}"));
                continue;
            }
        };
        if problem.code != code || problem.status != code.status() || response.status.as_u16() != problem.status {
            wrong.push(format!("{shown}: {} expected: {problem:?}", code.as_str()));
        } else if problem.hint.as_deref().unwrap_or_default().is_empty() || problem.detail.is_empty() {
            wrong.push(format!("{shown}: no hint or no detail: {problem:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(everything(&daemon).await, before, "something changed");
}

#[tokio::test]
async fn each_route_refuses_unknown_and_repeated_query_keys_and_names_the_allowed_ones() {
    let daemon = Daemon::start().await;
    for route in Route::ALL {
        let path = route.path().replace(['{', '}'], "");
        let repeated = route.keys().first().map(|key| format!("{0}&{0}", key.name));
        for query in repeated.into_iter().chain(["no_such_key=1".to_owned()]) {
            let answer = daemon.client.call(route.method().as_str(), &format!("{path}?{query}"), "").await;
            let problem = answer.problem();
            let (detail, hint) = (&problem.detail, problem.hint.clone().unwrap_or_default());
            assert_eq!(problem.code, Code::InvalidRequest, "{route}?{query}: {problem:?}");
            assert!(detail.contains(&route.to_string()), "{route}?{query}: {detail}");
            let key = query.split(['=', '&']).next().expect("the query has a key");
            assert!(detail.contains(&format!("{key:?}")), "{route}?{query}: {detail}");
            assert!(route.keys().iter().all(|key| hint.contains(key.name)), "{route}?{query}: {hint}");
        }
    }
}

#[tokio::test]
async fn times_and_sizes_of_a_request_are_numbers_or_have_units() {
    let daemon = Daemon::start().await;
    let mut spec = serde_json::to_value(daemon.scripted(&[])).unwrap();
    for (wait, idle, seconds) in [("60", json!(600), 600), ("1m", json!("10m"), 600), (".5", json!("1h30m"), 5400)] {
        spec["limits"] = json!({ "idle_seconds": idle, "output_rate": "1.5M" });
        let path = format!("/v1/sessions?wait={wait}&wait_for_prerequisites={wait}");
        let view: SessionView = daemon.client.post(&path, &spec).await.expect(202);
        let limits = view.spec.limits;
        assert_eq!((limits.idle_seconds, limits.output_rate), (Some(seconds), Some(3 << 19)), "{idle}");
    }
}

#[tokio::test]
async fn a_path_that_climbs_out_is_no_session() {
    let daemon = Daemon::start().await;
    for path in ["/v1/sessions/../x", "/v1/sessions/../../etc/passwd", "/v1/sessions//"] {
        let answer =
            daemon.client.raw(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes()).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        assert!(answer.contains("application/problem+json"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn what_is_not_http_is_refused_and_the_daemon_serves_on() {
    let daemon = Daemon::start().await;
    let garbage: [&[u8]; 5] = [
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nno-colon\r\n\r\n",
        b"POST /v1/sessions HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    ];
    for bytes in garbage {
        // The daemon would wait for the rest of an incomplete request, so the client closes its side.
        let mut request = bytes.to_vec();
        request.extend_from_slice(b"\r\n\r\n");
        let answer = daemon.client.raw(&request).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert_eq!(daemon.client.get("/healthz").await.status, 200);
    }
    let long = format!("GET /healthz HTTP/1.1\r\nhost: a\r\nlong: {}\r\n\r\n", "x".repeat(400_000));
    let answer = daemon.client.raw(long.as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(daemon.client.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_request_cut_anywhere_creates_nothing() {
    let mut daemon = Daemon::prepare();
    // The test does not wait for answers, so it needs more connections than the default limit of a caller.
    daemon.configure(|config| format!("{config}\n[limits]\nconnections_per_caller = 512\n"));
    daemon.run().await;
    let body = json!({ "directory": daemon.work(), "agent": "scripted" }).to_string();
    let whole = format!("POST /v1/sessions HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for cut in 0..whole.len() {
        use tokio::io::AsyncWriteExt as _;
        let mut stream = tokio::net::UnixStream::connect(daemon.client.socket()).await.unwrap();
        stream.write_all(&whole.as_bytes()[..cut]).await.unwrap();
        drop(stream);
    }
    assert_eq!(everything(&daemon).await.1, Vec::<std::path::PathBuf>::new());
}

/// Clients like Python's http.client send the head and the body apart, and read the answer after both.
#[tokio::test]
async fn a_body_that_was_not_needed_for_its_answer_can_be_sent_to_its_end() {
    let daemon = Daemon::start().await;
    let length = 5 << 20;
    let requests = [
        ("POST", "/v1/reload?dry_run=true", 2, "200"),
        ("POST", "/v1/sessions", length, "413"),
        ("POST", "/v1/sessions/none/prompt", length, "404"),
        ("POST", "/v1/nowhere", length, "404"),
        ("PUT", "/v1/sessions", length, "405"),
    ];
    for (method, path, length, status) in requests {
        let mut stream = UnixStream::connect(daemon.client.socket()).await.expect("it listens");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        // A second request on the same connection shows that the daemon has not closed it.
        for _ in 0..2 {
            stream.write_all(head.as_bytes()).await.expect("it is open");
            // The body begins after the answer has begun.
            stream.readable().await.expect("it is open");
            let sent = stream.write_all(&vec![b' '; length]).await;
            sent.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
            let mut answer = Vec::new();
            while !answer.ends_with(b"}") && !answer.ends_with(b"}\n") {
                assert_ne!(stream.read_buf(&mut answer).await.expect("it is open"), 0, "closed");
            }
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
        }
    }
}

/// The rest of a body is read for a limited time, and up to a limited size.
#[tokio::test]
async fn a_body_that_does_not_end_does_not_keep_its_connection() {
    let daemon = Daemon::start().await;
    let mut stream = UnixStream::connect(daemon.client.socket()).await.expect("it listens");
    let head = "POST /v1/nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("it is open");
    let mut answer = Vec::new();
    let end = tokio::time::timeout(crate::harness::LIMIT, stream.read_to_end(&mut answer)).await;
    end.expect("the daemon closes the connection").expect("the answer precedes the end");
    assert!(answer.starts_with(b"HTTP/1.1 404 "), "{}", String::from_utf8_lossy(&answer));

    for (what, chunk) in
        [("chunks", format!("10000\r\n{}\r\n", "x".repeat(0x10000))), ("bytes", "1\r\nx\r\n".repeat(1000))]
    {
        let mut stream = UnixStream::connect(daemon.client.socket()).await.expect("it listens");
        let head = "GET /v1/version HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await.expect("it is open");
        let mut sent = 0;
        while stream.write_all(chunk.as_bytes()).await.is_ok() {
            sent += chunk.len();
            assert!(sent < 8 << 20, "{what}: the daemon reads on after {sent} bytes");
        }
    }
}

#[tokio::test]
async fn the_socket_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let daemon = Daemon::start().await;
    let mode = std::fs::metadata(daemon.client.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
}

#[tokio::test]
async fn agents_and_version_are_told() {
    let daemon = Daemon::start().await;
    let agents: serde_json::Value = daemon.client.get("/v1/agents").await.expect(200);
    let names: Vec<&str> =
        agents["agents"].as_array().unwrap().iter().filter_map(|agent| agent["name"].as_str()).collect();
    assert!(names.contains(&"scripted") && names.contains(&"demo"), "{agents}");
    let version: serde_json::Value = daemon.client.get("/v1/version").await.expect(200);
    assert_eq!(version["pid"], daemon.pid());
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["state_directory"], daemon.state().display().to_string());
}

#[tokio::test]
async fn a_tilde_in_front_of_an_agents_program_is_the_home_of_its_sessions_and_not_that_of_agentd() {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().expect("the tests run as a known user");
    let mut daemon = Daemon::prepare();
    let line = format!("home = \"{}\"\n", daemon.home().display());
    daemon.configure(|config| config.replace(&line, "") + "\n[agents.mine]\ncommand = [\"~/bin/mine\"]\n");
    daemon.set_environment([("PATH", "/usr/bin:/bin".to_owned()), ("HOME", "/nowhere".to_owned())]);
    daemon.run().await;
    let agents: serde_json::Value = daemon.client.get("/v1/agents").await.expect(200);
    let mine = agents["agents"].as_array().unwrap().iter().find(|agent| agent["name"] == "mine").unwrap();
    assert_eq!(mine["command"][0], user.dir.join("bin/mine").display().to_string(), "{agents}");
}
