//! One name of the environment and what each step made of it.

use std::path::PathBuf;

use agentd_api::ByteString;
use agentd_api::environment::{FileView, StepView, VariableView};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::super::{functions, secret, secrets};
use super::hex;

/// A name that some step touched.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// It was a secret when it was stored, whatever it looks like now.
    pub(super) secret: bool,
    /// The first step first; the last one says what the variable is.
    pub(super) history: Vec<Step>,
}

/// What one step made of a variable.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) provider: String,
    /// Its place in the pipeline.
    pub(super) place: u32,
    pub(super) origin: Option<PathBuf>,
    /// Until when it holds.
    pub(super) expires: Option<Timestamp>,
    pub(super) what: What,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum What {
    Set(Vec<u8>),
    /// A secret of the configuration, by its name there. No step sees its value, which is filled in behind them all.
    Secret {
        name: String,
        value: Option<Vec<u8>>,
    },
    /// A file of the session.
    File {
        path: Vec<u8>,
        file: FileView,
    },
    /// It set a value that a later step took away.
    SetOnce,
    Removed(Option<String>),
}

impl What {
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
    /// As it stood in a file, with this value.
    pub(super) fn stored(variable: &VariableView, value: Option<Vec<u8>>) -> Self {
        let what = match (&variable.named_secret, &variable.file, value) {
            (Some(name), _, value) => What::Secret { name: name.clone(), value },
            (None, Some(file), Some(path)) => What::File { path, file: file.clone() },
            (None, None, Some(value)) => What::Set(value),
            (None, _, None) => What::SetOnce,
        };
        let last = Step {
            provider: variable.provider.clone(),
            place: variable.step,
            origin: variable.origin.clone(),
            expires: variable.expires_at,
            what,
        };
        let mut entry = Self { secret: false, history: history(&variable.history, last) };
        entry.secret = variable.secret && !entry.is_secret(&variable.name);
        entry
    }

    pub(super) fn last(&self) -> Option<&Step> {
        self.history.last()
    }

    pub(super) fn value(&self) -> Option<&[u8]> {
        self.last().and_then(|step| step.what.value())
    }

    pub(super) fn file(&self) -> Option<&FileView> {
        self.last().and_then(|step| step.what.file())
    }

    pub(super) fn expires(&self) -> Option<Timestamp> {
        self.last().and_then(|step| step.expires)
    }

    /// The secret that it is, by its name in the configuration.
    pub(super) fn named(&self) -> Option<&str> {
        match self.last().map(|step| &step.what) {
            Some(What::Secret { name, .. }) => Some(name),
            _ => None,
        }
    }

    /// Whether its value is never shown, nor stored in clear: it was given as a secret, or is one by its looks. A file's path is none,
    /// whatever the variable is called.
    pub(super) fn is_secret(&self, name: &str) -> bool {
        let Some(last) = self.last() else { return false };
        match &last.what {
            What::Secret { .. } => true,
            What::File { .. } => false,
            _ => {
                let given = last.provider == secrets::STEP;
                self.secret || given || self.value().is_some_and(|value| secret::is_secret(name, value))
            }
        }
    }

    /// Adds a step. What one step does to a variable in several changes is one thing.
    pub(super) fn push(&mut self, step: Step) {
        if matches!(step.what, What::Removed(_)) {
            for earlier in &mut self.history {
                if !matches!(earlier.what, What::Removed(_)) {
                    earlier.what = What::SetOnce;
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
            [first, rest @ ..] if !rest.iter().any(|step| matches!(step.what, What::Removed(_))) => {
                first.what.value() == Some(value)
            }
            // What is removed last forgets the values before it.
            [before @ .., Step { what: What::Removed(Some(reason)), .. }] if reason == functions::WITHHELD => {
                before.iter().all(|step| matches!(step.what, What::SetOnce))
            }
            _ => false,
        }
    }

    /// The named secret's value, or why there is none.
    pub(super) fn fill(&mut self, given: Option<&[u8]>) {
        let Some(last) = self.history.last_mut() else { return };
        if let What::Secret { name, value } = &mut last.what {
            if let Some(given) = given {
                *value = Some(given.to_vec());
            } else {
                let reason = format!("the secret {name:?} cannot be had");
                last.what = What::Removed(Some(reason));
            }
        }
    }

    /// The history as it is shown; the last step's value is the variable's own.
    pub(super) fn history(&self, name: &str, secrets: bool) -> Vec<StepView> {
        let last = self.history.len().saturating_sub(1);
        let hidden = self.is_secret(name);
        let view = |(n, step): (usize, &Step)| {
            let value = match &step.what {
                What::Set(value) if n < last && (secrets || !(hidden || secret::is_secret(name, value))) => Some(value),
                What::File { path, .. } if n < last => Some(path),
                _ => None,
            };
            StepView {
                provider: step.provider.clone(),
                step: step.place,
                origin: step.origin.clone(),
                removed: matches!(step.what, What::Removed(_)),
                reason: if let What::Removed(reason) = &step.what { reason.clone() } else { None },
                value: value.map(|value| ByteString::from(value.as_slice())),
                digest: value.map(|value| hex(&Sha256::digest(value))),
                file: if n < last { step.what.file().cloned() } else { None },
                expires_at: if n < last { step.expires } else { None },
            }
        };
        if last == 0 { Vec::new() } else { self.history.iter().enumerate().map(view).collect() }
    }
}

impl From<&StepView> for Step {
    fn from(view: &StepView) -> Self {
        let what = match (&view.value, &view.file) {
            _ if view.removed => What::Removed(view.reason.clone()),
            (Some(path), Some(file)) => What::File { path: path.as_bytes().to_vec(), file: file.clone() },
            (Some(value), None) => What::Set(value.as_bytes().to_vec()),
            (None, _) => What::SetOnce,
        };
        Self {
            provider: view.provider.clone(),
            place: view.step,
            origin: view.origin.clone(),
            expires: view.expires_at,
            what,
        }
    }
}

/// A stored history; its last step is given as it is now known.
pub(super) fn history(stored: &[StepView], last: Step) -> Vec<Step> {
    let earlier = stored.len().saturating_sub(1);
    stored[..earlier].iter().map(Step::from).chain(std::iter::once(last)).collect()
}
