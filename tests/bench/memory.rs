//! Memory of the daemon and the keepers, as PSS.
//!
//! The comparison for a keeper is the smallest program for its work: a process that starts an agent with three pipes.
//! It copies the agent's output to a file.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::bare;
use crate::daemon::{Daemon, Pipeline, wait};
use crate::process::{kill_all_of, pss, pss_anon, pss_of};
use crate::table::{Table, kib};

const FEW: usize = 100;
const MANY: usize = 1000;
/// KiB.
const GOAL_IDLE: u64 = 12 << 10;
const GOAL_MANY: u64 = 24 << 10;
const GOAL_KEEPER: u64 = 150;
const GOAL_SESSION: u64 = 300;
/// A process is settled when its memory changes by at most 1/200 for five measurements in a row.
const SETTLED: (u64, u32) = (200, 5);
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn measure() -> Result<Table> {
    let mut table = Table::new("memory: PSS");
    let mut daemon = Daemon::start(Pipeline::Default)?;
    let idle = weigh(&mut table, "daemon, idle", &daemon)?;
    table.goal("<= 12 MB", idle <= GOAL_IDLE);
    unmapped(&mut table, &daemon)?;

    daemon.persist(MANY)?;
    let persisted = weigh(&mut table, "daemon, 1,000 persisted", &daemon)?;
    table.goal("<= 24 MB", persisted <= GOAL_MANY);
    unmapped(&mut table, &daemon)?;
    drop(daemon);

    let daemon = Daemon::start(Pipeline::Default)?;
    daemon.launch(1)?;
    let one = keepers(&daemon)?;
    daemon.launch(FEW - 1)?;
    let few = weigh(&mut table, "daemon, 100 active", &daemon)?;
    table.goal("<= 24 MB", few <= GOAL_MANY);
    unmapped(&mut table, &daemon)?;
    daemon.launch(MANY - FEW)?;
    let many = weigh(&mut table, "daemon, 1,000 active", &daemon)?;
    table.goal("<= 24 MB", many <= GOAL_MANY);
    unmapped(&mut table, &daemon)?;

    let (keeper, count) = (keepers(&daemon)?, u64::try_from(MANY)?);
    let bookkeeping = many.saturating_sub(idle) / count;
    drop(daemon);
    let (bare_one, bare_many) = (holders(1)?, holders(MANY)?);
    beside(&mut table, "a keeper of 1", one, bare_one);
    beside(&mut table, "a keeper of 1,000", keeper, bare_many);
    table.goal("<= 150 KB", keeper <= GOAL_KEEPER);
    beside(&mut table, "the same and its share of the daemon", keeper + bookkeeping, bare_many);
    table.goal("<= 300 KB", keeper + bookkeeping <= GOAL_SESSION);
    Ok(table)
}

/// Adds a line with the daemon's memory when it has settled, and returns the memory in KiB.
fn weigh(table: &mut Table, figure: &str, daemon: &Daemon) -> Result<u64> {
    let pss = settled(daemon.pid()?)?;
    table.alone(figure, kib(pss));
    Ok(pss)
}

/// Adds a line without the pages of files. The number of those depends on the kernel: a fault of Linux 6.18 maps the
/// whole large folio of the page cache that contains the page.
fn unmapped(table: &mut Table, daemon: &Daemon) -> Result<()> {
    table.alone("the same without the program's own pages", kib(pss_anon(daemon.pid()?)?));
    Ok(())
}

pub(crate) fn beside(table: &mut Table, figure: &str, ours: u64, bare: u64) {
    let kib_of = |number: u64| u32::try_from(number).map_or(f64::INFINITY, f64::from);
    table.pair(figure, kib(ours), kib(bare), kib_of(ours) / kib_of(bare).max(1.0));
}

/// Returns the memory of a process after it has settled.
pub(crate) fn settled(pid: u32) -> Result<u64> {
    let (mut last, mut same) = (0, 0);
    wait("the daemon's memory to settle", PAUSE, || {
        let now = pss(pid)?;
        same = if now.abs_diff(last) <= now / SETTLED.0 { same + 1 } else { 0 };
        last = now;
        Ok((same >= SETTLED.1).then_some(now))
    })
}

/// The mean of the keepers.
fn keepers(daemon: &Daemon) -> Result<u64> {
    let list = daemon.client()?.get("/v1/sessions?fields=status.keeper_pid")?;
    let sessions = list["sessions"].as_array().context("the list has no sessions")?;
    let pid = |keeper: &serde_json::Value| keeper.as_u64().and_then(|pid| u32::try_from(pid).ok());
    let pids: Vec<u32> = sessions.iter().filter_map(|session| pid(&session["status"]["keeper_pid"])).collect();
    mean(&pids)
}

/// The mean of so many bare holders.
fn holders(number: usize) -> Result<u64> {
    let directory = tempfile::Builder::new().prefix("agentd-bench-").tempdir()?;
    let mut children = Vec::new();
    for n in 0..number {
        let mut holder = bare::myself()?;
        holder.arg("bare-hold").arg(directory.path()).arg(n.to_string()).env_clear().stdin(Stdio::null());
        children.push(holder.spawn()?);
    }
    let pids: Vec<u32> = children.iter().map(std::process::Child::id).collect();
    let mut files = 0;
    let started = wait("the bare holders", PAUSE, || {
        files = std::fs::read_dir(directory.path())?.count();
        Ok((files == number).then_some(()))
    });
    let mean = started.and_then(|()| mean(&pids));
    kill_all_of(directory.path());
    for mut child in children {
        child.wait()?;
    }
    mean
}

fn mean(pids: &[u32]) -> Result<u64> {
    let count = u64::try_from(pids.len())?;
    pss_of(pids)?.checked_div(count).context("there is no process to weigh")
}
