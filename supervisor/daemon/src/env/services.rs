//! What the host does for a provider during one call: the login shell, scripts with their trust, secrets, its log; and what `capability`
//! does on the machine.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use agentd_api::scripts::ScriptState;
use agentd_plugins::{Failure, Level, MachineServices, Places, Services, Sourced};
use tokio::sync::OnceCell;

use agentd_api::doctor::shell_word;

use super::capture::{Capture, CaptureError, Variables};
use super::functions;
use super::results::{self, Key, Results};
use super::secrets::{Hidden, Secrets};
use super::snapshot::{Chosen, SnapshotError, Taken as Snapshot};
use super::trust::{Script, Trust};
use crate::capability::{Machine, OnMachine, Place};
use crate::config::{self, Functions};
pub(crate) use crate::message::chain;

/// The places that a script's path may begin with.
#[derive(Debug, Clone)]
pub(crate) struct Placeholders {
    pub(crate) config: PathBuf,
    pub(crate) cwd: PathBuf,
    pub(crate) session: PathBuf,
}

/// Where a session's places are, their links resolved; of one that is not there or does not answer, nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Real {
    /// As patterns have them: one whose name is no text is not among them.
    pub(crate) places: Places,
    /// The working directory.
    pub(crate) directory: Option<PathBuf>,
}

/// One call's services.
#[derive(Debug)]
pub(crate) struct CallServices {
    pub(crate) plugin: String,
    pub(crate) session: String,
    pub(crate) agent: String,
    pub(crate) machine: OnMachine,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) capture: Capture,
    pub(crate) functions: Functions,
    pub(crate) results: Arc<Results>,
    pub(crate) places: Placeholders,
    /// The working directory, its links resolved, where it answers.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) trust: Arc<Trust>,
    pub(crate) login: Arc<LoginOnce>,
    /// What must not be in any message.
    pub(crate) hidden: Arc<Hidden>,
    /// What was said of a script that was met without approval: the launch's own words, whatever the provider makes of them.
    pub(crate) unapproved: Mutex<Option<String>>,
    /// What was run and failed, as the condition's reason.
    pub(crate) failed: Mutex<Option<&'static str>>,
}

/// What the environment begins with, for one build: whoever asks first has it taken, and everybody gets the same.
#[derive(Debug)]
pub(crate) struct LoginOnce {
    pub(crate) capture: Capture,
    pub(crate) chosen: Arc<Chosen>,
    pub(crate) hidden: Arc<Hidden>,
    pub(crate) captured: OnceCell<Snapshot>,
}

