//! The places of the configuration: other machines, jobs of a cluster and containers on which agents run.
//!
//! A place has a login shell, an environment and prerequisites of its own. They are captured and checked there, by
//! the roles `run` and `look` of agentd-keeper, and kept by place. `agentd_place` knows the engines, and
//! `engine` runs their tools.

mod check;
mod copy;
pub(crate) mod engine;
pub(crate) mod looks;
pub(crate) mod terms;
mod watch;

pub use watch::watch;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use agentd_api::event::PlaceHost;
use agentd_api::{ByteString, SessionId, hex};
use agentd_config::Config;
use agentd_environment::{Capture, Environments, Pipeline, PlaceUser, SnapshotOptions, SnapshotRequest, Snapshots};
use agentd_host::capability::Machine;
use agentd_host::directories::{DirectoryError, make_private};
use agentd_host::{KeeperProgram, files};
use agentd_keeper::protocol::{KeeperFile, PlaceLine, Resident, Variable};
use agentd_place::{ClientError, LaunchNames, Place};
use agentd_plugin_set::Plugins;
use agentd_prerequisite::{CheckResources, Prerequisites};
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use self::copy::Copies;
use self::looks::LookWords;
use crate::daemon::Daemon;

/// Time that a place has to tell its host, if no queue delays it.
const HOST: Duration = Duration::from_mins(1);
/// Time that agentd waits for the queue of an engine before an environment is captured there.
const QUEUE: Duration = Duration::from_hours(24);
/// Times of the orderly end of an agent whose connection is lost. Agents take up to 7 s to exit after their stdin is
/// closed.
const CLOSE: Duration = Duration::from_secs(8);
const TERM: Duration = Duration::from_secs(2);

/// A place of the configuration, with the services of its machine.
#[derive(Debug)]
pub(crate) struct SessionPlace {
    pub(crate) place: Place,
    pub(crate) machine: Machine,
    capture: Capture,
    options: SnapshotOptions,
    lines: Arc<Lines>,
    ready: OnceCell<Ready>,
    loaded: OnceCell<Loaded>,
}

/// Facts that the place itself tells, and the snapshots of its login shell.
#[derive(Debug)]
struct Ready {
    host: PlaceHost,
    snapshots: Arc<Snapshots>,
}

/// The pipeline and the prerequisites that use the place.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) pipeline: Pipeline,
    pub(crate) prerequisites: Arc<Prerequisites>,
}

/// Reason why a place cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("cannot build the client of place {place:?}")]
    Client { place: String, source: ClientError },
    #[error("cannot read the template {path:?} of place {place:?}")]
    Template { place: String, path: PathBuf, source: io::Error },
    #[error("cannot read keeper_file {path:?} of place {place:?}")]
    KeeperFile { place: String, path: PathBuf, source: io::Error },
    #[error("place {place:?} does not tell its host: {reason}")]
    Host { place: String, reason: String },
    #[error("the user {user} of place {place:?} has no home directory there, neither in the user database nor by HOME")]
    User { place: String, user: String },
    #[error("cannot create the directory for snapshots of place {place:?}")]
    Directory { place: String, source: DirectoryError },
}

/// Makes the lines to a place.
#[derive(Debug)]
struct Lines {
    place: Place,
    /// Word in the names of lines that belong to no session.
    word: String,
    words: Arc<LookWords>,
    is_stored: Once,
    next: AtomicU64,
    copies: Copies,
}

