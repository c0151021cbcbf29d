//! The daemon is killed under 100 active sessions and started again. Measures the time until it answers, and until it
//! has taken over every session.
//!
//! A session counts as taken over when its journal has `daemon.recovered`. Only the session's keeper can write that
//! record, and only while a daemon is connected. The comparison is a program that connects to the same keepers and
//! reads the last record of the same journals.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::bare;
use crate::daemon::{Daemon, Pipeline, prompt, wait, wait_idle};
use crate::table::{Table, median, ratio};

const ACTIVE: usize = 100;
const PERSISTED: usize = 1000;
const RUNS: usize = 9;
const GOAL: Duration = Duration::from_millis(100);
/// Largest ratio at which a person does not notice the difference.
const UNFELT: f64 = 1.25;

#[derive(Debug)]
struct Recovery {
    bare: Duration,
    /// From the start.
    answers: Duration,
    /// From the start.
    adopted: Duration,
}

#[derive(Debug)]
struct Recoveries(Vec<Recovery>);

impl Recoveries {
    fn median(&self, time: impl Fn(&Recovery) -> Duration) -> Duration {
        median(self.0.iter().map(time).collect())
    }
}

pub(crate) fn measure() -> Result<Table> {
    let mut daemon = Daemon::start(Pipeline::Empty)?;
    let ids = daemon.launch(ACTIVE)?;
    let alone = recoveries(&mut daemon, &ids)?;
    daemon.persist(PERSISTED)?;
    let beside = recoveries(&mut daemon, &ids)?;

    let mut table =
        Table::new(format!("adopt: {ACTIVE} active sessions, kill -9 of the daemon, start; median of {RUNS}"));
    for (what, runs) in [("none persisted", &alone), ("1,000 persisted", &beside)] {
        let after = runs.median(|run| run.adopted.saturating_sub(run.answers));
        table.times(format!("start to answer, {what}"), runs.median(|run| run.answers), runs.median(|run| run.bare));
        table.times(
            format!("start to all adopted, {what}"),
            runs.median(|run| run.adopted),
            runs.median(|run| run.bare),
        );
        table.times(format!("answer to all adopted, {what}"), after, runs.median(|run| run.bare));
        table.goal("<= 100 ms", after <= GOAL);
    }
    let (with, without) = (beside.median(|run| run.answers), alone.median(|run| run.answers));
    table.times("start to answer, 1,000 persisted against none", with, without);
    table.goal("ratio <= 1.25", ratio(with, without) <= UNFELT);
    let (with, without) = (beside.median(|run| run.adopted), alone.median(|run| run.adopted));
    table.times("start to all adopted, 1,000 persisted against none", with, without);
    table.goal("ratio <= 1.25", ratio(with, without) <= UNFELT);
    prompt_each(&daemon, &ids)?;
    Ok(table)
}

fn recoveries(daemon: &mut Daemon, ids: &[String]) -> Result<Recoveries> {
    Ok(Recoveries((0..RUNS).map(|_| recovery(daemon, ids)).collect::<Result<_>>()?))
}

fn recovery(daemon: &mut Daemon, ids: &[String]) -> Result<Recovery> {
    daemon.kill9()?;
    let bare = bare_adopt(daemon)?;
    let mut waiting = Vec::new();
    for id in ids {
        let journal = daemon.journal(id);
        waiting.push((fs::metadata(&journal)?.len(), journal));
    }
    let begun = Instant::now();
    let answers = daemon.serve()?;
    wait("the adoption of all", Duration::from_millis(1), || {
        waiting.retain(|(before, journal)| !is_recovered(*before, journal));
        Ok(waiting.is_empty().then_some(()))
    })?;
    Ok(Recovery { bare, answers, adopted: begun.elapsed() })
}

/// Returns whether a daemon has recorded its takeover in the journal.
fn is_recovered(before: u64, journal: &PathBuf) -> bool {
    let Ok(length) = fs::metadata(journal).map(|metadata| metadata.len()) else { return false };
    length > before
        && bare::end_of(journal, length - before)
            .is_ok_and(|grown| String::from_utf8_lossy(&grown).contains("\"daemon.recovered\""))
}

fn bare_adopt(daemon: &Daemon) -> Result<Duration> {
    let begun = Instant::now();
    let status = bare::myself()?.arg("bare-adopt").arg(daemon.root()).status()?;
    let took = begun.elapsed();
    ensure!(status.success(), "the bare loop failed: {status}");
    Ok(took)
}

/// Prompts each session, because a takeover counts only if the session works afterwards.
fn prompt_each(daemon: &Daemon, ids: &[String]) -> Result<()> {
    let mut client = daemon.client()?;
    for id in ids {
        let before = prompt(&mut client, id, "print 1 200")?;
        wait_idle(&mut client, id, before)?;
    }
    Ok(())
}