impl LoginOnce {
    async fn get(&self, deadline: Instant) -> Result<&Snapshot, SnapshotError> {
        let take = || async {
            let taken = match self.chosen.login(deadline).await {
                Ok(taken) => taken,
                Err(error) => {
                    // Its last words may have what its files set; of that, what stands in their text is known.
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

    /// Its variables, for agentd's own step.
    pub(crate) async fn variables(&self, deadline: Instant) -> Result<Variables, String> {
        self.get(deadline).await.map(|taken| Variables::clone(&taken.variables)).map_err(|error| chain(&error))
    }
}

impl Placeholders {
    /// The places with their links resolved, of those that answer by then. `of_all` has those that are no session's, where they are known.
    pub(crate) async fn real(&self, machine: &Machine, of_all: Option<&Places>, deadline: Instant) -> Real {
        let Self { config, cwd, session } = self.clone();
        // First what is the user's own, whose answer a silent working directory must not take with it.
        let mut paths = vec![session];
        if of_all.is_none() {
            paths.push(config);
            paths.extend(std::env::home_dir());
        }
        let seen = machine.places(paths.into_iter().chain([cwd]), deadline, |_| false).await;
        let mut found = seen.into_iter().map(Place::into_directory);
        let text = |place: Option<PathBuf>| place?.into_os_string().into_string().ok();
        let session = text(found.next().flatten());
        let directory = found.next_back().flatten();
        let (config, home) = match of_all {
            Some(places) => (places.config.clone(), places.home.clone()),
            None => (text(found.next().flatten()), text(found.next().flatten())),
        };
        Real { places: Places { cwd: text(directory.clone()), session, config, home }, directory }
    }

    /// The path, and whether what lies there is the user's own word or whoever wrote the working directory's.
    pub(super) fn resolve(&self, path: &str) -> Option<(PathBuf, bool)> {
        let below = |place: &Path, rest: &str| place.join(rest.trim_start_matches('/'));
        if let Some(rest) = path.strip_prefix("{config}") {
            return Some((below(&self.config, rest), true));
        }
        if let Some(rest) = path.strip_prefix("{session}") {
            return Some((below(&self.session, rest), true));
        }
        if let Some(rest) = path.strip_prefix("{cwd}") {
            return Some((below(&self.cwd, rest), false));
        }
        path.starts_with('/').then(|| (PathBuf::from(path), false))
    }
}

/// Where a script lies that comes from somebody else and has to be approved, for a session in the directory.
pub(super) fn foreign(script: &str, directory: &Path) -> Option<PathBuf> {
    match script.strip_prefix("{cwd}/") {
        Some(rest) => Some(directory.join(rest)),
        None => script.starts_with('/').then(|| PathBuf::from(script)),
    }
}

impl CallServices {
    fn failed(&self, reason: &'static str, error: &CaptureError) -> Failure {
        *locked(&self.failed) = Some(reason);
        failure(error)
    }
}

/// A lock that a panic elsewhere does not keep from anybody.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What cannot be looked at is there, for all that is known; who sources it is told what is wrong with it.
fn is_absent(file: &Path) -> bool {
    let kind = file.symlink_metadata().err().map(|error| error.kind());
    matches!(kind, Some(ErrorKind::NotFound | ErrorKind::NotADirectory))
}

fn failure(error: &CaptureError) -> Failure {
    let text = chain(error);
    match error {
        CaptureError::TimedOut { .. } => Failure::TimedOut(text),
        _ => Failure::Failed(text),
    }
}

impl CallServices {
    fn resolve(&self, path: &str) -> Result<(PathBuf, bool), Failure> {
        self.places.resolve(path).ok_or_else(|| {
            Failure::Failed(format!(
                "the script {path:?} is neither absolute nor begins with {{config}}, {{cwd}} or {{session}}"
            ))
        })
    }

    /// The refusal of a script, with what to do about it.
    fn not_approved(&self, script: &Path, what: &str) -> Failure {
        // Scripts that a provider of one's own asks for are listed nowhere, and so are approved one by one.
        let place = if self.plugin == config::ENV_SCRIPT { &self.places.cwd } else { script };
        let message =
            format!("{what}; read it, and then run `agentctl env allow {}`", shell_word(&place.to_string_lossy()));
        *locked(&self.unapproved) = Some(message.clone());
        Failure::NotApproved(message)
    }
}

#[async_trait::async_trait]
impl Services for CallServices {
    fn log(&self, level: Level, message: &str) {
        let (plugin, session) = (self.plugin.as_str(), self.session.as_str());
        // Only where the line is logged at all is it looked at.
        let hidden = || self.hidden.text(message);
        match level {
            Level::Error => tracing::error!(agentd.plugin = plugin, agentd.session = session, "{}", hidden()),
            Level::Warn => tracing::warn!(agentd.plugin = plugin, agentd.session = session, "{}", hidden()),
            Level::Info => tracing::info!(agentd.plugin = plugin, agentd.session = session, "{}", hidden()),
            Level::Debug => tracing::debug!(agentd.plugin = plugin, agentd.session = session, "{}", hidden()),
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
        Ok(functions::entering(self.functions, all))
    }

    /// All of them are looked for at once, which costs one wait and not one each.
    async fn locate_scripts(&self, paths: Vec<String>, _deadline: Instant) -> Result<Vec<Option<String>>, Failure> {
        let files: Vec<PathBuf> =
            paths.iter().map(|path| self.resolve(path).map(|(file, _)| file)).collect::<Result<_, _>>()?;
        let shown = |file: PathBuf| (!is_absent(&file)).then(|| file.display().to_string());
        let located = tokio::task::spawn_blocking(move || files.into_iter().map(shown).collect()).await;
        located.map_err(|error| Failure::Failed(error.to_string()))
    }

    async fn source_script(&self, path: &str, environment: Variables, deadline: Instant) -> Result<Sourced, Failure> {
        let (file, ours) = self.resolve(path)?;
        let (trust, looked_at) = (Arc::clone(&self.trust), file.clone());
        let standing = tokio::task::spawn_blocking(move || trust.standing(&looked_at)).await;
        let standing = standing.map_err(|error| Failure::Failed(error.to_string()))?.map_err(|error| {
            if ours { Failure::Unavailable(chain(&error)) } else { self.not_approved(&file, &chain(&error)) }
        })?;
        let gone = || Failure::NotFound(format!("there is no script {}", file.display()));
        let script = standing.ok_or_else(gone)?;
        if !ours {
            let how = match script.state {
                ScriptState::Approved => None,
                ScriptState::Changed => Some("has changed since it was approved"),
                ScriptState::Denied => Some("was denied"),
                _ => Some("has not been approved"),
            };
            if let Some(how) = how {
                return Err(self.not_approved(&script.named, &format!("the script {} {how}", script.named.display())));
            }
        }
        self.hidden.script(script.path.clone());
        let environment = self.sourced(&script, ours, environment, deadline).await?;
        self.hidden.variables(&environment);
        let environment = functions::entering(self.functions, environment);
        Ok(Sourced { path: script.path.display().to_string(), environment })
    }

    async fn read_secret(&self, name: &str, deadline: Instant) -> Result<Vec<u8>, Failure> {
        let login = self.login.variables(deadline);
        match self.secrets.read(name, &self.agent, self.directory.as_deref(), login).await {
            None => Err(Failure::NotFound(format!("the configuration has no secret {name:?} for this session"))),
            Some(Ok(given)) => {
                self.hidden.value(&given.value);
                Ok(given.value)
            }
            Some(Err(missing)) => Err(Failure::Unavailable(self.hidden.text(&missing.to_string()))),
        }
    }
}

impl CallServices {
    /// The environment after the script: from the results that are kept, where the script says what it depends on and none of
    /// that is other than it was, and else from running it.
    async fn sourced(
        &self,
        script: &Script,
        ours: bool,
        given: Variables,
        deadline: Instant,
    ) -> Result<Variables, Failure> {
        let key = self.key(script, &given).await;
        if let Some(key) = &key
            && let Some(after) = self.results.find(key, &given)
        {
            tracing::debug!(agentd.session = self.session, script = %script.path.display(), "its result is known: it is not run");
            return Ok(after);
        }
        let run = self.capture.script(script, &self.places.cwd, given.clone(), deadline).await;
        let after = run.map_err(|error| match &error {
            CaptureError::Changed { .. } if !ours => self.not_approved(&script.named, &chain(&error)),
            _ => self.failed(error.script_reason(), &error),
        })?;
        // What was written to while the script ran belongs to neither the one state nor the other.
        if let Some(key) = key
            && self.key(script, &given).await == Some(key)
        {
            self.results.keep(key, &given, &after);
        }
        Ok(after)
    }

    async fn key(&self, script: &Script, given: &Variables) -> Option<Key> {
        let state = results::look(script.path.clone(), script.content.clone(), self.places.cwd.clone()).await;
        state.map(|state| state.key(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_resolved_and_only_the_users_own_places_need_no_approval() {
        let places = Placeholders { config: "/c".into(), cwd: "/w".into(), session: "/s".into() };
        assert_eq!(places.resolve("{config}/env-setup.sh"), Some(("/c/env-setup.sh".into(), true)));
        assert_eq!(places.resolve("{session}/env-setup.sh"), Some(("/s/env-setup.sh".into(), true)));
        assert_eq!(places.resolve("{cwd}/.agentd-env.sh"), Some(("/w/.agentd-env.sh".into(), false)));
        assert_eq!(places.resolve("/opt/x.sh"), Some(("/opt/x.sh".into(), false)));
        assert_eq!(places.resolve("x.sh"), None);
    }

    #[test]
    fn scripts_of_others_are_those_of_the_directory_and_those_with_a_path_of_their_own() {
        let foreign = |script| foreign(script, Path::new("/w"));
        assert_eq!(foreign("{cwd}/.agentd-env.sh"), Some("/w/.agentd-env.sh".into()));
        assert_eq!(foreign("/opt/x.sh"), Some("/opt/x.sh".into()));
        assert_eq!((foreign("{config}/env-setup.sh"), foreign("{session}/env-setup.sh")), (None, None));
    }
}
