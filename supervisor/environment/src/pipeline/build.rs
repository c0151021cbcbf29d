//! Runs the pipeline: calls the providers in order, reads the named secrets meanwhile, and reports the result.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentd_api::{ByteString, chain};
use agentd_catalogue::KnownAgent;
use agentd_config as config;
use agentd_host::capability::{CallMachine, CallTime};
use agentd_plugin_host::{Call, Capability, Limits, Plugin, SessionFacts};
use agentd_plugin_set::{CallOutcome, PipelineStep, PluginFault};
use agentd_traces::TARGET;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;
use tokio::sync::OnceCell;
use tracing::{Instrument as _, info_span};

use super::left_out::{LeftOut, may_be_left_out};
use super::services::{CallServices, SharedLogin};
use super::{BuildError, BuildFailure, BuiltEnvironment, InScope, OWN, Pipeline, Target, files, identity, scope};
use crate::lock::locked;
use crate::merge::{Environment, functions};
use crate::script::base::Base;
use crate::script::complaints;
use crate::script::directories::ResolvedPlaces;
use crate::script::trust::Trust;
use crate::script::{proposed, workflow};
use crate::secrets::{HiddenValues, SecretResults, Secrets};
use crate::store::StoredEnvironments;

/// Time limit for pending secrets after the build has already failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Purpose of a call to the providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Launch,
    /// Renews values with a limited lifetime while the agent runs.
    Renewal,
}

/// Facts that all steps of one build share.
pub(crate) struct Build<'a> {
    pub(crate) target: &'a Target,
    pub(crate) real: &'a ResolvedPlaces,
    pub(crate) trust: &'a Arc<Trust>,
    pub(crate) login: &'a Arc<SharedLogin>,
    pub(crate) scope: &'a InScope,
    /// Number of steps to run.
    pub(crate) step_count: usize,
    /// Names of the steps whose failure ends the build, even if other builds skip them or leave them out.
    pub(crate) needed: BTreeSet<&'a str>,
}

/// Results of the providers.
#[derive(Default)]
pub(crate) struct StepResults {
    /// One result for each step that was run.
    results: Vec<Result<(), BuildError>>,
    /// Whether the last step failed and cannot be skipped.
    pub(crate) has_failed: bool,
}

impl Pipeline {
    /// Builds an environment from nothing.
    #[boxed]
    pub async fn build(
        &self,
        target: &Target,
        trust: &Arc<Trust>,
        secrets: &Secrets,
    ) -> Result<BuiltEnvironment, BuildFailure> {
        let mut built = self.run(target, trust, secrets).await;
        self.warm_up_plugins();
        if let Ok(BuiltEnvironment { environment, .. }) = &built
            && let Err(error) = target.chosen.settle(environment).await
        {
            built = Err(BuildFailure { reason: error.reason(), message: chain(&error) });
        }
        built
    }

    /// Calls the providers in order and reads the named secrets concurrently.
    async fn run(
        &self,
        target: &Target,
        trust: &Arc<Trust>,
        secrets: &Secrets,
    ) -> Result<BuiltEnvironment, BuildFailure> {
        let hidden = Arc::new(HiddenValues::default());
        let login = self.login(target, &hidden, Purpose::Launch);
        let mut environment = self.empty_environment(target);
        let ahead = if target.machine.is_elsewhere() { None } else { self.look_ahead(target, trust, &login).await };
        let real = match ahead {
            Some(real) => real,
            None => target.real().await,
        };
        let scope = target.in_scope(&real).await;
        let (taken, provided) = {
            let of_login = login.variables(Instant::now() + self.time);
            let mut taking = pin!(secrets.take(&target.agent, real.directory.as_deref(), of_login));
            let build = Build {
                target,
                real: &real,
                trust,
                login: &login,
                scope: &scope,
                step_count: self.steps.len(),
                needed: BTreeSet::new(),
            };
            let mut providing = pin!(self.provide(&build, &mut environment));
            let mut taken = None;
            let provided = loop {
                tokio::select! {
                    provided = &mut providing => break provided,
                    now = &mut taking, if taken.is_none() => taken = Some(now),
                }
            };
            let taken = match (taken, provided.has_failed) {
                (Some(taken), _) => taken,
                (None, false) => taking.await,
                // The build has failed. Secrets that are soon available are still awaited so that the message can
                // hide them.
                (None, true) => tokio::time::timeout(AFTER_FAILURE, taking).await.unwrap_or_default(),
            };
            (taken, provided)
        };
        let finished = if provided.has_failed {
            Ok(())
        } else {
            self.finish(target, &real, &taken, secrets, &login, scope.steps(), &mut environment)
        };
        let known = if provided.has_failed { None } else { known(target, &login, &environment).await };
        self.conclude(provided, finished, taken, &login, environment).map(|built| BuiltEnvironment { known, ..built })
    }

