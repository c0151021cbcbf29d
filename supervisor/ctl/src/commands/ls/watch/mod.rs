//! Implements `agentctl ls --watch`: follows the feed of each machine, and lists again what has changed.
//!
//! One task for each machine reads the list and then the feed. An event is the reason to read the list again, at most
//! five times a second. Pages that did not change are not sent again. A daemon without the feed is asked each second.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use agentd_api::event::Body;
use agentd_api::feed::Notice;
use agentd_api::{Code, SessionId};
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::fleet::{ErrorView, Place, line, report};
use super::table::Row;
use super::{MachineList, Wish};
use crate::commands::{print, tell};
use crate::error::Error;
use crate::output::Reader;
use crate::reach::reach;
use agentd_client::Absence as _;
use agentd_client::Pages;
use agentd_client::Patience;
use agentd_client::{Error as ClientError, FeedQuery, FeedStream};
use agentd_remote::SIDE_BY_SIDE;
use agentd_screen::terminal::{Screen, TextStyle};

/// Least time between two looks at one machine, and between two pictures on a terminal.
const PACE: Duration = Duration::from_millis(200);
/// Time between two looks at a daemon without the feed, and between two pictures: the ages change by themselves.
const LOOK: Duration = Duration::from_secs(1);
/// Longest pause between two attempts to reach a machine of a list of several.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Moves the cursor to the top left, and clears the rest of the screen.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";
/// Kinds of events that change no column: what an agent and agentd say to each other. A turn has thousands.
const TALK: &[&str] = &["agent.in", "agent.noise", "agent.out", "agent.stderr"];
/// The kinds for a daemon that does not know all kinds of this version.
const FEWER_KINDS: &str = "session.*";

/// Returns the kinds of events after which a list may differ.
fn kinds() -> String {
    let known = Body::KINDS.iter().chain(Notice::KINDS).map(|kind| kind.name);
    known.filter(|kind| !TALK.contains(kind)).collect::<Vec<_>>().join(",")
}

/// News of one machine.
enum Update {
    List(MachineList),
    /// The machine cannot be reached, and its task tries again.
    Away(Error),
    /// A remark for the user.
    Remark(String),
    /// The task has given up.
    Over(Error),
}

/// Follows one machine.
struct Watcher {
    index: usize,
    place: Place,
    pages: Pages,
    feed: FeedStream,
    /// Whether the daemon has no feed.
    polls: bool,
    turn: Arc<Semaphore>,
    updates: mpsc::Sender<(usize, Update)>,
}

impl Watcher {
    /// Follows until the updates have no reader. A list of one machine ends when its daemon is away for too long.
    async fn run(mut self) {
        let is_fleet = self.place.host.is_some();
        let mut patience = if is_fleet { Patience::endless(LONGEST_PAUSE) } else { Patience::default() };
        let mut is_away = false;
        loop {
            let error = match self.round(&mut patience, &mut is_away).await {
                Ok(()) => None,
                Err(error) if is_fleet || error.is_absence() => Some(error),
                Err(error) => {
                    self.send(Update::Over(error)).await;
                    return;
                }
            };
            if self.updates.is_closed() {
                return;
            }
            match error {
                // Pauses, so that a daemon that ends each stream at once is not asked in a tight loop.
                None => sleep(PACE).await,
                Some(error) if is_fleet => {
                    if !std::mem::replace(&mut is_away, true) {
                        self.send(Update::Away(error)).await;
                    }
                    patience.pause().await;
                }
                Some(error) => {
                    if !std::mem::replace(&mut is_away, true) {
                        let remark = "agentd is unreachable; agentctl reconnects when agentd is back";
                        self.send(Update::Remark(remark.to_owned())).await;
                    }
                    if let Err(error) = patience.wait(error).await {
                        self.send(Update::Over(error)).await;
                        return;
                    }
                }
            }
        }
    }

    async fn send(&self, update: Update) {
        let _ = self.updates.send((self.index, update)).await; // the reader may be gone
    }

    /// Follows over one connection, until the daemon ends the stream.
    async fn round(&mut self, patience: &mut Patience, is_away: &mut bool) -> Result<(), Error> {
        self.connect().await?;
        loop {
            let has_changed = self.refresh().await?;
            let looked = Instant::now();
            patience.reset();
            if has_changed || std::mem::take(is_away) {
                self.send(Update::List(MachineList::of(&self.pages)?)).await;
            }
            if self.polls {
                sleep(LOOK).await;
                continue;
            }
            if self.feed.next().await?.is_none() {
                return Ok(());
            }
            // Events of a moment are one reason to look.
            while let Ok(next) = timeout_at(looked + PACE, self.feed.next()).await {
                if next?.is_none() {
                    return Ok(());
                }
            }
            sleep_until(looked + PACE).await;
        }
    }

