//! `GET /v1/audit`, and the record that each call leaves in the audit log.

use agentd_api::audit::AuditRecord;
use agentd_api::quantity::Time;
use agentd_api::{Code, Problem};
use hyper::body::Incoming;
use hyper::header::LOCATION;
use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;

use super::handlers::{Answer, query};
use super::router::Context;
use super::routes::{self, Parts};
use super::{Body, json};
use crate::audit::is_since;

/// The records of an answer where the call gives no `limit`.
const USUAL: usize = 1000;
/// The largest `limit`.
const MOST: usize = 100_000;

/// `?session=ID-OR-NAME`, `?since=TIME` (a timestamp, or a length of time before now), `?limit=N`.
pub(super) async fn list(context: &Context, request: &Request<Incoming>) -> Answer {
    let since = query(request, "since").map(|text| since(&text, Timestamp::now())).transpose()?;
    let limit = match query(request, "limit") {
        None => USUAL,
        Some(text) => text.parse().ok().filter(|limit| (1..=MOST).contains(limit)).ok_or_else(|| {
            Problem::new(Code::InvalidRequest, format!("limit={text} is not a number from 1 to {MOST}"))
        })?,
    };
    // A removed session is known by its id alone.
    let session = query(request, "session").map(|given| context.sessions.id_of(&given).unwrap_or(given));
    let wanted = move |record: &AuditRecord| {
        let concerns = |session: &String| {
            let called = record.requester.session.as_ref().is_some_and(|id| id.as_str() == session);
            called || record.session.as_ref() == Some(session)
        };
        is_since(record.time, since) && session.as_ref().is_none_or(concerns)
    };
    let list = context.audit.read(limit, wanted).await.map_err(|error| {
        Problem::new(Code::Internal, format!("cannot read the audit log: {error}"))
            .hint("it is audit.jsonl where agentd keeps its state; `agentctl doctor` looks at that directory")
    })?;
    Ok(json(StatusCode::OK, &list))
}

fn since(text: &str, now: Timestamp) -> Result<Timestamp, Problem> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(at);
    }
    let ago = text.parse::<Time>().ok().and_then(|Time(ago)| now.checked_sub(ago).ok());
    ago.ok_or_else(|| {
        Problem::new(Code::InvalidRequest, format!("since={text} is neither a timestamp nor a length of time"))
            .hint("write 2026-01-01T00:00:00Z, or 15m for the last quarter of an hour")
    })
}

/// A call that is recorded in the audit log when its answer is ready.
pub(super) struct Audited {
    method: Method,
    path: String,
    session: Option<String>,
}

impl Audited {
    /// The session is looked up before the call, since the call may remove it.
    pub(super) fn begin(context: &Context, method: &Method, path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        if !is_recorded(method, &parts) {
            return None;
        }
        let session = match parts.as_slice() {
            ["v1", "sessions", given, ..] => Some(context.sessions.id_of(given).unwrap_or_else(|| (*given).to_owned())),
            _ => None,
        };
        Some(Self { method: method.clone(), path: path.to_owned(), session })
    }

    /// Records the call with what came of it.
    pub(super) fn end(self, context: &Context, request: &str, response: &Response<Body>, code: Option<Code>) {
        let made = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let made = made.and_then(|location| location.strip_prefix("/v1/sessions/")).map(str::to_owned);
        context.audit.record(AuditRecord {
            time: Timestamp::now(),
            request: request.to_owned(),
            method: self.method.to_string(),
            path: self.path,
            session: self.session.or(made),
            requester: context.requester(),
            status: response.status().as_u16(),
            code,
            unrecorded: 0,
        });
    }
}

/// Whether a call is recorded: it may change something, or it reveals what a session says or has.
fn is_recorded(method: &Method, parts: Parts<'_>) -> bool {
    *method != Method::GET || routes::find(method, parts).is_some_and(|route| route.call.reveals())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_change_or_reveal_are_recorded_and_others_are_not() {
        let recorded = |method: &Method, path: &str| {
            let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
            is_recorded(method, &parts)
        };
        for path in ["/v1/sessions/x/events", "/v1/sessions/x/environment/diff", "/v1/secrets", "/v1/audit"] {
            assert!(recorded(&Method::GET, path), "{path}");
        }
        for path in ["/healthz", "/v1/sessions", "/v1/sessions/x", "/v1/doctor", "/v1/version"] {
            assert!(!recorded(&Method::GET, path), "{path}");
        }
        assert!(recorded(&Method::POST, "/v1/sessions") && recorded(&Method::DELETE, "/v1/sessions/x"));
    }

    #[test]
    fn since_is_a_timestamp_or_a_length_of_time() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        assert_eq!(since("15m", now).unwrap().to_string(), "2026-01-01T11:45:00Z");
        assert_eq!(since("2025-01-01T00:00:00Z", now).unwrap().to_string(), "2025-01-01T00:00:00Z");
        assert_eq!(since("yesterday", now).unwrap_err().code, Code::InvalidRequest);
    }
}
