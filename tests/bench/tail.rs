//! Duration of a read of the last 100 events from a journal of 1 GB. The comparison is a journal of 1 MB.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::client::Client;
use crate::daemon::{Daemon, Pipeline, prompt, wait_idle};
use crate::table::{Table, median, ratio};

const LINE: u64 = 1 << 10;
const LARGE: u64 = 1 << 30;
const SMALL: u64 = 1 << 20;
const RUNS: usize = 101;
/// Largest ratio. It is too small for a read that scans the whole journal.
const GOAL: f64 = 1.5;

pub(crate) fn measure() -> Result<Table> {
    let daemon = Daemon::start(Pipeline::Empty)?;
    let mut client = daemon.client()?;
    let large = journal(&daemon, &mut client, LARGE)?;
    let small = journal(&daemon, &mut client, SMALL)?;
    let (mut larges, mut smalls) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        larges.push(last(&mut client, &large)?);
        smalls.push(last(&mut client, &small)?);
    }
    let (large, small) = (median(larges), median(smalls));
    let mut table = Table::new(format!("tail: GET events?last=100&follow=false; median of {RUNS}"));
    table
        .times("a journal of 1 GB against one of 1 MB", large, small)
        .goal("ratio <= 1.5", ratio(large, small) <= GOAL);
    Ok(table)
}

/// Creates a session whose agent prints this number of bytes, so that the journal grows in the usual way.
fn journal(daemon: &Daemon, client: &mut Client, bytes: u64) -> Result<String> {
    let id = daemon.session(client)?;
    let before = prompt(client, &id, &format!("print {} {LINE}", bytes / LINE))?;
    wait_idle(client, &id, before)?;
    let length = daemon.size(&id)?;
    ensure!(length > bytes, "the journal has {length} bytes of {bytes}");
    Ok(id)
}

fn last(client: &mut Client, id: &str) -> Result<Duration> {
    let begun = Instant::now();
    let events = client.bytes(&format!("/v1/sessions/{id}/events?last=100&follow=false"))?;
    let took = begun.elapsed();
    let lines = memchr::memchr_iter(b'\n', &events).count();
    ensure!(lines == 100, "{lines} events came");
    Ok(took)
}
