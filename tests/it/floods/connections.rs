//! Floods of connections: idle ones, slow ones, and streams that begin again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::{Signal, kill};
use tokio::sync::{Mutex, MutexGuard};

use super::*;
use crate::harness::ctl::{agentctl, end_of};

/// Number of idle connections.
const IDLE: usize = 5000;
/// Memory in KiB of a connection: its task with hyper's state and buffer, and its caller.
const OF_ONE: u64 = 24;
/// Number of connections to the stream of events.
const RECONNECTS: usize = 10_000;
/// Memory in KiB that the daemon keeps after the first of these attacks, and in addition after a second one.
const KEPT_OF_STREAMS: u64 = 40 << 10;
const KEPT_AGAIN: u64 = 16 << 10;
/// Memory in KiB of a stream: a chunk, a buffer of hyper, and the events that it holds.
const OF_STREAM: u64 = 1 << 10;
/// Number of slow connections, below the limit of one caller.
const SLOW: usize = 60;

/// Raises the limit of file descriptors of this process, and so of the daemons that it starts. All tests of the process
/// share the descriptors, so the tests that need many take turns.
async fn many_descriptors(number: usize) -> MutexGuard<'static, ()> {
    static TURNS: Mutex<()> = Mutex::const_new(());
    let turn = TURNS.lock().await;
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let hard = line.split_whitespace().nth(4).unwrap();
    let is_enough = hard == "unlimited" || hard.parse::<usize>().unwrap() >= number;
    assert!(is_enough, "this test needs {number} file descriptors (ulimit -Hn), not {hard}");
    let mut command = std::process::Command::new("prlimit");
    let pid = std::process::id().to_string();
    let status = command.args(["--pid", &pid, &format!("--nofile={hard}:")]).status().expect("util-linux has it");
    assert!(status.success());
    turn
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn five_thousand_idle_connections_cost_little_and_are_closed() {
    let _turn = many_descriptors(2 * IDLE).await;
    let room = IDLE + 200;
    let mut target =
        Target::with(&format!("[limits]\nconnections = {}\nconnections_per_caller = {room}", room * 8 / 7)).await;
    let socket = target.socket();
    let attack = async || {
        let mut held = Vec::new();
        for number in 0..IDLE {
            let mut stream = connect(&socket).await;
            // Half of them never say a word, and the others are idle after a call.
            if number % 2 == 0 {
                stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: agentd\r\n\r\n").await.unwrap();
            }
            held.push(stream);
        }
        for (number, stream) in held.iter_mut().enumerate() {
            if number % 2 == 0 {
                let mut answer = [0; 12];
                within("an answer", stream.read_exact(&mut answer)).await.unwrap();
                assert_eq!(&answer, b"HTTP/1.1 200");
            }
        }
        // The daemon closes all connections.
        for stream in &mut held {
            rest(stream).await;
        }
    };
    // The allocator keeps the memory of so many connections, and uses it for the next ones.
    target.kept = OF_ONE * IDLE as u64;
    target.holds("idle connections", 0, attack()).await;
    // The second time, most of them find the memory of the first ones. After four rounds, none needs more.
    (target.before, target.kept) = (process::resident(target.daemon.pid()), OF_ONE * IDLE as u64 / 2);
    target.holds("idle connections again", 0, attack()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn five_thousand_connections_over_the_limit_are_refused_and_cost_nothing() {
    let _turn = many_descriptors(2 * IDLE).await;
    let mut target = Target::with("").await;
    let socket = target.socket();
    let attack = async {
        let mut held = Vec::new();
        for _ in 0..IDLE {
            held.push(connect(&socket).await);
        }
        let mut refused = 0;
        for stream in &mut held {
            refused += usize::from(rest(stream).await.starts_with("HTTP/1.1 503"));
        }
        assert!(refused >= IDLE - 128, "{refused} were refused");
    };
    target.holds("connections over the limit", OF_ONE * 256, attack).await;
}

/// Hostile cursors: no numbers, numbers of other eras and of the future, and the least and the greatest.
fn cursors(present: u64) -> Vec<String> {
    let numbers =
        [0, 1, 2, present - 1, present, present + 1, present - 1_000_000, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    let words = ["", "-1", "18446744073709551616", "1e9", "0x10", "nan", "١٢", "%00", "1 1", "+5", "1.5"];
    let mut cursors: Vec<String> = numbers.iter().map(u64::to_string).collect();
    cursors.extend(words.map(str::to_owned));
    cursors.push("9".repeat(20_000));
    cursors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn ten_thousand_streams_with_hostile_cursors_begin_and_break_off() {
    let mut target = Target::with("").await;
    target.kept = KEPT_OF_STREAMS;
    let socket = target.socket();
    let last = target.daemon.client.get("/v1/events?follow=false&last=1").await;
    let last: serde_json::Value = serde_json::from_slice(last.body.trim_ascii()).unwrap();
    let cursors = Arc::new(cursors(last["cursor"].as_u64().expect("an event has a cursor")));
    let served = Arc::new(AtomicUsize::new(0));
    let attack = || {
        crowd(RECONNECTS, |number| {
            let (socket, cursors, served) = (socket.clone(), Arc::clone(&cursors), Arc::clone(&served));
            async move {
                let cursor = &cursors[number / 4 % cursors.len()];
                let follow = ["", "?follow=false"][number / 4 / cursors.len() % 2];
                let head = match number % 4 {
                    0 => format!("GET /v1/events{follow} HTTP/1.1\r\nlast-event-id: {cursor}\r\n"),
                    1 => format!(
                        "GET /v1/events{follow} HTTP/1.1\r\naccept: text/event-stream\r\nlast-event-id: {cursor}\r\n"
                    ),
                    2 => format!("GET /v1/events?after={} HTTP/1.1\r\n", cursor.replace(' ', "%20")),
                    _ => format!("GET /v1/events?before={} HTTP/1.1\r\n", cursor.replace(' ', "%20")),
                };
                let mut stream = connect(&socket).await;
                let _ = stream.write_all(format!("{head}host: agentd\r\n\r\n").as_bytes()).await;
                if number % 3 == 0 {
                    // This client is gone before the answer.
                    return;
                }
                let mut answer = vec![0; 4096];
                let length = within("an answer", stream.read(&mut answer)).await.unwrap_or(0);
                let answer = String::from_utf8_lossy(&answer[..length]);
                let status = answer.get(9..12).unwrap_or_default();
                assert!(matches!(status, "" | "200" | "400" | "414" | "431" | "503"), "{cursor}: {answer}");
                served.fetch_add(usize::from(status == "200"), Ordering::Relaxed);
            }
        })
    };
    target.holds("streams", OF_STREAM * AT_ONCE as u64, attack()).await;
    // The memory that the allocator keeps of the first streams serves the others.
    target.begin_again(KEPT_AGAIN);
    target.holds("streams again", OF_STREAM * AT_ONCE as u64, attack()).await;
    let served = served.load(Ordering::Relaxed);
    assert!(served > RECONNECTS / 8, "only {served} streams began");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn clients_that_write_or_read_slowly_are_cut_off_or_held_at_little_cost() {
    let mut target = Target::with("[limits]\nbody_time = \"3s\"").await;
    let socket = target.socket();
    // Heads and bodies come byte by byte. The daemon ends each of these connections.
    let attack = async {
        let mut slow = JoinSet::new();
        for number in 0..SLOW {
            let socket = socket.clone();
            slow.spawn(async move {
                let mut stream = connect(&socket).await;
                let head = match number % 3 {
                    0 => "GET /healthz HTTP/1.1\r\nhost: agentd\r\na: ",
                    1 => "POST /v1/sessions HTTP/1.1\r\nhost: agentd\r\ncontent-length: 4000000\r\n\r\n{",
                    _ => "POST /v1/sessions HTTP/1.1\r\nhost: agentd\r\ntransfer-encoding: chunked\r\n\r\n",
                };
                let byte: &[u8] = if number % 3 == 2 { b"1\r\nx\r\n" } else { b"x" };
                let mut is_open = stream.write_all(head.as_bytes()).await.is_ok();
                let begun = Instant::now();
                while is_open {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    is_open = stream.write_all(byte).await.is_ok();
                    assert!(begun.elapsed() < Duration::from_secs(30), "{head:?} is still open");
                }
                let answer = rest(&mut stream).await;
                assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
            });
        }
        while let Some(done) = slow.join_next().await {
            done.unwrap();
        }
    };
    target.holds("slow writers", OF_ONE * SLOW as u64, attack).await;
    // Each client makes a hundred calls with long answers at once, and reads no answer.
    let attack = async {
        let mut held = Vec::new();
        let request = "GET /v1/openapi.json HTTP/1.1\r\nhost: agentd\r\n\r\n".repeat(100);
        for _ in 0..SLOW {
            let mut stream = connect(&socket).await;
            let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(request.as_bytes())).await;
            held.push(stream);
        }
        // The daemon has begun to answer each.
        for stream in &mut held {
            let mut answer = [0; 12];
            within("an answer", stream.read_exact(&mut answer)).await.unwrap();
            assert!(matches!(&answer, b"HTTP/1.1 200" | b"HTTP/1.1 503"), "{answer:?}");
        }
    };
    target.holds("slow readers", (1 << 10) * SLOW as u64, attack).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures times, so it runs alone: .ci/run"]
async fn agentctl_waits_while_the_queue_of_connections_is_full() {
    let daemon = Daemon::start().await;
    let pid = process::pid(daemon.pid());
    let longest: usize = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
    let _turn = many_descriptors(2 * longest + 1000).await;
    kill(pid, Signal::SIGSTOP).unwrap();
    let mut queue = Vec::new();
    loop {
        match UnixStream::connect(daemon.client.socket()).await {
            Ok(stream) => queue.push(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
        assert!(queue.len() <= 2 * longest, "the queue takes any number");
    }
    let mut said = Box::pin(end_of(agentctl(&daemon, &["ls"]).spawn().unwrap()));
    // Without a wait the program would end at once.
    let early = tokio::time::timeout(Duration::from_secs(1), &mut said).await;
    assert!(early.is_err(), "{early:?}");
    kill(pid, Signal::SIGCONT).unwrap();
    drop(queue);
    let said = said.await;
    assert_eq!(said.status, Some(0), "{said:?}");
}
