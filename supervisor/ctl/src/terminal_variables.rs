//! Lists the variables that belong to a terminal: they describe it, its shell or its login, and are wrong in
//! any other process.

/// Returns the reason why a variable belongs to the terminal, or `None`.
pub(crate) fn terminals_own(name: &str) -> Option<&'static str> {
    OWN.iter()
        .find(|(_, patterns)| patterns.iter().any(|pattern| agentd_glob::matches(pattern, name)))
        .map(|(why, _)| *why)
}

/// Returns the number of dropped names that this terminal has, without the terminal's own variables.
pub(crate) fn count_of_terminal(dropped: &[String]) -> usize {
    let is_missed = |name: &&String| std::env::var_os(name).is_some() && terminals_own(name).is_none();
    dropped.iter().filter(is_missed).count()
}

const OWN: &[(&str, &[&str])] = &[
    (
        "describes the terminal",
        &[
            "TERM",
            "COLORTERM",
            "COLORFGBG",
            "COLUMNS",
            "LINES",
            "TERM_PROGRAM*",
            "TERM_SESSION_ID",
            "TERMINFO",
            "TERMCAP",
            "LC_TERMINAL*",
            "WINDOWID",
            "WINDOWPATH",
            "GPG_TTY",
            "VTE_VERSION",
            "KITTY_*",
            "ALACRITTY_*",
            "WEZTERM_*",
            "GHOSTTY_*",
            "ITERM_*",
            "KONSOLE_*",
            "GNOME_TERMINAL_*",
            "XTERM_*",
            "TILIX_ID",
            "WT_SESSION",
            "WT_PROFILE_ID",
            "VSCODE_*",
            "INSIDE_EMACS",
            "TERMINAL_EMULATOR",
        ],
    ),
    ("belongs to the multiplexer that the terminal is in", &["TMUX*", "STY", "WINDOW", "ZELLIJ*", "BYOBU_*"]),
    ("belongs to this login over the network", &["SSH_TTY", "SSH_CONNECTION", "SSH_CLIENT"]),
    (
        "belongs to the shell in the terminal",
        &[
            "_",
            "SHLVL",
            "PWD",
            "OLDPWD",
            "PS1",
            "PS2",
            "PS3",
            "PS4",
            "PROMPT",
            "RPROMPT",
            "PROMPT_COMMAND",
            "HISTFILE",
            "HISTSIZE",
            "HISTFILESIZE",
            "HISTCONTROL",
            "STARSHIP_*",
            "ZDOTDIR_OLD",
            "NU_VERSION",
        ],
    ),
    ("belongs to this login session", &["XDG_SESSION_*", "XDG_SEAT*", "XDG_VTNR", "INVOCATION_ID", "JOURNAL_STREAM"]),
    ("tells agentctl where agentd is", &["AGENTD_*"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_describes_the_terminal_is_its_own_and_what_a_tool_needs_is_not() {
        for name in ["TERM", "SSH_TTY", "WINDOWID", "TMUX_PANE", "KITTY_PID", "_", "SHLVL", "AGENTD_SOCKET"] {
            assert!(terminals_own(name).is_some(), "{name}");
        }
        for name in ["PATH", "JAVA_HOME", "SSH_AUTH_SOCK", "DISPLAY", "TERMUX", "PROMPT_TOOLKIT", "_LMFILES_"] {
            assert_eq!(terminals_own(name), None, "{name}");
        }
    }
}
