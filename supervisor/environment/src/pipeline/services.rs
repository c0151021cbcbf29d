//! Implements the host's services for one call of a provider: the login shell, approved scripts, secrets and the
//! log. `capability` implements the operations on the machine.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use agentd_api::chain;
use agentd_api::degraded::MissingPart;
use agentd_api::environment::ScriptRun;
use agentd_api::scripts::ScriptState;
use agentd_catalogue::KnownAgent;
use agentd_keeper::protocol::Attributes;
use agentd_plugin_host::{Failure, LogLevel, MachineServices, Plugin, Services, SourcedScript};
use tokio::sync::OnceCell;
use tracing::{Instrument as _, info_span};

use agentd_api::doctor::shell_word;

use super::Purpose;
use super::ahead::{Ahead, Located};
use crate::lock::locked;
use crate::login::capture::{Capture, CaptureError, Variables};
use crate::merge::functions;
use crate::script::base::Base;
use crate::script::directories::{ScriptDirectories, ScriptOrigin};
use crate::script::results::Results;
use crate::script::trust::{Script, Trust, TrustError};
use crate::script::upward::{self, ScriptPlace};
use crate::secrets::{HiddenValues, Secrets, plain};
use crate::snapshot::{LookedUp, SessionSnapshot, Snapshot, SnapshotError};
use agentd_config::{self as config, Functions};
use agentd_host::capability::CallMachine;
use agentd_metrics::Metrics;
use agentd_traces::TARGET;

/// The services of one call.
#[derive(Debug)]
pub(crate) struct CallServices {
    pub plugin: String,
    pub session: String,
    pub agent: String,
    pub machine: CallMachine,
    pub secrets: Arc<Secrets>,
    pub capture: Capture,
    pub functions: Functions,
    pub results: Arc<Results>,
    pub places: ScriptDirectories,
    /// Working directory with links resolved, if it answers.
    pub directory: Option<PathBuf>,
    /// Home directory of the user, at which the search for a directory's script ends.
    pub home: Option<PathBuf>,
    /// Sourced scripts in order.
    pub ran: Mutex<Vec<ScriptRun>>,
    pub trust: Arc<Trust>,
    pub login: Arc<SharedLogin>,
    /// Values to hide in every message.
    pub hidden: Arc<HiddenValues>,
    /// Variables with which scripts start.
    pub base: Base,
    /// The plugin, unless it is a part of agentd. It receives only the secrets that are granted to it.
    pub granted: Option<Plugin>,
    /// Refusal of an unapproved script. The launch reports this text, even if the provider changes the error.
    pub unapproved: Mutex<Option<String>>,
    /// Reason for the condition if a run failed.
    pub failed: Mutex<Option<&'static str>>,
    /// Whether the launch leaves out what fails.
    pub is_degraded: bool,
    /// Scripts that the launch left out, in order.
    pub without: Mutex<Vec<MissingPart>>,
    pub metrics: Arc<Metrics>,
}

/// The login environment of one build. The first caller captures it, and all callers share the result.
#[derive(Debug)]
pub(crate) struct SharedLogin {
    pub capture: Capture,
    pub chosen: Arc<SessionSnapshot>,
    pub hidden: Arc<HiddenValues>,
    pub captured: OnceCell<Snapshot>,
    /// The known agent that the command shows.
    pub known: OnceCell<Option<&'static KnownAgent>>,
    pub(super) purpose: Purpose,
    /// The environment that was looked up before the providers.
    pub(super) looked: Mutex<Option<LookedUp>>,
    /// Files that were looked at before the providers.
    pub(super) ahead: Mutex<Option<Arc<Ahead>>>,
}

impl SharedLogin {
    async fn get(&self, deadline: Instant) -> Result<&Snapshot, SnapshotError> {
        let take = || async {
            let looked = locked(&self.looked).take();
            let taken = match self.chosen.login_after(looked, deadline).await {
                Ok(taken) => taken,
                Err(error) => {
                    // The error may quote output of the start-up files, so the values that their text assigns are
                    // hidden.
                    self.chosen.start_up_files().await.into_iter().for_each(|file| self.hidden.script(file));
                    return Err(error);
                }
            };
            self.capture.add_background(taken.background);
            self.hidden.shared(Arc::clone(&taken.variables));
            Ok(taken)
        };
        let span = || info_span!(target: TARGET, "snapshot");
        self.captured.get_or_try_init(|| take().instrument(span())).await
    }

