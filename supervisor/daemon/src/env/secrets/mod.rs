//! Named secrets: taken anew at every launch from where they live, given to the agent, and kept nowhere.
//!
//! It is agentd's own last step of the pipeline but one, `secrets`. It begins beside the providers, so that a launch waits only for what
//! takes longer than they do, and so that what they say when they fail has the secrets hidden that a script may have printed.

mod declared;
mod hidden;
mod literal;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::secret::SecretView;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

pub(crate) use declared::{Declared, Named};
pub(crate) use hidden::Hidden;
pub(crate) use literal::{assigned, redacted};

use super::capture::{Capture, Variables};
use super::seed::Seed;
use super::services::chain;
use declared::Source;
use source::SourceError;
pub(crate) use source::{credential as secret_credential, file as secret_file};

/// The step's name in provenance.
pub(crate) const STEP: &str = "secrets";
/// Programs that are run at once to get secrets, for one launch.
const AT_ONCE: usize = 8;

/// The secrets of the configuration, and what it takes to get them.
#[derive(Debug)]
pub(crate) struct Secrets {
    named: Vec<Named>,
    capture: Capture,
    home: Option<PathBuf>,
    shell: Option<PathBuf>,
    sources: Vec<super::sources::Source>,
    credentials: Option<PathBuf>,
    longest: Duration,
}

/// A secret that was had.
pub(crate) struct Given {
    pub(crate) name: String,
    pub(crate) variable: String,
    pub(crate) value: Zeroizing<Vec<u8>>,
    /// Where it came from.
    pub(crate) origin: String,
}

/// Everything but the value.
impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} from {}", self.variable, self.origin)
    }
}

/// A secret that could not be had, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret {name:?} cannot be had from {origin}: {reason}")]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) origin: String,
    pub(crate) required: bool,
    pub(crate) reason: String,
}

/// What came of taking a session's secrets; both in the order of their names. Where several become one variable, the last that could
/// be had is it.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) given: Vec<Given>,
    pub(crate) missing: Vec<Missing>,
}

/// What the configuration declares, or what is wrong with it.
pub(crate) fn named(declared: &BTreeMap<String, Declared>) -> Result<Vec<Named>, String> {
    declared.iter().map(|(name, one)| Named::of(name, one).map_err(|wrong| format!("secrets.{name} {wrong}"))).collect()
}

impl Secrets {
    /// Of a configuration that was checked; what is wrong in it is left out.
    pub(crate) fn new(config: &crate::config::Config, keeper: PathBuf) -> Self {
        let longest = config.environment.deadline.0;
        Self {
            named: named(&config.secrets).unwrap_or_default(),
            capture: Capture::new(keeper, longest, config.environment.children),
            home: config.environment.home.clone(),
            shell: config.environment.shell.clone(),
            sources: config.environment.sources.clone(),
            // systemd.exec(5): set for a service that has credentials. It is looked at once, at the start.
            credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            longest,
        }
    }

    /// What there is and who gets it; nothing is taken.
    pub(crate) fn views(&self) -> Vec<SecretView> {
        self.named.iter().map(Named::view).collect()
    }

