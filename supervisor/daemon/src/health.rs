//! Whether the daemon does its work: the watchdog is fed while it does, and one line says what it has and what ails it.
//!
//! It does while the runtime turns and no driver is stuck in a step. A driver that is has its session named in the log as soon as that is
//! noticed, which is half of the watchdog's time before the manager kills the daemon.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use agentd_api::SessionId;

use crate::manager;
use crate::pulse::Pulses;
use crate::session::{Sessions, Tally};
use crate::world::World;

/// Without a watchdog it is looked for who is stuck as with one of this time.
const ORDINARY: Duration = Duration::from_secs(30);
/// How often it is looked at the least.
const OFTEN: Duration = Duration::from_secs(5);

/// What feeds the watchdog, until it is dropped.
#[derive(Debug)]
pub(crate) struct Health {
    limit: Duration,
    _until: mpsc::Sender<()>,
}

/// On a thread of its own: a driver that blocks the thread it is on can keep every timer of the runtime from going off.
struct Watch {
    /// A step or a turn of the runtime that takes longer is none.
    limit: Duration,
    pulses: Arc<Pulses>,
    begun: Instant,
    /// When the runtime turned last, in milliseconds since the beginning.
    turned: Arc<AtomicU64>,
    /// The sessions that are said to be stuck.
    stuck: BTreeSet<SessionId>,
    /// Whether it was said that the runtime does not turn.
    stands: bool,
}

impl Health {
    /// Begins to look; on a runtime of several threads.
    pub(crate) fn begin(pulses: Arc<Pulses>) -> io::Result<Self> {
        let limit = manager::watchdog().unwrap_or(ORDINARY) / 2;
        let (begun, turned) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let (turning, every) = (Arc::clone(&turned), limit / 4);
        tokio::spawn(async move {
            loop {
                turning.store(milliseconds(begun.elapsed()), Ordering::Relaxed);
                tokio::time::sleep(every).await;
            }
        });
        let mut watch = Watch { limit, pulses, begun, turned, stuck: BTreeSet::new(), stands: false };
        let (until, ended) = mpsc::channel();
        let watching = move || {
            while ended.recv_timeout((limit / 3).min(OFTEN)) == Err(RecvTimeoutError::Timeout) {
                watch.beat();
            }
        };
        std::thread::Builder::new().name("agentd-health".to_owned()).spawn(watching)?;
        Ok(Self { limit, _until: until })
    }

    /// What the daemon has, and what ails it.
    /// `socket` is what is wrong with the control socket.
    pub(crate) fn line(&self, world: &World, sessions: &Sessions, socket: Option<String>) -> String {
        // Under a configuration that is refused none can be used, and that is said once.
        let loaded = world.plugins_so_far().filter(|_| world.launchable().is_ok());
        let unusable = loaded.map(|plugins| plugins.failed().map(|(name, _)| name).collect());
        let ailments = Ailments {
            drained: world.drain.is_on(),
            stuck: world.pulses.stuck(self.limit, Instant::now()).len(),
            held_up: world.pulses.held_up().len(),
            unusable: unusable.unwrap_or_default(),
            configuration: world.standing.line(),
            socket,
        };
        line(&sessions.tally(), &ailments)
    }
}

impl Watch {
    /// Feeds the watchdog if the daemon does its work.
    fn beat(&mut self) {
        let stuck: BTreeSet<SessionId> = self.pulses.stuck(self.limit, Instant::now()).into_iter().collect();
        for session in stuck.difference(&self.stuck) {
            tracing::error!(
                agentd.session = %session,
                "the driver of session {session} has been in one step for more than {} s: the watchdog is not fed until it gets on",
                self.limit.as_secs_f32()
            );
        }
        for session in self.stuck.difference(&stuck) {
            tracing::info!(agentd.session = %session, "the driver of session {session} gets on again");
        }
        self.stuck = stuck;
        let turned = Duration::from_millis(self.turned.load(Ordering::Relaxed));
        let stands = self.begun.elapsed().saturating_sub(turned) > self.limit;
        if stands && !self.stands {
            tracing::error!("the daemon's threads do not turn: the watchdog is not fed until they do");
        }
        self.stands = stands;
        if !stands && self.stuck.is_empty() {
            manager::alive();
        }
    }
}

#[derive(Debug, Default)]
struct Ailments<'a> {
    drained: bool,
    stuck: usize,
    held_up: usize,
    /// Plugins.
    unusable: Vec<&'a str>,
    /// What is wrong with it.
    configuration: Option<String>,
    socket: Option<String>,
}

fn line(tally: &Tally, ailments: &Ailments<'_>) -> String {
    let mut line = format!("{} session{}", tally.sessions, if tally.sessions == 1 { "" } else { "s" });
    for (index, (phase, count)) in tally.phases.iter().enumerate() {
        let before = if index == 0 { ": " } else { ", " };
        // To a string nothing can fail to be written.
        let _ = write!(line, "{before}{count} {}", phase.as_str());
    }
    if ailments.drained {
        line.push_str("; drained: nothing is launched");
    }
    if let Some(configuration) = &ailments.configuration {
        let _ = write!(line, "; {configuration}");
    }
    for (count, what) in [
        (ailments.stuck, "stuck"),
        (ailments.held_up, "cannot write (is the disk full?)"),
        (tally.missing, "without what they need"),
        (tally.silent, "with a keeper that does not answer"),
        (tally.unreadable, "set aside as unreadable"),
    ] {
        if count > 0 {
            let _ = write!(line, "; {count} {what}");
        }
    }
    if let Some(trouble) = &ailments.socket {
        let _ = write!(line, "; {trouble}");
    }
    if !ailments.unusable.is_empty() {
        let _ = write!(line, "; plugins that cannot be used: {}", ailments.unusable.join(", "));
    }
    line
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use agentd_api::session::Phase;

    use super::*;

    #[test]
    fn the_line_has_the_sessions_by_phase_and_what_ails_the_daemon() {
        assert_eq!(line(&Tally::default(), &Ailments::default()), "0 sessions");
        let one = Tally { sessions: 1, phases: vec![(Phase::Idle, 1)], ..Tally::default() };
        assert_eq!(line(&one, &Ailments::default()), "1 session: 1 idle");
        let many = Tally {
            sessions: 9,
            phases: vec![(Phase::Busy, 2), (Phase::Stopped, 7)],
            missing: 1,
            silent: 1,
            unreadable: 3,
        };
        let ailing = Ailments {
            drained: true,
            stuck: 1,
            held_up: 2,
            unusable: vec!["vpn", "x"],
            configuration: Some("configuration wrong at /a.toml:2: it is left out".to_owned()),
            socket: None,
        };
        assert_eq!(
            line(&many, &ailing),
            "9 sessions: 2 busy, 7 stopped; drained: nothing is launched; configuration wrong at /a.toml:2: it is left out; 1 stuck; 2 cannot write (is the disk full?); \
             1 without what they need; 1 with a keeper that does not answer; 3 set aside as unreadable; plugins that cannot be used: vpn, x"
        );
    }
}
