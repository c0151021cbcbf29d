//! Implements the host's services for one call of a provider: the login shell, approved scripts, secrets and the
//! log. `capability` implements the operations on the machine.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use agentd_api::chain;
use agentd_api::environment::ScriptRun;
use agentd_api::scripts::ScriptState;
use agentd_keeper::protocol::Attributes;
use agentd_plugin_host::{Failure, LogLevel, MachineServices, Places, Plugin, Services, SourcedScript};
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use agentd_api::doctor::shell_word;

use super::Purpose;
use super::base::Base;
use super::functions;
use super::results::Results;
use super::secrets::{HiddenValues, Secrets};
use super::snapshot::{SessionSnapshot, Snapshot, SnapshotError};
use super::trust::{Script, Trust};
use super::upward::{self, ScriptPlace};
use crate::login::capture::{Capture, CaptureError, Variables};
use agentd_api::hex;
use agentd_config::secret;
use agentd_config::{self as config, Functions};
use agentd_host::capability::{CallMachine, Machine, PathState};

/// The directories that a script's path may start with.
#[derive(Debug, Clone)]
pub struct ScriptDirectories {
    pub config: PathBuf,
    pub cwd: PathBuf,
    pub session: PathBuf,
    /// Digest of the script that the session received with its specification. The digest counts as an approval of
    /// that script.
    pub given: Option<String>,
}

/// Origin of a script, by the directory that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptOrigin {
    /// Below the user's configuration. Such a script needs no approval.
    User,
    /// The session's own script. A process inside the session can write it, so it must equal the given script or be
    /// approved.
    Session,
    /// In the working directory or anywhere else.
    Foreign,
}

/// The session's places with links resolved. A place that is missing or does not answer is `None`.
#[derive(Debug, Clone, Default)]
pub struct ResolvedPlaces {
    /// The places as text for patterns. A path that is not UTF-8 is left out.
    pub places: Places,
    /// The working directory.
    pub directory: Option<PathBuf>,
}

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
}

/// The login environment of one build. The first caller captures it, and all callers share the result.
#[derive(Debug)]
pub(crate) struct SharedLogin {
    pub capture: Capture,
    pub chosen: Arc<SessionSnapshot>,
    pub hidden: Arc<HiddenValues>,
    pub captured: OnceCell<Snapshot>,
    pub(super) purpose: Purpose,
}

