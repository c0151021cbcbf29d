//! One plugin of the set: loaded or not, how it does, and what is told of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use agentd_api::plugin::{
    OnFailure, PluginDescription, PluginFailure, PluginNarrowed, PluginProblem, PluginState, PluginView, PluginWant,
};
use agentd_plugins::{Capability, Grant, Limits, Narrowed, Plugin, Want};
use jiff::Timestamp;

use super::health::{Health, Outcome, Suspended};
use super::settings;
use crate::config::{self, Origin, PluginLimits};

/// A plugin, whatever its state.
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) name: String,
    declared: config::Plugin,
    about: About,
    loaded: Result<Plugin, PluginProblem>,
    limits: Limits,
    health: Mutex<Health>,
}

/// What is told of it and decides nothing.
#[derive(Debug)]
pub(super) struct About {
    /// `built-in`, or the file.
    pub(super) source: String,
    /// As it was granted.
    pub(super) grant: Grant,
    /// The steps of the pipeline that it is, or the prerequisites that it checks.
    pub(super) used_by: Vec<String>,
}

/// Why a plugin is not called.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCalled {
    #[error("it was not loaded: {detail}{}", .hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    NotLoaded { detail: String, hint: Option<String> },
    #[error(transparent)]
    Suspended(Suspended),
}

impl NotCalled {
    /// One CamelCase word, for the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NotLoaded { .. } => "PluginNotLoaded",
            Self::Suspended(_) => "PluginSuspended",
        }
    }
}

impl Managed {
    pub(super) fn new(
        name: String,
        declared: config::Plugin,
        loaded: Result<Plugin, PluginProblem>,
        about: About,
        general: Limits,
    ) -> Self {
        let PluginLimits { time, memory, output, log } = declared.limits;
        let limits = Limits {
            time: time.map_or(general.time, |time| time.0),
            memory: memory.unwrap_or(general.memory),
            output: output.unwrap_or(general.output),
            log: log.unwrap_or(general.log),
        };
        Self { name, declared, about, loaded, limits, health: Mutex::default() }
    }

    /// The plugin, if it is to be called now.
    pub(crate) fn usable(&self, now: Instant) -> Result<&Plugin, NotCalled> {
        let plugin = self
            .loaded
            .as_ref()
            .map_err(|problem| NotCalled::NotLoaded { detail: problem.detail.clone(), hint: problem.hint.clone() })?;
        match self.health().suspended(now) {
            Some(suspended) => Err(NotCalled::Suspended(suspended)),
            None => Ok(plugin),
        }
    }

    /// The plugin, if it is loaded.
    pub(crate) fn loaded(&self) -> Option<&Plugin> {
        self.loaded.as_ref().ok()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether a launch goes on without it when it fails.
    pub(crate) fn is_skipped_on_failure(&self) -> bool {
        self.declared.on_failure == OnFailure::Skip
    }

    /// Counts a call that came to its end.
    pub(crate) fn record(&self, outcome: Outcome) {
        let mut health = self.health();
        let now = Instant::now();
        let before = health.suspended(now).is_some();
        health.record(outcome, now, Timestamp::now());
        if let Some(suspended) = health.suspended(now).filter(|_| !before) {
            tracing::error!(agentd.plugin = self.name, reason = %suspended, "the plugin is not called any more for a while");
        }
    }

    /// For every use of it.
    pub(crate) fn settings(&self) -> &toml::Table {
        &self.declared.settings
    }

    pub(super) fn problem(&self) -> Option<&PluginProblem> {
        self.loaded.as_ref().err()
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn view(&self, now: Instant) -> PluginView {
        let health = self.health();
        let suspended = health.suspended(now).map(|suspended| PluginProblem {
            code: "plugin-suspended".to_owned(),
            detail: suspended.to_string(),
            hint: Some("`agentctl reload` takes it into use at once".to_owned()),
        });
        let state = match (&self.loaded, &suspended) {
            (Err(_), _) => PluginState::Failed,
            (Ok(_), Some(_)) => PluginState::Suspended,
            (Ok(_), None) => PluginState::Loaded,
        };
        let Origin { file: declared_in, of_user: _ } = self.declared.origin.clone();
        let settings = settings::combined(&self.declared.settings, &toml::Table::new()).unwrap_or_default();
        PluginView {
            name: self.name.clone(),
            state,
            problem: self.problem().cloned().or(suspended),
            source: self.about.source.clone(),
            sha256: match &self.loaded {
                Ok(plugin) => Some(plugin.sha256().to_owned()),
                Err(_) => self.declared.sha256.map(|pin| pin.to_string()),
            },
            declared_in,
            description: self.loaded().map(described),
            grant: granted(&self.about.grant),
            on_failure: self.declared.on_failure,
            used_by: self.about.used_by.clone(),
            settings: settings.into_iter().map(|setting| (setting.key, setting.values)).collect(),
            calls: health.calls,
            failures: health.failures,
            consecutive_failures: health.in_a_row,
            last_failure: health.last_failure.clone().map(|(at, message)| PluginFailure { at, message }),
        }
    }
}

fn described(plugin: &Plugin) -> PluginDescription {
    let description = plugin.description();
    let want = |want: &Want| PluginWant {
        capability: want.capability.to_string(),
        patterns: want.patterns.clone(),
        reason: want.reason.clone(),
    };
    let narrowed = |narrowed: &Narrowed| PluginNarrowed {
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

/// As it stands in a configuration.
fn granted(grant: &Grant) -> BTreeMap<String, Vec<String>> {
    let patterns = Capability::ALL.into_iter().map(|capability| (capability.to_string(), grant.patterns(capability)));
    let patterns =
        patterns.filter(|(_, patterns)| !patterns.is_empty()).map(|(name, patterns)| (name, patterns.to_vec()));
    let login_shell = grant.login_shell.then(|| ("login-shell".to_owned(), Vec::new()));
    patterns.chain(login_shell).collect()
}
