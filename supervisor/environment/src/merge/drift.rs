//! Compares two environments of a session and names the providers of the changes, without I/O.
//!
//! Values are compared by their digests. No digest of a secret is stored; [`with_secrets`] adds the digests of
//! secrets in memory. A secret without a digest on both sides is listed as not compared.

use std::collections::BTreeMap;

use agentd_api::environment::{ChangeView, DroppedView, EnvironmentView, StepView, VariableView};
use agentd_api::event::{VariableChange, VariableChangeKind};
use sha2::{Digest as _, Sha256};

use agentd_api::hex;

use crate::pipeline::OWN;

/// Differences between two environments. Each list is sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift {
    pub added: Vec<ChangeView>,
    pub changed: Vec<ChangeView>,
    pub removed: Vec<ChangeView>,
    /// Secrets that both environments have and that cannot be compared.
    pub not_compared: Vec<String>,
}

/// Returns the changes from `old` to `new`.
pub fn drift(old: &EnvironmentView, new: &EnvironmentView) -> Drift {
    let (before, after) = (by_name(old), by_name(new));
    let mut drift = Drift::default();
    for (name, variable) in &after {
        let Some(earlier) = before.get(name) else {
            let change = change(variable, dropped_step(old, name), Some(variable.last_step()));
            drift.added.push(change);
            continue;
        };
        match (&earlier.digest, &variable.digest) {
            // The value of a file variable is its path, which stays the same if the content changes.
            (Some(then), Some(now)) if then == now && earlier.file == variable.file => {}
            (None, _) | (_, None) if earlier.secret || variable.secret => drift.not_compared.push((*name).to_owned()),
            _ => {
                let mut change = change(variable, Some(earlier.last_step()), Some(variable.last_step()));
                change.secret |= earlier.secret;
                drift.changed.push(change);
            }
        }
    }
    for (name, variable) in &before {
        if !after.contains_key(name) {
            drift.removed.push(change(variable, Some(variable.last_step()), dropped_step(new, name)));
        }
    }
    drift
}

/// Adds the digests of `secrets` to the view. The result serves for comparison and must be neither stored nor
/// shown.
pub fn with_secrets<'a>(
    mut view: EnvironmentView,
    secrets: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> EnvironmentView {
    let secrets: BTreeMap<&str, &[u8]> = secrets.into_iter().collect();
    for variable in view.variables.iter_mut().filter(|variable| variable.secret && variable.digest.is_none()) {
        variable.digest = secrets.get(variable.name.as_str()).map(|value| hex(&Sha256::digest(value)));
    }
    view
}

impl Drift {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    /// Returns the names and providers of the changes, without values, for the journal.
    pub fn names(&self) -> Vec<VariableChange> {
        let lists = [
            (VariableChangeKind::Added, &self.added),
            (VariableChangeKind::Changed, &self.changed),
            (VariableChangeKind::Removed, &self.removed),
        ];
        let provider = |step: &Option<StepView>| step.as_ref().map(|step| step.provider.clone());
        let mut names: Vec<VariableChange> = lists
            .into_iter()
            .flat_map(|(kind, list)| list.iter().map(move |change| (kind, change)))
            .map(|(kind, change)| VariableChange {
                name: change.name.clone(),
                kind,
                // The step that dropped an added variable earlier is irrelevant.
                before: if kind == VariableChangeKind::Added { None } else { provider(&change.before) },
                after: provider(&change.after),
            })
            .collect();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names
    }
}

/// Returns the variables that are compared. agentd's own variables describe the session and not its environment.
fn by_name(view: &EnvironmentView) -> BTreeMap<&str, &VariableView> {
    let compared = view.variables.iter().filter(|variable| variable.last_step().provider != OWN);
    compared.map(|variable| (variable.name.as_str(), variable)).collect()
}

fn change(variable: &VariableView, before: Option<StepView>, after: Option<StepView>) -> ChangeView {
    ChangeView { name: variable.name.clone(), secret: variable.secret, before, after }
}

fn dropped_step(view: &EnvironmentView, name: &str) -> Option<StepView> {
    view.dropped.iter().find(|dropped| dropped.name == name).map(DroppedView::last_step)
}

#[cfg(test)]
mod tests {
    use agentd_api::changes::describe;

    use super::*;
    use crate::merge::Environment;
    use agentd_plugin_host::Change;
    use jiff::Timestamp;
    use proptest::prelude::*;

