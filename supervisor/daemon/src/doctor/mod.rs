//! What the daemon alone can find out about itself: whether its agents are there, what became of its plugins and approvals, whether it
//! has its key, whether time and disk are as it needs them.
//!
//! It looks, and changes nothing. Not its job: the installation, which agentctl looks at, also where no daemon runs.

mod agents;
mod begin;
mod configuration;
mod environments;
mod plugins;
mod stored;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use agentd_api::doctor::{Check, DoctorView};
use agentd_api::prerequisite::Outcome;

use crate::message::chain;
use crate::session::Sessions;
use crate::world::World;

/// Both clocks at one moment, so that later it can be told whether they went on together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clocks {
    wall: SystemTime,
    /// It stands still while the machine sleeps, and nobody can set it.
    steady: Instant,
}

impl Clocks {
    pub(crate) fn now() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }
}

/// Every check, side by side where it takes time.
pub(crate) async fn examine(world: &Arc<World>, sessions: &Sessions) -> DoctorView {
    let views = sessions.list().await;
    let (configuration, login_shell, plugins, on_disk, environments) = tokio::join!(
        configuration::check(world),
        begin::login_shell(world),
        plugins::check(world),
        stored::on_disk(world, &views),
        environments::check(world, &views)
    );
    // Without an environment there is nowhere to look for them, and each would wait for the login shell again.
    let agents = if login_shell.outcome == Outcome::Fail {
        Check::new("agents", Outcome::Unknown, "they are looked for in the environment that the login shell gives")
    } else {
        agents::check(world).await
    };
    let kept = stored::sessions(&sessions.unreadable(), &views);
    let clock = stored::clock(world.clocks, Clocks::now());
    let mut checks = vec![
        configuration,
        begin::home(world),
        login_shell,
        agents,
        begin::sign_in(&views),
        begin::draining(&world.drain),
    ];
    checks.extend(plugins);
    checks.extend(on_disk);
    checks.extend([environments, kept, clock]);
    DoctorView { checks }
}

/// It could not be told.
fn unknown(name: &str, error: &dyn std::error::Error) -> Check {
    Check::new(name, Outcome::Unknown, chain(error))
}
