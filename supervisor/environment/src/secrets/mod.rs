//! Reads the named secrets from their sources at every launch, gives them to the agent, and stores them nowhere.
//!
//! The step `secrets` is the second-to-last step of the pipeline and agentd's own. It starts together with the
//! providers, so a launch waits only if a source is slower than the providers. Messages of failed providers can
//! therefore hide secrets that a script printed.

mod hidden;
mod literal;
pub(crate) mod plain;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::secret::SecretView;
use async_recursion::async_recursion as boxed;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

pub use hidden::HiddenValues;
pub use literal::{assigned, redacted};

use crate::login::capture::{Capture, Variables};
use crate::login::seed::Seed;
use agentd_api::chain;
use agentd_config::{DeclaredSecret, LoginSource, NamedSecret, SecretOrigin};
use source::SourceError;
pub use source::{credential as secret_credential, file as secret_file};

/// Name of the step in provenance.
pub(crate) const STEP: &str = "secrets";
/// Maximum number of programs that run concurrently to read secrets, for one launch.
const AT_ONCE: usize = 8;

/// Reads the variables of the login shell, if a secret needs them.
type LoginVariables<'a> = Pin<Box<dyn Future<Output = Result<Variables, String>> + Send + 'a>>;

/// The configured secrets, and the settings for reading them.
#[derive(Debug)]
pub struct Secrets {
    named: Vec<NamedSecret>,
    capture: Capture,
    home: Option<PathBuf>,
    shell: Option<PathBuf>,
    sources: Vec<LoginSource>,
    credentials: Option<PathBuf>,
    longest: Duration,
}

/// A secret that was read.
pub struct SecretValue {
    pub name: String,
    pub variable: String,
    pub value: Zeroizing<Vec<u8>>,
    /// Description of the secret's source.
    pub origin: String,
}

/// Shows everything except the value.
impl std::fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} from {}", self.variable, self.origin)
    }
}

/// A secret that could not be read, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the secret {name:?} from {origin}: {reason}")]
pub struct MissingSecret {
    pub name: String,
    pub origin: String,
    pub required: bool,
    pub reason: String,
}

/// Result of reading a session's secrets, sorted by name. If several secrets set one variable, the last that was
/// read wins.
#[derive(Debug, Default)]
pub struct SecretResults {
    pub given: Vec<SecretValue>,
    pub missing: Vec<MissingSecret>,
}

/// Returns the declared secrets, or the error in their declaration.
pub(crate) fn named(declared: &BTreeMap<String, DeclaredSecret>) -> Result<Vec<NamedSecret>, String> {
    declared
        .iter()
        .map(|(name, one)| NamedSecret::of(name, one).map_err(|wrong| format!("secrets.{name} {wrong}")))
        .collect()
}

impl Secrets {
    /// Creates the secrets of a configuration that was already checked. Invalid declarations are ignored.
    pub fn new(config: &agentd_config::Config, keeper: PathBuf) -> Self {
        let longest = config.environment.deadline.0;
        Self {
            named: named(&config.secrets).unwrap_or_default(),
            capture: Capture::new(keeper, longest, config.environment.children),
            home: config.environment.home.clone(),
            shell: config.environment.shell.clone(),
            sources: config.environment.sources.clone(),
            // The variable is read once at the start. systemd sets it for a service with credentials
            // (systemd.exec(5)).
            credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            longest,
        }
    }

    /// Returns the declared secrets and their recipients without reading any secret.
    pub fn views(&self) -> Vec<SecretView> {
        self.named.iter().map(NamedSecret::view).collect()
    }

