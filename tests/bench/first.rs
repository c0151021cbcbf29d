//! The first session of a user, without compiled plugins and before the login shell ever ran. The first request to a
//! daemon, for which a service manager starts the daemon.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::daemon::{Daemon, Pipeline};
use crate::table::{Table, median, millis};

/// Number of daemons of each kind.
const USERS: usize = 3;
const ACTIVATIONS: usize = 15;

/// Adds the rows to a table.
pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let (mut new, mut known) = (Vec::new(), Vec::new());
    for _ in 0..USERS {
        new.push(session(Daemon::of_new_user()?)?);
        known.push(session(Daemon::prepare(Pipeline::Default)?)?);
    }
    table.times("a new user's first session, start to idle, against compiled plugins", median(new), median(known));
    let mut answered = Vec::new();
    for _ in 0..ACTIVATIONS {
        answered.push(Daemon::prepare(Pipeline::Default)?.activate()?);
    }
    table.alone("the first request after socket activation", millis(median(answered)));
    Ok(())
}

/// Returns the time from the start of the daemon to an idle session.
fn session(mut daemon: Daemon) -> Result<Duration> {
    let begun = Instant::now();
    daemon.serve()?;
    daemon.session(&mut daemon.client()?)?;
    Ok(begun.elapsed())
}
