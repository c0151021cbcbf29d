//! A process that holds as many connections as it can get. Calls of the owner are answered meanwhile, and the daemon
//! refuses the process's further connections because no room is left.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agentd_api::session::{Phase, PromptAccepted};
use agentd_api::{Code, Problem};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::harness::ctl::{Said, agentctl, end_of};
use crate::harness::{Daemon, Session, within};

const STREAMS: usize = 600;
const BODIES: usize = 700;
/// Default limits of one caller: calls at once, and streams at once.
const CALLS_OF_ONE: usize = 64;
const STREAMS_OF_ONE: usize = 64;
/// Number of times that each call is timed.
const TIMES: usize = 5;
/// Extra time that a busy machine may need to start a program.
const NOISE: Duration = Duration::from_millis(100);

/// Connects to the daemon and sends this request.
async fn connected(socket: &Path, request: &str) -> UnixStream {
    let mut stream = loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => break stream,
            // The queue of connections is full: the daemon is about to take some.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    };
    // The daemon may already have closed a connection that it refused at once.
    let _ = stream.write_all(request.as_bytes()).await;
    stream
}

/// Reads the first bytes of an answer. A refusal has no more bytes.
async fn first(stream: &mut UnixStream) -> String {
    let mut bytes = vec![0; 4096];
    let n = within("an answer", stream.read(&mut bytes)).await.unwrap_or(0);
    String::from_utf8_lossy(&bytes[..n]).into_owned()
}

/// Returns whether the answer is a correct refusal.
fn is_refused(answer: &str, code: Code) -> bool {
    if !answer.starts_with("HTTP/1.1 503 ") {
        return false;
    }
    let (head, body) = answer.split_once("\r\n\r\n").expect("a refusal is whole");
    assert!(head.to_lowercase().contains("\r\nretry-after: 1"), "{answer}");
    let problem: Problem = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(problem.hint.is_some(), "{problem:?}");
    problem.code == code || problem.code == Code::TooManyConnections
}

