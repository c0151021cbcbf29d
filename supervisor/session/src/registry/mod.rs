//! The registry of all sessions: finds them at start, looks them up. `creating` and `removal` create and remove them.

mod creating;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use agentd_api::hint;
use agentd_api::prerequisite::{CheckReport, PrerequisiteView};
use agentd_api::session::{Phase, SessionView, UnreadableSession};
use agentd_api::{Code, Problem, SessionId, SessionName};
use async_recursion::async_recursion as boxed;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use crate::changes::Changes;
use crate::document::Document;
use crate::drive::SessionOrigin;
use crate::generation::Generations;
use crate::keyed_locks::KeyedLocks;
use crate::listing::Order;
use crate::resting::{Resting, SessionParts};
use crate::{Session, aside, cleanup, needs};
use agentd_api::chain;
use agentd_decide::rules::{Command, LaunchTerms};
use agentd_host::platform;

/// The registry of sessions. Shared.
#[derive(Debug)]
pub struct Sessions {
    generations: Arc<Generations>,
    known: Mutex<BTreeMap<SessionId, Session>>,
    pub(super) order: Order,
    /// Number of the change after which all known sessions were found current, plus 1.
    found_current: AtomicU64,
    /// Locks of conversations, which are held while a session begins to use one.
    pub(super) conversations: KeyedLocks<String>,
    /// Names that renamed sessions are about to get.
    claimed: Mutex<BTreeSet<SessionName>>,
    unreadable: Mutex<Vec<UnreadableSession>>,
    /// Ids of the terminal environments that schedules name.
    scheduled_terminals: Mutex<BTreeSet<String>>,
    drivers: TaskTracker,
    /// Whether every session on disk has been read. Operations over all sessions wait for it.
    whole: watch::Sender<bool>,
    /// Notified when an operation begins to wait for `whole`.
    wanted: Notify,
}

/// The session whose agent creates another session, and the maximum number of its active children.
#[derive(Debug, Clone)]
pub struct ParentSession {
    pub id: SessionId,
    pub most: usize,
}

/// A name that no other session gets while this value lives.
pub(super) struct NameClaim<'a> {
    sessions: &'a Sessions,
    name: SessionName,
}

impl Drop for NameClaim<'_> {
    fn drop(&mut self) {
        lock(&self.sessions.claimed).remove(&self.name);
    }
}

/// Time in which sessions with a keeper are taken over before the others are read.
const HEAD_START: Duration = Duration::from_millis(250);
/// Prefix of a session's directory during its removal. The next start removes directories that a crash left.
const REMOVING: &str = ".removing-";
/// Prefix of a session's directory during its creation.
const CREATING: &str = ".creating-";

impl Sessions {
    /// Takes over the sessions that have a keeper. [`Self::read`] reads the others.
    pub fn open(generations: Arc<Generations>) -> Self {
        let sessions = Self {
            known: Mutex::default(),
            order: Order::default(),
            found_current: AtomicU64::new(0),
            conversations: KeyedLocks::default(),
            claimed: Mutex::default(),
            unreadable: Mutex::default(),
            scheduled_terminals: Mutex::default(),
            drivers: TaskTracker::new(),
            whole: watch::Sender::new(false),
            wanted: Notify::new(),
            generations,
        };
        let generation = sessions.generations.now();
        let directories = &generation.daemon.directories;
        for id in cleanup::runtimes(directories).filter(|id| directories.keeper_socket(id).exists()) {
            // `read` finds an unreadable session again and reports it.
            let _ = sessions.read_one(id.as_str(), true);
        }
        sessions
    }

    /// Waits until the sessions with a keeper are taken over, so that reading the others does not delay them.
    /// Returns early when an operation needs all sessions, or after `HEAD_START`.
    #[boxed]
    pub async fn wait_for_takeover(&self) {
        tokio::select! {
            () = self.wanted.notified() => {}
            () = self.known_are_current() => {}
            () = tokio::time::sleep(HEAD_START) => {}
        }
    }

