//! Asks providers again for what holds for a limited time, while the agent runs.
//!
//! A provider is given the environment so far, so those before it are asked too: from the first to the last that gave something which
//! expires. Those behind it are not, nor is anything that the launch itself does at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use agentd_api::ByteString;
use agentd_api::environment::EnvironmentView;
use jiff::Timestamp;

use super::finish::fill;
use super::renewal::{Renewal, providers, renewal};
use super::secrets::{Hidden, Secrets, Taken};
use super::trust::Trust;
use super::{Build, Pipeline, Purpose, Target, Unbuilt, files};

impl Pipeline {
    /// What of a running agent's environment is the same and what is another now; `remembered` has the secrets that it was started
    /// with, as far as they are known.
    pub(crate) async fn refresh(
        &self,
        target: &Target,
        stored: &EnvironmentView,
        remembered: &BTreeMap<String, Vec<u8>>,
        trust: &Arc<Trust>,
        secrets: &Secrets,
    ) -> Result<Renewal, Unbuilt> {
        let asked = self.asked(stored)?;
        let login = self.login(target, &Arc::new(Hidden::default()), Purpose::Renewal);
        let mut environment = self.nothing(target);
        let real = target.real().await;
        let scope = target.in_scope(&real).await;
        // Without what it gives again, what it gave would seem to be gone.
        let asking =
            Build { target, real: &real, trust, login: &login, scope: &scope, upto: asked, needed: providers(stored) };
        let provided = self.provide(&asking, &mut environment).await;
        let named: BTreeSet<String> = environment.named_secrets().map(|(name, _)| name.to_owned()).collect();
        let taken = if !provided.is_over && !named.is_empty() {
            let of_login = login.variables(Instant::now() + self.time);
            secrets.take_only(&named, &target.agent, real.directory.as_deref(), of_login).await
        } else {
            Taken::default()
        };
        let finished = if provided.is_over { Ok(()) } else { fill(target, &real, &taken, secrets, &mut environment) };
        self.prepare();
        let again = self.conclude(provided, finished, taken, &login, environment)?;
        let asked = u32::try_from(asked).unwrap_or(u32::MAX);
        let mut renewal = renewal(stored, &again.environment, asked, remembered, Timestamp::now());
        let contents = renewal.files.iter().flat_map(|file| files::hidden(&file.content));
        renewal.hidden = contents.map(ByteString::from).collect();
        Ok(renewal)
    }

    /// How many providers are to be asked: up to the last that gave something which expires.
    fn asked(&self, stored: &EnvironmentView) -> Result<usize, Unbuilt> {
        let mut asked = 0;
        for provider in providers(stored) {
            let Some(place) = self.steps.iter().position(|step| step.name == provider) else {
                let message = format!("the environment provider {provider:?} is not in the configuration any more");
                return Err(Unbuilt { reason: "ProviderGone", message });
            };
            asked = asked.max(place + 1);
        }
        Ok(asked)
    }
}
