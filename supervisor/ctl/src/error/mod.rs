//! Defines the errors of `agentctl`, their exit statuses and hints.

mod new_plugin;
mod service;

use std::io::{self, Write};
use std::path::PathBuf;

use agentd_api::prerequisite::CheckReport;
use agentd_api::{Code, Problem};
use agentd_client::{Absence, Error as ClientError};
use agentd_remote::RemoteError;

pub(crate) use new_plugin::NewError;
pub(crate) use service::ServiceError;

use crate::document::DocumentForm;
use crate::failure::Failure;
use crate::prerequisite;
use agentd_screen::terminal::Screen;
use agentd_specs::Mistake;

/// The exit statuses, as `--help` documents them.
pub(crate) mod exit {
    pub(crate) const FAILED: u8 = 1;
    pub(crate) const USAGE: u8 = 2;
    pub(crate) const UNREACHABLE: u8 = 3;
    pub(crate) const REFUSED: u8 = 4;
    /// The answer does not satisfy its schema.
    pub(crate) const SCHEMA: u8 = 6;
    /// As a shell reports SIGINT.
    pub(crate) const CANCELLED: u8 = 130;
    /// As a shell reports SIGHUP.
    pub(crate) const HUNG_UP: u8 = 129;
    /// As a shell reports SIGTERM.
    pub(crate) const TERMINATED: u8 = 143;
    /// As a shell reports SIGPIPE.
    pub(crate) const BROKEN_PIPE: u8 = 141;
}

/// Reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("agentd sent an event that cannot be read")]
    Event(#[from] agentd_api::event::InvalidEvent),
    /// A call has no answer.
    #[error(transparent)]
    Client(ClientError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("cannot start agentd: {what}")]
    NotStarted { what: String, hint: String, last_lines: Vec<String>, source: Option<io::Error> },
    /// A service manager runs agentd, and agentctl must not start it.
    #[error("{what}")]
    Managed { what: String, hint: String },
    #[error("cannot encode the request")]
    Request(#[source] serde_json::Error),
    #[error("cannot print the document as YAML: {reason}")]
    NoYaml { reason: String },
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot read standard input")]
    Input(#[source] io::Error),
    #[error("cannot write the output")]
    Output(#[source] io::Error),
    #[error("cannot read the compatibility of {}: {reason}", program.display())]
    NotAgentd { program: PathBuf, reason: String },
    #[error("cannot prepare to run")]
    Setup(#[source] io::Error),
    #[error("cannot run {}: {reason}", program.display())]
    NoTool { program: PathBuf, reason: String },
    /// Message of agentd's own tool, with the tool's hint.
    #[error("{message}")]
    Tool { message: String, hint: Option<String> },
    #[error(transparent)]
    NewPlugin(#[from] NewError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The arguments parse but contradict each other or the situation.
    #[error("{detail}")]
    Usage { detail: String, hint: String },
    /// Files of specifications have mistakes, and nothing was changed.
    #[error("{}", listed(mistakes))]
    Files { mistakes: Vec<Mistake> },
    /// One part of a command failed. The status, the code and the hint are those of the source.
    #[error("{what}")]
    Part { what: String, source: Box<Error> },
    /// A session failed before it became ready.
    #[error("session {session:?} failed: {}", failure.lines().join("\n"))]
    Failed { session: String, failure: Failure },
    /// The state of a session does not allow the command; `detail` names both.
    #[error("{detail}")]
    Session { detail: String, hint: Option<String> },
    /// A state that a command waits for can no longer come by itself.
    #[error("{detail}")]
    Hopeless { detail: String, hint: String },
}

impl From<ClientError> for Error {
    /// Takes an error of this program's own part out of the client's error.
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Connect(source) => match source.downcast::<RemoteError>() {
                Ok(own) => Self::Remote(*own),
                Err(source) => Self::Client(ClientError::Connect(source)),
            },
            ClientError::Revive(source) => match source.downcast::<Self>() {
                Ok(own) => *own,
                Err(source) => Self::Client(ClientError::Revive(source)),
            },
            other => Self::Client(other),
        }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self::Client(problem.into())
    }
}

impl Absence for Error {
    fn is_absence(&self) -> bool {
        match self {
            Self::Client(error) => error.is_absence(),
            Self::Remote(error) => matches!(error, RemoteError::Unreachable { .. } | RemoteError::Late { .. }),
            _ => false,
        }
    }
}

impl Error {
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Client(error) => of_client(error),
            Self::Remote(RemoteError::Unreachable { .. } | RemoteError::Late { .. })
            | Self::NotStarted { .. }
            | Self::Managed { .. } => exit::UNREACHABLE,
            Self::Usage { .. } | Self::Remote(_) => exit::USAGE,
            Self::Hopeless { .. } => exit::REFUSED,
            Self::Part { source, .. } => source.exit_status(),
            Self::Output(source) if source.kind() == io::ErrorKind::BrokenPipe => exit::BROKEN_PIPE,
            _ => exit::FAILED,
        }
    }

    /// Returns the code of the problem document, if the error has one.
    pub(crate) fn problem_code(&self) -> Option<Code> {
        match self {
            Self::Client(error) => error.problem_code(),
            Self::Part { source, .. } => source.problem_code(),
            _ => None,
        }
    }

    /// Returns a stable code for programs: that of the problem document, else the kind of the failure.
    pub(crate) fn code(&self) -> String {
        match self {
            Self::Client(error) => error.code(),
            Self::Part { source, .. } => source.code(),
            Self::Remote(RemoteError::Late { .. }) => "no-answer".to_owned(),
            Self::Remote(_) => "unreachable".to_owned(),
            Self::Event(_) => "unreadable-answer".to_owned(),
            Self::NotStarted { .. } | Self::Managed { .. } => "not-started".to_owned(),
            _ => "failed".to_owned(),
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) => error.hint(),
            Self::Remote(error) => Some(error.hint()),
            Self::NotStarted { hint, .. }
            | Self::Managed { hint, .. }
            | Self::Usage { hint, .. }
            | Self::Hopeless { hint, .. } => Some(hint.clone()),
            Self::NewPlugin(error) => error.hint(),
            Self::Service(error) => error.hint(),
            Self::NoTool { .. } => Some("agentctl needs the agentd of its own build beside it".into()),
            Self::NoYaml { .. } => Some("--json prints the document unchanged".into()),
            Self::Files { .. } => Some("nothing was changed; docs/guide/spec-files.md describes the files".into()),
            Self::Part { source, .. } => source.hint(),
            Self::Failed { session, failure } => Some(failure.remedy(session, false)),
            Self::Session { hint, .. } | Self::Tool { hint, .. } => hint.clone(),
            _ => None,
        }
    }

    /// Prints the error on standard error. With a form, also prints the daemon's problem document on standard output.
    /// Prints nothing if the reader closed the output.
    pub(crate) fn report(&self, form: Option<DocumentForm>) {
        if self.exit_status() == exit::BROKEN_PIPE {
            return;
        }
        if let Self::Client(ClientError::Problem { raw, .. }) = self
            && let Some(form) = form
        {
            // A failure to write is ignored: the exit status reports the error too.
            let _ = form.print(raw);
        }
        // A failure to write to standard error cannot be reported anywhere.
        let _ = io::stderr().write_all(agentd_screen::terminal::for_stderr(&self.report_text()).as_bytes());
    }

    /// Returns the error and its hint as lines for people.
    pub(crate) fn report_text(&self) -> String {
        let mut text = match self {
            Self::Client(ClientError::Problem { problem, .. }) if !problem.prerequisites.is_empty() => {
                unmet(&problem.prerequisites)
            }
            _ => format!("agentctl: {}", agentd_api::chain(self)),
        };
        text.push('\n');
        if let Self::NotStarted { last_lines, .. } | Self::Remote(RemoteError::Unreachable { last_lines, .. }) = self {
            for line in last_lines {
                text.push_str("  | ");
                text.push_str(line);
                text.push('\n');
            }
        }
        if let Some(hint) = self.hint() {
            text.push_str("  hint: ");
            text.push_str(&hint);
            text.push('\n');
        }
        text
    }
}