    /// The files that secrets are read from, as the configuration names them.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.named.iter().filter_map(|named| match &named.source {
            declared::Source::File(path) => Some(path),
            declared::Source::Credential(_) | declared::Source::Command(_) | declared::Source::Snapshot(_) => None,
        })
    }

    /// The same, and whether each could be had just now. What was had is forgotten.
    pub(crate) async fn check(&self) -> Vec<SecretView> {
        let hidden = Hidden::default();
        let login = async {
            let seed = self.seed().map_err(|error| chain(&error))?;
            let login =
                self.capture.login(&seed, Instant::now() + self.longest).await.map_err(|error| chain(&error))?;
            hidden.variables(&login.variables);
            Ok(login.variables)
        };
        let taken = self.take_all(self.named.clone(), login).await;
        for given in &taken.given {
            hidden.value(&given.value);
        }
        let view = |named: &Named| {
            let missing = taken.missing.iter().find(|missing| missing.name == named.name);
            let reason = missing.map(|missing| hidden.text(&missing.reason));
            SecretView { available: Some(missing.is_none()), reason, ..named.view() }
        };
        self.named.iter().map(view).collect()
    }

    /// Takes the secrets of a session; `login` is asked for only where one of them is a variable of the login shell. `directory` is the
    /// session's, its links resolved; without it, nothing that is some directories' only is given.
    pub(crate) async fn take(
        &self,
        agent: &str,
        directory: Option<&Path>,
        login: impl Future<Output = Result<Variables, String>>,
    ) -> Taken {
        let wanted = self.of_session(agent, directory).cloned().collect();
        self.take_all(wanted, login).await
    }

    /// The same of those that `only` names.
    pub(crate) async fn take_only(
        &self,
        only: &BTreeSet<String>,
        agent: &str,
        directory: Option<&Path>,
        login: impl Future<Output = Result<Variables, String>>,
    ) -> Taken {
        let wanted = self.of_session(agent, directory).filter(|named| only.contains(&named.name)).cloned().collect();
        self.take_all(wanted, login).await
    }

    fn of_session<'a>(&'a self, agent: &'a str, directory: Option<&'a Path>) -> impl Iterator<Item = &'a Named> {
        self.named.iter().filter(move |named| named.is_for(agent, directory))
    }

    /// Why a session does not get a secret whatever its source says; nothing where it does.
    pub(crate) fn refusal(&self, name: &str, agent: &str, directory: Option<&Path>) -> Option<&'static str> {
        if self.of_session(agent, directory).any(|named| named.name == name) {
            return None;
        }
        let declared = self.named.iter().any(|named| named.name == name);
        let not_for_it = "which the configuration does not give to this agent in this directory";
        Some(if declared { not_for_it } else { "which the configuration does not declare" })
    }

    /// Takes one secret, if there is one of this name that is the session's.
    pub(crate) async fn read(
        &self,
        name: &str,
        agent: &str,
        directory: Option<&Path>,
        login: impl Future<Output = Result<Variables, String>>,
    ) -> Option<Result<Given, Missing>> {
        let named = self.of_session(agent, directory).find(|named| named.name == name)?.clone();
        let mut taken = self.take_all(vec![named], login).await;
        taken.given.pop().map(Ok).or_else(|| taken.missing.pop().map(Err))
    }

    async fn take_all(&self, wanted: Vec<Named>, login: impl Future<Output = Result<Variables, String>>) -> Taken {
        let (mut tasks, mut results) = (JoinSet::new(), BTreeMap::new());
        let running = Arc::new(Semaphore::new(AT_ONCE));
        let is_of_login = |named: &&Named| matches!(named.source, Source::Snapshot(_));
        for named in wanted.iter().filter(|named| !is_of_login(named)) {
            let (name, running) = (named.name.clone(), Arc::clone(&running));
            let (taking, longest) = (self.taking(named.source.clone()), self.longest);
            tasks.spawn(async move {
                // Time runs from the start of the work, not from when it began to wait.
                let _permit = running.acquire_owned().await;
                // A little after the program's own deadline, whose message says more.
                let value = tokio::time::timeout(longest + Duration::from_secs(2), taking).await;
                (name, value.unwrap_or(Err(SourceError::TimedOut { seconds: longest.as_secs() })))
            });
        }
        if wanted.iter().any(|named| is_of_login(&named)) {
            let login = login.await;
            for named in &wanted {
                if let Source::Snapshot(variable) = &named.source {
                    let value = source::snapshot(variable, login.as_deref().map_err(Clone::clone));
                    results.insert(named.name.clone(), value);
                }
            }
        }
        while let Some(joined) = tasks.join_next().await {
            results.extend(joined.ok());
        }
        let mut taken = Taken::default();
        for Named { name, variable, source, required, .. } in wanted {
            let origin = source.to_string();
            match results.remove(&name).unwrap_or(Err(SourceError::Defect)) {
                Ok(value) => taken.given.push(Given { name, variable, value: value.into(), origin }),
                Err(error) => taken.missing.push(Missing { name, origin, required, reason: chain(&error) }),
            }
        }
        taken
    }

    fn taking(&self, source: Source) -> impl Future<Output = Result<Vec<u8>, SourceError>> + Send + use<> {
        let (capture, seed, longest) = (self.capture.clone(), self.seed(), self.longest);
        let credentials = self.credentials.clone();
        async move {
            match source {
                // A file may lie on a file system that does not answer.
                Source::File(path) => blocking(move || source::file(&path, seed)).await,
                Source::Credential(name) => blocking(move || source::credential(&name, credentials.as_deref())).await,
                Source::Command(command) => source::command(&command, &capture, seed, Instant::now() + longest).await,
                Source::Snapshot(variable) => Err(SourceError::NotSet { variable }),
            }
        }
    }

    fn seed(&self) -> Result<Seed, super::seed::SeedError> {
        Ok(Seed::find(self.home.as_deref(), self.shell.as_deref())?.with_sources(self.sources.clone()))
    }
}

async fn blocking(
    read: impl FnOnce() -> Result<Vec<u8>, SourceError> + Send + 'static,
) -> Result<Vec<u8>, SourceError> {
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(SourceError::Defect))
}
