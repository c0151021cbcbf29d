//! Monitors the daemon's health: pings the watchdog, and composes the service's status line.
//!
//! Pings the watchdog while the runtime makes progress and no driver is stuck. The log names the session of a stuck
//! driver after half of the watchdog's timeout. The service manager kills the daemon half a timeout later.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use agentd_api::SessionId;

use agentd_host::manager;
use agentd_session::generation::Generation;
use agentd_session::pulse::Pulses;
use agentd_session::{SessionCounts, Sessions};

/// Maximum interval between two health checks.
const OFTEN: Duration = Duration::from_secs(5);

/// The health monitor. Dropping this value ends the pings.
#[derive(Debug)]
pub(crate) struct Health {
    limit: Duration,
    _until: mpsc::Sender<()>,
}

/// State of the monitor's thread. A separate thread is needed: a driver that blocks its thread can stop all of the
/// runtime's timers.
struct Monitor {
    /// Maximum duration of a driver's step, and of a pause in the runtime's progress.
    limit: Duration,
    pulses: Arc<Pulses>,
    begun: Instant,
    /// Time of the runtime's last progress, in milliseconds since `begun`.
    last_progress: Arc<AtomicU64>,
    /// Sessions whose drivers are reported as stuck.
    stuck: BTreeSet<SessionId>,
    /// Whether the runtime is reported as stalled.
    is_stalled: bool,
}

impl Health {
    /// Starts the monitor's thread, and the task that records the runtime's progress. Requires a multi-threaded
    /// runtime.
    pub(crate) fn begin(pulses: Arc<Pulses>) -> io::Result<Self> {
        let limit = manager::longest_step();
        let (begun, last_progress) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let (progress, interval) = (Arc::clone(&last_progress), limit / 4);
        tokio::spawn(async move {
            loop {
                progress.store(milliseconds(begun.elapsed()), Ordering::Relaxed);
                tokio::time::sleep(interval).await;
            }
        });
        let mut monitor = Monitor { limit, pulses, begun, last_progress, stuck: BTreeSet::new(), is_stalled: false };
        let (until, ended) = mpsc::channel();
        let monitoring = move || {
            while ended.recv_timeout((limit / 3).min(OFTEN)) == Err(RecvTimeoutError::Timeout) {
                monitor.check();
            }
        };
        std::thread::Builder::new().name("agentd-health".to_owned()).spawn(monitoring)?;
        Ok(Self { limit, _until: until })
    }

    /// Returns the status line: the sessions by phase, and the daemon's problems. `socket` describes the problem of
    /// the control socket, if any.
    pub(crate) fn line(&self, generation: &Generation, sessions: &Sessions, socket: Option<String>) -> String {
        // A refused configuration makes all plugins unusable. The line reports only the configuration in this case.
        let loaded = generation.plugins_so_far().filter(|_| generation.launchable().is_ok());
        let unusable = loaded.map(|plugins| plugins.failed().map(|(name, _)| name).collect());
        let problems = Problems {
            drained: generation.daemon.drain.is_on(),
            stuck: generation.daemon.pulses.stuck(self.limit, Instant::now()).len(),
            held_up: generation.daemon.pulses.held_up().len(),
            unusable: unusable.unwrap_or_default(),
            configuration: generation.daemon.standing.line(),
            socket,
        };
        line(&sessions.tally(), &problems)
    }
}

impl Monitor {
    /// Pings the watchdog if the runtime makes progress and no driver is stuck.
    fn check(&mut self) {
        let stuck: BTreeSet<SessionId> = self.pulses.stuck(self.limit, Instant::now()).into_iter().collect();
        for session in stuck.difference(&self.stuck) {
            tracing::error!(
                agentd.session = %session,
                "the driver of session {session} has been in one step for more than {} s; withholding watchdog pings",
                self.limit.as_secs_f32()
            );
        }
        for session in self.stuck.difference(&stuck) {
            tracing::info!(agentd.session = %session, "the driver of session {session} makes progress again");
        }
        self.stuck = stuck;
        let last_progress = Duration::from_millis(self.last_progress.load(Ordering::Relaxed));
        let stalled = self.begun.elapsed().saturating_sub(last_progress);
        let is_stalled = stalled > self.limit;
        if is_stalled && !self.is_stalled {
            tracing::error!("tokio runtime stalled for {:.0} s; withholding watchdog pings", stalled.as_secs_f32());
        }
        self.is_stalled = is_stalled;
        if !is_stalled && self.stuck.is_empty() {
            manager::alive();
        }
    }
}

/// Problems that the status line reports.
#[derive(Debug, Default)]
struct Problems<'a> {
    drained: bool,
    stuck: usize,
    held_up: usize,
    /// Names of plugins that cannot be used.
    unusable: Vec<&'a str>,
    /// Problem of the configuration.
    configuration: Option<String>,
    /// Problem of the control socket.
    socket: Option<String>,
}

fn line(tally: &SessionCounts, problems: &Problems<'_>) -> String {
    let mut line = format!("{} session{}", tally.sessions, if tally.sessions == 1 { "" } else { "s" });
    for (index, (phase, count)) in tally.phases.iter().enumerate() {
        let before = if index == 0 { ": " } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(line, "{before}{count} {}", phase.as_str());
    }
    if problems.drained {
        line.push_str("; drained: nothing is launched");
    }
    if let Some(configuration) = &problems.configuration {
        let _ = write!(line, "; {configuration}");
    }
    for (count, what) in [
        (problems.stuck, "stuck"),
        (problems.held_up, "cannot write (is the disk full?)"),
        (tally.missing, "with unmet prerequisites"),
        (tally.silent, "with an unresponsive keeper"),
        (tally.unreadable, "set aside as unreadable"),
    ] {
        if count > 0 {
            let _ = write!(line, "; {count} {what}");
        }
    }
    if let Some(trouble) = &problems.socket {
        let _ = write!(line, "; {trouble}");
    }
    if !problems.unusable.is_empty() {
        let _ = write!(line, "; unusable plugins: {}", problems.unusable.join(", "));
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
    fn the_line_has_the_sessions_by_phase_and_the_daemons_problems() {
        assert_eq!(line(&SessionCounts::default(), &Problems::default()), "0 sessions");
        let one = SessionCounts { sessions: 1, phases: vec![(Phase::Idle, 1)], ..SessionCounts::default() };
        assert_eq!(line(&one, &Problems::default()), "1 session: 1 idle");
        let many = SessionCounts {
            sessions: 9,
            phases: vec![(Phase::Busy, 2), (Phase::Stopped, 7)],
            missing: 1,
            silent: 1,
            unreadable: 3,
        };
        let all_problems = Problems {
            drained: true,
            stuck: 1,
            held_up: 2,
            unusable: vec!["vpn", "x"],
            configuration: Some("configuration wrong at /a.toml:2: it is left out".to_owned()),
            socket: None,
        };
        assert_eq!(
            line(&many, &all_problems),
            "9 sessions: 2 busy, 7 stopped; drained: nothing is launched; \
             configuration wrong at /a.toml:2: it is left out; 1 stuck; 2 cannot write (is the disk full?); \
             1 with unmet prerequisites; 1 with an unresponsive keeper; 3 set aside as unreadable; \
             unusable plugins: vpn, x"
        );
    }
}
