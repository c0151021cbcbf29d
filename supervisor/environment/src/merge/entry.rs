//! Defines one name of the environment with the changes of each step.

use std::path::PathBuf;

use agentd_api::ByteString;
use agentd_api::environment::{FileView, StepView, VariableView};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::functions;
use crate::secrets::{self, plain};
use agentd_api::hex;

/// A name that some step touched.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// The variable was stored as a secret, even if it does not look like a secret.
    pub(super) secret: bool,
    /// Steps in order. The last step determines the variable.
    pub(super) history: Vec<Step>,
}

/// Change of a variable by one step.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) provider: String,
    /// Number of the step in the pipeline.
    pub(super) place: u32,
    pub(super) origin: Option<PathBuf>,
    /// Expiry time, if the value expires.
    pub(super) expires: Option<Timestamp>,
    pub(super) effect: StepEffect,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum StepEffect {
    Set(Vec<u8>),
    /// A secret of the configuration, by its configured name. Its value is filled in after all steps, so no step
    /// sees it.
    Secret {
        name: String,
        value: Option<Vec<u8>>,
    },
    /// A file of the session.
    File {
        path: Vec<u8>,
        file: FileView,
    },
    /// The step set a value that a later step removed.
    SetOnce,
    Removed(Option<String>),
}

impl StepEffect {
    pub(super) fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Set(value) | Self::File { path: value, .. } => Some(value),
            Self::Secret { value, .. } => value.as_deref(),
            Self::SetOnce | Self::Removed(_) => None,
        }
    }

    fn file(&self) -> Option<&FileView> {
        if let Self::File { file, .. } = self { Some(file) } else { None }
    }
}

impl Entry {
    /// Restores an entry from a stored variable, with this value.
    pub(super) fn stored(variable: &VariableView, value: Option<Vec<u8>>) -> Self {
        let effect = match (&variable.named_secret, &variable.file, value) {
            (Some(name), _, value) => StepEffect::Secret { name: name.clone(), value },
            (None, Some(file), Some(path)) => StepEffect::File { path, file: file.clone() },
            (None, None, Some(value)) => StepEffect::Set(value),
            (None, _, None) => StepEffect::SetOnce,
        };
        let last = Step {
            provider: variable.provider.clone(),
            place: variable.step,
            origin: variable.origin.clone(),
            expires: variable.expires_at,
            effect,
        };
        let mut entry = Self { secret: false, history: history(&variable.history, last) };
        entry.secret = variable.secret && !entry.is_secret(&variable.name);
        entry
    }

    pub(super) fn last(&self) -> Option<&Step> {
        self.history.last()
    }

    pub(super) fn value(&self) -> Option<&[u8]> {
        self.last().and_then(|step| step.effect.value())
    }

    pub(super) fn file(&self) -> Option<&FileView> {
        self.last().and_then(|step| step.effect.file())
    }

    pub(super) fn expires(&self) -> Option<Timestamp> {
        self.last().and_then(|step| step.expires)
    }

    /// Returns the name of the configured secret that the variable holds.
    pub(super) fn named(&self) -> Option<&str> {
        match self.last().map(|step| &step.effect) {
            Some(StepEffect::Secret { name, .. }) => Some(name),
            _ => None,
        }
    }

    /// Reports whether the value must be neither shown nor stored in clear. The value was given as a secret or
    /// looks like a secret. The path of a file is never a secret, even under a secret name.
    pub(super) fn is_secret(&self, name: &str) -> bool {
        let Some(last) = self.last() else { return false };
        match &last.effect {
            StepEffect::Secret { .. } => true,
            StepEffect::File { .. } => false,
            _ => {
                let given = last.provider == secrets::STEP;
                self.secret || given || self.value().is_some_and(|value| plain::is_secret(name, value))
            }
        }
    }

    /// Adds a step. Several changes of one step to a variable count as one step.
    pub(super) fn push(&mut self, step: Step) {
        if matches!(step.effect, StepEffect::Removed(_)) {
            for earlier in &mut self.history {
                if !matches!(earlier.effect, StepEffect::Removed(_)) {
                    earlier.effect = StepEffect::SetOnce;
                }
            }
        }
        match self.history.last_mut() {
            Some(last) if (&last.provider, last.place, &last.origin) == (&step.provider, step.place, &step.origin) => {
                *last = step;
            }
            _ => self.history.push(step),
        }
    }

    /// See [`super::Environment::has_kept`].
    pub(super) fn has_kept(&self, value: &[u8]) -> bool {
        match self.history.as_slice() {
            [first, rest @ ..] if !rest.iter().any(|step| matches!(step.effect, StepEffect::Removed(_))) => {
                first.effect.value() == Some(value)
            }
            // A removal as the last step has cleared the earlier values.
            [before @ .., Step { effect: StepEffect::Removed(Some(reason)), .. }] if reason == functions::WITHHELD => {
                before.iter().all(|step| matches!(step.effect, StepEffect::SetOnce))
            }
            _ => false,
        }
    }

    /// Sets the value of a named secret. Without a value, the variable is removed with a reason.
    pub(super) fn fill(&mut self, given: Option<&[u8]>) {
        let Some(last) = self.history.last_mut() else { return };
        if let StepEffect::Secret { name, value } = &mut last.effect {
            if let Some(given) = given {
                *value = Some(given.to_vec());
            } else {
                let reason = format!("the secret {name:?} cannot be had");
                last.effect = StepEffect::Removed(Some(reason));
            }
        }
    }

    /// Returns the history for display. The last step's value is the variable's own and is omitted.
    pub(super) fn history(&self, name: &str, secrets: bool) -> Vec<StepView> {
        let last = self.history.len().saturating_sub(1);
        let hidden = self.is_secret(name);
        let view = |(n, step): (usize, &Step)| {
            let value = match &step.effect {
                StepEffect::Set(value) if n < last && (secrets || !(hidden || plain::is_secret(name, value))) => {
                    Some(value)
                }
                StepEffect::File { path, .. } if n < last => Some(path),
                _ => None,
            };
            StepView {
                provider: step.provider.clone(),
                step: step.place,
                origin: step.origin.clone(),
                removed: matches!(step.effect, StepEffect::Removed(_)),
                reason: if let StepEffect::Removed(reason) = &step.effect { reason.clone() } else { None },
                value: value.map(|value| ByteString::from(value.as_slice())),
                digest: value.map(|value| hex(&Sha256::digest(value))),
                file: if n < last { step.effect.file().cloned() } else { None },
                expires_at: if n < last { step.expires } else { None },
            }
        };
        if last == 0 { Vec::new() } else { self.history.iter().enumerate().map(view).collect() }
    }
}

impl From<&StepView> for Step {
    fn from(view: &StepView) -> Self {
        let effect = match (&view.value, &view.file) {
            _ if view.removed => StepEffect::Removed(view.reason.clone()),
            (Some(path), Some(file)) => StepEffect::File { path: path.as_bytes().to_vec(), file: file.clone() },
            (Some(value), None) => StepEffect::Set(value.as_bytes().to_vec()),
            (None, _) => StepEffect::SetOnce,
        };
        Self {
            provider: view.provider.clone(),
            place: view.step,
            origin: view.origin.clone(),
            expires: view.expires_at,
            effect,
        }
    }
}

/// Restores a stored history. `last` replaces its last step.
pub(super) fn history(stored: &[StepView], last: Step) -> Vec<Step> {
    let earlier = stored.len().saturating_sub(1);
    stored[..earlier].iter().map(Step::from).chain(std::iter::once(last)).collect()
}
