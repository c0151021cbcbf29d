//! The environment that a call was made in: what a plugin passes on of it unchanged was not chosen by the plugin.

use std::collections::BTreeMap;

use crate::grant::steers;
use crate::services::COMMAND_PATH;

/// Names and values that a plugin may give to a program without a grant.
#[derive(Debug, Default)]
pub(crate) struct Around(BTreeMap<String, Vec<u8>>);

impl Around {
    /// Of what was given, all but names that make programs load or run something and that another plugin wrote.
    pub(crate) fn new(environment: &[(String, Vec<u8>)], foreign: &[String]) -> Self {
        let chosen = |name: &String| foreign.contains(name) && steers(name).is_some();
        let own = environment.iter().filter(|(name, _)| !chosen(name));
        Self(own.cloned().collect())
    }

    /// Whether the variable is as it was given, or as the host itself gives it to programs.
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
        let around = Around::new(&given, &["LD_PRELOAD".to_owned(), "B".to_owned()]);
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
