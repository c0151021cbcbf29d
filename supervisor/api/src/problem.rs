//! Errors as clients see them: RFC 9457 problem documents with a stable code.

use serde::{Deserialize, Serialize};

use crate::configuration::Mistake;
use crate::doc;
use crate::prerequisite::CheckReport;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $status:literal,)*) => {
        /// A stable code for programs. A released code never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)*
            /// A code newer than this reader.
            #[serde(other)]
            Unknown,
        }

        impl Code {
            /// All codes that a daemon of this version sends, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the HTTP status (RFC 9110) for the code.
            pub fn status(self) -> u16 {
                match self {
                    $(Self::$name => $status,)*
                    Self::Unknown => 500,
                }
            }

            /// Returns the text of the code's doc comment.
            pub fn meaning(self) -> String {
                match self {
                    $(Self::$name => doc::text(&[$($doc,)+]),)*
                    Self::Unknown => "A code newer than this reader.".to_owned(),
                }
            }
        }
    };
}

// Each code with its HTTP status.
codes! {
    /// The request's JSON cannot be parsed, or a field has the wrong type.
    MalformedRequest = 400,
    /// The request is well formed but makes no sense, for example with two agents or a directory that does not
    /// exist.
    InvalidRequest = 400,
    /// A session id, name or other id in the request is not valid.
    InvalidId = 400,
    /// The control endpoint has no such path.
    NoSuchPath = 404,
    /// The path does not accept this HTTP method.
    MethodNotAllowed = 405,
    /// The request's body is larger than the limit.
    BodyTooLarge = 413,
    /// The request's `Content-Type` is not `application/json`.
    UnsupportedMediaType = 415,
    /// The caller does not accept `text/event-stream`, and the answer is such a stream.
    NotAcceptable = 406,
    /// The request's body did not arrive in time.
    BodyTimeout = 408,
    /// The caller has reached its connection limit, or all connections are in use. `Retry-After` says when to
    /// retry.
    TooManyConnections = 503,
    /// The caller has reached its limit of streams (events and `?wait=`).
    TooManyStreams = 503,
    /// No session has this id or name.
    NoSuchSession = 404,
    /// The configuration has no agent of this name.
    NoSuchAgent = 404,
    /// No connection of `/acp` has this id, or it has ended.
    NoSuchConnection = 404,
    /// The session has no such turn.
    NoSuchTurn = 404,
    /// The session has no such permission request.
    NoSuchPermission = 404,
    /// The agent has no such request, or it is answered already.
    NoSuchRequest = 404,
    /// No terminal snapshot has this id.
    NoSuchSnapshot = 404,
    /// The session starts with a terminal's environment, and the request names no snapshot. Upload one and send
    /// the request again.
    SnapshotNeeded = 422,
    /// The login shell's environment could not be captured.
    SnapshotFailed = 500,
    /// No plugin has this name.
    NoSuchPlugin = 404,
    /// No prerequisite has this name.
    NoSuchPrerequisite = 404,
    /// The configuration has no place of this name.
    NoSuchPlace = 404,
    /// No schedule has this name.
    NoSuchSchedule = 404,
    /// The configuration has no hook of this name.
    NoSuchHook = 404,
    /// A schedule's time, calendar expression or time zone is not valid, or lies in the past.
    ScheduleInvalid = 422,
    /// The file of the schedule cannot be read, and stays unchanged.
    ScheduleUnreadable = 500,
    /// The session has no repository of this name.
    NoSuchRepository = 404,
    /// The repository has uncommitted or unpushed work, which a removal would lose.
    RepositoryHasWork = 409,
    /// A prerequisite of the session is not met. `prerequisites` lists each with its facts and remedy.
    PrerequisitesNotMet = 409,
    /// The configuration cannot be read or has a mistake; `mistakes` has the positions.
    ///
    /// After a reload with this code, the previous configuration stays in force. A launch with this code is
    /// refused until the mistake is corrected.
    ConfigurationInvalid = 422,
    /// The configuration file cannot be written. It belongs to the administrator, is read-only, or changed in
    /// the meantime.
    ConfigurationNotWritable = 409,
    /// A plugin of the configuration cannot be loaded. The previous configuration stays in force.
    PluginUnusable = 422,
    /// The session's directory does not exist or is not a directory.
    NoSuchDirectory = 400,
    /// The file system of the session's directory does not respond, or the directory cannot be read.
    DirectorySilent = 503,
    /// Another session already has this name.
    NameTaken = 409,
    /// The request has the header `If-Match`, and the specification has another generation. Nothing was changed.
    GenerationChanged = 412,
    /// The request changes a field of the specification that never changes. Nothing was changed.
    FieldFixed = 422,
    /// The session's phase does not allow this request.
    WrongPhase = 409,
    /// Another session uses the conversation, and the agent cannot copy it.
    ConversationInUse = 409,
    /// The context would have more items than a set or a session may have.
    ContextFull = 422,
    /// The session's queue of prompts is full.
    QueueFull = 429,
    /// The permission request already has an answer.
    PermissionAnswered = 409,
    /// The script approvals (`trust.json`) cannot be read. Scripts that need an approval are refused.
    ApprovalsUnreadable = 409,
    /// The script changed after it was shown for approval.
    ScriptChanged = 409,
    /// The JSON Schema of an answer is not valid, refers to a document outside of itself, or takes too long to check.
    SchemaInvalid = 422,
    /// The `Idempotency-Key` was used before for a different request.
    KeyReused = 422,
    /// The request sets a variable that is a secret and would be stored in clear text. Declare secrets in the
    /// configuration.
    SecretInEnvironment = 422,
    /// The events after this cursor are no longer stored.
    CursorGone = 410,
    /// The files of the feed cannot be read or written now. The daemon's log has the reason. Retry later.
    FeedUnavailable = 503,
    /// The number of sessions has reached its limit.
    TooManySessions = 429,
    /// The session's keeper does not respond. The request may still take effect; the journal tells whether it
    /// did.
    KeeperSilent = 503,
    /// The daemon is drained and launches no session.
    Draining = 409,
    /// No session can be launched: the response of `/readyz`. `reasons` lists why.
    NotReady = 503,
    /// A TCP request has no token or a wrong token.
    Unauthorized = 401,
    /// A TCP request names another host, for example after DNS rebinding by a web page.
    ForeignHost = 403,
    /// A browser sent the TCP request on behalf of another site.
    ForeignOrigin = 403,
    /// The caller is not the user who owns the daemon.
    Forbidden = 403,
    /// The caller runs inside a session, and the configuration does not allow this request from there
    /// (`control.guests`).
    InSession = 403,
    /// The scope of the token, or of the read-only socket, does not permit the call.
    ScopeTooSmall = 403,
    /// The calling process has ended, or agentd cannot tell whether it runs inside a session.
    CallerUnknown = 403,
    /// The caller was started by agentd for a start-up file, a script or a plugin. It may read, but it may not
    /// make requests that wait for its own end.
    StartedByAgentd = 403,
    /// This version cannot read the stored session.
    SessionUnreadable = 500,
    /// The encryption key of a stored environment is missing or wrong.
    KeyUnavailable = 409,
    /// The stored environment is damaged, or has a newer format.
    EnvironmentUnreadable = 500,
    /// An environment provider failed, or a script is not approved.
    EnvironmentNotBuilt = 409,
    /// The session's journal cannot be written: the disk is full, a quota is reached, or the file system is
    /// read-only.
    JournalNotWritable = 503,
    /// The daemon has run out of file descriptors, processes or memory. Retry later.
    OutOfResources = 503,
    /// The daemon or the session cannot take the request now, for example because it is stopping. Retry later.
    TooBusy = 503,
    /// Internal error. The daemon's log has details.
    Internal = 500,
}