    /// Opens the feed before the first look, so that no change is missed between the two.
    async fn connect(&mut self) -> Result<(), Error> {
        if self.polls {
            return Ok(());
        }
        let _turn = self.turn.acquire().await;
        let opened = match self.place.limit {
            Some(limit) => {
                timeout(limit, open(&mut self.place, &mut self.feed)).await.map_err(|_| self.place.late(limit))?
            }
            None => open(&mut self.place, &mut self.feed).await,
        };
        match opened {
            Err(error) if error.problem_code() == Some(Code::NoSuchPath) => {
                self.polls = true;
                let host = self.place.host.as_ref().map(|host| format!("{host}: ")).unwrap_or_default();
                let remark = format!("{host}agentd is older than its stream of all events; agentctl looks each second");
                self.send(Update::Remark(remark)).await;
                Ok(())
            }
            Err(error) if is_unknown_kind(&error) && self.feed.query.kind.as_deref() != Some(FEWER_KINDS) => {
                self.feed.query.kind = Some(FEWER_KINDS.to_owned());
                Ok(())
            }
            opened => opened,
        }
    }

    async fn refresh(&mut self) -> Result<bool, Error> {
        let _turn = self.turn.acquire().await;
        match self.place.limit {
            Some(limit) => {
                let looked = timeout(limit, self.pages.refresh(&self.place.client)).await;
                Ok(looked.map_err(|_| self.place.late(limit))??)
            }
            None => self.pages.refresh(&self.place.client).await.map_err(Error::from),
        }
    }
}

async fn open(place: &mut Place, feed: &mut FeedStream) -> Result<(), Error> {
    // A daemon that is stopped later stays stopped.
    if let Some(starter) = place.starter.take() {
        reach(Some(&starter), &mut place.client).await?;
        *feed = FeedStream::new(place.client.clone(), feed.query.clone());
    }
    Ok(feed.open().await?)
}

/// Reports whether a daemon of an older release does not know a kind of event.
fn is_unknown_kind(error: &Error) -> bool {
    matches!(error, Error::Client(ClientError::Problem { problem, .. })
        if problem.code == Code::InvalidRequest && problem.detail.contains("no kind of event"))
}

/// Lists the sessions of these machines again whenever they change, until the reader of the output has gone.
pub(super) async fn watch(wish: &Wish, places: Vec<Place>) -> Result<u8, Error> {
    let (sender, mut updates) = mpsc::channel(16);
    let turn = Arc::new(Semaphore::new(SIDE_BY_SIDE));
    let mut watchers = JoinSet::new();
    let hosts: Vec<Option<String>> = places.iter().map(|place| place.host.clone()).collect();
    for (index, place) in places.into_iter().enumerate() {
        let query = FeedQuery { kind: Some(kinds()), follow: true, ..FeedQuery::default() };
        let watcher = Watcher {
            index,
            pages: Pages::new(wish.query.clone()),
            feed: FeedStream::new(place.client.clone(), query),
            place,
            polls: false,
            turn: Arc::clone(&turn),
            updates: sender.clone(),
        };
        watchers.spawn(watcher.run());
    }
    drop(sender);
    let mut reader = Reader::of_stdout()?;
    let is_live = Screen::stdout().terminal && wish.form.documents().is_none();
    let mut board = Board { wish, is_live, is_begun: false, machines: hosts.into_iter().map(Seen::new).collect() };
    let mut drawn = Instant::now();
    loop {
        tokio::select! {
            update = updates.recv() => match update {
                Some((index, update)) => board.take(index, update)?,
                None => return Ok(0),
            },
            () = sleep_until(drawn + LOOK), if is_live && board.is_begun => {}
            gone = reader.gone() => return Err(gone),
        }
        if is_live && board.is_begun {
            sleep_until(drawn + PACE).await;
        }
        while let Ok((index, update)) = updates.try_recv() {
            board.take(index, update)?;
        }
        board.show()?;
        drawn = Instant::now();
    }
}

/// The sessions of one machine: the last list, and the sessions on the screen.
struct Seen {
    host: Option<String>,
    list: Option<MachineList>,
    error: Option<Error>,
    /// The sessions that were shown.
    shown: BTreeMap<SessionId, Value>,
}

impl Seen {
    fn new(host: Option<String>) -> Self {
        Self { host, list: None, error: None, shown: BTreeMap::new() }
    }

