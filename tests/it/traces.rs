//! Traces: what a collector of OpenTelemetry receives of requests and launches, and what a collector that fails
//! cannot disturb.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::session::{Phase, SessionView};
use agentd_api::{Body, Event, Problem};
use serde_json::Value;

use crate::harness::{Daemon, Session, within};

/// The trace id of [`PARENT`].
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A span as the collector received it.
#[derive(Debug, Clone)]
struct Span {
    name: String,
    trace: String,
    id: String,
    parent: String,
    attributes: BTreeMap<String, String>,
    failed: Option<String>,
    service: String,
}

impl Span {
    fn of(span: &Value, service: &str) -> Self {
        let text = |key: &str| span[key].as_str().unwrap_or_default().to_owned();
        let attributes = span["attributes"].as_array().into_iter().flatten().map(|attribute| {
            let value = attribute["value"].as_object().and_then(|value| value.values().next()).expect("a value");
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (attribute["key"].as_str().expect("a key").to_owned(), value)
        });
        // 2 is an error (opentelemetry/proto/trace/v1/trace.proto, Status).
        let failed = span["status"]["code"] == 2;
        let message = span["status"]["message"].as_str().unwrap_or_default();
        Self {
            name: text("name"),
            trace: text("traceId"),
            id: text("spanId"),
            parent: text("parentSpanId"),
            attributes: attributes.collect(),
            failed: failed.then(|| message.to_owned()),
            service: service.to_owned(),
        }
    }
}

/// A collector that keeps all spans.
struct Collector {
    address: String,
    spans: Arc<Mutex<Vec<Span>>>,
}

