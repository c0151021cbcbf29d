//! What becomes of the functions that bash exports, as the setting `environment.functions` says: pure.
//!
//! On its way through the pipeline a function is a variable like any other: the snapshot sets it, a script is given it and
//! may define another. Here is decided what enters (nothing, where nobody is given any) and what is left for the agent.

use agentd_plugins::Change;

use super::capture::Variables;
use super::merge::Environment;
use crate::config::Functions;

/// Whether the name is that of an exported function (bash since 4.3; `execute_cmd.c` and `variables.c` of its sources).
fn is_function(name: &str) -> bool {
    name.starts_with("BASH_FUNC_") && name.ends_with("%%")
}

/// What a shell gave, without what is given to nobody.
pub(super) fn entering(policy: Functions, mut variables: Variables) -> Variables {
    if policy == Functions::Drop {
        variables.retain(|(name, _)| !is_function(name));
    }
    variables
}

/// The removal of what the agent is not given.
pub(super) fn withheld(policy: Functions, environment: &Environment) -> Vec<Change> {
    if policy == Functions::Agent {
        return Vec::new();
    }
    let functions = environment.pairs().map(|(name, _)| name).filter(|name| is_function(name));
    let reason = "an exported bash function; the setting environment.functions gives agents none";
    functions
        .map(|name| Change::Unset { name: name.to_owned(), reason: Some(reason.to_owned()), origin: None })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "BASH_FUNC_module%%";

    #[test]
    fn functions_enter_unless_nobody_is_given_them() {
        let entered = |policy| {
            let variables = [MODULE, "BASH_FUNC_NOT_ONE", "PATH"].map(|name| (name.to_owned(), b"x".to_vec()));
            let entered = entering(policy, variables.to_vec());
            entered.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(entered(Functions::Scripts), [MODULE, "BASH_FUNC_NOT_ONE", "PATH"]);
        assert_eq!(entered(Functions::Agent), [MODULE, "BASH_FUNC_NOT_ONE", "PATH"]);
        assert_eq!(entered(Functions::Drop), ["BASH_FUNC_NOT_ONE", "PATH"]);
    }

    #[test]
    fn an_agent_is_given_none_unless_that_is_asked_for() {
        let set = |name: &str| Change::Set { name: name.to_owned(), value: b"x".to_vec(), origin: None };
        let mut environment = Environment::default();
        environment.apply("a", 1, vec![set(MODULE), set("PATH")]).unwrap();
        assert_eq!(withheld(Functions::Agent, &environment), []);
        for policy in [Functions::Scripts, Functions::Drop] {
            let names: Vec<_> = withheld(policy, &environment).iter().map(|change| change.name().to_owned()).collect();
            assert_eq!(names, [MODULE]);
        }
    }
}