    /// Takes the new list over as shown. Returns each session that was added, changed or removed.
    fn changes(&mut self) -> Vec<(&'static str, Value)> {
        let Some(list) = &self.list else { return Vec::new() };
        let now: BTreeMap<SessionId, Value> =
            list.sessions.iter().map(|(view, document)| (view.id.clone(), document.clone())).collect();
        let mut changes = Vec::new();
        for (view, document) in &list.sessions {
            match self.shown.get(&view.id) {
                None => changes.push(("added", document.clone())),
                Some(before) if before != document => changes.push(("changed", document.clone())),
                Some(_) => {}
            }
        }
        let gone = self.shown.iter().filter(|(id, _)| !now.contains_key(*id));
        changes.extend(gone.map(|(_, document)| ("removed", document.clone())));
        self.shown = now;
        changes
    }
}

/// The output of a watch.
struct Board<'a> {
    wish: &'a Wish,
    /// Whether each picture replaces the last picture, on a terminal.
    is_live: bool,
    /// Whether something was shown.
    is_begun: bool,
    machines: Vec<Seen>,
}

impl Board<'_> {
    fn take(&mut self, index: usize, update: Update) -> Result<(), Error> {
        let Some(seen) = self.machines.get_mut(index) else { return Ok(()) };
        let documents = self.wish.form.documents();
        match update {
            Update::List(list) => {
                let (is_first, was_away) = (seen.list.is_none(), seen.error.take().is_some());
                if is_first && documents.is_none() {
                    list.tell_omitted(seen.host.as_deref())?;
                }
                seen.list = Some(list);
                let Some(form) = documents else { return Ok(()) };
                if was_away {
                    form.print_value(&item(seen.host.as_deref(), "reached", None))?;
                }
                for (change, document) in seen.changes() {
                    form.print_value(&item(seen.host.as_deref(), change, Some(("session", document))))?;
                }
            }
            Update::Away(error) => {
                let host = seen.host.clone().unwrap_or_default();
                if let Some(form) = documents {
                    let view = serde_json::to_value(ErrorView::of(&error)).map_err(Error::Request)?;
                    form.print_value(&item(seen.host.as_deref(), "unreachable", Some(("error", view))))?;
                }
                if !self.is_live {
                    report(&host, &error)?;
                }
                seen.error = Some(error);
            }
            Update::Remark(text) => tell(&text)?,
            Update::Over(error) => return Err(error),
        }
        Ok(())
    }

    /// Shows the list to a person: all of it on a terminal, else the sessions that have changed.
    fn show(&mut self) -> Result<(), Error> {
        if self.wish.form.documents().is_some() {
            return Ok(());
        }
        // The columns are those of all machines, so the first picture waits for each.
        if !self.is_begun && self.machines.iter().any(|seen| seen.list.is_none() && seen.error.is_none()) {
            return Ok(());
        }
        if self.is_live {
            std::io::stdout().write_all(CLEAR_SCREEN.as_bytes()).map_err(Error::Output)?;
            self.wish.print(self.machines.iter().flat_map(rows).collect(), false)?;
            self.is_begun = true;
            return self.show_failures();
        }
        let changed: Vec<Vec<Value>> = self
            .machines
            .iter_mut()
            .map(|seen| {
                seen.changes().into_iter().filter(|(change, _)| *change != "removed").map(|(_, one)| one).collect()
            })
            .collect();
        let rows = self
            .machines
            .iter()
            .zip(&changed)
            .flat_map(|(seen, changed)| rows(seen).filter(move |row| changed.contains(row.document)));
        let rows: Vec<Row<'_>> = rows.collect();
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        if rows.is_empty() && !is_first { Ok(()) } else { self.wish.print(rows, !is_first) }
    }

    /// Shows the machines that cannot be reached below the list.
    fn show_failures(&self) -> Result<(), Error> {
        let screen = Screen::stdout();
        for seen in &self.machines {
            if let (Some(host), Some(error)) = (&seen.host, &seen.error) {
                print(&format!("{}\n", screen.paint(TextStyle::Bad, &screen.line(&line(host, error)))))?;
            }
        }
        Ok(())
    }
}

/// Returns the sessions of a machine that were read last, also while the machine cannot be reached.
fn rows(seen: &Seen) -> impl Iterator<Item = Row<'_>> {
    seen.list.iter().flat_map(|list| list.rows(seen.host.as_deref()))
}

/// Returns an item of the output for programs.
fn item(host: Option<&str>, change: &str, content: Option<(&str, Value)>) -> Value {
    let mut item = Map::new();
    item.insert("change".to_owned(), json!(change));
    item.extend(host.map(|host| ("host".to_owned(), json!(host))));
    item.extend(content.map(|(name, value)| (name.to_owned(), value)));
    Value::Object(item)
}

#[cfg(test)]
mod tests;
