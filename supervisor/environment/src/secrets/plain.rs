//! Remembers variables that are no secrets. The search for secrets in a value takes microseconds, and one build asks
//! for each of its variables several times.
//!
//! Whether a variable is a secret depends on its name and its value alone, so the memory belongs to the whole program.
//! It has only hashes of values, because a variable without a telling name or form can still be a secret.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{LazyLock, Mutex};

use agentd_config::secret;

use crate::lock::locked;

/// Maximum number of names. The memory is cleared before it exceeds this number.
const NAMES: usize = 1024;
/// Maximum length of a remembered name in bytes.
const LONGEST: usize = 1024;

/// The hash of the last value of each name that was no secret. The key of the hashes is random, so no value can be made
/// to have the hash of another one.
static PLAIN: LazyLock<PlainValues> = LazyLock::new(PlainValues::default);

#[derive(Debug, Default)]
struct PlainValues {
    key: RandomState,
    hashes: Mutex<HashMap<String, u64>>,
}

/// Reports whether a variable is a secret, as [`secret::is_secret`] does.
pub(crate) fn is_secret(name: &str, value: &[u8]) -> bool {
    let hash = PLAIN.key.hash_one(value);
    if locked(&PLAIN.hashes).get(name) == Some(&hash) {
        return false;
    }
    let is_secret = secret::is_secret(name, value);
    if !is_secret && name.len() <= LONGEST {
        let mut hashes = locked(&PLAIN.hashes);
        if hashes.len() >= NAMES {
            hashes.clear();
        }
        hashes.insert(name.to_owned(), hash);
    }
    is_secret
}

/// Returns the parts of a variable's value that must be masked, as [`secret::values_of`] does.
pub(crate) fn values_of(name: &str, value: &[u8]) -> Vec<Vec<u8>> {
    if is_secret(name, value) { secret::parts_of(value) } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_follows_the_value_and_no_secret_is_remembered() {
        let (name, plain, secret) = ("PLAIN_TEST_URL", b"https://host/x".as_slice(), b"https://u:pa55word@host/x");
        for _ in 0..2 {
            assert!(!is_secret(name, plain));
            assert!(is_secret(name, secret));
        }
        assert_eq!(values_of(name, secret), agentd_config::secret::values_of(name, secret));
        let is_known = |name: &str| locked(&PLAIN.hashes).contains_key(name);
        assert!(is_known(name));
        assert!(is_secret("PLAIN_TEST_TOKEN", b"x") && !is_known("PLAIN_TEST_TOKEN"));
    }
}