    /// Returns the process attributes of the login shell, if a step has captured it. This call does not run the
    /// shell.
    pub(super) fn attributes(&self) -> Option<Attributes> {
        self.captured.get().and_then(|taken| taken.attributes.clone())
    }

    /// Returns the variables of the login shell, for agentd's own step.
    pub(crate) async fn variables(&self, deadline: Instant) -> Result<Variables, String> {
        self.get(deadline).await.map(|taken| Variables::clone(&taken.variables)).map_err(|error| chain(&error))
    }
}

impl CallServices {
    /// Returns the variables that the plugin may see. Secrets are included only if they are granted.
    fn without_secrets(&self, mut variables: Variables) -> Variables {
        if let Some(plugin) = &self.granted {
            variables.retain(|(name, value)| !plain::is_secret(name, value) || plugin.is_given_secret(name));
        }
        variables
    }

    pub(super) fn failed(&self, reason: &'static str, error: &CaptureError) -> Failure {
        *locked(&self.failed) = Some(reason);
        failure(error)
    }
}

fn failure(error: &CaptureError) -> Failure {
    let text = chain(error);
    match error {
        CaptureError::TimedOut { .. } => Failure::TimedOut(text),
        _ => Failure::Failed(text),
    }
}

impl CallServices {
    /// Locates all scripts in one blocking task, which costs one wait instead of one for each script.
    pub(super) async fn located(&self, paths: Vec<String>) -> Result<Vec<(ScriptPlace, ScriptOrigin)>, Failure> {
        // A plugin names the exact path of its script. Only scripts of agentd's own step are searched above the
        // directory.
        let is_searched = self.granted.is_none();
        if let Some(located) = self.located_ahead(&paths) {
            return Ok(located.into_iter().map(|one| (one.place, one.origin)).collect());
        }
        let (places, home) = (self.places.clone(), self.home.clone());
        let look = move || {
            let one = |path: &String| {
                let found = if is_searched {
                    places.locate(path, home.as_deref())
                } else {
                    let directory = places.cwd.clone();
                    let place = |script| ScriptPlace { script, directory, is_above: false };
                    places.resolve(path).map(|(script, origin)| (place(script), origin))
                };
                found.ok_or_else(|| {
                    Failure::Failed(format!(
                        "the script {path:?} is neither absolute nor begins with {{config}}, {{cwd}} or {{session}}"
                    ))
                })
            };
            paths.iter().map(one).collect()
        };
        agentd_host::work::blocking(look).await.map_err(|error| Failure::Failed(error.to_string()))?
    }

    /// Returns the places of scripts of agentd's own step, if they were looked at before the providers.
    fn located_ahead(&self, paths: &[String]) -> Option<Vec<Located>> {
        let ahead = self.login.ahead().filter(|_| self.granted.is_none())?;
        ahead.located(paths)
    }

    /// Returns the script and its approval state, or `None` if the script does not exist.
    async fn examined(&self, file: &Path) -> Result<Result<Option<Script>, TrustError>, Failure> {
        if let Some(script) = self.login.ahead().and_then(|ahead| ahead.examined(file)) {
            return Ok(Ok(Some(script)));
        }
        let (trust, file) = (Arc::clone(&self.trust), file.to_owned());
        let examined = agentd_host::work::blocking(move || trust.examine(&file)).await;
        examined.map_err(|error| Failure::Failed(error.to_string()))
    }

    /// Returns the refusal of a script, with the command that approves it.
    pub(super) fn not_approved(&self, origin: ScriptOrigin, place: &ScriptPlace, script: &Path, what: &str) -> Failure {
        // Scripts that a user's own provider requests appear in no list, so each is approved by its own path.
        let is_listed = self.plugin == config::ENV_SCRIPT;
        let place = if is_listed { self.places.to_allow(origin, place, script) } else { script };
        let message =
            format!("{what}; read it, and then run `agentctl env allow {}`", shell_word(&place.to_string_lossy()));
        *locked(&self.unapproved) = Some(message.clone());
        Failure::NotApproved(message)
    }

