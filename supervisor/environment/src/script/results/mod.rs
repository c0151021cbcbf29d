//! Keeps the results of scripts that declare their dependencies, in memory.
//!
//! A script with a line `# agentd-depends: WORD...` (`depends`) promises the same result while the named
//! dependencies are unchanged. The script itself, its working directory and its PATH are always dependencies. A
//! script without such a line runs every time. A result is not kept if the script ended with a status other than 0
//! or printed an error.
//!
//! A result holds the changed variables with their values before and after the script. If a variable has another
//! value before the next run, the script runs. `LIST="$LIST:more"` is therefore correct without a declaration.
//!
//! Results hold secrets that scripts set, so they are never written to disk. At most [`MOST`] results are kept, and
//! the least recently used result is removed first.

mod depends;

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

pub(crate) use depends::{Places, look};

use crate::lock::locked;
use crate::login::capture::Variables;

/// Maximum number of kept results.
const MOST: usize = 256;
/// Maximum size of one result in bytes. A larger result is not kept.
const LARGEST: usize = 256 << 10;
/// Digest of the state of a script's dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

/// Kept results, by the state of their dependencies.
#[derive(Default)]
pub(crate) struct Results {
    kept: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// Number of lookups so far.
    lookups: u64,
    results: HashMap<Key, KeptResult>,
}

/// Changes by one script.
struct KeptResult {
    /// Number of the lookup that last used the result.
    last_used: u64,
    changes: Vec<VariableChange>,
}

/// Values of one variable before and after the script. `None` means that the variable is not set.
struct VariableChange {
    name: String,
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

/// Shows the number of results without their content.
impl std::fmt::Debug for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = locked(&self.kept);
        f.debug_struct("Results").field("kept", &kept.results.len()).finish_non_exhaustive()
    }
}

impl Results {
    /// Returns the environment after a script that ran in this state, if a kept result applies to the given
    /// variables.
    pub(crate) fn find(&self, key: &Key, given: &Variables) -> Option<Variables> {
        let mut kept = locked(&self.kept);
        kept.lookups += 1;
        let now = kept.lookups;
        let outcome = kept.results.get_mut(key)?;
        outcome.last_used = now;
        apply(&outcome.changes, given)
    }

    /// Drops all results, so that every script runs again.
    pub(crate) fn forget(&self) {
        locked(&self.kept).results.clear();
    }

    /// Keeps the script's changes to the given variables.
    pub(crate) fn keep(&self, key: Key, given: &Variables, after: &Variables) {
        let changes = difference(given, after);
        if changes.iter().map(VariableChange::size).sum::<usize>() > LARGEST {
            return;
        }
        let mut kept = locked(&self.kept);
        if kept.results.len() >= MOST && !kept.results.contains_key(&key) {
            let oldest = kept.results.iter().min_by_key(|(_, outcome)| outcome.last_used).map(|(key, _)| *key);
            oldest.and_then(|oldest| kept.results.remove(&oldest));
        }
        kept.lookups += 1;
        let last_used = kept.lookups;
        kept.results.insert(key, KeptResult { last_used, changes });
    }
}

impl VariableChange {
    fn size(&self) -> usize {
        let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        self.name.len() + value(&self.before) + value(&self.after)
    }
}

fn by_name(variables: &Variables) -> BTreeMap<&str, &[u8]> {
    variables.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
}

fn difference(given: &Variables, after: &Variables) -> Vec<VariableChange> {
    let (given, after) = (by_name(given), by_name(after));
    let added = after.keys().filter(|name| !given.contains_key(*name));
    let names = given.keys().chain(added).filter(|name| given.get(*name) != after.get(*name));
    let value = |of: &BTreeMap<&str, &[u8]>, name: &str| of.get(name).map(|value| value.to_vec());
    names
        .map(|&name| VariableChange { name: name.to_owned(), before: value(&given, name), after: value(&after, name) })
        .collect()
}

/// Applies the changes. Returns `None` if a changed variable has another value than before the kept run.
fn apply(changes: &[VariableChange], given: &Variables) -> Option<Variables> {
    let mut environment = by_name(given);
    if changes.iter().any(|change| environment.get(change.name.as_str()).copied() != change.before.as_deref()) {
        return None;
    }
    for change in changes {
        match &change.after {
            Some(value) => environment.insert(&change.name, value),
            None => environment.remove(change.name.as_str()),
        };
    }
    Some(environment.into_iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(list: &[(&str, &str)]) -> Variables {
        list.iter().map(|&(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_result_holds_the_changes_and_applies_to_other_given_variables() {
        let (results, key) = (Results::default(), Key([1; 32]));
        assert_eq!(results.find(&key, &variables(&[])), None);
        results.keep(key, &variables(&[("A", "1"), ("GONE", "x")]), &variables(&[("A", "1"), ("LIST", "a")]));
        let found = results.find(&key, &variables(&[("GONE", "x"), ("OTHER", "2")]));
        assert_eq!(found, Some(variables(&[("LIST", "a"), ("OTHER", "2")])));
    }

    #[test]
    fn a_changed_variable_must_have_its_former_value() {
        let (results, key) = (Results::default(), Key([1; 32]));
        results.keep(key, &variables(&[("LIST", "a")]), &variables(&[("LIST", "a:b")]));
        assert!(results.find(&key, &variables(&[("LIST", "a")])).is_some());
        assert_eq!(results.find(&key, &variables(&[("LIST", "c")])), None);
        assert_eq!(results.find(&key, &variables(&[])), None);
    }

    #[test]
    fn the_least_recently_used_result_is_removed_first_and_a_large_result_is_not_kept() {
        let results = Results::default();
        let key = |n: usize| Key(std::array::from_fn(|at| u8::try_from(n >> (8 * (at % 2)) & 0xff).unwrap()));
        let given = variables(&[]);
        for n in 0..MOST {
            results.keep(key(n), &given, &given);
        }
        assert!(results.find(&key(0), &given).is_some());
        results.keep(key(MOST), &given, &given);
        assert!(results.find(&key(0), &given).is_some() && results.find(&key(1), &given).is_none());
        let large = "x".repeat(LARGEST);
        results.keep(key(MOST + 1), &given, &variables(&[("A", &large)]));
        assert_eq!(results.find(&key(MOST + 1), &given), None);
    }
}
