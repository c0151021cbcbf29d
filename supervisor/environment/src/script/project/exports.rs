//! Checks for the exports of an `.envrc`, which direnv or a script that sources it may have set.

use std::path::Path;

use super::EnvironmentFacts;

/// Reports whether all plainly exported variables have the file's values. Without exports, reports whether a path
/// below the directory is in use.
pub(super) fn has(content: &str, directory: &Path, seen: &EnvironmentFacts<'_>) -> bool {
    let exports: Vec<(&str, &str)> = content.lines().filter_map(export).filter(|(name, _)| *name != "PATH").collect();
    if !exports.is_empty() {
        return exports.iter().all(|(name, value)| is_set(name, value, seen));
    }
    let is_in = |place: &str| Path::new(place).starts_with(directory);
    let uses_nix = ["use flake", "use nix", "use_flake", "use_nix"].iter().any(|line| content.contains(line));
    seen.path.iter().any(|entry| is_in(entry))
        || (seen.value)("VIRTUAL_ENV").is_some_and(|root| is_in(&root))
        || uses_nix && (seen.is_set)("IN_NIX_SHELL")
}

/// Parses a line that exports one variable. Returns the name and the text of the value.
fn export(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim().strip_prefix("export ")?.split_once('=')?;
    Some((name.trim(), value))
}

/// Reports whether the variable is set to the text. A text that a shell would expand matches any value.
fn is_set(name: &str, text: &str, seen: &EnvironmentFacts<'_>) -> bool {
    let text = text.split(" #").next().unwrap_or_default().trim();
    let plain = text.trim_matches(['"', '\'']);
    let is_plain = !plain.contains(['$', '`', '\\', '"', '\'', ' ', ';', '~', '(']);
    match (seen.value)(name) {
        Some(value) if is_plain => value == plain,
        _ => (seen.is_set)(name),
    }
}
