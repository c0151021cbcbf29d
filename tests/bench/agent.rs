//! The smallest agent that speaks ACP: it opens a conversation and prints as much as a prompt requests.
//!
//! A prompt `print LINES BYTES` makes it print this number of `session/update` notifications of this size, newline
//! included. Each notification is one write(2), as in real agents. The answer contains the duration of the output
//! (`_meta.micros`). A prompt `pace LINES BYTES RATE` makes it print RATE lines per second. Each has the time of its
//! write (microseconds since the Unix epoch, after [`STAMP`]). The answer to `initialize` contains the start time
//! (`_meta.began`, microseconds since the Unix epoch). The agent answers any other prompt without output.

use std::io::{self, BufRead as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// Serves like [`serve`], after this number of milliseconds.
pub(crate) fn serve_slowly(time: &str) -> Result<()> {
    thread::sleep(Duration::from_millis(time.parse()?));
    serve()
}

/// Serves stdin and stdout until stdin ends.
pub(crate) fn serve() -> Result<()> {
    let began = wall()?;
    for line in io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?).context("was sent a line that is not JSON")?;
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": 1,
                "agentCapabilities": {},
                "agentInfo": { "name": "bench", "version": "1" },
                "authMethods": [],
                "_meta": { "began": began },
            }),
            Some("session/new") => json!({ "sessionId": "bench" }),
            Some("session/prompt") => obey(message["params"]["prompt"][0]["text"].as_str().unwrap_or_default())?,
            _ => continue,
        };
        send(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))?;
    }
    Ok(())
}

/// Sends the start time and the process ID to a datagram socket, and then idles until the process is killed. It is the
/// agent of programs that do not speak the agent's protocol.
pub(crate) fn tell(socket: &Path) -> Result<()> {
    let start = format!("{} {}", wall()?, std::process::id());
    UnixDatagram::unbound()?.send_to(start.as_bytes(), socket).context("no bench listens for the start time")?;
    loop {
        thread::park();
    }
}

/// Microseconds since 1970, which two processes of one machine can compare.
pub(crate) fn wall() -> Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?)
}

fn send(message: &Value) -> Result<()> {
    let mut line = message.to_string();
    line.push('\n');
    io::stdout().lock().write_all(line.as_bytes()).context("nobody reads stdout")
}

fn obey(prompt: &str) -> Result<Value> {
    let words: Vec<&str> = prompt.split(' ').collect();
    match words[..] {
        ["print", lines, bytes] => print(lines.parse()?, bytes.parse()?),
        ["pace", lines, bytes, rate] => {
            pace(lines.parse()?, bytes.parse()?, rate.parse()?)?;
            Ok(json!({ "stopReason": "end_turn" }))
        }
        _ => Ok(json!({ "stopReason": "end_turn" })),
    }
}

/// Prints lines at a rate.
fn pace(lines: u32, bytes: usize, rate: u32) -> Result<()> {
    let mut line = notification(bytes.max(HEAD.len() + STAMPED + TAIL.len()));
    let mut stdout = io::stdout().lock();
    let begun = Instant::now();
    for n in 0..lines {
        thread::sleep((Duration::from_secs(1) * n / rate.max(1)).saturating_sub(begun.elapsed()));
        stamp(&mut line[HEAD.len()..HEAD.len() + STAMPED]);
        stdout.write_all(&line)?;
    }
    Ok(())
}

/// Byte before a time in a line. No other part of an event has this byte.
pub(crate) const STAMP: u8 = b'@';
/// Length of a time with the byte before it.
pub(crate) const STAMPED: usize = 17;

/// Writes the present time.
pub(crate) fn stamp(place: &mut [u8]) {
    place.copy_from_slice(format!("@{:016}", wall().unwrap_or_default()).as_bytes());
}

fn print(lines: u64, bytes: usize) -> Result<Value> {
    let mut line = notification(bytes);
    let mut stdout = io::stdout().lock();
    let begun = Instant::now();
    for n in 0..lines {
        number(&mut line, n);
        stdout.write_all(&line)?;
    }
    let micros = u64::try_from(begun.elapsed().as_micros())?;
    Ok(json!({ "stopReason": "end_turn", "_meta": { "micros": micros } }))
}

const HEAD: &str = concat!(
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"bench","update":"#,
    r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#
);
const TAIL: &str = "\"}}}}\n";
const DIGITS: usize = 8;

/// Returns a line of this size with room for its number, or the shortest line if the size is too small.
fn notification(bytes: usize) -> Vec<u8> {
    let text = bytes.saturating_sub(HEAD.len() + TAIL.len()).max(DIGITS);
    format!("{HEAD}{}{TAIL}", "x".repeat(text)).into_bytes()
}

fn number(line: &mut [u8], n: u64) {
    let mut n = n;
    for digit in line[HEAD.len()..HEAD.len() + DIGITS].iter_mut().rev() {
        *digit = b'0' + u8::try_from(n % 10).unwrap_or_default();
        n /= 10;
    }
}
