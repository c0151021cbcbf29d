//! The last steps of an environment, which are agentd's own: what scopes give, the named secrets, and agentd's variables.

use std::collections::BTreeSet;

use agentd_plugins::Change;

use super::merge::{Background, Environment};
use super::secrets::{self, Given, Secrets, Taken};
use super::services::{LoginOnce, Real};
use super::{BuildError, Capture, OWN, Pipeline, SESSION_VARIABLE, SOCKET_VARIABLE, Target, functions};
use crate::config::Children;
use crate::plugins::Use;

impl Pipeline {
    /// agentd's own steps, behind those of the configuration: the variables that scopes give, the named secrets, and agentd's variables.
    /// Whatever a provider set, these are what the agent gets.
    #[expect(clippy::too_many_arguments, reason = "each is a part of one launch")]
    pub(super) fn finish(
        &self,
        target: &Target,
        real: &Real,
        taken: &Taken,
        secrets: &Secrets,
        login: &LoginOnce,
        given: Vec<(String, Vec<Change>)>,
        environment: &mut Environment,
    ) -> Result<(), BuildError> {
        environment.background = self.background(&login.capture);
        // One that is given again has those of its first launch, whatever the login shell is asked for besides.
        if environment.attributes.is_none() {
            environment.attributes = login.attributes();
        }
        fill(target, real, taken, secrets, environment)?;
        let named =
            |given: &Given| Change::set(&given.variable, given.value.as_slice()).from_file(Some(given.origin.clone()));
        let named = taken.given.iter().map(named).collect();
        let mut own = functions::withheld(self.functions, environment);
        own.push(Change::set(SESSION_VARIABLE, target.id.as_str()));
        own.extend(
            target.socket.as_ref().map(|socket| Change::set(SOCKET_VARIABLE, socket.as_os_str().as_encoded_bytes())),
        );
        let last = [(secrets::STEP.to_owned(), named), (OWN.to_owned(), own)];
        for (number, (name, changes)) in (self.steps.len() + 1..).zip(given.into_iter().chain(last)) {
            environment
                .apply(&name, u32::try_from(number).unwrap_or(u32::MAX), changes)
                .map_err(|source| BuildError::Change { provider: name, source })?;
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
}

/// Gives what providers named as a secret of the configuration its value.
pub(super) fn fill(
    target: &Target,
    real: &Real,
    taken: &Taken,
    secrets: &Secrets,
    environment: &mut Environment,
) -> Result<(), BuildError> {
    if let Some(missing) = taken.missing.iter().find(|missing| missing.required) {
        return Err(BuildError::Secret(missing.clone()));
    }
    for (name, provider) in environment.named_secrets() {
        if let Some(why) = secrets.refusal(name, &target.agent, real.directory.as_deref()) {
            return Err(BuildError::NoSuchSecret { provider: provider.to_owned(), name: name.to_owned(), why });
        }
    }
    environment.fill(|name| taken.given.iter().find(|given| given.name == name).map(|given| given.value.as_slice()));
    Ok(())
}

/// The steps that are agentd's own. A name that a plugin goes by too is none.
pub(super) fn own_steps(steps: &[Use]) -> BTreeSet<String> {
    let named = |own: bool| steps.iter().filter(move |step| step.plugin.is_built_in() == own).map(|step| &step.name);
    let plugins: BTreeSet<&String> = named(false).collect();
    let own = named(true).cloned().chain([secrets::STEP.to_owned(), OWN.to_owned()]);
    own.filter(|name| !plugins.contains(name)).collect()
}
