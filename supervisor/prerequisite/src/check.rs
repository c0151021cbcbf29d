//! A prerequisite of the configuration, and one call of its plugin.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentd_api::SessionId;
use agentd_api::prerequisite::{CheckReport, Fact, Moment, Outcome, PrerequisiteView};
use agentd_plugin_host::{Call, CallError, Limits, Places, Plugin, Report, SessionFacts, Setting};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::CheckResources;
use super::services::CheckServices;
use agentd_api::chain;
use agentd_api::hex;
use agentd_config as config;
use agentd_environment::{
    Environment, HiddenValues, ResolvedPlaces, SESSION_VARIABLE, SOCKET_VARIABLE, ScriptDirectories,
};
use agentd_host::capability::{CallMachine, CallTime};
use agentd_plugin_set::{self as plugins, ManagedPlugin, PluginFault, SettingError, combined};

/// A prerequisite and the plugin that checks it.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) declared: config::Prerequisite,
    pub(super) plugin: Arc<ManagedPlugin>,
    settings: Result<Vec<Setting>, SettingError>,
    surroundings: CheckResources,
    /// Places of checks that belong to no session.
    places: Places,
}

/// The session that a check is made for, after its environment was built.
#[derive(Debug)]
pub struct CheckedSession {
    id: SessionId,
    name: Option<String>,
    agent: String,
    launch: u64,
    places: ScriptDirectories,
    environment: Vec<(String, Vec<u8>)>,
    secrets: Vec<Vec<u8>>,
    /// Names of the variables that are secrets.
    secret_names: Vec<String>,
    /// Names of the variables that plugins set.
    foreign: Vec<String>,
    /// Key that is equal for sessions that a check cannot distinguish. It is kept in memory only, because it is
    /// derived from secrets.
    pub(super) key: String,
}

/// Result of a check, and the time for which it is used again.
#[derive(Debug, Clone)]
pub(super) struct CheckResult {
    pub(super) report: CheckReport,
    pub(super) holds_for: Duration,
}

/// Maximum time for which a result is used again, whatever the plugin reports.
const MAX_VALIDITY: Duration = Duration::from_hours(1);
/// Maximum number of facts that are kept of a report. Reports are written to the journal and shown to users.
const MAX_FACTS: usize = 64;
/// Maximum number of characters that are kept of a text of a report.
const MAX_TEXT: usize = 2000;

impl CheckedSession {
    /// Describes a session by its id, name, agent and launch, with its places and its environment.
    pub fn new(
        (id, name, agent, launch): (SessionId, Option<String>, String, u64),
        places: ScriptDirectories,
        environment: &Environment,
    ) -> Self {
        let mut digest = Sha256::new();
        for part in [agent.as_bytes(), b"\0", places.cwd.as_os_str().as_encoded_bytes(), b"\0"] {
            digest.update(part);
        }
        let mut variables = environment.variables();
        variables.retain(|(name, _)| name != SESSION_VARIABLE && name != SOCKET_VARIABLE);
        for (name, value) in &variables {
            for part in [name.as_bytes(), b"=", value, b"\0"] {
                digest.update(part);
            }
        }
        let secrets = environment.secret_pairs().map(|(_, value)| value.to_vec()).collect();
        let secret_names = environment.secret_pairs().map(|(name, _)| name.to_owned()).collect();
        let foreign = environment.foreign();
        let key = hex(&digest.finalize());
        Self { id, name, agent, launch, places, environment: variables, secrets, secret_names, foreign, key }
    }
}

impl Check {
    pub(super) fn new(
        name: &str,
        declared: &config::Prerequisite,
        plugin: Arc<ManagedPlugin>,
        surroundings: CheckResources,
        places: Places,
    ) -> Self {
        let settings = combined(plugin.settings(), &declared.settings);
        Self { name: name.to_owned(), declared: declared.clone(), plugin, settings, surroundings, places }
    }

    /// Returns when the prerequisite is checked.
    pub(super) fn moment(&self) -> Moment {
        let own = || match self.plugin.loaded()?.description().moment? {
            agentd_plugin_host::CheckMoment::BeforeEnvironment => Some(Moment::BeforeEnvironment),
            agentd_plugin_host::CheckMoment::AfterEnvironment => Some(Moment::AfterEnvironment),
        };
        self.declared.moment.or_else(own).unwrap_or(Moment::BeforeEnvironment)
    }

    /// Reports whether the check receives a session's environment.
    pub(super) fn looks_at_environment(&self) -> bool {
        self.moment() == Moment::AfterEnvironment
    }

