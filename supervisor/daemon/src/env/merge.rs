//! The environment as it grows, step by step, from nothing; every variable knows who put it there: pure.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agentd_api::ByteString;
use agentd_api::environment::{DroppedView, EnvironmentView, VariableView};
use agentd_plugins::Change;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{secret, secrets};

/// A session's environment with its provenance. Names are in order, so that the same content is the same digest.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    variables: BTreeMap<String, Variable>,
    dropped: BTreeMap<String, DroppedView>,
    pub(crate) background: Background,
}

/// What the login shell and the scripts had started in the background when they ended, and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Background {
    pub(crate) killed: u32,
    pub(crate) left: u32,
}

/// One variable and who set it last.
#[derive(Clone, PartialEq, Eq)]
struct Variable {
    value: Vec<u8>,
    provider: String,
    step: u32,
    origin: Option<PathBuf>,
}

impl Variable {
    /// Whether its value is never stored in clear and never shown: it was given as a secret, or is one by its looks.
    fn is_secret(&self, name: &str) -> bool {
        self.provider == secrets::STEP || secret::is_secret(name, &self.value)
    }
}

/// Names only: values may be secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// A change that no environment can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidChange {
    #[error("the variable name {name:?} is empty or has a `=` or NUL in it")]
    Name { name: String },
    #[error("the value of {name:?} has a NUL byte in it")]
    Value { name: String },
}

impl Environment {
    /// Applies a provider's changes, all or none.
    pub(crate) fn apply(&mut self, provider: &str, step: u32, changes: Vec<Change>) -> Result<(), InvalidChange> {
        for change in &changes {
            check(change)?;
        }
        for change in changes {
            match change {
                Change::Set { name, value, origin } => self.set(provider, step, name, value, origin),
                Change::Unset { name, reason, origin } => {
                    self.variables.remove(&name);
                    let (provider, origin) = (provider.to_owned(), origin.map(PathBuf::from));
                    let dropped = DroppedView { name: name.clone(), provider, step, reason, origin };
                    self.dropped.insert(name, dropped);
                }
                Change::Prepend { name, entry } => {
                    let list = self.list_without(&name, &entry);
                    self.set(provider, step, name, join(std::iter::once(entry).chain(list)), None);
                }
                Change::Append { name, entry } => {
                    let list = self.list_without(&name, &entry);
                    self.set(provider, step, name, join(list.into_iter().chain(std::iter::once(entry))), None);
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, provider: &str, step: u32, name: String, value: Vec<u8>, origin: Option<String>) {
        self.dropped.remove(&name);
        let origin = origin.map(PathBuf::from);
        self.variables.insert(name, Variable { value, provider: provider.to_owned(), step, origin });
    }

    fn list_without(&self, name: &str, entry: &[u8]) -> Vec<Vec<u8>> {
        let Some(variable) = self.variables.get(name).filter(|variable| !variable.value.is_empty()) else {
            return Vec::new();
        };
        variable.value.split(|&byte| byte == b':').filter(|part| *part != entry).map(<[u8]>::to_vec).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.variables.get(name).map(|variable| variable.value.as_slice())
    }

    pub(crate) fn len(&self) -> usize {
        self.variables.len()
    }

    /// Names and values, by name.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.variables.iter().map(|(name, variable)| (name.as_str(), variable.value.as_slice()))
    }

    pub(crate) fn dropped(&self) -> impl Iterator<Item = &str> {
        self.dropped.keys().map(String::as_str)
    }

    /// The same, to be kept.
    pub(crate) fn variables(&self) -> Vec<(String, Vec<u8>)> {
        self.pairs().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }

    /// What is stored and shown: everything except secret values.
    pub(crate) fn view(&self, captured: Timestamp, launch: u64) -> EnvironmentView {
        let mut whole = Sha256::new();
        let mut variables = Vec::with_capacity(self.variables.len());
        for (name, variable) in &self.variables {
            let secret = variable.is_secret(name);
            // Not of a secret's value: everything else of this digest is stored, and a short secret could be guessed from it.
            let hashed: &[u8] = if secret { b"" } else { &variable.value };
            for part in [name.as_bytes(), b"=", hashed, b"\0"] {
                whole.update(part);
            }
            variables.push(VariableView {
                name: name.clone(),
                value: (!secret).then(|| ByteString::from(variable.value.as_slice())),
                digest: (!secret).then(|| hex(&Sha256::digest(&variable.value))),
                provider: variable.provider.clone(),
                step: variable.step,
                origin: variable.origin.clone(),
                secret,
            });
        }
        EnvironmentView {
            captured,
            launch,
            digest: hex(&whole.finalize()),
            variables,
            dropped: self.dropped.values().cloned().collect(),
        }
    }
}

fn join(parts: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    parts.collect::<Vec<_>>().join(&b':')
}

fn check(change: &Change) -> Result<(), InvalidChange> {
    let name = change.name();
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(InvalidChange::Name { name: name.to_owned() });
    }
    let value: &[u8] = match change {
        Change::Set { value, .. } => value,
        Change::Prepend { entry, .. } | Change::Append { entry, .. } => entry,
        Change::Unset { .. } => &[],
    };
    if value.contains(&0) {
        return Err(InvalidChange::Value { name: name.to_owned() });
    }
    Ok(())
}

/// Names whose value differs between two environments or that only the new one has, and names only the old one had. A
/// secret's value is not stored, so whether it changed cannot be told.
pub(crate) fn difference(old: &EnvironmentView, new: &EnvironmentView) -> (Vec<String>, Vec<String>) {
    let digests = |view: &EnvironmentView| -> BTreeMap<String, Option<String>> {
        view.variables.iter().map(|variable| (variable.name.clone(), variable.digest.clone())).collect()
    };
    let (old, new) = (digests(old), digests(new));
    let changed = new.iter().filter(|(name, digest)| old.get(*name) != Some(digest)).map(|(name, _)| name.clone());
    let removed = old.keys().filter(|name| !new.contains_key(*name)).cloned();
    (changed.collect(), removed.collect())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(name: &str, value: &str) -> Change {
        Change::Set { name: name.to_owned(), value: value.as_bytes().to_vec(), origin: None }
    }

    fn unset(name: &str) -> Change {
        Change::Unset { name: name.to_owned(), reason: Some("because".to_owned()), origin: None }
    }

    fn value<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
        environment.get(name).map(|value| std::str::from_utf8(value).unwrap())
    }

