//! The stream against a daemon of a few lines: each connection it gets is answered by the next of a list of answers.

use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::{self, JoinHandle};

use super::*;

/// How one connection is answered.
enum Answer {
    /// These records, then an orderly end.
    Ends(std::ops::RangeInclusive<u64>),
    /// These records, then half a record, then nothing: the daemon was killed.
    Dies(std::ops::RangeInclusive<u64>),
    NoSuchSession,
}

fn record(seq: u64) -> String {
    format!("{{\"seq\":{seq},\"time\":\"2026-01-01T00:00:00Z\",\"kind\":\"x\",\"data\":{{}}}}\n")
}

/// Serves the answers, one connection each; the request lines it got.
fn serve(socket: &Path, answers: Vec<Answer>) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut connection, _) = listener.accept().unwrap();
            requests.push(read_request(&mut connection));
            let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
            let text = match answer {
                Answer::Ends(records) => {
                    format!("{head}{}0\r\n\r\n", records.map(|seq| chunk(&record(seq))).collect::<String>())
                }
                Answer::Dies(records) => {
                    let whole: String = records.clone().map(|seq| chunk(&record(seq))).collect();
                    let torn = record(records.end() + 1);
                    format!("{head}{whole}{}", chunk(&torn[..10]))
                }
                Answer::NoSuchSession => {
                    let body = r#"{"status":404,"code":"no-such-session","detail":"no session \"s\""}"#;
                    format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                }
            };
            connection.write_all(text.as_bytes()).unwrap();
        }
        requests
    })
}

fn read_request(connection: &mut std::os::unix::net::UnixStream) -> String {
    use std::io::{BufRead, BufReader};
    let mut lines = BufReader::new(connection).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    first.split(' ').nth(1).unwrap().to_owned()
}

fn follow(answers: Vec<Answer>, from: StreamStart) -> (Vec<u64>, String, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let server = serve(&socket, answers);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (seen, end) = runtime.block_on(async {
        let mut stream = EventStream::follow(Client::new(socket), "s".into(), from, None);
        let mut seen = Vec::new();
        loop {
            match stream.next().await {
                Some(Next::Record { seq, .. }) => seen.push(seq),
                Some(Next::Away) => {}
                other => return (seen, format!("{other:?}")),
            }
        }
    });
    (seen, end, server.join().unwrap())
}

#[test]
fn a_daemon_that_dies_in_the_middle_of_a_record_costs_and_doubles_none() {
    let answers = vec![Answer::Dies(1..=3), Answer::Ends(4..=4), Answer::Dies(5..=5), Answer::NoSuchSession];
    let (seen, end, requests) = follow(answers, StreamStart::After(0));
    assert_eq!(seen, [1, 2, 3, 4, 5]);
    assert_eq!(end, "Some(Deleted)");
    let asked: Vec<&str> = requests.iter().map(|path| path.split(['?', '&']).nth(1).unwrap()).collect();
    assert_eq!(asked, ["after=0", "after=3", "after=4", "after=5"]);
}

#[test]
fn what_a_daemon_sends_a_second_time_is_not_shown_a_second_time() {
    let answers = vec![Answer::Ends(7..=8), Answer::Ends(6..=9), Answer::NoSuchSession];
    let (seen, _, requests) = follow(answers, StreamStart::Last(2));
    assert_eq!(seen, [7, 8, 9]);
    assert!(requests[0].contains("last=2") && requests[1].contains("after=8"), "{requests:?}");
}

#[test]
fn a_session_that_never_was_is_an_error_and_not_one_that_was_deleted() {
    let (seen, end, _) = follow(vec![Answer::NoSuchSession], StreamStart::After(0));
    assert!(seen.is_empty() && end.starts_with("Some(Failed("), "{end}");
}

#[test]
fn a_daemon_that_is_away_for_a_moment_is_waited_for_and_said_to_be_away_once() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let first = serve(&socket, vec![Answer::Dies(1..=1)]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stream = EventStream::follow(Client::new(socket.clone()), "s".into(), StreamStart::After(0), None);
        assert!(matches!(stream.next().await, Some(Next::Record { seq: 1, .. })));
        first.join().unwrap();
        assert!(matches!(stream.next().await, Some(Next::Away)));
        std::fs::remove_file(&socket).unwrap();
        let second = serve(&socket, vec![Answer::Ends(2..=2), Answer::NoSuchSession]);
        assert!(matches!(stream.next().await, Some(Next::Record { seq: 2, .. })));
        assert!(matches!(stream.next().await, Some(Next::Deleted)));
        assert_eq!(second.join().unwrap().len(), 2);
    });
}