impl Code {
    /// Returns the number of seconds after which the same request may succeed: the header `Retry-After`. `None`
    /// if waiting alone cannot help. A request that gets a code with this header had no effect.
    pub fn retry_after(self) -> Option<u32> {
        matches!(self, Self::TooManyConnections | Self::TooManyStreams).then_some(1)
    }

    /// Returns the code as it appears in JSON.
    pub fn as_str(self) -> String {
        serde_json::to_value(self).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// A problem document, `application/problem+json` (RFC 9457). `type` is `about:blank` and therefore omitted
/// (section 4.2.1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// HTTP status of the response.
    pub status: u16,
    /// Stable code for programs.
    pub code: Code,
    /// Description of the error for people.
    pub detail: String,
    /// Instructions for the caller, if the caller can fix the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Id of the request. The daemon's log has the same id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The checks that prevent the launch. Only for `prerequisites-not-met`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prerequisites: Vec<CheckReport>,
    /// Fields of certain codes. JSON puts them beside the other fields.
    #[serde(default, flatten)]
    pub particulars: Box<Particulars>,
}

/// Fields of a problem that only certain codes have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Particulars {
    /// Id of the request's trace: 32 hexadecimal digits (W3C Trace Context). Absent without traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The mistakes with their positions. Only for `configuration-invalid`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
    /// Why no session can be launched. Only for `not-ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
}

/// One reason why no session can be launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reason {
    /// Stable code, one of [`crate::readiness::NotReady::CODES`]. Later releases may add codes.
    pub code: String,
    /// Description for people.
    pub detail: String,
    /// The remedy, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    /// Makes a problem with the status of its code.
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

    /// Sets the hint.
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
