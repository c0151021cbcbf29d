//! What one session begins with: which source, shared with the others of its directory or not, and what of it could not be had.
//!
//! What cannot be had again is stored beside the session: the variables that its pipeline kept, without secrets. A secret is never on the
//! disk, so after a restart of the daemon it is missing, and the finding names it; only `stored` can take it fresh, since there it is the
//! login shell's. What the pipeline dropped was in no environment of the session, and is missed by none.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use agentd_api::environment::SnapshotSource;

use super::kept::{Kept, SESSION_SNAPSHOT};
use super::login::blocking;
use super::place::{Outcome, Place};
use super::{SnapshotError, Snapshots, Taken, Variables, kept_of, path};
use crate::env::merge::Environment;
use crate::env::quality::Quality;

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) source: SnapshotSource,
    /// The terminal's environment, by its id.
    pub(crate) terminal: Option<String>,
    /// Where sessions of this directory share.
    pub(crate) shared: Option<PathBuf>,
    /// The session's own directory.
    pub(crate) session: PathBuf,
    /// Where the login shell goes, if its hooks are to do there what they do for the user.
    pub(crate) place: Place,
}

/// One launch's beginning.
#[derive(Debug)]
pub(crate) struct Chosen {
    snapshots: Arc<Snapshots>,
    wanted: Wanted,
    finding: Mutex<Option<Finding>>,
    begun: Mutex<Option<Begun>>,
}

/// What a launch began with, until it is known which of it the pipeline kept.
#[derive(Debug, Clone)]
struct Begun {
    taken: Taken,
    of_login_shell: bool,
    /// Whether the session's own file is to have it.
    own_file: bool,
}

