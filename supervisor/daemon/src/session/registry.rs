//! All sessions of the daemon: found at start, made, looked up, removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use agentd_api::event::{Cause, StopRequested};
use agentd_api::prerequisite::{CheckReport, PrerequisiteView};
use agentd_api::session::{Phase, SessionSpec, SessionView, UnreadableSession};
use agentd_api::{Code, Problem, SessionId, SessionName};
use agentd_fault::Point;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::task::TaskTracker;

use super::creation::{fault, prepare};
use super::document::Document;
use super::driver::Driver;
use super::journal_port::Journal;
use super::resting::Resting;
use super::rules::{Command, LaunchTerms};
use super::{Published, Session, aside, cleanup, needs, view};
use crate::env::{Scope, assigned_secrets, chain};
use crate::isolation;
use crate::platform;
use crate::workspace;
use crate::world::Worlds;

/// The registry. Shared.
#[derive(Debug)]
pub(crate) struct Sessions {
    worlds: Arc<Worlds>,
    known: Mutex<BTreeMap<SessionId, Session>>,
    unreadable: Mutex<Vec<UnreadableSession>>,
    drivers: TaskTracker,
    /// Whether every session on disk has been read. What needs to know them all waits for it.
    whole: watch::Sender<bool>,
    /// Somebody waits for it.
    wanted: Notify,
}

/// The session whose agent asks for another, and the most that it may have created and be active.
#[derive(Debug, Clone)]
pub(crate) struct Parent {
    pub(crate) id: SessionId,
    pub(crate) most: usize,
}

/// How long sessions that have a keeper are taken over before the others are read.
const HEAD_START: Duration = Duration::from_millis(250);
/// How many commands may wait for one session's driver.
const ASKS: usize = 16;
/// A session's directory on its way out; what a crash leaves of one is removed at the next start.
const REMOVING: &str = ".removing-";
/// One that is not whole yet.
const CREATING: &str = ".creating-";

impl Sessions {
    /// Takes over the sessions that have a keeper. The others are for [`Self::read`].
    pub(crate) fn open(worlds: Arc<Worlds>) -> Self {
        let sessions = Self {
            known: Mutex::default(),
            unreadable: Mutex::default(),
            drivers: TaskTracker::new(),
            whole: watch::Sender::new(false),
            wanted: Notify::new(),
            worlds,
        };
        let world = sessions.worlds.now();
        let directories = &world.directories;
        for id in cleanup::runtimes(directories).filter(|id| directories.keeper_socket(id).exists()) {
            // One that cannot be read, or is none, is found again.
            let _ = sessions.read_one(id.as_str(), true);
        }
        sessions
    }

    /// Waits until those that have a keeper are taken over, so that nothing is in their way; or somebody wants to know the others; or
    /// one of them takes its time.
    pub(crate) async fn go_first(&self) {
        tokio::select! {
            () = self.wanted.notified() => {}
            () = self.known_are_current() => {}
            () = tokio::time::sleep(HEAD_START) => {}
        }
    }