    /// Sources a script that may run.
    async fn source(&self, path: &str, environment: Variables, deadline: Instant) -> Result<SourcedScript, Failure> {
        let (place, origin) = self.located(vec![path.to_owned()]).await?.remove(0);
        let file = &place.script;
        let standing = self.examined(file).await?.map_err(|error| match origin {
            ScriptOrigin::User | ScriptOrigin::Session => Failure::Unavailable(chain(&error)),
            ScriptOrigin::Foreign => self.not_approved(origin, &place, file, &chain(&error)),
        })?;
        let gone = || Failure::NotFound(format!("there is no script {}", file.display()));
        let script = standing.ok_or_else(gone)?;
        if !self.places.admit(origin, &script) {
            let how = match script.state {
                ScriptState::Changed => "has changed since it was approved",
                ScriptState::Denied => "was denied",
                _ if origin == ScriptOrigin::Session => "is not what the session was given, and has not been approved",
                _ => "has not been approved",
            };
            let what = format!("the script {} {how}", script.named.display());
            return Err(self.not_approved(origin, &place, &script.named, &what));
        }
        self.hidden.script(script.path.clone());
        let may = |name: &str| self.granted.as_ref().is_none_or(|plugin| plugin.may_give(name));
        let (given, withheld) = self.base.given(environment, may);
        let span = info_span!(target: TARGET, "script", agentd.script = %script.path.display());
        let environment = self.sourced(&script, (&place, origin), given.clone(), deadline).instrument(span).await?;
        self.hidden.variables(&environment);
        let environment = functions::permitted(self.functions, environment);
        let environment = self.without_secrets(self.base.after(&given, environment, &withheld));
        Ok(SourcedScript { path: script.path.display().to_string(), environment })
    }
}

#[async_trait::async_trait]
impl Services for CallServices {
    fn log(&self, level: LogLevel, message: &str) {
        let (plugin, session) = (self.plugin.as_str(), self.session.as_str());
        // The message is searched for secrets only if its level is enabled.
        let hidden = || self.hidden.text(message);
        match level {
            LogLevel::Error => tracing::error!(agentd.plugin = plugin, agentd.session = session, "{}", hidden()),
            LogLevel::Warn => tracing::warn!(agentd.plugin = plugin, agentd.session = session, "{}", hidden()),
            LogLevel::Info => tracing::info!(agentd.plugin = plugin, agentd.session = session, "{}", hidden()),
            LogLevel::Debug => tracing::debug!(agentd.plugin = plugin, agentd.session = session, "{}", hidden()),
        }
    }

    fn machine(&self) -> &dyn MachineServices {
        &self.machine
    }

    async fn login_environment(&self, deadline: Instant) -> Result<Variables, Failure> {
        let taken = self.login.get(deadline).await.map_err(|error| {
            *locked(&self.failed) = Some(error.reason());
            let failure = if error.is_timeout() { Failure::TimedOut } else { Failure::Failed };
            failure(chain(&error))
        })?;
        let all = taken.variables.iter().chain(taken.functions.iter()).cloned().collect();
        Ok(self.without_secrets(functions::permitted(self.functions, all)))
    }

    async fn locate_scripts(&self, paths: Vec<String>, _deadline: Instant) -> Result<Vec<Option<String>>, Failure> {
        if let Some(located) = self.located_ahead(&paths) {
            let shown = |one: Located| (!one.is_absent).then(|| one.place.script.display().to_string());
            return Ok(located.into_iter().map(shown).collect());
        }
        let files = self.located(paths).await?.into_iter().map(|(place, _)| place.script);
        let files: Vec<PathBuf> = files.collect();
        let shown = |file: PathBuf| (!upward::is_absent(&file)).then(|| file.display().to_string());
        let located = agentd_host::work::blocking(move || files.into_iter().map(shown).collect()).await;
        located.map_err(|error| Failure::Failed(error.to_string()))
    }

    async fn source_script(
        &self,
        path: &str,
        environment: Variables,
        deadline: Instant,
    ) -> Result<SourcedScript, Failure> {
        let unchanged = self.leaves_out_scripts().then(|| environment.clone());
        match (self.source(path, environment, deadline).await, unchanged) {
            (Err(failure), Some(unchanged)) => self.leave_out(path, unchanged, failure).await,
            (sourced, _) => sourced,
        }
    }

    async fn read_secret(&self, name: &str, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let login = self.login.variables(deadline);
        match self.secrets.read(name, &self.agent, self.directory.as_deref(), login).await {
            None => Err(Failure::NotFound(format!("the configuration has no secret {name:?} for this session"))),
            Some(Ok(given)) => {
                self.hidden.value(&given.value);
                Ok(given.value.to_vec())
            }
            Some(Err(missing)) => Err(Failure::Unavailable(self.hidden.text(&missing.to_string()))),
        }
    }
}
