//! The session that a path names. A request looks the session up at most once, and not for a caller that is refused
//! whatever the session is.

use agentd_api::Problem;
use agentd_api::route::session_in;
use agentd_session::{Session, Sessions};
use tokio::sync::OnceCell;

/// The session in the path of one request.
#[derive(Debug)]
pub(super) struct Named {
    given: String,
    found: OnceCell<Result<Session, Problem>>,
}

impl Named {
    /// Returns the session that the path names, before its lookup; `None` for a path that names no session.
    pub(super) fn of(path: &str) -> Option<Self> {
        session_in(path).map(|given| Self { given: given.to_owned(), found: OnceCell::new() })
    }

    /// Returns the text of the path.
    pub(super) fn text(&self) -> &str {
        &self.given
    }

    /// Returns the session. The first caller looks the session up.
    pub(super) async fn session(&self, sessions: &Sessions) -> Result<Session, Problem> {
        self.found.get_or_init(|| sessions.find(&self.given)).await.clone()
    }

    /// Returns the session's id for records, also when the call removed the session. Without a session returns the
    /// text of the path.
    pub(super) fn id(&self, sessions: &Sessions) -> String {
        let id = match self.found.get() {
            Some(Ok(session)) => Some(session.id().to_string()),
            Some(Err(_)) => None,
            None => sessions.id_of(&self.given),
        };
        id.unwrap_or_else(|| self.given.clone())
    }
}
