//! Strikes against the daemon, keepers and agents. Some strikes send SIGKILL at a random moment or at a named point,
//! some send SIGSTOP and SIGCONT. Others combine signals in orders that caused faults before.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use super::history::Answer;
use super::subject::Subject;
use crate::harness::process::Identity;
use crate::harness::random::Random;
use crate::harness::{Daemon, process};

/// Maximum time in which a new daemon must answer. A daemon on an idle machine needs about a hundredth of this time.
const ANSWERS: Duration = Duration::from_secs(30);
/// Maximum wait for a process to pass a point, or for an agent to answer. After this time the campaign tries another
/// strike.
const PASSES: Duration = Duration::from_millis(1500);

/// Processes that the strikes hit, and the record of strikes.
pub(crate) struct Field {
    pub(crate) daemon: tokio::sync::Mutex<Daemon>,
    pub(crate) subjects: Vec<Arc<Subject>>,
    pub(crate) points: Vec<String>,
    faults: PathBuf,
    /// Number of kills left in this round.
    pub(crate) left: AtomicU64,
    /// Whether a keeper has hung in this round.
    pub(crate) hung: AtomicBool,
    pub(crate) tally: Mutex<Tally>,
    /// Part of a strike's name; the campaign draws the strikes with this part more often.
    more: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) killed: BTreeSet<Identity>,
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    pub(crate) points: u64,
    pub(crate) slowest: Duration,
    /// Names of the strikes that the campaign has drawn.
    pub(crate) drawn: BTreeSet<&'static str>,
}

impl Tally {
    /// Returns the names of the strikes that the campaign never drew.
    pub(crate) fn untried(&self) -> Vec<&'static str> {
        DAEMON.iter().chain(&OTHERS).map(|(name, _)| *name).filter(|name| !self.drawn.contains(name)).collect()
    }
}

/// Names of the strikes against the daemon, with their weights.
const DAEMON: [(&str, u64); 8] = [
    ("daemon", 8),
    ("double", 4),
    ("keeper-while-down", 4),
    ("agent-while-down", 3),
    ("answered-while-down", 5),
    ("stop-daemon", 2),
    ("point", 8),
    ("idle", 2),
];
/// Names of the strikes against agents and keepers, with their weights.
const OTHERS: [(&str, u64); 5] =
    [("agent", 8), ("keeper", 8), ("stop-agent", 3), ("stop-keeper", 3), ("hung-keeper", 1)];

/// Returns a random element of `from`, or `None` if `from` is empty.
fn any<'a>(from: &'a [u32], random: &mut Random) -> Option<&'a u32> {
    from.get(usize::try_from(random.below(from.len().max(1) as u64)).ok()?)
}

