//! An agent that prints as fast as it can. Measures the time until the output is in the journal, and the delay of the
//! agent.
//!
//! The comparison is the same agent, with its stdout in a program that copies it to a file. The journal has no reader,
//! the daemon as its reader, or the daemon and a client that follows the events. For the first case, the daemon is
//! killed as soon as the agent prints.

use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::bare;
use crate::client::Client;
use crate::daemon::{Daemon, Pipeline, prompt, wait, wait_idle};
use crate::table::{Table, median};

/// Output of the agent.
#[derive(Debug, Clone, Copy)]
struct Load {
    what: &'static str,
    lines: u64,
    bytes: u64,
}

const LOADS: [Load; 2] = [
    Load { what: "2 million lines of 176 B", lines: 2_000_000, bytes: 176 },
    Load { what: "1 GB in lines of 64 KiB", lines: 16_384, bytes: 64 << 10 },
];
const RUNS: usize = 3;
const GOAL_COPY: f64 = 0.6;
const GOAL_CHILD: f64 = 0.5;

#[derive(Debug, Clone, Copy)]
enum Follower {
    None,
    Daemon,
    Client,
}

/// Durations of one run.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Time until the last reader had all output.
    whole: Duration,
    /// Time until the agent had written all output, by its own clock.
    child: Duration,
}

pub(crate) fn measure() -> Result<Table> {
    let mut table = Table::new(format!("output: bytes of the agent, by the second; median of {RUNS}"));
    let mut daemon = Daemon::start(Pipeline::Empty)?;
    for load in LOADS {
        let mut bare = Vec::new();
        let followers = [
            ("keeper alone", Follower::None),
            ("daemon follows", Follower::Daemon),
            ("daemon and client follow", Follower::Client),
        ];
        let mut ours = [Vec::new(), Vec::new(), Vec::new()];
        // The variants take turns, so that a change in the machine's load affects all variants.
        for _ in 0..RUNS {
            bare.push(copied(load)?);
            for ((_, follower), runs) in followers.iter().zip(&mut ours) {
                runs.push(kept(&mut daemon, load, *follower)?);
            }
        }
        for ((what, _), runs) in followers.iter().zip(&ours) {
            compare(&mut table, load, what, runs, &bare);
        }
    }
    Ok(table)
}

fn compare(table: &mut Table, load: Load, what: &str, ours: &[Run], bare: &[Run]) {
    let speed = |runs: &[Run], time: fn(&Run) -> Duration| {
        megabytes(load) / median(runs.iter().map(time).collect()).as_secs_f64()
    };
    for (part, time, goal, wanted) in [
        ("journal", (|run| run.whole) as fn(&Run) -> Duration, ">= 60 % of copying", GOAL_COPY),
        ("agent", |run| run.child, ">= half its speed", GOAL_CHILD),
    ] {
        let (ours, bare) = (speed(ours, time), speed(bare, time));
        let figure = format!("{}, {what}: {part}", load.what);
        table.pair(figure, format!("{ours:.0} MB/s"), format!("{bare:.0} MB/s"), ours / bare);
        table.goal(goal, ours / bare >= wanted);
    }
}

fn megabytes(load: Load) -> f64 {
    u32::try_from(load.lines * load.bytes / 1_000_000).map_or(f64::INFINITY, f64::from)
}

fn words(load: Load) -> String {
    format!("print {} {}", load.lines, load.bytes)
}

/// Copies the agent's output to a file.
fn copied(load: Load) -> Result<Run> {
    nix::unistd::sync();
    let directory = tempfile::Builder::new().prefix("agentd-bench-").tempdir()?;
    let file = directory.path().join("copy");
    let mut agent = bare::agent(directory.path())?;
    let stdout = agent.stdout.take().context("the agent has no stdout")?;
    let mut copy = bare::myself()?.arg("bare-copy").arg(&file).stdin(Stdio::from(stdout)).spawn()?;
    let mut stdin = agent.stdin.take().context("the agent has no stdin")?;
    let params = json!({ "prompt": [{ "type": "text", "text": words(load) }] });
    let begun = Instant::now();
    writeln!(stdin, "{}", json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params }))?;
    drop(stdin);
    let status = copy.wait()?;
    let whole = begun.elapsed();
    agent.wait()?;
    ensure!(status.success(), "the bare loop failed: {status}");
    let child = own_time(&bare::end_of(&file, 1 << 10)?).context("the agent did not say how long it took")?;
    Ok(Run { whole, child })
}

