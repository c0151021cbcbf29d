//! Bounds the values of a label whose names come from the configuration.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::label::OTHER;

/// Maximum number of different names. Further names share the value `other`.
const MOST: usize = 50;

/// The names that have been used as values so far.
#[derive(Debug, Default)]
pub(crate) struct Names {
    known: Mutex<BTreeSet<String>>,
}

impl Names {
    /// Returns the name, or [`OTHER`] if too many other names came before.
    pub(crate) fn bounded<'a>(&self, name: &'a str) -> &'a str {
        // No code under this lock can leave the set inconsistent.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(name) {
            return name;
        }
        if known.len() >= MOST {
            return OTHER;
        }
        known.insert(name.to_owned());
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fifty_first_name_is_other_and_the_first_ones_stay() {
        let names = Names::default();
        let all: Vec<String> = (0..60).map(|number| format!("agent{number}")).collect();
        let bounded: BTreeSet<&str> = all.iter().map(|name| names.bounded(name)).collect();
        assert_eq!(bounded.len(), MOST + 1);
        assert_eq!((names.bounded("agent0"), names.bounded("agent59")), ("agent0", OTHER));
    }
}
