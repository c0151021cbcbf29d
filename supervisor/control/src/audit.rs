//! Implements `GET /v1/audit`, and records each call in the audit log.

use agentd_api::audit::AuditRecord;
use agentd_api::feed::Notice;
use agentd_api::hint;
use agentd_api::quantity::Time;
use agentd_api::route::session_in;
use agentd_api::{Code, Problem, Route};
use hyper::header::LOCATION;
use hyper::{Method, Response};
use jiff::Timestamp;

use super::bulk::Concerned;
use super::handlers::Answer;
use super::named::Named;
use super::prune::RemovedSessions;
use super::router::Context;
use super::{Body, json, routes};
use crate::audit_log::is_since;

/// Number of records in a response to a call without `limit`.
const USUAL: u64 = 1000;
/// Maximum of `limit`.
const MOST: u64 = 100_000;

/// Lists records. `session` is an id or a name, and `since` is a timestamp or a duration before now.
pub(super) async fn list(
    context: &Context,
    session: Option<String>,
    earliest: Option<String>,
    limit: Option<u64>,
) -> Answer {
    let since = earliest.map(|text| since(&text, Timestamp::now())).transpose()?;
    let limit = limit.unwrap_or(USUAL);
    let limit = usize::try_from(limit).ok().filter(|_| (1..=MOST).contains(&limit)).ok_or_else(|| {
        Problem::new(Code::InvalidRequest, format!("cannot list {limit} records"))
            .hint(format!("limit is a whole number from 1 to {MOST}"))
    })?;
    // A removed session is known only by its id.
    let session = session.map(|given| context.sessions.id_of(&given).unwrap_or(given));
    let wanted = move |record: &AuditRecord| {
        let concerns = |session: &String| {
            let called = record.requester.session.as_ref().is_some_and(|id| id.as_str() == session);
            called || record.session.as_ref() == Some(session)
        };
        is_since(record.time, since) && session.as_ref().is_none_or(concerns)
    };
    let list = context.audit.read(limit, wanted).await.map_err(|error| {
        Problem::new(Code::Internal, format!("cannot read the audit log: {error}")).hint(hint::CHECK_DIRECTORY)
    })?;
    json(&list)
}

fn since(text: &str, now: Timestamp) -> Result<Timestamp, Problem> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    let ago = text.parse::<Time>().ok().and_then(|Time(ago)| now.checked_sub(ago).ok());
    ago.ok_or_else(|| {
        Problem::new(Code::InvalidRequest, format!("since={text} is neither a timestamp nor a duration"))
            .hint("write 2026-01-01T00:00:00Z, or 15m for the last quarter of an hour")
    })
}

/// A call that is recorded in the audit log once its response is ready.
pub(super) struct Audited<'a> {
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    /// The session in the path.
    pub(super) named: Option<&'a Named>,
}

impl Audited<'_> {
    /// Records the call with its result. A call that removed several sessions has a record for each.
    pub(super) fn record(self, context: &Context, request: &str, response: &Response<Body>, code: Option<Code>) {
        if let Some(RemovedSessions(removed)) = response.extensions().get::<RemovedSessions>() {
            for session in removed {
                self.record_one(context, request, response, code, Some(session.clone()));
            }
        }
        if let Some(Concerned(sessions)) = response.extensions().get::<Concerned>() {
            for session in sessions {
                self.record_one(context, request, response, code, Some(session.clone()));
            }
        }
        let created = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let created = created.and_then(session_in).map(str::to_owned);
        let session = self.named.map(|named| named.id(&context.sessions)).or(created);
        self.record_one(context, request, response, code, session);
    }

    fn record_one(
        &self,
        context: &Context,
        request: &str,
        response: &Response<Body>,
        code: Option<Code>,
        session: Option<String>,
    ) {
        let recorded = context.audit.record(AuditRecord {
            time: Timestamp::now(),
            request: request.to_owned(),
            method: self.method.to_string(),
            path: self.path.to_owned(),
            session,
            requester: context.requester(),
            status: response.status().as_u16(),
            code,
            unrecorded: 0,
        });
        if let Some(recorded) = recorded {
            context.generation.daemon.changes.note(Notice::AuditRecorded(Box::new(recorded)));
        }
    }
}

/// Reports whether a call is recorded: it may change something, its response reveals the contents of a session, or its
/// token has too small a scope.
pub(super) fn is_recorded(method: &Method, route: Option<Route>, refusal: Option<Code>) -> bool {
    let changes = !matches!(*method, Method::GET | Method::HEAD);
    changes || route.is_some_and(routes::reveals) || refusal == Some(Code::ScopeTooSmall)
}

#[cfg(test)]
mod tests {
    use agentd_api::route::find;

    use super::*;

    #[test]
    fn calls_that_change_or_reveal_are_recorded_and_others_are_not() {
        let recorded = |method: &Method, path: &str| is_recorded(method, find(method.as_str(), path), None);
        for path in ["/v1/sessions/x/events", "/v1/sessions/x/environment/diff", "/v1/secrets", "/v1/audit"] {
            assert!(recorded(&Method::GET, path), "{path}");
        }
        for path in ["/healthz", "/v1/sessions", "/v1/sessions/x", "/v1/doctor", "/v1/version"] {
            assert!(!recorded(&Method::GET, path), "{path}");
        }
        assert!(is_recorded(&Method::GET, Some(Route::ForeseeReload), Some(Code::ScopeTooSmall)));
        assert!(recorded(&Method::POST, "/v1/sessions") && recorded(&Method::DELETE, "/v1/sessions/x"));
    }

    #[test]
    fn since_is_a_timestamp_or_a_duration() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        assert_eq!(since("15m", now).unwrap().to_string(), "2026-01-01T11:45:00Z");
        assert_eq!(since("2025-01-01T00:00:00Z", now).unwrap().to_string(), "2025-01-01T00:00:00Z");
        assert_eq!(since("yesterday", now).unwrap_err().code, Code::InvalidRequest);
    }
}
