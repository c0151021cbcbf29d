//! A scope of the configuration or of a session: the variables that it allows, drops and sets.
//!
//! This module does not decide which scopes apply to a session, or how they change an environment (`environment`).

use std::collections::BTreeMap;

use agentd_api::environment::EnvironmentSpec;
use agentd_api::{Code, Problem};
use agentd_plugin_host::glob;

use crate::secret;

/// Setting of built-in plugins with the names and patterns of variables that pass.
pub const ALLOW: &str = "allow";
/// Setting of built-in plugins with the names and patterns of variables that are dropped.
pub const DROP: &str = "drop";
/// Prefix of the names of steps that set a scope's variables.
const STEP: &str = "env (";
/// Prefix of agentd's own variables.
const OWN: &str = "AGENTD_";

/// The variables that one scope allows, drops and sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Name of the scope in messages: `agent claude`, `directory /work` or `session`.
    pub name: String,
    /// Names and patterns of variables that pass the whitelist.
    pub allow: Vec<String>,
    /// Names and patterns of variables that are dropped.
    pub drop: Vec<String>,
    /// Variables that are set after all providers have run.
    pub env: BTreeMap<String, String>,
}

/// Reason why a scope cannot contain a name, a pattern or a variable. The message never contains the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    #[error("{0:?} is not a variable name; use letters, digits and _, and begin with no digit")]
    /// The name is not a valid variable name.
    Name(String),
    #[error("{0:?} is neither a variable name nor a pattern with * and ?")]
    /// The entry is neither a name nor a pattern.
    Pattern(String),
    #[error("{0} is agentd's own variable")]
    /// The name is reserved for agentd.
    Own(String),
    #[error("the value of {0} contains a NUL byte")]
    /// The value contains a NUL byte.
    Nul(String),
    #[error("{0} is a secret by its name or its value, and would be stored unencrypted")]
    /// The variable is a secret by its name or by its value.
    Secret(String),
}

impl ScopeError {
    /// Returns a hint for the user.
    pub fn hint(&self) -> String {
        match self {
            Self::Name(_) | Self::Pattern(_) => "use a name such as JAVA_HOME".to_owned(),
            Self::Own(_) => "remove it: agentd sets this variable itself".to_owned(),
            Self::Nul(_) => "remove the NUL byte: no program can receive such a value".to_owned(),
            Self::Secret(name) => {
                format!("declare it as [secrets.{name}] in agentd.toml, with a file or a command as its source")
            }
        }
    }

    /// Returns the problem document for a request that contains the invalid entry.
    pub fn problem(&self) -> Problem {
        let code = if matches!(self, Self::Secret(_)) { Code::SecretInEnvironment } else { Code::InvalidRequest };
        Problem::new(code, format!("environment: {self}")).hint(self.hint())
    }
}

impl Scope {
    /// Builds a scope from its lists.
    pub fn new(name: impl Into<String>, allow: &[String], drop: &[String], env: &BTreeMap<String, String>) -> Self {
        Self { name: name.into(), allow: allow.to_vec(), drop: drop.to_vec(), env: env.clone() }
    }

    /// Builds the scope of a session from its request.
    pub fn of_session(spec: &EnvironmentSpec) -> Self {
        Self::new("session", &spec.allow, &spec.drop, &spec.env)
    }

    /// Returns every invalid entry together with the key that contains it.
    pub fn check(&self) -> Vec<(&'static str, ScopeError)> {
        let lists = [(ALLOW, &self.allow), (DROP, &self.drop)];
        let listed = lists.into_iter().flat_map(|(key, list)| list.iter().map(move |entry| (key, entry)));
        let listed = listed.filter_map(|(key, entry)| Some((key, check_entry(entry).err()?)));
        let given = self.env.iter().filter_map(|(name, value)| Some(("env", check_variable(name, value).err()?)));
        listed.chain(given).collect()
    }

    /// Reports whether the scope changes nothing.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.drop.is_empty() && self.env.is_empty()
    }

    /// Reports whether the scope drops this variable. An exact name in `allow` takes precedence over a pattern in
    /// `drop`.
    pub fn drops(&self, name: &str) -> bool {
        self.drop.iter().any(|pattern| glob(pattern, name)) && !self.allow.iter().any(|allowed| allowed == name)
    }

    /// Returns the name of the step that sets the scope's variables.
    pub fn step(&self) -> String {
        format!("{STEP}{})", self.name)
    }
}

/// Reports whether a step with this name sets the variables of a scope. No provider can have such a name.
pub fn is_step(name: &str) -> bool {
    name.starts_with(STEP)
}

fn check_entry(entry: &str) -> Result<(), ScopeError> {
    if entry.starts_with(OWN) {
        return Err(ScopeError::Own(entry.to_owned()));
    }
    // Environments also contain names that shells cannot export: `npm_config_@acme:registry`, `BASH_FUNC_module%%`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(name: &str, allow: &[&str], drop: &[&str], env: &[(&str, &str)]) -> Scope {
        let own = |list: &[&str]| list.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>();
        let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Scope::new(name, &own(allow), &own(drop), &env)
    }

    #[test]
    fn what_cannot_be_given_is_refused_and_a_secret_is_never_repeated() {
        for (name, value, expected) in [
            ("1A", "x", "not a variable name"),
            ("A B", "x", "not a variable name"),
            ("", "x", "not a variable name"),
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
