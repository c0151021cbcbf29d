//! What the configuration and a session's own specification say of one session's environment: what is allowed, what is dropped, and the
//! variables that are given. Pure, but for the question where the directories of the configuration are.
//!
//! A narrower scope goes before a wider one: the session before its directory, that before its agent, that before the settings of the
//! plugins. Among directories the longest path is the narrowest. Lists add up, as far as a narrower scope does not say otherwise.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use agentd_api::environment::EnvironmentSpec;
use agentd_api::{Code, Problem};
use agentd_plugins::{Change, Plugin, Setting, glob};

use super::secret;
use crate::capability::Machine;
use crate::plugins::Use;

/// The settings that scopes add to, of the built-in plugins that have them.
const ALLOW: &str = "allow";
const DROP: &str = "drop";
/// The older name of the snapshot's `allow`.
const KEEP: &str = "keep";
/// The setting that has what the agent is.
const IDENTITY: &str = "identity";
/// How the names of the steps begin that give the variables of scopes.
const STEP: &str = "env (";
/// How the names of agentd's own variables begin.
const OWN: &str = "AGENTD_";

/// What one scope says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// `agent claude`, `directory /work`, `session`.
    pub(crate) name: String,
    pub(crate) allow: Vec<String>,
    pub(crate) drop: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
}

/// What is said that may be of a session, before it is known where its directory is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scopes {
    pub(crate) agent: Option<Scope>,
    /// By absolute path.
    pub(crate) directories: Vec<(PathBuf, Scope)>,
    pub(crate) session: Option<Scope>,
}

/// The scopes of one session, the widest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InScope(Vec<Scope>);

/// Why a name, a pattern or a variable cannot stand in a scope. The text never has the value in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScopeError {
    #[error("{0:?} is no name of a variable: letters, digits and _, and no digit first")]
    Name(String),
    #[error("{0:?} is neither a name of a variable nor a pattern of names with * and ?")]
    Pattern(String),
    #[error("{0} is agentd's own variable")]
    Own(String),
    #[error("the value of {0} has a NUL byte in it")]
    Nul(String),
    #[error("{0} is a secret, by its name or by its value, and would be stored in clear")]
    Secret(String),
}

impl ScopeError {
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Name(_) | Self::Pattern(_) => "give a name such as JAVA_HOME".to_owned(),
            Self::Own(_) => "leave it out: agentd sets it itself".to_owned(),
            Self::Nul(_) => "no program can be given such a value".to_owned(),
            Self::Secret(name) => {
                format!("declare it as [secrets.{name}] in agentd.toml, with a file or a command to take it from")
            }
        }
    }

    pub(crate) fn problem(&self) -> Problem {
        let code = if matches!(self, Self::Secret(_)) { Code::SecretInEnvironment } else { Code::InvalidRequest };
        Problem::new(code, format!("environment: {self}")).hint(self.hint())
    }
}

impl Scope {
    pub(crate) fn new(
        name: impl Into<String>,
        allow: &[String],
        drop: &[String],
        env: &BTreeMap<String, String>,
    ) -> Self {
        Self { name: name.into(), allow: allow.to_vec(), drop: drop.to_vec(), env: env.clone() }
    }

    pub(crate) fn of_session(spec: &EnvironmentSpec) -> Self {
        Self::new("session", &spec.allow, &spec.drop, &spec.env)
    }

    /// Each thing that cannot stand in it, with the key that has it.
    pub(crate) fn check(&self) -> Vec<(&'static str, ScopeError)> {
        let lists = [(ALLOW, &self.allow), (DROP, &self.drop)];
        let listed = lists.into_iter().flat_map(|(key, list)| list.iter().map(move |entry| (key, entry)));
        let listed = listed.filter_map(|(key, entry)| Some((key, check_entry(entry).err()?)));
        let given = self.env.iter().filter_map(|(name, value)| Some(("env", check_variable(name, value).err()?)));
        listed.chain(given).collect()
    }

    fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.drop.is_empty() && self.env.is_empty()
    }

    fn drops(&self, name: &str) -> bool {
        self.drop.iter().any(|pattern| glob(pattern, name)) && !self.allow.iter().any(|allowed| allowed == name)
    }

    /// The step that gives its variables.
    pub(super) fn step(&self) -> String {
        format!("{STEP}{})", self.name)
    }
}

