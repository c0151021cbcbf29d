//! Selects the environment with which one session starts: its source, whether sessions of the same directory share
//! it, and the parts that are missing.
//!
//! An environment that cannot be captured again is stored beside the session: the variables that its pipeline kept,
//! without secrets. Secrets are never on the disk. After a restart of the daemon they are missing, and the finding
//! names them. Only the source `stored` can read them again, because its secrets come from the login shell.
//!
//! Variables that the pipeline dropped were never in the session's environment, so their absence is not reported.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use agentd_api::environment::SnapshotSource;
use agentd_api::reason;
use async_recursion::async_recursion as boxed;

use super::place::{AtPlace, SnapshotPlace, VisitOutcome};
use super::{Snapshot, SnapshotError, Snapshots, Variables, kept_of, path};
use crate::blocking::blocking;
use crate::lock::locked;
use crate::login::quality::Quality;
use crate::login::seed::SeedError;
use crate::merge::Environment;
use crate::store::{SESSION_SNAPSHOT, StoredSnapshot};

/// Request for a start environment.
#[derive(Debug, Clone)]
pub struct SnapshotRequest {
    pub source: SnapshotSource,
    /// Id of the terminal's environment.
    pub terminal: Option<String>,
    /// Directory whose sessions share the environment.
    pub shared: Option<PathBuf>,
    /// Directory of the session's own files.
    pub session: PathBuf,
    /// Session's working directory, for the hooks of the login shell.
    pub place: SnapshotPlace,
}

/// Start environment of one launch.
#[derive(Debug)]
pub struct SessionSnapshot {
    snapshots: Arc<Snapshots>,
    wanted: SnapshotRequest,
    finding: Mutex<Option<SnapshotFinding>>,
    start: Mutex<Option<StartEnvironment>>,
}

/// Start environment of a launch, until the pipeline has decided which variables it keeps.
#[derive(Debug, Clone)]
struct StartEnvironment {
    taken: Snapshot,
    of_login_shell: bool,
    /// Whether the environment is stored in the session's own file.
    own_file: bool,
}

/// Description of the snapshot that a session received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotFinding {
    pub fresh: bool,
    /// CamelCase reason for the condition.
    pub reason: &'static str,
    pub message: String,
}

/// Result of [`SessionSnapshot::look`].
pub(crate) struct LookedUp(Result<AtPlace, SeedError>);

impl LookedUp {
    /// Returns the variables, if no shell has to run.
    pub(crate) fn variables(&self) -> Option<&Variables> {
        match &self.0 {
            Ok(looked) => looked.known().map(|taken| &*taken.variables),
            Err(_) => None,
        }
    }
}

/// Shows whether the environment is known.
impl std::fmt::Debug for LookedUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LookedUp({})", self.variables().is_some())
    }
}

impl SessionSnapshot {
    pub fn new(snapshots: Arc<Snapshots>, wanted: SnapshotRequest) -> Self {
        Self { snapshots, wanted, finding: Mutex::default(), start: Mutex::default() }
    }

    /// Looks up the environment of the login shell, up to the first wait. Blocks for as long as the file system does.
    /// Returns `None` if the launch starts with another environment.
    pub(crate) fn look(&self) -> Option<LookedUp> {
        let of_login_shell = self.wanted.source == SnapshotSource::LoginShell;
        of_login_shell.then(|| LookedUp(self.snapshots.look_at(&self.wanted.place)))
    }

    /// Returns the environment with which the launch starts, and records the finding for [`SessionSnapshot::finding`].
    pub async fn login(&self, deadline: Instant) -> Result<Snapshot, SnapshotError> {
        self.login_after(None, deadline).await
    }

