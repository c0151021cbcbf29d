//! The reasons for which the page's server refuses a request or a connection, as problem documents (RFC 9457).

use agentd_client::Error;
use serde::Serialize;

/// Reason why the server does not answer as requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// `Host` does not name this server.
    ForeignHost,
    /// A browser sent the request on behalf of another site.
    ForeignOrigin,
    /// The other end belongs to another user.
    OtherUser,
    /// The other end is inside a session.
    InSession,
    /// The other end cannot be classified.
    CallerUnknown,
    WrongToken,
    UsedToken,
    ExpiredToken,
    /// The request lacks the cookie or the key of the sign-in.
    SignedOut,
    ReadOnly,
    NoSuchPath,
    NoSuchHost {
        name: String,
    },
    MethodNotAllowed,
    MalformedRequest {
        detail: String,
    },
    BodyTooLarge {
        limit: usize,
    },
    BodyTimeout,
    TooManyConnections,
    /// The daemon of a host cannot be reached.
    HostUnreachable {
        detail: String,
        hint: Option<String>,
    },
    /// The daemon of a host ended the connection before its answer.
    HostBroken {
        detail: String,
        hint: Option<String>,
    },
    Internal {
        detail: String,
    },
}

/// A problem document.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

const AGAIN: &str = "run agentctl ui again";

impl Refusal {
    /// Returns the refusal of a call that the daemon of a host did not answer.
    pub(crate) fn of_host(error: &Error) -> Self {
        let (detail, hint) = (agentd_api::chain(error), error.hint());
        match error {
            Error::Broken { .. } => Self::HostBroken { detail, hint },
            _ => Self::HostUnreachable { detail, hint },
        }
    }

    /// Returns the problem document.
    pub(crate) fn document(&self) -> Document {
        let (status, code, detail, hint) = match self {
            Self::ForeignHost => (403, "ui.foreign_host", "the Host of the request does not name this page", None),
            Self::ForeignOrigin => {
                (403, "ui.foreign_origin", "a browser sent the request on behalf of another site", None)
            }
            Self::OtherUser => (403, "ui.other_user", "this page belongs to another user", None),
            Self::InSession => (
                403,
                "ui.in_session",
                "the connection comes from inside a session of agentd, and this page is for people",
                Some("open the page with a browser that no agent has started"),
            ),
            Self::CallerUnknown => (
                403,
                "ui.caller_unknown",
                "cannot determine the process at the other end of the connection, or whether it is inside a session",
                Some("open the page with a browser on this machine, outside of containers and sessions"),
            ),
            Self::WrongToken => (401, "ui.token_wrong", "the token is wrong", Some(AGAIN)),
            Self::UsedToken => (401, "ui.token_used", "the token was used already, and works only once", Some(AGAIN)),
            Self::ExpiredToken => (401, "ui.token_expired", "the time of the token is over", Some(AGAIN)),
            Self::SignedOut => {
                (401, "ui.signed_out", "the request lacks the cookie or the key of this page's sign-in", Some(AGAIN))
            }
            Self::ReadOnly => (
                403,
                "ui.read_only",
                "this page is read-only",
                Some("run agentctl ui without --read-only to change something"),
            ),
            Self::NoSuchPath => (404, "ui.no_such_path", "the page has no such path", None),
            Self::NoSuchHost { name } => {
                return document(404, "ui.no_such_host", format!("the page shows no host {name:?}"), None);
            }
            Self::MethodNotAllowed => (405, "ui.method_not_allowed", "the path does not accept this method", None),
            Self::MalformedRequest { detail } => {
                return document(400, "ui.malformed_request", detail.clone(), None);
            }
            Self::BodyTooLarge { limit } => {
                let detail = format!("the request's body is larger than {limit} bytes");
                return document(413, "ui.body_too_large", detail, None);
            }
            Self::BodyTimeout => (408, "ui.body_timeout", "the request's body did not arrive in time", None),
            Self::TooManyConnections => (
                503,
                "ui.too_many_connections",
                "the page has no room for a further connection",
                Some("close other windows of the page"),
            ),
            Self::HostUnreachable { detail, hint } => {
                return document(503, "ui.host_unreachable", detail.clone(), hint.clone());
            }
            Self::HostBroken { detail, hint } => {
                return document(502, "ui.host_unreachable", detail.clone(), hint.clone());
            }
            Self::Internal { detail } => return document(500, "ui.internal", detail.clone(), None),
        };
        document(status, code, detail.to_owned(), hint.map(str::to_owned))
    }
}

fn document(status: u16, code: &'static str, detail: String, hint: Option<String>) -> Document {
    Document { status, code, detail, hint }
}
