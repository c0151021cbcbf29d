//! Handlers of the calls on a session's specification, and the `ETag` of a session: the number of its specification.

use agentd_api::route::Scope;
use agentd_api::session::SessionView;
use agentd_api::spec::{SpecChangeView, SpecPatch};
use agentd_api::{Code, Problem};
use agentd_session::{ExpectedGeneration, Session};
use hyper::header::{ETAG, HeaderMap, HeaderValue, IF_MATCH};
use hyper::{Request, Response};

use super::handlers::{Answer, read, to_the_end};
use super::json;
use super::router::Context;
use crate::request_body::RequestBody;

/// Shows a session.
pub(super) fn show(session: &Session) -> Answer {
    let view = session.view();
    Ok(tagged(json(&view)?, &view))
}

/// Field of a specification that decides nothing about what runs.
const HARMLESS: &str = "labels";

/// Changes the specification. A token of the scope `operate` changes labels only.
pub(super) async fn change(context: &Context, session: Session, request: Request<RequestBody>) -> Answer {
    let expected = expected(request.headers())?;
    let patch: SpecPatch = read(context, request).await?;
    if let Some(field) = patch.0.keys().find(|field| *field != HARMLESS) {
        context.grant.check(&format!("the field {field:?} of PATCH /v1/sessions/{{session}}"), Scope::Own)?;
    }
    let (sessions, requester) = (context.sessions.clone(), context.requester());
    let (changes, session) = to_the_end(async move {
        let changes = sessions.change_spec(&session, patch, expected, requester).await?;
        Ok((changes, SessionView::clone(&session.view())))
    })
    .await?;
    let answer = SpecChangeView { changes, session };
    Ok(tagged(json(&answer)?, &answer.session))
}

/// Adds the `ETag` of a session (RFC 9110 section 8.8.3).
fn tagged<B>(mut response: Response<B>, view: &SessionView) -> Response<B> {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", view.generation)) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// Reads the header `If-Match` (RFC 9110 section 13.1.1): `*`, or tags with commas between them.
pub(super) fn expected(headers: &HeaderMap) -> Result<ExpectedGeneration, Problem> {
    let invalid = || {
        Problem::new(Code::InvalidRequest, "the header If-Match has neither \"*\" nor a list of ETags")
            .hint("give the ETag of the session as it was answered, with its quotes: If-Match: \"3\"")
    };
    let mut tags = Vec::new();
    for value in headers.get_all(IF_MATCH) {
        for tag in value.to_str().map_err(|_| invalid())?.split(',').map(str::trim) {
            if tag == "*" {
                return Ok(ExpectedGeneration::Any);
            }
            // A weak ETag never matches.
            let (is_weak, tag) = tag.strip_prefix("W/").map_or((false, tag), |tag| (true, tag));
            let opaque = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).ok_or_else(invalid)?;
            tags.push(opaque.parse().ok().filter(|_| !is_weak));
        }
    }
    Ok(if tags.is_empty() { ExpectedGeneration::Any } else { ExpectedGeneration::OneOf(tags) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Result<ExpectedGeneration, Problem> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_MATCH, value.parse().unwrap());
        }
        expected(&headers)
    }

    #[test]
    fn if_match_is_read() {
        let one_of = ExpectedGeneration::OneOf;
        assert_eq!(of(&[]), Ok(ExpectedGeneration::Any));
        assert_eq!(of(&["*"]), Ok(ExpectedGeneration::Any));
        assert_eq!(of(&["\"3\""]), Ok(one_of(vec![Some(3)])));
        assert_eq!(of(&["\"3\", \"4\"", "\"x\""]), Ok(one_of(vec![Some(3), Some(4), None])));
        assert_eq!(of(&["W/\"3\""]), Ok(one_of(vec![None])));
        for invalid in ["3", "", "\"3", "\"3\",", "W/3"] {
            assert!(of(&[invalid]).is_err(), "{invalid}");
        }
    }
}
