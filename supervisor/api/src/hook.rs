//! Hooks: events that agentd tells to a program, to a web address or to the desktop.
//!
//! The configuration declares hooks (`[[hooks]]`). A hook gets each event as a [`HookMessage`].

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::doc::Named;
use crate::event::Body;
use crate::feed::Notice;
use crate::id::{PermissionId, SessionId, SessionName, TurnId};
use crate::label::Labels;
use crate::session::Phase;

/// Name of the event for the begin of a need for a person: the condition of the same name became True.
pub const NEEDS_ATTENTION: &str = "NeedsAttention";
/// Name of the event for a session that came into the phase `failed`.
pub const SESSION_FAILED: &str = "session.failed";
/// Name of the event that a test sends.
pub const TEST: &str = "hook.test";

/// Events that agentd derives from the states of sessions. No record has them as its kind.
pub const DERIVED: &[Named] = &[
    Named { name: NEEDS_ATTENTION, doc: &["A session needs a person: its condition `NeedsAttention` became True."] },
    Named { name: SESSION_FAILED, doc: &["A session came into the phase `failed`."] },
];

/// Kinds that no hook can have. They carry the agent's messages, or follow from the calls of a hook's own program.
const EXCLUDED: &[&str] =
    &["agent.out", "agent.in", "agent.noise", "agent.stderr", "agent.replayed", "session.state", "audit.recorded"];

/// The name of an event that a hook can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HookEvent(&'static str);

/// A text names no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownHookEvent {
    /// No event has this name.
    #[error("there is no event {0:?}")]
    Unknown(String),
    /// The event exists, but no hook can have it.
    #[error("the event {0:?} is not for hooks; read it from GET /v1/events")]
    Excluded(String),
}

impl HookEvent {
    /// Returns all events, the derived ones first.
    pub fn all() -> impl Iterator<Item = Self> {
        let kinds = DERIVED.iter().chain(Body::KINDS).chain(Notice::KINDS).map(|kind| kind.name);
        kinds.filter(|kind| !EXCLUDED.contains(kind)).map(Self)
    }

    /// Returns the name.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Reports whether agentd derives the event from the states of sessions.
    pub fn is_derived(self) -> bool {
        DERIVED.iter().any(|kind| kind.name == self.0)
    }
}

impl FromStr for HookEvent {
    type Err = UnknownHookEvent;

    fn from_str(text: &str) -> Result<Self, UnknownHookEvent> {
        let unknown = || {
            let is_excluded = EXCLUDED.contains(&text);
            if is_excluded {
                UnknownHookEvent::Excluded(text.to_owned())
            } else {
                UnknownHookEvent::Unknown(text.to_owned())
            }
        };
        Self::all().find(|event| event.0 == text).ok_or_else(unknown)
    }
}

impl fmt::Display for HookEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Serialize for HookEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for HookEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal, $remedy:literal;)*) => {
        /// Why a delivery failed. A released code never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        pub enum HookFault {
            $($(#[doc = $doc])+ $name,)*
            /// A code newer than this reader.
            #[serde(other)]
            Unknown,
        }

        impl HookFault {
            /// All codes with their meanings.
            pub const NAMES: &'static [Named] = &[$(Named { name: $code, doc: &[$($doc,)+] },)*];

            /// Returns the stable code.
            pub fn code(self) -> &'static str {
                match self {
                    $(Self::$name => $code,)*
                    Self::Unknown => "unknown",
                }
            }

            /// Returns the remedy.
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)*
                    Self::Unknown => "see the log of agentd",
                }
            }
        }
    };
}

faults! {
    /// The receiver cannot be reached: its name, its address or its TLS certificate.
    HookUnreachable = "hook-unreachable",
        "check that the receiver runs, and that this machine reaches the host and port of `url`";
    /// The receiver or the command did not answer within `timeout`.
    HookTimeout = "hook-timeout", "make the receiver answer sooner, or raise `timeout` of the hook";
    /// The receiver answered with another status than 2xx.
    HookRefused = "hook-refused", "the answer has the receiver's reason; correct `url`, `format` or `secret`";
    /// The receiver redirected the request. agentd follows no redirect.
    HookRedirected = "hook-redirected", "set `url` to the address of the redirect, if you trust it";
    /// The receiver answered 410, so the hook is disabled until the next reload.
    HookGone = "hook-gone", "remove the hook or correct its `url`, then run `agentctl reload`";
    /// The command cannot be run, or ended with another status than 0.
    HookCommandFailed = "hook-command-failed", "run the command by hand with an event on its stdin";
    /// No notification service answers on the session bus, or it refused the notification.
    HookDesktopFailed = "hook-desktop-failed",
        "run agentd in the user's desktop session, with DBUS_SESSION_BUS_ADDRESS in its environment";
    /// The secret of the hook cannot be read or is too short.
    HookSecretInvalid = "hook-secret-invalid",
        "the file of `secret` belongs to its user with mode 0600 and has at least 16 characters";
    /// An event was dropped, because it could not be delivered within `max_age`.
    HookEventDropped = "hook-event-dropped", "correct the cause of the failures, or raise `max_age` of the hook";
    /// The position of the hook or the feed of events cannot be read or written.
    HookPositionFailed = "hook-position-failed", "check the disk of the state directory: `agentctl doctor`";
}

