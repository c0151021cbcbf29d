//! The shapes of values that are secrets whatever the variable is called: a URL with a password in it, a connection string, an option
//! or a document that names one, a private key, a token of an issuer that marks its own, and each of these in base64.

use crate::{encoded, pairs, tokens, urls};

/// What Nix's configuration calls tokens, in `NIX_CONFIG` (nix.conf(5)).
const ACCESS_TOKENS: &[u8] = b"access-tokens";

/// How private keys begin that are no PEM: age's, and those of `PuTTY`.
const KEYS: &[&[u8]] = &[b"AGE-SECRET-KEY-1", b"PuTTY-User-Key-File-"];

/// Whether the value is a secret by its shape.
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

/// The first password in a URL (`https://user:password@host`), in a connection string (`Server=s;Password=...;`), in an option of a
/// program (`-Dhttp.proxyPassword=...`) or in a document (`{"password": "..."}`): what must not be seen even where the rest may. As it
/// stands: a URL's percent signs are not resolved.
pub fn password(value: &[u8]) -> Option<&[u8]> {
    let found = [urls::password(value), urls::without_scheme(value), pairs::named(value), pairs::by_words(value)];
    let place = |part: &&[u8]| part.as_ptr().addr() - value.as_ptr().addr();
    found.into_iter().flatten().min_by_key(place)
}

/// PEM (RFC 7468) in any of its kinds of private key, by itself or in a document.
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