    /// Reads the other sessions, which may be many, while the endpoint already answers. A session that cannot be
    /// read is set aside with the reason.
    pub fn read(&self) -> io::Result<()> {
        let marked = platform::marked_sessions();
        for entry in std::fs::read_dir(self.generations.now().daemon.directories.sessions())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(REMOVING) || name.starts_with(CREATING) {
                std::fs::remove_dir_all(entry.path())?;
                continue;
            }
            if name.parse().is_ok_and(|id: SessionId| lock(&self.known).contains_key(&id)) {
                continue;
            }
            if let Err(reason) = self.read_one(&name, marked.contains(&name)) {
                tracing::error!(agentd.session = %name, %reason, "cannot read a session; it is set aside");
                lock(&self.unreadable).push(UnreadableSession { id: name, reason });
            }
        }
        // The keeper of an unreadable session is no stray: the keeper and its agent keep running.
        let strays = cleanup::stray_keepers(&self.generations.now().daemon.directories, |id| {
            lock(&self.known).contains_key(id)
                || lock(&self.unreadable).iter().any(|unreadable| unreadable.id == id.as_str())
        });
        for stray in strays {
            self.drivers.spawn(stray.end(self.generations.now()));
        }
        self.whole.send_replace(true);
        self.changes().whole();
        Ok(())
    }

    fn read_one(&self, name: &str, may_have_remains: bool) -> Result<(), String> {
        let id = name.parse::<SessionId>().map_err(|error| error.to_string())?;
        let document = Document::read(&self.generations.now().daemon.directories.session(&id), &id)
            .map_err(|error| chain(&error))?;
        let made = SessionParts::of(&self.generations, document, SessionOrigin::Read { may_have_remains });
        self.start(made, None).map(drop).map_err(|problem| problem.detail)
    }

    /// Waits until every session has been read.
    pub(super) async fn whole(&self) {
        self.wanted.notify_one();
        // `self` owns the sender, so the channel is open.
        let _ = self.whole.subscribe().wait_for(|whole| *whole).await;
    }

    /// Removes unfinished files of an earlier daemon, and shortens the journals to the configured total.
    pub fn tidy(&self, started: SystemTime) {
        let generation = self.generations.now();
        let (journal, sessions) = (generation.config.journal, lock(&self.known).values().cloned().collect::<Vec<_>>());
        for session in &sessions {
            cleanup::unfinished_files(session.directory(), started);
        }
        if let Some(keep) = journal.keep_all.0.0 {
            cleanup::keep_all(&sessions, keep);
        }
        if !lock(&self.unreadable).is_empty() {
            // An unreadable session may need a snapshot that no other session needs.
            return;
        }
        let shared = sessions.iter().map(Session::view).filter(|view| generation.shares(&view.spec));
        let shared = shared.map(|view| view.spec.directory.clone()).collect();
        generation.snapshots.tidy(&self.terminals_named(), &shared);
    }

    /// Returns the ids of the terminal environments that sessions name.
    #[boxed]
    pub async fn terminals(&self) -> BTreeSet<String> {
        self.whole().await;
        self.terminals_named()
    }

    /// Sets the terminal environments that schedules name.
    pub(super) fn set_scheduled_terminals(&self, ids: BTreeSet<String>) {
        *lock(&self.scheduled_terminals) = ids;
    }

    fn terminals_named(&self) -> BTreeSet<String> {
        let mut named = lock(&self.scheduled_terminals).clone();
        let views = lock(&self.known).values().map(Session::view).collect::<Vec<_>>();
        named.extend(views.iter().filter_map(|view| view.spec.environment.snapshot.clone()));
        named
    }

    /// Registers the session and starts its driver, unless the session is at rest. Refuses a name that is in use
    /// and a child too many.
    fn start(&self, made: SessionParts, parent: Option<&ParentSession>) -> Result<Session, Problem> {
        let SessionParts { driver, inbox, published } = made;
        let (document, directory, is_at_rest) =
            (&driver.recorder.document, driver.recorder.journal.directory.clone(), driver.recorder.current);
        let (id, key, name) = (document.id.clone(), document.key.clone(), document.spec.name.clone());
        let driver = Arc::new(Resting::new(driver, self.drivers.clone()));
        let changing = Arc::default();
        let session = Session { id: id.clone(), directory, key, inbox, driver, published, changing };
        {
            let mut sessions = lock(&self.known);
            name.as_ref().map_or(Ok(()), |name| self.is_free(&sessions, name))?;
            parent.map_or(Ok(()), |parent| room_for_child(&sessions, parent))?;
            sessions.insert(id, session.clone());
        }
        self.changes().touch(session.id());
        self.set_has_changed();
        if !is_at_rest {
            session.driver.wake();
        }
        Ok(session)
    }

    /// Passes the generation in force to the resting drivers, which then release the previous generation.
    pub fn renew(&self) {
        lock(&self.known).values().for_each(|session| session.driver.renew());
    }

    /// Reports whether every session on the disk has been read.
    pub fn is_whole(&self) -> bool {
        *self.whole.borrow()
    }

    /// Waits until the view of every session is current; see [`Session::is_current`].
    #[boxed]
    pub async fn are_current(&self) {
        self.whole().await;
        self.known_are_current().await;
    }

    async fn known_are_current(&self) {
        let change = self.last_change() + 1;
        if self.found_current.load(Ordering::Acquire) == change {
            // Nothing was published since, so a frequent caller does not look at all sessions each time.
            return;
        }
        let is_behind = |session: &&Session| !session.published.borrow().current;
        let behind: Vec<Session> = lock(&self.known).values().filter(is_behind).cloned().collect();
        if behind.is_empty() {
            self.found_current.store(change, Ordering::Release);
        }
        for session in behind {
            session.is_current().await;
        }
    }

    #[boxed]
    pub async fn list(&self) -> Vec<SessionView> {
        self.whole().await;
        lock(&self.known).values().map(|session| SessionView::clone(&session.view())).collect()
    }

    /// Returns the sessions that have been read.
    pub(super) fn all_known(&self) -> Vec<Session> {
        lock(&self.known).values().cloned().collect()
    }

    /// Counts a change of the set of sessions.
    fn set_has_changed(&self) {
        self.order.forget();
        self.generations.now().daemon.view_changes.count();
    }

    /// Calls `look` with the published view of each session.
    pub(super) fn each_view(&self, mut look: impl FnMut(&SessionView)) {
        lock(&self.known).values().for_each(|session| look(&session.published.borrow().view));
    }

    /// Returns the sessions whose published view is wanted.
    pub(super) fn those(&self, is_wanted: impl Fn(&SessionView) -> bool) -> Vec<Session> {
        let sessions = lock(&self.known);
        sessions.values().filter(|session| is_wanted(&session.published.borrow().view)).cloned().collect()
    }

    /// Returns the session with this id, if the session has been read.
    pub fn known(&self, id: &SessionId) -> Option<Session> {
        lock(&self.known).get(id).cloned()
    }

    /// Returns the ids of the sessions that have been read.
    pub fn ids(&self) -> Vec<SessionId> {
        lock(&self.known).keys().cloned().collect()
    }

    /// Returns the configured size of the feed of events.
    pub fn kept_feed(&self) -> u64 {
        self.generations.now().config.journal.keep_feed
    }

    pub fn unreadable(&self) -> Vec<UnreadableSession> {
        lock(&self.unreadable).clone()
    }

    /// Finds a session by its id, else by its name.
    #[boxed]
    pub async fn find(&self, id_or_name: &str) -> Result<Session, Problem> {
        match self.look_up(id_or_name) {
            // An id identifies one session, whatever names the unread sessions have.
            Ok(session) if *self.whole.borrow() || session.id.as_str() == id_or_name => Ok(session),
            _ => {
                self.whole().await;
                let set_aside = |problem| self.set_aside(id_or_name).map_or(problem, |found| aside::problem(&found));
                self.look_up(id_or_name).map_err(set_aside)
            }
        }
    }

    /// Returns the session with this id that could not be read.
    fn set_aside(&self, id: &str) -> Option<UnreadableSession> {
        lock(&self.unreadable).iter().find(|unreadable| unreadable.id == id).cloned()
    }

    /// Returns the id of the session with this id or name, if the session has been read.
    pub fn id_of(&self, id_or_name: &str) -> Option<String> {
        self.look_up(id_or_name).ok().map(|session| session.id.to_string())
    }

    fn look_up(&self, id_or_name: &str) -> Result<Session, Problem> {
        let sessions = lock(&self.known);
        let id = id_or_name
            .parse::<SessionId>()
            .map_err(|error| Problem::new(Code::InvalidId, error.to_string()).hint(hint::LIST_SESSIONS));
        // A name may be longer than an id allows, so an invalid id is refused only after the search by name.
        if let Ok(session) = id.as_ref().map_err(drop).and_then(|id| sessions.get(id).ok_or(())) {
            return Ok(session.clone());
        }
        let named = |session: &&Session| {
            session.published.borrow().view.spec.name.as_ref().is_some_and(|name| name.as_str() == id_or_name)
        };
        if let Some(session) = sessions.values().find(named) {
            return Ok(session.clone());
        }
        id?;
        Err(no_such_session(id_or_name))
    }

    /// Waits until every session on the disk has been read.
    pub(super) async fn are_read(&self) {
        self.whole().await;
    }

    /// Returns the session that a request with this key created.
    pub(super) fn made_with(&self, key: &str) -> Option<Session> {
        lock(&self.known).values().find(|session| session.key.as_deref() == Some(key)).cloned()
    }

    /// Begins the next launch of a session. If the launch neither waits nor is forced or degraded, a missing
    /// prerequisite refuses the request at once.
    #[boxed]
    pub async fn resume(&self, session: &Session, fresh: bool, terms: LaunchTerms) -> Result<(), Problem> {
        self.check_room().await?;
        let _alone = if fresh { None } else { self.claim_conversation(session).await? };
        if terms.wait_until.is_none() && !terms.is_forced() {
            let (generation, view) = (self.generations.now(), session.view());
            if !view.status.phase.is_active()
                && let Some(problem) = needs::refusal(&generation, &view).await
            {
                return Err(problem);
            }
        }
        session.ask(Command::Resume { fresh, terms }).await.map(drop)
    }

    /// Returns the active sessions among those that have been read.
    pub(super) fn running(&self) -> Vec<Session> {
        let sessions = lock(&self.known);
        let is_active = |session: &&Session| session.published.borrow().view.status.phase.is_active();
        sessions.values().filter(is_active).cloned().collect()
    }

    /// Returns the prerequisites with their last reports: every prerequisite, or those of one session.
    #[boxed]
    pub async fn prerequisites(&self, of: Option<&Session>) -> Result<Vec<PrerequisiteView>, Problem> {
        self.whole().await;
        needs::views(&self.generations.now(), &self.running(), of).await
    }

    /// Runs one check now, for the session if the check needs an environment. Waiting launches receive the report
    /// as well.
    #[boxed]
    pub async fn check_now(&self, name: &str, session: Option<&Session>) -> Result<CheckReport, Problem> {
        needs::check_now(&self.generations.now(), name, session).await
    }

    /// Checks all prerequisites of the session now.
    #[boxed]
    pub async fn check_all(&self, session: &Session) -> Result<Vec<PrerequisiteView>, Problem> {
        needs::check_all(&self.generations.now(), session).await
    }

    /// Refuses when no further session may become active.
    async fn check_room(&self) -> Result<(), Problem> {
        self.whole().await;
        self.room(&lock(&self.known))
    }

    /// Refuses a name that a session has or is about to get, or that equals a session's id: a lookup accepts both.
    fn is_free(&self, sessions: &BTreeMap<SessionId, Session>, name: &SessionName) -> Result<(), Problem> {
        let has_it = |session: &Session| {
            session.id.as_str() == name.as_str() || session.published.borrow().view.spec.name.as_ref() == Some(name)
        };
        if !sessions.values().any(has_it) && !lock(&self.claimed).contains(name) {
            return Ok(());
        }
        Err(Problem::new(Code::NameTaken, format!("the name \"{name}\" is used by another session"))
            .hint("choose another name, or remove the other session"))
    }

    /// Refuses a name that is not free.
    pub(super) fn check_name(&self, name: Option<&SessionName>) -> Result<(), Problem> {
        name.map_or(Ok(()), |name| self.is_free(&lock(&self.known), name))
    }

    /// Claims a name for a session that is being renamed, until the claim is dropped.
    pub(super) fn claim(&self, name: &SessionName) -> Result<NameClaim<'_>, Problem> {
        let sessions = lock(&self.known);
        self.is_free(&sessions, name)?;
        lock(&self.claimed).insert(name.clone());
        Ok(NameClaim { sessions: self, name: name.clone() })
    }

    fn changes(&self) -> Arc<Changes> {
        Arc::clone(&self.generations.now().daemon.changes)
    }

    pub(super) fn generations(&self) -> &Generations {
        &self.generations
    }

    fn room(&self, sessions: &BTreeMap<SessionId, Session>) -> Result<(), Problem> {
        self.generations.now().launchable()?;
        if let Some(draining) = self.generations.now().daemon.drain.now() {
            let detail = format!("agentd is drained at the request of {}: no session is launched", draining.by);
            return Err(Problem::new(Code::Draining, detail).hint(hint::UNDO_DRAIN));
        }
        let limit = self.generations.now().config.limits.active_sessions;
        let active = active(sessions);
        if active < limit {
            return Ok(());
        }
        let detail = format!("{active} sessions are active, and the limit is {limit}");
        Err(Problem::new(Code::TooManySessions, detail).hint(hint::STOP_ANOTHER))
    }

    /// Waits until every driver has ended. The caller has cancelled the shutdown token before.
    #[boxed]
    pub async fn closed(&self) {
        self.drivers.close();
        self.drivers.wait().await;
    }
}

fn no_such_session(id_or_name: &str) -> Problem {
    Problem::new(Code::NoSuchSession, format!("there is no session {id_or_name:?}")).hint(hint::LIST_SESSIONS)
}

/// Number of active sessions.
fn active(sessions: &BTreeMap<SessionId, Session>) -> usize {
    sessions.values().filter(|session| session.published.borrow().view.status.phase.is_active()).count()
}

/// Refuses another child when the parent has its maximum of active children.
fn room_for_child(sessions: &BTreeMap<SessionId, Session>, parent: &ParentSession) -> Result<(), Problem> {
    let is_child = |session: &&Session| {
        let published = session.published.borrow();
        published.view.parent.as_ref() == Some(&parent.id)
            && !matches!(published.view.status.phase, Phase::Stopped | Phase::Failed | Phase::Completed)
    };
    let (children, most) = (sessions.values().filter(is_child).count(), parent.most);
    if children < most {
        return Ok(());
    }
    let detail =
        format!("{children} sessions created by the session {} are active, and the limit is {most}", parent.id);
    Err(Problem::new(Code::TooManySessions, detail).hint("stop one of them, or raise control.guest_sessions"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No code under these locks can leave the values inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
