//! Time from a request to the agent's `main()` while many agents idle. Every turn starts one agent in each way, so that
//! a busy moment of the machine affects all ways alike. The other ways are in [`crate::rivals`].

use std::time::Duration;

use anyhow::Result;

use crate::daemon::{Daemon, Pipeline};
use crate::environment;
use crate::first;
use crate::rivals::{Rivals, Way};
use crate::table::{Table, median, p95, ratio};
use crate::warm;

/// Number of agents that idle meanwhile, of each way.
const RUNNING: usize = 100;
/// Number of measured turns, and of turns before them that fill the caches.
const TURNS: usize = 100;
const FIRST: usize = 5;
/// Longest time, as a multiple of the bare server's.
const GOAL: f64 = 2.0;
/// Longest time under systemd, as a multiple of a transient unit's.
const UNITS: f64 = 1.2;
/// Longest 95th percentile, as a multiple of the median.
const SPREAD: f64 = 2.0;

pub(crate) fn measure() -> Result<Table> {
    let mut table = Table::new(format!(
        "launch: from the request to the agent's main(), default providers, {RUNNING} running; {TURNS} turns"
    ));
    compare(&mut table)?;
    first::measure(&mut table)?;
    warm::measure(&mut table)?;
    Ok(table)
}

/// Times of one way in all turns.
struct Times {
    way: Way,
    all: Vec<Duration>,
}

impl Times {
    fn middle_and_slow(&self) -> (Duration, Duration) {
        (median(self.all.clone()), p95(self.all.clone()))
    }
}

fn compare(table: &mut Table) -> Result<()> {
    let daemon = Daemon::start(Pipeline::Default)?;
    let units = Way::SystemdRun.lacks().is_none().then(Daemon::of_systemd).transpose()?;
    let mut rivals = Rivals::new()?;
    let (ways, absent): (Vec<Way>, Vec<Way>) = Way::ALL.into_iter().partition(|way| way.lacks().is_none());
    for daemon in [&daemon].into_iter().chain(&units) {
        daemon.launch(RUNNING)?;
    }
    let mut running = Vec::new();
    for &way in &ways {
        for _ in 0..RUNNING {
            running.push(rivals.start(way)?);
        }
    }
    let mut clients = [daemon.client()?, units.as_ref().unwrap_or(&daemon).client()?];
    let (mut detached, mut under_systemd) = (Vec::new(), Vec::new());
    let mut theirs: Vec<Times> = ways.into_iter().map(|way| Times { way, all: Vec::new() }).collect();
    for turn in 0..FIRST + TURNS {
        detached.push(environment::launch(&daemon, &mut clients[0])?.main);
        if let Some(units) = &units {
            under_systemd.push(environment::launch(units, &mut clients[1])?.main);
        }
        for times in &mut theirs {
            times.all.push(rivals.start(times.way)?.main);
        }
        if turn + 1 == FIRST {
            for all in
                [&mut detached, &mut under_systemd].into_iter().chain(theirs.iter_mut().map(|times| &mut times.all))
            {
                all.clear();
            }
        }
    }
    drop(running);
    show(table, &detached, &under_systemd, &theirs);
    for way in absent {
        table.absent(format!("median, against {}", way.name()), way.lacks().unwrap_or_default());
    }
    Ok(())
}

/// Adds the rows of agentd's times beside those of the others. A transient unit is compared with agentd's own units.
fn show(table: &mut Table, detached: &[Duration], under_systemd: &[Duration], theirs: &[Times]) {
    let (middle, slow) = (median(detached.to_vec()), p95(detached.to_vec()));
    table.times("p95, against the median", slow, middle);
    table.goal(format!("ratio <= {SPREAD}"), ratio(slow, middle) <= SPREAD);
    for times in theirs {
        let (name, (their_middle, their_slow)) = (times.way.name(), times.middle_and_slow());
        if times.way == Way::SystemdRun {
            let (middle, slow) = (median(under_systemd.to_vec()), p95(under_systemd.to_vec()));
            table.times(format!("median, under systemd, against {name}"), middle, their_middle);
            table.goal(format!("ratio <= {UNITS}"), ratio(middle, their_middle) <= UNITS);
            table.times(format!("p95, under systemd, against {name}"), slow, their_slow);
            continue;
        }
        table.times(format!("median, against {name}"), middle, their_middle);
        match times.way {
            Way::Bare => _ = table.goal(format!("ratio <= {GOAL}"), ratio(middle, their_middle) <= GOAL),
            Way::New("runsv") => _ = table.goal("ratio < 1", middle < their_middle),
            _ => {}
        }
        table.times(format!("p95, against {name}"), slow, their_slow);
    }
}
