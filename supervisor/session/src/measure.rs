//! Values of the metrics that no record contains: the sessions of the moment, their processes, journals and snapshots.
//!
//! [`show_sessions`] reads published views only, so a request never waits. [`Measure`] reads processes and disks in the
//! background, each kind in a loop of its own. A disk that hangs delays its own loop alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_api::event::PlaceState;
use agentd_api::place::PlaceView;
use agentd_api::session::{ConditionStatus, ConditionType};
use agentd_caller::UNIT_PREFIX;
use agentd_host::{manager, platform, work};
use agentd_metrics::{HOSTS, Metrics, SESSIONS};
use agentd_place::PlaceKind;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use crate::generation::{Generation, Generations};
use crate::{Session, Sessions};

/// Label of places that are not configured any more, and of machines that have no series of their own.
const OTHER: &str = "other";
/// Pause between two measurements of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// The measurements of a daemon, until it ends.
#[derive(Debug)]
pub struct Measure {
    generations: Arc<Generations>,
    sessions: Arc<Sessions>,
    /// The sessions with a keeper that the daemon takes over.
    adopted: Vec<Session>,
    begun: Instant,
}

/// Sizes of journals, each with the last sequence number at its measurement.
type Sizes = BTreeMap<SessionId, (u64, u64)>;

impl Measure {
    /// Notes the sessions that are being taken over. `begun` is the begin of their takeover. No other session has been
    /// read yet.
    pub fn new(generations: Arc<Generations>, sessions: Arc<Sessions>, begun: Instant) -> Self {
        let adopted = sessions.those(|_| true);
        Self { generations, sessions, adopted, begun }
    }

