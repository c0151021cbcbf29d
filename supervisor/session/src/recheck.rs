//! Repeats the checks of running sessions' prerequisites at their intervals, with one clock for all sessions.
//!
//! A check that depends on no session runs once for all sessions. Each session receives a report that differs from
//! its last one, whatever request caused the check. The driver decides about the report, and writes nothing if it
//! is not new.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_api::prerequisite::{Moment, Outcome};
use agentd_api::session::Phase;
use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use tokio::task::JoinSet;

use super::needs::kept_subject;
use super::{Session, Sessions};
use crate::generation::{Generation, Generations};
use agentd_config::Prerequisite;
use agentd_prerequisite::{CheckedSession, Freshness, Prerequisites, RequestedCheck};

/// Longest and shortest period of the clock. In between it is an eighth of the shortest interval.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(25);

/// A prerequisite of one launch of a session.
type ReserveUse = (SessionId, u64, String);

/// State that is kept from one period to the next.
#[derive(Default)]
struct RecheckState {
    /// Next check of each prerequisite that depends on the session's environment.
    reported: BTreeMap<ReserveUse, (Outcome, Timestamp)>,
    due: BTreeMap<ReserveUse, Instant>,
}

/// Repeats the checks until the daemon ends.
#[boxed]
pub async fn recheck(generations: Arc<Generations>, sessions: Arc<Sessions>) {
    let (mut changes, mut state, mut under_way) = (generations.subscribe(), RecheckState::default(), JoinSet::new());
    let shutdown = generations.now().daemon.shutdown.clone();
    let mut declared = generations.now().config.prerequisites.clone();
    loop {
        let generation = Arc::clone(&changes.borrow_and_update());
        if generation.launchable().is_err() {
            // An invalid configuration calls no plugin, and the last reports stay valid.
            tokio::select! {
                () = shutdown.cancelled() => return,
                next = changes.changed() => if next.is_err() { return } else { continue },
            }
        }
        let otherwise = declared_otherwise(&declared, &generation.config.prerequisites);
        if !otherwise.is_empty() {
            look_anew(&generation, &sessions.running(), &otherwise, &mut under_way);
            declared.clone_from(&generation.config.prerequisites);
        }
        let shortest =
            generation.config.prerequisites.values().map(|one| one.interval.0).filter(|one| !one.is_zero()).min();
        let beat = shortest.map(|shortest| (shortest / 8).clamp(SHORTEST, LONGEST));
        if let Some(beat) = beat
            && let Ok(prerequisites) = generation.prerequisites().await
        {
            let running = sessions.running();
            state.look(&generation, prerequisites, &running, beat, &mut under_way);
        }
        while under_way.try_join_next().is_some() {}
        let pause = async {
            match beat {
                Some(beat) => tokio::time::sleep(beat).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            // The channel closes with the daemon.
            next = changes.changed() => if next.is_err() { return },
            () = pause => {}
        }
    }
}

impl RecheckState {
    fn look(
        &mut self,
        generation: &Arc<Generation>,
        prerequisites: &Arc<Prerequisites>,
        running: &[Session],
        beat: Duration,
        under_way: &mut JoinSet<()>,
    ) {
        let mut needs = Vec::new();
        for session in running {
            let view = session.view();
            if !has_launched(view.status.phase) {
                continue;
            }
            for name in generation.needed_by(&view) {
                // A prerequisite whose plugin is being compiled is left out, and delays no other.
                if let Some(interval) = prerequisites.interval(&name).filter(|_| prerequisites.is_settled(&name)) {
                    needs.push((session, (session.id().clone(), view.status.launches, name), interval));
                }
            }
        }
        self.reported.retain(|need, _| needs.iter().any(|(_, of, _)| of == need));
        self.due.retain(|need, _| needs.iter().any(|(_, of, _)| of == need));
        for (session, need, interval) in needs {
            if prerequisites.moment(&need.2) == Moment::AfterEnvironment {
                self.of_session(generation, session, need, interval, under_way);
            } else {
                self.of_all(prerequisites, session, need, interval, beat);
            }
        }
    }

    /// Handles a check that depends on no session: begins it when due, and sends the session a new report.
    fn of_all(
        &mut self,
        prerequisites: &Prerequisites,
        session: &Session,
        need: ReserveUse,
        interval: Duration,
        beat: Duration,
    ) {
        let last = prerequisites.last(&need.2);
        // One period may pass until a check is begun, and one until its report is seen. The limit allows for both,
        // so a change is reported within the interval and the time of the check.
        let age = |at: Timestamp| Timestamp::now().duration_since(at);
        let is_due = |at| {
            let age = age(at);
            let limit = SignedDuration::try_from(interval.saturating_sub(2 * beat)).unwrap_or(SignedDuration::MAX);
            age < SignedDuration::ZERO || age >= limit
        };
        if last.as_ref().is_none_or(|last| is_due(last.checked_at)) {
            prerequisites.look_again(&need.2);
        }
        let Some(report) = last else { return };
        let now = (report.outcome, report.checked_at);
        match self.reported.get(&need) {
            Some((outcome, _)) if *outcome == report.outcome => {}
            Some((_, at)) if *at == report.checked_at => return,
            _ if !session.found(need.1, vec![report], false) => return,
            _ => {}
        }
        self.reported.insert(need, now);
    }

    /// Handles a check that depends on the session's environment.
    fn of_session(
        &mut self,
        generation: &Arc<Generation>,
        session: &Session,
        need: ReserveUse,
        interval: Duration,
        under_way: &mut JoinSet<()>,
    ) {
        let now = Instant::now();
        // The launch itself has just checked the prerequisite.
        let due = self.due.entry(need.clone()).or_insert_with(|| now + interval);
        if *due > now {
            return;
        }
        *due = now + interval;
        let (generation, session, (_, launch, name)) = (Arc::clone(generation), session.clone(), need);
        under_way.spawn(async move {
            let Some(subject) = subject_of(&generation, &session, &name).await else { return };
            let Ok(prerequisites) = generation.prerequisites().await else { return };
            // Sessions with the same environment share a recent report.
            let wanted = RequestedCheck { name, fresh: Freshness::Found(interval / 2) };
            let found = prerequisites.round(vec![wanted], Some(&subject)).await;
            session.found(launch, found, false);
        });
    }
}

type Declared = BTreeMap<String, Prerequisite>;

/// Returns the names of prerequisites whose declaration changed or is gone.
fn declared_otherwise(last: &Declared, next: &Declared) -> BTreeSet<String> {
    let names = last.keys().chain(next.keys()).filter(|name| last.get(*name) != next.get(*name));
    names.cloned().collect()
}

/// Checks the prerequisites with a changed declaration, for each running session that needs them, regardless of
/// intervals.
fn look_anew(
    generation: &Arc<Generation>,
    running: &[Session],
    otherwise: &BTreeSet<String>,
    under_way: &mut JoinSet<()>,
) {
    for session in running {
        let view = session.view();
        let names: Vec<String> =
            generation.needed_by(&view).into_iter().filter(|name| otherwise.contains(name)).collect();
        if !names.is_empty() && has_launched(view.status.phase) {
            let (generation, session, launch) = (Arc::clone(generation), session.clone(), view.status.launches);
            under_way.spawn(async move {
                let Ok(prerequisites) = generation.prerequisites_for(&names).await else { return };
                let wanted = |name| RequestedCheck { name, fresh: Freshness::Cached };
                let (after, before): (Vec<String>, Vec<String>) =
                    names.into_iter().partition(|name| prerequisites.moment(name) == Moment::AfterEnvironment);
                let mut found = prerequisites.round(before.into_iter().map(wanted).collect(), None).await;
                if !after.is_empty()
                    && let Some(subject) = subject_of(&generation, &session, &after.join(", ")).await
                {
                    found.extend(prerequisites.round(after.into_iter().map(wanted).collect(), Some(&subject)).await);
                }
                session.found(launch, found, true);
            });
        }
    }
}

fn has_launched(phase: Phase) -> bool {
    phase.is_ready() || phase == Phase::Starting
}

/// Returns the session as the subject of checks, with its present environment. An environment that cannot be read
/// is logged.
async fn subject_of(generation: &Generation, session: &Session, prerequisites: &str) -> Option<Arc<CheckedSession>> {
    kept_subject(generation, session).await.unwrap_or_else(|problem| {
        tracing::warn!(
            agentd.session = %session.id(), prerequisites, problem = problem.detail,
            "cannot repeat the check of a prerequisite"
        );
        None
    })
}
