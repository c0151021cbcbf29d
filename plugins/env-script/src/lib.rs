//! `env-script`: sources the environment scripts of the user, the directory and the session in this order, and
//! returns their changes.
//!
//! Each script receives the environment with the changes of the scripts before it. So a later script overrides
//! an earlier one, and a removed variable is gone for the next script.
//!
//! The scripts are located once, before the first one runs. A script that does not exist then is skipped. If a
//! script fails, the whole call fails with the host's message.
//!
//! An exported bash function is passed on like a variable. The host decides who else receives it.

use std::collections::BTreeMap;

use agentd_plugin_sdk::pattern::matches;
use agentd_plugin_sdk::script::Sourced;
use agentd_plugin_sdk::{
    Capability, Change, Description, Effect, Failure, OrNone, Provider, Request, Variable, export_provider, log, script,
};

/// Path of the user's script.
const GLOBAL: &str = "{config}/env-setup.sh";
/// Path of the session's script.
const SESSION: &str = "{session}/env-setup.sh";
/// Names of scripts in the working directory.
const DIRECTORY_NAMES: &[&str] = &[".agentd-env.sh"];

/// Patterns of script paths. The settings may name any path.
const PLACES: [&str; 4] = ["{config}/**", "{cwd}/**", "{session}/**", "/**"];

/// Variables that every shell changes. They are not changes of the script.
const BOOKKEEPING: &[&str] = &["PWD", "OLDPWD", "SHLVL", "_"];

/// Variables that affect a shell. Set by a script, they would affect every shell that the agent starts.
const OF_THE_SHELL: &[&str] = &["BASH_*", "BASHOPTS", "SHELLOPTS", "ENV", "PS?", "PROMPT_COMMAND"];
/// Pattern of exported bash functions.
const FUNCTION: &str = "BASH_FUNC_*%%";

struct EnvScript;

impl Provider for EnvScript {
    fn describe() -> Description {
        let order = format!("{GLOBAL}, those of directory_names, {SESSION}");
        Description::new(
            "env-script",
            env!("CARGO_PKG_VERSION"),
            "sources the user's, the directory's and the session's scripts",
        )
        .setting(
            "directory_names",
            &format!(
                "a list of names of files in the working directory, sourced in order, such as \
                    [\".caco-env.sh\"]; default: {DIRECTORY_NAMES:?}"
            ),
        )
        .setting("scripts", &format!("a list of paths, sourced in order, in place of all others; default: {order}"))
        .wants(Capability::Script, PLACES, "sources the scripts that its settings name")
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        request.only_settings(&["directory_names", "scripts"])?;
        let scripts = scripts(request)?;
        let mut there = Vec::new();
        for (path, place) in scripts.iter().zip(script::locate(&scripts)?) {
            match place {
                Some(_) => there.push(path.as_str()),
                None => log::debug(format!("{path} is not there")),
            }
        }
        source_all(&there, &request.environment)
    }
}

export_provider!(EnvScript);

/// Returns the paths of the scripts in order.
fn scripts(request: &Request) -> Result<Vec<String>, Failure> {
    let names = request.settings("directory_names");
    match (request.settings("scripts"), names) {
        (Some(_), Some(_)) => Err(Failure::configuration(
            "scripts",
            "names every script, so \"directory_names\" would have no effect; set only one of them",
        )),
        (Some(scripts), None) => Ok(scripts.to_vec()),
        (None, names) => {
            let names: Vec<&str> =
                names.map_or_else(|| DIRECTORY_NAMES.to_vec(), |names| names.iter().map(String::as_str).collect());
            if let Some(wrong) = names.iter().find(|name| name.is_empty() || name.contains('/')) {
                let what = format!("must be names of files, and has {wrong:?}");
                return Err(Failure::configuration("directory_names", what));
            }
            let directory = names.into_iter().map(|name| format!("{{cwd}}/{name}"));
            Ok([GLOBAL.to_owned()].into_iter().chain(directory).chain([SESSION.to_owned()]).collect())
        }
    }
}

/// An environment by name.
type Environment = BTreeMap<String, Vec<u8>>;

/// Sources the scripts one after the other. Returns one change for each variable that differs at the end or
/// differed in between.
fn source_all(scripts: &[&str], so_far: &[Variable]) -> Result<Vec<Change>, Failure> {
    let mut environment: Environment = so_far.iter().map(|v| (v.name.clone(), v.value.clone())).collect();
    let mut changes: BTreeMap<String, Change> = BTreeMap::new();
    for script in scripts {
        let given: Vec<Variable> =
            environment.iter().map(|(name, value)| Variable::new(name.as_str(), value.clone())).collect();
        // The script may have been removed in the meantime.
        let Some(Sourced { path, environment: after }) = script::source(script, &given).or_none()? else { continue };
        for change in difference(&environment, after, &path) {
            match &change.effect {
                Effect::Set(set) => environment.insert(set.name.clone(), set.value.clone()),
                _ => environment.remove(change.name()),
            };
            changes.insert(change.name().to_owned(), change);
        }
    }
    Ok(changes.into_values().collect())
}

