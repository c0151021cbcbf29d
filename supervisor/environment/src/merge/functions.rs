//! Handles exported bash functions as the setting `environment.functions` requires, without I/O.
//!
//! In the pipeline an exported function is a variable. The snapshot sets it, and a script receives it and may
//! define further functions. This module decides which functions enter the pipeline and which remain for the agent.

use agentd_plugin_host::Change;

use super::Environment;
use crate::login::capture::Variables;
use agentd_config::Functions;

/// Reason recorded for a function that is withheld from the agent.
pub(super) const WITHHELD: &str = "an exported bash function; the setting environment.functions gives agents none";

/// Reports whether `name` is the name of an exported function. The format is that of bash since 4.3
/// (`execute_cmd.c` and `variables.c` of its sources).
fn is_function(name: &str) -> bool {
    name.starts_with("BASH_FUNC_") && name.ends_with("%%")
}

/// Returns the variables of a shell, without exported functions if the policy is `Drop`.
pub(crate) fn permitted(policy: Functions, mut variables: Variables) -> Variables {
    if policy == Functions::Drop {
        variables.retain(|(name, _)| !is_function(name));
    }
    variables
}

/// Returns the changes that remove the functions which the policy withholds from the agent.
pub(crate) fn withheld(policy: Functions, environment: &Environment) -> Vec<Change> {
    if policy == Functions::Agent {
        return Vec::new();
    }
    let functions = environment.pairs().map(|(name, _)| name).filter(|name| is_function(name));
    functions.map(|name| Change::unset(name, Some(WITHHELD.to_owned()))).collect()
}

/// Returns the changes that remove functions which name a variable of the login shell that the environment has
/// lost. Without the variable such a function would do something else.
/// For example, lmod's `module load X` is `$LMOD_CMD bash load X`. Without `LMOD_CMD`, bash runs an unapproved file
/// `load` of the working directory.
pub(crate) fn lacking_a_variable(login: &Variables, environment: &Environment) -> Vec<Change> {
    let lost = |name: &str| environment.get(name).is_none() && login.iter().any(|(of_login, _)| of_login == name);
    let functions = environment.pairs().filter(|(name, _)| is_function(name));
    functions
        .filter_map(|(name, body)| {
            let missing = named_in(body).find(|name| lost(name))?;
            let reason = format!("an exported bash function that needs {missing}, which was dropped");
            Some(Change::unset(name, Some(reason)))
        })
        .collect()
}

/// Returns the variables that a shell text names: `$NAME`, `${NAME...}`, `${!NAME}`, `${#NAME}`.
fn named_in(text: &[u8]) -> impl Iterator<Item = &str> {
    text.split(|&byte| byte == b'$').skip(1).filter_map(|rest| {
        let rest = rest.strip_prefix(b"{").unwrap_or(rest);
        let rest = rest.strip_prefix(b"!").or(rest.strip_prefix(b"#")).unwrap_or(rest);
        let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').unwrap_or(rest.len());
        std::str::from_utf8(&rest[..end]).ok().filter(|name| !name.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = "BASH_FUNC_module%%";

    #[test]
    fn functions_enter_unless_the_policy_drops_them() {
        let entered = |policy| {
            let variables = [MODULE, "BASH_FUNC_NOT_ONE", "PATH"].map(|name| (name.to_owned(), b"x".to_vec()));
            let entered = permitted(policy, variables.to_vec());
            entered.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(entered(Functions::Scripts), [MODULE, "BASH_FUNC_NOT_ONE", "PATH"]);
        assert_eq!(entered(Functions::Agent), [MODULE, "BASH_FUNC_NOT_ONE", "PATH"]);
        assert_eq!(entered(Functions::Drop), ["BASH_FUNC_NOT_ONE", "PATH"]);
    }

    #[test]
    fn a_function_is_dropped_with_the_variables_that_it_needs() {
        let variable = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
        let body = "() {  eval $($LMOD_CMD bash \"$@\") && eval $(${LMOD_SETTARG_CMD:-:} -s sh)\n}";
        let login = vec![variable(MODULE, body), variable("LMOD_CMD", "/l"), variable("OTHER", "x")];
        let names = |given: &[(String, Vec<u8>)]| {
            let mut environment = Environment::default();
            let set = |(name, value): &(String, Vec<u8>)| Change::set(name, value.as_slice());
            environment.apply("a", 1, given.iter().map(set).collect()).unwrap();
            lacking_a_variable(&login, &environment).iter().map(|change| change.name().to_owned()).collect::<Vec<_>>()
        };
        assert!(names(&login).is_empty());
        assert!(names(&login[..2]).is_empty(), "it does not need the other");
        assert_eq!(names(&login[..1]), [MODULE]);
        let found: Vec<_> = named_in(b"a $B ${C} ${!D[@]} ${#E} $$ $1 $(F) \"$G\"").collect();
        assert_eq!(found, ["B", "C", "D", "E", "1", "G"]);
    }

    #[test]
    fn an_agent_receives_functions_only_if_configured() {
        let set = |name: &str| Change::set(name, "x");
        let mut environment = Environment::default();
        environment.apply("a", 1, vec![set(MODULE), set("PATH")]).unwrap();
        assert_eq!(withheld(Functions::Agent, &environment), []);
        for policy in [Functions::Scripts, Functions::Drop] {
            let names: Vec<_> = withheld(policy, &environment).iter().map(|change| change.name().to_owned()).collect();
            assert_eq!(names, [MODULE]);
        }
    }
}