/// Runs `agentctl` as its owner does in another terminal: in another process session than the crowd.
async fn answered(daemon: &Daemon, arguments: &[&str]) -> (Said, Duration) {
    let inner = agentctl(daemon, arguments);
    let mut command = Command::new("/usr/bin/setsid");
    command.arg("--wait").arg(inner.get_program()).args(inner.get_args());
    command.env_clear().envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(daemon.work()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let said = end_of(command.spawn().expect("util-linux has setsid")).await;
    (said, begun.elapsed())
}

/// As [`answered`], of a call that succeeds.
async fn owner(daemon: &Daemon, arguments: &[&str]) -> (Said, Duration) {
    let (said, time) = answered(daemon, arguments).await;
    assert_eq!(said.status, Some(0), "{arguments:?}: {said:?}");
    (said, time)
}

/// Times the owner's calls, the median of [`TIMES`] each: `ls`, `answer` and `stop` for each session with a question.
/// `doctor` looks at much, and is timed once.
async fn times(daemon: &Daemon, asking: &[(Session, PromptAccepted, String)]) -> Vec<(&'static str, Duration)> {
    let mut took: Vec<(&'static str, Vec<Duration>)> =
        ["ls", "answer", "stop", "doctor"].map(|call| (call, Vec::new())).into();
    for (session, _, question) in asking {
        let id = session.id.as_str();
        took[0].1.push(owner(daemon, &["ls"]).await.1);
        took[1].1.push(owner(daemon, &["answer", id, question, "yes"]).await.1);
        // This process is the crowd, and gets no connection itself.
        within("the end of the turn", async {
            while !owner(daemon, &["show", id]).await.0.out.contains("phase:         idle") {}
        })
        .await;
        took[2].1.push(owner(daemon, &["stop", id]).await.1);
    }
    took[3].1.push(within("doctor", answered(daemon, &["doctor"])).await.1);
    let median = |mut all: Vec<Duration>| {
        all.sort();
        all[all.len() / 2]
    };
    took.into_iter().map(|(call, all)| (call, median(all))).collect()
}

#[tokio::test]
async fn streams_and_unfinished_bodies_of_one_process_keep_the_owner_from_nothing() {
    let mut daemon = Daemon::prepare();
    daemon.configure(|config| format!("{config}\n[limits]\nbody_time = \"5m\"\n"));
    daemon.run().await;
    let session = daemon.session(&daemon.scripted(&[])).await;
    let mut asking = Vec::new();
    for _ in 0..2 * TIMES {
        let one = daemon.session(&daemon.scripted(&[])).await;
        let accepted = one.prompt("ask").await;
        let asked = one.wait_for("a question", |view| !view.status.permissions.is_empty()).await;
        asking.push((one, accepted, asked.status.permissions[0].id.to_string()));
    }
    let in_the_crowd = asking.split_off(TIMES);
    let quiet = times(&daemon, &asking).await;

    let socket = daemon.client.socket();
    let follow = format!(
        "GET {} HTTP/1.1\r\nhost: agentd\r\naccept: text/event-stream\r\n\r\n",
        session.path("/events?after=0")
    );
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..STREAMS {
        let mut stream = connected(socket, &follow).await;
        let answer = first(&mut stream).await;
        if answer.starts_with("HTTP/1.1 200 ") {
            held.push(stream);
        } else {
            assert!(is_refused(&answer, Code::TooManyStreams), "{answer}");
            refused += 1;
        }
    }
    assert_eq!((held.len(), refused), (STREAMS_OF_ONE, STREAMS - STREAMS_OF_ONE));
    // The daemon does not answer an unfinished body, so exactly the accepted requests still wait.
    let unfinished = "POST /v1/sessions HTTP/1.1\r\nhost: agentd\r\ncontent-length: 100\r\n\r\n{";
    let mut bodies = JoinSet::new();
    for _ in 0..BODIES {
        let mut stream = connected(socket, unfinished).await;
        bodies.spawn(async move {
            let mut bytes = vec![0; 4096];
            let n = stream.read(&mut bytes).await.unwrap_or(0);
            String::from_utf8_lossy(&bytes[..n]).into_owned()
        });
    }
    for _ in 0..BODIES - CALLS_OF_ONE {
        let answer = within("a refusal", bodies.join_next()).await.expect("there are more").unwrap();
        assert!(is_refused(&answer, Code::TooManyConnections), "{answer}");
    }

    let took = times(&daemon, &in_the_crowd).await;
    let of_all = quiet.iter().zip(&took);
    let table: Vec<String> =
        of_all.clone().map(|((call, quiet), (_, crowd))| format!("{call}: {quiet:.0?} quiet, {crowd:.0?}")).collect();
    eprintln!("{}", table.join("; "));
    for ((call, quiet), (_, crowd)) in of_all {
        assert!(*crowd < 3 * (*quiet).max(NOISE), "{call}: {table:?}");
    }
    owner(&daemon, &["reload"]).await;
    bodies.abort_all();
    drop((bodies, held));

    // Afterwards the daemon serves all processes again, including the crowd.
    within("room again", async {
        while daemon.client.attempt("GET", "/v1/sessions", "", None).await.is_none_or(|answer| answer.status != 200) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    for (session, accepted, _) in asking.iter().chain(&in_the_crowd) {
        assert_eq!(session.end_of(accepted).await.text, "chosen yes");
        assert_eq!(session.view().await.status.phase, Phase::Stopped);
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_and_agentctl_asks_again_where_there_was_no_room() {
    let mut daemon = Daemon::prepare();
    let limits = "[limits]\nbody_time = \"2s\"\nconnections_per_caller = 4\n";
    daemon.configure(|config| format!("{config}\n{limits}"));
    daemon.run().await;
    let unfinished = "POST /v1/sessions HTTP/1.1\r\nhost: agentd\r\ncontent-length: 100\r\n\r\n{";
    let mut slow = connected(daemon.client.socket(), unfinished).await;
    let answer = first(&mut slow).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("body-timeout"), "{answer}");
    drop(slow);
    // These connections reach this process session's limit until they time out. agentctl waits for that.
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(connected(daemon.client.socket(), unfinished).await);
    }
    let said = end_of(agentctl(&daemon, &["ls"]).spawn().unwrap()).await;
    assert_eq!(said.status, Some(0), "{said:?}");
    drop(held);
}