/// Returns the changes of a script including removals, without the shell's own variables.
fn difference(before: &Environment, after: Vec<Variable>, path: &str) -> Vec<Change> {
    let one_of = |patterns: &[&str], name: &str| patterns.iter().any(|pattern| matches(pattern, name));
    let of_the_shell = |name: &str| one_of(OF_THE_SHELL, name) && !matches(FUNCTION, name);
    let after: Environment = after.into_iter().map(|variable| (variable.name, variable.value)).collect();
    let gone = before.keys().filter(|name| !after.contains_key(*name) && !one_of(BOOKKEEPING, name));
    let mut changes: Vec<Change> =
        gone.map(|name| Change::unset(name.as_str(), "a script removed it").from_file(path)).collect();
    for (name, value) in after {
        if before.get(&name) == Some(&value) || one_of(BOOKKEEPING, &name) {
            continue;
        }
        let change = match of_the_shell(&name) {
            // A variable that existed before was set intentionally, so it keeps its value.
            true if before.contains_key(&name) => continue,
            true => Change::unset(name, "a script set it, and it would affect every shell that the agent starts"),
            false => Change::set(name, value),
        };
        changes.push(change.from_file(path));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::fake::{Call, Host};

    /// A script as a function on environments. The file is `/NAME`.
    type Script = fn(&mut Environment);

    fn run(scripts: &[(&str, Option<Script>)], so_far: &[(&str, &str)]) -> Result<Vec<Change>, Failure> {
        let host = Host::new().setting("scripts", scripts.iter().map(|(name, _)| format!("/{name}")));
        let host = scripts.iter().fold(host, |host, (name, script)| match script {
            Some(script) => host.script(&format!("/{name}"), *script),
            None => host.nothing_at(&format!("/{name}")),
        });
        so_far.iter().fold(host, |host, (name, value)| host.variable(name, *value)).provide::<EnvScript>()
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
            for name in ["PWD", "OLDPWD", "SHLVL", "_"] {
                put(e, name, "other");
            }
        };
        let second: Script = |e| assert!(e.is_empty(), "{e:?}");
        assert_eq!(run(&[("a", Some(script)), ("b", Some(second))], &[]), Ok(vec![]));
    }

    #[test]
    fn what_steers_a_shell_is_named_as_left_out_and_what_was_decided_before_stays() {
        let script: Script = |e| {
            put(e, "BASH_ENV", "/lmod/init");
            put(e, "ENV", "/other");
        };
        let second: Script = |e| assert!(!e.contains_key("BASH_ENV"), "{e:?}");
        let changes = run(&[("a", Some(script)), ("b", Some(second))], &[("ENV", "/mine")]).unwrap();
        let [Change { effect: Effect::Unset(removal), origin, .. }] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((removal.name.as_str(), origin.as_deref()), ("BASH_ENV", Some("/a")));
    }

    #[test]
    fn an_exported_function_is_there_for_the_next_script() {
        let first: Script = |e| put(e, "BASH_FUNC_module%%", "() {  :\n}");
        let second: Script = |e| assert!(e.contains_key("BASH_FUNC_module%%"), "{e:?}");
        assert_eq!(
            run(&[("a", Some(first)), ("b", Some(second))], &[]),
            Ok(vec![Change::set("BASH_FUNC_module%%", "() {  :\n}").from_file("/a")])
        );
    }

    #[test]
    fn the_directorys_scripts_are_those_that_the_administrator_names() {
        assert_eq!(named(&[]), Ok(vec![GLOBAL.into(), "{cwd}/.agentd-env.sh".into(), SESSION.into()]));
        assert_eq!(
            named(&[("directory_names", &[".agentd-env.sh", ".caco-env.sh"])]),
            Ok(vec![GLOBAL.into(), "{cwd}/.agentd-env.sh".into(), "{cwd}/.caco-env.sh".into(), SESSION.into()])
        );
        assert_eq!(named(&[("directory_names", &[])]), Ok(vec![GLOBAL.into(), SESSION.into()]));
        assert_eq!(named(&[("scripts", &["/a.sh"])]), Ok(vec!["/a.sh".into()]));
        for wrong in [
            &[("directory_names", &["../x.sh"][..])][..],
            &[("directory_names", &[""])],
            &[("directory_names", &["x.sh"]), ("scripts", &["/a.sh"])],
        ] {
            assert!(matches!(named(wrong), Err(Failure::Configuration(_))), "{wrong:?}");
        }
    }

    /// Returns the script paths that the plugin looks for.
    fn named(settings: &[(&str, &[&str])]) -> Result<Vec<String>, Failure> {
        let host = Host::new().nothing_at("**");
        let host = settings.iter().fold(host, |host, (key, values)| host.setting(key, values.iter().copied()));
        host.provide::<EnvScript>()?;
        match &host.calls()[..] {
            [Call::Locate(paths)] => Ok(paths.clone()),
            calls => panic!("{calls:?}"),
        }
    }

    #[test]
    fn a_refusal_of_the_host_is_passed_on_in_its_own_words() {
        let refusal = Failure::NotApproved("not approved".to_owned());
        let host = Host::new().script_fails("{cwd}/.agentd-env.sh", refusal.clone()).nothing_at("/home/**");
        assert_eq!(host.provide::<EnvScript>(), Err(refusal));
    }

    #[test]
    fn a_script_that_is_gone_when_its_turn_comes_is_passed_over() {
        let gone = Failure::not_found("gone");
        let host = Host::new().setting("scripts", ["/a"]).script_fails("/a", gone);
        assert_eq!(host.provide::<EnvScript>(), Ok(vec![]));
    }
}