    /// Returns the environment like [`Self::login`], after it was looked up.
    #[boxed]
    pub(crate) async fn login_after(
        &self,
        looked: Option<LookedUp>,
        deadline: Instant,
    ) -> Result<Snapshot, SnapshotError> {
        let (start, finding) = match self.wanted.source {
            SnapshotSource::LoginShell => of_login_shell(match looked {
                Some(LookedUp(looked)) => self.snapshots.taken_at(&self.wanted.place, looked?, deadline).await?,
                None => self.snapshots.get_at(&self.wanted.place, deadline).await?,
            }),
            SnapshotSource::Terminal => self.terminal().await?,
            SnapshotSource::Stored => self.stored(deadline).await?,
        };
        let taken = start.taken.clone();
        *locked(&self.finding) = Some(finding);
        *locked(&self.start) = Some(start);
        Ok(taken)
    }

    /// Stores the variables that the pipeline kept, if they may be needed again.
    #[boxed]
    pub async fn settle(&self, environment: &Environment) -> Result<(), SnapshotError> {
        let start = locked(&self.start).take();
        let Some(StartEnvironment { taken, of_login_shell, own_file }) = start else { return Ok(()) };
        let kept = kept_of(environment, &taken.variables, &taken.functions);
        if own_file {
            self.write(&taken, kept.clone()).await?;
        }
        if of_login_shell {
            self.snapshots.settle(taken.captured, kept).await;
        }
        Ok(())
    }

    /// Returns the existing files that the login shell reads by default.
    #[boxed]
    pub async fn start_up_files(&self) -> Vec<PathBuf> {
        let snapshots = Arc::clone(&self.snapshots);
        agentd_host::work::blocking(move || snapshots.slots.start_up_files()).await.unwrap_or_default()
    }

    /// Returns `None` if no provider requested the environment.
    pub fn finding(&self) -> Option<SnapshotFinding> {
        locked(&self.finding).clone()
    }

    async fn terminal(&self) -> Result<(StartEnvironment, SnapshotFinding), SnapshotError> {
        let shared = self.wanted.shared.as_deref();
        if let Some(taken) = self.snapshots.terminals.get(self.wanted.terminal.as_deref(), shared) {
            // Read the stored file first: a file that cannot be read must not be overwritten.
            self.read().await?;
            let message = format!("a terminal's environment, captured at {:.0}", taken.captured);
            let start = StartEnvironment { taken, of_login_shell: false, own_file: true };
            return Ok((start, SnapshotFinding { fresh: true, reason: reason::TERMINAL, message }));
        }
        let stored = self.read().await?.ok_or(SnapshotError::TerminalGone)?;
        let what = format!("the terminal's environment of {:.0}, as stored", stored.captured);
        let finding = stored_finding(what, &stored.secrets, "a restart of agentd lost them");
        Ok((from_stored(&stored, stored.variables()), finding))
    }

    async fn stored(&self, deadline: Instant) -> Result<(StartEnvironment, SnapshotFinding), SnapshotError> {
        let Some(stored) = self.read().await? else {
            let (start, finding) = of_login_shell(self.snapshots.get_at(&self.wanted.place, deadline).await?);
            // A degraded environment must not become the session's stored environment.
            let own_file = start.taken.quality == Quality::Good;
            return Ok((StartEnvironment { own_file, ..start }, finding));
        };
        let (mut variables, mut lost) = (stored.variables(), Vec::new());
        let mut why = "the login shell no longer sets them".to_owned();
        if !(stored.secrets.is_empty() && stored.dropped.is_empty()) {
            let fresh = match self.snapshots.get_at(&self.wanted.place, deadline).await {
                Ok(fresh) => fresh.variables,
                Err(error) => {
                    why = agentd_api::chain(&error);
                    Arc::default()
                }
            };
            let find = |name: &String| fresh.iter().find(|(fresh, _)| fresh == name).cloned();
            for name in &stored.secrets {
                match find(name) {
                    Some(secret) => variables.push(secret),
                    None => lost.push(name.clone()),
                }
            }
            // The pipeline drops these variables again and records which step did.
            variables.extend(stored.dropped.iter().filter_map(find));
        }
        let what = format!("the login shell's environment of {:.0}, as stored", stored.captured);
        Ok((from_stored(&stored, variables), stored_finding(what, &lost, &why)))
    }