/// Whether a step of this name gives the variables of a scope. No provider has such a name.
pub(crate) fn is_step(name: &str) -> bool {
    name.starts_with(STEP)
}

fn check_entry(entry: &str) -> Result<(), ScopeError> {
    if entry.starts_with(OWN) {
        return Err(ScopeError::Own(entry.to_owned()));
    }
    // Names that shells cannot export are there all the same: `npm_config_@acme:registry`, `BASH_FUNC_module%%`.
    let fits = |c: char| c.is_ascii_graphic() && c != '=';
    let is_name = !entry.is_empty() && entry.chars().all(fits);
    is_name.then_some(()).ok_or_else(|| ScopeError::Pattern(entry.to_owned()))
}

fn check_variable(name: &str, value: &str) -> Result<(), ScopeError> {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !name.starts_with(letter) || !name.chars().all(|c| letter(c) || c.is_ascii_digit()) {
        return Err(ScopeError::Name(name.to_owned()));
    }
    if name.starts_with(OWN) {
        return Err(ScopeError::Own(name.to_owned()));
    }
    if value.contains('\0') {
        return Err(ScopeError::Nul(name.to_owned()));
    }
    if secret::is_secret(name, value.as_bytes()) {
        return Err(ScopeError::Secret(name.to_owned()));
    }
    Ok(())
}

impl Scopes {
    /// Those that hold for a session in the directory, whose real path is `real` where it has answered.
    pub(crate) async fn of(
        &self,
        directory: &Path,
        real: Option<&Path>,
        machine: &Machine,
        deadline: Instant,
    ) -> InScope {
        // A link in the configuration is followed too: a session's directory mostly comes with its links resolved.
        let paths: Vec<PathBuf> = self.directories.iter().map(|(path, _)| path.clone()).collect();
        let places = if paths.is_empty() { Vec::new() } else { machine.places(paths, deadline, |_| false).await };
        let mut around: Vec<(&PathBuf, &Scope)> = Vec::new();
        for ((path, scope), place) in self.directories.iter().zip(places) {
            let resolved = place.into_directory();
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
    /// What one of the steps is set to: its own settings with what the scopes and, of what is allowed, the other steps say. A plugin of
    /// the user's is set to what the configuration says and nothing else: its `allow` may mean anything.
    pub(super) fn settings(
        &self,
        steps: &[Use],
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
        // What a later step is allowed has to come to it, and what an earlier one keeps is kept.
        let built_in = |step: &&Use| step.plugin.is_built_in();
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

    /// Adds what the scopes say, each before what the wider ones say.
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

    /// The variables that the scopes give, by step. What a narrower scope gives or drops, a wider one does not give.
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

/// Whether the plugin is set to what the agent is.
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
    fn lists_add_up_and_a_narrower_scope_goes_before_a_wider_one() {
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
    fn what_a_narrower_scope_drops_a_wider_one_does_not_give() {
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

    #[test]
    fn what_cannot_be_given_is_refused_and_a_secret_is_never_repeated() {
        for (name, value, expected) in [
            ("1A", "x", "no name"),
            ("A B", "x", "no name"),
            ("", "x", "no name"),
            ("AGENTD_SESSION", "x", "agentd's own"),
            ("GITHUB_TOKEN", "hunter22", "is a secret"),
            ("GREETING", "https://kim:hunter22@host/", "is a secret"),
            ("A", "a\0hunter22", "NUL"),
        ] {
            let found = scope("session", &[], &[], &[(name, value)]).check();
            let [("env", error)] = &found[..] else { panic!("{name}: {found:?}") };
            let text = format!("{error}; {}", error.hint());
            assert!(text.contains(expected) && !text.contains("hunter22"), "{text}");
        }
        let steering = [("LD_PRELOAD", "/x.so"), ("BASH_ENV", "/x"), ("PATH", "/x")];
        assert_eq!(scope("session", &["SSH_AUTH_SOCK", "X_*"], &["?"], &steering).check(), []);
        let found = scope("session", &["A B", ""], &["A=1", "AGENTD_*"], &[]).check();
        let keys: Vec<&str> = found.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["allow", "allow", "drop", "drop"]);
        assert_eq!(ScopeError::Secret("A".to_owned()).problem().code, Code::SecretInEnvironment);
    }
}