    /// Runs the check, which ends by its time limit.
    pub(super) async fn run(&self, subject: Option<&CheckedSession>) -> CheckResult {
        let begun = Instant::now();
        // A compilation may take longer than a check. A later check then finds the plugin loaded.
        let _ = tokio::time::timeout(self.declared.time.0 / 2, self.loaded()).await;
        let services = self.services(subject).await;
        let checked = self.call(subject, &services, begun.elapsed()).await;
        let (outcome, summary, facts, remedy, valid_for) = match checked {
            Ok(Report { outcome, summary, facts, remedy, valid_for }) => {
                let outcome = match outcome {
                    agentd_plugin_host::CheckOutcome::Pass => Outcome::Pass,
                    agentd_plugin_host::CheckOutcome::Warn => Outcome::Warn,
                    agentd_plugin_host::CheckOutcome::Fail => Outcome::Fail,
                    agentd_plugin_host::CheckOutcome::Unknown => Outcome::Unknown,
                };
                (outcome, summary, facts, remedy, valid_for)
            }
            Err(error) => (Outcome::Unknown, format!("cannot check: {error}"), Vec::new(), None, None),
        };
        let masked = |text: &str| one_line(&services.hidden.text(text));
        let facts = facts.iter().take(MAX_FACTS).map(|(name, value)| Fact { name: masked(name), value: masked(value) });
        let remedy = (outcome != Outcome::Pass).then(|| self.declared.remedy.clone().or(remedy)).flatten();
        let report = CheckReport {
            name: self.name.clone(),
            outcome,
            on_failure: self.declared.on_failure,
            summary: masked(&summary),
            facts: facts.collect(),
            remedy: remedy.map(|remedy| masked(&remedy)),
            took_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            checked_at: Timestamp::now(),
            from_cache: false,
        };
        let metrics = &self.surroundings.metrics;
        metrics.prerequisite_checks.count([outcome.as_str()]);
        metrics.prerequisite_check_duration.observe([], begun.elapsed());
        CheckResult { report, holds_for: valid_for.unwrap_or(self.declared.cache.0).min(MAX_VALIDITY) }
    }

    /// Waits until the plugin is loaded or has failed to load. A failed load is repeated if that may help.
    async fn loaded(&self) {
        self.plugin.try_again().await;
        self.plugin.settled().await;
    }

    async fn call(
        &self,
        subject: Option<&CheckedSession>,
        services: &Arc<CheckServices>,
        spent: Duration,
    ) -> Result<Report, String> {
        let plugin = self.plugin.usable(Instant::now()).map_err(|error| chain(&error))?;
        let settings = self.settings.as_ref().map_err(|error| chain(error))?.clone();
        if self.looks_at_environment() && subject.is_none() {
            return Err("the check needs a session's environment; name a session".to_owned());
        }
        let limits = self.plugin.limits();
        let call = Call {
            session: subject.map(|subject| SessionFacts {
                id: subject.id.to_string(),
                name: subject.name.clone(),
                agent: subject.agent.clone(),
                directory: subject.places.cwd.display().to_string(),
                launch: subject.launch,
            }),
            environment: subject.map(|subject| self.visible_environment(plugin, subject)).unwrap_or_default(),
            foreign: subject.map(|subject| subject.foreign.clone()).unwrap_or_default(),
            settings,
            places: services.machine.places.clone(),
            services: Arc::<CheckServices>::clone(services),
            limits: Limits {
                time: limits.time.min(self.declared.time.0.saturating_sub(round_to_tenths(spent))),
                ..limits
            },
        };
        let begun = Instant::now();
        let checked = plugin.check(call).await;
        self.plugin.measure(begun, &checked);
        let message = || checked.as_ref().err().map(|error| services.hidden.text(&chain(error))).unwrap_or_default();
        self.plugin.record(match &checked {
            Ok(_) => plugins::CallOutcome::Well,
            Err(error) => match PluginFault::of(error).filter(|_| !is_external(error)) {
                Some(broke) => plugins::CallOutcome::Fault(broke, message()),
                None => plugins::CallOutcome::Reported(message()),
            },
        });
        let text = message();
        checked.map_err(|_| text)
    }

    /// Returns the session's environment. A plugin that is not built in receives only the secrets that it is granted.
    fn visible_environment(&self, plugin: &Plugin, subject: &CheckedSession) -> Vec<(String, Vec<u8>)> {
        let hides = |name: &String| subject.secret_names.contains(name) && !plugin.is_given_secret(name);
        let variables = subject.environment.iter();
        variables.filter(|(name, _)| self.plugin.is_built_in() || !hides(name)).cloned().collect()
    }

