//! What the host does for a provider during one call: the login shell, scripts with their trust, secrets, its log; and what `capability`
//! does on the machine.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use agentd_api::environment::ScriptRun;
use agentd_api::scripts::ScriptState;
use agentd_keeper::protocol::Attributes;
use agentd_plugins::{Failure, Level, MachineServices, Places, Plugin, Services, Sourced};
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use agentd_api::doctor::shell_word;

use super::base::Base;
use super::capture::{Capture, CaptureError, Variables};
use super::merge::hex;
use super::results::Results;
use super::secrets::{Hidden, Secrets};
use super::snapshot::{Chosen, SnapshotError, Taken as Snapshot};
use super::trust::{Script, Trust};
use super::upward::{self, Place as ScriptPlace};
use super::{Purpose, functions, secret};
use crate::capability::{Machine, OnMachine, Place};
use crate::config::{self, Functions};
pub(crate) use crate::message::chain;

/// The places that a script's path may begin with.
#[derive(Debug, Clone)]
pub(crate) struct Placeholders {
    pub(crate) config: PathBuf,
    pub(crate) cwd: PathBuf,
    pub(crate) session: PathBuf,
    /// The digest of the script that the session was given with its spec, which is an approval of it.
    pub(crate) given: Option<String>,
}

/// Whose word a script is, by where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Under the user's configuration: it needs no approval.
    User,
    /// The session's own. A process inside the session can write there, so it is as it was given, or approved.
    Session,
    /// In the working directory, or anywhere else.
    Foreign,
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
    /// The user's home, at which the search for a directory's script ends.
    pub(crate) home: Option<PathBuf>,
    /// The scripts that were sourced, in order.
    pub(crate) ran: Mutex<Vec<ScriptRun>>,
    pub(crate) trust: Arc<Trust>,
    pub(crate) login: Arc<LoginOnce>,
    /// What must not be in any message.
    pub(crate) hidden: Arc<Hidden>,
    /// What scripts begin with.
    pub(crate) base: Base,
    /// A plugin that is no part of agentd, and so is given only the secrets that it is granted.
    pub(crate) granted: Option<Plugin>,
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
    pub(super) purpose: Purpose,
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

    /// What else it gives to a child. Where no step has asked for the login shell, it is not run for this.
    pub(super) fn attributes(&self) -> Option<Attributes> {
        self.captured.get().and_then(|taken| taken.attributes.clone())
    }

    /// Its variables, for agentd's own step.
    pub(crate) async fn variables(&self, deadline: Instant) -> Result<Variables, String> {
        self.get(deadline).await.map(|taken| Variables::clone(&taken.variables)).map_err(|error| chain(&error))
    }
}