    /// Returns an environment in which each provider sets its variable, or drops it if it has no value.
    fn environment(variables: &[(&str, Option<&str>, &str)]) -> Environment {
        let mut environment = Environment::default();
        for (name, value, provider) in variables {
            let name = (*name).to_owned();
            let change = match value {
                Some(value) => Change::set(name, *value),
                None => Change::unset(name, None),
            };
            environment.apply(provider, 1, vec![change]).unwrap();
        }
        environment
    }

    fn view(variables: &[(&str, Option<&str>, &str)]) -> EnvironmentView {
        environment(variables).view(Timestamp::UNIX_EPOCH, 1)
    }

    #[test]
    fn a_drift_names_what_changed_with_the_providers_on_both_sides() {
        let old = view(&[
            ("SAME", Some("1"), "a"),
            ("OTHER", Some("1"), "a"),
            ("GONE", Some("1"), "a"),
            ("LEFT", Some("1"), "a"),
            ("BACK", None, "w"),
        ]);
        let new = view(&[
            ("SAME", Some("1"), "b"),
            ("OTHER", Some("2"), "b"),
            ("GONE", None, "w"),
            ("NEW", Some("1"), "b"),
            ("BACK", Some("1"), "b"),
        ]);
        let drift = drift(&old, &new);
        assert_eq!(
            describe(&drift.names()),
            "BACK added by b, GONE removed by w, LEFT removed, a sets it no longer, NEW added by b, OTHER changed by b"
        );
        assert_eq!(
            drift.added[0].before.as_ref().map(|step| (step.provider.as_str(), step.removed)),
            Some(("w", true))
        );
        assert_eq!(drift.changed[0].before.as_ref().map(|step| step.provider.as_str()), Some("a"));
    }

    #[test]
    fn an_unstored_secret_is_neither_equal_nor_changed() {
        let (one, two) = ([("API_KEY", Some("hunter22"), "a")], [("API_KEY", Some("hunter33"), "a")]);
        let clear = drift(&view(&one), &view(&two));
        assert_eq!((clear.is_empty(), clear.not_compared), (true, vec!["API_KEY".to_owned()]));
        let full = |variables| environment(variables).full_view(Timestamp::UNIX_EPOCH, 1);
        assert_eq!(drift(&full(&one), &full(&two)).changed.len(), 1);
        assert_eq!(drift(&full(&one), &view(&one)).not_compared, ["API_KEY"]);
    }

    #[test]
    fn a_secret_in_memory_is_compared_and_reported_by_name() {
        let of = |key: &str| environment(&[("API_KEY", Some(key), "a"), ("PLAIN", Some("1"), "a")]);
        let (old, new) = (of("hunter22"), of("hunter33"));
        let stored = old.view(Timestamp::UNIX_EPOCH, 1);
        let compared = |old: &EnvironmentView| drift(old, &new.full_view(Timestamp::UNIX_EPOCH, 2)).names();
        assert_eq!(compared(&stored), []);
        let known = with_secrets(stored, old.secret_pairs());
        assert_eq!(describe(&compared(&known)), "API_KEY changed by a");
        assert!(drift(&known, &with_secrets(old.view(Timestamp::UNIX_EPOCH, 2), old.secret_pairs())).is_empty());
    }

    proptest! {
        #[test]
        fn a_reversed_drift_swaps_added_and_removed(
            old in proptest::collection::vec(("[A-F]", proptest::option::of("[xy]")), 0..12),
            new in proptest::collection::vec(("[A-F]", proptest::option::of("[xy]")), 0..12),
        ) {
            let build = |variables: &[(String, Option<String>)]| {
                let variables: Vec<(&str, Option<&str>, &str)> =
                    variables.iter().map(|(name, value)| (name.as_str(), value.as_deref(), "p")).collect();
                view(&variables)
            };
            let (old, new) = (build(&old), build(&new));
            let (there, back) = (drift(&old, &new), drift(&new, &old));
            let names = |list: &[ChangeView]| list.iter().map(|change| change.name.clone()).collect::<Vec<_>>();
            prop_assert_eq!(names(&there.added), names(&back.removed));
            prop_assert_eq!(names(&there.removed), names(&back.added));
            prop_assert_eq!(names(&there.changed), names(&back.changed));
            prop_assert_eq!(there.is_empty(), old.digest == new.digest);
            prop_assert!(drift(&new, &new).is_empty());
        }
    }
}
