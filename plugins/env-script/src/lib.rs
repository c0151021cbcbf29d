//! `env-script`: sources environment scripts in order, the user's, the directory's, the session's, and contributes what
//! they change.
//!
//! Each script is given the environment so far with the changes of the scripts before it, so a later one overrides an
//! earlier one, and what a script removes is gone for the next. A script that is not there is passed over; one that
//! fails, fails the whole.

use std::collections::BTreeMap;

use agentd_plugin_sdk::pattern::matches;
use agentd_plugin_sdk::script::{Outcome, Sourced};
use agentd_plugin_sdk::{Change, Description, Failure, Provider, Request, Variable, export_provider, log, script};

/// The user's own, the working directory's, the session's.
const SCRIPTS: &[&str] = &["{config}/env-setup.sh", "{cwd}/.agentd-env.sh", "{session}/env-setup.sh"];

/// What a shell changes by running at all.
const BOOKKEEPING: &[&str] = &["PWD", "OLDPWD", "SHLVL", "_", "BASH_*"];

struct EnvScript;

impl Provider for EnvScript {
    fn describe() -> Description {
        Description::new(
            "env-script",
            env!("CARGO_PKG_VERSION"),
            "sources the user's, the directory's and the session's scripts",
        )
        .setting("scripts", &format!("a list of paths, sourced in order; default: {SCRIPTS:?}"))
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        request.only_settings(&["scripts"])?;
        let scripts: Vec<&str> = match request.settings("scripts") {
            Some(scripts) => scripts.iter().map(String::as_str).collect(),
            None => SCRIPTS.to_vec(),
        };
        source_all(&scripts, &request.environment, script::source)
    }
}

export_provider!(EnvScript);

/// An environment by name.
type Environment = BTreeMap<String, Vec<u8>>;

/// Sources the scripts one after the other; one change for each variable that is different in the end, or was for a while.
fn source_all(
    scripts: &[&str],
    so_far: &[Variable],
    mut source: impl FnMut(&str, &[Variable]) -> Result<Outcome, Failure>,
) -> Result<Vec<Change>, Failure> {
    let mut environment: Environment = so_far.iter().map(|v| (v.name.clone(), v.value.clone())).collect();
    let mut changes: BTreeMap<String, Change> = BTreeMap::new();
    for script in scripts {
        let given: Vec<Variable> =
            environment.iter().map(|(name, value)| Variable::new(name.as_str(), value.clone())).collect();
        match source(script, &given)? {
            Outcome::Absent => log::debug(format!("{script} is not there")),
            Outcome::Sourced(Sourced { path, environment: after }) => {
                for change in difference(&environment, after, &path) {
                    match &change {
                        Change::Set(set) => environment.insert(set.name.clone(), set.value.clone()),
                        other => environment.remove(other.name()),
                    };
                    changes.insert(change.name().to_owned(), change);
                }
            }
        }
    }
    Ok(changes.into_values().collect())
}

/// What a script changed, removals too, bookkeeping not.
fn difference(before: &Environment, after: Vec<Variable>, path: &str) -> Vec<Change> {
    let counts = |name: &str| !BOOKKEEPING.iter().any(|pattern| matches(pattern, name));
    let after: Environment = after.into_iter().map(|variable| (variable.name, variable.value)).collect();
    let gone = before.keys().filter(|name| !after.contains_key(*name) && counts(name));
    let mut changes: Vec<Change> =
        gone.map(|name| Change::unset(name.as_str(), "a script removed it").from_file(path)).collect();
    for (name, value) in after {
        if counts(&name) && before.get(&name) != Some(&value) {
            changes.push(Change::set(name, value).from_file(path));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Vec<Variable> {
        variables.iter().map(|&(name, value)| Variable::new(name, value)).collect()
    }

    /// A script as a function on environments; the file is `/PATH`.
    type Script = fn(&mut Environment);

    fn run(scripts: &[(&str, Option<Script>)], so_far: &[(&str, &str)]) -> Result<Vec<Change>, Failure> {
        let names: Vec<&str> = scripts.iter().map(|(name, _)| *name).collect();
        source_all(&names, &environment(so_far), |path, given| {
            let (_, script) =
                scripts.iter().find(|(name, _)| *name == path).expect("only what was asked for is sourced");
            let Some(script) = script else { return Ok(Outcome::Absent) };
            let mut after: Environment = given.iter().map(|v| (v.name.clone(), v.value.clone())).collect();
            script(&mut after);
            let environment = after.into_iter().map(|(name, value)| Variable { name, value }).collect();
            Ok(Outcome::Sourced(Sourced { path: format!("/{path}"), environment }))
        })
    }

    fn put(environment: &mut Environment, name: &str, value: &str) {
        environment.insert(name.to_owned(), value.as_bytes().to_vec());
    }

    #[test]
    fn a_script_that_changes_nothing_contributes_nothing() {
        assert_eq!(run(&[("a", Some(|_| {})), ("b", None)], &[("PATH", "/bin")]), Ok(vec![]));
    }

    #[test]
    fn additions_and_changes_are_set_and_removals_propagate_with_the_file_they_came_from() {
        let script: Script = |e| {
            put(e, "NEW", "1");
            put(e, "PATH", "/x:/bin");
            e.remove("GONE");
        };
        assert_eq!(
            run(&[("a", Some(script))], &[("PATH", "/bin"), ("GONE", "x"), ("SAME", "y")]),
            Ok(vec![
                Change::unset("GONE", "a script removed it").from_file("/a"),
                Change::set("NEW", "1").from_file("/a"),
                Change::set("PATH", "/x:/bin").from_file("/a"),
            ])
        );
    }

    #[test]
    fn a_later_script_sees_and_overrides_an_earlier_one() {
        let first: Script = |e| put(e, "MODE", "global");
        let second: Script = |e| {
            let seen = e["MODE"].clone();
            put(e, "MODE", "session");
            put(e, "SEEN", std::str::from_utf8(&seen).unwrap());
        };
        assert_eq!(
            run(&[("a", Some(first)), ("b", Some(second))], &[]),
            Ok(vec![Change::set("MODE", "session").from_file("/b"), Change::set("SEEN", "global").from_file("/b")])
        );
    }

    #[test]
    fn what_one_script_removes_is_gone_for_the_next_and_can_come_back() {
        let remove: Script = |e| {
            e.remove("A");
        };
        let restore: Script = |e| {
            assert!(!e.contains_key("A"));
            put(e, "A", "again");
        };
        assert_eq!(
            run(&[("a", Some(remove)), ("b", Some(restore))], &[("A", "1")]),
            Ok(vec![Change::set("A", "again").from_file("/b")])
        );
    }

    #[test]
    fn the_shells_bookkeeping_is_no_change_and_does_not_reach_the_next_script() {
        let script: Script = |e| {
            for name in ["PWD", "OLDPWD", "SHLVL", "_", "BASH_ENV", "BASH_FUNC_f%%"] {
                put(e, name, "other");
            }
        };
        let second: Script = |e| assert!(e.is_empty(), "{e:?}");
        assert_eq!(run(&[("a", Some(script)), ("b", Some(second))], &[]), Ok(vec![]));
    }

    #[test]
    fn a_refusal_of_the_host_is_passed_on_in_its_own_words() {
        let refusal = Failure::Refused("not approved".to_owned());
        assert_eq!(source_all(&["a"], &[], |_, _| Err(refusal.clone())), Err(refusal));
    }
}
