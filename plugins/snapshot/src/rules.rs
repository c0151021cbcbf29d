//! Which variables of a login shell say nothing about the user's environment, and why.

use agentd_plugin_sdk::pattern::matches;

/// Patterns of names and the reason they share. The first that matches tells the reason.
const DROPPED: &[(&[&str], &str)] = &[
    // Environment Modules and others export functions this way. Their newlines end some agents, and a program that is
    // not bash has no use for them.
    (&["BASH_FUNC_*"], "an exported bash function, not an ordinary variable"),
    (&["PWD", "OLDPWD", "SHLVL", "_"], "bookkeeping of the login shell itself"),
    (&["BASH_*", "ZSH_*", "PS?", "PROMPT_COMMAND"], "belongs to the login shell itself"),
    (
        &[
            "TERM",
            "COLORTERM",
            "COLUMNS",
            "LINES",
            "TERM_PROGRAM*",
            "TERM_SESSION_ID",
            "SHELL_SESSION_ID",
            "ITERM_*",
            "WINDOWID",
            "KITTY_*",
            "WEZTERM_*",
            "VTE_VERSION",
        ],
        "belongs to a terminal, and an agent has none",
    ),
    (&["TMUX*", "STY", "ZELLIJ*"], "belongs to a terminal multiplexer's window"),
    // SSH_AUTH_SOCK among them: an agent that may use the user's keys is for the administrator to decide.
    (&["SSH_*"], "belongs to one ssh connection"),
    (&["SUDO_ASKPASS", "GIT_ASKPASS"], "asks for a password on another program's window"),
    (
        &["CLAUDECODE", "CLAUDE_CODE_*", "CODEX_THREAD_ID", "HAPPY_*", "VSCODE_*", "CURSOR_*"],
        "marks a process that another host of agents or an editor started",
    ),
    (
        &[
            "NOTIFY_SOCKET",
            "WATCHDOG_*",
            "LISTEN_*",
            "INVOCATION_ID",
            "JOURNAL_STREAM",
            "CREDENTIALS_DIRECTORY",
            "MANAGERPID",
        ],
        "belongs to one service of the service manager",
    ),
];

/// Names that a pattern above matches and that are the user's own settings all the same: how Claude Code logs in
/// (code.claude.com/docs/en/env-vars).
const TAKEN: &[&str] = &["CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"];

/// Why a variable of this name is left out, if it is.
pub(crate) fn reason_to_drop(name: &str) -> Option<&'static str> {
    if TAKEN.contains(&name) {
        return None;
    }
    DROPPED
        .iter()
        .find(|(patterns, _)| patterns.iter().any(|pattern| matches(pattern, name)))
        .map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_terminals_a_shells_or_another_hosts_is_dropped() {
        for name in [
            "PWD",
            "OLDPWD",
            "SHLVL",
            "_",
            "TERM",
            "COLORTERM",
            "COLUMNS",
            "LINES",
            "TERM_PROGRAM_VERSION",
            "ITERM_PROFILE",
            "SSH_TTY",
            "SSH_AUTH_SOCK",
            "SSH_ASKPASS",
            "TMUX",
            "STY",
            "ZELLIJ_PANE_ID",
            "KITTY_PID",
            "BASH_ENV",
            "ZSH_VERSION",
            "PS1",
            "CLAUDECODE",
            "CLAUDE_CODE_ENTRYPOINT",
            "CODEX_THREAD_ID",
            "HAPPY_X",
            "VSCODE_PID",
            "CURSOR_TRACE_ID",
            "GIT_ASKPASS",
            "NOTIFY_SOCKET",
            "WATCHDOG_PID",
            "LISTEN_FDS",
            "INVOCATION_ID",
            "JOURNAL_STREAM",
            "CREDENTIALS_DIRECTORY",
            "MANAGERPID",
        ] {
            assert!(reason_to_drop(name).is_some(), "{name}");
        }
    }

    #[test]
    fn what_only_looks_like_it_is_taken() {
        for name in [
            "PATH",
            "TERMINFO",
            "LINES_OF_CODE",
            "MY_PWD",
            "PSQL",
            "SSHPASS",
            "CLAUDE_CONFIG_DIR",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "MODULEPATH",
        ] {
            assert_eq!(reason_to_drop(name), None, "{name}");
        }
    }

    #[test]
    fn a_bash_function_is_called_what_it_is() {
        assert!(reason_to_drop("BASH_FUNC_module%%").is_some_and(|reason| reason.contains("function")));
    }
}
