//! The environment as it grows, step by step, from nothing; every variable knows each step that touched it: pure.
//!
//! What a step took away stays known by its name, with who did it and why; its value is forgotten at once, since what nobody gets
//! is to be kept nowhere.

use std::collections::BTreeMap;
use std::path::PathBuf;

use agentd_api::ByteString;
use agentd_api::environment::{DroppedView, EnvironmentView, StepView, VariableView};
use agentd_plugins::{Change, Effect};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::{secret, secrets};

/// A session's environment with its provenance. Names are in order, so that the same content is the same digest.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    entries: BTreeMap<String, Entry>,
    /// Secrets that a stored environment had and that could not be had again.
    missing: BTreeMap<String, VariableView>,
    pub(crate) background: Background,
}

/// What the login shell and the scripts had started in the background when they ended, and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Background {
    pub(crate) killed: u32,
    pub(crate) left: u32,
}

/// A name that some step touched.
#[derive(Clone, Default, PartialEq, Eq)]
struct Entry {
    /// It was a secret when it was stored, whatever it looks like now.
    secret: bool,
    /// The first step first; the last one says what the variable is.
    history: Vec<Step>,
}

/// What one step made of a variable.
#[derive(Clone, PartialEq, Eq)]
struct Step {
    provider: String,
    /// Its place in the pipeline.
    place: u32,
    origin: Option<PathBuf>,
    what: What,
}

#[derive(Clone, PartialEq, Eq)]
enum What {
    Set(Vec<u8>),
    /// It set a value that a later step took away.
    SetOnce,
    Removed(Option<String>),
}

impl Entry {
    /// As it stood in a file, with this value.
    fn stored(variable: &VariableView, value: Vec<u8>) -> Self {
        let last = Step {
            provider: variable.provider.clone(),
            place: variable.step,
            origin: variable.origin.clone(),
            what: What::Set(value),
        };
        let mut entry = Self { secret: false, history: history(&variable.history, last) };
        entry.secret = variable.secret && !entry.is_secret(&variable.name);
        entry
    }

    fn value(&self) -> Option<&[u8]> {
        match self.history.last().map(|step| &step.what) {
            Some(What::Set(value)) => Some(value),
            _ => None,
        }
    }

    /// Whether its value is never shown, nor stored in clear: it was given as a secret, or is one by its looks.
    fn is_secret(&self, name: &str) -> bool {
        let given = self.history.last().is_some_and(|step| step.provider == secrets::STEP);
        self.secret || given || self.value().is_some_and(|value| secret::is_secret(name, value))
    }

    /// Adds a step. What one step does to a variable in several changes is one thing.
    fn push(&mut self, step: Step) {
        if matches!(step.what, What::Removed(_)) {
            for earlier in &mut self.history {
                if matches!(earlier.what, What::Set(_)) {
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

    /// The history as it is shown; the last step's value is the variable's own.
    fn history(&self, name: &str, secrets: bool) -> Vec<StepView> {
        let last = self.history.len().saturating_sub(1);
        let hidden = self.is_secret(name);
        let view = |(n, step): (usize, &Step)| {
            let value = match &step.what {
                What::Set(value) if n < last && (secrets || !(hidden || secret::is_secret(name, value))) => Some(value),
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
            }
        };
        if last == 0 { Vec::new() } else { self.history.iter().enumerate().map(view).collect() }
    }
}

/// Names only: values may be secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.pairs().map(|(name, _)| name)).finish()
    }
}

/// A change that no environment can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidChange {
    #[error("the variable name {name:?} is empty or has a `=` or NUL in it")]
    Name { name: String },
    #[error("the value of {name:?} has a NUL byte in it")]
    Value { name: String },
    #[error("{name:?} is to have a secret or a file, which is not there yet")]
    Unresolved { name: String },
}

impl Environment {
    /// Applies a provider's changes, all or none.
    pub(crate) fn apply(&mut self, provider: &str, place: u32, changes: Vec<Change>) -> Result<(), InvalidChange> {
        for change in &changes {
            check(change)?;
        }
        for change in changes {
            let Change { effect, origin, valid_for: _ } = change;
            let (name, what) = match effect {
                Effect::Set { name, value } => (name, What::Set(value)),
                Effect::Unset { name, reason } => (name, What::Removed(reason)),
                Effect::Prepend { name, entry } => {
                    let list = self.list_without(&name, &entry);
                    (name, What::Set(join(std::iter::once(entry).chain(list))))
                }
                Effect::Append { name, entry } => {
                    let list = self.list_without(&name, &entry);
                    (name, What::Set(join(list.into_iter().chain(std::iter::once(entry)))))
                }
                Effect::Secret { name, .. } | Effect::File { name, .. } => {
                    return Err(InvalidChange::Unresolved { name });
                }
            };
            let step = Step { provider: provider.to_owned(), place, origin: origin.map(PathBuf::from), what };
            self.missing.remove(&name);
            self.entries.entry(name).or_default().push(step);
        }
        Ok(())
    }

