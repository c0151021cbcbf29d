//! The bare loops: the same work in a few lines of code without agentd.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Returns a command that starts this program for another role.
pub(crate) fn myself() -> Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// Connects to every keeper that a daemon's directory has, and reads the last record of every journal.
pub(crate) fn adopt(directory: &Path) -> Result<()> {
    for session in fs::read_dir(directory.join("state/sessions"))? {
        let session = session?;
        let socket = directory.join("run").join(session.file_name()).join("keeper.sock");
        match UnixStream::connect(&socket) {
            Ok(mut keeper) => {
                let mut length = [0; 4];
                keeper.read_exact(&mut length)?;
                let mut hello = vec![0; usize::try_from(u32::from_le_bytes(length))?];
                keeper.read_exact(&mut hello)?;
                serde_json::from_slice::<Value>(&hello)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("nobody listens on {}", socket.display())),
        }
        let journal = session.path().join("journal.jsonl");
        let end = end_of(&journal, 64 << 10)?;
        let last = end.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice::<Value>(last).with_context(|| format!("the last line of {}", journal.display()))?;
    }
    Ok(())
}

/// Returns the last bytes of a file, at most this number.
pub(crate) fn end_of(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    Ok(end)
}

/// Copies stdin to a file, in blocks as large as a pipe holds.
pub(crate) fn copy(file: &Path) -> Result<()> {
    let (mut from, mut to) = (io::stdin().lock(), File::create(file)?);
    let mut block = vec![0; 64 << 10];
    loop {
        match from.read(&mut block)? {
            0 => return Ok(()),
            n => to.write_all(&block[..n])?,
        }
    }
}

/// Starts an agent with three pipes and copies its output to a file until it ends: the least that a keeper can do.
pub(crate) fn hold(directory: &Path, number: &str) -> Result<()> {
    let mut agent = agent(directory)?;
    let mut log = File::create(directory.join(format!("bare-{number}")))?;
    let mut said = agent.stdout.take().context("the agent has no stdout")?;
    let mut block = vec![0; 4 << 10];
    loop {
        match said.read(&mut block)? {
            0 => break,
            n => log.write_all(&block[..n])?,
        }
    }
    agent.wait()?;
    Ok(())
}

/// Starts an agent with three pipes.
pub(crate) fn agent(directory: &Path) -> Result<Child> {
    let mut command = myself()?;
    command.arg("agent").arg(directory).current_dir(directory).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("the agent cannot be started")
}

/// Starts this number of agents and opens a conversation with each, with this number of threads. The agents run until
/// the returned value is dropped.
pub(crate) fn spawn(directory: &Path, number: usize, threads: usize) -> Result<Agents> {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let share = number / threads + usize::from(worker < number % threads);
                scope.spawn(move || (0..share).map(|_| open(directory)).collect::<Result<Vec<_>>>())
            })
            .collect();
        let mut agents = Agents(Vec::new());
        for worker in workers {
            agents.0.extend(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(agents)
    })
}

/// Agents that are killed when they are dropped.
#[derive(Debug)]
pub(crate) struct Agents(Vec<Child>);

impl Drop for Agents {
    fn drop(&mut self) {
        for agent in &mut self.0 {
            // An agent that has already ended needs no signal.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

fn open(directory: &Path) -> Result<Child> {
    let mut agent = agent(directory)?;
    let stdin = agent.stdin.as_mut().context("the agent has no stdin")?;
    let mut answers = BufReader::new(agent.stdout.take().context("the agent has no stdout")?);
    for (id, method) in [(1, "initialize"), (2, "session/new")] {
        writeln!(stdin, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": {} }))?;
        let mut answer = String::new();
        answers.read_line(&mut answer)?;
        ensure!(serde_json::from_str::<Value>(&answer)?["id"] == id, "the agent answered {answer:?}");
    }
    agent.stdout = Some(answers.into_inner());
    Ok(agent)
}