/// Reads one request, and answers that its spans are taken.
fn take(stream: TcpStream) -> Vec<Span> {
    let mut stream = BufReader::new(stream);
    let (mut length, mut first) = (0, String::new());
    stream.read_line(&mut first).unwrap();
    assert_eq!(first, "POST /v1/traces HTTP/1.1\r\n");
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let answer =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    stream.get_mut().write_all(answer.as_bytes()).unwrap();
    let body: Value = serde_json::from_slice(&body).expect("the body is JSON");
    let mut spans = Vec::new();
    for resource in body["resourceSpans"].as_array().expect("spans") {
        let of_service = |attribute: &&Value| attribute["key"] == "service.name";
        let attributes = resource["resource"]["attributes"].as_array().expect("attributes");
        let service =
            attributes.iter().find(of_service).expect("a name")["value"]["stringValue"].as_str().expect("text");
        for scope in resource["scopeSpans"].as_array().expect("scopes") {
            spans.extend(scope["spans"].as_array().expect("spans").iter().map(|span| Span::of(span, service)));
        }
    }
    spans
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let kept = Arc::clone(&spans);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let taken = take(stream.unwrap());
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
            }
        });
        Self { address, spans }
    }

    fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a span that fits.
    async fn span(&self, wanted: &str, fits: impl Fn(&Span) -> bool) -> Span {
        within(wanted, async {
            loop {
                if let Some(span) = self.spans().into_iter().find(&fits) {
                    return span;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    }

    /// Returns the names of the spans below a span, sorted.
    fn below(&self, parent: &Span) -> Vec<String> {
        let mut names: Vec<String> =
            self.spans().into_iter().filter(|span| span.parent == parent.id).map(|span| span.name).collect();
        names.sort();
        names
    }
}

fn configure(daemon: &Daemon, address: &str) {
    daemon.configure(|config| format!("{config}\n[traces]\nendpoint = \"{address}\"\n"));
}

fn is_launch(span: &Span, session: &str, number: &str) -> bool {
    span.name == "launch"
        && span.attributes.get("agentd.session").is_some_and(|id| id == session)
        && span.attributes.get("agentd.launch").is_some_and(|launch| launch == number)
}

/// Sends a request with the trace context [`PARENT`], and returns the body of the answer.
async fn ask_within_trace(daemon: &Daemon, method: &str, path: &str) -> Value {
    let headers = format!("host: agentd\r\ntraceparent: {PARENT}\r\ncontent-length: 0\r\nconnection: close\r\n");
    let request = format!("{method} {path} HTTP/1.1\r\n{headers}\r\n");
    let answer = within("the answer", daemon.client.raw(request.as_bytes())).await;
    let answer = String::from_utf8(answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[tokio::test]
async fn a_launch_is_a_trace_with_its_steps_and_continues_that_of_its_request() {
    let collector = Collector::start();
    let mut daemon = Daemon::prepare();
    configure(&daemon, &collector.address);
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let id = session.id.to_string();
    let launch = collector.span("the first launch", |span| is_launch(span, &id, "1")).await;
    assert_eq!(launch.service, "agentd");
    assert_eq!(launch.attributes["agentd.reason"], "create");
    assert_eq!(launch.failed, None);
    let created = collector.span("the request", |span| span.name == "POST /v1/sessions").await;
    assert_eq!((&launch.trace, &launch.parent), (&created.trace, &created.id));
    let steps = ["agent", "conversation", "environment", "plugins", "prerequisites", "prerequisites", "workspace"];
    assert_eq!(collector.below(&launch), steps);
    let environment = collector.span("the environment", |span| span.name == "environment").await;
    let providers = collector.below(&environment);
    assert!(!providers.is_empty() && providers.iter().all(|name| name == "provider"), "{providers:?}");

    session.stop().await;
    let path = format!("/v1/sessions/{id}/resume?wait=60");
    ask_within_trace(&daemon, "POST", &path).await;
    let again = collector.span("the second launch", |span| is_launch(span, &id, "2")).await;
    assert_eq!((&*again.trace, &*again.attributes["agentd.reason"]), (TRACE, "resume"));
    // A span of a trace is sent once.
    let mut ids: Vec<String> = collector.spans().into_iter().map(|span| span.id).collect();
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[tokio::test]
async fn a_failed_launch_says_why_and_a_problem_names_its_trace() {
    let collector = Collector::start();
    let mut daemon = Daemon::prepare();
    configure(&daemon, &collector.address);
    daemon.run().await;
    let refused = daemon.scripted(&["--refuse", "initialize", "-32603", "as you asked"]);
    let failed: SessionView = daemon.client.post("/v1/sessions?wait=60", &refused).await.expect(202);
    assert_eq!(failed.status.phase, Phase::Failed);
    let id = failed.id.to_string();
    let launch = collector.span("the launch", |span| is_launch(span, &id, "1")).await;
    assert!(launch.failed.as_ref().is_some_and(|message| message.contains("as you asked")), "{launch:?}");

    let problem: Problem = daemon.client.get("/v1/sessions/nobody").await.problem();
    let trace = problem.particulars.trace_id.expect("the problem has a trace");
    let request = collector.span("the request", |span| span.trace == trace).await;
    assert_eq!(
        (&*request.name, &*request.attributes["http.response.status_code"]),
        ("GET /v1/sessions/{session}", "404")
    );
    let problem = ask_within_trace(&daemon, "GET", "/v1/sessions/nobody").await;
    assert_eq!(problem["trace_id"], TRACE);
    // Requests that watch the daemon are no traces.
    daemon.client.get("/healthz").await;
    daemon.client.get("/v1/version").await;
    collector.span("a later request", |span| span.name == "GET /v1/version").await;
    assert!(collector.spans().iter().all(|span| !span.name.ends_with("/healthz")));
}

#[tokio::test]
async fn traces_are_off_by_default_and_a_reload_turns_them_on_and_off() {
    let collector = Collector::start();
    let mut daemon = Daemon::prepare();
    daemon.run().await;
    let before = daemon.client.get("/v1/sessions/nobody").await.problem();
    assert_eq!(before.particulars.trace_id, None);
    let session = daemon.session(&daemon.scripted(&[])).await;
    let has_context =
        |event: &Event| matches!(&event.body, Body::LaunchStarted(started) if started.trace_parent.is_some());
    assert!(!session.journal().iter().any(has_context));
    let mut without = String::new();
    daemon.configure(|config| {
        without.clone_from(&config);
        config
    });
    configure(&daemon, &collector.address);
    daemon.client.call("POST", "/v1/reload", "").await.expect::<Value>(200);
    daemon.client.get("/v1/version").await;
    collector.span("a request", |span| span.name == "GET /v1/version").await;
    daemon.configure(|_| without.clone());
    daemon.client.call("POST", "/v1/reload", "").await.expect::<Value>(200);
    let count = collector.spans().len();
    assert!(count > 0);
    let after = daemon.client.get("/v1/sessions/nobody").await.problem();
    assert_eq!(after.particulars.trace_id, None);
}

/// Runs one session with a collector at this address, and ends the daemon. Returns the time of the end.
async fn lives_with(address: &str) -> Duration {
    let mut daemon = Daemon::prepare();
    configure(&daemon, address);
    daemon.run().await;
    let session: Session = daemon.session(&daemon.scripted(&[])).await;
    session.turn("say one").await;
    let begun = Instant::now();
    daemon.terminate().await;
    begun.elapsed()
}

#[tokio::test]
async fn a_collector_that_is_gone_hangs_or_answers_garbage_disturbs_nothing() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    lives_with(&format!("http://{closed}")).await;
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let took = lives_with(&format!("http://{}", hanging.local_addr().unwrap())).await;
    assert!(took < Duration::from_secs(20), "{took:?}");
    let garbage = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = garbage.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in garbage.incoming() {
            // The reader may be gone.
            let _ = stream.unwrap().write_all(&vec![0xff; 100_000]);
        }
    });
    lives_with(&format!("http://{address}")).await;
}
