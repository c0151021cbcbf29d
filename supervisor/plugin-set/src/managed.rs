//! A plugin of the set: its loading, its health and its view.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use agentd_api::feed::{Notice, PluginFailed, PluginRecovered, PluginSuspended};
use agentd_api::hint;
use agentd_api::plugin::{
    OnFailure, PluginDescription, PluginFailure, PluginNarrowed, PluginProblem, PluginState, PluginView, PluginWant,
};
use agentd_api::reason;
use agentd_plugin_host::{Capability, Grant, Limits, OnCompile, Plugin, UncoveredPattern, Want};
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use tokio::sync::watch;

use super::health::{CallOutcome, Health, Suspension};
use super::loading::{LoadRequest, LoadResult, Stamp};
use super::{Observer, settings};
use agentd_config::{Origin, PluginLimits};

/// A plugin in any state.
#[derive(Debug)]
pub struct ManagedPlugin {
    /// Name of the plugin in the configuration.
    pub name: String,
    asked: LoadRequest,
    loaded: OnceLock<Plugin>,
    /// Source of the plugin, and the error of the last attempt to load it.
    tried: Mutex<Attempts>,
    stage: watch::Sender<Stage>,
    limits: Limits,
    health: Mutex<Health>,
    observer: Observer,
}

/// Progress of loading a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The file is being read, or the component is being linked.
    Loading,
    /// The component is being compiled.
    Compiling,
    /// The plugin is loaded or has failed to load.
    Settled,
}

/// Results of the attempts to load the plugin.
#[derive(Debug, Default)]
struct Attempts {
    source: String,
    failed: Option<LoadFailure>,
    /// Number of temporary failures in a row.
    failures: u32,
}

#[derive(Debug, Clone)]
struct LoadFailure {
    problem: PluginProblem,
    /// Time from which a launch tries again although the file is unchanged. `None` means that the plugin itself is
    /// invalid.
    again: Option<Instant>,
    stamp: Stamp,
}

/// Pause after the first temporary failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause after a temporary failure.
const MAX_PAUSE: Duration = Duration::from_mins(5);

fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_PAUSE)
}

/// Ends an attempt, also if it panics.
struct Attempt<'a>(&'a ManagedPlugin);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.stage.send_replace(Stage::Settled);
    }
}

/// Reason why a plugin is not called.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The plugin is not loaded.
    #[error("it was not loaded: {detail}{}", .hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    NotLoaded { detail: String, hint: Option<String> },
    /// The plugin is suspended.
    #[error(transparent)]
    Suspended(Suspension),
}

impl Unusable {
    /// Returns the reason for the condition, as one CamelCase word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotLoaded { .. } => reason::PLUGIN_NOT_LOADED,
            Self::Suspended(_) => reason::PLUGIN_SUSPENDED,
        }
    }
}

impl ManagedPlugin {
    /// Creates a plugin whose loading has not begun.
    pub(super) fn new(asked: LoadRequest, general: Limits, observer: Observer) -> Self {
        let PluginLimits { time, memory, output, log } = asked.declared.limits;
        let limits = Limits {
            time: time.map_or(general.time, |time| time.0),
            memory: memory.unwrap_or(general.memory),
            output: output.unwrap_or(general.output),
            log: log.unwrap_or(general.log),
        };
        Self {
            name: asked.name.clone(),
            asked,
            loaded: OnceLock::new(),
            tried: Mutex::default(),
            stage: watch::Sender::new(Stage::Settled),
            limits,
            health: Mutex::default(),
            observer,
        }
    }

    /// Starts to load the plugin, unless it is loaded or being loaded.
    pub(super) fn begin(self: &Arc<Self>) {
        let is_ours = self.stage.send_if_modified(|stage| {
            let begins = *stage == Stage::Settled && self.loaded.get().is_none();
            if begins {
                *stage = Stage::Loading;
            }
            begins
        });
        if is_ours {
            let stage = self.stage.clone();
            let on_compile: OnCompile = Arc::new(move |begins| {
                stage.send_replace(if begins { Stage::Compiling } else { Stage::Loading });
            });
            let (managed, attempt) = (Arc::clone(self), Arc::clone(self));
            tokio::spawn(async move { managed.attempt(async move { attempt.asked.load(on_compile).await }).await });
        }
    }

