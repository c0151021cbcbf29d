//! Remembers variables that are no secrets. The search for secrets in a value takes microseconds, and one build asks for
//! each of its variables several times.
//!
//! Whether a variable is a secret depends on its name and its value alone, so the memory belongs to the whole program.
//! It never holds a secret.

use std::collections::HashMap;
use std::sync::Mutex;

use agentd_config::secret;

use crate::lock::locked;

/// Maximum number of names. The memory is cleared before it exceeds this number.
const NAMES: usize = 1024;
/// Maximum length of a remembered value in bytes.
const LONGEST: usize = 1024;

/// The last value of each name that was no secret.
static PLAIN: Mutex<Option<HashMap<String, Vec<u8>>>> = Mutex::new(None);

/// Reports whether a variable is a secret, as [`secret::is_secret`] does.
pub(crate) fn is_secret(name: &str, value: &[u8]) -> bool {
    if locked(&PLAIN).as_ref().and_then(|plain| plain.get(name)).is_some_and(|plain| plain == value) {
        return false;
    }
    let is_secret = secret::is_secret(name, value);
    if !is_secret && value.len() <= LONGEST && name.len() <= LONGEST {
        let mut plain = locked(&PLAIN);
        let plain = plain.get_or_insert_default();
        if plain.len() >= NAMES {
            plain.clear();
        }
        plain.insert(name.to_owned(), value.to_vec());
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
        let known = locked(&PLAIN).as_ref().and_then(|known| known.get(name).cloned());
        assert_eq!(known.as_deref(), Some(plain));
        assert!(is_secret("PLAIN_TEST_TOKEN", b"x"));
        assert!(!locked(&PLAIN).as_ref().is_some_and(|known| known.contains_key("PLAIN_TEST_TOKEN")));
        let long = vec![b'x'; LONGEST + 1];
        assert!(!is_secret("PLAIN_TEST_LONG", &long));
        assert!(!locked(&PLAIN).as_ref().is_some_and(|known| known.contains_key("PLAIN_TEST_LONG")));
    }
}
