//! What running sessions need is looked at again, each at its interval: one clock for all of them.
//!
//! A check that is of no session is made once for everybody; whoever needs it is told when something was found that it has not been told,
//! by whomever it was asked. What a session makes of it is its driver's to decide: one that knows it already writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_api::prerequisite::{CheckReport, Moment, Outcome};
use agentd_api::session::Phase;
use jiff::{SignedDuration, Timestamp};
use tokio::task::JoinSet;

use super::driver::{Broken, Driver};
use super::needs::kept_subject;
use super::verdict::changed;
use super::{Session, Sessions};
use crate::config::Prerequisite;
use crate::prerequisite::{Fresh, Prerequisites, Subject, Wanted};
use crate::world::{World, Worlds};

/// The clock's longest and shortest beat; an eighth of the shortest interval in between.
const LONGEST: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(25);

/// A prerequisite of one launch of a session.
type Need = (SessionId, u64, String);

/// What is known of needs from one beat to the next.
#[derive(Default)]
struct Memory {
    told: BTreeMap<Need, (Outcome, Timestamp)>,
    /// Of those that look at the session's environment: when next.
    due: BTreeMap<Need, Instant>,
}

impl Driver {
    /// Takes note of what was found of its prerequisites, where that is news.
    pub(super) async fn found(&mut self, launch: u64, reports: &[CheckReport], anew: bool) -> Result<(), Broken> {
        let of_now = launch == self.state.launches;
        match changed(&self.state, reports, anew, &self.facts()).filter(|_| of_now) {
            Some(batch) => self.append(batch).await.map(drop),
            None => Ok(()),
        }
    }
}

/// Runs until the daemon ends.
pub(crate) async fn recheck(worlds: Arc<Worlds>, sessions: Arc<Sessions>) {
    let (mut changes, mut memory, mut under_way) = (worlds.subscribe(), Memory::default(), JoinSet::new());
    let shutdown = worlds.now().shutdown.clone();
    let mut declared = worlds.now().config.prerequisites.clone();
    loop {
        let world = Arc::clone(&changes.borrow_and_update());
        if world.launchable().is_err() {
            // No plugin is called under a configuration that is refused: what was found last still counts.
            tokio::select! {
                () = shutdown.cancelled() => return,
                next = changes.changed() => if next.is_err() { return } else { continue },
            }
        }
        let otherwise = declared_otherwise(&declared, &world.config.prerequisites);
        if !otherwise.is_empty() {
            look_anew(&world, &sessions.running(), &otherwise, &mut under_way);
            declared.clone_from(&world.config.prerequisites);
        }
        let shortest = world.config.prerequisites.values().map(|one| one.interval.0).filter(|one| !one.is_zero()).min();
        let beat = shortest.map(|shortest| (shortest / 8).clamp(SHORTEST, LONGEST));
        if let Some(beat) = beat
            && let Ok(prerequisites) = world.prerequisites().await
        {
            let running = sessions.running();
            memory.look(&world, prerequisites, &running, beat, &mut under_way);
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
            // It ends with the daemon.
            next = changes.changed() => if next.is_err() { return },
            () = pause => {}
        }
    }
}

