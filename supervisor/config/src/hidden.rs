//! Decides which values of a configuration may be secrets: by their keys, by their form, or by the option they belong
//! to.
//!
//! Displayed values and messages about mistakes are masked by the same rules.

use agentd_secret_names::{is_secret_name, is_secret_value, password};

use super::parsed::Key;

/// Text that replaces a secret.
pub(super) const MASK: &str = "***";

/// Minimum length in bytes of a secret that is replaced everywhere. A shorter secret may be part of any word and is
/// replaced only in quotes.
const MIN_LENGTH: usize = 4;

/// Reports whether every value of this key is a secret.
pub(super) fn is_secret(key: &[String]) -> bool {
    let named: Vec<&str> = key.iter().map(String::as_str).filter(|part| !part.starts_with('[')).collect();
    let Some(last) = named.last() else { return false };
    // The user may have written the secret itself instead of a table with its source.
    let is_misplaced = matches!(
        named[..],
        ["secrets", _] | ["control", "tokens", _] | ["environment", "encryption", "key" | "previous"]
    );
    is_misplaced || is_secret_key(last) || is_secret_setting(&named)
}

/// Reports whether a setting of a plugin is a secret. Plugins may nest settings, so the names of the outer tables
/// count too.
fn is_secret_setting(named: &[&str]) -> bool {
    let Some(at) = named.iter().position(|part| *part == "settings") else { return false };
    let setting = &named[at + 1..];
    let is_of_secret = |end: usize| is_secret_key(setting[end]) || is_secret_key(&setting[..=end].join("_"));
    // `credentials.file` is the path of a file and no secret.
    let is_about = |name: &&str| !is_secret_key(&format!("token_{name}"));
    (0..setting.len()).any(is_of_secret) && !setting.last().is_some_and(is_about)
}

/// Returns the part of a text that must be masked. `option` is the preceding element of the array.
pub(super) fn secret_part<'a>(key: &[String], option: Option<&str>, text: &'a str) -> Option<&'a str> {
    // An option and its value can be two elements: `--token VALUE`.
    let is_of_option =
        option.is_some_and(|option| option.starts_with('-') && !option.contains('=') && is_secret_key(option));
    if is_address_of_hook(key) {
        return path_of(text);
    }
    // The option's name in `--token=VALUE` may be shown.
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

/// Reports whether the key is the address of a hook. Chat services put a token into the path.
fn is_address_of_hook(key: &[String]) -> bool {
    matches!(key, [hooks, _, url] if hooks == "hooks" && url == "url")
}

/// Returns the path of an address, without the first slash. Everything is secret in a text of another form.
fn path_of(text: &str) -> Option<&str> {
    let Some((_, rest)) = text.split_once("://").filter(|(_, rest)| !rest.contains('@')) else { return Some(text) };
    rest.split_once('/').map(|(_, path)| path).filter(|path| !path.is_empty())
}

/// A secret in a file and the key that contains it.
#[derive(Debug, Clone)]
pub(super) struct Secret {
    pub(super) key: Key,
    pub(super) text: String,
}

/// Masks the secrets of this key in a message about the key.
pub(super) fn mask_secrets<'a>(
    secrets: impl IntoIterator<Item = &'a Secret>,
    key: &[String],
    message: String,
) -> String {
    let of_key = secrets.into_iter().filter(|secret| secret.key.starts_with(key) || key.starts_with(&secret.key));
    of_key.fold(message, |message, Secret { text, .. }| {
        let escaped = text.escape_debug().to_string();
        [text, &escaped].into_iter().filter(|text| !text.is_empty()).fold(message, |message, text| {
            let message = message.replace(&format!("\"{text}\""), &format!("\"{MASK}\""));
            let message = message.replace(&format!("`{text}`"), &format!("`{MASK}`"));
            if text.len() < MIN_LENGTH { message } else { message.replace(text, MASK) }
        })
    })
}

/// Reports whether the name of an option or a setting names a secret, by the rule for variables. Names of files that
/// hold secrets do not count.
fn is_secret_key(name: &str) -> bool {
    let name = name.trim_start_matches('-').replace(['-', '.'], "_");
    !name.is_empty() && is_secret_name(&name.to_ascii_uppercase())
}