    /// Reads the other sessions, which may be very many: the endpoint answers meanwhile, and those that have a keeper go on. One that
    /// cannot be read is set aside, with its reason, and stops nobody else.
    pub(crate) fn read(&self) -> io::Result<()> {
        let marked = platform::marked_sessions();
        for entry in std::fs::read_dir(self.worlds.now().directories.sessions())? {
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
                tracing::error!(agentd.session = %name, %reason, "a session cannot be read and is set aside");
                lock(&self.unreadable).push(UnreadableSession { id: name, reason });
            }
        }
        // A document that cannot be read makes nobody a stranger: its keeper goes on, and so does what it holds.
        let strays = cleanup::stray_keepers(&self.worlds.now().directories, |id| {
            lock(&self.known).contains_key(id)
                || lock(&self.unreadable).iter().any(|unreadable| unreadable.id == id.as_str())
        });
        for stray in strays {
            self.drivers.spawn(stray.end(self.worlds.now()));
        }
        self.whole.send_replace(true);
        Ok(())
    }

    fn read_one(&self, name: &str, may_have_remains: bool) -> Result<(), String> {
        let id = name.parse::<SessionId>().map_err(|error| error.to_string())?;
        let document =
            Document::read(&self.worlds.now().directories.session(&id), &id).map_err(|error| chain(&error))?;
        self.start(document, may_have_remains, None).map(drop).map_err(|problem| problem.detail)
    }

    /// Waits until every session has been read.
    async fn whole(&self) {
        self.wanted.notify_one();
        // The sender is ours, and so is not gone.
        let _ = self.whole.subscribe().wait_for(|whole| *whole).await;
    }

    /// Removes what an earlier daemon was about to write when it ended, and what is more than is to be kept of the journals.
    pub(crate) fn tidy(&self, started: SystemTime) {
        let world = self.worlds.now();
        let (journal, sessions) = (world.config.journal, lock(&self.known).values().cloned().collect::<Vec<_>>());
        for session in &sessions {
            cleanup::unfinished_files(session.directory(), started);
        }
        if let Some(keep) = journal.keep_all.0.0 {
            cleanup::keep_all(&sessions, keep);
        }
        if !lock(&self.unreadable).is_empty() {
            // One of them may need what nobody else does.
            return;
        }
        let shared = sessions.iter().map(Session::view).filter(|view| world.shares(&view.spec));
        let shared = shared.map(|view| view.spec.directory).collect();
        world.snapshots.tidy(&self.terminals_named(), &shared);
    }

    /// The terminals' environments that sessions name.
    pub(crate) async fn terminals(&self) -> BTreeSet<String> {
        self.whole().await;
        self.terminals_named()
    }

    fn terminals_named(&self) -> BTreeSet<String> {
        lock(&self.known).values().filter_map(|session| session.view().spec.environment.snapshot).collect()
    }

    /// Adds the session, unless another has its name or its parent has as many as it may, and starts its driver, unless it is at rest.
    fn start(
        &self,
        mut document: Document,
        may_have_remains: bool,
        parent: Option<&Parent>,
    ) -> Result<Session, Problem> {
        let (asks, receiver) = mpsc::channel(ASKS);
        let state = document.take_state();
        let first = Published::new(view(&document, &state, (state.phase(), None)), state.seq, false);
        let (publish, published) = watch::channel(Arc::new(first));
        let id = document.id.clone();
        let (directory, key) = (self.worlds.now().directories.session(&id), document.key.clone());
        let name = document.spec.name.clone();
        let mut driver = Box::new(Driver::new(&self.worlds, document, receiver, state, publish, may_have_remains));
        driver.current = driver.is_at_rest();
        let is_at_rest = driver.current;
        if is_at_rest {
            driver.publish();
        } else {
            // As it was remembered, until the driver has read the journal on.
            driver.show();
        }
        let driver = Arc::new(Resting::new(driver, self.drivers.clone()));
        let session = Session { id: id.clone(), directory, key, asks, driver, published };
        {
            let mut sessions = lock(&self.known);
            if let Some(name) = name.as_ref().filter(|name| is_taken(&sessions, name)) {
                return Err(name_taken(name));
            }
            parent.map_or(Ok(()), |parent| room_for_child(&sessions, parent))?;
            sessions.insert(id, session.clone());
        }
        if !is_at_rest {
            session.driver.wake();
        }
        Ok(session)
    }

    /// The configuration was read again: whoever rests lets go of what was in force before.
    pub(crate) fn renew(&self) {
        lock(&self.known).values().for_each(|session| session.driver.renew());
    }

    /// Whether every session on the disk has been read.
    pub(crate) fn is_whole(&self) -> bool {
        *self.whole.borrow()
    }

    /// Waits until every session is shown as it is; see [`Session::is_current`].
    pub(crate) async fn are_current(&self) {
        self.whole().await;
        self.known_are_current().await;
    }

    async fn known_are_current(&self) {
        let sessions: Vec<Session> = lock(&self.known).values().cloned().collect();
        for session in sessions {
            session.is_current().await;
        }
    }

    pub(crate) async fn list(&self) -> Vec<SessionView> {
        self.whole().await;
        lock(&self.known).values().map(Session::view).collect()
    }

    /// Looks at each session as it is shown.
    pub(super) fn each_view(&self, mut look: impl FnMut(&SessionView)) {
        lock(&self.known).values().for_each(|session| look(&session.published.borrow().view));
    }

    pub(crate) fn unreadable(&self) -> Vec<UnreadableSession> {
        lock(&self.unreadable).clone()
    }

    /// By id, else by name.
    pub(crate) async fn find(&self, id_or_name: &str) -> Result<Session, Problem> {
        match self.look_up(id_or_name) {
            // An id is one session's whatever the others are called.
            Ok(session) if *self.whole.borrow() || session.id.as_str() == id_or_name => Ok(session),
            _ => {
                self.whole().await;
                let set_aside = |problem| self.set_aside(id_or_name).map_or(problem, |found| aside::problem(&found));
                self.look_up(id_or_name).map_err(set_aside)
            }
        }
    }

    /// The session of this id that could not be read.
    fn set_aside(&self, id: &str) -> Option<UnreadableSession> {
        lock(&self.unreadable).iter().find(|unreadable| unreadable.id == id).cloned()
    }

    /// Ends keeper and agent of a session that could not be read; its files are left as they are.
    pub(crate) async fn stop_set_aside(&self, id: &str, stop: StopRequested) -> Result<UnreadableSession, Problem> {
        let found = self.set_aside(id).ok_or_else(|| no_such_session(id))?;
        // Under a name that is no id nothing was ever started.
        if let Ok(id) = id.parse() {
            let world = self.worlds.now();
            aside::end(&world, &id, world.config.launch.stop_times(), stop).await;
        }
        Ok(found)
    }

    /// The same, and removes its files.
    pub(crate) async fn remove_set_aside(&self, id: &str, cause: Cause) -> Result<(), Problem> {
        let reason = "to be removed".to_owned();
        self.stop_set_aside(id, StopRequested { reason, cause }).await?;
        let world = self.worlds.now();
        let sessions = world.directories.sessions();
        let removing = sessions.join(format!("{REMOVING}{id}"));
        std::fs::rename(sessions.join(id), &removing).map_err(not_removed)?;
        lock(&self.unreadable).retain(|unreadable| unreadable.id != id);
        let runtime = id.parse().ok().map(|id: SessionId| {
            world.environments.forget(&id);
            world.directories.session_runtime(&id)
        });
        remove_files(runtime, removing).await
    }

    /// The id of the session with this id or name, of those that have been read.
    pub(crate) fn id_of(&self, id_or_name: &str) -> Option<String> {
        self.look_up(id_or_name).ok().map(|session| session.id.to_string())
    }

    fn look_up(&self, id_or_name: &str) -> Result<Session, Problem> {
        let sessions = lock(&self.known);
        let id = id_or_name
            .parse::<SessionId>()
            .map_err(|error| Problem::new(Code::InvalidId, error.to_string()).hint("`agentctl ls` lists the sessions"));
        // A name may be longer than an id, and is none the worse for it.
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

    /// Makes a session and begins its first launch.
    pub(crate) async fn create(
        &self,
        mut spec: SessionSpec,
        key: Option<String>,
        terms: LaunchTerms,
        parent: Option<Parent>,
    ) -> Result<Session, Problem> {
        self.whole().await;
        let creator = parent.as_ref().map(|parent| &parent.id);
        if let Some(known) = key.as_ref().and_then(|key| self.made_with(key)) {
            return Self::repeated(known, &spec, creator);
        }
        parent.as_ref().map_or(Ok(()), |parent| room_for_child(&lock(&self.known), parent))?;
        // First: what can be said against the spec may be a consequence.
        self.worlds.now().launchable()?;
        self.check(&spec).await?;
        if spec.agent.is_none() && spec.command.is_none() {
            // Written down, so that another default tomorrow does not give this session another agent.
            spec.agent = Some(self.worlds.now().config.default_agent.clone());
        }
        let id = SessionId::random();
        let document = Document::new(id, Timestamp::now(), spec, key).of(creator.cloned());
        let directory = self.worlds.now().directories.session(&document.id);
        // Under another name until it is whole: a crash in the middle leaves nothing that looks like a session.
        let unfinished = directory.with_file_name(format!("{CREATING}{}", document.id));
        let journal = Journal { directory: unfinished.clone(), options: self.worlds.now().config.journal.options() };
        if let Err(error) = prepare(&journal, &directory, &document, terms).await {
            let _ = std::fs::remove_dir_all(&unfinished);
            let _ = std::fs::remove_dir_all(&directory);
            return Err(Problem::new(Code::Internal, format!("cannot make the session's files: {error}"))
                .hint("is there room, and may agentd write, where its state is kept?"));
        }
        let started = self.start(document, false, parent.as_ref());
        if started.is_err() {
            let _ = std::fs::remove_dir_all(&directory);
        }
        started
    }

    /// The session that a request with this key made.
    fn made_with(&self, key: &str) -> Option<Session> {
        lock(&self.known).values().find(|session| session.key.as_deref() == Some(key)).cloned()
    }

    /// The answer to a request that comes again: the session it made, if it asks for the same.
    fn repeated(known: Session, spec: &SessionSpec, creator: Option<&SessionId>) -> Result<Session, Problem> {
        let SessionView { spec: mut made, parent, .. } = known.view();
        if spec.agent.is_none() && spec.command.is_none() {
            made.agent = None;
        }
        if made == *spec && parent.as_ref() == creator {
            return Ok(known);
        }
        let which = if creator.is_none() { format!("the session \"{}\"", known.id) } else { "a session".to_owned() };
        let detail = format!("the idempotency key was given to {which}, which is another");
        Err(Problem::new(Code::KeyReused, detail).hint("a new session needs a new key"))
    }

    /// What can be said against a spec before anything is done.
    async fn check(&self, spec: &SessionSpec) -> Result<(), Problem> {
        let invalid = |detail: &str, hint: &str| Err(Problem::new(Code::InvalidRequest, detail).hint(hint));
        if spec.agent.is_some() && spec.command.is_some() {
            return invalid("the session names both an agent and a command", "give one of them");
        }
        if spec.command.as_ref().is_some_and(|command| command.first().is_none_or(String::is_empty)) {
            return invalid("the session's command is empty", "give the program and its arguments");
        }
        if spec.initial_prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
            return invalid("the initial prompt is empty", "leave it out, or give it some text");
        }
        if let Some((_, error)) = Scope::of_session(&spec.environment).check().into_iter().next() {
            return Err(error.problem());
        }
        let script = spec.env_setup.as_deref().unwrap_or_default();
        if let Some(name) = assigned_secrets(script.as_bytes()).first().map(|found| &found.name) {
            let detail =
                format!("the session's script has the value of the secret {name} in it, and would be stored with it");
            let hint = format!(
                "declare it as [secrets.{name}] in agentd.toml, or have the script read it: {name}=\"$(cat FILE)\""
            );
            return invalid(&detail, &hint);
        }
        let words = spec.command.iter().flatten().map(|word| ("command", word.as_str()));
        for (what, text) in words.chain([("script", script)]) {
            if let Some((_, issuer)) = agentd_keeper::tokens::find(text.as_bytes()).next() {
                let detail = format!("the session's {what} has a token of {issuer} in it, and would be stored with it");
                let hint = "declare it as [secrets.NAME] in agentd.toml, and have the program read the variable";
                return invalid(&detail, hint);
            }
        }
        let world = self.worlds.now();
        if let Some(name) = spec.requires.iter().find(|name| !world.config.prerequisites.contains_key(*name)) {
            let problem =
                Problem::new(Code::NoSuchPrerequisite, format!("the session requires {name:?}, which nobody declares"));
            return Err(problem.hint("`agentctl check` lists what is declared; add it as [prerequisites.NAME]"));
        }
        world.agent_command(spec)?;
        isolation::check(&world, spec)?;
        world.check_source(spec)?;
        workspace::check(&world.machine, &spec.directory).await.map_err(|error| error.problem())?;
        let sessions = lock(&self.known);
        if let Some(name) = spec.name.as_ref().filter(|name| is_taken(&sessions, name)) {
            return Err(name_taken(name));
        }
        self.room(&sessions)
    }

    /// Begins the next launch of a session, or says at once what it needs and is missing; one that waits or is forced finds that out later.
    pub(crate) async fn resume(&self, session: &Session, fresh: bool, terms: LaunchTerms) -> Result<(), Problem> {
        self.check_room().await?;
        if terms.wait_until.is_none() && terms.forced_by.is_none() {
            let (world, view) = (self.worlds.now(), session.view());
            if !view.status.phase.is_active()
                && let Some(problem) = needs::refusal(&world, &view.spec).await
            {
                return Err(problem);
            }
        }
        session.ask(Command::Resume { fresh, terms }).await.map(drop)
    }

    /// Those whose agent may run. What is not read yet is not among them.
    pub(super) fn running(&self) -> Vec<Session> {
        let sessions = lock(&self.known);
        let is_active = |session: &&Session| session.published.borrow().view.status.phase.is_active();
        sessions.values().filter(is_active).cloned().collect()
    }

    /// How prerequisites stand: all of them, or those of one session.
    pub(crate) async fn prerequisites(&self, of: Option<&Session>) -> Result<Vec<PrerequisiteView>, Problem> {
        self.whole().await;
        needs::views(&self.worlds.now(), &self.running(), of).await
    }

    /// Makes one check now; for the session, where it looks at an environment. Whoever else waits for it hears what is found.
    pub(crate) async fn check_now(&self, name: &str, session: Option<&Session>) -> Result<CheckReport, Problem> {
        needs::check_now(&self.worlds.now(), name, session).await
    }

    /// Whether another session may become active.
    async fn check_room(&self) -> Result<(), Problem> {
        self.whole().await;
        self.room(&lock(&self.known))
    }

    pub(super) fn worlds(&self) -> &Worlds {
        &self.worlds
    }

    fn room(&self, sessions: &BTreeMap<SessionId, Session>) -> Result<(), Problem> {
        self.worlds.now().launchable()?;
        if let Some(draining) = self.worlds.now().drain.now() {
            let detail = format!("agentd is drained, as {} asked: it launches nothing", draining.by);
            return Err(Problem::new(Code::Draining, detail).hint("`agentctl drain --undo` has it launch again"));
        }
        let limit = self.worlds.now().config.limits.active_sessions;
        let active = active(sessions);
        if active < limit {
            return Ok(());
        }
        let detail = format!("{active} sessions are active, and {limit} is the limit");
        Err(Problem::new(Code::TooManySessions, detail)
            .hint("stop one with `agentctl stop`; limits.active_sessions sets the limit"))
    }

    /// Removes a session that is not active, and everything that was kept of it.
    pub(crate) async fn remove(&self, session: &Session) -> Result<(), Problem> {
        // Whoever reads the sessions takes what is on its way out for what a crash left.
        self.whole().await;
        fault(Point::DaemonRemoveBefore).map_err(|error| Problem::new(Code::Internal, error))?;
        session.release().await?;
        lock(&self.known).remove(session.id());
        let world = self.worlds.now();
        let directories = &world.directories;
        // Out of sight in one step; a crash in the middle leaves no half of a session.
        let aside = directories.sessions().join(format!("{REMOVING}{}", session.id()));
        if let Err(error) = std::fs::rename(session.directory(), &aside) {
            // It is there still, and so it is again one of ours.
            if let Ok(document) = Document::read(session.directory(), session.id()) {
                self.start(document, false, None)?;
            }
            return Err(not_removed(error));
        }
        world.environments.forget(session.id());
        fault(Point::DaemonRemoveRenamed).map_err(|error| Problem::new(Code::Internal, error))?;
        remove_files(Some(directories.session_runtime(session.id())), aside).await
    }

    /// Waits until every driver has ended, after the shutdown was called for.
    pub(crate) async fn closed(&self) {
        self.drivers.close();
        self.drivers.wait().await;
    }
}