    /// Returns the file in the session's directory, or the shared file of its working directory.
    fn file(&self) -> PathBuf {
        match &self.wanted.shared {
            Some(directory) => self.snapshots.shared_file(directory, self.wanted.source),
            None => self.wanted.session.join(SESSION_SNAPSHOT),
        }
    }

    async fn read(&self) -> Result<Option<StoredSnapshot>, SnapshotError> {
        let (path, vault) = (self.file(), self.snapshots.slots.vault());
        blocking(move || StoredSnapshot::read(&path, &vault).map_err(|source| SnapshotError::Read { path, source }))
            .await
    }

    /// Writes the variables with these names. Sessions of one directory may keep different variables, so the file
    /// holds the variables of every session.
    async fn write(&self, taken: &Snapshot, mut names: BTreeSet<String>) -> Result<(), SnapshotError> {
        let before = self.read().await?.filter(|before| before.captured == taken.captured);
        let (path, vault, taken) = (self.file(), self.snapshots.slots.vault(), taken.clone());
        blocking(move || {
            let earlier = before.iter().flat_map(|before| [before.variables(), before.functions()]).flatten();
            names.extend(earlier.map(|(name, _)| name));
            let kept = StoredSnapshot::of(taken.captured, (&taken.variables, &taken.functions), &names);
            let kept = kept.with_attributes(taken.attributes);
            if before.as_ref() == Some(&kept) {
                return Ok(());
            }
            kept.write(&path, &vault).map_err(|source| SnapshotError::Store { path, source })
        })
        .await
    }
}

fn of_login_shell(taken: Snapshot) -> (StartEnvironment, SnapshotFinding) {
    let finding = match (&taken.stale, &taken.quality) {
        (Some(reason), _) => {
            let word = if taken.degraded { reason::DEGRADED } else { reason::STALE };
            SnapshotFinding { fresh: false, reason: word, message: reason.clone() }
        }
        (None, Quality::Degraded(degraded)) => {
            let message = format!("the login shell's environment, {degraded}");
            SnapshotFinding { fresh: false, reason: reason::DEGRADED, message }
        }
        (None, Quality::Good) => {
            if let Some((reason, message)) = taken.place.warning() {
                return (start(taken), SnapshotFinding { fresh: false, reason, message });
            }
            let place = taken.place.words();
            let mut message = format!("the login shell's environment{place}, captured at {:.0}", taken.captured);
            if taken.renewing {
                message.push_str("; it has expired and is being captured again in the background");
            }
            match taken.path.words() {
                Some(lost) => {
                    SnapshotFinding { fresh: true, reason: reason::PATH_LOST, message: format!("{message}; {lost}") }
                }
                None => SnapshotFinding { fresh: true, reason: reason::LOGIN_SHELL, message },
            }
        }
    };
    (start(taken), finding)
}

fn start(taken: Snapshot) -> StartEnvironment {
    StartEnvironment { taken, of_login_shell: true, own_file: false }
}

/// Returns a stored snapshot as a start environment.
fn from_stored(stored: &StoredSnapshot, variables: Variables) -> StartEnvironment {
    let taken = Snapshot {
        variables: Arc::new(variables),
        functions: Arc::new(stored.functions()),
        captured: stored.captured,
        stale: None,
        degraded: false,
        background: 0,
        quality: Quality::default(),
        path: path::LostEntries::default(),
        renewing: false,
        place: VisitOutcome::default(),
        attributes: stored.attributes.clone(),
    };
    StartEnvironment { taken, of_login_shell: false, own_file: false }
}

fn stored_finding(what: String, lost: &[String], why: &str) -> SnapshotFinding {
    if lost.is_empty() {
        return SnapshotFinding { fresh: true, reason: reason::STORED, message: what };
    }
    let message = format!("{what}, without {}: {why}", lost.join(", "));
    SnapshotFinding { fresh: false, reason: reason::SECRETS_MISSING, message }
}