    /// Restores a stored environment without running a provider. Named secrets are read again.
    /// Secrets that no file holds are looked up in `remembered`, then in the login shell, where most of them came
    /// from.
    #[boxed]
    pub async fn restore(
        &self,
        target: &Target,
        stored: &StoredEnvironments,
        remembered: &BTreeMap<String, Vec<u8>>,
        secrets: &Secrets,
    ) -> Result<BuiltEnvironment, BuildFailure> {
        let hidden = Arc::new(HiddenValues::default());
        let login = self.login(target, &hidden, Purpose::Launch);
        let mut environment = Environment::from_view(&stored.last).with_own_steps(Arc::clone(&self.own));
        environment.attributes = stored.attributes.clone();
        environment.restore(remembered);
        let deadline = Instant::now() + self.time;
        let real = target.real().await;
        let taken = secrets.take(&target.agent, real.directory.as_deref(), login.variables(deadline)).await;
        let named = |name: &str| taken.given.iter().any(|given| given.variable == name);
        if environment.missing().any(|name| !named(name)) {
            match login.variables(deadline).await {
                Ok(variables) => environment.restore_from_login(variables),
                Err(error) => {
                    tracing::warn!(%error, "cannot read secrets from the login shell");
                }
            }
        }
        // The stored environment already holds the variables that the scopes gave.
        let finished = self.finish(target, &real, &taken, secrets, &login, Vec::new(), &mut environment);
        let known = known(target, &login, &environment).await;
        let concluded = self.conclude(StepResults::default(), finished, taken, &login, environment);
        concluded.map(|built| BuiltEnvironment { known, ..built })
    }

    /// Turns the results into a `BuiltEnvironment` or a `BuildFailure`, and hides all known secrets in the messages.
    pub(crate) fn conclude(
        &self,
        provided: StepResults,
        finished: Result<(), BuildError>,
        mut taken: SecretResults,
        login: &SharedLogin,
        mut environment: Environment,
    ) -> Result<BuiltEnvironment, BuildFailure> {
        let hidden = &login.hidden;
        for given in &taken.given {
            hidden.value(&given.value);
        }
        for missing in &mut taken.missing {
            missing.reason = hidden.text(&missing.reason);
        }
        hidden.shared(Arc::new(environment.variables()));
        // A stored environment may hold secrets whose names and values do not look like secrets.
        for (_, value) in environment.secret_pairs() {
            hidden.value(value);
        }
        for value in environment.files().flat_map(|(_, _, content)| files::hidden(content)) {
            hidden.value(&value);
        }
        environment.scripts.iter_mut().for_each(|run| complaints::mask(run, |text| hidden.text(text)));
        let settled = self.settle(provided, hidden, login.purpose);
        match settled.and_then(|left_out| finished.map(|()| left_out)) {
            Ok(LeftOut { skipped, without, is_without_snapshot }) => {
                environment.without.iter_mut().for_each(|part| part.message = hidden.text(&part.message));
                environment.without.extend(without);
                environment.without.sort_by_key(|part| part.kind);
                Ok(BuiltEnvironment {
                    hidden: hidden.values().into_iter().map(ByteString::from).collect(),
                    environment,
                    known: None,
                    secret_variables: taken.given.iter().map(|given| given.variable.clone()).collect(),
                    secrets: taken.given.into_iter().map(|given| given.name).collect(),
                    missing: taken.missing,
                    skipped,
                    is_without_snapshot,
                })
            }
            Err(error) => Err(BuildFailure { reason: error.reason(), message: hidden.text(&chain(&error)) }),
        }
    }

