//! Renews values of limited lifetime while the agent runs, by calling their providers again.
//!
//! A provider receives the environment of the steps before it. The providers therefore run from the first to the
//! last that gave an expiring value. Later providers and the final steps of a launch do not run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use agentd_api::ByteString;
use agentd_api::environment::EnvironmentView;
use agentd_api::reason;
use async_recursion::async_recursion as boxed;
use jiff::Timestamp;

use super::renewal::{Renewal, providers, renewal};
use crate::pipeline::files;
use crate::pipeline::finish::fill;
use crate::pipeline::{Build, BuildFailure, Pipeline, Purpose, Target};
use crate::script::trust::Trust;
use crate::secrets::{HiddenValues, SecretResults, Secrets};

impl Pipeline {
    /// Compares a running agent's environment with newly provided values. `remembered` holds the known secrets that
    /// the agent started with.
    #[boxed]
    pub async fn renew(
        &self,
        target: &Target,
        stored: &EnvironmentView,
        remembered: &BTreeMap<String, Vec<u8>>,
        trust: &Arc<Trust>,
        secrets: &Secrets,
    ) -> Result<Renewal, BuildFailure> {
        let asked = self.asked(stored)?;
        let login = self.login(target, &Arc::new(HiddenValues::default()), Purpose::Renewal);
        let mut environment = self.empty_environment(target);
        let real = target.real().await;
        let scope = target.in_scope(&real).await;
        // Expiring providers cannot be skipped: without their values, their variables would seem to be removed.
        let asking = Build {
            target,
            real: &real,
            trust,
            login: &login,
            scope: &scope,
            step_count: asked,
            needed: providers(stored),
        };
        let provided = self.provide(&asking, &mut environment).await;
        let named: BTreeSet<String> = environment.named_secrets().map(|(name, _)| name.to_owned()).collect();
        let taken = if !provided.has_failed && !named.is_empty() {
            let of_login = login.variables(Instant::now() + self.time);
            secrets.take_only(&named, &target.agent, real.directory.as_deref(), of_login).await
        } else {
            SecretResults::default()
        };
        let finished =
            if provided.has_failed { Ok(()) } else { fill(target, &real, &taken, secrets, &mut environment) };
        self.warm_up_plugins();
        let again = self.conclude(provided, finished, taken, &login, environment)?;
        let asked = u32::try_from(asked).unwrap_or(u32::MAX);
        let mut renewal = renewal(stored, &again.environment, asked, remembered, Timestamp::now());
        let contents = renewal.files.iter().flat_map(|file| files::hidden(&file.content));
        renewal.hidden = contents.map(ByteString::from).collect();
        Ok(renewal)
    }

    /// Returns the number of providers to run: up to the last that gave an expiring value.
    fn asked(&self, stored: &EnvironmentView) -> Result<usize, BuildFailure> {
        let mut asked = 0;
        for provider in providers(stored) {
            let Some(place) = self.steps.iter().position(|step| step.name == provider) else {
                let message = format!("the environment provider {provider:?} is no longer in the configuration");
                return Err(BuildFailure { reason: reason::PROVIDER_GONE, message });
            };
            asked = asked.max(place + 1);
        }
        Ok(asked)
    }
}
