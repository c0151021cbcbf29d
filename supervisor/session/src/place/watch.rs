//! Follows the engines of places, with one query for all launches of a place.
//!
//! The engine's state of a launch becomes a record of its session. Two rules bound the work: a place without launches
//! is not asked, and one query answers for all launches of the place.
//!
//! ```text
//! listed as queued, starting     ► place.changed queued, starting
//! listed with an end soon        ► place.changed ending: the agent is ended in order
//! listed as ended, or unknown    ► place.changed ended, with the engine's reason
//! listed without an agent here   ► swept by its name
//! ```
//!
//! Looks of earlier daemons and launches of removed sessions ([`super::looks`]) are swept too. At the start of the
//! daemon, the engine is asked for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_api::event::{PlaceChanged, PlaceState};
use agentd_api::session::{Phase, SessionView};
use agentd_decide::rules::Command;
use agentd_metrics::Metrics;
use agentd_place::{EngineState, LaunchNames, PlaceKind, session_and_launch};
use async_recursion::async_recursion as boxed;
use jiff::{SignedDuration, Timestamp};
use tokio::task::JoinSet;

use super::SessionPlace;
use crate::Sessions;
use crate::generation::Generations;

/// Time before the engine's end of a launch at which the agent is ended in order. Agents take up to 10 s for that.
const NOTICE: SignedDuration = SignedDuration::from_secs(30);
/// Time in which an engine may not list a new launch yet.
const NEW: SignedDuration = SignedDuration::from_secs(20);
/// Number of queries in a row that do not list a launch, after which the engine has forgotten it.
const FORGOTTEN: u32 = 3;
/// Time after the end of a session in which the engine's reason for it is looked for.
const AFTERWARDS: SignedDuration = SignedDuration::from_mins(5);
/// Message of a launch whose agent was ended before the announced end.
const IN_ORDER: &str = "the agent was ended in order before it";
/// Pause between two sweeps of one launch.
const SWEPT: Duration = Duration::from_secs(30);
/// Shortest pause between two looks at all places.
const BEAT: Duration = Duration::from_millis(100);

/// Knowledge about one place that is kept from one query to the next.
#[derive(Debug, Default)]
struct Known {
    due: Option<Instant>,
    /// Number of queries in a row that did not list a launch.
    absent: BTreeMap<String, u32>,
    /// Launches without an agent that were listed, each with the time of its next sweep.
    left: BTreeMap<String, Instant>,
    /// Ended launches whose reason was looked for.
    asked: BTreeSet<String>,
    /// Whether the last query failed.
    is_silent: bool,
    /// Whether what earlier daemons left behind was looked for.
    is_swept: bool,
    /// Whether the last look had launches. One more look follows them, and finds what the last of them left behind.
    had_launches: bool,
    /// Launches that belong to no session, once their words were read.
    earlier: Option<Earlier>,
}

/// Looks of earlier daemons and launches of removed sessions that the engine may still have.
#[derive(Debug)]
struct Earlier {
    words: BTreeSet<String>,
    /// Time from which the engine lists each launch that it has.
    settled: Instant,
}

impl Earlier {
    /// Reads the words of earlier daemons.
    async fn read(place: &SessionPlace) -> Self {
        let (words, name) = (Arc::clone(place.looks()), place.name().to_owned());
        let read = agentd_host::work::blocking(move || words.earlier(&name)).await;
        let words = match read {
            Ok(Ok(words)) => words,
            Ok(Err(error)) => {
                let place = place.name();
                tracing::warn!(%error, place, "cannot read the names of launches that belong to no session");
                BTreeSet::new()
            }
            Err(_) => BTreeSet::new(),
        };
        Self { words, settled: Instant::now() + NEW.unsigned_abs() }
    }

    /// Adds sessions that were removed.
    fn add(&mut self, removed: BTreeSet<String>) {
        if !removed.is_empty() {
            self.words.extend(removed);
            self.settled = Instant::now() + NEW.unsigned_abs();
        }
    }

