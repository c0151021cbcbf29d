//! Errors as the outside sees them: RFC 9457 problem documents with a stable machine code.

use serde::{Deserialize, Serialize};

use crate::configuration::Mistake;
use crate::prerequisite::CheckReport;

/// A stable code, for programs. Once released, a code keeps its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The request's JSON cannot be read, or a field has the wrong form.
    MalformedRequest,
    /// The request says something that can be read and cannot be meant: two agents, a directory that is not there.
    InvalidRequest,
    InvalidId,
    NoSuchPath,
    MethodNotAllowed,
    BodyTooLarge,
    /// The request's body did not come within its time.
    BodyTimeout,
    /// The caller holds as many connections as one may, or all are in use. `Retry-After` says when to ask again.
    TooManyConnections,
    /// Streams of one caller: events and `?wait=`.
    TooManyStreams,
    NoSuchSession,
    NoSuchAgent,
    NoSuchTurn,
    NoSuchPermission,
    /// No terminal's environment is held under this id.
    NoSuchSnapshot,
    /// The session begins with a terminal's environment, and the request names none: send it and ask again.
    SnapshotNeeded,
    /// The login shell's environment could not be taken.
    SnapshotFailed,
    NoSuchPlugin,
    NoSuchPrerequisite,
    /// Something that the session needs is missing: `prerequisites` has each with its facts and its remedy.
    PrerequisitesNotMet,
    /// The configuration cannot be read or has a mistake; `mistakes` has the places. A reload with this code leaves the previous
    /// configuration in force. A launch with this code is refused until the mistake is corrected.
    ConfigurationInvalid,
    /// The line cannot be written where it belongs: a file of the administrator's, a read-only file, or one that changed meanwhile.
    ConfigurationNotWritable,
    /// A plugin of the configuration cannot be loaded; the previous configuration stays in force.
    PluginUnusable,
    /// The directory of a session does not exist or is not a directory.
    NoSuchDirectory,
    /// The file system of a session's directory does not answer, or the directory cannot be read.
    DirectorySilent,
    /// Another session has this name.
    NameTaken,
    /// The session's phase does not allow this.
    WrongPhase,
    QueueFull,
    PermissionAnswered,
    /// The approvals of scripts (`trust.json`) cannot be read: scripts that need one are refused.
    ApprovalsUnreadable,
    /// A script changed after it was shown for approval.
    ScriptChanged,
    /// An `Idempotency-Key` was used for another request before.
    KeyReused,
    /// A variable that the request gives is a secret, and would be stored in clear: secrets are declared in the configuration.
    SecretInEnvironment,
    /// The events after this cursor are not kept any more.
    CursorGone,
    TooManySessions,
    /// The session's keeper does not answer. What was asked may still be carried out; the journal says whether it was.
    KeeperSilent,
    /// The daemon is drained and launches no session.
    Draining,
    /// The answer of `/readyz` while no session can be launched; `reasons` lists why.
    NotReady,
    /// A request over TCP without the token, or with another.
    Unauthorized,
    /// A request over TCP names another host, as after DNS rebinding by a web page.
    ForeignHost,
    /// A request over TCP that a browser sent for another site.
    ForeignOrigin,
    /// The caller is not the user whose daemon this is.
    Forbidden,
    /// The caller is inside a session, which may not do this: `control.guests`.
    InSession,
    /// The process that calls has ended, or cannot be placed inside or outside of the sessions.
    CallerUnknown,
    /// The caller was started by agentd for a start-up file, a script or a plugin. It may look, and nothing that waits for its own end.
    StartedByAgentd,
    /// The stored session cannot be read by this version.
    SessionUnreadable,
    /// The key that a stored environment is encrypted with is gone, or is another.
    KeyUnavailable,
    /// The stored environment is damaged, or of a newer version.
    EnvironmentUnreadable,
    /// A provider of the environment failed, or a script is not approved.
    EnvironmentNotBuilt,
    /// The session's journal cannot be written: the disk is full, a quota is reached, or the file system is read-only.
    JournalNotWritable,
    /// The daemon has no file descriptor, process or memory left. The request may be tried again later.
    OutOfResources,
    TooBusy,
    Internal,
    /// A code newer than this reader.
    #[serde(other)]
    Unknown,
}

