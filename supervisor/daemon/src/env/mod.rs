//! A session's environment: an ordered pipeline of providers, each a plugin in its box, that starts from nothing.
//!
//! What a provider may not do itself (run a shell, read a script) is done here for it, under its grant. The order of the
//! pipeline is the configuration's; the last words are agentd's own: the named secrets, and one variable.

mod attempts;
mod base;
mod capture;
mod complaints;
mod copy;
mod drift;
mod files;
mod finish;
mod functions;
pub(crate) mod halves;
mod hooks;
mod identity;
mod merge;
mod printed;
pub(crate) mod project;
mod quality;
mod ran;
mod refresh;
mod renewal;
mod results;
mod scope;
mod scripts;
mod secret;
mod secrets;
mod seed;
mod services;
mod shell;
mod snapshot;
pub(crate) mod sources;
mod store;
mod stubs;
mod trust;
mod typed;
mod upward;
mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentd_api::{ByteString, SessionId};
use agentd_plugins::{Call, CallError, Limits, Plugin, SessionFacts};
use jiff::Timestamp;
use tokio::sync::OnceCell;

pub(crate) use capture::Capture;
pub(crate) use complaints::of_runs as warnings_of_runs;
pub(crate) use drift::{describe, drift, with_secrets};
pub(crate) use files::{SessionFile, provide as provide_files, remove as remove_files, write as write_files};
pub(crate) use merge::{Environment, hex, without_secrets};
pub(crate) use renewal::{Renewal, not_to_be_given_again, renew_at};
pub(crate) use scope::{InScope, Scope, Scopes, is_step as is_scope_step};
pub(crate) use secrets::Hidden;
pub(crate) use secrets::{
    Declared as DeclaredSecret, Missing as MissingSecret, Named as NamedSecret, Secrets, assigned as assigned_secrets,
    redacted as redacted_script,
};
pub(crate) use secrets::{secret_credential, secret_file};
pub(crate) use seed::Seed;
pub(crate) use services::{Placeholders, Real, chain};
pub(crate) use snapshot::{
    Chosen, Finding, Options as SnapshotOptions, Place, SnapshotError, Snapshots, TerminalError,
    Times as SnapshotTimes, Wanted,
};
pub(crate) use store::{EnvironmentError, Environments, Kept, VERSIONS as ENVIRONMENT_VERSIONS};
pub(crate) use trust::{Script, Trust, TrustError, VERSIONS as TRUST_VERSIONS, sourced};
pub(crate) use upward::Place as ScriptPlace;
pub(crate) use validate::{Digests, Named as NamedPlaces, Scripts};

use crate::capability::{Machine, OnMachine, Patience};
use crate::config::{self, Children, Config, Functions};
use crate::plugins::{Broke, NotCalled, Outcome, Use};
use base::Base;
use finish::own_steps;
use merge::InvalidChange;
use results::Results;
use secrets::Taken;
use services::{CallServices, LoginOnce, locked};

/// Set in every agent's environment: the session's id. It tells an agent's own tools which session they are in.
pub(crate) const SESSION_VARIABLE: &str = agentd_keeper::protocol::SESSION_VARIABLE;
/// The variable of a guarded session that says where its own control socket is.
pub(crate) const SOCKET_VARIABLE: &str = "AGENTD_SOCKET";
/// The name agentd's own step goes by.
const OWN: &str = "agentd";
/// How long the session's places have to say where they are; the directory has answered just before.
const PLACES: Duration = Duration::from_secs(10);
/// How long secrets are waited for when it is known that there will be no environment.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The providers, in order.
#[derive(Debug)]
pub(crate) struct Pipeline {
    steps: Vec<Use>,
    capture: Capture,
    children: Children,
    functions: Functions,
    results: Arc<Results>,
    /// The user's.
    home: Option<PathBuf>,
    /// The names of the steps that are agentd's own.
    own: Arc<BTreeSet<String>>,
    /// For what the host does of itself.
    time: Duration,
    syntax: validate::Syntax,
}

