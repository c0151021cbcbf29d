//! Answers the requests of one connection.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue, SET_COOKIE};
use hyper::{Method, Request, Response};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::answer::{Body, confine, file, json, problem};
use crate::assets::{self, INDEX};
use crate::door::{Door, Secret, SignIn};
use crate::origin::Names;
use crate::proxy;
use crate::refusal::Refusal;
use crate::server::Stage;
use crate::{Host, Settings};

/// Maximum size in bytes of the body of a sign-in.
const LOGIN: usize = 4 << 10;
/// Time limit for the body of a sign-in.
const LOGIN_TIME: Duration = if cfg!(test) { Duration::from_mins(1) } else { Duration::from_secs(10) };
/// Header with the key. A page of another origin cannot send it without a permission that this server never gives.
const KEY: HeaderName = HeaderName::from_static("agentd-ui-key");
/// The document names the other files, and must be of this program.
const NEVER_KEPT: &str = "no-store";
/// The name of each other file has a digest of its content.
const KEPT: &str = "public, max-age=31536000, immutable";

/// State that all connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) names: Names,
    /// Name of the cookie. Cookies do not distinguish ports, so the name has the port.
    pub(crate) cookie: String,
    pub(crate) door: Mutex<Door>,
    pub(crate) stage: watch::Sender<Stage>,
}

/// Answer of `GET /ui/info`.
#[derive(Serialize)]
struct Info<'a> {
    version: &'a str,
    read_only: bool,
    hosts: Vec<HostInfo<'a>>,
    /// End of the sign-in.
    expires: Timestamp,
}

/// A host in [`Info`].
#[derive(Serialize)]
struct HostInfo<'a> {
    name: &'a str,
    label: &'a str,
    options: &'a [String],
    editor: Option<&'a str>,
}

impl<'a> HostInfo<'a> {
    fn of(host: &'a Host) -> Self {
        Self { name: &host.name, label: &host.label, options: &host.options, editor: host.editor.as_deref() }
    }
}

/// Body of `POST /ui/login`.
#[derive(Deserialize)]
struct Login {
    token: String,
}

/// Answer of `POST /ui/login`.
#[derive(Serialize)]
struct LoggedIn<'a> {
    /// Value of the header [`KEY`] in the page's requests.
    key: &'a str,
}

/// Answers a request. The rest of a body that the answer did not need is read: hyper would close the connection, and
/// the browser would lose the answer.
pub(crate) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    let mut response = match shared.respond(Request::from_parts(head, ()), &mut body).await {
        Ok(response) => response,
        Err(refusal) => problem(&refusal),
    };
    if let Some(body) = body.filter(|body| !body.is_end_stream()) {
        tokio::spawn(proxy::read_rest(body));
    }
    confine(response.headers_mut());
    Ok(response)
}