/// A message about one event: the body of a request, and the stdin of a command. The fields of the top follow the
/// specification Standard Webhooks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookMessage {
    /// Name of the event: one of the hook's `on`, `feed.gone` or `hook.test`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Time of the event.
    pub timestamp: Timestamp,
    /// Details of the event.
    pub data: HookData,
}

/// Details of an event. They contain no prompt and no output of the agent but the title of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookData {
    /// Id of the message. Repeated deliveries have the same id.
    pub id: String,
    /// Name of the hook.
    pub hook: String,
    /// Position of the event in the feed.
    pub cursor: u64,
    /// The event in one sentence for people.
    pub text: String,
    /// The session of the event. Absent for events of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<HookSession>,
    /// One word for programs: the reason of the condition, of the end of a turn or of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The title of the question, or the message of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The turn that the event belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The permission request that waits for an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission: Option<PermissionId>,
    /// Instructions for the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Shell command that carries out the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The session of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookSession {
    /// Id of the session.
    pub id: SessionId,
    /// Name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SessionName>,
    /// The agent, as in lists. Absent if the session was removed and had a command of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Working directory of the session.
    pub directory: PathBuf,
    /// Labels of the session.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Phase of the session at the time of the delivery.
    pub phase: Phase,
}

/// The response of `GET /v1/hooks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookList {
    /// The hooks, in the order of the configuration.
    pub hooks: Vec<HookView>,
}

/// A hook with the state of its deliveries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookView {
    /// Name of the hook.
    pub name: String,
    /// Events of the hook.
    pub on: Vec<String>,
    /// The receiver: the program, the scheme and host of the address, or `desktop`.
    pub target: String,
    /// State of the deliveries.
    pub state: HookState,
    /// Cursor up to which the hook has dealt with the feed. Absent before the hook has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Number of events in the feed behind the position. Not all of them are for this hook.
    pub lag: u64,
    /// Number of delivered events since the daemon started.
    pub delivered: u64,
    /// Number of dropped events since the daemon started.
    pub dropped: u64,
    /// The last attempt since the daemon started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<HookAttempt>,
    /// Time of the next attempt, while the hook waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<Timestamp>,
}

/// State of a hook's deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HookState {
    /// The last delivery succeeded, or there was none.
    Working,
    /// The last delivery failed, and is tried again.
    Failing,
    /// The receiver answered 410. The next reload enables the hook.
    Disabled,
    /// A state newer than this reader.
    #[serde(other)]
    Unknown,
}

impl HookState {
    /// Returns the state as JSON has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Failing => "failing",
            Self::Disabled => "disabled",
            Self::Unknown => "unknown",
        }
    }
}

/// One attempt of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookAttempt {
    /// Time at which the attempt ended.
    pub time: Timestamp,
    /// Id of the message.
    pub id: String,
    /// Name of the event.
    pub event: String,
    /// Number of this attempt for the event, from 1.
    pub attempt: u32,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Result of the attempt.
    pub outcome: HookOutcome,
    /// Why the attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<HookFault>,
    /// HTTP status, or exit status of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// Description of the failure for people, without a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Remedy of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HookOutcome {
    /// The receiver accepted the event.
    Delivered,
    /// The attempt failed.
    Failed,
    /// The event was given up, because it was too old.
    Dropped,
    /// A result newer than this reader.
    #[serde(other)]
    Unknown,
}

impl HookOutcome {
    /// Returns the result as JSON has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
            Self::Unknown => "unknown",
        }
    }
}

/// The response of `POST /v1/hooks/NAME/test`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookTestView {
    /// The attempt. A failure is no problem of the call.
    pub attempt: HookAttempt,
    /// First 4 KiB of the receiver's answer, or of the command's output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub answer: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_parses_back_and_messages_of_agents_are_no_events() {
        for event in HookEvent::all() {
            assert_eq!(event.as_str().parse(), Ok(event));
        }
        let known = |text: &str| text.parse::<HookEvent>();
        assert!(
            known("permission.requested").is_ok() && known("turn.ended").is_ok() && known("daemon.started").is_ok()
        );
        assert!(known(NEEDS_ATTENTION).unwrap().is_derived() && known(SESSION_FAILED).unwrap().is_derived());
        assert!(!known("turn.ended").unwrap().is_derived());
        assert_eq!(known("turn.end"), Err(UnknownHookEvent::Unknown("turn.end".to_owned())));
        for excluded in EXCLUDED {
            assert_eq!(known(excluded), Err(UnknownHookEvent::Excluded((*excluded).to_owned())));
            let kinds = Body::KINDS.iter().chain(Notice::KINDS);
            assert!(kinds.map(|kind| kind.name).any(|kind| kind == *excluded), "{excluded} is no kind");
        }
    }

    #[test]
    fn each_fault_has_the_code_of_its_json() {
        for fault in [HookFault::HookUnreachable, HookFault::HookGone, HookFault::HookPositionFailed] {
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.code());
            assert!(HookFault::NAMES.iter().any(|named| named.name == fault.code()));
        }
    }
}
