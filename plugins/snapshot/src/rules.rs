//! Rules for variables of a login shell that do not belong to the user's environment, with reasons.

use agentd_plugin_sdk::pattern::matches;

/// Patterns of names with a common reason. The first match determines the reason.
const DROPPED: &[(&[&str], &str)] = &[
    (&["PWD", "OLDPWD", "SHLVL", "_", "A__z", "LAST_EXIT_CODE"], "bookkeeping of the login shell itself"),
    (
        &[
            "BASH_*",
            "BASHOPTS",
            "SHELLOPTS", // its xtrace would trace every shell script
            "ENV",
            "ZSH_*",
            "FPATH",
            "NU_VERSION",
            "__fish*",
            "PS?",
            "PROMPT_COMMAND",
            "DISABLE_AUTO_UPDATE", // oh-my-zsh; the capture sets it to prevent a question
            // tcsh always exports these.
            "HOSTTYPE",
            "VENDOR",
            "OSTYPE",
            "MACHTYPE",
            "GROUP",
            "HOST",
        ],
        "belongs to the login shell itself",
    ),
    (
        &[
            "TERM",
            "COLORTERM",
            "COLUMNS",
            "LINES",
            "TERM_PROGRAM*",
            "TERM_SESSION_ID",
            "TERMINAL_EMULATOR",
            "SHELL_SESSION_ID",
            "LC_TERMINAL*",
            "ITERM_*",
            "WINDOWID",
            "WINDOWPATH",
            "KITTY_*",
            "WEZTERM_*",
            "ALACRITTY_*",
            "GHOSTTY_*",
            "KONSOLE_*",
            "GNOME_TERMINAL_*",
            "TILIX_ID",
            "TERMINATOR_UUID",
            "WT_SESSION",
            "WT_PROFILE_ID",
            "VTE_VERSION",
        ],
        "belongs to a terminal, and an agent has none",
    ),
    (&["TMUX*", "STY", "ZELLIJ*", "SHPOOL_SESSION_NAME"], "belongs to a terminal multiplexer's window"),
    // PAM sets these at each login (pam_systemd(8)).
    (
        &[
            "XDG_SESSION_ID",
            "XDG_SESSION_TYPE",
            "XDG_SESSION_CLASS",
            "XDG_SESSION_PATH",
            "XDG_SEAT",
            "XDG_SEAT_PATH",
            "XDG_VTNR",
            "XDG_ACTIVATION_TOKEN",
            "DESKTOP_STARTUP_ID",
        ],
        "belongs to one login at one seat",
    ),
    // Includes SSH_AUTH_SOCK: the administrator decides whether an agent may use the user's keys.
    (&["SSH_*"], "belongs to one ssh connection"),
    (&["SUDO_ASKPASS", "GIT_ASKPASS"], "asks for a password on another program's window"),
    (&["SUDO_*"], "belongs to one call of sudo"),
    (
        // Claude Code, opencode (`AGENT`, `OPENCODE`), Gemini CLI, Qwen Code, Codex, Copilot and Junie set
        // these for the processes they start. An agent that finds one assumes that it runs inside another
        // agent.
        &[
            "AI_AGENT",
            "AGENT",
            "CLAUDECODE",
            "CLAUDE_CODE",
            "CLAUDE_CODE_*",
            "CLAUDE_PID",
            "CLAUDE_SESSION_ID",
            "CLAUDE_PROJECT_DIR",
            "CLAUDE_EFFORT",
            "CLAUDE_JOB_DIR",
            "CODEX_THREAD_ID",
            "CODEX_SANDBOX*",
            "CODEX_CI",
            "COPILOT_CLI",
            "COPILOT_AGENT_SESSION_ID",
            "GEMINI_CLI",
            "QWEN_CODE",
            "OPENCODE",
            "OPENCODE_PID",
            "OPENCODE_CLIENT",
            "JUNIE_DATA",
            "JUNIE_SHIM_PATH",
            "REPL_ID",
            "HAPPY_*",
            "AGENTD_*",
        ],
        "marks a process that another host of agents started",
    ),
    (
        &[
            "VSCODE_*",
            "CURSOR_*",
            "ZED_*",
            "POSITRON",
            "INTELLIJ_ENVIRONMENT_READER",
            "INSIDE_EMACS",
            "EMACS",
            "NVIM",
            "NVIM_LISTEN_ADDRESS",
            "VIM",
            "VIMRUNTIME",
            "MYVIMRC",
            "ELECTRON_RUN_AS_NODE", // turns every Electron program into node
            "ELECTRON_NO_ATTACH_CONSOLE",
        ],
        "marks a process that an editor started",
    ),
    (
        &["npm_lifecycle_*", "npm_package_*", "npm_command", "npm_execpath", "npm_node_execpath"],
        "belongs to one script that npm runs",
    ),
    // DIRENV_DIFF contains the values that direnv replaced, including secrets, in compressed form that no rule
    // can inspect.
    (&["DIRENV_*"], "direnv's record of what it did in one shell"),
    (
        // systemd.exec(5), sd_notify(3), sd_listen_fds(3)
        &[
            "NOTIFY_SOCKET",
            "WATCHDOG_*",
            "LISTEN_*",
            "INVOCATION_ID",
            "JOURNAL_STREAM",
            "CREDENTIALS_DIRECTORY",
            "RUNTIME_DIRECTORY",
            "STATE_DIRECTORY",
            "CACHE_DIRECTORY",
            "LOGS_DIRECTORY",
            "CONFIGURATION_DIRECTORY",
            "MANAGERPID",
            "MAINPID",
            "PIDFILE",
            "LOG_NAMESPACE",
            "SYSTEMD_EXEC_PID",
            "SERVICE_RESULT",
            "EXIT_CODE",
            "EXIT_STATUS",
            "MONITOR_*",
            "TRIGGER_*",
            "MEMORY_PRESSURE_*",
        ],
        "belongs to one service of the service manager",
    ),
];