impl Placeholders {
    /// The places with their links resolved, of those that answer by then. `of_all` has those that are no session's, where they are known.
    pub(crate) async fn real(&self, machine: &Machine, of_all: Option<&Places>, deadline: Instant) -> Real {
        let Self { config, cwd, session, given: _ } = self.clone();
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

    /// What stands for the session's script in [`Self::given`].
    pub(crate) fn digest_of(script: Option<&str>) -> Option<String> {
        script.map(|script| hex(&Sha256::digest(script)))
    }

    /// Whether a script may run as it is.
    pub(super) fn admit(&self, whose: Whose, script: &Script) -> bool {
        match whose {
            Whose::User => true,
            Whose::Session if self.given.as_ref() == Some(&script.digest) => script.state != ScriptState::Denied,
            Whose::Session | Whose::Foreign => script.state == ScriptState::Approved,
        }
    }

    /// What `agentctl env allow` takes for a script of `env-script`: the directory approves all that a session there runs, but what lies
    /// above it is approved by its own path.
    pub(super) fn to_allow<'a>(&'a self, whose: Whose, place: &ScriptPlace, script: &'a Path) -> &'a Path {
        if whose == Whose::Foreign && !place.is_above { &self.cwd } else { script }
    }

    /// Where a script lies and runs, and whose word it is. One of the working directory is looked for above that too, up to the home.
    pub(super) fn locate(&self, path: &str, home: Option<&Path>) -> Option<(ScriptPlace, Whose)> {
        let (script, whose) = self.resolve(path)?;
        let place = match path.strip_prefix("{cwd}/").and_then(|name| upward::places(&self.cwd, name, home).pop()) {
            Some(place) if !upward::is_absent(&place.script) => place,
            _ => ScriptPlace { script, directory: self.cwd.clone(), is_above: false },
        };
        Some((place, whose))
    }

    /// The path, and whose word it is what lies there.
    pub(super) fn resolve(&self, path: &str) -> Option<(PathBuf, Whose)> {
        let below = |place: &Path, rest: &str| place.join(rest.trim_start_matches('/'));
        if let Some(rest) = path.strip_prefix("{config}") {
            return Some((below(&self.config, rest), Whose::User));
        }
        if let Some(rest) = path.strip_prefix("{session}") {
            return Some((below(&self.session, rest), Whose::Session));
        }
        if let Some(rest) = path.strip_prefix("{cwd}") {
            return Some((below(&self.cwd, rest), Whose::Foreign));
        }
        path.starts_with('/').then(|| (PathBuf::from(path), Whose::Foreign))
    }
}

/// The places of a script that comes from somebody else and has to be approved, for a session in the directory, as they are looked at.
pub(super) fn foreign(script: &str, directory: &Path, home: Option<&Path>) -> Vec<ScriptPlace> {
    let of_path = || ScriptPlace { script: script.into(), directory: directory.to_owned(), is_above: false };
    match script.strip_prefix("{cwd}/") {
        Some(name) => upward::places(directory, name, home),
        None => script.starts_with('/').then(of_path).into_iter().collect(),
    }
}

impl CallServices {
    /// The variables that the plugin sees: of secrets those that it is granted.
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

/// A lock that a panic elsewhere does not keep from anybody.
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
    /// Where these scripts are. Looked for all at once, which costs one wait and not one each.
    async fn located(&self, paths: Vec<String>) -> Result<Vec<(ScriptPlace, Whose)>, Failure> {
        let (places, home) = (self.places.clone(), self.home.clone());
        // A plugin's own script lies where the plugin says; only those of agentd's step are looked for above the directory.
        let is_searched = self.granted.is_none();
        let look = move || {
            let one = |path: &String| {
                let found = if is_searched {
                    places.locate(path, home.as_deref())
                } else {
                    let directory = places.cwd.clone();
                    let place = |script| ScriptPlace { script, directory, is_above: false };
                    places.resolve(path).map(|(script, whose)| (place(script), whose))
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

    /// The refusal of a script, with what to do about it.
    pub(super) fn not_approved(&self, whose: Whose, place: &ScriptPlace, script: &Path, what: &str) -> Failure {
        // Scripts that a provider of one's own asks for are listed nowhere, and so are approved one by one.
        let is_listed = self.plugin == config::ENV_SCRIPT;
        let place = if is_listed { self.places.to_allow(whose, place, script) } else { script };
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
        Ok(self.without_secrets(functions::entering(self.functions, all)))
    }

    async fn locate_scripts(&self, paths: Vec<String>, _deadline: Instant) -> Result<Vec<Option<String>>, Failure> {
        let files = self.located(paths).await?.into_iter().map(|(place, _)| place.script);
        let files: Vec<PathBuf> = files.collect();
        let shown = |file: PathBuf| (!upward::is_absent(&file)).then(|| file.display().to_string());
        let located = tokio::task::spawn_blocking(move || files.into_iter().map(shown).collect()).await;
        located.map_err(|error| Failure::Failed(error.to_string()))
    }

    async fn source_script(&self, path: &str, environment: Variables, deadline: Instant) -> Result<Sourced, Failure> {
        let (place, whose) = self.located(vec![path.to_owned()]).await?.remove(0);
        let file = &place.script;
        let (trust, looked_at) = (Arc::clone(&self.trust), file.clone());
        let standing = tokio::task::spawn_blocking(move || trust.standing(&looked_at)).await;
        let standing = standing.map_err(|error| Failure::Failed(error.to_string()))?.map_err(|error| match whose {
            Whose::User | Whose::Session => Failure::Unavailable(chain(&error)),
            Whose::Foreign => self.not_approved(whose, &place, file, &chain(&error)),
        })?;
        let gone = || Failure::NotFound(format!("there is no script {}", file.display()));
        let script = standing.ok_or_else(gone)?;
        if !self.places.admit(whose, &script) {
            let how = match script.state {
                ScriptState::Changed => "has changed since it was approved",
                ScriptState::Denied => "was denied",
                _ if whose == Whose::Session => "is not what the session was given, and has not been approved",
                _ => "has not been approved",
            };
            let what = format!("the script {} {how}", script.named.display());
            return Err(self.not_approved(whose, &place, &script.named, &what));
        }
        self.hidden.script(script.path.clone());
        let may = |name: &str| self.granted.as_ref().is_none_or(|plugin| plugin.may_give(name));
        let (given, withheld) = self.base.given(environment, may);
        let environment = self.sourced(&script, (&place, whose), given.clone(), deadline).await?;
        self.hidden.variables(&environment);
        let environment = functions::entering(self.functions, environment);
        let environment = self.without_secrets(self.base.after(&given, environment, &withheld));
        Ok(Sourced { path: script.path.display().to_string(), environment })
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
        let places = Placeholders { config: "/c".into(), cwd: "/w".into(), session: "/s".into(), given: None };
        assert_eq!(places.resolve("{config}/env-setup.sh"), Some(("/c/env-setup.sh".into(), Whose::User)));
        assert_eq!(places.resolve("{session}/env-setup.sh"), Some(("/s/env-setup.sh".into(), Whose::Session)));
        assert_eq!(places.resolve("{cwd}/.agentd-env.sh"), Some(("/w/.agentd-env.sh".into(), Whose::Foreign)));
        assert_eq!(places.resolve("/opt/x.sh"), Some(("/opt/x.sh".into(), Whose::Foreign)));
        assert_eq!(places.resolve("x.sh"), None);
    }

    #[test]
    fn a_sessions_own_script_runs_as_it_was_given_or_approved_and_never_when_it_was_denied() {
        use ScriptState::{Approved, Changed, Denied, NotApproved};
        let given = Placeholders::digest_of(Some("export A=1"));
        let places = Placeholders { config: "/c".into(), cwd: "/w".into(), session: "/s".into(), given };
        let script = |text: &str, state| Script {
            named: "/s/env-setup.sh".into(),
            path: "/s/env-setup.sh".into(),
            digest: Placeholders::digest_of(Some(text)).unwrap(),
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
            assert_eq!(places.admit(Whose::Session, &script), of_session, "{text} {state:?}");
            assert_eq!(places.admit(Whose::Foreign, &script), of_directory, "{text} {state:?}");
            assert!(places.admit(Whose::User, &script));
        }
    }

    #[test]
    fn scripts_of_others_are_those_of_the_directory_and_those_with_a_path_of_their_own() {
        let foreign = |script| {
            let places = foreign(script, Path::new("/w"), None);
            places.into_iter().map(|place| place.script.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(foreign("{cwd}/.agentd-env.sh")[0], "/w/.agentd-env.sh");
        assert_eq!(foreign("/opt/x.sh"), ["/opt/x.sh"]);
        assert_eq!((foreign("{config}/env-setup.sh"), foreign("{session}/env-setup.sh")), (vec![], vec![]));
    }
}
