//! A session's environment: an ordered pipeline of providers, each a plugin in its box, that starts from nothing.
//!
//! What a provider may not do itself (run a shell, read a script) is done here for it, under its grant. The order of the
//! pipeline is the configuration's; the last words are agentd's own: the named secrets, and one variable.

mod capture;
mod drift;
mod files;
mod functions;
mod merge;
mod refresh;
mod renewal;
mod results;
mod secret;
mod secrets;
mod seed;
mod services;
mod shell;
mod snapshot;
mod store;
mod trust;
mod validate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentd_api::environment::EnvironmentView;
use agentd_api::{ByteString, SessionId};
use agentd_plugins::{
    Call, CallError, Change, Grant, Host, HostError, HostOptions, LoadError, Plugin, SessionFacts, Setting, Source,
};
use jiff::Timestamp;
use tokio::sync::OnceCell;

pub(crate) use capture::Capture;
pub(crate) use drift::{describe, drift};
pub(crate) use files::{SessionFile, provide as provide_files, remove as remove_files, write as write_files};
pub(crate) use merge::{Background, Environment, hex, without_secrets};
pub(crate) use renewal::{Renewal, not_to_be_given_again};
pub(crate) use secrets::{
    Declared as DeclaredSecret, Missing as MissingSecret, Secrets, assigned as assigned_secrets,
    named as named_secrets, redacted as redacted_script,
};
pub(crate) use services::{Placeholders, chain};
pub(crate) use snapshot::{
    Chosen, Finding, Options as SnapshotOptions, SnapshotError, Snapshots, TerminalError, Wanted,
};
pub(crate) use store::{EnvironmentError, Environments, Kept, VERSIONS as ENVIRONMENT_VERSIONS};
pub(crate) use trust::{Script, Trust, TrustError, VERSIONS as TRUST_VERSIONS, sourced};
pub(crate) use validate::{Digests, Scripts, variables as warnings_of};

use crate::capability::Machine;
use crate::config::{self, Children, Config, Functions};
use merge::InvalidChange;
use results::Results;
use secrets::{Given, Hidden, Taken};
use services::{CallServices, LoginOnce, locked};

/// Set in every agent's environment: the session's id. It tells an agent's own tools which session they are in.
pub(crate) const SESSION_VARIABLE: &str = "AGENTD_SESSION";
/// The name agentd's own step goes by.
const OWN: &str = "agentd";
/// How long secrets are waited for when it is known that there will be no environment.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The providers, loaded and linked, in order.
#[derive(Debug)]
pub(crate) struct Pipeline {
    steps: Vec<Step>,
    capture: Capture,
    children: Children,
    functions: Functions,
    results: Arc<Results>,
    limits: agentd_plugins::Limits,
    syntax: validate::Syntax,
}

#[derive(Debug)]
struct Step {
    name: String,
    plugin: Plugin,
    settings: Vec<Setting>,
}

/// Why the pipeline cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PipelineError {
    #[error("the plugin host could not be started")]
    Host(#[source] HostError),
    #[error("environment provider {provider:?} could not be loaded")]
    Load { provider: String, source: Box<LoadError> },
    #[error("there is no built-in plugin {plugin:?}; there are {known}")]
    NoBuiltIn { plugin: String, known: String },
    #[error("environment provider {provider:?}: sha256 is not 64 hexadecimal digits")]
    Pin { provider: String },
    #[error(
        "environment provider {provider:?}: the setting {key:?} is neither a scalar, nor a list of scalars, nor a table of such"
    )]
    Setting { provider: String, key: String },
}

/// Why an environment could not be built.
#[derive(Debug, thiserror::Error)]
enum BuildError {
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
    pub(crate) launch: u64,
    pub(crate) places: Placeholders,
    /// Where its files are.
    pub(crate) files: PathBuf,
    /// What it begins with.
    pub(crate) chosen: Arc<Chosen>,
    pub(crate) machine: Machine,
    pub(crate) secrets: Arc<Secrets>,
}

