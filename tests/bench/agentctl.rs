//! Duration of `agentctl` as a whole process. The comparisons are a program that does nothing, and the daemon's answer
//! to the same call on an open connection. All take turns, so that a busy moment of the machine affects them alike.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::daemon::{Daemon, Pipeline};
use crate::table::{Table, median};

/// Number of turns.
const TURNS: usize = 100;
/// Number of sessions in the list.
const SESSIONS: usize = 10;
const GOAL: Duration = Duration::from_millis(3);

pub(crate) fn measure() -> Result<Table> {
    let daemon = Daemon::start(Pipeline::Default)?;
    let mut client = daemon.client()?;
    daemon.launch(SESSIONS)?;
    let program = crate::agentd().with_file_name("agentctl");
    let (mut listed, mut version, mut nothing, mut answered) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        listed.push(run(Command::new(&program).arg("ls").arg("--socket").arg(daemon.socket()), daemon.root())?);
        version.push(run(Command::new(&program).arg("--version"), daemon.root())?);
        nothing.push(run(&mut Command::new("/bin/true"), daemon.root())?);
        let begun = Instant::now();
        client.bytes("/v1/sessions")?;
        answered.push(begun.elapsed());
    }
    let (listed, version, nothing) = (median(listed), median(version), median(nothing));
    let mut table = Table::new(format!("agentctl: a whole process, {SESSIONS} sessions; median of {TURNS}"));
    let goal = || format!("<= {} ms", GOAL.as_millis());
    table.times("agentctl ls, against /bin/true", listed, nothing).goal(goal(), listed <= GOAL);
    table.times("agentctl ls, against the daemon's answer", listed, median(answered));
    table.times("agentctl --version, against /bin/true", version, nothing).goal(goal(), version <= GOAL);
    Ok(table)
}

fn run(command: &mut Command, home: &Path) -> Result<Duration> {
    command.env_clear().env("HOME", home).stdin(Stdio::null()).stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status()?;
    ensure!(status.success(), "it ended with {status}");
    Ok(begun.elapsed())
}