    #[test]
    fn the_last_provider_that_set_a_variable_is_the_one_that_is_named() {
        let mut environment = Environment::default();
        environment.apply("a", 1, vec![set("X", "1"), set("Y", "1")]).unwrap();
        environment.apply("b", 2, vec![set("X", "2"), unset("Y")]).unwrap();
        let view = environment.view(Timestamp::UNIX_EPOCH, 1);
        assert_eq!(view.variables.len(), 1);
        assert_eq!((view.variables[0].provider.as_str(), view.variables[0].step), ("b", 2));
        assert_eq!(view.dropped[0].name, "Y");
        assert_eq!(view.dropped[0].reason.as_deref(), Some("because"));
    }

    #[test]
    fn a_variable_that_comes_back_is_not_among_the_dropped() {
        let mut environment = Environment::default();
        environment.apply("a", 1, vec![unset("X")]).unwrap();
        environment.apply("b", 2, vec![set("X", "1")]).unwrap();
        assert_eq!(environment.dropped().count(), 0);
    }

    #[test]
    fn a_path_entry_is_moved_and_not_doubled() {
        let mut environment = Environment::default();
        let entry = |text: &str| text.as_bytes().to_vec();
        environment.apply("a", 1, vec![set("PATH", "/a:/b:/a")]).unwrap();
        let name = || "PATH".to_owned();
        environment.apply("a", 1, vec![Change::Prepend { name: name(), entry: entry("/b") }]).unwrap();
        assert_eq!(value(&environment, "PATH"), Some("/b:/a:/a"));
        environment.apply("a", 1, vec![Change::Append { name: name(), entry: entry("/a") }]).unwrap();
        assert_eq!(value(&environment, "PATH"), Some("/b:/a"));
        environment.apply("a", 1, vec![Change::Append { name: "NEW".to_owned(), entry: entry("/n") }]).unwrap();
        assert_eq!(value(&environment, "NEW"), Some("/n"));
    }

    #[test]
    fn a_change_that_no_environment_can_hold_changes_nothing() {
        for bad in [set("", "x"), set("A=B", "x"), set("A\0", "x"), set("A", "x\0y")] {
            let mut environment = Environment::default();
            assert!(environment.apply("a", 1, vec![set("FINE", "1"), bad]).is_err());
            assert_eq!(environment.len(), 0);
        }
    }

    #[test]
    fn a_secret_value_is_in_no_view() {
        let mut environment = Environment::default();
        let url = set("DATABASE", "postgres://me:hunter22@db/x");
        environment.apply("a", 1, vec![set("API_KEY", "hunter22"), url, set("PLAIN", "shown")]).unwrap();
        environment.apply("secrets", 2, vec![set("CALLED_ANYTHING", "hunter22")]).unwrap();
        let view = environment.view(Timestamp::UNIX_EPOCH, 1);
        let json = serde_json::to_string(&view).unwrap();
        assert!(!json.contains("hunter22") && json.contains("shown"), "{json}");
        environment.apply("a", 1, vec![set("API_KEY", "another one")]).unwrap();
        assert_eq!(environment.view(Timestamp::UNIX_EPOCH, 1).digest, view.digest, "the digest is of what is stored");
    }

    #[test]
    fn a_difference_names_what_changed_and_what_is_gone() {
        let view = |changes: Vec<Change>| {
            let mut environment = Environment::default();
            environment.apply("a", 1, changes).unwrap();
            environment.view(Timestamp::UNIX_EPOCH, 1)
        };
        let old = view(vec![set("SAME", "1"), set("OTHER", "1"), set("GONE", "1")]);
        let new = view(vec![set("SAME", "1"), set("OTHER", "2"), set("NEW", "1")]);
        assert_eq!(difference(&old, &new), (vec!["NEW".to_owned(), "OTHER".to_owned()], vec!["GONE".to_owned()]));
    }

    proptest! {
        #[test]
        fn applying_in_one_step_or_in_many_gives_the_same_variables(
            changes in proptest::collection::vec(("[A-D]", proptest::option::of("[a-z:]{0,4}"), 0..4_u8), 0..30),
            cut in 0..30_usize,
        ) {
            let changes: Vec<Change> = changes.into_iter().map(|(name, text, kind)| match (text, kind) {
                (None, _) => unset(&name),
                (Some(text), 0 | 1) => set(&name, &text),
                (Some(text), 2) => Change::Prepend { name, entry: text.into_bytes() },
                (Some(text), _) => Change::Append { name, entry: text.into_bytes() },
            }).collect();
            let mut whole = Environment::default();
            whole.apply("p", 1, changes.clone()).unwrap();
            let cut = cut.min(changes.len());
            let mut parts = Environment::default();
            parts.apply("p", 1, changes[..cut].to_vec()).unwrap();
            parts.apply("p", 1, changes[cut..].to_vec()).unwrap();
            prop_assert_eq!(whole, parts);
        }
    }
}
