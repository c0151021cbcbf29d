//! Builds a session's environment: calls the providers in their configured order, and then applies agentd's own steps.
//!
//! `build` runs the steps of a launch, and `services` answers a provider that asks for a shell, a script or a secret.
//! `finish` applies agentd's own steps: the scopes' variables, the named secrets and agentd's variables.

mod ahead;
mod build;
pub(crate) mod files;
pub(crate) mod finish;
pub(crate) mod identity;
mod left_out;
mod ran;
mod scope;
mod services;
mod target;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentd_api::ByteString;
use agentd_api::facts::ScriptDigests;
use agentd_api::reason;
use agentd_catalogue::KnownAgent;
use agentd_config::{self as config, Children, Config, Functions};
use agentd_metrics::Metrics;
use agentd_plugin_host::CallError;
use agentd_plugin_set::{PipelineStep, Unusable};
use async_recursion::async_recursion as boxed;

use crate::login::capture::Capture;
use crate::merge::{Environment, InvalidChange};
use crate::script::directories::{self, ScriptDirectories};
use crate::script::results::Results;
use crate::script::scripts;
use crate::script::trust::Trust;
use crate::script::upward::ScriptPlace;
use crate::script::validate::{self, Digests, Scripts};
use crate::secrets::MissingSecret;
pub(crate) use build::{Build, Purpose};
use finish::own_steps;
pub use scope::{InScope, Scopes};
pub use target::Target;

/// Variable in every agent's environment that holds the session's id. The agent's own tools read their session from
/// this variable.
pub const SESSION_VARIABLE: &str = agentd_keeper::protocol::SESSION_VARIABLE;
/// Variable of a guarded session that holds the path of the session's own control socket.
pub const SOCKET_VARIABLE: &str = "AGENTD_SOCKET";
/// Name of agentd's own step.
pub(crate) const OWN: &str = "agentd";

/// The environment providers, in the configured order.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) steps: Vec<PipelineStep>,
    capture: Capture,
    /// Checks the syntax of scripts, which are files of this machine.
    checker: Capture,
    children: Children,
    functions: Functions,
    results: Arc<Results>,
    /// Home directory of the user.
    home: Option<PathBuf>,
    /// Names of agentd's own steps.
    own: Arc<BTreeSet<String>>,
    /// Time limit for the host's own work, such as the login shell.
    pub(crate) time: Duration,
    syntax: validate::Syntax,
    metrics: Arc<Metrics>,
}

/// Reason why an environment could not be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error("environment provider {provider:?}")]
    NotCalled { provider: String, source: Unusable },
    #[error("environment provider {provider:?}")]
    Provider { provider: String, source: CallError },
    /// The host could not run what the provider requested.
    #[error("environment provider {provider:?}")]
    Run { provider: String, reason: &'static str, source: CallError },
    #[error("{0}")]
    NotApproved(String),
    #[error("environment provider {provider:?} returned a change that no environment can hold")]
    Change { provider: String, source: InvalidChange },
    #[error("{0}; see `agentctl secret check`, and set required = false to start sessions without it")]
    Secret(MissingSecret),
    #[error("environment provider {provider:?} names the secret {name:?}, {why}; `agentctl secret ls` lists them")]
    NoSuchSecret { provider: String, name: String, why: &'static str },
}

/// A built environment and the facts that belong to it.
#[derive(Debug)]
pub struct BuiltEnvironment {
    pub environment: Environment,
    /// Values to hide in the agent's output: the environment's secrets, and secrets that were seen during the build
    /// and dropped. A login shell that the agent starts would set the dropped secrets again.
    pub hidden: Vec<ByteString>,
    /// Names of the configured secrets that the environment holds.
    pub secrets: Vec<String>,
    /// Variables that have the configured secrets.
    pub secret_variables: Vec<String>,
    /// The known agent of the session.
    pub known: Option<&'static KnownAgent>,
    /// Optional secrets that could not be read.
    pub missing: Vec<MissingSecret>,
    /// Error messages of the providers that failed and that every launch skips.
    pub skipped: Vec<String>,
    /// Whether a degraded launch left out the environment of the login shell or of the terminal.
    pub is_without_snapshot: bool,
}

/// Reason why there is no environment. The text holds no secret that agentd knows.
#[derive(Debug)]
pub struct BuildFailure {
    /// CamelCase reason for the condition.
    pub reason: &'static str,
    pub message: String,
}

impl BuildError {
    fn reason(&self) -> &'static str {
        match self {
            Self::NotCalled { source, .. } => source.reason(),
            Self::Provider { source: CallError::Outside { .. }, .. } => reason::PROVIDER_NOT_GRANTED,
            Self::Provider { .. } => reason::PROVIDER_FAILED,
            Self::Run { reason, .. } => reason,
            Self::NotApproved(_) => reason::SCRIPT_NOT_APPROVED,
            Self::Change { .. } => reason::PROVIDER_ANSWER_INVALID,
            Self::Secret(_) | Self::NoSuchSecret { .. } => reason::SECRET_UNAVAILABLE,
        }
    }
}

