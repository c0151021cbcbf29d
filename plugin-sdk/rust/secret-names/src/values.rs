//! The rule for values. These shapes are secrets under any variable name:
//!
//! - a URL with a password, a connection string
//! - an option or a document that names a secret
//! - a private key
//! - a token with a known prefix
//! - base64 of any of these

use crate::{encoded, pairs, tokens, urls};

/// The setting for tokens in Nix's configuration, which `NIX_CONFIG` may contain (nix.conf(5)).
const ACCESS_TOKENS: &[u8] = b"access-tokens";

/// Prefixes of private keys that are not PEM: age and `PuTTY`.
const KEYS: &[&[u8]] = &[b"AGE-SECRET-KEY-1", b"PuTTY-User-Key-File-"];

/// Reports whether the value has the shape of a secret.
pub fn is_secret_value(value: &[u8]) -> bool {
    is_plain_secret(value) || encoded::texts(value).any(|text| is_plain_secret(&text))
}

fn is_plain_secret(value: &[u8]) -> bool {
    tokens::is_token(value)
        || tokens::has_token(value)
        || is_private_key(value)
        || password(value).is_some()
        || find(value, ACCESS_TOKENS).is_some()
}

/// Returns the first password in a value, to be masked even if the rest may be shown.
///
/// The value may be a URL (`https://user:password@host`), a connection string (`Server=s;Password=...;`), an
/// option (`-Dhttp.proxyPassword=...`) or a document (`{"password": "..."}`). Percent-encoding is not decoded.
pub fn password(value: &[u8]) -> Option<&[u8]> {
    let found = [urls::password(value), urls::without_scheme(value), pairs::named(value), pairs::by_words(value)];
    let place = |part: &&[u8]| part.as_ptr().addr() - value.as_ptr().addr();
    found.into_iter().flatten().min_by_key(place)
}

/// Reports whether the value contains a PEM private key of any kind (RFC 7468), or a private key of another
/// known format.
fn is_private_key(value: &[u8]) -> bool {
    let is_pem = find(value, b"-----BEGIN ").is_some_and(|at| find(&value[at..], b"PRIVATE KEY").is_some());
    is_pem || KEYS.iter().any(|key| find(value, key).is_some())
}

pub(crate) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    let first = part.first()?;
    (0..text.len()).find(|&at| text[at] == *first && text[at..].starts_with(part))
}

#[cfg(test)]
mod tests;