    fn list_without(&self, name: &str, entry: &[u8]) -> Vec<Vec<u8>> {
        let Some(value) = self.get(name).filter(|value| !value.is_empty()) else { return Vec::new() };
        value.split(|&byte| byte == b':').filter(|part| *part != entry).map(<[u8]>::to_vec).collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.entries.get(name).and_then(Entry::value)
    }

    pub(crate) fn len(&self) -> usize {
        self.pairs().count()
    }

    /// Names and values, by name.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.value()?)))
    }

    pub(crate) fn dropped(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|(_, entry)| entry.value().is_none()).map(|(name, _)| name.as_str())
    }

    /// Names and values of the secrets.
    pub(crate) fn secret_pairs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries
            .iter()
            .filter(|(name, entry)| entry.is_secret(name))
            .filter_map(|(name, entry)| Some((name.as_str(), entry.value()?)))
    }

    /// The same, to be kept.
    pub(crate) fn variables(&self) -> Vec<(String, Vec<u8>)> {
        self.pairs().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
    }

    /// What is shown, and stored in clear: everything except secret values.
    #[cfg(test)]
    pub(crate) fn view(&self, captured: Timestamp, launch: u64) -> EnvironmentView {
        self.document(captured, launch, false)
    }

    /// Everything, secret values too: for a file that is sealed, and for comparing; [`without_secrets`] makes of it what is shown.
    pub(crate) fn full_view(&self, captured: Timestamp, launch: u64) -> EnvironmentView {
        self.document(captured, launch, true)
    }

    fn document(&self, captured: Timestamp, launch: u64, secrets: bool) -> EnvironmentView {
        let mut whole = Sha256::new();
        let (mut variables, mut dropped) = (Vec::new(), Vec::new());
        for (name, entry) in &self.entries {
            let Some(last) = entry.history.last() else { continue };
            let Some(value) = entry.value() else {
                dropped.push(DroppedView {
                    name: name.clone(),
                    provider: last.provider.clone(),
                    step: last.place,
                    reason: if let What::Removed(reason) = &last.what { reason.clone() } else { None },
                    origin: last.origin.clone(),
                    history: entry.history(name, secrets),
                });
                continue;
            };
            let secret = entry.is_secret(name);
            // Not of a secret's value: everything else of this digest is stored, and a short secret could be guessed from it.
            let hashed: &[u8] = if secret { b"" } else { value };
            for part in [name.as_bytes(), b"=", hashed, b"\0"] {
                whole.update(part);
            }
            let shown = secrets || !secret;
            variables.push(VariableView {
                name: name.clone(),
                value: shown.then(|| ByteString::from(value)),
                digest: shown.then(|| hex(&Sha256::digest(value))),
                provider: last.provider.clone(),
                step: last.place,
                origin: last.origin.clone(),
                secret,
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
        }
    }

    /// A stored environment as it was, except for secrets that are not in the file: they are missing until they are set.
    pub(crate) fn from_view(view: &EnvironmentView) -> Self {
        let mut environment = Self::default();
        for variable in view.variables.iter().chain(&view.missing) {
            match &variable.value {
                Some(value) => {
                    let entry = Entry::stored(variable, value.as_bytes().to_vec());
                    environment.entries.insert(variable.name.clone(), entry);
                }
                None => drop(environment.missing.insert(variable.name.clone(), variable.clone())),
            }
        }
        for dropped in &view.dropped {
            let last = Step {
                provider: dropped.provider.clone(),
                place: dropped.step,
                origin: dropped.origin.clone(),
                what: What::Removed(dropped.reason.clone()),
            };
            let history = history(&dropped.history, last);
            environment.entries.insert(dropped.name.clone(), Entry { secret: false, history });
        }
        environment
    }

    /// Secrets that the stored environment had and that are not there now, by name.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &str> {
        self.missing.keys().map(String::as_str)
    }

    /// Gives missing secrets their values back, with the provenance they had; what is not missing is left as it is.
    pub(crate) fn restore(&mut self, secrets: &BTreeMap<String, Vec<u8>>) {
        for (name, value) in secrets {
            let Some(variable) = self.missing.remove(name) else { continue };
            self.entries.insert(name.clone(), Entry::stored(&variable, value.clone()));
        }
    }

    /// The same with what the login shell gives now, for those that the first step set: what a later one set is its own.
    pub(crate) fn restore_from_login(&mut self, variables: Vec<(String, Vec<u8>)>) {
        let of_login = |name: &str| self.missing.get(name).is_some_and(|variable| variable.step == 1);
        let secrets = variables.into_iter().filter(|(name, _)| of_login(name)).collect();
        self.restore(&secrets);
    }
}