impl SharedLogin {
    async fn get(&self, deadline: Instant) -> Result<&Snapshot, SnapshotError> {
        let take = || async {
            let taken = match self.chosen.login(deadline).await {
                Ok(taken) => taken,
                Err(error) => {
                    // The error may quote output of the start-up files, so the values that their text assigns are
                    // hidden.
                    self.chosen.start_up_files().await.into_iter().for_each(|file| self.hidden.script(file));
                    return Err(error);
                }
            };
            self.capture.add_background(taken.background);
            self.hidden.variables(&taken.variables);
            Ok(taken)
        };
        self.captured.get_or_try_init(take).await
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

impl ScriptDirectories {
    /// Resolves the links of the places that answer before `deadline`. `of_all` holds the places that all sessions
    /// share, if they are already known.
    pub async fn real(&self, machine: &Machine, of_all: Option<&Places>, deadline: Instant) -> ResolvedPlaces {
        let Self { config, cwd, session, given: _ } = self.clone();
        // The user's own places come first, so that an unresponsive working directory does not block their answer.
        let mut paths = vec![session];
        if of_all.is_none() {
            paths.push(config);
            paths.extend(std::env::home_dir());
        }
        let seen = machine.path_states(paths.into_iter().chain([cwd]), deadline, |_| false).await;
        let mut found = seen.into_iter().map(PathState::into_directory);
        let text = |place: Option<PathBuf>| place?.into_os_string().into_string().ok();
        let session = text(found.next().flatten());
        let directory = found.next_back().flatten();
        let (config, home) = match of_all {
            Some(places) => (places.config.clone(), places.home.clone()),
            None => (text(found.next().flatten()), text(found.next().flatten())),
        };
        ResolvedPlaces { places: Places { cwd: text(directory.clone()), session, config, home }, directory }
    }

    /// Returns the digest of the session's script for [`Self::given`].
    pub fn digest_of(script: Option<&str>) -> Option<String> {
        script.map(|script| hex(&Sha256::digest(script)))
    }

    /// Reports whether a script may run in its current state.
    pub(super) fn admit(&self, origin: ScriptOrigin, script: &Script) -> bool {
        match origin {
            ScriptOrigin::User => true,
            ScriptOrigin::Session if self.given.as_ref() == Some(&script.digest) => script.state != ScriptState::Denied,
            ScriptOrigin::Session | ScriptOrigin::Foreign => script.state == ScriptState::Approved,
        }
    }

    /// Returns the path that `agentctl env allow` needs for a script of `env-script`. The directory approves all
    /// scripts of a session there. A script above it is approved by its own path.
    pub(super) fn to_allow<'a>(&'a self, origin: ScriptOrigin, place: &ScriptPlace, script: &'a Path) -> &'a Path {
        if origin == ScriptOrigin::Foreign && !place.is_above { &self.cwd } else { script }
    }

    /// Returns a script's place and origin. A script of the working directory is also searched above it, up to the
    /// home.
    pub(super) fn locate(&self, path: &str, home: Option<&Path>) -> Option<(ScriptPlace, ScriptOrigin)> {
        let (script, origin) = self.resolve(path)?;
        let place = match path.strip_prefix("{cwd}/").and_then(|name| upward::places(&self.cwd, name, home).pop()) {
            Some(place) if !upward::is_absent(&place.script) => place,
            _ => ScriptPlace { script, directory: self.cwd.clone(), is_above: false },
        };
        Some((place, origin))
    }

    /// Resolves the path and returns the origin of the script.
    pub(super) fn resolve(&self, path: &str) -> Option<(PathBuf, ScriptOrigin)> {
        let below = |place: &Path, rest: &str| place.join(rest.trim_start_matches('/'));
        if let Some(rest) = path.strip_prefix("{config}") {
            return Some((below(&self.config, rest), ScriptOrigin::User));
        }
        if let Some(rest) = path.strip_prefix("{session}") {
            return Some((below(&self.session, rest), ScriptOrigin::Session));
        }
        if let Some(rest) = path.strip_prefix("{cwd}") {
            return Some((below(&self.cwd, rest), ScriptOrigin::Foreign));
        }
        path.starts_with('/').then(|| (PathBuf::from(path), ScriptOrigin::Foreign))
    }
}

/// Returns the places searched for a script that needs approval, for a session in `directory`. The places are in
/// the order of the search.
pub(super) fn foreign(script: &str, directory: &Path, home: Option<&Path>) -> Vec<ScriptPlace> {
    let of_path = || ScriptPlace { script: script.into(), directory: directory.to_owned(), is_above: false };
    match script.strip_prefix("{cwd}/") {
        Some(name) => upward::places(directory, name, home),
        None => script.starts_with('/').then(of_path).into_iter().collect(),
    }
}

impl CallServices {
    /// Returns the variables that the plugin may see. Secrets are included only if they are granted.
    fn without_secrets(&self, mut variables: Variables) -> Variables {
        if let Some(plugin) = &self.granted {
            variables.retain(|(name, value)| !secret::is_secret(name, value) || plugin.is_given_secret(name));
        }
        variables
    }

    pub(super) fn failed(&self, reason: &'static str, error: &CaptureError) -> Failure {
        *locked(&self.failed) = Some(reason);
        failure(error)
    }
}

/// Locks the mutex, even if a thread panicked while holding it.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
    async fn located(&self, paths: Vec<String>) -> Result<Vec<(ScriptPlace, ScriptOrigin)>, Failure> {
        let (places, home) = (self.places.clone(), self.home.clone());
        // A plugin names the exact path of its script. Only scripts of agentd's own step are searched above the
        // directory.
        let is_searched = self.granted.is_none();
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
        tokio::task::spawn_blocking(look).await.map_err(|error| Failure::Failed(error.to_string()))?
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
        let files = self.located(paths).await?.into_iter().map(|(place, _)| place.script);
        let files: Vec<PathBuf> = files.collect();
        let shown = |file: PathBuf| (!upward::is_absent(&file)).then(|| file.display().to_string());
        let located = tokio::task::spawn_blocking(move || files.into_iter().map(shown).collect()).await;
        located.map_err(|error| Failure::Failed(error.to_string()))
    }

    async fn source_script(
        &self,
        path: &str,
        environment: Variables,
        deadline: Instant,
    ) -> Result<SourcedScript, Failure> {
        let (place, origin) = self.located(vec![path.to_owned()]).await?.remove(0);
        let file = &place.script;
        let (trust, looked_at) = (Arc::clone(&self.trust), file.clone());
        let standing = tokio::task::spawn_blocking(move || trust.examine(&looked_at)).await;
        let standing = standing.map_err(|error| Failure::Failed(error.to_string()))?.map_err(|error| match origin {
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
        let environment = self.sourced(&script, (&place, origin), given.clone(), deadline).await?;
        self.hidden.variables(&environment);
        let environment = functions::permitted(self.functions, environment);
        let environment = self.without_secrets(self.base.after(&given, environment, &withheld));
        Ok(SourcedScript { path: script.path.display().to_string(), environment })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_resolved_and_only_the_users_own_places_need_no_approval() {
        let places = ScriptDirectories { config: "/c".into(), cwd: "/w".into(), session: "/s".into(), given: None };
        assert_eq!(places.resolve("{config}/env-setup.sh"), Some(("/c/env-setup.sh".into(), ScriptOrigin::User)));
        assert_eq!(places.resolve("{session}/env-setup.sh"), Some(("/s/env-setup.sh".into(), ScriptOrigin::Session)));
        assert_eq!(places.resolve("{cwd}/.agentd-env.sh"), Some(("/w/.agentd-env.sh".into(), ScriptOrigin::Foreign)));
        assert_eq!(places.resolve("/opt/x.sh"), Some(("/opt/x.sh".into(), ScriptOrigin::Foreign)));
        assert_eq!(places.resolve("x.sh"), None);
    }

    #[test]
    fn a_sessions_own_script_runs_as_it_was_given_or_approved_and_never_when_it_was_denied() {
        use ScriptState::{Approved, Changed, Denied, NotApproved};
        let given = ScriptDirectories::digest_of(Some("export A=1"));
        let places = ScriptDirectories { config: "/c".into(), cwd: "/w".into(), session: "/s".into(), given };
        let script = |text: &str, state| Script {
            named: "/s/env-setup.sh".into(),
            path: "/s/env-setup.sh".into(),
            digest: ScriptDirectories::digest_of(Some(text)).unwrap(),
            content: text.as_bytes().to_vec(),
            state,
            decided: None,
        };
        for (text, state, of_session, of_directory) in [
            ("export A=1", NotApproved, true, false),
            ("export A=2", NotApproved, false, false),
            ("export A=2", Approved, true, true),
            ("export A=1", Changed, true, false),
            ("export A=2", Changed, false, false),
            ("export A=1", Denied, false, false),
        ] {
            let script = script(text, state);
            assert_eq!(places.admit(ScriptOrigin::Session, &script), of_session, "{text} {state:?}");
            assert_eq!(places.admit(ScriptOrigin::Foreign, &script), of_directory, "{text} {state:?}");
            assert!(places.admit(ScriptOrigin::User, &script));
        }
    }

    #[test]
    fn foreign_scripts_are_those_of_the_directory_and_of_absolute_paths() {
        let foreign = |script| {
            let places = foreign(script, Path::new("/w"), None);
            places.into_iter().map(|place| place.script.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(foreign("{cwd}/.agentd-env.sh")[0], "/w/.agentd-env.sh");
        assert_eq!(foreign("/opt/x.sh"), ["/opt/x.sh"]);
        assert_eq!((foreign("{config}/env-setup.sh"), foreign("{session}/env-setup.sh")), (vec![], vec![]));
    }
}
