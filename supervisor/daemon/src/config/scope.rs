//! `[directories."PATH"]`, and what `[agents.NAME]` has in common with it: what is allowed, dropped and given besides.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use agentd_api::configuration::Consequence;
use agentd_api::environment::SnapshotScope;
use serde::Deserialize;

use super::{Config, Flaws, Read, flaw};
use crate::env::{Scope, Seed};

/// What holds for the sessions in a directory and below it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Directory {
    /// Names and patterns of variables that the whitelist keeps besides.
    pub(crate) allow: Vec<String>,
    /// Names and patterns of variables that are dropped.
    pub(crate) drop: Vec<String>,
    /// Variables that are given, behind what all providers gave.
    pub(crate) env: BTreeMap<String, String>,
    /// As `environment.snapshot_scope`, for the sessions there.
    pub(crate) snapshot_scope: Option<SnapshotScope>,
}

/// The table of directories.
pub(super) const DIRECTORIES: &str = "directories";

impl Config {
    /// What the configuration says of an agent's sessions.
    pub(crate) fn agent_scope(&self, name: &str) -> Option<Scope> {
        let (name, agent) = self.agents.iter().find(|(known, _)| known.as_str() == name)?;
        Some(Scope::new(format!("agent {name}"), &agent.allow, &agent.drop, &agent.env))
    }

    /// What it says of directories, each by its absolute path.
    pub(crate) fn directory_scopes(&self) -> Vec<(PathBuf, Scope)> {
        let scope = |(_, path, directory): (&String, PathBuf, &Directory)| {
            let scope = directory.scope(format!("directory {}", path.display()));
            (path, scope)
        };
        self.located().map(scope).collect()
    }

    /// The scope of the snapshot for a session in this directory: as the nearest directory of the configuration above it says.
    pub(crate) fn snapshot_scope(&self, directory: &Path) -> Option<SnapshotScope> {
        let above = self.located().filter(|(_, path, _)| directory.starts_with(path));
        let said = above.filter_map(|(_, path, at)| Some((path.components().count(), at.snapshot_scope?)));
        said.max_by_key(|(depth, _)| *depth).map(|(_, scope)| scope).or(self.environment.snapshot_scope)
    }

    /// The directories with their keys and absolute paths.
    fn located(&self) -> impl Iterator<Item = (&String, PathBuf, &Directory)> {
        let needs_home = self.directories.keys().any(|key| key.starts_with('~'));
        let environment = &self.environment;
        let seed =
            needs_home.then(|| Seed::find(environment.home.as_deref(), environment.shell.as_deref()).ok()).flatten();
        let directories = self.directories.iter();
        directories.filter_map(move |(key, directory)| {
            Some((key, absolute(key, seed.as_ref().map(|seed| seed.home.as_path()))?, directory))
        })
    }
}

impl Directory {
    fn scope(&self, name: String) -> Scope {
        Scope::new(name, &self.allow, &self.drop, &self.env)
    }
}

/// A key as a path; none where it begins with `~/` and the home directory is not known.
fn absolute(key: &str, home: Option<&Path>) -> Option<PathBuf> {
    match key.strip_prefix('~') {
        Some(rest) => Some(home?.join(rest.trim_start_matches('/')).components().collect()),
        None => Some(Path::new(key).components().collect()),
    }
}

/// What cannot stand in a scope, and what is no directory's path.
pub(super) fn check(config: &Config) -> Flaws {
    let mut flaws = Flaws::new();
    let agents =
        config.agents.keys().filter_map(|name| Some(("agents", name.to_string(), config.agent_scope(name.as_str())?)));
    let directories = config.directories.iter();
    let directories = directories.map(|(key, directory)| (DIRECTORIES, key.clone(), directory.scope(String::new())));
    for (table, name, scope) in agents.chain(directories) {
        for (key, error) in scope.check() {
            let message = format!("{}: {error}; {}", dotted(table, &name, key), error.hint());
            flaws.push(flaw(&[table, &name, key], message));
        }
    }
    for key in config.directories.keys() {
        let is_absolute = key == "~" || key.starts_with("~/") || key.starts_with('/');
        let climbs = Path::new(key).components().any(|part| part == Component::ParentDir);
        if !is_absolute || climbs {
            let message =
                format!("{DIRECTORIES}.{key:?} is no directory's path: it begins with / or ~/ and has no `..`");
            flaws.push(flaw(&[DIRECTORIES, key], message));
        }
    }
    flaws
}

