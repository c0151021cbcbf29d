//! Which values of a configuration may be secrets: by their keys, by their own look, or by the option that they are given to.
//!
//! Values that are shown and messages of mistakes are masked by the same rule.

use agentd_secret_names::{is_secret_name, is_secret_value, password};

use super::written::Key;

/// What is shown in the place of a secret.
pub(super) const MASK: &str = "***";

/// A shorter secret is replaced only where it stands in quotes: it may be part of any word.
const SHORTEST: usize = 4;

/// Whether whatever stands in this key is a secret.
pub(super) fn is_secret(key: &[String]) -> bool {
    let named: Vec<&str> = key.iter().map(String::as_str).filter(|part| !part.starts_with('[')).collect();
    let Some(last) = named.last() else { return false };
    // In the place of a table that says where a secret is, somebody wrote the secret itself.
    let is_misplaced = matches!(named[..], ["secrets", _] | ["environment", "encryption", "key" | "previous"]);
    is_misplaced || is_secret_key(last) || is_secret_setting(&named)
}

/// Settings are nested as their plugin likes, so the names of the tables around count too.
fn is_secret_setting(named: &[&str]) -> bool {
    let Some(at) = named.iter().position(|part| *part == "settings") else { return false };
    let setting = &named[at + 1..];
    let is_of_secret = |end: usize| is_secret_key(setting[end]) || is_secret_key(&setting[..=end].join("_"));
    // `credentials.file` says where it is.
    let is_about = |name: &&str| !is_secret_key(&format!("token_{name}"));
    (0..setting.len()).any(is_of_secret) && !setting.last().is_some_and(is_about)
}

/// The part of a text that must not be shown; `option` is the element before it, if it stands in an array.
pub(super) fn secret_part<'a>(key: &[String], option: Option<&str>, text: &'a str) -> Option<&'a str> {
    // `--token VALUE` are two elements.
    let is_of_option =
        option.is_some_and(|option| option.starts_with('-') && !option.contains('=') && is_secret_key(option));
    // Of `--token=VALUE` the name may be shown.
    let option_of = text.strip_prefix("--").and_then(|option| option.split_once('='));
    if let Some((_, value)) = option_of.filter(|(name, _)| !is_secret(key) && is_secret_key(name)) {
        return Some(value);
    }
    let is_generated = is_secret(key) && text == "generated" && key.first().is_some_and(|first| first == "environment");
    let whole = is_secret(key) || is_of_option || is_secret_value(text.as_bytes());
    if whole && !is_generated || password(text.as_bytes()).is_some() {
        return Some(text);
    }
    let (name, value) = text.split_once('=')?;
    (is_secret_key(name) || is_secret_value(value.as_bytes())).then_some(value)
}

/// A secret of a file, with the key that it stands in.
#[derive(Debug, Clone)]
pub(super) struct Secret {
    pub(super) key: Key,
    pub(super) text: String,
}

/// The message about this key without the secrets that stand in the key.
pub(super) fn without<'a>(secrets: impl IntoIterator<Item = &'a Secret>, key: &[String], message: String) -> String {
    let of_key = secrets.into_iter().filter(|secret| secret.key.starts_with(key) || key.starts_with(&secret.key));
    of_key.fold(message, |message, Secret { text, .. }| {
        let escaped = text.escape_debug().to_string();
        [text, &escaped].into_iter().filter(|text| !text.is_empty()).fold(message, |message, text| {
            let message = message.replace(&format!("\"{text}\""), &format!("\"{MASK}\""));
            let message = message.replace(&format!("`{text}`"), &format!("`{MASK}`"));
            if text.len() < SHORTEST { message } else { message.replace(text, MASK) }
        })
    })
}

/// A name as options and settings have them, by the rule for variables. Names of files that hold secrets are none.
fn is_secret_key(name: &str) -> bool {
    let name = name.trim_start_matches('-').replace(['-', '.'], "_");
    !name.is_empty() && is_secret_name(&name.to_ascii_uppercase())
}