impl From<&StepView> for Step {
    fn from(view: &StepView) -> Self {
        let what = match &view.value {
            _ if view.removed => What::Removed(view.reason.clone()),
            Some(value) => What::Set(value.as_bytes().to_vec()),
            None => What::SetOnce,
        };
        Self { provider: view.provider.clone(), place: view.step, origin: view.origin.clone(), what }
    }
}

/// A stored history; its last step is given as it is now known.
fn history(stored: &[StepView], last: Step) -> Vec<Step> {
    let earlier = stored.len().saturating_sub(1);
    stored[..earlier].iter().map(Step::from).chain(std::iter::once(last)).collect()
}

/// A view as it may be shown, and stored in clear, whatever it was made for.
pub(crate) fn without_secrets(mut view: EnvironmentView) -> EnvironmentView {
    for variable in view.variables.iter_mut().chain(&mut view.missing) {
        if variable.secret {
            (variable.value, variable.digest) = (None, None);
        }
        for step in &mut variable.history {
            let looks = |value: &ByteString| secret::is_secret(&variable.name, value.as_bytes());
            if variable.secret || step.value.as_ref().is_some_and(looks) {
                (step.value, step.digest) = (None, None);
            }
        }
    }
    view
}

fn join(parts: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    parts.collect::<Vec<_>>().join(&b':')
}

