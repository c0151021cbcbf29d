//! Computes the environment with which the daemon's own script runs start. In it, no plugin has set a variable that
//! makes a program load or run code (`agentd_plugin_host::is_withheld`).
//!
//! A withheld name has the value from the user's login shell and scripts, even if a provider passes another value.
//! A plugin outside agentd can change other names only if it is granted to set them. Otherwise they keep their
//! current values.
//!
//! If the script did not change a withheld name, the provider's value is restored after the script. A granted
//! variable thus reaches the agent.

use std::collections::BTreeMap;
use std::sync::Mutex;

use agentd_plugin_host::is_withheld;

use crate::lock::locked;
use crate::login::capture::Variables;
use crate::merge::Environment;

/// The current environment as scripts may see it, and the changes by the scripts of this call.
#[derive(Debug, Default)]
pub(crate) struct Base {
    /// For withheld names the value from the user's own steps, for others the current value.
    so_far: BTreeMap<String, Vec<u8>>,
    /// Values that scripts set, by name. `None` if a script removed the variable.
    of_scripts: Mutex<BTreeMap<String, Option<Vec<u8>>>>,
}

/// Values that a provider passed for a script and that were withheld from it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Withheld(BTreeMap<String, WithheldValue>);

#[derive(Debug, PartialEq, Eq)]
struct WithheldValue {
    handed_over: Option<Vec<u8>>,
    given: Option<Vec<u8>>,
}

impl Base {
    pub(crate) fn new(environment: &Environment) -> Self {
        let value = |name: &str| {
            let value = if is_withheld(name) { environment.without_plugins(name) } else { environment.get(name) };
            Some((name.to_owned(), value?.to_vec()))
        };
        Self { so_far: environment.names().filter_map(value).collect(), of_scripts: Mutex::default() }
    }

    /// Returns the variables that the script receives and the withheld values. `may` reports which names the
    /// provider may choose, among the names that are not withheld from every plugin.
    pub(crate) fn given(&self, handed_over: Variables, may: impl Fn(&str) -> bool) -> (Variables, Withheld) {
        let of_scripts = locked(&self.of_scripts);
        let mut given: BTreeMap<String, Vec<u8>> = handed_over.into_iter().collect();
        let names: Vec<String> = given.keys().filter(|name| is_withheld(name) || !may(name)).cloned().collect();
        let mut withheld = Withheld::default();
        for name in names {
            let own = match of_scripts.get(&name) {
                Some(value) => value.clone(),
                None => self.so_far.get(&name).cloned(),
            };
            let handed_over = given.get(&name).cloned();
            if own == handed_over {
                continue;
            }
            match &own {
                Some(value) => given.insert(name.clone(), value.clone()),
                None => given.remove(&name),
            };
            withheld.0.insert(name, WithheldValue { handed_over, given: own });
        }
        (given.into_iter().collect(), withheld)
    }

