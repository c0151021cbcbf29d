//! Defines why a call has no answer, each with a stable code and a remedy.

use std::io;
use std::path::PathBuf;

use agentd_api::event::InvalidEvent;
use agentd_api::{Code, Problem};
use bytes::Bytes;

use crate::trust::Distrust;

/// An error of the caller's own part: its connector, or its start of a daemon.
pub type Foreign = Box<dyn std::error::Error + Send + Sync>;

/// Reason why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// agentd refused the call.
    #[error("{}", problem.detail)]
    Problem {
        /// The problem document (RFC 9457).
        problem: Box<Problem>,
        /// The unchanged document, including fields that this version does not know.
        raw: Bytes,
    },
    /// No connection can be made.
    #[error("cannot reach agentd at {place}")]
    Unreachable {
        /// Address of the daemon.
        place: String,
        /// The error of the connection.
        source: io::Error,
    },
    /// The caller's [`Connect`](crate::Connect) failed.
    #[error("{0}")]
    Connect(Foreign),
    /// The caller's [`Revive`](crate::Revive) failed.
    #[error("{0}")]
    Revive(Foreign),
    /// The listening process is not trusted, and nothing was sent.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// No complete answer came in time.
    #[error("agentd at {place} did not answer {call} within {seconds} s")]
    Silent {
        /// Address of the daemon.
        place: String,
        /// Method and address of the call.
        call: String,
        /// The time limit.
        seconds: u64,
    },
    /// The connection ended before the answer was complete, or the answer is no HTTP.
    #[error("lost the connection to agentd during {call}")]
    Broken {
        /// Method and address of the call.
        call: String,
        /// The error of the connection.
        source: io::Error,
    },
    /// The daemon was away for longer than a stream waits.
    #[error("agentd was unreachable for {seconds} s")]
    Away {
        /// The longest wait.
        seconds: u64,
        /// The error of the last attempt.
        source: Option<Box<Error>>,
    },
    /// The answer is not what this version expects, for example from another program.
    #[error("agentd answered {call} with status {status} and a body that this version cannot read: {reason}")]
    Answer {
        /// Method and address of the call.
        call: String,
        /// HTTP status of the answer.
        status: u16,
        /// Description of the difference.
        reason: String,
    },
    /// The answer is longer than any answer of agentd.
    #[error("the answer to {call} is longer than {limit} bytes")]
    TooLong {
        /// Method and address of the call.
        call: String,
        /// The longest answer in bytes.
        limit: usize,
    },
    /// An event of a stream cannot be read.
    #[error("agentd sent an event that cannot be read")]
    Event(#[from] InvalidEvent),
    /// The text is no session id and no session name, so no daemon was asked.
    #[error("there is no session {given:?}: {reason}")]
    NoName {
        /// The text.
        given: String,
        /// Why it is no name.
        reason: String,
    },
    /// The text is the beginning of several session ids.
    #[error("session id {given:?} is ambiguous: {}", candidates.join(", "))]
    Ambiguous {
        /// The text.
        given: String,
        /// The sessions, each with its name.
        candidates: Vec<String>,
    },
    /// The URL is not `http://HOST:PORT`.
    #[error("{url:?} is not an address of agentd")]
    Url {
        /// The URL.
        url: String,
    },
    /// TCP needs a token.
    #[error("agentd at {url} requires its token")]
    NoToken {
        /// The URL.
        url: String,
    },
    /// The file with the token cannot be read.
    #[error("cannot read {}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The error of the file.
        source: io::Error,
    },
    /// The body of the request cannot be written as JSON.
    #[error("cannot encode the request")]
    Request(#[source] serde_json::Error),
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        let raw = serde_json::to_vec(&problem).unwrap_or_default().into();
        Self::Problem { problem: Box::new(problem), raw }
    }
}

impl Error {
    /// Returns the code of the problem document, if the error has one.
    pub fn problem_code(&self) -> Option<Code> {
        match self {
            Self::Problem { problem, .. } => Some(problem.code),
            _ => None,
        }
    }