/// Returns the exit status of a call without an answer.
fn of_client(error: &ClientError) -> u8 {
    match error {
        ClientError::Problem { problem, .. } if matches!(problem.status, 409 | 412 | 429) => exit::REFUSED,
        ClientError::Unreachable { .. }
        | ClientError::Connect(_)
        | ClientError::Revive(_)
        | ClientError::Distrusted(_)
        | ClientError::Silent { .. }
        | ClientError::Away { .. } => exit::UNREACHABLE,
        _ => exit::FAILED,
    }
}

/// Lists mistakes, each with its file.
fn listed(mistakes: &[Mistake]) -> String {
    match mistakes {
        [one] => one.to_string(),
        many => many.iter().fold(format!("{} mistakes", many.len()), |text, one| format!("{text}\n  {one}")),
    }
}

/// Formats each failed check with its facts and its remedy, instead of the problem's detail, which has no facts.
fn unmet(reports: &[CheckReport]) -> String {
    let plain = Screen { terminal: false, colour: false };
    let mut text = "agentctl: prerequisites of the session are not met".to_owned();
    for report in reports {
        text.push('\n');
        text.push_str(prerequisite::described(report, plain).trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_what_is_missing_has_each_check_with_its_facts_and_its_remedy() {
        let report = |name: &str, facts: serde_json::Value| -> CheckReport {
            serde_json::from_value(serde_json::json!({
                "name": name, "outcome": "fail", "on_failure": "fail", "summary": "it is away", "facts": facts,
                "remedy": "bring it back", "took_ms": 3, "checked_at": "2026-01-01T00:00:00Z",
            }))
            .unwrap()
        };
        let reports = [
            report("lab", serde_json::json!([])),
            report("vpn", serde_json::json!([{ "name": "wg0", "value": "down" }])),
        ];
        assert_eq!(
            unmet(&reports),
            "agentctl: prerequisites of the session are not met\n\
             lab (fail): it is away\n  remedy: bring it back\n\
             vpn (fail): it is away\n  wg0: down\n  remedy: bring it back"
        );
    }

    #[test]
    fn a_refusal_a_failure_and_a_daemon_that_is_not_there_have_different_statuses() {
        for (error, status) in [
            (Error::from(Problem::new(Code::WrongPhase, "busy")), 4),
            (Error::from(Problem::new(Code::NameTaken, "taken")), 4),
            (Error::from(Problem::new(Code::QueueFull, "full")), 4),
            (Error::from(Problem::new(Code::GenerationChanged, "changed")), 4),
            (Error::from(Problem::new(Code::NoSuchSession, "none")), 1),
            (ClientError::Unreachable { place: "/x".into(), source: io::ErrorKind::NotFound.into() }.into(), 3),
            (Error::Output(io::ErrorKind::BrokenPipe.into()), 141),
        ] {
            assert_eq!(error.exit_status(), status, "{error}");
        }
    }
}
