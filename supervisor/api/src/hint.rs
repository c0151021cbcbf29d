//! The hints that recommend a command line of `agentctl`, in one table.
//!
//! The command line's own tests parse every command of the table, so a renamed command cannot be left behind here.

macro_rules! hints {
    ($($constant:ident = $text:literal,)*) => {
        $(#[doc = concat!("```text\n", $text, "\n```")] pub const $constant: &str = $text;)*

        /// All hints, in the order of the table.
        pub const ALL: &[&str] = &[$($constant,)*];
    };
}

/// Adds the environment hint of a session to a text about a setup that failed.
pub fn of_session(text: &str, hint: &str) -> String {
    format!("{text}; the session's hint: {hint}")
}

hints! {
    LIST_SESSIONS = "`agentctl ls` lists the sessions",
    LIST_SCHEDULES = "`agentctl schedule ls` lists the schedules",
    LIST_HOOKS = "`agentctl hooks` lists the hooks of the configuration",
    LIST_PLUGINS = "`agentctl plugin ls` lists the plugins that the configuration declares or uses",
    LIST_SNAPSHOTS = "`agentctl snapshot status` shows the present snapshots",
    LIST_TURNS = "`agentctl show` lists the turns",
    FORM = "`agentctl show` shows the form; `agentctl answer` takes its values as --field NAME=VALUE",
    EDITOR_REQUESTS = "it is answered or its time is over, or the agent has no `editor` in the configuration",
    LIST_REQUESTS = "`agentctl show` lists the open requests",
    LIST_PREREQUISITES = "`agentctl check` lists the declared prerequisites; add [prerequisites.NAME] to agentd.toml",
    LIST_PLACES = "`agentctl place ls` lists the places of the configuration; add [places.NAME] to agentd.toml",
    SHOW_LAUNCH = "a launch builds it; `agentctl show` shows the progress of the launch",
    SHOW_STATE = "`agentctl show` shows the session's state; try again",
    SHOW_STDERR = "`agentctl events` shows the agent's stderr",
    SHOW_DIFFERENCE = "`agentctl env SESSION --diff terminal` names the step that drops each variable",
    CHECK_DIRECTORY = "the log is audit.jsonl in the state directory; `agentctl doctor` checks that directory",
    CHECK_REASONS = "`agentctl doctor` explains what to do about each reason",
    RESUME = "start it again with `agentctl resume`",
    RESUME_WITH_WAIT =
        "`agentctl resume --wait` waits for the missing prerequisites; `agentctl resume --force` launches without \
         them, and `agentctl resume --degraded` without failed scripts and providers too",
    RESUME_WITH_NEW_CONVERSATION = "`agentctl resume --new-conversation` starts a new conversation instead",
    STOP_OR_ATTACH = "stop it first with `agentctl stop`, or attach to it with `agentctl attach`",
    STOP_OR_REMOVE = "stop it first with `agentctl stop`, or remove it with `agentctl rm --force`",
    STOP_ANOTHER = "stop a session with `agentctl stop`, or raise limits.active_sessions",
    STOP_KEEPER = "retry with the same idempotency key; `agentctl stop` ends the keeper and its agent",
    STOP_UNREADABLE =
        "its files stay unchanged; `agentctl stop` ends its agent, and `agentctl rm --force` removes it as well",
    FREE_SPACE = "free disk space in agentd's state directory; `agentctl stop` and `agentctl rm` work meanwhile",
    UNDO_DRAIN = "`agentctl drain --undo` allows launches again",
    NAME_SESSION = "name it with `agentctl check --session S`",
    RELOAD = "correct the file, then run `agentctl reload`",
    RELOAD_TO_LAUNCH =
        "running sessions continue, but no session is launched; correct the file, then run `agentctl reload`",
    RELOAD_TO_USE = "run `agentctl reload` to use it again now",
    RELOAD_OR_LAUNCH = "a later launch tries it again, and `agentctl reload` does at once",
    CALL_FROM_TERMINAL =
        "`agentctl ls`, `agentctl agents` and `agentctl show` work here; make other calls from a terminal",
    ENABLE_ENCRYPTION = "set enabled = true under [environment.encryption], and `agentctl reload`",
}
