//! `snapshot`: starts a session's environment from the user's login shell.
//!
//! Sets every variable of the login shell except those of a terminal, a shell, a service manager, an editor or
//! another host of agents ([`rules`]).
//!
//! For each variable that is left out, it returns an `unset` with the reason. The host records it, so that
//! users can find out why a variable is missing. Exported bash functions are passed on; the host decides which
//! of them it gives.

#[cfg(test)]
#[path = "../../whitelist/src/agents.rs"]
#[allow(dead_code, reason = "the test uses only the list of names")]
mod agents;
mod rules;

use agentd_plugin_sdk::pattern::matches;
use agentd_plugin_sdk::{
    Change, Description, Effect, Failure, Provider, Request, Variable, export_provider, log, shell,
};

struct Snapshot;

impl Provider for Snapshot {
    fn describe() -> Description {
        Description::new("snapshot", env!("CARGO_PKG_VERSION"), "starts the environment from the user's login shell")
            .setting("drop", "a list of patterns of names to leave out besides the built-in ones; default: []")
            .setting(
                "allow",
                "names and patterns that override the built-in rules, such as SSH_AUTH_SOCK; agentd sets it to the \
                 whitelist's \"allow\"; a pattern that begins with * or ? has no effect here; default: []",
            )
            .setting("keep", "an older form of \"allow\" that also overrides \"drop\"; default: []")
            .wants_login_shell("the session's environment starts with the shell's")
    }

    fn provide(request: &Request) -> Result<Vec<Change>, Failure> {
        request.only_settings(&["drop", "allow", "keep"])?;
        let policy = Policy {
            drop: request.settings("drop").unwrap_or_default(),
            allow: request.settings("allow").unwrap_or_default(),
            keep: request.settings("keep").unwrap_or_default(),
        };
        let changes = policy.changes(shell::login()?);
        let dropped = changes.iter().filter(|change| matches!(change.effect, Effect::Unset(_))).count();
        log::debug(format!("{} variables from the login shell, {dropped} left out", changes.len() - dropped));
        Ok(changes)
    }
}

export_provider!(Snapshot);

/// The settings of the administrator.
struct Policy<'a> {
    drop: &'a [String],
    allow: &'a [String],
    keep: &'a [String],
}

impl Policy<'_> {
    fn changes(&self, login: Vec<Variable>) -> Vec<Change> {
        let change = |variable: Variable| match self.reason_to_drop(&variable.name) {
            Some(reason) => Change::unset(variable.name, reason),
            None => Change::set(variable.name, variable.value),
        };
        login.into_iter().map(change).collect()
    }

    /// Returns why the variable is left out, or `None` if it is taken.
    ///
    /// An exact name in `allow` overrides `drop`, and `drop` overrides a pattern in `allow`.
    fn reason_to_drop(&self, name: &str) -> Option<String> {
        let is_kept = self.keep.iter().any(|pattern| matches(pattern, name));
        if is_kept || self.allow.iter().any(|allowed| allowed == name) {
            return None;
        }
        if let Some(pattern) = self.drop.iter().find(|pattern| matches(pattern, name)) {
            return Some(format!("matches {pattern:?} of the setting \"drop\""));
        }
        // `*` is meant for the whitelist, and does not ask for the variables of a terminal.
        let says_something = |pattern: &&String| !pattern.starts_with(['*', '?']);
        if self.allow.iter().filter(says_something).any(|pattern| matches(pattern, name)) {
            return None;
        }
        rules::reason_to_drop(name).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentd_plugin_sdk::fake::Host;

    fn policy(drop: &[&str], keep: &[&str], login: &[&str]) -> (Vec<String>, Vec<String>) {
        let host = Host::new().login(login.iter().map(|&name| (name, "value")));
        let host = host.setting("drop", drop.iter().copied()).setting("keep", keep.iter().copied());
        let (mut set, mut dropped) = (Vec::new(), Vec::new());
        for change in host.provide::<Snapshot>().unwrap() {
            match change.effect {
                Effect::Set(variable) => set.push(variable.name),
                Effect::Unset(removal) => {
                    assert!(removal.reason.is_some_and(|reason| !reason.is_empty()), "{}", removal.name);
                    dropped.push(removal.name);
                }
                other => panic!("{other:?}"),
            }
        }
        (set, dropped)
    }

    #[test]
    fn ordinary_variables_are_taken_and_those_of_a_terminal_are_named_as_left_out() {
        let (set, dropped) = policy(&[], &[], &["PATH", "EDITOR", "TERM", "TMUX_PANE", "CLAUDECODE", "JAVA_HOME"]);
        assert_eq!(set, ["PATH", "EDITOR", "JAVA_HOME"]);
        assert_eq!(dropped, ["TERM", "TMUX_PANE", "CLAUDECODE"]);
    }

    #[test]
    fn the_administrator_drops_more_and_keeps_what_a_rule_drops() {
        let (set, dropped) = policy(&["JAVA_*"], &["SSH_AUTH_SOCK"], &["JAVA_HOME", "SSH_AUTH_SOCK", "SSH_CLIENT"]);
        assert_eq!(set, ["SSH_AUTH_SOCK"]);
        assert_eq!(dropped, ["JAVA_HOME", "SSH_CLIENT"]);
    }

    #[test]
    fn what_is_allowed_is_taken_in_spite_of_the_rules_and_an_exact_name_in_spite_of_drop() {
        let login = ["SSH_AUTH_SOCK", "SSH_TTY", "SSH_ASKPASS", "TMUX", "PWD"].map(|name| (name, "value"));
        let taken = |allow: &[&str], drop: &[&str]| {
            let host = Host::new().login(login).setting("allow", allow.iter().copied());
            let changes = host.setting("drop", drop.iter().copied()).provide::<Snapshot>().unwrap();
            let set = changes.into_iter().filter(|change| matches!(change.effect, Effect::Set(_)));
            set.map(|change| change.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(taken(&["SSH_AUTH_SOCK"], &[]), ["SSH_AUTH_SOCK"]);
        assert_eq!(taken(&["SSH_AUTH_SOCK"], &["SSH_*"]), ["SSH_AUTH_SOCK"]);
        assert_eq!(taken(&["SSH_*"], &["SSH_TTY"]), ["SSH_AUTH_SOCK", "SSH_ASKPASS"]);
        assert_eq!(taken(&["*", "?WD"], &[]), [""; 0]);
    }

    #[test]
    fn keep_goes_before_drop() {
        let (set, _) = policy(&["A*"], &["AB"], &["AB", "AC"]);
        assert_eq!(set, ["AB"]);
    }

    #[test]
    fn values_are_taken_to_the_byte() {
        let value = b"line one\nline two = \xff ".to_vec();
        let host = Host::new().login([("RAW", value.clone())]);
        assert_eq!(host.provide::<Snapshot>(), Ok(vec![Change::set("RAW", value)]));
    }

    #[test]
    fn what_kept_the_login_shell_from_answering_is_passed_on() {
        let failure = Failure::TimedOut("the login shell took more than 10 s".to_owned());
        assert_eq!(Host::new().login_fails(failure.clone()).provide::<Snapshot>(), Err(failure));
    }
}