impl Lines {
    /// Makes the line of one launch.
    fn of(&self, session: &str, launch: u64, directory: &Path, may_stay: bool) -> Result<PlaceLine, PlaceError> {
        let place = || self.place.name.to_string();
        let template = match self.place.template() {
            None => None,
            Some(path) => Some(std::fs::read_to_string(path).map_err(|source| PlaceError::Template {
                place: place(),
                path: path.to_owned(),
                source,
            })?),
        };
        let copy = match self.place.keeper_file() {
            None => None,
            Some(path) => Some(self.copies.of(path).map_err(|source| PlaceError::KeeperFile {
                place: place(),
                path: path.to_owned(),
                source,
            })?),
        };
        let names = LaunchNames { session, launch, directory, template: template.as_deref(), keeper: copy.as_ref() };
        let failed = |source| PlaceError::Client { place: place(), source };
        let words = |words: Vec<String>| words.iter().map(|word| ByteString::from(word.as_str())).collect();
        let cancel = self.place.cancel(&names).map_err(failed)?;
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (client, resident) = match self.place.resident.filter(|_| may_stay) {
            None => (self.place.client(&names).map_err(failed)?, None),
            Some(times) => {
                let lines = self.place.resident_lines(&names).map_err(failed)?;
                let resident = Resident {
                    submit: lines.submit.map(words),
                    alone_ms: milliseconds(times.unattended),
                    linger_ms: milliseconds(times.linger),
                    ..Resident::default()
                };
                (lines.client, Some(Box::new(resident)))
            }
        };
        Ok(PlaceLine {
            place: place(),
            client: words(client),
            environment: self.environment(),
            cancel: cancel.map(words),
            enter_ms: (!self.place.kind.has_queue()).then(|| milliseconds(HOST)),
            silence_ms: milliseconds(self.place.silence),
            grace_ms: milliseconds(self.place.grace),
            close_ms: milliseconds(CLOSE),
            term_ms: milliseconds(TERM),
            resident,
            keeper: copy.as_ref().zip(self.place.sends()).map(|(copy, path)| {
                Box::new(KeeperFile { path: path.as_os_str().to_owned().into(), bytes: copy.bytes })
            }),
            sha256: copy.map(|copy| copy.sha256).or_else(|| self.place.keeper_sha256.clone()),
        })
    }

    /// Makes the line of a role that belongs to no session.
    fn next(&self) -> io::Result<PlaceLine> {
        self.store_word();
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let line = self.of(&self.word, number, Path::new("/"), false);
        line.map_err(|error| io::Error::other(agentd_api::chain(&error)))
    }

    /// Stores the word before the first line with it. An engine without states needs no word, because nothing is left
    /// there.
    fn store_word(&self) {
        let store = || {
            if let Err(error) = self.words.store(self.place.name.as_str(), &self.word) {
                tracing::warn!(%error, place = %self.place.name, "cannot store the word in the names of looks");
            }
        };
        if self.place.status().is_some() {
            self.is_stored.call_once(store);
        }
    }

    fn environment(&self) -> Vec<Variable> {
        let environment = self.place.environment(|name| std::env::var_os(name));
        let variable = |(name, value): (String, OsString)| Variable { name: name.as_str().into(), value: value.into() };
        environment.into_iter().map(variable).collect()
    }
}

impl SessionPlace {
    /// Creates the services of a place. `options` are those of this machine.
    pub(crate) fn new(place: Place, config: &Config, daemon: &Daemon, options: SnapshotOptions) -> Self {
        let lines = Arc::new(Lines {
            word: daemon.looks.next(),
            words: Arc::clone(&daemon.looks),
            is_stored: Once::new(),
            place: place.clone(),
            next: AtomicU64::new(0),
            copies: Copies::default(),
        });
        let made = Arc::clone(&lines);
        let keeper = KeeperProgram::at(daemon.programs.keeper.clone(), place.name.as_str(), move || made.next());
        let environment = &config.environment;
        let longest = environment.deadline.0;
        let capture = Capture::new(keeper.clone(), longest, environment.children).with_term(environment.term.clone());
        let waits = if place.kind.has_queue() { QUEUE } else { HOST };
        let cache = options.cache.join("places").join(place.name.as_str());
        let options = SnapshotOptions { cache, longest: longest.saturating_add(waits), ..options };
        Self {
            machine: Machine::new(keeper),
            place,
            capture,
            options,
            lines,
            ready: OnceCell::new(),
            loaded: OnceCell::new(),
        }
    }

    /// Returns the words of this daemon's looks, and of those before.
    pub(crate) fn looks(&self) -> &Arc<LookWords> {
        &self.lines.words
    }

    /// Returns the name of the place.
    pub(crate) fn name(&self) -> &str {
        self.place.name.as_str()
    }

    /// Makes the line of one launch of a session.
    pub(crate) fn line(&self, session: &SessionId, launch: u64, directory: &Path) -> Result<PlaceLine, PlaceError> {
        self.lines.of(session.as_str(), launch, directory, true)
    }

