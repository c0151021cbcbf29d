//! Compares the tool versions in `.tool-versions` and `mise.toml` with those that asdf and mise have put into
//! `PATH`.

use std::path::Path;

use super::{EnvironmentFacts, version};

/// Prefixes in place of a version that select no version of the manager.
const ELSEWHERE: [&str; 3] = ["system", "path:", "ref:"];

/// Reports whether the managed tools in `PATH` have versions that the file names. At least one tool of the file
/// must be in `PATH`. mise's shims select the version when they run. A file without tools requires only its
/// variables.
pub(super) fn has(file: &Path, content: &str, seen: &EnvironmentFacts<'_>) -> bool {
    let is_toml = file.extension().is_some_and(|extension| extension == "toml");
    let wanted = if is_toml {
        let Ok(table) = content.parse::<toml::Table>() else { return false };
        let of_tools = table.get("tools").and_then(toml::Value::as_table).into_iter().flatten();
        let wanted: Vec<(String, Vec<String>)> = of_tools.map(|(name, value)| (plain(name), versions(value))).collect();
        if wanted.is_empty() {
            return has_variables(&table, file.parent().unwrap_or(file), seen);
        }
        wanted
    } else {
        let lines = content.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words = lines.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<String>>());
        words.filter_map(|words| Some((plain(words.first()?), words[1..].to_vec()))).collect()
    };
    if seen.path.iter().any(|entry| entry.contains("/mise/shims")) {
        return true;
    }
    let is_elsewhere = |text: &String| ELSEWHERE.iter().any(|word| text.starts_with(word));
    let managed: Vec<_> = wanted.iter().filter(|(_, versions)| !versions.iter().all(is_elsewhere)).collect();
    let found: Vec<bool> = managed
        .iter()
        .filter_map(|(tool, versions)| {
            let (_, installed) =
                seen.path.iter().filter_map(|entry| installed(entry)).find(|(name, _)| name == tool)?;
            Some(versions.iter().any(|wanted| fits(wanted, installed)))
        })
        .collect();
    managed.is_empty() || !found.is_empty() && found.iter().all(|fits| *fits)
}

/// Returns the tool and the version of a `PATH` entry below `installs`.
fn installed(entry: &str) -> Option<(String, &str)> {
    let (before, rest) = entry.split_once("/installs/")?;
    let mut parts = rest.split('/');
    let (tool, version) = (parts.next()?, parts.next()?);
    (before.ends_with("mise") || before.ends_with("asdf")).then(|| (plain(tool), version))
}

/// Normalises the name of a tool across managers.
fn plain(tool: &str) -> String {
    match tool {
        "nodejs" => "node".to_owned(),
        "golang" => "go".to_owned(),
        _ => tool.replace([':', '/'], "-"),
    }
}

fn versions(value: &toml::Value) -> Vec<String> {
    match value {
        toml::Value::String(text) => vec![text.clone()],
        toml::Value::Array(values) => values.iter().flat_map(versions).collect(),
        toml::Value::Table(table) => table.get("version").map(versions).unwrap_or_default(),
        other => vec![other.to_string()],
    }
}

/// Reports whether an installed version matches. An alias such as `lts` or `latest` matches any version.
fn fits(wanted: &str, installed: &str) -> bool {
    let begins =
        |whole: &str, part: &str| whole.strip_prefix(part).is_some_and(|rest| rest.starts_with(['.', '-', '+']));
    version(wanted).is_none() || wanted == installed || begins(installed, wanted) || begins(wanted, installed)
}

/// Reports whether the variables of `[env]` are set and its paths are in `PATH`.
fn has_variables(table: &toml::Table, directory: &Path, seen: &EnvironmentFacts<'_>) -> bool {
    let Some(variables) = table.get("env").and_then(toml::Value::as_table) else { return true };
    let adds_places = variables.get("_").is_some();
    let mut names = variables.iter().filter(|(name, value)| *name != "_" && value.as_bool() != Some(false));
    let has_place = seen.path.iter().any(|entry| Path::new(entry).starts_with(directory));
    names.all(|(name, _)| (seen.is_set)(name)) && (!adds_places || has_place || variables.len() > 1)
}