    /// Returns the empty environment from which every build starts.
    pub(crate) fn empty_environment(&self, target: &Target) -> Environment {
        Environment::with_files_in(target.files.clone()).with_own_steps(Arc::clone(&self.own))
    }

    pub(crate) fn login(&self, target: &Target, hidden: &Arc<HiddenValues>, purpose: Purpose) -> Arc<SharedLogin> {
        Arc::new(SharedLogin {
            capture: self.capture.counting(),
            chosen: Arc::clone(&target.chosen),
            hidden: Arc::clone(hidden),
            captured: OnceCell::new(),
            known: OnceCell::new(),
            purpose,
            looked: Mutex::default(),
            ahead: Mutex::default(),
        })
    }

    /// Calls the first `build.step_count` providers in order, until a provider fails that cannot be skipped.
    pub(crate) async fn provide(&self, build: &Build<'_>, environment: &mut Environment) -> StepResults {
        let mut provided = StepResults::default();
        for (number, step) in (1..).zip(&self.steps[..build.step_count]) {
            let result = self.step(build, step, number, environment).await;
            let is_left_out = build.target.is_degraded && may_be_left_out(step);
            let can_do_without =
                (step.plugin.is_skipped_on_failure() || is_left_out) && !build.needed.contains(step.name.as_str());
            provided.has_failed = result.is_err() && !can_do_without;
            provided.results.push(result);
            if provided.has_failed {
                break;
            }
        }
        provided
    }

    async fn step(
        &self,
        build: &Build<'_>,
        step: &PipelineStep,
        number: u32,
        environment: &mut Environment,
    ) -> Result<(), BuildError> {
        let Build { target, real, trust, login, scope, .. } = *build;
        // A launch has already retried the plugin. A renewal is no part of a launch and retries here.
        step.plugin.try_again().await;
        step.plugin.settled().await;
        let plugin = step.plugin.usable(Instant::now());
        let plugin = plugin.map_err(|source| BuildError::NotCalled { provider: step.name.clone(), source })?;
        let is_own = step.plugin.is_built_in();
        let granted = |name: &str| is_own || plugin.is_given_secret(name);
        let services = Arc::new(CallServices {
            plugin: step.name.clone(),
            session: target.id.to_string(),
            agent: target.agent.clone(),
            machine: CallMachine {
                machine: target.machine.clone(),
                places: real.places.clone(),
                patience: CallTime::All,
            },
            secrets: Arc::clone(&target.secrets),
            capture: login.capture.clone(),
            login: Arc::clone(login),
            hidden: Arc::clone(&login.hidden),
            functions: self.functions,
            results: Arc::clone(&self.results),
            places: target.places.clone(),
            directory: real.directory.clone(),
            home: self.home.clone(),
            ran: Mutex::default(),
            trust: Arc::clone(trust),
            base: if plugin.imports().contains(&Capability::Script) { Base::new(environment) } else { Base::default() },
            granted: if is_own { None } else { Some(plugin.clone()) },
            unapproved: Mutex::new(None),
            failed: Mutex::new(None),
            is_degraded: target.is_degraded,
            without: Mutex::default(),
            metrics: Arc::clone(&self.metrics),
        });
        let known = if is_own && scope::has_identity(plugin) { known(target, login, environment).await } else { None };
        let mut settings = scope.settings(&self.steps, number as usize - 1, plugin, known.map(KnownAgent::name));
        if is_own && step.plugin.name == config::ENV_SCRIPT {
            workflow::add(&mut settings, &target.places);
            if !login.ahead().is_some_and(|ahead| ahead.has_no_proposed()) {
                proposed::add(&mut settings, &target.places, trust).await;
            }
        }
        let call = Call {
            session: Some(SessionFacts {
                id: target.id.to_string(),
                name: target.name.clone(),
                agent: target.agent.clone(),
                directory: target.places.cwd.display().to_string(),
                launch: target.launch,
            }),
            environment: environment.variables_for(granted),
            foreign: environment.foreign(),
            settings,
            places: real.places.clone(),
            services: Arc::<CallServices>::clone(&services),
            limits: step.plugin.limits(),
        };
        let begun = Instant::now();
        let span =
            info_span!(target: TARGET, "provider", agentd.provider = step.name, agentd.plugin = step.plugin.name);
        // agentd's own providers read nothing of the session but its agent and its directory.
        let calling = if is_own { plugin.provide_again(call) } else { plugin.provide(call) };
        let called = calling.instrument(span).await;
        step.plugin.measure(begun, &called);
        let changes = called.map_err(|source| {
            let (provider, failed) = (step.name.clone(), locked(&services.failed).take());
            match (locked(&services.unapproved).take(), failed) {
                (Some(refused), _) => BuildError::NotApproved(refused),
                (None, Some(reason)) => BuildError::Run { provider, reason, source },
                (None, None) => BuildError::Provider { provider, source },
            }
        })?;
        environment.scripts.append(&mut locked(&services.ran));
        environment.without.append(&mut locked(&services.without));
        environment
            .apply_at(&step.name, number, changes, Timestamp::now())
            .map_err(|source| BuildError::Change { provider: step.name.clone(), source })?;
        if let Some(snapshot) = login.captured.get() {
            let lacking_a_variable = functions::lacking_a_variable(&snapshot.variables, environment);
            let applied = environment.apply(OWN, number, lacking_a_variable);
            applied.map_err(|source| BuildError::Change { provider: OWN.to_owned(), source })?;
        }
        Ok(())
    }