    /// Forgets the words from which the engine lists nothing.
    async fn forget(&mut self, place: &SessionPlace, states: &[EngineState]) {
        if self.words.is_empty() || Instant::now() < self.settled {
            return;
        }
        let is_listed = |state: &&EngineState| !state.is_ended();
        let listed = states.iter().filter(is_listed).filter_map(|state| session_and_launch(&state.name));
        let listed: BTreeSet<&str> = listed.map(|(word, _)| word).collect();
        let gone: Vec<String> = self.words.iter().filter(|word| !listed.contains(word.as_str())).cloned().collect();
        self.words.retain(|word| listed.contains(word.as_str()));
        let (words, name) = (Arc::clone(place.looks()), place.name().to_owned());
        let forget = move || gone.iter().for_each(|word| words.forget(&name, word));
        let _ = agentd_host::work::blocking(forget).await;
    }
}

/// A launch of a session on a place.
#[derive(Debug)]
struct Launch {
    session: SessionId,
    number: u64,
    name: String,
    job: Option<String>,
    has_entered: bool,
    /// Whether the connection is cut, and the agent stays on the place.
    is_away: bool,
    is_running: bool,
    /// Reason for which the engine announced the end.
    announced: Option<String>,
    started: Option<Timestamp>,
}

impl Launch {
    fn of(view: &SessionView, place: &str, now: Timestamp) -> Option<Self> {
        let placed = view.status.place.as_ref().filter(|placed| placed.name == place)?;
        let phase = view.status.phase;
        let is_running = phase.is_active() && phase != Phase::Preparing;
        let has_ended = || view.status.ended_at.is_some_and(|ended| now.duration_since(ended) < AFTERWARDS);
        let failed = matches!(phase, Phase::Failed | Phase::BackingOff);
        if !(is_running || failed && placed.state != PlaceState::Ended && has_ended()) {
            return None;
        }
        let (session, number) = (view.id.clone(), view.status.launches);
        let name = LaunchNames::new(session.as_str(), number);
        Some(Self {
            name: name.name(),
            session,
            number,
            job: placed.job.clone(),
            has_entered: placed.host.is_some(),
            is_away: placed.state == PlaceState::Away,
            is_running,
            announced: placed.reason.clone().filter(|_| placed.state == PlaceState::Ending),
            started: view.status.started_at,
        })
    }

    fn names(&self) -> LaunchNames<'_> {
        LaunchNames::new(self.session.as_str(), self.number)
    }
}

