//! Many sessions are started at once. Measures the total time until each can take a prompt, divided by their number.
//!
//! The comparison is the same number of threads that start the same agents by `posix_spawn` with three pipes and open
//! their conversations.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::bare;
use crate::daemon::{Daemon, Pipeline, THREADS};
use crate::table::{Table, median, millis};

/// Numbers of sessions, each with its number of repetitions and the goal of one session with default providers.
const ROUNDS: [(usize, usize, Duration); 2] = [(100, 5, Duration::from_millis(3)), (1000, 1, Duration::from_millis(4))];

pub(crate) fn measure() -> Result<Table> {
    let mut table = Table::new(format!("spawn: sessions from POST to idle, {THREADS} at once; the time of one"));
    for (number, runs, goal) in ROUNDS {
        let mut bare = Vec::new();
        for _ in 0..runs {
            bare.push(bare_spawn(number)?);
        }
        let bare = median(bare);
        for (pipeline, what) in [(Pipeline::Empty, "no provider"), (Pipeline::Default, "default providers")] {
            let mut ours = Vec::new();
            for _ in 0..runs {
                ours.push(launch(pipeline, number)?);
            }
            let ours = median(ours);
            table.times(format!("{number} sessions, {what}"), ours, bare);
            if pipeline == Pipeline::Default {
                table.goal(format!("<= {}", millis(goal)), ours <= goal);
            }
        }
    }
    Ok(table)
}

fn launch(pipeline: Pipeline, number: usize) -> Result<Duration> {
    let daemon = Daemon::start(pipeline)?;
    // The first launch waits for the plugins to be loaded.
    daemon.session(&mut daemon.client()?)?;
    let begun = Instant::now();
    daemon.launch(number)?;
    Ok(each(begun, number))
}

fn bare_spawn(number: usize) -> Result<Duration> {
    let directory = tempfile::tempdir()?;
    let begun = Instant::now();
    let agents = bare::spawn(directory.path(), number, THREADS)?;
    let took = each(begun, number);
    drop(agents);
    Ok(took)
}

fn each(begun: Instant, number: usize) -> Duration {
    begun.elapsed() / u32::try_from(number).unwrap_or(u32::MAX)
}
