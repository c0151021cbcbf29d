//! Converts an environment to its view for display and storage, and restores an environment from a view.

use std::collections::BTreeMap;

use agentd_api::ByteString;
use agentd_api::environment::{DroppedView, EnvironmentView, VariableView};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::Environment;
use super::entry::{Entry, Step, StepEffect, history};
use agentd_api::hex;
use agentd_config::secret;

impl Environment {
    /// Returns the view for display and for storage in clear: everything except secret values.
    #[cfg(test)]
    pub fn view(&self, captured: Timestamp, launch: u64) -> EnvironmentView {
        self.document(captured, launch, false)
    }

    /// Returns the complete view with secret values, for a sealed file and for comparisons. Values of configured
    /// secrets that a plugin named are omitted. [`without_secrets`] turns the result into the view for display.
    pub fn full_view(&self, captured: Timestamp, launch: u64) -> EnvironmentView {
        self.document(captured, launch, true)
    }

    fn document(&self, captured: Timestamp, launch: u64, secrets: bool) -> EnvironmentView {
        let mut whole = Sha256::new();
        let (mut variables, mut dropped) = (Vec::new(), Vec::new());
        for (name, entry) in &self.entries {
            let Some(last) = entry.last() else { continue };
            let Some(value) = entry.value() else {
                dropped.push(DroppedView {
                    name: name.clone(),
                    provider: last.provider.clone(),
                    step: last.place,
                    reason: if let StepEffect::Removed(reason) = &last.effect { reason.clone() } else { None },
                    origin: last.origin.clone(),
                    expires_at: last.expires,
                    history: entry.history(name, secrets),
                });
                continue;
            };
            let secret = entry.is_secret(name);
            // A secret's value is left out of the digest. The other parts of the digest are stored, so a short
            // secret could be guessed.
            let hashed: &[u8] = if secret { b"" } else { value };
            for part in [name.as_bytes(), b"=", hashed, b"\0"] {
                whole.update(part);
            }
            let named = entry.named().map(str::to_owned);
            let shown = !secret || (secrets && named.is_none());
            variables.push(VariableView {
                name: name.clone(),
                value: shown.then(|| ByteString::from(value)),
                digest: shown.then(|| hex(&Sha256::digest(value))),
                provider: last.provider.clone(),
                step: last.place,
                origin: last.origin.clone(),
                secret,
                named_secret: named,
                file: entry.file().cloned(),
                expires_at: last.expires,
                history: entry.history(name, secrets),
            });
        }
        let digest = hex(&whole.finalize());
        EnvironmentView {
            duration_us: None,
            captured,
            launch,
            digest,
            variables,
            dropped,
            missing: self.missing.values().cloned().collect(),
            scripts: self.scripts.clone(),
            without: self.without.clone(),
        }
    }

    /// Restores a stored environment. Secrets that are not in the file are missing until they are set. Configured
    /// secrets are filled in.
    pub fn from_view(view: &EnvironmentView) -> Self {
        let mut environment = Self { scripts: view.scripts.clone(), ..Self::default() };
        for variable in view.variables.iter().chain(&view.missing) {
            let value = variable.value.as_ref().map(|value| value.as_bytes().to_vec());
            if value.is_some() || variable.named_secret.is_some() {
                environment.entries.insert(variable.name.clone(), Entry::stored(variable, value));
            } else {
                environment.missing.insert(variable.name.clone(), variable.clone());
            }
        }
        for dropped in &view.dropped {
            let last = Step {
                provider: dropped.provider.clone(),
                place: dropped.step,
                origin: dropped.origin.clone(),
                expires: dropped.expires_at,
                effect: StepEffect::Removed(dropped.reason.clone()),
            };
            let history = history(&dropped.history, last);
            environment.entries.insert(dropped.name.clone(), Entry { secret: false, history });
        }
        environment
    }

    /// Returns the names of secrets that the stored environment had and that are missing now.
    pub fn missing(&self) -> impl Iterator<Item = &str> {
        self.missing.keys().map(String::as_str)
    }

    /// Restores missing secrets with their provenance. Other variables stay unchanged.
    pub fn restore(&mut self, secrets: &BTreeMap<String, Vec<u8>>) {
        for (name, value) in secrets {
            let Some(variable) = self.missing.remove(name) else { continue };
            self.entries.insert(name.clone(), Entry::stored(&variable, Some(value.clone())));
        }
    }

    /// Restores missing secrets that the first step set, with the current values of the login shell. A later step's
    /// secret has another source.
    pub fn restore_from_login(&mut self, variables: Vec<(String, Vec<u8>)>) {
        let of_login = |name: &str| self.missing.get(name).is_some_and(|variable| variable.step == 1);
        let secrets = variables.into_iter().filter(|(name, _)| of_login(name)).collect();
        self.restore(&secrets);
    }
}

/// Returns a view without secret values, for display and for storage in clear.
pub fn without_secrets(mut view: EnvironmentView) -> EnvironmentView {
    for variable in view.variables.iter_mut().chain(&mut view.missing) {
        if variable.secret {
            (variable.value, variable.digest) = (None, None);
        }
        for step in &mut variable.history {
            let looks = |value: &ByteString| secret::is_secret(&variable.name, value.as_bytes());
            let looks = step.file.is_none() && step.value.as_ref().is_some_and(looks);
            if (variable.secret && step.file.is_none()) || looks {
                (step.value, step.digest) = (None, None);
            }
        }
    }
    view
}
