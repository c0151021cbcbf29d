//! Merges the scopes of one session's environment: the variables that are allowed, dropped and set. The scopes come
//! from the configuration and the session's specification. The only I/O resolves the configured directories.
//!
//! A narrower scope takes precedence over a wider scope. The order from narrow to wide is: session, directory,
//! agent, settings of the plugins. Among directories the longest path is the narrowest. Lists are combined, unless
//! a narrower scope overrides an entry.

use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_glob::matches as glob;
use agentd_plugin_host::{Change, Plugin, Setting};
use async_recursion::async_recursion as boxed;

use agentd_config::{ALLOW, DROP, Scope};
use agentd_host::capability::{Machine, PathState};
use agentd_plugin_set::PipelineStep;

/// Older name of the snapshot's setting `allow`.
const KEEP: &str = "keep";
/// Name of the setting that holds the identity of the agent.
const IDENTITY: &str = "identity";

/// Scopes that may apply to a session, before its directory is resolved.
#[derive(Debug, Clone, Default)]
pub struct Scopes {
    pub agent: Option<Scope>,
    /// Scopes by absolute path.
    pub directories: Vec<(PathBuf, Scope)>,
    pub session: Option<Scope>,
}

/// Scopes of one session, widest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InScope(Vec<Scope>);

impl Scopes {
    /// Returns the scopes for a session in `directory`. `real` is its resolved path, if the directory has answered.
    #[boxed]
    pub async fn of(&self, directory: &Path, real: Option<&Path>, machine: &Machine, deadline: Instant) -> InScope {
        // Links in configured paths are resolved too, because a session's directory usually arrives resolved.
        let paths: Vec<PathBuf> = self.directories.iter().map(|(path, _)| path.clone()).collect();
        // On a place, each look is a start of its client, so only the paths themselves are compared.
        let places = if paths.is_empty() || machine.is_elsewhere() {
            Vec::new()
        } else {
            machine.path_states(paths, deadline, |_| false).await
        };
        let mut places = places.into_iter();
        let mut around: Vec<(&PathBuf, &Scope)> = Vec::new();
        for (path, scope) in &self.directories {
            let resolved = places.next().and_then(PathState::into_directory);
            let is_below = |directory: &Path| {
                directory.starts_with(path) || resolved.as_ref().is_some_and(|path| directory.starts_with(path))
            };
            if is_below(directory) || real.is_some_and(is_below) {
                around.push((path, scope));
            }
        }
        around.sort_by_key(|(path, _)| path.components().count());
        let directories = around.into_iter().map(|(_, scope)| scope);
        let all = self.agent.iter().chain(directories).chain(&self.session);
        InScope(all.filter(|scope| !scope.is_empty()).cloned().collect())
    }
}

impl InScope {
    /// Returns the settings of a step: its own settings with the entries of the scopes and the allowed entries of
    /// other steps. A user's plugin gets only its configured settings, because its `allow` may have another
    /// meaning.
    pub(super) fn settings(
        &self,
        steps: &[PipelineStep],
        number: usize,
        plugin: &Plugin,
        identity: Option<&str>,
    ) -> Vec<Setting> {
        let step = &steps[number];
        let mut settings = step.settings.clone();
        if !step.plugin.is_built_in() {
            return settings;
        }
        let knows = |key: &str| plugin.description().settings.iter().any(|setting| setting.key == key);
        if let Some(identity) = identity.filter(|_| knows(IDENTITY) && values(&settings, IDENTITY).is_empty()) {
            put(&mut settings, IDENTITY, vec![identity.to_owned()]);
        }
        if !knows(ALLOW) || !knows(DROP) {
            return settings;
        }
        let (mut allow, mut drop) = (values(&settings, ALLOW).to_vec(), values(&settings, DROP).to_vec());
        // A variable that a later step allows must reach that step. A variable that an earlier step keeps stays.
        let built_in = |step: &&PipelineStep| step.plugin.is_built_in();
        let later = steps[number + 1..].iter().filter(built_in).flat_map(|step| values(&step.settings, ALLOW));
        let earlier = steps[..number].iter().filter(built_in).flat_map(|step| values(&step.settings, KEEP));
        allow.extend(later.chain(earlier).cloned());
        self.narrow(&mut allow, &mut drop);
        for (key, list) in [(ALLOW, allow), (DROP, drop)] {
            if !list.is_empty() || !values(&settings, key).is_empty() {
                put(&mut settings, key, list);
            }
        }
        settings
    }