impl Code {
    /// The HTTP status (RFC 9110) that goes with the code.
    pub fn status(self) -> u16 {
        match self {
            Self::MalformedRequest | Self::InvalidRequest | Self::InvalidId | Self::NoSuchDirectory => 400,
            Self::Unauthorized => 401,
            Self::Forbidden
            | Self::ForeignHost
            | Self::ForeignOrigin
            | Self::InSession
            | Self::CallerUnknown
            | Self::StartedByAgentd => 403,
            Self::NoSuchPath
            | Self::NoSuchSession
            | Self::NoSuchAgent
            | Self::NoSuchTurn
            | Self::NoSuchPermission
            | Self::NoSuchSnapshot
            | Self::NoSuchPlugin
            | Self::NoSuchPrerequisite => 404,
            Self::MethodNotAllowed => 405,
            Self::BodyTimeout => 408,
            Self::NameTaken
            | Self::WrongPhase
            | Self::PermissionAnswered
            | Self::ScriptChanged
            | Self::ApprovalsUnreadable
            | Self::KeyUnavailable
            | Self::PrerequisitesNotMet
            | Self::EnvironmentNotBuilt
            | Self::ConfigurationNotWritable
            | Self::Draining => 409,
            Self::CursorGone => 410,
            Self::BodyTooLarge => 413,
            Self::KeyReused
            | Self::SecretInEnvironment
            | Self::SnapshotNeeded
            | Self::ConfigurationInvalid
            | Self::PluginUnusable => 422,
            Self::QueueFull | Self::TooManySessions => 429,
            Self::SessionUnreadable
            | Self::SnapshotFailed
            | Self::EnvironmentUnreadable
            | Self::Internal
            | Self::Unknown => 500,
            Self::TooBusy
            | Self::TooManyConnections
            | Self::TooManyStreams
            | Self::DirectorySilent
            | Self::KeeperSilent
            | Self::JournalNotWritable
            | Self::NotReady
            | Self::OutOfResources => 503,
        }
    }

    /// After how many seconds the same request may be sent again, where that alone can help: the header `Retry-After`. Nothing was done
    /// of a request that is answered with such a code.
    pub fn retry_after(self) -> Option<u32> {
        matches!(self, Self::TooManyConnections | Self::TooManyStreams).then_some(1)
    }

    /// The code as it stands in the document.
    pub fn as_str(self) -> String {
        serde_json::to_value(self).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// A problem document, `application/problem+json` (RFC 9457). `type` is `about:blank` and therefore left out (section 4.2.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    pub code: Code,
    /// What happened, to what; for people.
    pub detail: String,
    /// What to do about it, where the caller can do something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The request this answers; the same id stands in the daemon's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Of `prerequisites-not-met`: the checks that are in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prerequisites: Vec<CheckReport>,
    /// What only some codes have; in JSON these fields stand beside the others.
    #[serde(default, flatten)]
    pub particulars: Box<Particulars>,
}

/// What a problem of one of these codes has besides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Particulars {
    /// Of `configuration-invalid`: each mistake with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
    /// Of `not-ready`: why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
}

/// One reason why nothing can be launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// A stable word: `configuration-invalid`, `draining`, `journal-not-writable`, `starting`, `stopping`.
    pub code: String,
    pub detail: String,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            status: code.status(),
            code,
            detail: detail.into(),
            hint: None,
            request_id: None,
            prerequisites: Vec::new(),
            particulars: Box::default(),
        }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_stands_in_kebab_case_and_one_from_the_future_is_still_a_problem() {
        let problem = Problem::new(Code::NoSuchSession, "no session \"x\"").hint("see agentctl ls");
        let json = serde_json::to_string(&problem).unwrap();
        assert!(json.contains(r#""code":"no-such-session""#), "{json}");
        assert_eq!(serde_json::from_str::<Problem>(&json).unwrap(), problem);
        let newer: Problem = serde_json::from_str(r#"{"status":418,"code":"teapot","detail":"short"}"#).unwrap();
        assert_eq!(newer.code, Code::Unknown);
    }
}