    /// Returns the environment after the script, with the withheld values restored. The script's changes count for
    /// the next script.
    pub(crate) fn after(&self, given: &Variables, after: Variables, withheld: &Withheld) -> Variables {
        let before: BTreeMap<&str, &[u8]> =
            given.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        let mut after: BTreeMap<String, Vec<u8>> = after.into_iter().collect();
        let mut of_scripts = locked(&self.of_scripts);
        let gone = before.keys().filter(|name| !after.contains_key(**name)).map(|name| (*name).to_owned());
        let names: Vec<String> = after.keys().cloned().chain(gone).collect();
        for name in names {
            let value = after.get(&name).cloned();
            if value.as_deref() != before.get(name.as_str()).copied() {
                of_scripts.insert(name, value);
            }
        }
        for (name, WithheldValue { handed_over, given }) in &withheld.0 {
            if after.get(name) != given.as_ref() {
                continue; // the script changed the variable
            }
            match handed_over {
                Some(value) => after.insert(name.clone(), value.clone()),
                None => after.remove(name),
            };
        }
        after.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use agentd_plugin_host::Change;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Variables {
        variables.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
    }

    /// Returns the base of a login shell that sets two names, and the variables of a plugin. The plugin sets
    /// further names and overrides one of the two.
    fn base() -> (Base, Variables) {
        let own = Arc::new(BTreeSet::from(["snapshot".to_owned()]));
        let mut environment = Environment::default().with_own_steps(own);
        let set = |name: &str, value: &str| Change::set(name, value);
        let login = vec![set("LD_LIBRARY_PATH", "/own"), set("PATH", "/bin"), set("A", "1"), set("PAGER", "less")];
        environment.apply("snapshot", 1, login).unwrap();
        let plugin =
            vec![set("LD_LIBRARY_PATH", "/evil"), set("BASH_ENV", "$(evil)"), set("PATH", "/tool"), set("A", "2")];
        environment.apply("plugin", 2, plugin).unwrap();
        assert_eq!(environment.foreign(), ["A", "BASH_ENV", "LD_LIBRARY_PATH", "PATH"]);
        (Base::new(&environment), environment.variables())
    }

    #[test]
    fn withheld_values_are_hidden_from_a_script_and_restored_after_it() {
        let (base, handed_over) = base();
        let (given, withheld) = base.given(handed_over.clone(), |_| true);
        assert_eq!(given, of(&[("A", "2"), ("LD_LIBRARY_PATH", "/own"), ("PAGER", "less"), ("PATH", "/tool")]));
        assert_eq!(base.after(&given, given.clone(), &withheld), handed_over);
    }

    #[test]
    fn the_changes_of_a_script_take_precedence_and_reach_the_next_script() {
        let (base, handed_over) = base();
        let (given, withheld) = base.given(handed_over, |_| true);
        let ran = of(&[("A", "2"), ("LD_LIBRARY_PATH", "/more:/own"), ("PATH", "/tool"), ("ENV", "/rc")]);
        let after = base.after(&given, ran, &withheld);
        let expected =
            [("A", "2"), ("BASH_ENV", "$(evil)"), ("ENV", "/rc"), ("LD_LIBRARY_PATH", "/more:/own"), ("PATH", "/tool")];
        assert_eq!(after, of(&expected));
        let (given, _) = base.given(after, |_| true);
        assert_eq!(given, of(&[("A", "2"), ("ENV", "/rc"), ("LD_LIBRARY_PATH", "/more:/own"), ("PATH", "/tool")]));
    }

    #[test]
    fn an_invented_withheld_variable_reaches_no_script() {
        let (base, _) = base();
        let (given, withheld) = base.given(of(&[("LD_PRELOAD", "/x.so"), ("PS4", "$(x)"), ("B", "3")]), |_| true);
        assert_eq!(given, of(&[("B", "3")]));
        let after = base.after(&given, given.clone(), &withheld);
        assert_eq!(after, of(&[("B", "3"), ("LD_PRELOAD", "/x.so"), ("PS4", "$(x)")]));
    }

    #[test]
    fn a_plugin_sets_only_granted_names_for_a_script_and_the_next_script_sees_the_first_scripts_changes() {
        let (base, _) = base();
        let may = |name: &str| name == "LM_FILE";
        let made_up = of(&[("A", "2"), ("B", "3"), ("LM_FILE", "x"), ("PATH", "/evil:/bin")]);
        let (given, withheld) = base.given(made_up.clone(), may);
        assert_eq!(given, of(&[("A", "2"), ("LM_FILE", "x"), ("PATH", "/tool")]));
        let mut ran = given.clone();
        ran.push(("C".to_owned(), b"4".to_vec()));
        let after = base.after(&given, ran, &withheld);
        let expected = [("A", "2"), ("B", "3"), ("C", "4"), ("LM_FILE", "x"), ("PATH", "/evil:/bin")];
        assert_eq!(after, of(&expected), "the plugin finds what it handed over");
        assert_eq!(base.given(of(&[("C", "4"), ("D", "5")]), may).0, of(&[("C", "4")]));
    }
}