impl Field {
    pub(crate) fn new(daemon: Daemon, subjects: Vec<Arc<Subject>>, points: Vec<String>, more: Option<String>) -> Self {
        let faults = daemon.state().join("faults");
        let (left, hung, tally) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::default());
        Self { daemon: tokio::sync::Mutex::new(daemon), subjects, points, faults, left, hung, tally, more }
    }

    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().expect("nobody panics while it counts")
    }

    fn kills_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    fn count_kill(&self) {
        self.tally().kills += 1;
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }

    fn draw(&self, strikes: &[(&'static str, u64)], random: &mut Random) -> &'static str {
        let more = |name: &str| self.more.as_deref().is_some_and(|more| name.contains(more));
        let weight = |(name, weight): &(&str, u64)| if more(name) { weight * 8 } else { *weight };
        let mut place = random.below(strikes.iter().map(weight).sum());
        let by_weight = strikes.iter().find(|strike| match place.checked_sub(weight(strike)) {
            Some(rest) => {
                place = rest;
                false
            }
            None => true,
        });
        // A strike that was never drawn takes half of the draws, because each strike must happen at least once.
        let untried = strikes.iter().find(|(name, _)| !self.tally().drawn.contains(name));
        let untried = untried.filter(|_| random.below(2) == 0);
        let (name, _) = untried.or(by_weight).expect("a place lies below the sum of all weights");
        self.tally().drawn.insert(name);
        name
    }

    fn subject(&self, random: &mut Random) -> &Arc<Subject> {
        &self.subjects[usize::try_from(random.below(self.subjects.len() as u64)).expect("there are few")]
    }

    fn kill(&self, pid: u32) {
        // The entry comes before the kill. If the process has already ended by itself, the entry does no harm.
        self.tally().killed.extend(Identity::of(pid));
        if kill(process::pid(pid), Signal::SIGKILL).is_ok() {
            self.count_kill();
        }
    }

    fn kill_agent_of(&self, subject: &Subject, random: &mut Random) {
        if let Some(agent) = any(&subject.agents(), random) {
            self.kill(*agent);
        }
    }

    fn kill_keeper_of(&self, subject: &Subject, random: &mut Random) {
        if let Some(keeper) = any(&subject.keepers(), random) {
            self.kill(*keeper);
        }
    }

    fn kill_daemon(&self, daemon: &mut Daemon) {
        daemon.kill9();
        self.count_kill();
    }

    /// Starts the daemon, as its service manager would, and waits until the daemon answers.
    async fn start(&self, daemon: &mut Daemon) {
        daemon.spawn();
        self.answers(daemon).await;
    }

    async fn answers(&self, daemon: &mut Daemon) {
        let begun = Instant::now();
        daemon.ready().await;
        let took = begun.elapsed();
        assert!(took < ANSWERS, "the daemon answered only after {took:?}");
        let mut tally = self.tally();
        tally.slowest = tally.slowest.max(took);
    }

    /// Kills the daemon, alone or together with keepers and agents, until the round has no kills left.
    pub(crate) async fn strike_daemon(&self, mut random: Random) {
        while self.kills_left() {
            tokio::time::sleep(Duration::from_millis(random.below(400))).await;
            let mut daemon = self.daemon.lock().await;
            let daemon = &mut *daemon;
            match self.draw(&DAEMON, &mut random) {
                "daemon" => {
                    self.kill_daemon(daemon);
                    self.start(daemon).await;
                }
                // Kills the daemon while it starts or adopts sessions.
                "double" => {
                    for _ in 0..=random.below(3) {
                        self.kill_daemon(daemon);
                        daemon.spawn();
                        tokio::time::sleep(Duration::from_millis(random.below(200))).await;
                        daemon.assert_running();
                    }
                    self.answers(daemon).await;
                }
                "keeper-while-down" => {
                    self.kill_daemon(daemon);
                    for _ in 0..=random.below(3) {
                        self.kill_keeper_of(self.subject(&mut random), &mut random);
                    }
                    self.start(daemon).await;
                }
                "agent-while-down" => {
                    self.kill_daemon(daemon);
                    for _ in 0..=random.below(3) {
                        self.kill_agent_of(self.subject(&mut random), &mut random);
                    }
                    self.start(daemon).await;
                }
                "answered-while-down" => self.answered_while_down(daemon, &mut random).await,
                "stop-daemon" => {
                    self.tally().stops += 1;
                    kill(process::pid(daemon.pid()), Signal::SIGSTOP).expect("the daemon is there");
                    tokio::time::sleep(Duration::from_millis(random.below(600))).await;
                    kill(process::pid(daemon.pid()), Signal::SIGCONT).expect("the daemon is there");
                    self.answers(daemon).await;
                }
                "point" => self.at_a_point(daemon, &mut random).await,
                _ => {}
            }
        }
    }

    /// Kills the daemon, waits until an agent ends its turn, and kills the agent or its keeper before the next daemon
    /// starts.
    async fn answered_while_down(&self, daemon: &mut Daemon, random: &mut Random) {
        self.kill_daemon(daemon);
        let give_up = Instant::now() + PASSES / 2;
        while Instant::now() < give_up {
            if let Some(subject) = self.subjects.iter().find(|subject| has_answered(&subject.tail())) {
                if random.below(2) == 0 {
                    self.kill_agent_of(subject, random);
                } else {
                    self.kill_keeper_of(subject, random);
                }
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.start(daemon).await;
    }

    /// Waits until a process passes a point. Kills that process there, or kills another process while the first one
    /// waits at the point.
    async fn at_a_point(&self, daemon: &mut Daemon, random: &mut Random) {
        let point = &self.points[usize::try_from(random.below(self.points.len() as u64)).expect("there are few")];
        let (file, hit) = (self.faults.join(point), self.faults.join(format!("{point}.hit")));
        fs::write(&file, format!("pause at {}", 1 + random.below(3))).expect("a point can be set");
        let give_up = Instant::now() + PASSES;
        let passed = loop {
            // The file is empty until the process has written its pid.
            if let Some(pid) = fs::read_to_string(&hit).ok().and_then(|pid| pid.parse::<u32>().ok()) {
                break Some(pid);
            }
            if Instant::now() > give_up {
                break None;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        fs::remove_file(&file).ok();
        if let Some(pid) = passed {
            self.tally().points += 1;
            let is_daemon = pid == daemon.pid();
            match random.below(4) {
                0 if !is_daemon => {
                    self.kill_daemon(daemon);
                    self.kill(pid);
                }
                1 => {
                    let subject = self.subjects.iter().find(|subject| subject.keepers().contains(&pid));
                    let subject = subject.unwrap_or_else(|| self.subject(random));
                    self.kill_agent_of(subject, random);
                }
                2 => self.kill_daemon(daemon),
                _ if is_daemon => self.kill_daemon(daemon),
                _ => self.kill(pid),
            }
        }
        // Without the file, a process that still waits at the point continues.
        fs::remove_file(&hit).ok();
        if daemon.is_down() {
            self.start(daemon).await;
        }
    }

    /// Kills and stops agents and keepers until the round has no kills left.
    pub(crate) async fn strike_others(&self, mut random: Random) {
        while self.kills_left() {
            tokio::time::sleep(Duration::from_millis(random.below(300))).await;
            let subject = self.subject(&mut random);
            match self.draw(&OTHERS, &mut random) {
                "agent" => self.kill_agent_of(subject, &mut random),
                "keeper" => self.kill_keeper_of(subject, &mut random),
                "stop-agent" => self.stop_for_a_while(&subject.agents(), &mut random).await,
                "stop-keeper" => self.stop_for_a_while(&subject.keepers(), &mut random).await,
                _ => self.hung_keeper(subject, &mut random).await,
            }
        }
    }

    async fn stop_for_a_while(&self, pids: &[u32], random: &mut Random) {
        let Some(pid) = any(pids, random).map(|pid| process::pid(*pid)) else { return };
        self.tally().stops += 1;
        kill(pid, Signal::SIGSTOP).ok();
        tokio::time::sleep(Duration::from_millis(random.below(800))).await;
        kill(pid, Signal::SIGCONT).ok();
    }

    /// Stops a keeper with SIGSTOP for good and checks that the daemon still stops the session. No strike hits the
    /// daemon meanwhile. The check takes some seconds, so each round runs it once.
    async fn hung_keeper(&self, subject: &Subject, random: &mut Random) {
        if self.hung.swap(true, Ordering::Relaxed) {
            return;
        }
        let _alone = subject.life.lock().await;
        let _daemon = self.daemon.lock().await;
        let keepers = subject.keepers();
        let Some(pid) = any(&keepers, random) else { return };
        {
            let mut tally = self.tally();
            tally.stops += 1;
            tally.killed.extend(Identity::of(*pid));
        }
        kill(process::pid(*pid), Signal::SIGSTOP).ok();
        let begun = Instant::now();
        loop {
            match subject.stop("?wait=20").await {
                Answer::View { phase, .. } if !phase.is_active() => break,
                answer if begun.elapsed() > ANSWERS => {
                    let what = format!("a keeper hangs, and a stop did not end the session: {answer:?}");
                    subject.witness("a hung keeper is ended", what);
                    break;
                }
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        kill(process::pid(*pid), Signal::SIGCONT).ok();
    }
}

/// Whether the end of the journal contains a turn that the agent has answered and the keeper has not ended.
fn has_answered(tail: &str) -> bool {
    let after = tail.rsplit_once("\"kind\":\"turn.started\"").map_or("", |(_, after)| after);
    after.contains("\"stopReason\"") && !after.contains("\"kind\":\"turn.ended\"")
}
