//! Implements the last steps of an environment, which are agentd's own: variables of scopes, named secrets, and
//! agentd's variables.

use std::collections::BTreeSet;
use std::path::PathBuf;

use agentd_api::ByteString;
use agentd_api::contract::VARIABLES;
use agentd_api::degraded::{MissingKind, MissingPart};
use agentd_plugin_host::Change;

use super::services::SharedLogin;
use super::{BuildError, OWN, Pipeline, SESSION_VARIABLE, SOCKET_VARIABLE, Target};
use crate::login::capture::Capture;
use crate::merge::functions;
use crate::merge::{Background, CONVERSATION, Environment};
use crate::script::directories::ResolvedPlaces;
use crate::secrets::{self, SecretResults, SecretValue, Secrets};
use agentd_config::Children;
use agentd_plugin_set::PipelineStep;

/// Reason why a variable that was not set at the beginning of a conversation is unset.
const HELD: &str = "was not set when the conversation began, and names where the agent keeps it";

impl Pipeline {
    /// Applies agentd's own steps after the configured steps: the variables of scopes, the named secrets, and
    /// agentd's variables. They take precedence over the values that a provider set.
    #[expect(clippy::too_many_arguments, reason = "each is a part of one launch")]
    pub(super) fn finish(
        &self,
        target: &Target,
        real: &ResolvedPlaces,
        taken: &SecretResults,
        secrets: &Secrets,
        login: &SharedLogin,
        given: Vec<(String, Vec<Change>)>,
        environment: &mut Environment,
    ) -> Result<(), BuildError> {
        environment.background = self.background(&login.capture);
        // A restored environment keeps the attributes of its first launch, even if the login shell runs again.
        if environment.attributes.is_none() {
            environment.attributes = login.attributes();
        }
        fill(target, real, taken, secrets, environment)?;
        let named = |given: &SecretValue| {
            Change::set(&given.variable, given.value.as_slice()).from_file(Some(given.origin.clone()))
        };
        let named = taken.given.iter().map(named).collect();
        let mut own = functions::withheld(self.functions, environment);
        own.push(Change::set(SESSION_VARIABLE, target.id.as_str()));
        let path = |name, path: &PathBuf| Change::set(name, path.as_os_str().as_encoded_bytes());
        own.extend(target.socket.as_ref().map(|socket| path(SOCKET_VARIABLE, socket)));
        own.extend(target.contract.iter().map(|(name, value)| Change::set(*name, value.as_bytes())));
        // A restored environment can have what was true at an earlier launch only.
        let is_set = |name: &str| own.iter().any(|change| change.name() == name);
        let over = VARIABLES.iter().map(|variable| variable.name);
        let over: Vec<Change> = over
            .filter(|name| !is_set(name) && environment.get(name).is_some())
            .map(|name| Change::unset(name, None))
            .collect();
        own.extend(over);
        let last = [(secrets::STEP.to_owned(), named), (OWN.to_owned(), own)];
        let conversation = self.steps.len() + given.len() + last.len() + 1;
        for (number, (name, changes)) in (self.steps.len() + 1..).zip(given.into_iter().chain(last)) {
            environment
                .apply(&name, u32::try_from(number).unwrap_or(u32::MAX), changes)
                .map_err(|source| BuildError::Change { provider: name, source })?;
        }
        hold(target, conversation, environment)
    }

    fn background(&self, capture: &Capture) -> Background {
        let processes = capture.background();
        match self.children {
            Children::Kill => Background { killed: processes, left: 0 },
            Children::Leave => Background { killed: 0, left: processes },
        }
    }
}

/// Gives the pinned variables their values.
fn hold(target: &Target, number: usize, environment: &mut Environment) -> Result<(), BuildError> {
    let pinned = target.pinned.iter().map(|(name, value)| (name, value.as_ref().map(ByteString::as_bytes)));
    let differing = pinned.filter(|(name, value)| environment.get(name) != *value);
    let changes = differing.map(|(name, value)| match value {
        Some(value) => Change::set(name, value),
        None => Change::unset(name, Some(HELD.to_owned())),
    });
    let changes = changes.collect();
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    environment
        .apply(CONVERSATION, number, changes)
        .map_err(|source| BuildError::Change { provider: CONVERSATION.to_owned(), source })
}

/// Sets the values of the configured secrets that providers named. A missing secret is an error, or is left out of a
/// degraded launch.
pub(crate) fn fill(
    target: &Target,
    real: &ResolvedPlaces,
    taken: &SecretResults,
    secrets: &Secrets,
    environment: &mut Environment,
) -> Result<(), BuildError> {
    let lacking = taken.missing.iter().filter(|missing| missing.required);
    let lacking = lacking.map(|missing| (missing.name.clone(), BuildError::Secret(missing.clone())));
    let refused = environment.named_secrets().filter_map(|(name, provider)| {
        let why = secrets.refusal(name, &target.agent, real.directory.as_deref())?;
        Some((name.to_owned(), BuildError::NoSuchSecret { provider: provider.to_owned(), name: name.to_owned(), why }))
    });
    let mut obstacles: Vec<(String, BuildError)> = lacking.chain(refused).collect();
    if !target.is_degraded && !obstacles.is_empty() {
        return Err(obstacles.swap_remove(0).1);
    }
    environment.without.extend(obstacles.into_iter().map(|(name, error)| MissingPart {
        kind: MissingKind::Secret,
        name,
        message: error.to_string(),
    }));
    environment.fill(|name| taken.given.iter().find(|given| given.name == name).map(|given| given.value.as_slice()));
    Ok(())
}

/// Returns the names of agentd's own steps. A name that a plugin also has is excluded.
pub(super) fn own_steps(steps: &[PipelineStep]) -> BTreeSet<String> {
    let named = |own: bool| steps.iter().filter(move |step| step.plugin.is_built_in() == own).map(|step| &step.name);
    let plugins: BTreeSet<&String> = named(false).collect();
    let own = named(true).cloned().chain([secrets::STEP.to_owned(), OWN.to_owned()]);
    own.filter(|name| !plugins.contains(name)).collect()
}