impl Pipeline {
    /// Loads and links every provider, compiling what is not in the cache.
    pub(crate) async fn load(
        config: &Config,
        cache: PathBuf,
        compiler: PathBuf,
        capture: Capture,
    ) -> Result<Self, PipelineError> {
        let host = Host::new(HostOptions::new(cache, compiler)).map_err(PipelineError::Host)?;
        let mut steps = Vec::new();
        for provider in &config.environment.providers {
            steps.push(load_step(&host, provider).await?);
        }
        let time = config.environment.deadline.0;
        Ok(Self {
            steps,
            capture,
            children: config.environment.children,
            functions: config.environment.functions,
            syntax: validate::Syntax::default(),
            results: Arc::default(),
            limits: agentd_plugins::Limits {
                // Several scripts may each take the whole deadline; the plugin itself needs next to nothing.
                time: time.saturating_mul(4),
                memory: config.limits.plugin_memory,
                ..agentd_plugins::Limits::default()
            },
        })
    }

    /// Builds an environment from nothing.
    pub(crate) async fn build(&self, target: &Target, trust: &Arc<Trust>, secrets: &Secrets) -> Result<Built, Unbuilt> {
        let built = self.run(target, trust, secrets).await;
        self.prepare();
        built
    }

    /// Calls the providers in order, with the named secrets taken meanwhile.
    async fn run(&self, target: &Target, trust: &Arc<Trust>, secrets: &Secrets) -> Result<Built, Unbuilt> {
        let hidden = Arc::new(Hidden::default());
        let login = self.login(target, &hidden);
        let mut environment = Environment::with_files_in(target.files.clone());
        let (taken, provided) = {
            let of_login = login.variables(Instant::now() + self.limits.time);
            let mut taking = pin!(secrets.take(&target.agent, &target.places.cwd, of_login));
            let mut providing = pin!(self.provide(target, trust, &login, self.steps.len(), &mut environment));
            let mut taken = None;
            let provided = loop {
                tokio::select! {
                    provided = &mut providing => break provided,
                    now = &mut taking, if taken.is_none() => taken = Some(now),
                }
            };
            let taken = match (taken, &provided) {
                (Some(taken), _) => taken,
                (None, Ok(())) => taking.await,
                // It is over; what can be had soon is waited for, so that it is not in the message.
                (None, Err(_)) => tokio::time::timeout(AFTER_FAILURE, taking).await.unwrap_or_default(),
            };
            (taken, provided)
        };
        let finished = provided.and_then(|()| self.finish(target, &taken, secrets, &login, &mut environment));
        conclude(finished, taken, &login, environment)
    }

    /// Gives a stored environment again. No provider is run; named secrets are taken anew, and those that no file has are looked for
    /// in `remembered`, then in the login shell, where most of them came from.
    pub(crate) async fn restore(
        &self,
        target: &Target,
        stored: &EnvironmentView,
        remembered: &BTreeMap<String, Vec<u8>>,
        secrets: &Secrets,
    ) -> Result<Built, Unbuilt> {
        let hidden = Arc::new(Hidden::default());
        let login = self.login(target, &hidden);
        let mut environment = Environment::from_view(stored);
        environment.restore(remembered);
        let deadline = Instant::now() + self.limits.time;
        let taken = secrets.take(&target.agent, &target.places.cwd, login.variables(deadline)).await;
        let named = |name: &str| taken.given.iter().any(|given| given.variable == name);
        if environment.missing().any(|name| !named(name)) {
            match login.variables(deadline).await {
                Ok(variables) => environment.restore_from_login(variables),
                Err(error) => {
                    tracing::warn!(agentd.session = %target.id, %error, "secrets cannot be had from the login shell");
                }
            }
        }
        let finished = self.finish(target, &taken, secrets, &login, &mut environment);
        conclude(finished, taken, &login, environment)
    }