fn dotted(table: &str, name: &str, key: &str) -> String {
    if table == DIRECTORIES { format!("{table}.{name:?}.{key}") } else { format!("{table}.{name}.{key}") }
}

/// The directories that are not there, each with the place of its key. It is no mistake: a mount may come later.
pub(crate) fn missing_directories(config: &Config, read: &Read) -> Vec<agentd_api::configuration::Mistake> {
    let missing = config.located().filter(|(_, path, _)| matches!(path.try_exists(), Ok(false)));
    let warning = |(key, path, _): (&String, PathBuf, &Directory)| {
        let message = format!("{DIRECTORIES}.{key:?}: the directory {} is not there", path.display());
        read.mistake(&[DIRECTORIES, key], message, Consequence::LeftOut)
    };
    missing.map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::super::assemble::of_texts;
    use super::*;

    #[test]
    fn a_scope_is_read_and_what_it_cannot_say_is_refused_with_its_place() {
        let text = "[agents.a]\ncommand = [\"a\"]\nallow = [\"SSH_AUTH_SOCK\"]\nenv = { EDITOR = \"vi\" }\n\
            [directories.\"/work/x/\"]\ndrop = [\"AWS_*\"]\nenv = { BASH_ENV = \"/work/x/env\" }\n";
        let config = of_texts(&[text], &[]).unwrap().config;
        assert_eq!(config.agent_scope("a").unwrap().allow, ["SSH_AUTH_SOCK"]);
        let [(path, scope)] = &config.directory_scopes()[..] else { panic!("{config:?}") };
        assert_eq!((path.to_str(), scope.name.as_str()), (Some("/work/x"), "directory /work/x"));
        for (text, expected) in [
            ("[directories.work]\nallow = []", "no directory's path"),
            ("[directories.\"/a/../b\"]\nallow = []", "no directory's path"),
            ("[directories.\"/a\"]\nallows = []", "did you mean `allow`"),
            ("[directories.\"/a\"]\nenv = { GITHUB_TOKEN = \"hunter22\" }", "[secrets.GITHUB_TOKEN]"),
            (
                "[directories.\"/a\"]\nenv = { A = \"https://kim:hunter22@h/\" }",
                "directories.\"/a\".env: A is a secret",
            ),
            ("[agents.a]\ncommand = [\"a\"]\nenv = { AGENTD_X = \"1\" }", "agentd's own"),
            ("[agents.a]\ncommand = [\"a\"]\nallow = [\"A=1\"]", "agents.a.allow: \"A=1\" is neither"),
        ] {
            let error = of_texts(&[text], &[]).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hunter22"), "{text}: {error}");
        }
    }

    #[test]
    fn the_nearest_directory_says_where_the_login_shell_is_asked() {
        let text = "[environment]\nsnapshot_scope = \"user\"\n[directories.\"/work\"]\nsnapshot_scope = \"directory\"\n\
                    [directories.\"/work/a\"]\nallow = [\"X\"]\n[directories.\"/work/a/b\"]\nsnapshot_scope = \"user\"\n";
        let config: Config = toml::from_str(text).unwrap();
        for (directory, scope) in [
            ("/work/a/x", SnapshotScope::Directory),
            ("/work/a/b/c", SnapshotScope::User),
            ("/worker", SnapshotScope::User),
        ] {
            assert_eq!(config.snapshot_scope(Path::new(directory)), Some(scope), "{directory}");
        }
        assert_eq!(Config::default().snapshot_scope(Path::new("/work")), None);
    }
}
