//! Variables that a plugin passes on unchanged from its call's environment. The plugin did not choose their
//! values, so they need no grant.

use std::collections::BTreeMap;

use crate::grant::steers;
use crate::services::COMMAND_PATH;

/// Variables that a plugin may pass to a program without a grant.
#[derive(Debug, Default)]
pub(crate) struct PassThrough(BTreeMap<String, Vec<u8>>);

impl PassThrough {
    /// Takes the call's environment, without variables that another plugin set and that make programs load or
    /// run something.
    pub(crate) fn new(environment: &[(String, Vec<u8>)], foreign: &[String]) -> Self {
        let chosen = |name: &String| foreign.contains(name) && steers(name).is_some();
        let own = environment.iter().filter(|(name, _)| !chosen(name));
        Self(own.cloned().collect())
    }

    /// Reports whether the variable is unchanged, or has the value that the host itself gives to programs.
    pub(crate) fn has(&self, (name, value): &(String, Vec<u8>)) -> bool {
        self.0.get(name) == Some(value) || (name == "PATH" && value == COMMAND_PATH.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_unchanged_is_not_chosen_unless_another_plugin_chose_it() {
        let of = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let given = [of("A", "1"), of("BASH_ENV", "/home/u/rc"), of("LD_PRELOAD", "/x.so"), of("B", "2")];
        let around = PassThrough::new(&given, &["LD_PRELOAD".to_owned(), "B".to_owned()]);
        for (variable, expected) in [
            (of("A", "1"), true),
            (of("A", "2"), false),
            (of("C", ""), false),
            (of("BASH_ENV", "/home/u/rc"), true),
            (of("LD_PRELOAD", "/x.so"), false),
            (of("B", "2"), true),
            (of("PATH", COMMAND_PATH), true),
            (of("PATH", "/tmp"), false),
        ] {
            assert_eq!(around.has(&variable), expected, "{}", variable.0);
        }
    }
}