/// Why an environment could not be built.
#[derive(Debug, thiserror::Error)]
enum BuildError {
    #[error("environment provider {provider:?}")]
    NotCalled { provider: String, source: NotCalled },
    #[error("environment provider {provider:?}")]
    Provider { provider: String, source: CallError },
    /// The host could not do for it what it asked.
    #[error("environment provider {provider:?}")]
    Run { provider: String, reason: &'static str, source: CallError },
    #[error("{0}")]
    NotApproved(String),
    #[error("environment provider {provider:?} gave a change that no environment can hold")]
    Change { provider: String, source: InvalidChange },
    #[error("{0}; see `agentctl secret check`, and set required = false to start sessions without it")]
    Secret(MissingSecret),
    #[error("environment provider {provider:?} gives the secret {name:?}, {why}; `agentctl secret ls` lists them")]
    NoSuchSecret { provider: String, name: String, why: &'static str },
}

/// An environment, and what goes with it.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) environment: Environment,
    /// What must be hidden in what the agent prints: its own secrets, and those that were seen on the way and dropped, which a
    /// login shell of its own would give it again.
    pub(crate) hidden: Vec<ByteString>,
    /// The named secrets that it has.
    pub(crate) secrets: Vec<String>,
    /// Those that could not be had, and are not required.
    pub(crate) missing: Vec<MissingSecret>,
    /// Why providers gave nothing that the launch can do without.
    pub(crate) skipped: Vec<String>,
}

/// Why there is no environment, in words that hold no secret that agentd knows.
#[derive(Debug)]
pub(crate) struct Unbuilt {
    /// One CamelCase word, for the condition.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl BuildError {
    fn reason(&self) -> &'static str {
        match self {
            Self::NotCalled { source, .. } => source.reason(),
            Self::Provider { source: CallError::Outside { .. }, .. } => "ProviderNotGranted",
            Self::Provider { .. } => "ProviderFailed",
            Self::Run { reason, .. } => reason,
            Self::NotApproved(_) => "ScriptNotApproved",
            Self::Change { .. } => "ProviderAnswerInvalid",
            Self::Secret(_) | Self::NoSuchSecret { .. } => "SecretUnavailable",
        }
    }
}

/// What one environment is built for.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) id: SessionId,
    pub(crate) name: Option<String>,
    pub(crate) agent: String,
    /// Its program and arguments, where they are known.
    pub(crate) command: Vec<String>,
    pub(crate) scopes: Scopes,
    pub(crate) launch: u64,
    pub(crate) places: Placeholders,
    /// Where its files are.
    pub(crate) files: PathBuf,
    /// Where it reaches the control endpoint, where that is a socket of its own.
    pub(crate) socket: Option<PathBuf>,
    /// What it begins with.
    pub(crate) chosen: Arc<Chosen>,
    pub(crate) machine: Machine,
    pub(crate) secrets: Arc<Secrets>,
}

impl Target {
    async fn real(&self) -> Real {
        self.places.real(&self.machine, None, Instant::now() + PLACES).await
    }

    /// What the configuration and the session's own specification say of it.
    async fn in_scope(&self, real: &Real) -> InScope {
        let deadline = Instant::now() + PLACES;
        self.scopes.of(&self.places.cwd, real.directory.as_deref(), &self.machine, deadline).await
    }
}

/// What an environment is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Launch,
    /// Of what holds for a limited time, while the agent runs.
    Renewal,
}

/// What the steps of one build have in common.
struct Build<'a> {
    target: &'a Target,
    real: &'a Real,
    trust: &'a Arc<Trust>,
    login: &'a Arc<LoginOnce>,
    scope: &'a InScope,
    /// How many are asked.
    upto: usize,
    /// Those that are not skipped, whatever the configuration says.
    needed: BTreeSet<&'a str>,
}

/// What came of the providers.
#[derive(Default)]
struct Provided {
    /// One for each step that was made.
    results: Vec<Result<(), BuildError>>,
    /// Whether the last of them is one that it cannot do without, and failed.
    is_over: bool,
}

impl Pipeline {
    pub(crate) fn new(config: &Config, steps: Vec<Use>, capture: Capture) -> Self {
        Self {
            own: Arc::new(own_steps(&steps)),
            steps,
            capture,
            children: config.environment.children,
            functions: config.environment.functions,
            syntax: validate::Syntax::default(),
            results: Arc::default(),
            home: config.environment.home.clone().or_else(std::env::home_dir),
            // Several scripts may each take the whole deadline.
            time: config.environment.deadline.0.saturating_mul(4),
        }
    }

    /// Builds an environment from nothing.
    pub(crate) async fn build(&self, target: &Target, trust: &Arc<Trust>, secrets: &Secrets) -> Result<Built, Unbuilt> {
        let mut built = self.run(target, trust, secrets).await;
        self.prepare();
        if let Ok(Built { environment, .. }) = &built
            && let Err(error) = target.chosen.settle(environment).await
        {
            built = Err(Unbuilt { reason: error.reason(), message: chain(&error) });
        }
        built
    }