impl Pipeline {
    /// Creates a pipeline. `capture` runs login shells and scripts, and `checker` checks scripts on this machine.
    pub fn new(
        config: &Config,
        steps: Vec<PipelineStep>,
        (capture, checker): (Capture, &Capture),
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            metrics,
            own: Arc::new(own_steps(&steps)),
            steps,
            checker: checker.clone(),
            capture,
            children: config.environment.children,
            functions: config.environment.functions,
            syntax: validate::Syntax::default(),
            results: Arc::default(),
            home: config.environment.home.clone().or_else(std::env::home_dir),
            // The host may run several scripts, and each may take the whole deadline.
            time: config.environment.deadline.0.saturating_mul(4),
        }
    }

    /// Returns the pipeline of a place, which may start programs only after this time.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { time: self.time.saturating_add(patience), ..self }
    }

    /// Returns the scripts in or above `directory` that the pipeline would source only after approval.
    #[boxed]
    pub async fn directory_scripts(&self, directory: &Path) -> Vec<ScriptPlace> {
        let (scripts, directory, home) = (self.scripts(), directory.to_owned(), self.home.clone());
        let places = move || {
            scripts.iter().flat_map(|script| directories::foreign(script, &directory, home.as_deref())).collect()
        };
        agentd_host::work::blocking(places).await.unwrap_or_default()
    }

    /// Reports problems in the scripts that a session would run. `ran` holds the digests of the scripts of its last
    /// launch.
    #[boxed]
    pub async fn look_at_scripts(
        &self,
        places: &ScriptDirectories,
        trust: &Arc<Trust>,
        ran: Option<&Digests>,
    ) -> Scripts {
        let looked_for = (&self.scripts()[..], places, self.home.as_deref());
        validate::scripts(looked_for, trust, ran, (&self.syntax, &self.checker)).await
    }

    /// Returns the digests of the scripts that exist, approved or not. Neither a plugin nor a program is run.
    #[boxed]
    pub async fn script_digests(&self, places: &ScriptDirectories, trust: &Arc<Trust>) -> ScriptDigests {
        let (names, places, home, trust) = (self.scripts(), places.clone(), self.home.clone(), Arc::clone(trust));
        let read = move || {
            let script = |name: &String| {
                let (place, _) = places.locate(name, home.as_deref())?;
                let script = trust.examine(&place.script).ok()??;
                Some((script.named.to_string_lossy().into_owned(), script.digest))
            };
            names.iter().filter_map(script).collect()
        };
        agentd_host::work::blocking(read).await.unwrap_or_default()
    }

    /// Drops the kept results of scripts.
    pub fn forget_results(&self) {
        self.results.forget();
    }

    /// Returns the configured scripts of `env-script`. Scripts of other providers are unknown until they request
    /// them.
    fn scripts(&self) -> Vec<String> {
        let steps = self.steps.iter().filter(|step| step.plugin.name == config::ENV_SCRIPT);
        steps.flat_map(|step| scripts::configured(&step.settings)).collect()
    }
}