    /// Adds the entries of the scopes. Entries of a narrower scope override those of a wider scope.
    fn narrow(&self, allow: &mut Vec<String>, drop: &mut Vec<String>) {
        for scope in &self.0 {
            for entry in &scope.allow {
                drop.retain(|dropped| !glob(entry, dropped));
                allow.push(entry.clone());
            }
            for entry in &scope.drop {
                let own = |allowed: &String| scope.allow.contains(allowed) && allowed != entry;
                allow.retain(|allowed| own(allowed) || !glob(entry, allowed));
                drop.push(entry.clone());
            }
        }
    }

    /// Returns the variables that the scopes set, by step. A wider scope does not set a variable that a narrower
    /// scope sets or drops.
    pub(super) fn steps(&self) -> Vec<(String, Vec<Change>)> {
        let given = self.0.iter().enumerate().map(|(number, scope)| {
            let narrower = &self.0[number + 1..];
            let is_given = |name: &&String| !narrower.iter().any(|scope| scope.drops(name));
            let names = scope.env.keys().filter(is_given);
            let changes = names.map(|name| Change::set(name, scope.env[name].as_bytes())).collect();
            (scope.step(), changes)
        });
        given.filter(|(_, changes): &(String, Vec<Change>)| !changes.is_empty()).collect()
    }
}

/// Reports whether the plugin has a setting for the agent's identity.
pub(super) fn has_identity(plugin: &Plugin) -> bool {
    plugin.description().settings.iter().any(|setting| setting.key == IDENTITY)
}

fn values<'a>(settings: &'a [Setting], key: &str) -> &'a [String] {
    settings.iter().find(|setting| setting.key == key).map(|setting| &setting.values[..]).unwrap_or_default()
}

fn put(settings: &mut Vec<Setting>, key: &str, values: Vec<String>) {
    settings.retain(|setting| setting.key != key);
    settings.push(Setting { key: key.to_owned(), values });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(name: &str, allow: &[&str], drop: &[&str], env: &[(&str, &str)]) -> Scope {
        let own = |list: &[&str]| list.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>();
        let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Scope::new(name, &own(allow), &own(drop), &env)
    }

    fn narrowed(scopes: &[Scope]) -> (String, String) {
        let (mut allow, mut drop) = (vec!["A".to_owned(), "AWS_PROFILE".to_owned()], vec!["B".to_owned()]);
        InScope(scopes.to_vec()).narrow(&mut allow, &mut drop);
        (allow.join(" "), drop.join(" "))
    }

    #[test]
    fn lists_are_combined_and_a_narrower_scope_takes_precedence() {
        let both = |allow: &str, drop: &str| (allow.to_owned(), drop.to_owned());
        assert_eq!(narrowed(&[]), both("A AWS_PROFILE", "B"));
        let agent = || scope("agent x", &["C", "B"], &["AWS_*"], &[]);
        assert_eq!(narrowed(&[agent()]), both("A C B", "AWS_*"));
        let session = scope("session", &["AWS_REGION"], &["C"], &[]);
        assert_eq!(narrowed(&[agent(), session]), both("A B AWS_REGION", "AWS_* C"));
        assert_eq!(narrowed(&[agent(), scope("session", &["AWS_*"], &[], &[])]), both("A C B AWS_*", ""));
        let one = scope("session", &["AWS_REGION"], &["AWS_*"], &[]);
        assert_eq!(narrowed(&[one]), both("A AWS_REGION", "B AWS_*"), "a name of one scope goes before its patterns");
        assert_eq!(narrowed(&[scope("session", &["D"], &["D"], &[])]), both("A AWS_PROFILE", "B D"));
    }

    #[test]
    fn a_variable_dropped_by_a_narrower_scope_is_not_set_by_a_wider_one() {
        let scopes = InScope(vec![
            scope("agent x", &[], &[], &[("EDITOR", "vi"), ("TOOL_A", "1"), ("TOOL_B", "1")]),
            scope("directory /w", &["TOOL_B"], &["TOOL_*"], &[]),
            scope("session", &[], &[], &[("EDITOR", "ed")]),
        ]);
        let given = |(step, changes): (String, Vec<Change>)| {
            let names: Vec<&str> = changes.iter().map(|change| change.effect.name()).collect();
            format!("{step}: {}", names.join(" "))
        };
        let steps: Vec<String> = scopes.steps().into_iter().map(given).collect();
        assert_eq!(steps, ["env (agent x): EDITOR TOOL_B", "env (session): EDITOR"]);
    }
}
