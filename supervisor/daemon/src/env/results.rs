//! What scripts gave, kept in memory for those that say what they depend on.
//!
//! A script with a line `# agentd-depends: WORD...` (`depends`) promises that it gives the same as long as nothing of what it names is
//! other than it was. The script itself, its working directory and the PATH it is given are always of it. A script without such a line
//! is not asked for here: it is run every time. So is one that ended with a status other than 0 or that printed an error.
//!
//! What is kept is what the script changed, and what each of those variables was before: where one of them is another now, the script
//! is run, so that `LIST="$LIST:more"` is right though nobody declared it. Results hold secrets as scripts set them; they
//! are never written anywhere. There are at most [`MOST`] of them; the one that was asked for longest ago goes first.

mod depends;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

pub(super) use depends::{Places, look};

use super::capture::Variables;

/// How many results are kept.
const MOST: usize = 256;
/// Bytes of one result; a larger one is not kept.
const LARGEST: usize = 256 << 10;
/// What a script depends on, in one state of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

/// The results, by what the script depended on.
#[derive(Default)]
pub(super) struct Results {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Counts the questions.
    now: u64,
    results: HashMap<Key, Outcome>,
}

/// What one script changed.
struct Outcome {
    /// The number of the question it was asked for last.
    asked: u64,
    changes: Vec<Changed>,
}

/// One variable before the script and after it; none where there is none.
struct Changed {
    name: String,
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

/// How many, and nothing of what is in them.
impl std::fmt::Debug for Results {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Results").field("kept", &kept.results.len()).finish_non_exhaustive()
    }
}

impl Results {
    /// The environment after a script that was run in this state, if its result is known and holds for what is given now.
    pub(super) fn find(&self, key: &Key, given: &Variables) -> Option<Variables> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.now += 1;
        let now = kept.now;
        let outcome = kept.results.get_mut(key)?;
        outcome.asked = now;
        apply(&outcome.changes, given)
    }

    /// Forgets all of them: every script is run again.
    fn forget(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).results.clear();
    }

    /// Keeps what the script made of what it was given.
    pub(super) fn keep(&self, key: Key, given: &Variables, after: &Variables) {
        let changes = difference(given, after);
        if changes.iter().map(Changed::size).sum::<usize>() > LARGEST {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.results.len() >= MOST && !kept.results.contains_key(&key) {
            let oldest = kept.results.iter().min_by_key(|(_, outcome)| outcome.asked).map(|(key, _)| *key);
            oldest.and_then(|oldest| kept.results.remove(&oldest));
        }
        kept.now += 1;
        let asked = kept.now;
        kept.results.insert(key, Outcome { asked, changes });
    }
}

impl super::Pipeline {
    /// Forgets what scripts gave.
    pub(crate) fn forget_results(&self) {
        self.results.forget();
    }
}

impl Changed {
    fn size(&self) -> usize {
        let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        self.name.len() + value(&self.before) + value(&self.after)
    }
}

fn by_name(variables: &Variables) -> BTreeMap<&str, &[u8]> {
    variables.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
}

fn difference(given: &Variables, after: &Variables) -> Vec<Changed> {
    let (given, after) = (by_name(given), by_name(after));
    let added = after.keys().filter(|name| !given.contains_key(*name));
    let names = given.keys().chain(added).filter(|name| given.get(*name) != after.get(*name));
    let value = |of: &BTreeMap<&str, &[u8]>, name: &str| of.get(name).map(|value| value.to_vec());
    names
        .map(|&name| Changed { name: name.to_owned(), before: value(&given, name), after: value(&after, name) })
        .collect()
}

/// Nothing where a variable that was changed is not what it was before.
fn apply(changes: &[Changed], given: &Variables) -> Option<Variables> {
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
    fn a_result_is_what_was_changed_and_holds_for_what_else_is_given() {
        let (results, key) = (Results::default(), Key([1; 32]));
        assert_eq!(results.find(&key, &variables(&[])), None);
        results.keep(key, &variables(&[("A", "1"), ("GONE", "x")]), &variables(&[("A", "1"), ("LIST", "a")]));
        let found = results.find(&key, &variables(&[("GONE", "x"), ("OTHER", "2")]));
        assert_eq!(found, Some(variables(&[("LIST", "a"), ("OTHER", "2")])));
    }

    #[test]
    fn a_variable_that_the_script_changed_must_be_what_it_was_before() {
        let (results, key) = (Results::default(), Key([1; 32]));
        results.keep(key, &variables(&[("LIST", "a")]), &variables(&[("LIST", "a:b")]));
        assert!(results.find(&key, &variables(&[("LIST", "a")])).is_some());
        assert_eq!(results.find(&key, &variables(&[("LIST", "c")])), None);
        assert_eq!(results.find(&key, &variables(&[])), None);
    }

    #[test]
    fn the_result_that_was_asked_for_longest_ago_goes_first_and_a_large_one_is_not_kept() {
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