impl Shared {
    /// Answers a request. Takes the body if the answer needs it.
    async fn respond(&self, request: Request<()>, body: &mut Option<Incoming>) -> Result<Response<Body>, Refusal> {
        self.names.check(&request)?;
        let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/" if is_safe => shown(INDEX, request.headers(), NEVER_KEPT),
            "/ui/login" if *request.method() == Method::POST => self.login(request.headers(), body).await,
            "/" | "/ui/login" => Err(Refusal::MethodNotAllowed),
            path if path.starts_with("/assets/") => {
                let name = path.strip_prefix("/assets/").filter(|name| *name != INDEX).unwrap_or_default();
                if is_safe { shown(name, request.headers(), KEPT) } else { Err(Refusal::MethodNotAllowed) }
            }
            path if path == "/ui/info" || path.starts_with(proxy::PREFIX) => {
                let ends = self.admit(request.headers()).ok_or(Refusal::SignedOut)?;
                if self.settings.is_read_only && !is_safe {
                    return Err(Refusal::ReadOnly);
                }
                match path {
                    "/ui/info" if is_safe => Ok(json(&self.info(ends))),
                    "/ui/info" => Err(Refusal::MethodNotAllowed),
                    _ => proxy::forward(&self.settings.hosts, request, body).await,
                }
            }
            _ => Err(Refusal::NoSuchPath),
        }
    }

    fn info(&self, expires: Timestamp) -> Info<'_> {
        Info {
            version: &self.settings.version,
            read_only: self.settings.is_read_only,
            hosts: self.settings.hosts.iter().map(HostInfo::of).collect(),
            expires,
        }
    }

    /// Exchanges the token for the cookie and the key.
    async fn login(&self, headers: &HeaderMap, body: &mut Option<Incoming>) -> Result<Response<Body>, Refusal> {
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !content_type.is_some_and(|value| value.starts_with("application/json")) {
            return Err(malformed("the content type is not application/json"));
        }
        let body = whole(body).await?;
        let login: Login = serde_json::from_slice(&body).map_err(|error| malformed(&error.to_string()))?;
        let random = || Secret::random().map_err(|error| Refusal::Internal { detail: error.to_string() });
        let secrets = [random()?, random()?];
        let sign_in = {
            let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
            door.sign_in(login.token.as_bytes(), secrets, Timestamp::now())?
        };
        self.stage.send_replace(Stage::SignedIn);
        let cookie = self.set_cookie(&sign_in)?;
        let mut response = json(&LoggedIn { key: sign_in.key.as_str() });
        response.headers_mut().insert(SET_COOKIE, cookie);
        Ok(response)
    }

    fn set_cookie(&self, sign_in: &SignIn) -> Result<HeaderValue, Refusal> {
        let SignIn { cookie, ends, .. } = sign_in;
        let seconds = ends.duration_since(Timestamp::now()).max(SignedDuration::ZERO).as_secs();
        let text = format!("{}={}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict", self.cookie, cookie.as_str());
        HeaderValue::from_str(&text).map_err(|error| Refusal::Internal { detail: error.to_string() })
    }

    /// Returns the end of the sign-in to which a request belongs.
    fn admit(&self, headers: &HeaderMap) -> Option<Timestamp> {
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let key = headers.get(KEY).map_or(&b""[..], HeaderValue::as_bytes);
        door.admit(values(headers, &self.cookie), key, Timestamp::now())
    }
}

fn shown(name: &str, asked: &HeaderMap, kept: &'static str) -> Result<Response<Body>, Refusal> {
    let asset = assets::find(name).ok_or(Refusal::NoSuchPath)?;
    Ok(file(asset, asked, kept))
}

/// Returns the values of the cookies with this name (RFC 6265 section 5.4).
fn values<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(move |pair| pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

fn malformed(detail: &str) -> Refusal {
    Refusal::MalformedRequest { detail: format!("cannot read the sign-in: {detail}") }
}

/// Reads the whole body of a sign-in.
async fn whole(body: &mut Option<Incoming>) -> Result<Bytes, Refusal> {
    let too_large = Refusal::BodyTooLarge { limit: LOGIN };
    if body.as_ref().is_some_and(|body| body.size_hint().lower() > LOGIN as u64) {
        return Err(too_large);
    }
    let Some(body) = body.take() else { return Ok(Bytes::new()) };
    let read = tokio::time::timeout(LOGIN_TIME, Limited::new(body, LOGIN).collect()).await;
    match read.map_err(|_| Refusal::BodyTimeout)? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large),
        Err(error) => Err(malformed(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cookie_with_the_name_is_found_and_no_other() {
        let mut headers = HeaderMap::new();
        for value in ["a=1; agentd-ui-1=x;agentd-ui-12=y", "agentd-ui-1=z", "xagentd-ui-1=w; agentd-ui-1"] {
            headers.append(COOKIE, HeaderValue::from_static(value));
        }
        let found: Vec<&[u8]> = values(&headers, "agentd-ui-1").collect();
        assert_eq!(found, [&b"x"[..], b"z"]);
    }
}
