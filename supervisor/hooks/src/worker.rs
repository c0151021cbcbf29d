//! The task of one hook: reads the feed from the stored position, and delivers one event after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::feed::{FEED_GONE, FEED_STATE, FeedEvent, FeedGone, FeedState, SessionBrief};
use agentd_api::hook::HookTestView;
use agentd_api::{SessionId, chain};
use agentd_feed::{FeedReader, Filter, Item, Start};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::Surroundings;
use crate::deliver::{Delivery, Stopped};
use crate::message::{self, Known};
use crate::position::Position;
use crate::send::{Attempted, Sender};
use crate::status::HookStatus;
use crate::tracker::Tracker;

/// Pause before another attempt to use the position or the feed.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval at which the position is stored while no event is for the hook.
const STORED: Duration = Duration::from_secs(10);

const SESSION_STATE: &str = "session.state";
const SESSION_REMOVED: &str = "session.removed";

/// The task of one hook.
pub(crate) struct Worker {
    surroundings: Arc<Surroundings>,
    sender: Arc<Sender>,
    status: Arc<HookStatus>,
    stop: CancellationToken,
    /// `None` until the position could be read and the feed be opened.
    progress: Option<Progress>,
}

/// Position and reader of the hook.
struct Progress {
    reader: FeedReader,
    /// Events that were read and not dealt with.
    pending: VecDeque<Arc<Item>>,
    /// The position up to which all events are dealt with.
    position: Position,
    /// Cursor of the stored position.
    stored: u64,
    stored_at: Instant,
    /// Cursor after which events are missing, until the next state of all sessions.
    gap: Option<u64>,
}

/// Why the hook does not follow the feed.
enum Interruption {
    Stopped,
    /// The feed cannot be read.
    Trouble(String),
}

impl From<Stopped> for Interruption {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl Worker {
    pub(crate) fn new(
        surroundings: Arc<Surroundings>,
        sender: Arc<Sender>,
        status: Arc<HookStatus>,
        stop: CancellationToken,
    ) -> Self {
        Self { surroundings, sender, status, stop, progress: None }
    }

    /// Finds the position. A new hook gets the present end of the feed. Trouble is noted, and [`Self::run`] tries
    /// again.
    pub(crate) async fn begin(&mut self) {
        self.resume(None).await;
    }

    /// Opens the feed at a position, or else at the stored one.
    async fn resume(&mut self, position: Option<Position>) -> Option<Position> {
        match self.open(position.clone()).await {
            Ok(progress) => {
                self.status.reach(progress.position.cursor);
                self.status.no_trouble();
                self.progress = Some(progress);
            }
            Err(trouble) => self.status.trouble(trouble),
        }
        position
    }

    /// Delivers events until the hook is stopped.
    pub(crate) async fn run(mut self) {
        let mut last = None;
        loop {
            let Some(mut progress) = self.progress.take() else {
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    () = tokio::time::sleep(AGAIN) => {}
                }
                last = self.resume(last).await;
                continue;
            };
            let Err(ended) = self.follow(&mut progress).await else { return };
            // Events that were not for the hook need no second look.
            self.store(&mut progress).await;
            match ended {
                Interruption::Stopped => return,
                Interruption::Trouble(trouble) => {
                    self.status.trouble(trouble);
                    last = Some(progress.position);
                }
            }
        }
    }

    async fn open(&self, position: Option<Position>) -> Result<Progress, String> {
        let (surroundings, name, filter) = (Arc::clone(&self.surroundings), self.sender.name.clone(), self.filter());
        let opening = agentd_host::work::blocking(move || {
            let directory = &surroundings.directory;
            let stored = match position {
                Some(position) => Some(position),
                None => Position::read(directory, &name).map_err(|error| chain(&error))?,
            };
            let start = stored.as_ref().map_or(Start::Now, |position| Start::After(position.cursor));
            let (reader, begin) = surroundings.feed.open((start, true), &filter).map_err(|error| chain(&error))?;
            let Some(position) = stored else {
                let position = Position::at(reader.cursor(), present(&begin));
                position.write(directory, &name).map_err(|error| chain(&error))?;
                return Ok((reader, Vec::new(), position));
            };
            Ok::<_, String>((reader, begin, position))
        });
        let (reader, begin, position) = opening.await.map_err(|error| chain(&error))??;
        let (stored, stored_at) = (position.cursor, Instant::now());
        Ok(Progress { reader, pending: begin.into(), position, stored, stored_at, gap: None })
    }

