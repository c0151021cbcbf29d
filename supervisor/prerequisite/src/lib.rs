//! Selects the prerequisites of a session and runs their checks.
//!
//! A check is a call of a plugin. A check before the environment belongs to no session, and all sessions share its
//! result. A check after the environment is shared by sessions with the same environment, directory and agent. A
//! limited number of checks runs in parallel, each with a time limit. Callers share a check that is in progress, and
//! its result is used again for some seconds.
//!
//! A launch decides about the consequences of a result (`session`). `agentd_plugin_host` runs the plugins.

mod check;
mod rounds;
mod select;
mod services;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::prerequisite::{CheckReport, Moment, OnFailure, Outcome, PrerequisiteView};
use agentd_plugin_host::Places;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use tokio::task::JoinSet;
use tracing::{Instrument as _, info_span};

use agentd_config::Config;
use agentd_environment::Secrets;
use agentd_host::capability::{Machine, PathState};
use agentd_metrics::Metrics;
use agentd_plugin_set::Plugins;
use agentd_traces::TARGET;
use check::Check;
use rounds::Rounds;

pub use check::CheckedSession;
pub use select::{SessionTraits, needed};

/// Time limit for resolving the user's directories when the plugins are loaded.
const PLACES_TIME: Duration = Duration::from_secs(10);

/// The prerequisites of one configuration and the results of their checks.
#[derive(Debug)]
pub struct Prerequisites {
    checks: BTreeMap<String, Arc<Check>>,
    rounds: Rounds,
}

/// The services that checks use.
#[derive(Debug, Clone)]
pub struct CheckResources {
    /// Services of the machine.
    pub machine: Machine,
    /// The named secrets.
    pub secrets: Arc<Secrets>,
    /// The user's configuration directory.
    pub config: PathBuf,
    /// Counts the checks.
    pub metrics: Arc<Metrics>,
}

/// A requested check.
#[derive(Debug, Clone)]
pub struct RequestedCheck {
    /// Name of the prerequisite.
    pub name: String,
    /// Results that the caller accepts.
    pub fresh: Freshness,
}

/// Age of a result that a caller accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// A result that is valid by the check's cache time, otherwise the result of a check in progress.
    Cached,
    /// A result of at most this age, otherwise the result of a check in progress.
    Found(Duration),
    /// A result of a check that began at most this long ago. A new check starts beside one that has run longer.
    Begun(Duration),
}

impl Prerequisites {
    /// Creates the checks of this configuration with its loaded plugins.
    #[boxed]
    pub async fn new(config: &Config, plugins: &Plugins, surroundings: CheckResources) -> Self {
        // The home directory is resolved once: if it stops answering later, it must not delay a check that reports
        // it.
        let paths = std::iter::once(surroundings.config.clone()).chain(std::env::home_dir());
        // On a place, each look is a start of its client, and the directories belong to this machine.
        let seen = if surroundings.machine.is_elsewhere() {
            Vec::new()
        } else {
            surroundings.machine.path_states(paths.collect(), Instant::now() + PLACES_TIME, |_| false).await
        };
        let text = |place: PathState| place.into_directory()?.into_os_string().into_string().ok();
        let mut found = seen.into_iter().map(text);
        let (config_place, home) = (found.next().flatten(), found.next().flatten());
        let places = Places { config: config_place, home, ..Places::default() };
        let checks = config.prerequisites.iter().filter_map(|(name, declared)| {
            let plugin = plugins.named(&declared.plugin)?;
            let check = Check::new(name, declared, Arc::clone(plugin), surroundings.clone(), places.clone());
            Some((name.clone(), Arc::new(check)))
        });
        Self { checks: checks.collect(), rounds: Rounds::default() }
    }

    /// Returns when the prerequisite is checked. An undeclared prerequisite cannot be met, which is known before the
    /// environment is built.
    pub fn moment(&self, name: &str) -> Moment {
        self.checks.get(name).map_or(Moment::BeforeEnvironment, |check| check.moment())
    }

    /// Reports whether the configuration declares the prerequisite.
    pub fn holds(&self, name: &str) -> bool {
        self.checks.contains_key(name)
    }

    /// Reports whether the plugin of the prerequisite is loaded or has failed to load. Before that, the moment of the
    /// check is not known.
    pub fn is_settled(&self, name: &str) -> bool {
        self.checks.get(name).is_none_or(|check| check.plugin.is_settled())
    }

    /// Waits until the plugin of the prerequisite is loaded or has failed to load.
    #[boxed]
    pub async fn settled(&self, name: &str) {
        if let Some(check) = self.checks.get(name) {
            check.plugin.settled().await;
        }
    }

    /// Returns the interval of the checks while a session that needs the prerequisite runs. `None` means no checks.
    pub fn interval(&self, name: &str) -> Option<Duration> {
        self.checks.get(name).map(|check| check.declared.interval.0).filter(|interval| !interval.is_zero())
    }

    /// Returns the time limit of one check. `None` means that the prerequisite is not declared.
    pub fn time(&self, name: &str) -> Option<Duration> {
        self.checks.get(name).map(|check| check.declared.time.0)
    }

    /// Runs the checks in parallel and returns their reports, sorted by name. `subject` is the session for checks
    /// that receive an environment.
    #[boxed]
    pub async fn round(&self, wanted: Vec<RequestedCheck>, subject: Option<&Arc<CheckedSession>>) -> Vec<CheckReport> {
        let mut running = JoinSet::new();
        for RequestedCheck { name, fresh } in wanted {
            let check = self.checks.get(&name).cloned();
            let (rounds, subject) = (self.rounds.clone(), subject.cloned());
            let span = info_span!(target: TARGET, "prerequisite", agentd.prerequisite = name);
            let checking = async move {
                match check {
                    Some(check) => rounds.report(check, subject, fresh).await,
                    None => undeclared(name),
                }
            };
            running.spawn(checking.instrument(span));
        }
        // If a check panics, the log has the error. The panic is passed on, because a list without that report would
        // be incomplete.
        let mut reports = running.join_all().await;
        reports.sort_by(|one, other| one.name.cmp(&other.name));
        reports
    }

    /// Starts a check that belongs to no session in the background, unless it is in progress.
    pub fn look_again(&self, name: &str) {
        if let Some(check) = self.checks.get(name) {
            self.rounds.begin(check);
        }
    }

    /// Returns the last report, for any session.
    pub fn last(&self, name: &str) -> Option<CheckReport> {
        self.rounds.last(name)
    }

    /// Returns the views of all prerequisites, sorted by name, without the sessions that use them.
    pub fn views(&self) -> Vec<PrerequisiteView> {
        self.checks.values().map(|check| check.view(self.last(&check.name))).collect()
    }
}

/// Returns the report for a prerequisite that a session names and the configuration does not declare.
fn undeclared(name: String) -> CheckReport {
    CheckReport {
        outcome: Outcome::Unknown,
        on_failure: OnFailure::Fail,
        summary: "the configuration does not declare this prerequisite".to_owned(),
        facts: Vec::new(),
        remedy: Some(format!("declare [prerequisites.{name}], and run `agentctl reload`")),
        took_ms: 0,
        checked_at: Timestamp::now(),
        from_cache: false,
        name,
    }
}