    /// Calls the providers in order, with the named secrets taken meanwhile.
    async fn run(&self, target: &Target, trust: &Arc<Trust>, secrets: &Secrets) -> Result<Built, Unbuilt> {
        let hidden = Arc::new(Hidden::default());
        let login = self.login(target, &hidden, Purpose::Launch);
        let mut environment = self.nothing(target);
        let real = target.real().await;
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
                upto: self.steps.len(),
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
            let taken = match (taken, provided.is_over) {
                (Some(taken), _) => taken,
                (None, false) => taking.await,
                // It is over; what can be had soon is waited for, so that it is not in the message.
                (None, true) => tokio::time::timeout(AFTER_FAILURE, taking).await.unwrap_or_default(),
            };
            (taken, provided)
        };
        let finished = if provided.is_over {
            Ok(())
        } else {
            self.finish(target, &real, &taken, secrets, &login, scope.steps(), &mut environment)
        };
        self.conclude(provided, finished, taken, &login, environment)
    }

    /// Gives a stored environment again. No provider is run; named secrets are taken anew, and those that no file has are looked for
    /// in `remembered`, then in the login shell, where most of them came from.
    pub(crate) async fn restore(
        &self,
        target: &Target,
        stored: &Kept,
        remembered: &BTreeMap<String, Vec<u8>>,
        secrets: &Secrets,
    ) -> Result<Built, Unbuilt> {
        let hidden = Arc::new(Hidden::default());
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
                    tracing::warn!(agentd.session = %target.id, %error, "secrets cannot be had from the login shell");
                }
            }
        }
        // What the scopes gave is in the stored environment, as everything else that was given.
        let finished = self.finish(target, &real, &taken, secrets, &login, Vec::new(), &mut environment);
        self.conclude(Provided::default(), finished, taken, &login, environment)
    }

    /// What becomes of a build: what it has and what must be hidden of it; nothing that is said of it holds a secret.
    fn conclude(
        &self,
        provided: Provided,
        finished: Result<(), BuildError>,
        mut taken: Taken,
        login: &LoginOnce,
        mut environment: Environment,
    ) -> Result<Built, Unbuilt> {
        let hidden = &login.hidden;
        for given in &taken.given {
            hidden.value(&given.value);
        }
        for missing in &mut taken.missing {
            missing.reason = hidden.text(&missing.reason);
        }
        hidden.variables(&environment.variables());
        // A stored one may have secrets that do not look like any.
        for (_, value) in environment.secret_pairs() {
            hidden.value(value);
        }
        for value in environment.files().flat_map(|(_, _, content)| files::hidden(content)) {
            hidden.value(&value);
        }
        environment.scripts.iter_mut().for_each(|run| complaints::mask(run, |text| hidden.text(text)));
        let settled = self.settle(provided, hidden, login.purpose);
        match settled.and_then(|skipped| finished.map(|()| skipped)) {
            Ok(skipped) => Ok(Built {
                hidden: hidden.values().into_iter().map(ByteString::from).collect(),
                environment,
                secrets: taken.given.into_iter().map(|given| given.name).collect(),
                missing: taken.missing,
                skipped,
            }),
            Err(error) => Err(Unbuilt { reason: error.reason(), message: hidden.text(&chain(&error)) }),
        }
    }

    /// What every environment begins from.
    fn nothing(&self, target: &Target) -> Environment {
        Environment::with_files_in(target.files.clone()).with_own_steps(Arc::clone(&self.own))
    }

    fn login(&self, target: &Target, hidden: &Arc<Hidden>, purpose: Purpose) -> Arc<LoginOnce> {
        Arc::new(LoginOnce {
            capture: self.capture.counting(),
            chosen: Arc::clone(&target.chosen),
            hidden: Arc::clone(hidden),
            captured: OnceCell::new(),
            purpose,
        })
    }

    /// Calls the first so many providers, in order, until one fails that it cannot do without.
    async fn provide(&self, build: &Build<'_>, environment: &mut Environment) -> Provided {
        let mut provided = Provided::default();
        for (number, step) in (1..).zip(&self.steps[..build.upto]) {
            let result = self.step(build, step, number, environment).await;
            let can_do_without = step.plugin.is_skipped_on_failure() && !build.needed.contains(step.name.as_str());
            provided.is_over = result.is_err() && !can_do_without;
            provided.results.push(result);
            if provided.is_over {
                break;
            }
        }
        provided
    }

    async fn step(
        &self,
        build: &Build<'_>,
        step: &Use,
        number: u32,
        environment: &mut Environment,
    ) -> Result<(), BuildError> {
        let Build { target, real, trust, login, scope, .. } = *build;
        // A launch has tried it already; a renewal, which goes through no launch, tries it here.
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
            machine: OnMachine {
                machine: target.machine.clone(),
                places: real.places.clone(),
                patience: Patience::All,
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
            base: Base::new(environment),
            granted: if is_own { None } else { Some(plugin.clone()) },
            unapproved: Mutex::new(None),
            failed: Mutex::new(None),
        });
        let identity = if is_own && scope::has_identity(plugin) {
            identity::of(&target.command, environment.get("PATH"), &target.places.cwd).await
        } else {
            None
        };
        let settings = scope.settings(&self.steps, number as usize - 1, plugin, identity);
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
        let changes = plugin.provide(call).await.map_err(|source| {
            let (provider, failed) = (step.name.clone(), locked(&services.failed).take());
            match (locked(&services.unapproved).take(), failed) {
                (Some(refused), _) => BuildError::NotApproved(refused),
                (None, Some(reason)) => BuildError::Run { provider, reason, source },
                (None, None) => BuildError::Provider { provider, source },
            }
        })?;
        environment.scripts.append(&mut locked(&services.ran));
        environment
            .apply_at(&step.name, number, changes, Timestamp::now())
            .map_err(|source| BuildError::Change { provider: step.name.clone(), source })?;
        if let Some(snapshot) = login.captured.get() {
            let crippled = functions::crippled(&snapshot.variables, environment);
            let applied = environment.apply(OWN, number, crippled);
            applied.map_err(|source| BuildError::Change { provider: OWN.to_owned(), source })?;
        }
        Ok(())
    }

    /// Counts what the providers did, and says which of them it does without; or why it cannot go on.
    fn settle(&self, provided: Provided, hidden: &Hidden, purpose: Purpose) -> Result<Vec<String>, BuildError> {
        let Provided { mut results, is_over } = provided;
        let mut skipped = Vec::new();
        for (step, result) in self.steps.iter().zip(&results) {
            let message = result.as_ref().err().map(|error| hidden.text(&chain(error)));
            if let Some(outcome) = outcome(result.as_ref().err(), message.clone(), purpose) {
                step.plugin.record(outcome);
            }
            skipped.extend(message);
        }
        match results.pop() {
            Some(last) if is_over => last.map(|()| skipped),
            _ => Ok(skipped),
        }
    }

    /// Makes ready for the next build, beside whatever comes now.
    fn prepare(&self) {
        let plugins = self.steps.iter().filter_map(|step| Some((step.plugin.loaded()?.clone(), step.plugin.limits())));
        let plugins: Vec<(Plugin, Limits)> = plugins.collect();
        tokio::spawn(async move {
            for (plugin, limits) in plugins {
                plugin.prepare(limits).await;
            }
        });
    }

    /// The scripts that the pipeline would source for a session in the directory, and only if they are approved.
    pub(crate) async fn directory_scripts(&self, directory: &Path) -> Vec<ScriptPlace> {
        let (scripts, directory, home) = (self.scripts(), directory.to_owned(), self.home.clone());
        let places =
            move || scripts.iter().flat_map(|script| services::foreign(script, &directory, home.as_deref())).collect();
        tokio::task::spawn_blocking(places).await.unwrap_or_default()
    }

    /// What looks wrong in the scripts that a session would run; `ran` has those of its last launch.
    pub(crate) async fn look_at_scripts(
        &self,
        places: &Placeholders,
        trust: &Arc<Trust>,
        ran: Option<&Digests>,
    ) -> Scripts {
        let looked_for = (&self.scripts()[..], places, self.home.as_deref());
        validate::scripts(looked_for, trust, ran, (&self.syntax, &self.capture)).await
    }

    /// The scripts that `env-script` looks for, as they are configured. Of other providers nobody knows before they ask.
    fn scripts(&self) -> Vec<String> {
        let steps = self.steps.iter().filter(|step| step.plugin.name == config::ENV_SCRIPT);
        steps.flat_map(|step| scripts::configured(&step.settings)).collect()
    }
}

/// What a call was to its plugin; nothing of one that was not made.
fn outcome(error: Option<&BuildError>, message: Option<String>, purpose: Purpose) -> Option<Outcome> {
    if matches!(error, Some(BuildError::NotCalled { .. })) {
        return None;
    }
    let broke = match error {
        Some(BuildError::Provider { source, .. }) => Broke::of(source),
        _ => None,
    };
    Some(match (purpose, message, broke) {
        (Purpose::Renewal, message, _) => Outcome::Renewed(message),
        (Purpose::Launch, None, _) => Outcome::Well,
        (Purpose::Launch, Some(message), Some(broke)) => Outcome::Broke(broke, message),
        (Purpose::Launch, Some(message), None) => Outcome::Reported(message),
    })
}