    /// Returns the filter of the feed: the wanted kinds, and those from which events are derived.
    fn filter(&self) -> Filter {
        let hook = &self.sender.hook;
        let wanted = hook.on.iter().filter(|event| !event.is_derived()).map(ToString::to_string);
        let derives = hook.on.iter().any(|event| event.is_derived());
        let states = derives.then_some([SESSION_STATE, SESSION_REMOVED]).into_iter().flatten();
        let kinds = wanted.chain(states.map(str::to_owned)).collect();
        Filter { kinds, label: hook.label.clone(), ..Filter::default() }
    }

    async fn follow(&self, progress: &mut Progress) -> Result<(), Interruption> {
        let mut feed = self.surroundings.feed.watch();
        loop {
            feed.borrow_and_update();
            loop {
                while let Some(item) = progress.pending.pop_front() {
                    self.take(progress, &item).await?;
                }
                progress.position.cursor = progress.reader.cursor();
                self.status.reach(progress.position.cursor);
                self.store_late(progress).await;
                let before = progress.reader.cursor();
                progress.read().await.map_err(Interruption::Trouble)?;
                if progress.pending.is_empty() && progress.reader.cursor() == before {
                    break;
                }
                if self.stop.is_cancelled() {
                    return Err(Interruption::Stopped);
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return Err(Interruption::Stopped),
                changed = feed.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep(STORED), if progress.is_ahead() => self.store_late(progress).await,
            }
        }
    }

    /// Deals with one item of the feed.
    async fn take(&self, progress: &mut Progress, item: &Item) -> Result<(), Stopped> {
        let Ok(event) = serde_json::from_slice::<FeedEvent>(&item.line) else {
            tracing::warn!(hook = %self.sender.name, cursor = item.cursor, "an event of the feed cannot be read");
            return Ok(());
        };
        let mut tracker = progress.position.tracker.clone();
        let mut is_delivered = false;
        match event.kind.as_str() {
            FEED_GONE => {
                let gone: FeedGone = serde_json::from_value(event.data.clone()).unwrap_or_default();
                let is_whole = gone.after.is_some();
                let mut message = message::of_event(&self.sender.name, &event, &self.known(event.session.as_ref()));
                if is_whole {
                    // After a crash the same gap is found again, at the same position.
                    progress.gap = Some(progress.position.cursor);
                    message.data.id = message::id(&self.sender.name, progress.position.cursor, FEED_GONE);
                }
                self.deliver(&message, Timestamp::now()).await?;
                if is_whole {
                    return Ok(());
                }
                is_delivered = true;
            }
            FEED_STATE => {
                let state: FeedState = serde_json::from_value(event.data.clone()).unwrap_or_default();
                tracker.keep(&state.sessions);
                let gap = progress.gap.take();
                for brief in &state.sessions {
                    is_delivered |= self.derive(&mut tracker, (gap, &event), brief).await?;
                }
            }
            SESSION_STATE => {
                if let Ok(brief) = serde_json::from_value::<SessionBrief>(event.data.clone()) {
                    is_delivered = self.derive(&mut tracker, (None, &event), &brief).await?;
                }
            }
            kind => {
                if let Some(id) = event.session.as_ref().filter(|_| kind == SESSION_REMOVED) {
                    tracker.remove(id);
                }
                let known = self.known(event.session.as_ref());
                if self.sender.hook.on.iter().any(|wanted| wanted.as_str() == kind) && self.fits(&known) {
                    let message = message::of_event(&self.sender.name, &event, &known);
                    self.deliver(&message, event.time).await?;
                    is_delivered = true;
                }
            }
        }
        progress.position.tracker = tracker;
        progress.position.cursor = item.cursor;
        self.status.reach(item.cursor);
        if is_delivered {
            self.store(progress).await;
        }
        Ok(())
    }

    /// Takes in the state of a session, and delivers the events that begin with it. Returns whether there were any.
    async fn derive(
        &self,
        tracker: &mut Tracker,
        (gap, event): (Option<u64>, &FeedEvent),
        brief: &SessionBrief,
    ) -> Result<bool, Stopped> {
        let mut is_delivered = false;
        let begun = tracker.take(brief);
        for name in begun {
            let mut known = self.known(Some(&brief.id));
            known.brief = Some(Arc::new(brief.clone()));
            if !self.sender.hook.on.iter().any(|wanted| wanted.as_str() == name) || !self.fits(&known) {
                continue;
            }
            let hook = &self.sender.name;
            let mut message = message::of_state(hook, name, (event.cursor, event.time), brief, &known);
            if event.kind == FEED_STATE {
                // Several sessions share the cursor of this event.
                message.data.id = format!("{}_{}", message::id(hook, gap.unwrap_or(event.cursor), name), brief.id);
            }
            self.deliver(&message, event.time).await?;
            is_delivered = true;
        }
        Ok(is_delivered)
    }

    async fn deliver(&self, message: &agentd_api::hook::HookMessage, time: Timestamp) -> Result<(), Stopped> {
        let (surroundings, sender, status) = (&self.surroundings, &self.sender, &self.status);
        Delivery { surroundings, sender, status, stop: &self.stop }.deliver(message, time).await
    }

    fn known(&self, id: Option<&SessionId>) -> Known {
        let Some(id) = id else { return Known::default() };
        let session = self.surroundings.sessions.known(id);
        Known { brief: self.surroundings.feed.brief(id), view: session.and_then(|session| session.current_view()) }
    }

    /// Reports whether the hook wants events of this session.
    fn fits(&self, known: &Known) -> bool {
        let hook = &self.sender.hook;
        let of_view = || known.view.as_ref().map(|view| &view.spec.directory);
        let directory = of_view().or_else(|| known.brief.as_ref().map(|brief| &brief.directory));
        hook.agent.as_ref().is_none_or(|agent| known.agent().as_ref() == Some(agent))
            && hook.directory.as_ref().is_none_or(|wanted| directory.is_some_and(|found| found.starts_with(wanted)))
    }

    /// Stores the position if it was not stored for a while.
    async fn store_late(&self, progress: &mut Progress) {
        if progress.stored_at.elapsed() >= STORED {
            self.store(progress).await;
        }
    }

    /// Stores the position. After a failure the hook continues, and the position is stored later.
    async fn store(&self, progress: &mut Progress) {
        if !progress.is_ahead() {
            return;
        }
        progress.stored_at = Instant::now();
        let (position, name) = (progress.position.clone(), self.sender.name.clone());
        let surroundings = Arc::clone(&self.surroundings);
        let written = agentd_host::work::blocking(move || position.write(&surroundings.directory, &name)).await;
        match written {
            Ok(Ok(())) => {
                progress.stored = progress.position.cursor;
                self.status.no_trouble();
            }
            Ok(Err(error)) => self.status.trouble(chain(&error)),
            Err(error) => self.status.trouble(chain(&error)),
        }
    }
}

impl Progress {
    fn is_ahead(&self) -> bool {
        self.position.cursor != self.stored
    }