    fn login(&self, target: &Target, hidden: &Arc<Hidden>) -> Arc<LoginOnce> {
        Arc::new(LoginOnce {
            capture: self.capture.counting(),
            chosen: Arc::clone(&target.chosen),
            hidden: Arc::clone(hidden),
            captured: OnceCell::new(),
        })
    }

    /// Calls the first so many providers, in order.
    async fn provide(
        &self,
        target: &Target,
        trust: &Arc<Trust>,
        login: &Arc<LoginOnce>,
        upto: usize,
        environment: &mut Environment,
    ) -> Result<(), BuildError> {
        let places = target.places.canonical().await;
        for (number, step) in (1..).zip(&self.steps[..upto]) {
            let services = Arc::new(CallServices {
                plugin: step.name.clone(),
                session: target.id.to_string(),
                agent: target.agent.clone(),
                machine: target.machine.clone(),
                secrets: Arc::clone(&target.secrets),
                capture: login.capture.clone(),
                login: Arc::clone(login),
                hidden: Arc::clone(&login.hidden),
                functions: self.functions,
                results: Arc::clone(&self.results),
                places: target.places.clone(),
                real: places.clone(),
                trust: Arc::clone(trust),
                unapproved: Mutex::new(None),
                failed: Mutex::new(None),
            });
            let call = Call {
                session: Some(SessionFacts {
                    id: target.id.to_string(),
                    name: target.name.clone(),
                    agent: target.agent.clone(),
                    directory: target.places.cwd.display().to_string(),
                    launch: target.launch,
                }),
                environment: environment.variables(),
                settings: step.settings.clone(),
                places: places.clone(),
                services: Arc::<CallServices>::clone(&services),
                limits: self.limits,
            };
            let changes = step.plugin.provide(call).await.map_err(|source| {
                let (provider, failed) = (step.name.clone(), locked(&services.failed).take());
                match (locked(&services.unapproved).take(), failed) {
                    (Some(refused), _) => BuildError::NotApproved(refused),
                    (None, Some(reason)) => BuildError::Run { provider, reason, source },
                    (None, None) => BuildError::Provider { provider, source },
                }
            })?;
            environment
                .apply_at(&step.name, number, changes, Timestamp::now())
                .map_err(|source| BuildError::Change { provider: step.name.clone(), source })?;
            if let Some(snapshot) = login.captured.get() {
                let crippled = functions::crippled(&snapshot.variables, environment);
                let applied = environment.apply(OWN, number, crippled);
                applied.map_err(|source| BuildError::Change { provider: OWN.to_owned(), source })?;
            }
        }
        Ok(())
    }

    /// agentd's own steps, behind those of the configuration: whatever a provider set, the named secret is what the agent gets.
    fn finish(
        &self,
        target: &Target,
        taken: &Taken,
        secrets: &Secrets,
        login: &LoginOnce,
        environment: &mut Environment,
    ) -> Result<(), BuildError> {
        environment.background = self.background(&login.capture);
        fill(target, taken, secrets, environment)?;
        let named =
            |given: &Given| Change::set(&given.variable, given.value.as_slice()).from_file(Some(given.origin.clone()));
        let named = taken.given.iter().map(named).collect();
        let mut own = functions::withheld(self.functions, environment);
        own.push(Change::set(SESSION_VARIABLE, target.id.as_str()));
        let steps = [(secrets::STEP, named), (OWN, own)];
        for (number, (name, changes)) in (self.steps.len() + 1..).zip(steps) {
            environment
                .apply(name, u32::try_from(number).unwrap_or(u32::MAX), changes)
                .map_err(|source| BuildError::Change { provider: name.to_owned(), source })?;
        }
        Ok(())
    }

    fn background(&self, capture: &Capture) -> Background {
        let processes = capture.background();
        match self.children {
            Children::Kill => Background { killed: processes, left: 0 },
            Children::Leave => Background { killed: 0, left: processes },
        }
    }