/// Lets agentd read the agent's output.
fn kept(daemon: &mut Daemon, load: Load, follower: Follower) -> Result<Run> {
    nix::unistd::sync();
    let mut client = daemon.client()?;
    let id = daemon.session(&mut client)?;
    let journal = daemon.journal(&id);
    let begun = Instant::now();
    let before = prompt(&mut client, &id, &words(load))?;
    let whole = match follower {
        Follower::None => {
            until_grown(daemon, &id)?;
            daemon.kill9()?;
            wait("the agent's answer", Duration::from_millis(5), || Ok(is_answered(&journal)?.then_some(())))?;
            let whole = begun.elapsed();
            daemon.serve()?;
            // The old connection ended with the old daemon.
            client = daemon.client()?;
            whole
        }
        Follower::Daemon => {
            wait_idle(&mut client, &id, before)?;
            begun.elapsed()
        }
        Follower::Client => {
            let path = format!("/v1/sessions/{id}/events?after={before}");
            let mut second = daemon.client()?;
            let follow = thread::spawn(move || follow(&mut second, &path));
            let lines = follow.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            ensure!(lines >= load.lines, "the client saw {lines} of {} lines", load.lines);
            let whole = begun.elapsed();
            // A connection that was idle for so long may have been closed.
            client = daemon.client()?;
            whole
        }
    };
    let last = wait_idle(&mut client, &id, before)?;
    ensure!(last - before >= load.lines, "{} of {} lines are in the journal", last - before, load.lines);
    let end = client.bytes(&format!("/v1/sessions/{id}/events?last=10&follow=false"))?;
    let child = own_time(&end).context("the agent did not say how long it took")?;
    client.delete(&format!("/v1/sessions/{id}?force=true"))?;
    Ok(Run { whole, child })
}

fn until_grown(daemon: &Daemon, id: &str) -> Result<()> {
    let before = daemon.size(id)?;
    wait("the agent's first lines", Duration::from_millis(1), || {
        Ok((daemon.size(id)? > before + (64 << 10)).then_some(()))
    })
}

/// Returns whether the agent's answer is in the journal.
fn is_answered(journal: &Path) -> Result<bool> {
    match bare::end_of(journal, 4 << 10) {
        Ok(end) => Ok(own_time(&end).is_some()),
        // The full segment has been renamed, and the next segment does not exist yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Follows the events until the turn's end, and counts them.
fn follow(client: &mut Client, path: &str) -> Result<u64> {
    let (mut lines, mut end) = (0, Vec::new());
    client.stream(path, |piece| {
        lines += u64::try_from(memchr::memchr_iter(b'\n', piece).count()).unwrap_or_default();
        end.extend_from_slice(&piece[piece.len().saturating_sub(END)..]);
        end.drain(..end.len().saturating_sub(END));
        // No record follows the last record, so it is at the end of a piece.
        let last = end.strip_suffix(b"\n").and_then(|end| end.rsplit(|&byte| byte == b'\n').next());
        let ended = last.is_some_and(|line| line.windows(ENDED.len()).any(|window| window == ENDED));
        if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(lines)
}

const ENDED: &[u8] = b"\"kind\":\"turn.ended\"";
/// Upper bound of the size of the record of a turn's end.
const END: usize = 512;

/// Reads the agent's own duration from the last line that has it: its answer, or the journal's record of the answer.
fn own_time(lines: &[u8]) -> Option<Duration> {
    let answer = |line: &[u8]| -> Option<Duration> {
        let line: Value = serde_json::from_slice(line).ok()?;
        let answer = if line["kind"] == "agent.out" { &line["data"] } else { &line };
        answer["result"]["_meta"]["micros"].as_u64().map(Duration::from_micros)
    };
    lines.rsplit(|&byte| byte == b'\n').find_map(answer)
}