/// What a session is told of the snapshot it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) fresh: bool,
    /// One CamelCase word, for the condition.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Chosen {
    pub(crate) fn new(snapshots: Arc<Snapshots>, wanted: Wanted) -> Self {
        Self { snapshots, wanted, finding: Mutex::default(), begun: Mutex::default() }
    }

    /// What the launch begins with; how that went is then known to [`Chosen::finding`].
    pub(crate) async fn login(&self, deadline: Instant) -> Result<Taken, SnapshotError> {
        let (begun, finding) = match self.wanted.source {
            SnapshotSource::LoginShell => of_login_shell(self.snapshots.get_at(&self.wanted.place, deadline).await?),
            SnapshotSource::Terminal => self.terminal().await?,
            SnapshotSource::Stored => self.stored(deadline).await?,
        };
        let taken = begun.taken.clone();
        *self.finding.lock().unwrap_or_else(PoisonError::into_inner) = Some(finding);
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
        Ok(taken)
    }

    /// Stores what the pipeline kept of what the launch began with, where it is to be had again.
    pub(crate) async fn settle(&self, environment: &Environment) -> Result<(), SnapshotError> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Begun { taken, of_login_shell, own_file }) = begun else { return Ok(()) };
        let kept = kept_of(environment, &taken.variables, &taken.functions);
        if own_file {
            self.write(&taken, kept.clone()).await?;
        }
        if of_login_shell {
            self.snapshots.settle(taken.captured, kept).await;
        }
        Ok(())
    }

    /// The files that the login shell reads of itself, as far as they are there.
    pub(crate) async fn start_up_files(&self) -> Vec<PathBuf> {
        let snapshots = Arc::clone(&self.snapshots);
        tokio::task::spawn_blocking(move || snapshots.slots.start_up_files()).await.unwrap_or_default()
    }

    /// `None` where no provider asked for it.
    pub(crate) fn finding(&self) -> Option<Finding> {
        self.finding.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn terminal(&self) -> Result<(Begun, Finding), SnapshotError> {
        let shared = self.wanted.shared.as_deref();
        if let Some(taken) = self.snapshots.terminals.get(self.wanted.terminal.as_deref(), shared) {
            // Looked at before the launch goes on: what cannot be read must not be written over.
            self.read().await?;
            let message = format!("the environment of a terminal, as it was at {:.0}", taken.captured);
            let begun = Begun { taken, of_login_shell: false, own_file: true };
            return Ok((begun, Finding { fresh: true, reason: "Terminal", message }));
        }
        let stored = self.read().await?.ok_or(SnapshotError::TerminalGone)?;
        let what = format!("the terminal's environment of {:.0} as it was stored", stored.captured);
        let finding = missing(what, &stored.secrets, "a restart of agentd lost them");
        Ok((again(&stored, stored.variables()), finding))
    }

    async fn stored(&self, deadline: Instant) -> Result<(Begun, Finding), SnapshotError> {
        let Some(stored) = self.read().await? else {
            let (begun, finding) = of_login_shell(self.snapshots.get_at(&self.wanted.place, deadline).await?);
            // A weaker one is not what the session shall begin with from now on.
            let own_file = begun.taken.quality == Quality::Good;
            return Ok((Begun { own_file, ..begun }, finding));
        };
        let (mut variables, mut lost) = (stored.variables(), Vec::new());
        let mut why = "the login shell has them no more".to_owned();
        if !(stored.secrets.is_empty() && stored.dropped.is_empty()) {
            let fresh = match self.snapshots.get_at(&self.wanted.place, deadline).await {
                Ok(fresh) => fresh.variables,
                Err(error) => {
                    why = crate::env::chain(&error);
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
            // What was dropped is dropped again, and it is said by which step.
            variables.extend(stored.dropped.iter().filter_map(find));
        }
        let what = format!("the login shell's environment of {:.0} as it was stored", stored.captured);
        Ok((again(&stored, variables), missing(what, &lost, &why)))
    }

    /// In the session's directory, or where the sessions of its working directory find it.
    fn file(&self) -> PathBuf {
        match &self.wanted.shared {
            Some(directory) => self.snapshots.shared_file(directory, self.wanted.source),
            None => self.wanted.session.join(SESSION_SNAPSHOT),
        }
    }

    async fn read(&self) -> Result<Option<Kept>, SnapshotError> {
        let (path, vault) = (self.file(), self.snapshots.slots.vault());
        blocking(move || Kept::read(&path, &vault).map_err(|source| SnapshotError::Read { path, source })).await
    }

    /// Writes the variables of these names. Sessions of one directory may differ in what they keep: the file has what any of them did.
    async fn write(&self, taken: &Taken, mut names: BTreeSet<String>) -> Result<(), SnapshotError> {
        let before = self.read().await?.filter(|before| before.captured == taken.captured);
        let (path, vault, taken) = (self.file(), self.snapshots.slots.vault(), taken.clone());
        blocking(move || {
            let earlier = before.iter().flat_map(|before| [before.variables(), before.functions()]).flatten();
            names.extend(earlier.map(|(name, _)| name));
            let kept = Kept::of(taken.captured, (&taken.variables, &taken.functions), &names);
            let kept = kept.with_attributes(taken.attributes);
            if before.as_ref() == Some(&kept) {
                return Ok(());
            }
            kept.write(&path, &vault).map_err(|source| SnapshotError::Store { path, source })
        })
        .await
    }
}

fn of_login_shell(taken: Taken) -> (Begun, Finding) {
    let finding = match (&taken.stale, &taken.quality) {
        (Some(reason), _) => {
            let word = if taken.degraded { "Degraded" } else { "Stale" };
            Finding { fresh: false, reason: word, message: reason.clone() }
        }
        (None, Quality::Degraded(degraded)) => {
            let message = format!("the login shell's environment, {degraded}");
            Finding { fresh: false, reason: "Degraded", message }
        }
        (None, Quality::Good) => {
            if let Some((reason, message)) = taken.place.warning() {
                return (begun(taken), Finding { fresh: false, reason, message });
            }
            let place = taken.place.words();
            let mut message = format!("the login shell's environment{place}, as it was at {:.0}", taken.captured);
            if taken.renewing {
                message.push_str("; its time is over, and it is being taken again in the background");
            }
            match taken.path.words() {
                Some(lost) => Finding { fresh: true, reason: "PathLost", message: format!("{message}; {lost}") },
                None => Finding { fresh: true, reason: "LoginShell", message },
            }
        }
    };
    (begun(taken), finding)
}

fn begun(taken: Taken) -> Begun {
    Begun { taken, of_login_shell: true, own_file: false }
}

/// What was stored, given again.
fn again(stored: &Kept, variables: Variables) -> Begun {
    let taken = Taken {
        variables: Arc::new(variables),
        functions: Arc::new(stored.functions()),
        captured: stored.captured,
        stale: None,
        degraded: false,
        background: 0,
        quality: Quality::default(),
        path: path::Change::default(),
        renewing: false,
        place: Outcome::default(),
        attributes: stored.attributes.clone(),
    };
    Begun { taken, of_login_shell: false, own_file: false }
}

fn missing(what: String, lost: &[String], why: &str) -> Finding {
    if lost.is_empty() {
        return Finding { fresh: true, reason: "Stored", message: what };
    }
    let message = format!("{what}, without {}: {why}", lost.join(", "));
    Finding { fresh: false, reason: "SecretsMissing", message }
}