    async fn services(&self, subject: Option<&CheckedSession>) -> Arc<CheckServices> {
        let hidden = HiddenValues::default();
        let machine = &self.surroundings.machine;
        let mut real = ResolvedPlaces { places: self.places.clone(), directory: None };
        if let Some(subject) = subject {
            hidden.variables(&subject.environment);
            subject.secrets.iter().for_each(|value| hidden.value(value));
            // The check may have to report that the directory does not answer, so it keeps half of its time.
            let half = Instant::now() + self.declared.time.0 / 2;
            real = subject.places.real(machine, Some(&self.places), half).await;
        }
        Arc::new(CheckServices {
            prerequisite: self.name.clone(),
            session: subject.map(|subject| subject.id.to_string()).unwrap_or_default(),
            agent: subject.map(|subject| subject.agent.clone()).unwrap_or_default(),
            directory: real.directory,
            machine: CallMachine { machine: machine.clone(), places: real.places, patience: CallTime::Half },
            secrets: Arc::clone(&self.surroundings.secrets),
            hidden,
        })
    }

    /// Returns the report for a check whose task ended without a result.
    pub(super) fn lost_report(&self) -> CheckReport {
        CheckReport {
            name: self.name.clone(),
            outcome: Outcome::Unknown,
            on_failure: self.declared.on_failure,
            summary: "internal error: the check ended without a result (please report, with agentd.log)".to_owned(),
            facts: Vec::new(),
            remedy: self.declared.remedy.clone(),
            took_ms: 0,
            checked_at: Timestamp::now(),
            from_cache: false,
        }
    }

    pub(super) fn view(&self, report: Option<CheckReport>) -> PrerequisiteView {
        let settings = self.settings.as_deref().unwrap_or_default();
        PrerequisiteView {
            name: self.name.clone(),
            plugin: self.declared.plugin.clone(),
            moment: self.moment(),
            on_failure: self.declared.on_failure,
            required_by: self.declared.required_by.clone(),
            settings: settings.iter().map(|setting| (setting.key.clone(), setting.values.clone())).collect(),
            report,
            next_at: None,
            used_by: Vec::new(),
            problem: self.plugin.usable(Instant::now()).err().map(|error| chain(&error)),
        }
    }
}

/// Reports whether the cause of a failed call is outside of the plugin. A silent peer must not suspend the plugin
/// that reports it.
fn is_external(error: &CallError) -> bool {
    matches!(error, CallError::Time { .. })
}

/// Rounds down to tenths of a second. A time limit in a message is then a round number, and a negligible time becomes
/// zero.
fn round_to_tenths(spent: Duration) -> Duration {
    Duration::from_millis(u64::try_from(spent.as_millis() / 100 * 100).unwrap_or(u64::MAX))
}

/// Converts a text to one line of at most [`MAX_TEXT`] characters.
fn one_line(text: &str) -> String {
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TEXT).collect();
    if text.trim().chars().nth(MAX_TEXT).is_some() { format!("{line}…") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(agent: &str, directory: &str, variables: &[(&str, &str)]) -> CheckedSession {
        let mut environment = Environment::default();
        let set = |(name, value): &(&str, &str)| agentd_plugin_host::Change::set(*name, *value);
        environment.apply("p", 1, variables.iter().map(set).collect()).unwrap();
        let places = ScriptDirectories {
            config: "/c".into(),
            cwd: directory.into(),
            session: "/s".into(),
            given: None,
            workflow: None,
        };
        CheckedSession::new((SessionId::random(), None, agent.to_owned(), 1), places, &environment)
    }

    #[test]
    fn sessions_share_a_check_that_can_see_no_difference_between_them() {
        let one = subject("demo", "/work", &[("A", "1"), (SESSION_VARIABLE, "one")]);
        assert_eq!(one.key, subject("demo", "/work", &[("A", "1"), (SESSION_VARIABLE, "two")]).key);
        for other in [
            subject("other", "/work", &[("A", "1")]),
            subject("demo", "/work2", &[("A", "1")]),
            subject("demo", "/work", &[("A", "2")]),
            subject("demo", "/work", &[]),
        ] {
            assert_ne!(one.key, other.key);
        }
        assert!(!one.environment.iter().any(|(name, _)| name == SESSION_VARIABLE));
    }

    #[test]
    fn what_a_check_says_is_one_line_of_bounded_length() {
        assert_eq!(one_line(" a\nb\tc "), "a b c");
        assert_eq!(one_line(&"x".repeat(MAX_TEXT + 1)).chars().count(), MAX_TEXT + 1);
    }
}
