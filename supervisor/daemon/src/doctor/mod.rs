//! Runs the checks that only the daemon can make: agents, plugins, approvals, the encryption key, disk and clock.
//!
//! The checks change nothing. agentctl checks the installation itself, because that check must work without a daemon.

mod agents;
mod begin;
mod configuration;
mod environments;
pub(crate) mod hooks;
mod plugins;
pub(crate) mod schedules;
mod stored;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use agentd_api::doctor::{Check, DoctorView};
use agentd_api::prerequisite::Outcome;

use agentd_api::chain;
use agentd_session::Sessions;
use agentd_session::generation::Generation;

/// Wall clock and monotonic clock at one moment. Two values show whether the clocks have diverged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    wall: SystemTime,
    /// Stands still while the machine sleeps, and cannot be set.
    steady: Instant,
}

impl Clocks {
    pub(crate) fn now() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }
}

/// Runs all checks, the slow checks in parallel.
///
/// `started` has both clocks at the daemon's start.
pub(crate) async fn examine(generation: &Arc<Generation>, sessions: &Sessions, started: Clocks) -> DoctorView {
    let views = sessions.list().await;
    let (configuration, login_shell, plugins, on_disk, environments) = tokio::join!(
        configuration::check(generation),
        begin::login_shell(generation),
        plugins::check(generation),
        stored::on_disk(generation, &views),
        environments::check(generation, &views)
    );
    // Agents are searched in a session's environment. Each search would wait for the failing login shell again.
    let agents = if login_shell.outcome == Outcome::Fail {
        Check::new("agents", Outcome::Unknown, "agents cannot be checked without the login shell's environment")
    } else {
        agents::check(generation).await
    };
    let kept = stored::sessions(&sessions.unreadable(), &views);
    let clock = stored::clock(started, Clocks::now());
    let mut checks = vec![
        configuration,
        begin::home(generation),
        login_shell,
        agents,
        begin::login(&views),
        begin::draining(&generation.daemon.drain),
    ];
    checks.extend(plugins);
    checks.extend(on_disk);
    checks.extend([environments, kept, clock]);
    DoctorView { checks }
}

/// Returns the result of a check that could not be made.
fn unknown(name: &str, error: &dyn std::error::Error) -> Check {
    Check::new(name, Outcome::Unknown, chain(error))
}