/// Removes what is out of sight, and what the session had while it ran.
async fn remove_files(runtime: Option<PathBuf>, aside: PathBuf) -> Result<(), Problem> {
    let removing = tokio::task::spawn_blocking(move || {
        if let Some(runtime) = runtime {
            let _ = std::fs::remove_dir_all(runtime);
        }
        std::fs::remove_dir_all(aside)
    });
    removing.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))?.map_err(not_removed)
}

#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
fn not_removed(error: io::Error) -> Problem {
    Problem::new(Code::Internal, format!("cannot remove the session's files: {error}"))
}

fn no_such_session(id_or_name: &str) -> Problem {
    Problem::new(Code::NoSuchSession, format!("there is no session {id_or_name:?}"))
        .hint("`agentctl ls` lists the sessions")
}

/// How many may not become more than the limit.
fn active(sessions: &BTreeMap<SessionId, Session>) -> usize {
    sessions.values().filter(|session| session.published.borrow().view.status.phase.is_active()).count()
}

/// Whether the parent may have another child that is not over.
fn room_for_child(sessions: &BTreeMap<SessionId, Session>, parent: &Parent) -> Result<(), Problem> {
    let is_child = |session: &&Session| {
        let published = session.published.borrow();
        published.view.parent.as_ref() == Some(&parent.id)
            && !matches!(published.view.status.phase, Phase::Stopped | Phase::Failed)
    };
    let (children, most) = (sessions.values().filter(is_child).count(), parent.most);
    if children < most {
        return Ok(());
    }
    let detail =
        format!("{children} sessions that the session {} created are active, and {most} is the limit", parent.id);
    Err(Problem::new(Code::TooManySessions, detail).hint("stop one; control.guest_sessions sets the limit"))
}

/// By a name or by an id: both are looked up in the same place.
fn is_taken(sessions: &BTreeMap<SessionId, Session>, name: &SessionName) -> bool {
    sessions.values().any(|session| {
        session.id.as_str() == name.as_str() || session.published.borrow().view.spec.name.as_ref() == Some(name)
    })
}

fn name_taken(name: &SessionName) -> Problem {
    Problem::new(Code::NameTaken, format!("another session is called \"{name}\""))
        .hint("choose another name, or remove that session")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing that is done under these locks can leave them half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