    /// Returns the environment of the client and of the engine's tools.
    pub(crate) fn environment(&self) -> Vec<Variable> {
        self.lines.environment()
    }

    /// Returns the time for which a launch waits for the place, besides the time of its work.
    fn patience(&self) -> Duration {
        if self.place.kind.has_queue() { QUEUE } else { HOST }
    }

    /// Returns the facts of the place's host. The place is asked once.
    pub(crate) async fn host(&self, environments: &Environments) -> Result<&PlaceHost, PlaceError> {
        Ok(&self.ready(environments).await?.host)
    }

    /// Returns the snapshots of the place's login shell, once its host is known.
    pub(crate) fn snapshots(&self) -> Option<&Arc<Snapshots>> {
        self.ready.get().map(|ready| &ready.snapshots)
    }

    async fn ready(&self, environments: &Environments) -> Result<&Ready, PlaceError> {
        let place = || self.name().to_owned();
        let ask = || async {
            let host = match self.stored_host().await {
                Some(host) => host,
                None => self.ask_host().await?,
            };
            let Some(home) = host.home.clone() else {
                return Err(PlaceError::User { place: place(), user: host.user });
            };
            // passwd(5): a user without a shell has /bin/sh.
            let shell = host.shell.clone().unwrap_or_else(|| "/bin/sh".into());
            let user = PlaceUser { name: host.user.clone(), uid: host.uid, home, shell };
            let options = SnapshotOptions { user: Some(user), ..self.options.clone() };
            let snapshots = Snapshots::new(options, Arc::new(self.capture.clone()), environments.vault());
            let snapshots = snapshots.map_err(|source| PlaceError::Directory { place: place(), source })?;
            Ok(Ready { host, snapshots: Arc::new(snapshots) })
        };
        self.ready.get_or_try_init(ask).await
    }

    /// Asks the place for the facts of its host, and stores them. The next daemon then needs no job for the question.
    pub(crate) async fn ask_host(&self) -> Result<PlaceHost, PlaceError> {
        let host = self.machine.host(Instant::now() + self.patience()).await;
        let place = || self.name().to_owned();
        let host = host.map_err(|failure| PlaceError::Host { place: place(), reason: failure.to_string() })?;
        let (file, stored) = (self.host_file(), host.clone());
        let store = move || {
            file.parent().map(make_private).transpose().map_err(io::Error::other)?;
            files::write_json(&file, &stored)
        };
        if let Ok(Err(error)) = agentd_host::work::blocking(store).await {
            tracing::warn!(%error, place = self.name(), "cannot store the facts of a place's host");
        }
        Ok(host)
    }

    /// Returns the stored facts of the host, unless the place is configured otherwise since.
    async fn stored_host(&self) -> Option<PlaceHost> {
        let file = self.host_file();
        let read = move || serde_json::from_slice(&std::fs::read(file).ok()?).ok();
        agentd_host::work::blocking(read).await.ok().flatten()
    }

    fn host_file(&self) -> PathBuf {
        let digest = hex(&Sha256::digest(format!("{:?}", self.place)));
        self.options.cache.join(format!("host-{}.json", &digest[..16]))
    }

    /// Returns the pipeline and the prerequisites that use the place. `checker` runs programs on this machine.
    pub(crate) async fn loaded(
        &self,
        config: &Config,
        plugins: &Plugins,
        resources: CheckResources,
        checker: &Capture,
    ) -> &Loaded {
        let load = || async {
            let captures = (self.capture.clone(), checker);
            let pipeline = Pipeline::new(config, plugins.steps.clone(), captures, Arc::clone(&resources.metrics));
            let pipeline = pipeline.with_patience(self.patience());
            let resources = CheckResources { machine: self.machine.clone(), ..resources };
            let prerequisites = Arc::new(Prerequisites::new(config, plugins, resources).await);
            Loaded { pipeline, prerequisites }
        };
        self.loaded.get_or_init(load).await
    }

    /// Returns the request for the snapshot with which a launch on the place starts. A terminal of this machine does
    /// not show the place.
    pub(crate) fn snapshot_request(request: SnapshotRequest) -> SnapshotRequest {
        SnapshotRequest {
            source: agentd_api::environment::SnapshotSource::LoginShell,
            terminal: None,
            shared: None,
            ..request
        }
    }
}
