//! Finds passwords in URLs, and in addresses without a scheme.

use crate::tokens;
use crate::values::find;

/// Minimum length of a token in a URL's path.
const SHORTEST_PART: usize = 8;

/// Minimum length of a URL's user that has digits and no password and is therefore treated as a token.
const SHORTEST_USER: usize = 20;

/// URLs that act as a password, up to the part that is secret (api.slack.com/messaging/webhooks,
/// discord.com/developers/docs/resources/webhook, learn.microsoft.com on Teams).
const WEBHOOKS: &[&[u8]] = &[
    b"hooks.slack.com/services/",
    b"hooks.slack.com/workflows/",
    b"/api/webhooks/",
    b".webhook.office.com/webhookb2/",
];

/// The part before user and password in Oracle's JDBC URLs (docs.oracle.com, "Oracle Style Database URLs").
const ORACLE: &[&[u8]] = &[b"jdbc:oracle:thin:", b"jdbc:oracle:oci:"];

/// Returns the first secret in a URL.
///
/// The authority ends at the first `/`, `?` or `#` (RFC 3986). The user information ends at the last `@`, and
/// the password begins after the first `:`. A value may contain several URLs.
pub(crate) fn password(value: &[u8]) -> Option<&[u8]> {
    in_oracle(value).or_else(|| webhook(value)).or_else(|| in_authority(value))
}

fn in_authority(value: &[u8]) -> Option<&[u8]> {
    let mut rest = value;
    while let Some(at) = find(rest, b"://") {
        let is_http = rest[..at].ends_with(b"http") || rest[..at].ends_with(b"https");
        let authority = &rest[at + 3..];
        let end = authority.iter().position(|b| matches!(b, b'/' | b'?' | b'#') || ends_url(*b));
        let whole = &authority[..end.unwrap_or(authority.len())];
        if let Some(sign) = whole.iter().rposition(|b| *b == b'@') {
            let user = &whole[..sign];
            let password = user.iter().position(|b| *b == b':').map(|colon| &user[colon + 1..]);
            if let Some(password) = password.filter(|password| !password.is_empty()) {
                return Some(password);
            }
            let user = user.strip_suffix(b":").unwrap_or(user);
            if tokens::is_token(user) || is_http && is_random(user) {
                return Some(user);
            }
        } else if let Some(password) = with_a_slash(authority, whole) {
            return Some(password);
        }
        // A conda channel: `https://host/t/TOKEN/channel`.
        let path = authority.strip_prefix(whole).and_then(|path| path.strip_prefix(b"/t/"));
        let token = path.map(|path| &path[..path.iter().position(|b| *b == b'/').unwrap_or(path.len())]);
        if let Some(token) = token.filter(|token| token.len() >= SHORTEST_PART) {
            return Some(token);
        }
        rest = authority;
    }
    None
}

/// Returns the password of a URL if it contains `/`, `?` or `#` that should be percent-encoded.
fn with_a_slash<'a>(authority: &'a [u8], whole: &[u8]) -> Option<&'a [u8]> {
    let colon = whole.iter().position(|b| *b == b':')?;
    let is_port = whole[colon + 1..].iter().all(u8::is_ascii_digit);
    if whole.starts_with(b"[") || is_port && colon + 1 < whole.len() {
        return None;
    }
    let end = authority.iter().position(|b| ends_url(*b)).unwrap_or(authority.len());
    let sign = authority[..end].iter().rposition(|b| *b == b'@')?;
    Some(&authority[colon + 1..sign])
}

fn ends_url(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b',' | b'"' | b'\'' | b'<' | b'>' | b'|')
}

fn is_random(user: &[u8]) -> bool {
    user.len() >= SHORTEST_USER
        && user.iter().any(u8::is_ascii_digit)
        && user.iter().any(u8::is_ascii_alphabetic)
        && user.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn webhook(value: &[u8]) -> Option<&[u8]> {
    let rest = WEBHOOKS.iter().find_map(|beginning| Some(&value[find(value, beginning)? + beginning.len()..]))?;
    let secret = &rest[..rest.iter().position(|b| ends_url(*b)).unwrap_or(rest.len())];
    (secret.len() >= SHORTEST_USER).then_some(secret)
}

fn in_oracle(value: &[u8]) -> Option<&[u8]> {
    let rest = ORACLE.iter().find_map(|beginning| Some(&value[find(value, beginning)? + beginning.len()..]))?;
    let user = &rest[..rest.iter().position(|b| *b == b'@')?];
    let password = &user[user.iter().position(|b| *b == b'/')? + 1..];
    (!password.is_empty()).then_some(password)
}

/// Returns the password of `user:password@host:port`, of Go's `user:password@tcp(host)/database`, or of
/// `:pserver:user:password@host:/root`.
///
/// In `27000@server:27001@other` the `@` comes before the first `:`, and `image:tag@sha256:...` of a container
/// has no port. Neither matches.
pub(crate) fn without_scheme(value: &[u8]) -> Option<&[u8]> {
    let words = value.split(|b| ends_url(*b) || matches!(b, b'=' | b';'));
    words.filter(|word| find(word, b"://").is_none()).find_map(|word| {
        let of_cvs = word.strip_prefix(b":").and_then(|word| Some(&word[word.iter().position(|b| *b == b':')? + 1..]));
        let word = of_cvs.unwrap_or(word);
        let colon = word.iter().position(|b| *b == b':')?;
        let sign = word.iter().rposition(|b| *b == b'@')?;
        let (user, host) = (&word[..colon], &word[sign + 1..]);
        let is_user = !user.is_empty() && !user.iter().any(|b| matches!(b, b'@' | b'/'));
        let is_host = of_cvs.is_some() || host.starts_with(b"tcp(") || host.starts_with(b"unix(") || has_port(host);
        (is_user && is_host && colon + 1 < sign).then(|| &word[colon + 1..sign])
    })
}

/// Reports whether the text is a host name with a port, possibly followed by a path.
fn has_port(host: &[u8]) -> bool {
    let Some(colon) = host.iter().position(|b| *b == b':') else { return false };
    let port = &host[colon + 1..];
    let port = &port[..port.iter().position(|b| *b == b'/').unwrap_or(port.len())];
    let is_name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
    colon > 0
        && host[..colon].iter().all(is_name)
        && (1..=5).contains(&port.len())
        && port.iter().all(u8::is_ascii_digit)
}