    /// Returns a stable code for programs: that of the problem document, else that of the failure.
    pub fn code(&self) -> String {
        match self {
            Self::Problem { problem, .. } => problem.code.as_str(),
            failure => failure.failure_code().to_owned(),
        }
    }

    fn failure_code(&self) -> &'static str {
        match self {
            Self::Problem { .. } => "problem",
            Self::Unreachable { .. } | Self::Connect(_) | Self::Away { .. } => "unreachable",
            Self::Revive(_) => "not-started",
            Self::Distrusted(_) => "distrusted",
            Self::Silent { .. } => "no-answer",
            Self::Broken { .. } => "connection-lost",
            Self::Answer { .. } | Self::TooLong { .. } | Self::Event(_) => "unreadable-answer",
            Self::NoName { .. } => "invalid-id",
            Self::Ambiguous { .. } => "ambiguous-session",
            Self::Url { .. } => "invalid-address",
            Self::NoToken { .. } | Self::Token { .. } => "no-token",
            Self::Request(_) => "unwritable-request",
        }
    }

    /// Reports whether no process listens at the address.
    pub fn is_without_listener(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if nobody_listens(source))
    }

    /// Returns the remedy, for people.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Problem { problem, .. } => problem.hint.clone(),
            Self::Unreachable { .. } => Some(
                "is it running? `systemctl --user status agentd`, or start it with `agentd serve`; without \
                     --socket and \
                 --no-start agentctl starts it itself"
                    .into(),
            ),
            Self::Distrusted(error) => Some(error.hint()),
            Self::Silent { .. } => {
                Some("agentctl doctor finds the cause, and agentctl service logs shows the log of agentd".into())
            }
            Self::Answer { .. } | Self::TooLong { .. } => {
                Some("does agentd listen at this address, and not another program?".into())
            }
            Self::Url { .. } => Some("give http://127.0.0.1:PORT, with the port of control.tcp".into()),
            Self::NoToken { .. } => {
                Some("give --token-file or set AGENTD_TOKEN_FILE: the file that control.token names".into())
            }
            Self::Away { .. } => Some("the session continues without agentd; start agentd and attach again".into()),
            Self::NoName { .. } => Some("agentctl ls lists the sessions".into()),
            Self::Ambiguous { .. } => Some("give more of the id, or the name".into()),
            Self::Connect(_)
            | Self::Revive(_)
            | Self::Broken { .. }
            | Self::Event(_)
            | Self::Token { .. }
            | Self::Request(_) => None,
        }
    }
}

/// An error that may be the absence of the daemon.
pub trait Absence {
    /// Reports whether no daemon answered, or a daemon that is about to stop or has just started. The same call may
    /// succeed a moment later.
    fn is_absence(&self) -> bool;
}

impl Absence for Error {
    fn is_absence(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Connect(_) | Self::Broken { .. } | Self::Silent { .. })
            || self.problem_code() == Some(Code::TooBusy)
    }
}

/// Reports whether an error of a connection means that no process listens.
pub fn nobody_listens(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_a_code_that_no_problem_has() {
        let io = || io::Error::from(io::ErrorKind::NotFound);
        let failures = [
            Error::Unreachable { place: "/x".into(), source: io() },
            Error::Connect("x".into()),
            Error::Revive("x".into()),
            Error::Silent { place: "/x".into(), call: "GET /".into(), seconds: 1 },
            Error::Broken { call: "GET /".into(), source: io() },
            Error::Away { seconds: 1, source: None },
            Error::Answer { call: "GET /".into(), status: 200, reason: "x".into() },
            Error::TooLong { call: "GET /".into(), limit: 1 },
            Error::Ambiguous { given: "k".into(), candidates: Vec::new() },
            Error::NoToken { url: "x".into() },
        ];
        for failure in failures {
            let code = failure.code();
            assert!(Code::ALL.iter().all(|known| known.as_str() != code), "{code}");
            assert!(!failure.to_string().contains('\n'), "{failure}");
        }
        assert_eq!(Error::from(Problem::new(Code::NoSuchSession, "x")).code(), "no-such-session");
    }
}