    /// Makes one attempt to load the plugin, in a task of its own. A panic is recorded as a failure.
    async fn attempt(&self, loading: impl Future<Output = LoadResult> + Send + 'static) {
        let _attempt = Attempt(self);
        let LoadResult { source, plugin, stamp } = match tokio::spawn(loading).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => self.asked.panicked().await,
            Err(_) => return, // the program ends
        };
        let mut tried = locked(&self.tried);
        tried.source = source;
        match plugin {
            Ok(plugin) => {
                tried.failed = None;
                let _ = self.loaded.set(plugin); // one attempt at a time, and none after the first that went well
            }
            Err(error) => {
                let is_of_the_moment = error.is_of_the_moment();
                tried.failures = if is_of_the_moment { tried.failures.saturating_add(1) } else { 0 };
                let again = Instant::now().checked_add(pause(tried.failures)).filter(|_| is_of_the_moment);
                let problem = error.problem();
                // A file that is being written is read again and again.
                if tried.failed.as_ref().is_none_or(|failed| failed.problem != problem) {
                    let (plugin, problem) = (self.name.clone(), problem.clone());
                    (self.observer.note)(Notice::PluginFailed(PluginFailed { plugin, problem }));
                }
                tried.failed = Some(LoadFailure { problem, again, stamp });
            }
        }
    }

    /// Starts to load the plugin again for a launch, if a temporary failure is due for a retry or a candidate file
    /// has changed.
    pub async fn try_again(self: &Arc<Self>) {
        let Some(failed) = locked(&self.tried).failed.clone() else { return };
        let is_due = failed.again.is_some_and(|again| again <= Instant::now());
        if is_due || self.asked.stamp().await != failed.stamp {
            self.begin();
        }
    }

    /// Returns a receiver for the progress of loading.
    pub fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Reports whether the plugin is loaded or has failed to load.
    pub fn is_settled(&self) -> bool {
        *self.stage.borrow() == Stage::Settled
    }

    /// Waits until the plugin is loaded or has failed to load.
    #[boxed]
    pub async fn settled(&self) {
        let _ = self.stage().wait_for(|stage| *stage == Stage::Settled).await; // it lives as long as this
    }

    /// Returns the plugin if it is loaded and not suspended.
    pub fn usable(&self, now: Instant) -> Result<&Plugin, Unusable> {
        let Some(plugin) = self.loaded.get() else {
            let PluginProblem { detail, hint, .. } = self.problem().unwrap_or_else(|| PluginProblem {
                code: "plugin-not-compiled".to_owned(),
                detail: "it is still being compiled".to_owned(),
                hint: None,
            });
            return Err(Unusable::NotLoaded { detail, hint });
        };
        match self.health().suspended(now) {
            Some(suspended) => Err(Unusable::Suspended(suspended)),
            None => Ok(plugin),
        }
    }

    /// Returns the plugin if it is loaded.
    pub fn loaded(&self) -> Option<&Plugin> {
        self.loaded.get()
    }

    /// Reports whether the plugin is built in.
    pub fn is_built_in(&self) -> bool {
        self.asked.builtin().is_some()
    }

    /// Returns the limits of one call.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Reports whether a launch continues without the plugin if it fails.
    pub fn is_skipped_on_failure(&self) -> bool {
        self.asked.declared.on_failure == OnFailure::Skip
    }

    /// Records the result of a finished call.
    pub fn record(&self, outcome: CallOutcome) {
        let mut health = self.health();
        let now = Instant::now();
        let (before, was_failing) = (health.suspended(now).is_some(), health.has_been_suspended());
        health.record(outcome, now, Timestamp::now());
        if let Some(suspended) = health.suspended(now).filter(|_| !before) {
            tracing::error!(agentd.plugin = self.name, reason = %suspended, "suspended the plugin");
            let (plugin, detail) = (self.name.clone(), suspended.to_string());
            (self.observer.note)(Notice::PluginSuspended(PluginSuspended { plugin, detail }));
        }
        if was_failing && !health.has_been_suspended() {
            tracing::info!(agentd.plugin = self.name, "the plugin works again");
            (self.observer.note)(Notice::PluginRecovered(PluginRecovered { plugin: self.name.clone() }));
        }
    }

    /// Measures a call that began at this time and has ended.
    pub fn measure<T, E>(&self, begun: Instant, result: &Result<T, E>) {
        let metrics = &self.observer.metrics;
        let name = metrics.plugin(&self.name);
        metrics.plugin_calls.count([name, if result.is_ok() { "ok" } else { "failed" }]);
        metrics.plugin_call_duration.observe([name], begun.elapsed());
    }

    /// Returns the settings for every use of the plugin.
    pub fn settings(&self) -> &toml::Table {
        &self.asked.declared.settings
    }

    /// Returns the problem of the last attempt to load the plugin.
    pub(super) fn problem(&self) -> Option<PluginProblem> {
        locked(&self.tried).failed.as_ref().map(|failed| failed.problem.clone())
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        locked(&self.health)
    }

    pub(super) fn view(&self, now: Instant) -> PluginView {
        let health = self.health();
        let suspended = health.suspended(now).map(|suspended| PluginProblem {
            code: "plugin-suspended".to_owned(),
            detail: suspended.to_string(),
            hint: Some(hint::RELOAD_TO_USE.to_owned()),
        });
        let is_settled = self.is_settled();
        let state = match (self.loaded(), &suspended) {
            (None, _) if !is_settled => PluginState::Compiling,
            (None, _) => PluginState::Failed,
            (Some(_), Some(_)) => PluginState::Suspended,
            (Some(_), None) => PluginState::Loaded,
        };
        let Origin { file: declared_in, of_user: _ } = self.asked.declared.origin.clone();
        let settings = settings::combined(&self.asked.declared.settings, &toml::Table::new()).unwrap_or_default();
        PluginView {
            name: self.name.clone(),
            state,
            problem: self.problem().or(suspended),
            source: locked(&self.tried).source.clone(),
            sha256: match self.loaded() {
                Some(plugin) => Some(plugin.sha256().to_owned()),
                None => self.asked.declared.sha256.map(|pin| pin.to_string()),
            },
            declared_in,
            description: self.loaded().map(described),
            grant: granted(&self.asked.grant()),
            on_failure: self.asked.declared.on_failure,
            used_by: self.asked.used_by(),
            settings: settings.into_iter().map(|setting| (setting.key, setting.values)).collect(),
            calls: health.calls,
            failures: health.failures,
            consecutive_failures: health.in_a_row,
            last_failure: health.last_failure.clone().map(|(at, message)| PluginFailure { at, message }),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn described(plugin: &Plugin) -> PluginDescription {
    let description = plugin.description();
    let want = |want: &Want| PluginWant {
        capability: want.capability.to_string(),
        patterns: want.patterns.clone(),
        reason: want.reason.clone(),
    };
    let narrowed = |narrowed: &UncoveredPattern| PluginNarrowed {
        capability: narrowed.capability.to_string(),
        pattern: narrowed.pattern.clone(),
        reason: narrowed.reason.clone(),
        denied: narrowed.denied,
    };
    PluginDescription {
        component: description.name.clone(),
        version: description.version.clone(),
        summary: description.summary.clone(),
        world: plugin.world().to_string(),
        imports: plugin.imports().iter().map(ToString::to_string).collect(),
        wants: description.wants.iter().map(want).collect(),
        narrowed: plugin.narrowed().iter().map(narrowed).collect(),
    }
}

/// Formats a grant as in a configuration. A command includes its variables.
fn granted(grant: &Grant) -> BTreeMap<String, Vec<String>> {
    let patterns = |capability| match capability {
        Capability::Command => grant.command.iter().map(ToString::to_string).collect(),
        _ => grant.patterns(capability).into_owned(),
    };
    let patterns = Capability::ALL.into_iter().map(|capability| (capability.to_string(), patterns(capability)));
    let patterns = patterns.filter(|(_, patterns)| !patterns.is_empty());
    let login_shell = grant.login_shell.then(|| ("login-shell".to_owned(), Vec::new()));
    let variables = grant.variables.clone().map(|variables| ("variables".to_owned(), variables));
    patterns.chain(login_shell).chain(variables).collect()
}

#[cfg(test)]
mod tests {
    use agentd_plugin_host::{Host, HostOptions};

    use super::super::loading::Folders;
    use agentd_metrics::Metrics;

    use super::*;
    use agentd_config as config;

    fn managed(directory: &std::path::Path) -> Arc<ManagedPlugin> {
        let host = Host::new(HostOptions::new(directory.join("cache"), "/nowhere/agentd")).unwrap();
        let folders = Folders { system: directory.join("system"), user: directory.join("user") };
        let asked = LoadRequest {
            name: "corp".to_owned(),
            declared: config::Plugin::default(),
            uses: Vec::new(),
            checks: Vec::new(),
            deny: Grant::default(),
            mistake: None,
            folders,
            host,
        };
        let observer = Observer { metrics: Arc::new(Metrics::new("0")), note: Arc::new(drop) };
        Arc::new(ManagedPlugin::new(asked, Limits::default(), observer))
    }

    #[tokio::test]
    async fn an_attempt_that_panics_is_a_failure_that_is_said_and_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let managed = managed(directory.path());
        let compiles = managed.stage.clone();
        managed
            .attempt(async move {
                compiles.send_replace(Stage::Compiling);
                panic!("a defect, as this test wants it")
            })
            .await;
        let view = managed.view(Instant::now());
        assert_eq!(view.state, PluginState::Failed);
        assert_eq!(view.problem.unwrap().code, "internal");
        let error = managed.usable(Instant::now()).unwrap_err().to_string();
        assert!(error.contains("panicked") && error.contains("a later launch tries it again"), "{error}");
        assert!(locked(&managed.tried).failed.as_ref().unwrap().again.is_some());
        // The next attempt finds no file.
        managed.begin();
        managed.settled().await;
        assert_eq!(managed.view(Instant::now()).problem.unwrap().code, "plugin-unreadable");
    }

    #[test]
    fn the_pause_before_a_further_attempt_doubles_up_to_the_longest() {
        let pauses: Vec<u64> = [1, 2, 3, 9, 10, u32::MAX].map(|failures| pause(failures).as_secs()).to_vec();
        assert_eq!(pauses, [1, 2, 4, 256, 300, 300]);
    }
}
