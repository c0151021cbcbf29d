//! Formats the failure of a launch or an agent: the reason, the end of the agent's stderr, and the remedy.
//!
//! Several events report one failure: a condition, the end of the launch, the end of the turn.
//! `conversation.rs` recognises the repetition. This module formats a failure, in a bounded number of lines.

use std::collections::VecDeque;

use agentd_api::degraded::NOT_LEFT_OUT;
use agentd_api::reason;
use agentd_api::session::{ConditionStatus, ConditionType, SessionView};

use agentd_screen::terminal;

/// Number of lines of the agent's stderr that a failure shows, counted from the end.
pub const STDERR_LINES: usize = 8;
/// Maximum width of a line of stderr, in columns.
pub const STDERR_COLUMNS: usize = 200;
/// Maximum number of lines of the reason, which may quote a script or an agent.
const REASON_LINES: usize = 20;
/// Maximum width of a line of the reason, in columns.
const REASON_COLUMNS: usize = 1_000;

/// A failure of a launch, of a running agent or of a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failure {
    /// Reason for programs, as in conditions: `AuthenticationRequired`.
    pub reason: String,
    /// Reason for users.
    pub message: String,
    /// Last lines of the agent's stderr.
    pub stderr: Vec<String>,
}

impl Failure {
    /// Builds the failure of a session from its status, without stderr, which only the events have.
    pub fn of(view: &SessionView) -> Self {
        let message = view.status.message.clone().unwrap_or_else(|| "the session failed".to_owned());
        // Conditions that became false with the agent have the same message and the reason "AgentExited".
        let conditions = view.status.conditions.iter().filter(|condition| condition.message == message);
        // The summary repeats the message, and its reason is the phase.
        let reason = conditions
            .filter(|condition| condition.status == ConditionStatus::False && condition.kind != ConditionType::Ready)
            .min_by_key(|condition| condition.reason == "AgentExited");
        Self {
            reason: reason.map(|condition| condition.reason.clone()).unwrap_or_default(),
            message,
            ..Self::default()
        }
    }

    /// Returns the reason and the lines of stderr, safe for any output.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.message.lines().take(REASON_LINES).map(|line| terminal::excerpt(line, REASON_COLUMNS)).collect();
        if self.message.lines().nth(REASON_LINES).is_some() {
            lines.push("…".to_owned());
        }
        let skipped = self.stderr.len().saturating_sub(STDERR_LINES);
        lines.extend(
            self.stderr.iter().skip(skipped).map(|line| format!("  | {}", terminal::excerpt(line, STDERR_COLUMNS))),
        );
        lines
    }

    /// Reports whether a degraded launch may succeed where this launch failed.
    pub fn is_degradable(&self) -> bool {
        reason::is_degradable(&self.reason) && !self.message.contains(NOT_LEFT_OUT)
    }

    /// Returns the remedy with the commands to type. `session` is the user's name for the session; `active`
    /// states whether its agent still runs.
    pub fn remedy(&self, session: &str, active: bool) -> String {
        let remedy = self.repair(session, active);
        if self.is_degradable() {
            return format!("{remedy}; or start without it: agentctl resume {session} --degraded");
        }
        remedy
    }

    /// Returns the command that removes the cause of the failure.
    fn repair(&self, session: &str, active: bool) -> String {
        let stop = if active { format!("agentctl stop {session} && ") } else { String::new() };
        let resume = format!("{stop}agentctl resume {session}");
        match self.reason.as_str() {
            reason::AUTHENTICATION_REQUIRED => format!("once you are logged in: {resume}"),
            reason::WORKFLOW_NOT_APPROVED => format!("agentctl workflow allow {session}, then {resume}"),
            "ConversationLost" => format!("agentctl resume {session} --new-conversation"),
            "InitializeFailed" => {
                format!(
                    "check the command and the agent's version; agentctl events {session} --no-follow shows the \
                         whole exchange"
                )
            }
            "InitializeTimedOut" => format!(
                "check that the command speaks the Agent Client Protocol on its standard input and output: many agents \
                 need a flag for it, such as --acp; then: {resume}"
            ),
            "NotExecuted" => format!(
                "check the command with `agentctl agents`, and the PATH that it was looked for in with \
                 `agentctl env {session} --explain PATH`; then: {resume}"
            ),
            "LoginShellTimedOut" => format!(
                "find what blocks the shell's start-up files, or raise environment.deadline; or begin with this \
                 terminal: agentctl run --env-from terminal; then: {resume}"
            ),
            "ScriptTimedOut" => format!("raise environment.deadline, or fix the script; then: {resume}"),
            reason::PREREQUISITE_FAILED | reason::WAIT_TIMED_OUT => {
                format!("agentctl check --session {session}, then {resume}")
            }
            "AgentExited" | "CancelIgnored" | "OutOfMemory" | "TooManyTasks" | "ConversationTimedOut" | "Parked" => {
                format!(
                    "{resume} starts the agent again; agentctl events {session} --no-follow shows all of its output"
                )
            }
            _ => format!("agentctl show {session}"),
        }
    }
}

/// Last lines that an agent wrote to stderr; holds at most [`STDERR_LINES`].
#[derive(Debug, Default)]
pub struct LastWords(VecDeque<String>);

impl LastWords {
    pub fn push(&mut self, line: &str) {
        if self.0.len() == STDERR_LINES {
            self.0.pop_front();
        }
        self.0.push_back(line.trim_end().to_owned());
    }

    pub fn take(&mut self) -> Vec<String> {
        self.0.drain(..).collect()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_its_reason_and_a_few_short_lines_of_stderr_whatever_an_agent_writes() {
        let stderr = (1..=50).map(|n| format!("\x1b[31mline {n}\x1b[0m\x07 {}", "x".repeat(5_000))).collect();
        let message = "the agent exited with status 1".to_owned();
        let lines = Failure { message: message.clone(), stderr, ..Failure::default() }.lines();
        assert_eq!((lines.len(), &lines[0]), (1 + STDERR_LINES, &message));
        assert!(lines[1].starts_with("  | line 43␇ xxx") && lines[8].starts_with("  | line 50"), "{lines:#?}");
        assert!(lines[1..].iter().all(|line| line.chars().count() <= STDERR_COLUMNS + 4), "{lines:#?}");

        let long = Failure { message: "a line\n".repeat(500), ..Failure::default() }.lines();
        assert_eq!((long.len(), long.last().map(String::as_str)), (REASON_LINES + 1, Some("…")));
    }

    #[test]
    fn a_remedy_is_a_command_for_this_session() {
        for reason in [
            reason::AUTHENTICATION_REQUIRED,
            "ConversationLost",
            "InitializeFailed",
            "InitializeTimedOut",
            "NotExecuted",
            reason::PREREQUISITE_FAILED,
            "AgentExited",
            "SomethingNew",
        ] {
            let failure = Failure { reason: reason.to_owned(), ..Failure::default() };
            let remedy = failure.remedy("fix", false);
            assert!(remedy.contains("agentctl ") && remedy.contains("fix"), "{reason}: {remedy}");
        }
        let failure = Failure { reason: reason::AUTHENTICATION_REQUIRED.to_owned(), ..Failure::default() };
        let remedy = failure.remedy("fix", true);
        assert_eq!(remedy, "once you are logged in: agentctl stop fix && agentctl resume fix");
    }
}
