//! What sessions need of the world: which prerequisites a session has, and what checks of them find.
//!
//! A check is a plugin's call in its box. One that is made before the environment is of no session and holds for everybody; one that is made
//! after it is shared by sessions whose environment, directory and agent are the same. Checks run side by side, so many at a time and
//! each bounded in time; whoever asks while one runs gets what it finds, and what was found is used again for seconds.
//!
//! Not its job: what a launch does with what was found (`session`), and the box (`agentd_plugins`).

mod check;
mod rounds;
mod select;
mod services;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::prerequisite::{CheckReport, Moment, OnFailure, Outcome, PrerequisiteView};
use agentd_plugins::Places;
use jiff::Timestamp;
use tokio::task::JoinSet;

use crate::capability::{Machine, Place};
use crate::config::Config;
use crate::env::Secrets;
use crate::plugins::Plugins;
use check::Check;
use rounds::Rounds;

pub(crate) use check::Subject;
pub(crate) use select::{Who, needed};

/// How long the user's own directories have to say where they are, when the plugins are loaded.
const PLACES: Duration = Duration::from_secs(10);

/// The prerequisites of one configuration, and what was found of them.
#[derive(Debug)]
pub(crate) struct Prerequisites {
    checks: BTreeMap<String, Arc<Check>>,
    rounds: Rounds,
}

/// What checks are made with.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub(crate) machine: Machine,
    pub(crate) secrets: Arc<Secrets>,
    /// The user's configuration directory.
    pub(crate) config: PathBuf,
}

/// One check that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) fresh: Fresh,
}

/// What is good enough for who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fresh {
    /// What holds by the check's own cache, else what a check finds that runs.
    Cached,
    /// What was found so long ago at most, else what a check finds that runs.
    Found(Duration),
    /// What a look finds that began so long ago at most: another is begun beside one that has run longer.
    Begun(Duration),
}

impl Prerequisites {
    /// Of the plugins that this configuration has loaded.
    pub(crate) async fn new(config: &Config, plugins: &Plugins, surroundings: Surroundings) -> Self {
        // Once: a home that does not answer later must not hold up a check that is to say so.
        let paths = std::iter::once(surroundings.config.clone()).chain(std::env::home_dir());
        let seen = surroundings.machine.places(paths, Instant::now() + PLACES, |_| false).await;
        let text = |place: Place| place.into_directory()?.into_os_string().into_string().ok();
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

    /// When it is checked; one that is not declared cannot be met, and that is known before anything is built.
    pub(crate) fn moment(&self, name: &str) -> Moment {
        self.checks.get(name).map_or(Moment::BeforeEnvironment, |check| check.moment())
    }

    pub(crate) fn holds(&self, name: &str) -> bool {
        self.checks.contains_key(name)
    }

    /// Whether the plugin that checks it is loaded, or cannot be: before that its moment is not known.
    pub(crate) fn is_settled(&self, name: &str) -> bool {
        self.checks.get(name).is_none_or(|check| check.plugin.is_settled())
    }

    /// Waits for that.
    pub(crate) async fn settled(&self, name: &str) {
        if let Some(check) = self.checks.get(name) {
            check.plugin.settled().await;
        }
    }

    /// How often it is looked at while a session that needs it runs.
    pub(crate) fn interval(&self, name: &str) -> Option<Duration> {
        self.checks.get(name).map(|check| check.declared.interval.0).filter(|interval| !interval.is_zero())
    }

    /// How long one look at it takes at most; nothing where nobody declares it.
    pub(crate) fn time(&self, name: &str) -> Option<Duration> {
        self.checks.get(name).map(|check| check.declared.time.0)
    }

    /// Makes these checks side by side; the reports in the order of the names. `subject`: of those that look at an environment.
    pub(crate) async fn round(&self, wanted: Vec<Wanted>, subject: Option<&Arc<Subject>>) -> Vec<CheckReport> {
        let mut running = JoinSet::new();
        for Wanted { name, fresh } in wanted {
            let check = self.checks.get(&name).cloned();
            let (rounds, subject) = (self.rounds.clone(), subject.cloned());
            running.spawn(async move {
                match check {
                    Some(check) => rounds.report(check, subject, fresh).await,
                    None => undeclared(name),
                }
            });
        }
        // One that panicked says so in the log; there is no report of it, and so no round without it is whole.
        let mut reports = running.join_all().await;
        reports.sort_by(|one, other| one.name.cmp(&other.name));
        reports
    }

    /// Makes a check that is of no session, beside whatever goes on; nothing if it is under way.
    pub(crate) fn look_again(&self, name: &str) {
        if let Some(check) = self.checks.get(name) {
            self.rounds.begin(check);
        }
    }

    /// What was found last, of whomever.
    pub(crate) fn last(&self, name: &str) -> Option<CheckReport> {
        self.rounds.last(name)
    }

    /// All of them, in the order of their names. Which sessions need them is not known here.
    pub(crate) fn views(&self) -> Vec<PrerequisiteView> {
        self.checks.values().map(|check| check.view(self.last(&check.name))).collect()
    }
}

/// What is found of a prerequisite that a session names and nobody declares.
fn undeclared(name: String) -> CheckReport {
    CheckReport {
        outcome: Outcome::Unknown,
        on_failure: OnFailure::Fail,
        summary: "the configuration does not declare it".to_owned(),
        facts: Vec::new(),
        remedy: Some(format!("declare [prerequisites.{name}], and run `agentctl reload`")),
        took_ms: 0,
        checked_at: Timestamp::now(),
        from_cache: false,
        name,
    }
}
