//! Calls of a manipulated agent from inside its session: requests on sockets, each by several kinds of process.
//!
//! The command `attack TABLE DIRECTORY ROUNDS` starts a process for each kind and round, and waits for them. Each
//! process waits for `DIRECTORY/ROUND.go`, makes every call of the table, and writes the results to
//! `DIRECTORY/ROUND-KIND.json`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::setsid;
use serde_json::{Map, Value, json};

use crate::processes::myself;

/// Kinds of processes: with the session's mark, without the mark, in its own process session, and with its parent
/// gone.
const KINDS: [&str; 4] = ["marked", "unmarked", "apart", "orphan"];
/// Time limit of a caller's wait for the test.
const PATIENCE: Duration = Duration::from_mins(3);

pub(crate) fn attack(table: &str, directory: &str, rounds: &str) {
    let rounds: usize = rounds.parse().expect("a number of rounds");
    let all =
        (1..=rounds).flat_map(|round| KINDS.map(|kind| start(&["call", table, directory, &round.to_string(), kind])));
    for mut child in all.collect::<Vec<_>>() {
        child.wait().expect("a child can be waited for");
    }
}

fn start(arguments: &[&str]) -> Child {
    let mut command = myself();
    if arguments.contains(&"unmarked") || arguments.contains(&"orphan") {
        command.env_remove("AGENTD_SESSION");
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a caller can be started")
}

/// Makes one caller's calls.
pub(crate) fn call(table: &str, directory: &str, round: &str, kind: &str) {
    match kind {
        "apart" => drop(setsid().expect("a fresh child leads no process group")),
        "orphan" => {
            let parent = std::process::id().to_string();
            drop(start(&["call", table, directory, round, &format!("orphan-of-{parent}")]));
            return;
        }
        _ => {}
    }
    if let Some(parent) = kind.strip_prefix("orphan-of-") {
        setsid().expect("a fresh child leads no process group");
        patiently(|| parent_id().to_string() != parent);
    }
    let directory = Path::new(directory);
    patiently(|| directory.join(format!("{round}.go")).exists());
    let table: Value = serde_json::from_slice(&fs::read(table).expect("the table is there")).expect("it is JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut answers = Map::new();
    for row in table["calls"].as_array().into_iter().flatten() {
        let [name, method, path] = [0, 1, 2].map(|at| text(&row[at]));
        answers.insert(name, ask(&text(&table["socket"]), &method, &path, &row[3]));
    }
    for keeper in table["keepers"].as_array().into_iter().flatten() {
        let keeper = text(keeper);
        answers.insert(keeper.clone(), forge(&keeper, &table["forged"]));
    }
    let kind = if kind.starts_with("orphan") { "orphan" } else { kind };
    let (new, done) = (directory.join(format!("{round}-{kind}.new")), directory.join(format!("{round}-{kind}.json")));
    fs::write(&new, Value::Object(answers).to_string())
        .and_then(|()| fs::rename(new, done))
        .expect("it can be written");
}

/// Makes one request and prints the response verbatim.
#[allow(clippy::print_stdout, reason = "the tests read it from there")]
pub(crate) fn ask_once(socket: &str, method: &str, path: &str, body: &str) {
    let body = serde_json::from_str(body).expect("a body is JSON");
    println!("{}", ask(socket, method, path, &body)[1].as_str().unwrap_or_default());
}

/// Times the calls of another client, in a process session of its own. For each number on stdin it makes as many rounds
/// of calls, each on a new connection. It prints the times of each call in microseconds, as one line of JSON.
#[allow(clippy::print_stdout, reason = "the tests read it from there")]
pub(crate) fn neighbour(socket: &str) {
    setsid().expect("a fresh child leads no process group");
    for line in std::io::stdin().lines() {
        let rounds: usize = line.ok().and_then(|line| line.trim().parse().ok()).expect("a number of rounds");
        let mut times = Map::new();
        for path in (0..rounds).flat_map(|_| ["/healthz", "/v1/sessions"]) {
            let begun = Instant::now();
            let answer = ask(socket, "GET", path, &Value::Null);
            assert_eq!(answer[0], 200, "GET {path}: {answer}");
            let time = u64::try_from(begun.elapsed().as_micros()).expect("a time fits");
            let all = times.entry(path).or_insert_with(|| json!([])).as_array_mut();
            all.expect("it is a list").push(time.into());
        }
        println!("{}", Value::Object(times));
    }
}

/// Makes a request. Returns the status and the text of the response.
fn ask(socket: &str, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let exchange = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: agentd\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        // A daemon may refuse and close before it has read all bytes.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match exchange() {
        Ok(answer) => {
            let status = answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).unwrap_or(0);
            json!([status, answer])
        }
        Err(error) => json!([0, error.to_string()]),
    }
}

/// Sends a frame to a keeper. Returns the number of bytes in the response.
fn forge(socket: &str, frame: &Value) -> Value {
    let frame = frame.to_string();
    let mut said = Vec::new();
    if let Ok(mut stream) = UnixStream::connect(socket) {
        stream.set_read_timeout(Some(PATIENCE)).ok();
        let length = u32::try_from(frame.len()).expect("a frame is short").to_le_bytes();
        // A keeper that refuses closes at once.
        let _ = stream.write_all(&[&length[..], frame.as_bytes()].concat());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut said);
    } else {
        return json!("no process listens");
    }
    json!(said.len())
}

fn patiently(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "what was waited for did not come");
        thread::sleep(Duration::from_millis(5));
    }
}