    /// Returns the configured files from which secrets are read.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.named.iter().filter_map(|named| match &named.source {
            SecretOrigin::File(path) => Some(path),
            SecretOrigin::Credential(_) | SecretOrigin::Command(_) | SecretOrigin::Snapshot(_) => None,
        })
    }

    /// Reads every secret and reports whether it is available. The values are discarded.
    #[boxed]
    pub async fn check(&self) -> Vec<SecretView> {
        let hidden = HiddenValues::default();
        let login = async {
            let seed = self.seed().map_err(|error| chain(&error))?;
            let login =
                self.capture.login(&seed, Instant::now() + self.longest).await.map_err(|error| chain(&error))?;
            hidden.variables(&login.variables);
            Ok(login.variables)
        };
        let taken = self.take_all(self.named.clone(), Box::pin(login)).await;
        for given in &taken.given {
            hidden.value(&given.value);
        }
        let view = |named: &NamedSecret| {
            let missing = taken.missing.iter().find(|missing| missing.name == named.name);
            let reason = missing.map(|missing| hidden.text(&missing.reason));
            SecretView { available: Some(missing.is_none()), reason, ..named.view() }
        };
        self.named.iter().map(view).collect()
    }

    /// Reads the secrets of a session's environment. `login` runs only if a secret is a variable of the login shell.
    /// `directory` is the session's directory with links resolved. Without it, secrets for particular directories are
    /// withheld.
    pub async fn take(
        &self,
        agent: &str,
        directory: Option<&Path>,
        login: impl Future<Output = Result<Variables, String>> + Send,
    ) -> SecretResults {
        let wanted = self.of_session(agent, directory).filter(|named| named.in_environment).cloned().collect();
        self.take_all(wanted, Box::pin(login)).await
    }

    /// Reads the secrets of a session that `only` names.
    pub async fn take_only(
        &self,
        only: &BTreeSet<String>,
        agent: &str,
        directory: Option<&Path>,
        login: impl Future<Output = Result<Variables, String>> + Send,
    ) -> SecretResults {
        let wanted = self.of_session(agent, directory).filter(|named| only.contains(&named.name)).cloned().collect();
        self.take_all(wanted, Box::pin(login)).await
    }

    fn of_session<'a>(&'a self, agent: &'a str, directory: Option<&'a Path>) -> impl Iterator<Item = &'a NamedSecret> {
        self.named.iter().filter(move |named| named.is_for(agent, directory))
    }

    /// Returns why the session must not receive a secret, or `None` if the session may receive it.
    pub fn refusal(&self, name: &str, agent: &str, directory: Option<&Path>) -> Option<&'static str> {
        if self.of_session(agent, directory).any(|named| named.name == name) {
            return None;
        }
        let declared = self.named.iter().any(|named| named.name == name);
        let not_for_it = "which the configuration does not give to this agent in this directory";
        Some(if declared { not_for_it } else { "which the configuration does not declare" })
    }

    /// Reads one secret, if the session has a secret of this name.
    pub async fn read(
        &self,
        name: &str,
        agent: &str,
        directory: Option<&Path>,
        login: impl Future<Output = Result<Variables, String>> + Send,
    ) -> Option<Result<SecretValue, MissingSecret>> {
        let named = self.of_session(agent, directory).find(|named| named.name == name)?.clone();
        let mut taken = self.take_all(vec![named], Box::pin(login)).await;
        taken.given.pop().map(Ok).or_else(|| taken.missing.pop().map(Err))
    }

    #[boxed]
    async fn take_all<'a>(&'a self, wanted: Vec<NamedSecret>, login: LoginVariables<'a>) -> SecretResults {
        let (mut tasks, mut results) = (JoinSet::new(), BTreeMap::new());
        let running = Arc::new(Semaphore::new(AT_ONCE));
        let is_of_login = |named: &&NamedSecret| matches!(named.source, SecretOrigin::Snapshot(_));
        for named in wanted.iter().filter(|named| !is_of_login(named)) {
            let (name, running) = (named.name.clone(), Arc::clone(&running));
            let (taking, longest) = (self.taking(named.source.clone()), self.longest);
            tasks.spawn(async move {
                // The time limit starts with the work, not with the wait for a permit.
                let _permit = running.acquire_owned().await;
                // The program's own deadline expires earlier, because its message is more specific.
                let value = tokio::time::timeout(longest + Duration::from_secs(2), taking).await;
                (name, value.unwrap_or(Err(SourceError::TimedOut { seconds: longest.as_secs() })))
            });
        }
        if wanted.iter().any(|named| is_of_login(&named)) {
            let login = login.await;
            for named in &wanted {
                if let SecretOrigin::Snapshot(variable) = &named.source {
                    let value = source::snapshot(variable, login.as_deref().map_err(Clone::clone));
                    results.insert(named.name.clone(), value);
                }
            }
        }
        while let Some(joined) = tasks.join_next().await {
            results.extend(joined.ok());
        }
        let mut taken = SecretResults::default();
        for NamedSecret { name, variable, source, required, .. } in wanted {
            let origin = source.to_string();
            match results.remove(&name).unwrap_or(Err(SourceError::Defect)) {
                Ok(value) => taken.given.push(SecretValue { name, variable, value: value.into(), origin }),
                Err(error) => taken.missing.push(MissingSecret { name, origin, required, reason: chain(&error) }),
            }
        }
        taken
    }

    fn taking(&self, source: SecretOrigin) -> impl Future<Output = Result<Vec<u8>, SourceError>> + Send + use<> {
        let (capture, seed, longest) = (self.capture.clone(), self.seed(), self.longest);
        let credentials = self.credentials.clone();
        async move {
            match source {
                // A file may be on a file system that does not answer.
                SecretOrigin::File(path) => blocking(move || source::file(&path, seed)).await,
                SecretOrigin::Credential(name) => {
                    blocking(move || source::credential(&name, credentials.as_deref())).await
                }
                SecretOrigin::Command(command) => {
                    source::command(&command, &capture, seed, Instant::now() + longest).await
                }
                SecretOrigin::Snapshot(variable) => Err(SourceError::NotSet { variable }),
            }
        }
    }

    fn seed(&self) -> Result<Seed, crate::login::seed::SeedError> {
        Ok(Seed::find(self.home.as_deref(), self.shell.as_deref())?.with_sources(self.sources.clone()))
    }
}

async fn blocking(
    read: impl FnOnce() -> Result<Vec<u8>, SourceError> + Send + 'static,
) -> Result<Vec<u8>, SourceError> {
    agentd_host::work::blocking(read).await.unwrap_or(Err(SourceError::Defect))
}
