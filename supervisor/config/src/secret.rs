//! Decides which variables are secrets, and which parts of a secret must be masked.
//!
//! This module does not fetch secrets (`secrets/`), and it does not mask the output of agents, which the keeper does.

use agentd_keeper::mask::SHORTEST;
use agentd_keeper::tokens;

/// Reports whether a variable is a secret: by the rule that plugins use, or because its value contains a token of a
/// known form.
pub fn is_secret(name: &str, value: &[u8]) -> bool {
    agentd_secret_names::is_secret(name, value) || tokens::find(value).next().is_some()
}

/// Reports whether the value is long enough to be masked in output.
pub fn is_worth_hiding(value: &[u8]) -> bool {
    value.len() >= SHORTEST
}

/// Returns the parts of a variable's value that must be masked. The list is empty if the variable is no secret.
pub fn values_of(name: &str, value: &[u8]) -> Vec<Vec<u8>> {
    if is_secret(name, value) { parts_of(value) } else { Vec::new() }
}

/// Returns the parts of a secret value that must be masked. They are the whole value, and the passwords of URLs and
/// connection strings in the value. Programs print passwords as written or percent-decoded, so both forms are
/// included.
pub fn parts_of(value: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![value.to_vec()];
    // Many programs trim a value before they print it.
    if value.trim_ascii() != value {
        parts.push(value.trim_ascii().to_vec());
    }
    let mut rest = value;
    while let Some(password) = agentd_secret_names::password(rest) {
        let decoded = percent_decoded(password);
        if decoded != password {
            parts.push(decoded);
        }
        parts.push(password.to_vec());
        let behind = memchr::memmem::find(rest, password).map_or(rest.len(), |at| at + password.len());
        rest = &rest[behind..];
    }
    parts.retain(|part| is_worth_hiding(part));
    parts
}

fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let (mut decoded, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        let digits = (text[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        decoded.push(byte.unwrap_or(text[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_a_known_form_is_a_secret_under_any_name() {
        let token = format!("glpat-{}", "a1".repeat(10));
        assert!(is_secret("GREETING", format!("use {token} here").as_bytes()));
        assert!(!is_secret("GREETING", b"glpat-tokens are GitLab's"));
    }

    #[test]
    fn the_plugins_know_each_token_that_the_keeper_hides() {
        let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P";
        for token in tokens::examples().chain([jwt.to_owned()]) {
            for text in [token.clone(), format!("use \"{token}\" here")] {
                assert!(tokens::find(text.as_bytes()).next().is_some(), "{text}");
                assert!(agentd_secret_names::is_secret_value(text.as_bytes()), "{text}");
            }
        }
    }

    #[test]
    fn of_a_url_the_password_is_hidden_by_itself_too() {
        let parts = |value: &str| -> Vec<String> {
            values_of("PLAIN", value.as_bytes()).into_iter().map(|part| String::from_utf8(part).unwrap()).collect()
        };
        assert_eq!(parts("postgres://me:hunter%322@db/x"), ["postgres://me:hunter%322@db/x", "hunter22", "hunter%322"]);
        let two = "http://a:first-one@h, http://b:second-one@h";
        assert_eq!(parts(two), [two, "first-one", "second-one"]);
        assert_eq!(parts("http://a:pw@h"), ["http://a:pw@h"], "what is too short is left");
        assert_eq!(parts("http://h/x"), [""; 0]);
        assert_eq!(parts_of(b"  padded "), [&b"  padded "[..], b"padded"]);
    }
}