    /// Makes ready for the next build, beside whatever comes now.
    fn prepare(&self) {
        let plugins: Vec<Plugin> = self.steps.iter().map(|step| step.plugin.clone()).collect();
        let limits = self.limits;
        tokio::spawn(async move {
            for plugin in plugins {
                plugin.prepare(limits).await;
            }
        });
    }

    /// The scripts that the pipeline would source for a session in the directory, and only if they are approved.
    pub(crate) fn directory_scripts(&self, directory: &Path) -> Vec<PathBuf> {
        self.scripts().iter().filter_map(|script| services::foreign(script, directory)).collect()
    }

    /// What looks wrong in the scripts that a session would run; `ran` has those of its last launch.
    pub(crate) async fn look_at_scripts(
        &self,
        places: &Placeholders,
        trust: &Arc<Trust>,
        ran: Option<&Digests>,
    ) -> Scripts {
        validate::scripts(&self.scripts(), places, trust, ran, (&self.syntax, &self.capture)).await
    }

    /// The scripts that `env-script` looks for, as they are configured. Of other providers nobody knows before they ask.
    fn scripts(&self) -> Vec<String> {
        let steps = self.steps.iter().filter(|step| step.plugin.description().name == config::ENV_SCRIPT);
        steps.flat_map(|step| configured_scripts(&step.settings)).collect()
    }
}

/// Gives what providers named as a secret of the configuration its value.
fn fill(target: &Target, taken: &Taken, secrets: &Secrets, environment: &mut Environment) -> Result<(), BuildError> {
    if let Some(missing) = taken.missing.iter().find(|missing| missing.required) {
        return Err(BuildError::Secret(missing.clone()));
    }
    for (name, provider) in environment.named_secrets() {
        if let Some(why) = secrets.refusal(name, &target.agent, &target.places.cwd) {
            return Err(BuildError::NoSuchSecret { provider: provider.to_owned(), name: name.to_owned(), why });
        }
    }
    environment.fill(|name| taken.given.iter().find(|given| given.name == name).map(|given| given.value.as_slice()));
    Ok(())
}

/// What becomes of a build: what it has and what must be hidden of it; nothing that is said of it holds a secret.
fn conclude(
    finished: Result<(), BuildError>,
    mut taken: Taken,
    login: &LoginOnce,
    environment: Environment,
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
    match finished {
        Ok(()) => Ok(Built {
            hidden: hidden.values().into_iter().map(ByteString::from).collect(),
            environment,
            secrets: taken.given.into_iter().map(|given| given.name).collect(),
            missing: taken.missing,
        }),
        Err(error) => Err(Unbuilt { reason: error.reason(), message: hidden.text(&chain(&error)) }),
    }
}

/// As the plugin takes its settings: `scripts` names every script, `directory_names` those of the directory.
fn configured_scripts(settings: &[Setting]) -> Vec<String> {
    let set = |key: &str| settings.iter().find(|setting| setting.key == key).map(|setting| &setting.values);
    let [global, directory, session] = config::SCRIPTS.map(str::to_owned);
    match (set("scripts"), set("directory_names")) {
        (Some(scripts), _) => scripts.clone(),
        (None, Some(names)) => {
            let names = names.iter().map(|name| format!("{{cwd}}/{name}"));
            std::iter::once(global).chain(names).chain([session]).collect()
        }
        (None, None) => vec![global, directory, session],
    }
}

