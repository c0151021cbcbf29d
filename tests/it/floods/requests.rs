//! Floods of heads and bodies, and requests that are cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentd_api::session::WholeList;
use agentd_api::{Code, Problem, Route};

use super::*;

/// Number of hostile requests of each kind.
const TIMES: usize = 120;
const LONG: usize = 512 << 10;
/// Memory in KiB of the requests that the daemon reads at once: a head is at most 64 KiB, which hyper holds twice.
const OF_HEADS: u64 = AT_ONCE as u64 * 128;
/// Memory in KiB of bodies: at most 256 KiB each, in a buffer that doubles.
const OF_BODIES: u64 = AT_ONCE as u64 * 512;

/// Writes a request and reads the answer. The daemon may answer and close before it has read everything.
async fn exchange(socket: &Path, request: &[u8]) -> String {
    let mut stream = connect(socket).await;
    let _ = stream.write_all(request).await;
    let _ = stream.shutdown().await;
    rest(&mut stream).await
}

/// Returns the status of an answer, or 0 without an answer.
fn status(answer: &str) -> u16 {
    answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn floods_of_heads_are_refused_and_another_client_is_served() {
    let mut target = Target::with("").await;
    let line = "GET /v1/sessions HTTP/1.1\r\nhost: agentd\r\n";
    let heads: Vec<(&str, String)> = vec![
        ("one long header", format!("{line}a: {}\r\n\r\n", "x".repeat(LONG))),
        ("a header that does not end", format!("{line}a: {}", "x".repeat(LONG))),
        ("many headers", format!("{line}{}\r\n", "a: b\r\n".repeat(LONG / 6))),
        ("many headers with names of their own", {
            let headers: Vec<String> = (0..LONG / 12).map(|number| format!("h{number}: b\r\n")).collect();
            format!("{line}{}\r\n", headers.concat())
        }),
        ("a long name", format!("{line}{}: b\r\n\r\n", "x".repeat(LONG))),
        ("a long path", format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(LONG))),
        ("a long query", format!("GET /v1/sessions?{} HTTP/1.1\r\n\r\n", "label=a&".repeat(LONG / 8))),
        ("a long method", format!("{} / HTTP/1.1\r\n\r\n", "X".repeat(LONG))),
        ("folded lines", format!("{line}a: b\r\n{}\r\n", " c\r\n".repeat(LONG / 4))),
        ("empty lines", "\r\n".repeat(LONG / 2)),
    ];
    let (socket, heads) = (target.socket(), Arc::new(heads));
    let attack = crowd(TIMES * heads.len(), |number| {
        let (socket, heads) = (socket.clone(), Arc::clone(&heads));
        async move {
            let (what, head) = &heads[number % heads.len()];
            let answer = exchange(&socket, head.as_bytes()).await;
            // 503: the end of an earlier connection was not noticed yet.
            assert!(matches!(status(&answer), 0 | 400 | 414 | 431 | 503), "{what}: {answer}");
        }
    });
    target.holds("heads", OF_HEADS, attack).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn a_body_that_is_announced_too_large_is_refused_before_it_is_sent() {
    let mut target = Target::with("").await;
    let socket = target.socket();
    let attack = crowd(TIMES * 5, |number| {
        let socket = socket.clone();
        async move {
            let length = [4_194_305, 5 << 20, 1 << 30, u64::MAX / 2, u64::MAX - 2][number % 5];
            let expect = if number % 2 == 0 { "expect: 100-continue\r\n" } else { "" };
            let head =
                format!("POST /v1/sessions HTTP/1.1\r\nhost: agentd\r\n{expect}content-length: {length}\r\n\r\n");
            // The connection stays open and the body does not come. A daemon that read it would answer 408.
            let mut stream = connect(&socket).await;
            let _ = stream.write_all(head.as_bytes()).await;
            let answer = rest(&mut stream).await;
            if status(&answer) == 503 {
                return;
            }
            assert_eq!(status(&answer), 413, "{length}: {answer}");
            let problem: Problem = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
            assert_eq!((problem.code, problem.hint.is_some()), (Code::BodyTooLarge, true), "{problem:?}");
        }
    });
    target.holds("announced bodies", OF_HEADS, attack).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn bodies_without_an_end_are_cut_off_at_the_limit() {
    /// More than the limit, with what the socket and hyper take beyond it.
    const MOST: usize = (256 << 10) + (1 << 20);
    let mut target = Target::with("[limits]\nbody = \"256K\"\nbody_time = \"3s\"").await;
    let socket = target.socket();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let pieces: Vec<(&str, &str, String)> = vec![
        ("chunks to a call", "POST /v1/sessions", chunk.clone()),
        ("chunks of one byte", "POST /v1/sessions", "1\r\nx\r\n".repeat(10_000)),
        ("chunks to a call without a body", "GET /v1/version", chunk.clone()),
        ("chunks to a path that is not there", "POST /v1/nothing", chunk),
        ("an extension of a chunk", "POST /v1/sessions", format!("1;{}", "x".repeat(0x10000))),
        ("trailers", "POST /v1/sessions", format!("0\r\n{}", "a: b\r\n".repeat(10_000))),
        ("a chunk's length", "POST /v1/sessions", "0".repeat(0x10000)),
    ];
    let pieces: Arc<Vec<_>> =
        Arc::new(pieces.into_iter().map(|(what, line, piece)| (what, line.to_owned(), piece)).collect());
    let attack = crowd(TIMES, |number| {
        let (socket, pieces) = (socket.clone(), Arc::clone(&pieces));
        async move {
            let (what, line, piece) = &pieces[number % pieces.len()];
            let mut stream = connect(&socket).await;
            let head = format!("{line} HTTP/1.1\r\nhost: agentd\r\ntransfer-encoding: chunked\r\n\r\n");
            let mut written = 0;
            let mut is_open = stream.write_all(head.as_bytes()).await.is_ok();
            while is_open {
                let writing = within("the end of an endless body", stream.write_all(piece.as_bytes()));
                is_open = writing.await.is_ok();
                written += piece.len();
                // Framing of chunks of one byte is five times their length. The zeros of a chunk's length are read
                // until the time limit, and none is kept.
                let is_kept = *what != "a chunk's length";
                assert!(!is_kept || written < 6 * MOST, "{what}: the daemon reads on after {written} bytes");
            }
            let answer = rest(&mut stream).await;
            assert!(matches!(status(&answer), 0 | 200 | 400 | 404 | 408 | 413 | 503), "{what}: {answer}");
        }
    });
    target.holds("endless bodies", OF_BODIES, attack).await;
}

/// Returns a typical request of a route about this session.
fn typical(route: Route, session: &str) -> String {
    let mut path = route.path().replace("{session}", session);
    while let (Some(from), Some(to)) = (path.find('{'), path.find('}')) {
        path.replace_range(from..=to, "x");
    }
    let line = format!("{} {path} HTTP/1.1\r\nhost: agentd\r\n", route.method().as_str());
    match route.body() {
        None => format!("{line}\r\n"),
        Some(_) => format!("{line}content-type: application/json\r\ncontent-length: 17\r\n\r\n{{\"reason\": \"cut\"}}"),
    }
}

/// Returns everything that calls change: sessions with their states, schedules, and the files of the configuration.
async fn state(daemon: &Daemon) -> (Vec<(String, u64, String)>, Vec<u8>, BTreeMap<PathBuf, Vec<u8>>) {
    let list: WholeList = daemon.client.get("/v1/sessions?fields=*").await.expect(200);
    let sessions = list
        .sessions
        .iter()
        .map(|view| (view.id.to_string(), view.generation, format!("{:?} {:?}", view.status.phase, view.spec)));
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(daemon.root().join("config")).unwrap() {
        let path = entry.unwrap().path();
        files.insert(path.clone(), std::fs::read(&path).unwrap_or_default());
    }
    (sessions.collect(), daemon.client.get("/v1/schedules").await.body.to_vec(), files)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn a_request_of_any_route_cut_at_any_byte_changes_nothing_and_is_answered_with_no_success() {
    let mut target = Target::with("").await;
    let session = target.daemon.client.get("/v1/sessions").await.json::<serde_json::Value>()["sessions"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let before = state(&target.daemon).await;
    let mut cuts: Vec<(String, usize)> = Vec::new();
    for route in Route::ALL {
        let request = typical(*route, &session);
        cuts.extend((0..request.len()).map(|cut| (request.clone(), cut)));
    }
    assert!(cuts.len() > 5000, "only {} cuts", cuts.len());
    let (socket, cuts) = (target.socket(), Arc::new(cuts));
    let attack = crowd(cuts.len(), |number| {
        let (socket, cuts) = (socket.clone(), Arc::clone(&cuts));
        async move {
            let (request, cut) = &cuts[number];
            let part = &request.as_bytes()[..*cut];
            if number % 2 == 0 {
                let mut stream = connect(&socket).await;
                let _ = stream.write_all(part).await;
                return;
            }
            let answer = exchange(&socket, part).await;
            let status = status(&answer);
            assert!(status == 0 || status >= 400, "{:?} was answered: {answer}", String::from_utf8_lossy(part));
        }
    });
    target.holds("cut requests", OF_HEADS, attack).await;
    assert_eq!(state(&target.daemon).await, before, "something changed");
}