    /// Measures until the daemon ends.
    #[boxed]
    pub async fn run(self) {
        let shutdown = self.generations.now().daemon.shutdown.clone();
        let measuring = async {
            tokio::join!(self.adoption(), self.processes(), self.disk(), self.manager());
        };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = measuring => {}
        }
    }

    fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.generations.now().daemon.metrics)
    }

    async fn adoption(&self) {
        let metrics = self.metrics();
        metrics.adopted_sessions.set([], amount(self.adopted.len()));
        for session in &self.adopted {
            session.is_current().await;
        }
        let took = if self.adopted.is_empty() { Duration::ZERO } else { self.begun.elapsed() };
        metrics.adoption_duration.set([], took.as_secs_f64());
    }

    async fn processes(&self) {
        let metrics = self.metrics();
        loop {
            let mut keepers = Vec::new();
            self.sessions.each_view(|view| keepers.extend(view.status.keeper_pid.map(|pid| (view.id.clone(), pid))));
            let left_out = bound(&mut keepers);
            let pids: Vec<u32> = keepers.iter().map(|(_, pid)| *pid).collect();
            let Ok(loads) = work::blocking(move || platform::loads(&pids, UNIT_PREFIX)).await else { return };
            metrics.replace(|metrics| {
                metrics.session_memory.reset();
                metrics.session_cpu.reset();
                metrics.session_processes.reset();
                for (id, pid) in &keepers {
                    let Some(load) = loads.get(pid) else { continue };
                    metrics.session_memory.set([id.as_str()], bytes(load.memory));
                    metrics.session_processes.set([id.as_str()], f64::from(load.processes));
                    if let Some(time) = load.time {
                        metrics.session_cpu.set_total([id.as_str()], time.as_secs_f64());
                    }
                }
                metrics.sessions_left_out.set([], amount(left_out));
                metrics.last_sample.set(["processes"], now());
            });
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn disk(&self) {
        let (metrics, mut sizes) = (self.metrics(), Sizes::new());
        loop {
            let all: Vec<(SessionId, PathBuf, u64)> = (self.sessions.those(|_| true).iter())
                .map(|session| (session.id().clone(), session.directory().clone(), session.view().status.last_seq))
                .collect();
            let (known, snapshots) = (std::mem::take(&mut sizes), Arc::clone(&self.generations.now().snapshots));
            let Ok((measured, totals)) = work::blocking(move || (measured(all, &known), snapshots.totals())).await
            else {
                return;
            };
            sizes = measured;
            metrics.journal.set([], bytes(sizes.values().map(|(_, size)| size).sum()));
            metrics.snapshot_uses.set_total(["hit"], bytes(totals.hits));
            metrics.snapshot_uses.set_total(["capture"], bytes(totals.captures));
            metrics.snapshot_age.set([], totals.oldest.unwrap_or_default().as_secs_f64());
            metrics.last_sample.set(["disk"], now());
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn manager(&self) {
        loop {
            self.generations.now().daemon.launcher.test_manager().await;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Keeps the sessions that have series of their own, and returns the number of the others. The order of the ids
/// decides, so a session keeps its series.
fn bound<T>(keepers: &mut Vec<T>) -> usize {
    let left_out = keepers.len().saturating_sub(SESSIONS);
    keepers.truncate(SESSIONS);
    left_out
}

/// Returns the sizes of all journals. Journals without new records are not measured again.
fn measured(all: Vec<(SessionId, PathBuf, u64)>, known: &Sizes) -> Sizes {
    let size = |(id, directory, last): (SessionId, PathBuf, u64)| {
        let before = known.get(&id).filter(|(measured, _)| *measured == last).map(|(_, size)| *size);
        let size = before.unwrap_or_else(|| agentd_journal::size(&directory).unwrap_or(0));
        (id, (last, size))
    };
    all.into_iter().map(size).collect()
}

/// Sets the values that follow from the published views. Waits for no session and no disk.
pub fn show_sessions(generation: &Generation, sessions: &Sessions, metrics: &Metrics) {
    let mut phases: BTreeMap<(&str, String), usize> = BTreeMap::new();
    let mut places = PlaceCounts::default();
    let mut holding = vec![0_usize; ConditionType::NAMES.len()];
    let (mut keepers, mut queued, mut asked) = (0, 0, 0);
    sessions.each_view(|view| {
        let status = &view.status;
        let agent = metrics.agent(view.spec.agent.as_ref().map(agentd_api::AgentName::as_str));
        *phases.entry((status.phase.as_str(), agent.to_owned())).or_default() += 1;
        let holds = status.conditions.iter().filter(|condition| condition.status == ConditionStatus::True);
        for condition in holds {
            if let Some(count) = holding.get_mut(condition.kind as usize) {
                *count += 1;
            }
        }
        if let Some(placed) = status.place.as_ref().filter(|_| status.phase.is_active()) {
            places.count(generation, placed);
        }
        keepers += usize::from(status.keeper_pid.is_some());
        queued += status.queue.len();
        asked += status.permissions.len();
    });
    metrics.sessions.reset();
    for ((phase, agent), count) in &phases {
        metrics.sessions.set([phase, agent], amount(*count));
    }
    places.show(generation, metrics);
    for (named, count) in ConditionType::NAMES.iter().zip(&holding) {
        metrics.session_conditions.set([named.name], amount(*count));
    }
    metrics.keepers.set([], amount(keepers));
    metrics.warm_agents.set([], amount(generation.daemon.warm.ready()));
    metrics.queued_turns.set([], amount(queued));
    metrics.open_permissions.set([], amount(asked));
    metrics.unreadable_sessions.set([], amount(sessions.unreadable().len()));
    let pulses = &generation.daemon.pulses;
    metrics.journals_held_up.set([], amount(pulses.held_up().len()));
    metrics.drivers_stuck.set([], amount(pulses.stuck(manager::longest_step(), Instant::now()).len()));
    metrics.draining.set([], f64::from(u8::from(generation.daemon.drain.is_on())));
    if let Some(space) = generation.daemon.disk.get().and_then(agentd_host::disk::DiskWatch::space) {
        metrics.disk_free.set([], bytes(space.free));
        metrics.disk_size.set([], bytes(space.size));
    }
}

/// Numbers of active sessions on places.
#[derive(Debug, Default)]
struct PlaceCounts<'a> {
    /// By place and state.
    states: BTreeMap<(&'a str, &'a str), usize>,
    /// Sessions whose agent runs, by place and machine.
    hosts: BTreeMap<(&'a str, String), usize>,
}

impl<'a> PlaceCounts<'a> {
    fn count(&mut self, generation: &'a Generation, placed: &PlaceView) {
        let configured = generation.places().get_key_value(placed.name.as_str());
        let place = configured.map_or(OTHER, |(name, _)| name.as_str());
        *self.states.entry((place, placed.state.as_str())).or_default() += 1;
        let runs = matches!(placed.state, PlaceState::Running | PlaceState::Ending | PlaceState::Away);
        let is_named = configured.is_some_and(|(_, place)| has_machines(&place.place.kind));
        if let Some(machine) = placed.host.as_ref().filter(|_| runs && is_named) {
            *self.hosts.entry((place, machine.host.clone())).or_default() += 1;
        }
    }

    /// Sets the values. A query on a place that has no sessions has data too.
    fn show(self, generation: &Generation, metrics: &Metrics) {
        metrics.place_sessions.reset();
        metrics.place_host_sessions.reset();
        for (name, place) in generation.places() {
            for state in PlaceState::NAMES {
                metrics.place_sessions.set([name.as_str(), state.name], 0.0);
            }
            if has_machines(&place.place.kind) {
                metrics.place_host_sessions.set([name.as_str(), OTHER], 0.0);
            }
        }
        for ((place, state), count) in &self.states {
            metrics.place_sessions.set([place, state], amount(*count));
        }
        for ((place, host), count) in bounded_hosts(self.hosts) {
            metrics.place_host_sessions.set([place, &host], amount(count));
        }
    }
}

/// Reports whether the host names of a place are those of machines. A container and a pod have one of their own.
fn has_machines(kind: &PlaceKind) -> bool {
    !matches!(kind, PlaceKind::Container(_) | PlaceKind::Kubernetes(_))
}

/// Adds the sessions of the machines beyond the first [`HOSTS`] to the machine `other` of their place. The order of the
/// names decides.
fn bounded_hosts(hosts: BTreeMap<(&str, String), usize>) -> BTreeMap<(&str, String), usize> {
    let mut bounded = BTreeMap::new();
    for (number, ((place, host), count)) in hosts.into_iter().enumerate() {
        let host = if number < HOSTS { host } else { OTHER.to_owned() };
        *bounded.entry((place, host)).or_default() += count;
    }
    bounded
}

#[allow(clippy::cast_precision_loss, reason = "numbers above 2^53 lose only their last digits")]
fn bytes(number: u64) -> f64 {
    number as f64
}

fn amount(count: usize) -> f64 {
    bytes(count as u64)
}

fn now() -> f64 {
    Timestamp::now().as_duration().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_condition_has_the_number_of_its_place_in_the_list() {
        for (kind, name) in [(ConditionType::PrerequisitesMet, "PrerequisitesMet"), (ConditionType::Ready, "Ready")] {
            assert_eq!(ConditionType::NAMES[kind as usize].name, name);
        }
        assert!(ConditionType::NAMES.get(ConditionType::Unknown as usize).is_none());
    }

    #[test]
    fn at_most_two_hundred_sessions_have_series_of_their_own() {
        let mut keepers: Vec<usize> = (0..250).collect();
        assert_eq!((bound(&mut keepers), keepers.len(), keepers.last()), (50, 200, Some(&199)));
        assert_eq!((bound(&mut keepers), keepers.len()), (0, 200));
    }

    #[test]
    fn at_most_two_hundred_machines_of_places_have_series_of_their_own() {
        let hosts = (0..250).map(|number| (("farm", format!("node{number:03}")), 2)).collect();
        let bounded = bounded_hosts(hosts);
        assert_eq!((bounded.len(), bounded.values().sum::<usize>()), (201, 500));
        assert_eq!(bounded.get(&("farm", OTHER.to_owned())), Some(&100));
        assert_eq!(bounded.get(&("farm", "node199".to_owned())), Some(&2));
    }

    #[test]
    fn a_journal_without_new_records_is_not_measured_again() {
        let directory = tempfile::tempdir().unwrap();
        let id: SessionId = "abcdefghjkmn".parse().unwrap();
        let all = |last| vec![(id.clone(), directory.path().to_owned(), last)];
        let known = Sizes::from([(id.clone(), (7, 1000))]);
        assert_eq!(measured(all(7), &known)[&id], (7, 1000));
        assert_eq!(measured(all(8), &known)[&id], (8, 0));
    }
}
