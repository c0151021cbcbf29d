//! What the daemon's own runs of scripts begin with: an environment in which no plugin has written what makes a program load or run
//! something (`agentd_plugins::is_withheld`).
//!
//! Such a name has the value that the user's login shell and scripts gave it, whatever a provider hands over for the script. Of a plugin
//! that is no part of agentd, any other name has the value that it had in the environment so far, unless the plugin is granted to set it.
//! What the provider handed over is put back behind the script, where the script left the name alone: a granted variable goes to the agent.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use agentd_plugins::is_withheld;

use super::capture::Variables;
use super::merge::Environment;

/// The environment so far as scripts may have it, and what the scripts of this call made of it.
#[derive(Debug, Default)]
pub(crate) struct Base {
    /// Of withheld names what the user's own steps left, of others what there is.
    so_far: BTreeMap<String, Vec<u8>>,
    /// By name; none where a script took it away.
    of_scripts: Mutex<BTreeMap<String, Option<Vec<u8>>>>,
}

/// What was handed over for a script and kept from it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Withheld(BTreeMap<String, Kept>);

#[derive(Debug, PartialEq, Eq)]
struct Kept {
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

    /// What a script is given in the place of what was handed over for it; `may` says which names, of those that are not withheld from
    /// everybody, the provider may choose.
    pub(crate) fn given(&self, handed_over: Variables, may: impl Fn(&str) -> bool) -> (Variables, Withheld) {
        let of_scripts = self.of_scripts.lock().unwrap_or_else(PoisonError::into_inner);
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
            withheld.0.insert(name, Kept { handed_over, given: own });
        }
        (given.into_iter().collect(), withheld)
    }

    /// The environment after the script, with what was kept from it; what the script made of a name counts for the next one.
    pub(crate) fn after(&self, given: &Variables, after: Variables, withheld: &Withheld) -> Variables {
        let before: BTreeMap<&str, &[u8]> =
            given.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect();
        let mut after: BTreeMap<String, Vec<u8>> = after.into_iter().collect();
        let mut of_scripts = self.of_scripts.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = before.keys().filter(|name| !after.contains_key(**name)).map(|name| (*name).to_owned());
        let names: Vec<String> = after.keys().cloned().chain(gone).collect();
        for name in names {
            let value = after.get(&name).cloned();
            if value.as_deref() != before.get(name.as_str()).copied() {
                of_scripts.insert(name, value);
            }
        }
        for (name, Kept { handed_over, given }) in &withheld.0 {
            if after.get(name) != given.as_ref() {
                continue; // the script's own word
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

    use agentd_plugins::Change;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Variables {
        variables.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect()
    }

    /// Of a login shell that sets two names, and a plugin that sets others and one of them anew.
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
    fn a_script_is_given_what_no_plugin_wrote_and_what_was_kept_from_it_is_put_back() {
        let (base, handed_over) = base();
        let (given, withheld) = base.given(handed_over.clone(), |_| true);
        assert_eq!(given, of(&[("A", "2"), ("LD_LIBRARY_PATH", "/own"), ("PAGER", "less"), ("PATH", "/tool")]));
        assert_eq!(base.after(&given, given.clone(), &withheld), handed_over);
    }

    #[test]
    fn what_a_script_itself_sets_or_removes_counts_and_the_next_one_has_it() {
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
    fn what_a_provider_makes_up_for_a_script_reaches_none() {
        let (base, _) = base();
        let (given, withheld) = base.given(of(&[("LD_PRELOAD", "/x.so"), ("PS4", "$(x)"), ("B", "3")]), |_| true);
        assert_eq!(given, of(&[("B", "3")]));
        let after = base.after(&given, given.clone(), &withheld);
        assert_eq!(after, of(&[("B", "3"), ("LD_PRELOAD", "/x.so"), ("PS4", "$(x)")]));
    }

    #[test]
    fn a_plugin_chooses_for_a_script_only_what_it_is_granted_and_the_next_script_has_what_the_first_one_set() {
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