/// Follows the engines until the daemon ends.
#[boxed]
pub async fn watch(generations: Arc<Generations>, sessions: Arc<Sessions>) {
    let (mut changes, mut known) = (generations.subscribe(), BTreeMap::<String, Known>::new());
    let shutdown = generations.now().daemon.shutdown.clone();
    loop {
        let generation = Arc::clone(&changes.borrow_and_update());
        known.retain(|place, _| generation.places().contains_key(place));
        let mut asking = JoinSet::new();
        for (name, place) in generation.places() {
            let state = known.entry(name.clone()).or_default();
            if place.place.status().is_none() || state.due.is_some_and(|due| Instant::now() < due) {
                continue;
            }
            let (place, sessions, mut kept) = (Arc::clone(place), Arc::clone(&sessions), std::mem::take(state));
            let metrics = Arc::clone(&generation.daemon.metrics);
            asking.spawn(async move {
                kept.look(&place, &sessions, &metrics).await;
                kept.due = Instant::now().checked_add(place.place.poll);
                (place.name().to_owned(), kept)
            });
        }
        while let Some(asked) = asking.join_next().await {
            if let Ok((name, kept)) = asked {
                known.insert(name, kept);
            }
        }
        let next = known.values().filter_map(|known| known.due).min();
        let pause = async {
            match next {
                Some(next) => tokio::time::sleep_until(next.max(Instant::now() + BEAT).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            next = changes.changed() => if next.is_err() { return },
            () = pause => {}
        }
    }
}

impl Known {
    /// Asks the engine once, if any launch may be there.
    async fn look(&mut self, place: &SessionPlace, sessions: &Sessions, metrics: &Metrics) {
        let now = Timestamp::now();
        let mut launches = Vec::new();
        let mut was_used = false;
        sessions.each_view(|view| {
            launches.extend(Launch::of(view, place.name(), now));
            was_used |= view.status.place.as_ref().is_some_and(|placed| placed.name == place.name());
        });
        launches.retain(|launch| launch.is_running || !self.asked.contains(&launch.name));
        if self.earlier.is_none() {
            self.earlier = Some(Earlier::read(place).await);
        }
        if let Some(earlier) = &mut self.earlier {
            earlier.add(place.looks().take_removed(place.name()));
        }
        let has_earlier = self.earlier.as_ref().is_some_and(|earlier| !earlier.words.is_empty());
        let had_launches = std::mem::replace(&mut self.had_launches, !launches.is_empty());
        let has_left = had_launches || !self.left.is_empty() || has_earlier;
        let leaves_behind = has_left || (was_used && !self.is_swept && sessions.is_whole());
        if launches.is_empty() && !leaves_behind {
            return;
        }
        let begun = Instant::now();
        let answer = place.states().await;
        let outcome = if answer.is_ok() { "ok" } else { "failed" };
        metrics.place_query_duration.observe([metrics.place(place.name()), outcome], begun.elapsed());
        let states = match answer {
            Ok(Some(states)) => states,
            Ok(None) => return,
            Err(error) => {
                self.had_launches = true;
                if !std::mem::replace(&mut self.is_silent, true) {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the engine of a place does not answer");
                }
                return;
            }
        };
        if std::mem::take(&mut self.is_silent) {
            tracing::info!(place = place.name(), "the engine of a place answers again");
        }
        // Of several states of one launch, the first counts.
        let named = states.iter().rev().map(|state| (state.name.as_str(), state));
        let listed_states: BTreeMap<&str, &EngineState> = named.collect();
        for launch in &launches {
            let listed = listed_states.get(launch.name.as_str()).copied();
            if let Some(changed) = self.judge(place, launch, listed, now).await
                && let Some(session) = sessions.known(&launch.session)
                && let Err(problem) = session.ask(Command::ReportPlace(Box::new(changed))).await
            {
                let (session, problem) = (&launch.session, problem.detail);
                tracing::debug!(agentd.session = %session, problem, "cannot record the state of a place");
            }
        }
        let present: BTreeSet<&str> = launches.iter().map(|launch| launch.name.as_str()).collect();
        self.absent.retain(|name, _| present.contains(name.as_str()));
        if sessions.is_whole() {
            self.sweep(place, sessions, &states).await;
            self.is_swept = true;
            if let Some(earlier) = &mut self.earlier {
                earlier.forget(place, &states).await;
            }
        }
    }

    /// Returns the record about a launch that follows from the engine's answer.
    async fn judge(
        &mut self,
        place: &SessionPlace,
        launch: &Launch,
        listed: Option<&EngineState>,
        now: Timestamp,
    ) -> Option<PlaceChanged> {
        let Some(listed) = listed else { return self.absent(place, launch, now).await };
        self.absent.remove(&launch.name);
        let changed = |state| record(place, launch, listed, state);
        match listed.state {
            // The near side reports the end of the agent in a moment. The engine's words follow it.
            Some(_) if listed.is_of_program && launch.has_entered && launch.is_running && !launch.is_away => None,
            Some(PlaceState::Ended) => {
                self.asked.insert(launch.name.clone());
                let mut ended = changed(PlaceState::Ended);
                if listed.is_of_program {
                    // The parent of the agent has ended, and the end of the agent was not read.
                    ended.requeue |= launch.is_away;
                    // The agent was ended in order before the announced end.
                    if let Some(reason) = &launch.announced {
                        (ended.reason, ended.message) = (Some(reason.clone()), Some(IN_ORDER.to_owned()));
                    }
                }
                Some(ended)
            }
            _ if !launch.is_running => None,
            Some(_) if listed.ends.is_some_and(|ends| ends.duration_since(now) < NOTICE) => {
                let message = listed.ends.map(|ends| format!("its time ends at {ends:.0}"));
                let mut changed = changed(PlaceState::Ending);
                changed.reason.get_or_insert_with(|| "TimeLimit".to_owned());
                changed.message = changed.message.or(message);
                Some(changed)
            }
            // A job of Slurm that is completing has ended already, and its client tells the end of the agent.
            Some(PlaceState::Ending) if matches!(place.place.kind, PlaceKind::Slurm(_)) => None,
            Some(PlaceState::Ending) => Some(changed(PlaceState::Ending)),
            Some(PlaceState::Queued) if !launch.has_entered => Some(changed(PlaceState::Queued)),
            Some(_) if !launch.has_entered => Some(changed(PlaceState::Starting)),
            Some(_) if launch.job.is_none() && listed.job.is_some() => {
                Some(PlaceChanged { reason: None, message: None, ..changed(PlaceState::Running) })
            }
            Some(_) | None => None,
        }
    }

    /// Judges a launch that the engine does not list.
    async fn absent(&mut self, place: &SessionPlace, launch: &Launch, now: Timestamp) -> Option<PlaceChanged> {
        let count = self.absent.entry(launch.name.clone()).or_default();
        *count += 1;
        let is_new = launch.started.is_some_and(|started| now.duration_since(started) < NEW);
        if launch.is_running && (*count < FORGOTTEN || is_new) {
            return None;
        }
        if !launch.is_running {
            self.asked.insert(launch.name.clone());
        }
        if let Some(end) = place.end_of(&launch.names(), launch.job.as_deref()).await.filter(EngineState::is_ended) {
            return Some(record(place, launch, &end, PlaceState::Ended));
        }
        // An agent that runs shows that its engine runs it, whatever the engine lists.
        (launch.is_running && (!launch.has_entered || launch.is_away)).then(|| PlaceChanged {
            reason: Some("Forgotten".to_owned()),
            message: Some("the engine does not know the launch".to_owned()),
            // Without a reason of the engine, the session is started again as after a lost connection.
            requeue: launch.is_away,
            ..record(place, launch, &EngineState::default(), PlaceState::Ended)
        })
    }

    /// Removes launches of this daemon's sessions that have no agent here, and looks of earlier daemons. All others may
    /// belong to another daemon.
    async fn sweep(&mut self, place: &SessionPlace, sessions: &Sessions, states: &[EngineState]) {
        let now = Instant::now();
        let mut left = BTreeMap::new();
        let keeps_ended = place.place.kind.keeps_ended();
        for state in states.iter().filter(|state| keeps_ended || !state.is_ended()) {
            let Some((session, number)) = session_and_launch(&state.name) else { continue };
            let is_earlier = self.earlier.as_ref().is_some_and(|earlier| earlier.words.contains(session));
            let known = session.parse().ok().and_then(|id| sessions.known(&id));
            let is_left = match known {
                Some(known) => !(known.may_run() && known.view().status.launches == number),
                None => is_earlier,
            };
            if !is_left {
                continue;
            }
            // A launch that ends just now is listed for a moment. A job on a lost node is listed for minutes.
            let due = match self.left.get(&state.name) {
                None => now,
                Some(due) if *due > now => *due,
                Some(_) => {
                    let names = LaunchNames::new(session, number);
                    place.sweep(&names).await;
                    now + SWEPT
                }
            };
            left.insert(state.name.clone(), due);
        }
        self.left = left;
    }
}

fn record(place: &SessionPlace, launch: &Launch, listed: &EngineState, state: PlaceState) -> PlaceChanged {
    PlaceChanged {
        launch: launch.number,
        place: place.name().to_owned(),
        state,
        reason: listed.reason.clone(),
        message: listed.message.clone(),
        job: listed.job.clone(),
        requeue: listed.is_of_engine && place.place.kind.requeues(),
        host: None,
    }
}