    /// Reads the next events.
    async fn read(&mut self) -> Result<(), String> {
        let items = if let Some(items) = self.reader.next_in_memory() {
            items
        } else {
            let mut reader = self.reader.clone();
            let reading = agentd_host::work::blocking(move || {
                let read = reader.next_in_files();
                (reader, read)
            });
            let (reader, read) = reading.await.map_err(|error| chain(&error))?;
            self.reader = reader;
            read.map_err(|error| chain(&error))?
        };
        self.pending.extend(items);
        Ok(())
    }
}

/// Returns the tracker of the present states. A need that began before the hook is no event.
fn present(begin: &[Arc<Item>]) -> Tracker {
    let mut tracker = Tracker::default();
    for item in begin.iter().filter(|item| item.kind == FEED_STATE) {
        let event = serde_json::from_slice::<FeedEvent>(&item.line).ok();
        let state = event.and_then(|event| serde_json::from_value::<FeedState>(event.data).ok()).unwrap_or_default();
        for brief in &state.sessions {
            tracker.take(brief);
        }
    }
    tracker
}

/// Sends a test event.
pub(crate) async fn test(surroundings: &Surroundings, sender: &Sender) -> HookTestView {
    let mut random = [0; 8];
    // Without random bytes the id is not unique, which a test can bear.
    let _ = getrandom::fill(&mut random);
    let cursor = *surroundings.feed.watch().borrow();
    let id = format!("msg_{}_test_{}", sender.name, agentd_api::hex(&random));
    let message = message::of_test(&sender.name, cursor, id, Timestamp::now());
    let _permit = surroundings.permits.acquire().await;
    let Attempted { attempt, answer, .. } = sender.attempt(&surroundings.generations.now(), &message, 1).await;
    HookTestView { attempt, answer }
}
