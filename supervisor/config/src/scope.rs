//! `[directories."PATH"]`, and the keys it shares with `[agents.NAME]`: `allow`, `drop` and `env`.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use agentd_api::PlaceName;
use agentd_api::configuration::Consequence;
use agentd_api::environment::SnapshotScope;
use serde::Deserialize;

use super::{Agent, Config, Flaws, Origins, Scope, flaw};

/// Settings for the sessions in a directory and below it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Directory {
    /// Names and patterns of variables that pass the whitelist in addition to its own list. Default: none.
    pub allow: Vec<String>,
    /// Names and patterns of variables that are removed from the environment. Default: none. An exact name in `allow`
    /// takes precedence.
    pub drop: Vec<String>,
    /// Variables that are set after all providers have run. Default: none. Secrets and names that begin with
    /// `AGENTD_` are refused.
    pub env: BTreeMap<String, String>,
    /// Directory in which the login shell's environment is captured for these sessions: `user` or `directory`. The
    /// nearest configured directory above a session decides. Default: the value of `environment.snapshot_scope`.
    pub snapshot_scope: Option<SnapshotScope>,
    /// Place of the sessions in this directory and below it: a name from `places`, or `here` for this machine. The
    /// nearest configured directory above a session decides, before the place of the agent. Default: none.
    #[cfg_attr(feature = "schema", schemars(with = "Option<super::schema::Name>"))]
    pub place: Option<PlaceName>,
}

/// Key of the table of directories.
pub(super) const DIRECTORIES: &str = "directories";

impl Config {
    /// Returns the entry of an agent.
    pub fn agent(&self, name: &str) -> Option<&Agent> {
        self.agents.iter().find(|(known, _)| known.as_str() == name).map(|(_, agent)| agent)
    }

    /// Returns the variables that the configuration allows, drops and sets for an agent's sessions.
    pub fn agent_scope(&self, name: &str) -> Option<Scope> {
        let agent = self.agent(name)?;
        let of_known = agent.known().into_iter().flat_map(|known| known.agentd.environment.clone());
        let env = of_known.chain(agent.env.clone()).collect();
        Some(Scope::new(format!("agent {name}"), &agent.allow, &agent.drop, &env))
    }

    /// Returns the scopes of the configured directories, each with its absolute path.
    pub fn directory_scopes(&self) -> Vec<(PathBuf, Scope)> {
        let scope = |(_, path, directory): (&String, PathBuf, &Directory)| {
            let scope = directory.scope(format!("directory {}", path.display()));
            (path, scope)
        };
        self.located().map(scope).collect()
    }

    /// Returns the snapshot scope for a session in this directory. The nearest configured directory above it decides.
    pub fn snapshot_scope(&self, directory: &Path) -> Option<SnapshotScope> {
        self.nearest(directory, |at| at.snapshot_scope).or(self.environment.snapshot_scope)
    }

    /// Returns the place of a session in this directory. The nearest configured directory above it decides.
    pub(super) fn place_of_directory(&self, directory: &Path) -> Option<&PlaceName> {
        self.nearest(directory, |at| at.place.as_ref())
    }

    /// Returns the value of the nearest directory that has one, of all configured directories above this directory.
    fn nearest<'a, T>(&'a self, directory: &Path, value: impl Fn(&'a Directory) -> Option<T>) -> Option<T> {
        let above = self.located().filter(|(_, path, _)| directory.starts_with(path));
        let set = above.filter_map(|(_, path, at)| Some((path.components().count(), value(at)?)));
        set.max_by_key(|(depth, _)| *depth).map(|(_, value)| value)
    }

    /// Returns the directories with their keys and absolute paths.
    fn located(&self) -> impl Iterator<Item = (&String, PathBuf, &Directory)> {
        let needs_home = self.directories.keys().any(|key| key.starts_with('~'));
        let home = needs_home.then(|| self.environment.home_directory()).flatten();
        let directories = self.directories.iter();
        directories.filter_map(move |(key, directory)| Some((key, absolute(key, home.as_deref())?, directory)))
    }
}

impl Directory {
    fn scope(&self, name: String) -> Scope {
        Scope::new(name, &self.allow, &self.drop, &self.env)
    }
}

/// Converts a key to a path. Returns `None` if the key begins with `~` and the home directory is not known.
fn absolute(key: &str, home: Option<&Path>) -> Option<PathBuf> {
    match key.strip_prefix('~') {
        Some(rest) => Some(home?.join(rest.trim_start_matches('/')).components().collect()),
        None => Some(Path::new(key).components().collect()),
    }
}

/// Returns the invalid entries of all scopes, and the keys of `directories` that are no valid paths.
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
                format!("{DIRECTORIES}.{key:?} is not a valid directory path; begin with / or ~/ and use no `..`");
            flaws.push(flaw(&[DIRECTORIES, key], message));
        }
    }
    flaws
}

fn dotted(table: &str, name: &str, key: &str) -> String {
    if table == DIRECTORIES { format!("{table}.{name:?}.{key}") } else { format!("{table}.{name}.{key}") }
}

/// Returns a warning for each configured directory that does not exist, with the position of its key. A missing
/// directory is no mistake, because it may be mounted later.
pub fn missing_directories(config: &Config, read: &Origins) -> Vec<agentd_api::configuration::Mistake> {
    let missing = config.located().filter(|(_, path, _)| matches!(path.try_exists(), Ok(false)));
    let warning = |(key, path, _): (&String, PathBuf, &Directory)| {
        let message = format!("{DIRECTORIES}.{key:?}: the directory {} does not exist", path.display());
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
            ("[directories.work]\nallow = []", "not a valid directory path"),
            ("[directories.\"/a/../b\"]\nallow = []", "not a valid directory path"),
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
                    [directories.\"/work/a\"]\nallow = [\"X\"]\n\
                    [directories.\"/work/a/b\"]\nsnapshot_scope = \"user\"\n";
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