fn check(change: &Change) -> Result<(), InvalidChange> {
    let name = change.name();
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(InvalidChange::Name { name: name.to_owned() });
    }
    let value: &[u8] = match &change.effect {
        Effect::Set { value, .. } => value,
        Effect::Prepend { entry, .. } | Effect::Append { entry, .. } => entry,
        Effect::Unset { .. } => &[],
        Effect::Secret { .. } | Effect::File { .. } => {
            return Err(InvalidChange::Unresolved { name: name.to_owned() });
        }
    };
    if value.contains(&0) {
        return Err(InvalidChange::Value { name: name.to_owned() });
    }
    Ok(())
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
        Change::set(name, value)
    }

    fn unset(name: &str) -> Change {
        Change::unset(name, Some("because".to_owned()))
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
        let prepend = |name, text| Change::from(Effect::Prepend { name, entry: entry(text) });
        let append = |name, text| Change::from(Effect::Append { name, entry: entry(text) });
        environment.apply("a", 1, vec![set("PATH", "/a:/b:/a")]).unwrap();
        let name = || "PATH".to_owned();
        environment.apply("a", 1, vec![prepend(name(), "/b")]).unwrap();
        assert_eq!(value(&environment, "PATH"), Some("/b:/a:/a"));
        environment.apply("a", 1, vec![append(name(), "/a")]).unwrap();
        assert_eq!(value(&environment, "PATH"), Some("/b:/a"));
        environment.apply("a", 1, vec![append("NEW".to_owned(), "/n")]).unwrap();
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
    fn every_step_of_a_variable_is_known_with_what_it_replaced() {
        let mut environment = Environment::default();
        environment.apply("snapshot", 1, vec![set("EDITOR", "ed"), set("API_KEY", "hunter22")]).unwrap();
        environment.apply("script", 3, vec![set("EDITOR", "vi"), set("API_KEY", "hunter33")]).unwrap();
        let view = environment.view(Timestamp::UNIX_EPOCH, 1);
        let of = |name: &str| view.variables.iter().find(|variable| variable.name == name).unwrap();
        let steps: Vec<_> = of("EDITOR").history.iter().map(|s| (s.provider.as_str(), s.value.as_ref())).collect();
        assert_eq!(steps, [("snapshot", Some(&ByteString::from("ed"))), ("script", None)]);
        assert!(of("API_KEY").history.iter().all(|step| step.value.is_none() && step.digest.is_none()));
    }

    #[test]
    fn what_a_step_replaced_is_hidden_where_it_looks_like_a_secret() {
        let mut environment = Environment::default();
        environment.apply("snapshot", 1, vec![set("HTTP_PROXY", "http://me:hunter22@proxy")]).unwrap();
        environment.apply("script", 3, vec![set("HTTP_PROXY", "http://proxy")]).unwrap();
        let full = environment.full_view(Timestamp::UNIX_EPOCH, 1);
        for view in [environment.view(Timestamp::UNIX_EPOCH, 1), without_secrets(full)] {
            let json = serde_json::to_string(&view).unwrap();
            assert!(!json.contains("hunter22") && json.contains("http://proxy"), "{json}");
        }
    }

    #[test]
    fn what_was_taken_away_is_known_by_name_and_its_value_by_nobody() {
        let mut environment = Environment::default();
        environment.apply("snapshot", 1, vec![set("ODD", "sensitive")]).unwrap();
        environment.apply("whitelist", 2, vec![unset("ODD")]).unwrap();
        let dropped = &environment.full_view(Timestamp::UNIX_EPOCH, 1).dropped[0];
        let steps: Vec<_> = dropped.history.iter().map(|s| (s.provider.as_str(), s.removed)).collect();
        assert_eq!(steps, [("snapshot", false), ("whitelist", true)]);
        environment.apply("script", 3, vec![set("ODD", "plain")]).unwrap();
        let json = serde_json::to_string(&environment.full_view(Timestamp::UNIX_EPOCH, 1)).unwrap();
        assert!(!json.contains("sensitive") && json.contains("because") && json.contains("plain"), "{json}");
    }

    #[test]
    fn a_secret_that_no_file_has_is_missing_until_it_is_had_again() {
        let mut environment = Environment::default();
        environment.apply("a", 1, vec![set("API_KEY", "hunter22"), set("PLAIN", "x")]).unwrap();
        environment.apply("secrets", 4, vec![set("DATABASE", "hunter33")]).unwrap();
        let stored = environment.view(Timestamp::UNIX_EPOCH, 1);
        assert!(!serde_json::to_string(&stored).unwrap().contains("hunter"));
        let mut again = Environment::from_view(&stored);
        assert_eq!(again.missing().collect::<Vec<_>>(), ["API_KEY", "DATABASE"]);
        again.restore(&BTreeMap::from([("API_KEY".to_owned(), b"hunter22".to_vec())]));
        // What is still missing stays known over the next launch too.
        let mut again = Environment::from_view(&again.view(Timestamp::UNIX_EPOCH, 2));
        assert_eq!(again.missing().collect::<Vec<_>>(), ["API_KEY", "DATABASE"]);
        let both = [("API_KEY", "hunter22"), ("DATABASE", "hunter33"), ("PLAIN", "not this")];
        again.restore(&both.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).into());
        assert_eq!(again, environment);
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
                (Some(text), 2) => Effect::Prepend { name, entry: text.into_bytes() }.into(),
                (Some(text), _) => Effect::Append { name, entry: text.into_bytes() }.into(),
            }).collect();
            let mut whole = Environment::default();
            whole.apply("p", 1, changes.clone()).unwrap();
            let cut = cut.min(changes.len());
            let mut parts = Environment::default();
            parts.apply("p", 1, changes[..cut].to_vec()).unwrap();
            parts.apply("p", 1, changes[cut..].to_vec()).unwrap();
            prop_assert_eq!(whole, parts);
        }

        #[test]
        fn a_stored_environment_comes_back_as_it_was(
            changes in proptest::collection::vec(("[A-D]|API_KEY", proptest::option::of("[a-z:]{0,4}"), 1..4_u32), 0..30),
        ) {
            let mut environment = Environment::default();
            for (name, text, step) in changes {
                let change = text.map_or_else(|| unset(&name), |text| set(&name, &text));
                environment.apply(&format!("p{step}"), step, vec![change]).unwrap();
            }
            let full = environment.full_view(Timestamp::UNIX_EPOCH, 1);
            prop_assert_eq!(&Environment::from_view(&full), &environment);
            // What is shown of it is what would have been shown before it was stored.
            prop_assert_eq!(without_secrets(full), environment.view(Timestamp::UNIX_EPOCH, 1));
        }
    }
}