    /// Records the outcome of each provider. Returns the providers that were left out, or the error that ended the
    /// build.
    fn settle(&self, provided: StepResults, hidden: &HiddenValues, purpose: Purpose) -> Result<LeftOut, BuildError> {
        let StepResults { mut results, has_failed } = provided;
        let mut left_out = LeftOut::default();
        for (step, result) in self.steps.iter().zip(&results) {
            let message = result.as_ref().err().map(|error| hidden.text(&chain(error)));
            if let Some(outcome) = outcome(result.as_ref().err(), message.clone(), purpose) {
                step.plugin.record(outcome);
            }
            if let Some(message) = message {
                left_out.add(step, message);
            }
        }
        match results.pop() {
            Some(last) if has_failed => last.map(|()| left_out),
            _ => Ok(left_out),
        }
    }

    /// Creates instances of the plugins for the next build, in the background.
    pub(crate) fn warm_up_plugins(&self) {
        let plugins = self.steps.iter().filter_map(|step| Some((step.plugin.loaded()?.clone(), step.plugin.limits())));
        let plugins: Vec<(Plugin, Limits)> = plugins.filter(|(plugin, _)| !plugin.is_warm()).collect();
        if plugins.is_empty() {
            return;
        }
        tokio::spawn(async move {
            for (plugin, limits) in plugins {
                plugin.warm_up(limits).await;
            }
        });
    }
}

/// Returns the outcome of a call for its plugin, or `None` if the call was not made.
fn outcome(error: Option<&BuildError>, message: Option<String>, purpose: Purpose) -> Option<CallOutcome> {
    if matches!(error, Some(BuildError::NotCalled { .. })) {
        return None;
    }
    let broke = match error {
        Some(BuildError::Provider { source, .. }) => PluginFault::of(source),
        _ => None,
    };
    Some(match (purpose, message, broke) {
        (Purpose::Renewal, message, _) => CallOutcome::Renewed(message),
        (Purpose::Launch, None, _) => CallOutcome::Well,
        (Purpose::Launch, Some(message), Some(broke)) => CallOutcome::Fault(broke, message),
        (Purpose::Launch, Some(message), None) => CallOutcome::Reported(message),
    })
}

/// Returns the known agent of the session. An agent that the configuration names comes before an agent that the command
/// shows. The command is looked at once in a build.
async fn known(target: &Target, login: &SharedLogin, environment: &Environment) -> Option<&'static KnownAgent> {
    let path = environment.get("PATH");
    let look = || async {
        match login.ahead().map(|ahead| ahead.known(path)) {
            Some(Ok(known)) => known,
            Some(Err(_)) | None => identity::identify(&target.command, path, &target.places.cwd).await,
        }
    };
    match target.known {
        Some(known) => Some(known),
        None => *login.known.get_or_init(look).await,
    }
}