impl Memory {
    fn look(
        &mut self,
        world: &Arc<World>,
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
            for name in world.needed(&view.spec) {
                // One whose plugin is being compiled is nobody's obstacle, and holds up no other.
                if let Some(interval) = prerequisites.interval(&name).filter(|_| prerequisites.is_settled(&name)) {
                    needs.push((session, (session.id().clone(), view.status.launches, name), interval));
                }
            }
        }
        self.told.retain(|need, _| needs.iter().any(|(_, of, _)| of == need));
        self.due.retain(|need, _| needs.iter().any(|(_, of, _)| of == need));
        for (session, need, interval) in needs {
            if prerequisites.moment(&need.2) == Moment::AfterEnvironment {
                self.of_session(world, session, need, interval, under_way);
            } else {
                self.of_all(prerequisites, session, need, interval, beat);
            }
        }
    }

    /// One that is of no session: begun when it is due, and told when there is news.
    fn of_all(
        &mut self,
        prerequisites: &Prerequisites,
        session: &Session,
        need: Need,
        interval: Duration,
        beat: Duration,
    ) {
        let last = prerequisites.last(&need.2);
        // A beat to find that it is due, and one to find what came of it: a change is told within the interval and the check's own time.
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
        match self.told.get(&need) {
            Some((outcome, _)) if *outcome == report.outcome => {}
            Some((_, at)) if *at == report.checked_at => return,
            _ if !session.found(need.1, vec![report], false) => return,
            _ => {}
        }
        self.told.insert(need, now);
    }

    /// One that looks at the session's environment.
    fn of_session(
        &mut self,
        world: &Arc<World>,
        session: &Session,
        need: Need,
        interval: Duration,
        under_way: &mut JoinSet<()>,
    ) {
        let now = Instant::now();
        // The launch has just checked it.
        let due = self.due.entry(need.clone()).or_insert_with(|| now + interval);
        if *due > now {
            return;
        }
        *due = now + interval;
        let (world, session, (_, launch, name)) = (Arc::clone(world), session.clone(), need);
        under_way.spawn(async move {
            let Some(subject) = subject_of(&world, &session, &name).await else { return };
            let Ok(prerequisites) = world.prerequisites().await else { return };
            // Sessions with the same environment share what one of them has just found.
            let wanted = Wanted { name, fresh: Fresh::Found(interval / 2) };
            let found = prerequisites.round(vec![wanted], Some(&subject)).await;
            session.found(launch, found, false);
        });
    }
}

type Declared = BTreeMap<String, Prerequisite>;

/// What is declared otherwise than it was, or not at all any more.
fn declared_otherwise(last: &Declared, next: &Declared) -> BTreeSet<String> {
    let names = last.keys().chain(next.keys()).filter(|name| last.get(*name) != next.get(*name));
    names.cloned().collect()
}

/// Looks for each running session at what it needs and is declared otherwise now, whatever its interval.
fn look_anew(world: &Arc<World>, running: &[Session], otherwise: &BTreeSet<String>, under_way: &mut JoinSet<()>) {
    for session in running {
        let view = session.view();
        let names: Vec<String> = world.needed(&view.spec).into_iter().filter(|name| otherwise.contains(name)).collect();
        if !names.is_empty() && has_launched(view.status.phase) {
            let (world, session, launch) = (Arc::clone(world), session.clone(), view.status.launches);
            under_way.spawn(async move {
                let Ok(prerequisites) = world.prerequisites_for(&names).await else { return };
                let wanted = |name| Wanted { name, fresh: Fresh::Cached };
                let (after, before): (Vec<String>, Vec<String>) =
                    names.into_iter().partition(|name| prerequisites.moment(name) == Moment::AfterEnvironment);
                let mut found = prerequisites.round(before.into_iter().map(wanted).collect(), None).await;
                if !after.is_empty()
                    && let Some(subject) = subject_of(&world, &session, &after.join(", ")).await
                {
                    found.extend(prerequisites.round(after.into_iter().map(wanted).collect(), Some(&subject)).await);
                }
                session.found(launch, found, true);
            });
        }
    }
}

fn has_launched(phase: Phase) -> bool {
    matches!(phase, Phase::Starting | Phase::Idle | Phase::Busy)
}

/// The session with the environment that it has; nothing where that cannot be read, which is logged.
async fn subject_of(world: &World, session: &Session, prerequisites: &str) -> Option<Arc<Subject>> {
    kept_subject(world, session).await.unwrap_or_else(|problem| {
        tracing::warn!(agentd.session = %session.id(), prerequisites, problem = problem.detail, "what it needs cannot be looked at again");
        None
    })
}
