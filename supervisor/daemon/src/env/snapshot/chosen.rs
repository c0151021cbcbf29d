//! What one session begins with: which source, shared with the others of its directory or not, and what of it could not be had.
//!
//! What cannot be had again is stored beside the session without its secrets. A secret is never on the disk, so after a restart
//! of the daemon it is missing, and the finding names it; only `stored` can take it fresh, since there it is the login shell's.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use agentd_api::environment::SnapshotSource;

use super::kept::Kept;
use super::login::blocking;
use super::{SnapshotError, Snapshots, Taken, Variables};
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
}

/// One launch's beginning.
#[derive(Debug)]
pub(crate) struct Chosen {
    snapshots: Arc<Snapshots>,
    wanted: Wanted,
    finding: Mutex<Option<Finding>>,
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
        Self { snapshots, wanted, finding: Mutex::default() }
    }

    /// What the launch begins with; how that went is then known to [`Chosen::finding`].
    pub(crate) async fn login(&self, deadline: Instant) -> Result<Taken, SnapshotError> {
        let (taken, finding) = match self.wanted.source {
            SnapshotSource::LoginShell => of_login_shell(self.snapshots.get(deadline).await?),
            SnapshotSource::Terminal => self.terminal().await?,
            SnapshotSource::Stored => self.stored(deadline).await?,
        };
        *self.finding.lock().unwrap_or_else(PoisonError::into_inner) = Some(finding);
        Ok(taken)
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

    async fn terminal(&self) -> Result<(Taken, Finding), SnapshotError> {
        let shared = self.wanted.shared.as_deref();
        let stored = self.read().await?;
        if let Some(taken) = self.snapshots.terminals.get(self.wanted.terminal.as_deref(), shared) {
            if stored.is_none_or(|stored| stored.captured != taken.captured) {
                self.write(&taken).await?;
            }
            let message = format!("the environment of a terminal, as it was at {:.0}", taken.captured);
            return Ok((taken, Finding { fresh: true, reason: "Terminal", message }));
        }
        let stored = stored.ok_or(SnapshotError::TerminalGone)?;
        let what = format!("the terminal's environment of {:.0} as it was stored", stored.captured);
        let finding = missing(what, &stored.secrets, "a restart of agentd lost them");
        Ok((taken_from(&stored, stored.variables()), finding))
    }

    async fn stored(&self, deadline: Instant) -> Result<(Taken, Finding), SnapshotError> {
        let Some(stored) = self.read().await? else {
            let taken = self.snapshots.get(deadline).await?;
            self.write(&taken).await?;
            return Ok(of_login_shell(taken));
        };
        let (mut variables, mut lost) = (stored.variables(), Vec::new());
        let mut why = "the login shell has them no more".to_owned();
        if !stored.secrets.is_empty() {
            let fresh = match self.snapshots.get(deadline).await {
                Ok(fresh) => fresh.variables,
                Err(error) => {
                    why = crate::env::chain(&error);
                    Arc::default()
                }
            };
            for name in &stored.secrets {
                match fresh.iter().find(|(fresh, _)| fresh == name) {
                    Some(secret) => variables.push(secret.clone()),
                    None => lost.push(name.clone()),
                }
            }
        }
        let what = format!("the login shell's environment of {:.0} as it was stored", stored.captured);
        Ok((taken_from(&stored, variables), missing(what, &lost, &why)))
    }

    /// In the session's directory, or where the sessions of its working directory find it.
    fn file(&self) -> PathBuf {
        match &self.wanted.shared {
            Some(directory) => self.snapshots.shared_file(directory, self.wanted.source),
            None => self.wanted.session.join("snapshot.json"),
        }
    }

    async fn read(&self) -> Result<Option<Kept>, SnapshotError> {
        let path = self.file();
        blocking(move || Kept::read(&path).map_err(|source| SnapshotError::Read { path, source })).await
    }

    async fn write(&self, taken: &Taken) -> Result<(), SnapshotError> {
        let (path, taken) = (self.file(), taken.clone());
        blocking(move || {
            let kept = Kept::of(taken.captured, &taken.variables, &taken.functions, Vec::new());
            kept.write(&path).map_err(|source| SnapshotError::Store { path, source })
        })
        .await
    }
}

fn of_login_shell(taken: Taken) -> (Taken, Finding) {
    let finding = match (&taken.stale, &taken.quality) {
        (None, Quality::Degraded(degraded)) => {
            let message = format!("the login shell's environment, {degraded}");
            Finding { fresh: false, reason: "Degraded", message }
        }
        (None, Quality::Good) => {
            let message = format!("the login shell's environment, as it was at {:.0}", taken.captured);
            Finding { fresh: true, reason: "LoginShell", message }
        }
        (Some(reason), _) => Finding { fresh: false, reason: "Stale", message: reason.clone() },
    };
    (taken, finding)
}

fn taken_from(stored: &Kept, variables: Variables) -> Taken {
    Taken {
        variables: Arc::new(variables),
        functions: Arc::new(stored.functions()),
        captured: stored.captured,
        stale: None,
        background: 0,
        quality: Quality::default(),
    }
}

fn missing(what: String, lost: &[String], why: &str) -> Finding {
    if lost.is_empty() {
        return Finding { fresh: true, reason: "Stored", message: what };
    }
    let message = format!("{what}, without {}: {why}", lost.join(", "));
    Finding { fresh: false, reason: "SecretsMissing", message }
}