/// Names that match a pattern above but are settings of the user: the logins, models and directories of Claude
/// Code and Cursor. A test compares this list with the variables that the whitelist gives to each agent.
const TAKEN: &[&str] = &[
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_SKIP_BEDROCK_AUTH",
    "CLAUDE_CODE_SKIP_VERTEX_AUTH",
    "CLAUDE_CODE_SKIP_FOUNDRY_AUTH",
    "CLAUDE_CODE_CLIENT_CERT",
    "CLAUDE_CODE_CLIENT_KEY",
    "CLAUDE_CODE_CLIENT_KEY_PASSPHRASE",
    "CLAUDE_CODE_CERT_STORE",
    "CLAUDE_CODE_EXECUTABLE",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
    "CURSOR_API_KEY",
    "CURSOR_AUTH_TOKEN",
    "CURSOR_CONFIG_DIR",
    // Opt-outs, which a family of the whitelist keeps.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
    "VSCODE_TELEMETRY_DISABLE",
];

/// Pattern of exported bash functions. They are not filtered here: the host gives those that its setting
/// `environment.functions` allows.
const FUNCTION: &str = "BASH_FUNC_*%%";

/// Returns why a variable of this name is left out, or `None` if it is taken.
pub(crate) fn reason_to_drop(name: &str) -> Option<&'static str> {
    if TAKEN.contains(&name) || matches(FUNCTION, name) {
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
            "AI_AGENT",
            "OPENCODE",
            "GEMINI_CLI",
            "QWEN_CODE",
            "CODEX_SANDBOX",
            "CODEX_SANDBOX_NETWORK_DISABLED",
            "SYSTEMD_EXEC_PID",
            "SHELLOPTS",
            "BASHOPTS",
            "ENV",
            "DIRENV_DIFF",
            "XDG_SESSION_ID",
            "LC_TERMINAL_VERSION",
            "SUDO_COMMAND",
            "npm_lifecycle_event",
            "AGENTD_SESSION",
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
            "GEMINI_CLI_HOME",
            "COPILOT_HOME",
            "CODEX_HOME",
            "XDG_CONFIG_HOME",
            "XDG_CURRENT_DESKTOP",
            "LC_TIME",
            "npm_config_registry",
            "ENVIRONMENT",
        ] {
            assert_eq!(reason_to_drop(name), None, "{name}");
        }
    }

    #[test]
    fn a_function_that_the_host_gives_is_taken_and_the_shells_own_start_file_is_not() {
        assert_eq!(reason_to_drop("BASH_FUNC_module%%"), None);
        assert!(reason_to_drop("BASH_ENV").is_some());
    }

    #[test]
    fn nothing_that_the_whitelist_gives_to_an_agent_is_dropped_before_it() {
        for name in crate::agents::all() {
            assert_eq!(reason_to_drop(name), None, "{name}");
        }
    }
}