async fn load_step(host: &Host, provider: &config::Provider) -> Result<Step, PipelineError> {
    let shown = provider.name.clone().unwrap_or_else(|| provider.plugin.clone());
    let (source, granted) = if provider.plugin.contains('/') {
        let pin = provider.sha256.as_deref().map(parse_pin).transpose();
        let sha256 = pin.map_err(|()| PipelineError::Pin { provider: shown.clone() })?;
        (Source::File { path: PathBuf::from(&provider.plugin), sha256 }, Grant::default())
    } else {
        let builtin =
            agentd_plugins::builtin().iter().find(|builtin| builtin.name == provider.plugin).ok_or_else(|| {
                let known: Vec<&str> = agentd_plugins::builtin().iter().map(|builtin| builtin.name).collect();
                PipelineError::NoBuiltIn { plugin: provider.plugin.clone(), known: known.join(", ") }
            })?;
        (Source::BuiltIn { name: builtin.name, bytes: builtin.bytes }, builtin.grant())
    };
    let grant = provider.grant.clone().unwrap_or(granted);
    let plugin = host
        .load(source, &grant)
        .await
        .map_err(|source| PipelineError::Load { provider: shown.clone(), source: Box::new(source) })?;
    let mut settings = Vec::new();
    flatten(&shown, "", &provider.settings, &mut settings)?;
    let name = provider.name.clone().unwrap_or_else(|| plugin.description().name.clone());
    Ok(Step { name, plugin, settings })
}

fn parse_pin(text: &str) -> Result<[u8; 32], ()> {
    let mut pin = [0_u8; 32];
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(());
    }
    for (n, byte) in pin.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).map_err(|_| ())?;
    }
    Ok(pin)
}

/// A TOML table as the flat list that plugins get: nested keys joined by dots, a scalar as a list of one.
fn flatten(provider: &str, prefix: &str, table: &toml::Table, into: &mut Vec<Setting>) -> Result<(), PipelineError> {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let wrong = || PipelineError::Setting { provider: provider.to_owned(), key: key.clone() };
        match value {
            toml::Value::Table(inner) => flatten(provider, &key, inner, into)?,
            toml::Value::Array(items) => {
                let values = items.iter().map(|item| scalar(item).ok_or_else(wrong)).collect::<Result<_, _>>()?;
                into.push(Setting { key, values });
            }
            other => {
                let value = scalar(other).ok_or_else(wrong)?;
                into.push(Setting { key, values: vec![value] });
            }
        }
    }
    Ok(())
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) | toml::Value::Datetime(_) => {
            Some(value.to_string())
        }
        toml::Value::Array(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_flattened_as_the_interface_says() {
        let table: toml::Table =
            toml::from_str("a = 1\nb = [\"x\", \"y\"]\n[servers.main]\nhost = \"h\"\non = true").unwrap();
        let mut settings = Vec::new();
        flatten("p", "", &table, &mut settings).unwrap();
        let flat: Vec<String> = settings.iter().map(|s| format!("{}={}", s.key, s.values.join("|"))).collect();
        assert_eq!(flat, ["a=1", "b=x|y", "servers.main.host=h", "servers.main.on=true"]);
        let nested: toml::Table = toml::from_str("a = [[1]]").unwrap();
        assert!(matches!(flatten("p", "", &nested, &mut Vec::new()), Err(PipelineError::Setting { .. })));
    }

    #[test]
    fn scripts_are_looked_for_where_the_plugin_looks_for_them() {
        let scripts = |settings: &str| {
            let mut flat = Vec::new();
            flatten("p", "", &toml::from_str(settings).unwrap(), &mut flat).unwrap();
            configured_scripts(&flat)
        };
        assert_eq!(scripts(""), config::SCRIPTS);
        assert_eq!(scripts("scripts = [\"/x\"]"), ["/x"]);
        let named = ["{config}/env-setup.sh", "{cwd}/.a.sh", "{cwd}/.b.sh", "{session}/env-setup.sh"];
        assert_eq!(scripts("directory_names = [\".a.sh\", \".b.sh\"]"), named);
    }

    #[test]
    fn a_pin_is_64_hexadecimal_digits() {
        assert_eq!(parse_pin(&"0f".repeat(32)), Ok([15; 32]));
        for bad in ["", "0f", &"zz".repeat(32), &"0f".repeat(33), &"é".repeat(32)] {
            assert!(parse_pin(bad).is_err(), "{bad}");
        }
    }
}
